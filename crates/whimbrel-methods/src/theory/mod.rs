//! `step = "theory"`: the constants of Theorems 1, 3 and 4, of Corollary 2 and of Proposition 25,
//! estimated by a stage that runs before the fit.
//!
//! All clients take part in a few exact EM steps. Along that path
//! - `B(s)`, with `∇W(s) = −B(s) h(s)` (A4), is the Jacobian of `s ↦ φ(T(s))`, computed by the server
//!   alone; its extreme eigenvalues (without null directions) are `v_min` and `v_max`;
//! - `L_Ẇ` and `L_i` (A4, A5) are the largest secants of `∇W` and `h_i` between two steps; under
//!   variance reduction `L_i²` is the mean over rows of the squared secants of `s̄_ij(T(s)) − s` (A8);
//! - `σ_i²` (A7) is the variance of the client's minibatch statistic, without variance reduction;
//! - `W(S_0) − min W` is the decrease of the objective along the path.
//!
//! These are local estimates, not bounds over the whole space; the run prints them with that warning.

mod bounds;
mod rows;

use crate::fedem::{self, Budget, Enrolment, Estimator, FedEm};
use crate::federated::{BindRows, aggregate};
use crate::kmeans::distance2;
use crate::no_evaluation::no_evaluation;
use crate::spider::Smoothness;
use bounds::Bounds;
use whimbrel_codec::channel::UpRule;
use whimbrel_core::method::{
    Allowance, Artifact, Bind, Cohort, Declaration, Done, Next, Sender, Status,
};
use whimbrel_core::sum::{ExactSum, MAGNITUDE_MAX};
use whimbrel_core::{ClientData, ClientId, Error, Key, Method, Result, linalg, vector, wire};
use whimbrel_models::{MixtureModel, Rows};

/// EM steps on the path.
const STEPS: u32 = 8;
/// The largest statistic whose `B` is decomposed.
const DIMENSION_MAX: usize = 600;
/// Eigenvalues of `B` below this share of the largest belong to null directions.
const NULL_SHARE: f64 = 1e-10;
/// Points closer than this share (of squared norms) give no secant.
const SECANT_SHARE: f64 = 1e-18;
/// Required gap between the null and the other eigenvalues.
const NULL_GAP: f64 = 1e3;

/// The stage.
pub struct Constants<M: MixtureModel> {
    /// The fit that it prepares.
    pub fit: FedEm<M>,
    /// The planned mean probability of participation in the fit.
    pub participation: f64,
}

/// The server's state.
#[derive(Clone, Debug)]
pub struct PathServer {
    fit: fedem::Server,
    theta_0: Vec<f64>,
    clients: u32,
    step: u32,
    last_s: Vec<f64>,
    last_gradient: Vec<f64>,
    w_first: Option<f64>,
    w_last: f64,
    lipschitz_w: f64,
    lipschitz2: f64,
    sigma2: f64,
    v_min: f64,
    v_max: f64,
}

/// A client's previous point and field.
#[derive(Clone, Debug, Default)]
pub struct PathClient {
    s: Vec<f64>,
    field: Vec<f64>,
    lipschitz2: f64,
    /// The parameters there; empty without variance reduction, as the next two fields.
    theta: Vec<f64>,
    /// Sampled rows, and their largest squared secants.
    looked: Vec<u32>,
    each_lipschitz2: Vec<f64>,
}

/// `(S, θ)`, or `θ_0` alone.
#[derive(Clone, Debug)]
pub struct PathPoint {
    s: Vec<f64>,
    theta: Vec<f64>,
}

/// A client's exact field (or first statistic) and figures.
#[derive(Clone, Debug)]
pub struct PathUpload {
    field: Vec<f64>,
    log_likelihood: f64,
    lipschitz2: f64,
    sigma2: f64,
}

/// Sums over clients.
#[derive(Clone, Debug)]
pub struct PathFold {
    fields: ExactSum,
    /// Log-likelihood weighted by `n_i`; then `L_i²`, `σ_i²` and one, weighted by `n_i²`.
    figures: ExactSum,
    weight: f64,
    count: u32,
}

wire!(PathServer {
    fit,
    theta_0,
    clients,
    step,
    last_s,
    last_gradient,
    w_first,
    w_last,
    lipschitz_w,
    lipschitz2,
    sigma2,
    v_min,
    v_max
});
wire!(PathClient { s, field, lipschitz2, theta, looked, each_lipschitz2 });
wire!(PathPoint { s, theta });
wire!(PathUpload { field, log_likelihood, lipschitz2, sigma2 });
wire!(PathFold { fields, figures, weight, count });

impl<M: MixtureModel> Bind<Constants<M>> for BindRows {
    fn bind(&self, method: &Constants<M>, data: &ClientData) -> Result<M::Data> {
        method.fit.oracle.model.bind(data)
    }
}

impl<M: MixtureModel> Method for Constants<M> {
    type Data = M::Data;
    type Server = PathServer;
    type Peer = fedem::Peer;
    type Client = PathClient;
    type Summary = Enrolment;
    type Down = PathPoint;
    type Up = PathUpload;
    type Broadcast = ();
    type Fold = PathFold;

    fn declare(&self) -> Declaration {
        let mut disclosures = self.fit.oracle.summary_disclosures();
        let up = format!(
            "{} times: for each component of the model, averages over all rows of the columns and of their \
             squares or products, with the mean log-likelihood, how fast these averages change with the \
             model, and their variance over random parts of the rows",
            STEPS + 1
        );
        let bytes = fedem::list_bytes(self.fit.oracle.model.statistic_len()) + 3 * 8;
        disclosures.push(aggregate("up", &up, bytes));
        let exchanges = vec![Allowance::rounds(Some(STEPS + 1))];
        Declaration { exchanges, disclosures, ..Declaration::default() }
    }

    fn enroll(&self, data: &M::Data, key: Key) -> Result<(PathClient, Enrolment)> {
        let rows = self.fit.oracle.model.rows(data) as u64;
        Ok((PathClient::default(), self.fit.enroll_rows(data, rows, key)?.1))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Enrolment)>,
        key: Key,
    ) -> Result<PathServer> {
        let q = self.fit.oracle.model.statistic_len();
        if q > DIMENSION_MAX {
            return Err(Error::config(format!(
                "step = \"theory\" supports statistics of up to {DIMENSION_MAX} numbers; this model has {q}"
            ))
            .hint("give the step as a number, or use \"auto\""));
        }
        let fit = self.fit.start(roster, key)?;
        Ok(PathServer {
            theta_0: fit.global.theta.clone(),
            fit,
            clients: 0,
            step: 0,
            last_s: Vec::new(),
            last_gradient: Vec::new(),
            w_first: None,
            w_last: 0.0,
            lipschitz_w: 0.0,
            lipschitz2: 0.0,
            sigma2: 0.0,
            v_min: f64::INFINITY,
            v_max: 0.0,
        })
    }

    fn admit(
        &self,
        server: &mut PathServer,
        id: ClientId,
        enrolment: &Enrolment,
    ) -> Result<fedem::Peer> {
        let peer = self.fit.admit(&mut server.fit, id, enrolment)?;
        server.clients += 1;
        Ok(peer)
    }

    fn rows(&self, peer: &fedem::Peer) -> Option<u64> {
        Some(peer.rows)
    }

    fn status(&self, server: &PathServer) -> Status {
        let more = server.step <= STEPS;
        let next = if more { Next::Round(Cohort::Everyone) } else { Next::Stop };
        Status::new(next, vector::norm2_squared(&server.fit.global.s_hat).sqrt())
    }

    fn open(&self, server: &PathServer, _: &[ClientId]) -> Result<((), PathFold)> {
        let fields = ExactSum::new(server.fit.global.s_hat.len());
        Ok(((), PathFold { fields, figures: ExactSum::new(4), weight: 0.0, count: 0 }))
    }

    fn downlink(
        &self,
        server: &PathServer,
        (): &(),
        peer: &fedem::Peer,
        _: Key,
    ) -> Result<(fedem::Peer, PathPoint)> {
        let s = if server.step == 0 { Vec::new() } else { server.fit.global.s_hat.clone() };
        Ok((peer.clone(), PathPoint { s, theta: server.fit.global.theta.clone() }))
    }

    fn local_step(
        &self,
        client: &PathClient,
        down: &PathPoint,
        data: &M::Data,
        key: Key,
    ) -> Result<Done<Self>> {
        let model = &self.fit.oracle.model;
        let theta = model.from_vector(&down.theta)?;
        let window = model.window(data, 0, model.rows(data))?;
        let data = window.as_ref().unwrap_or(data);
        let mut field = vec![0.0; model.statistic_len()];
        let log_likelihood = model.expect(&theta, data, Rows::All, &mut field)?;
        let sigma2 = self.variance(&theta, data, &field, key)?;
        if down.s.is_empty() {
            let up = PathUpload { field, log_likelihood, lipschitz2: 0.0, sigma2 };
            return Ok(Done::new(self.first_look(model.rows(data), key), up));
        }
        if down.s.len() != field.len() {
            return Err(Error::peer("the server's statistic has another length"));
        }
        // h_i(S) = s̄_i(T(S)) − S
        vector::axpy(&mut field, -1.0, &down.s);
        let mut next = PathClient { s: down.s.clone(), field, ..client.clone() };
        if client.looked.is_empty() {
            let seen = secant2(&client.s, &next.s, &client.field, &next.field).unwrap_or(0.0);
            next.lipschitz2 = client.lipschitz2.max(seen);
        } else {
            self.look_at_rows(client, &mut next, &theta, data)?;
            next.theta.clone_from(&down.theta);
        }
        let (field, lipschitz2) = (next.field.clone(), next.lipschitz2);
        Ok(Done::new(next, PathUpload { field, log_likelihood, lipschitz2, sigma2 }))
    }

    fn absorb(
        &self,
        fold: &mut PathFold,
        from: Sender<'_, fedem::Peer>,
        up: PathUpload,
    ) -> Result<()> {
        if up.field.len() != fold.fields.len() {
            return Err(Error::peer(format!("client {} sent a field of another length", from.id)));
        }
        // A refused upload must leave no trace: check everything before adding anything.
        let weight2 = from.peer.weight * from.peer.weight;
        let can_be_summed = |x: f64| x.abs() * weight2.max(1.0) < MAGNITUDE_MAX;
        let figures = [up.log_likelihood, up.lipschitz2, up.sigma2];
        if !(can_be_summed(vector::norm_inf(&up.field)) && figures.into_iter().all(can_be_summed)) {
            return Err(Error::peer(format!("client {} sent non-finite numbers", from.id)));
        }
        fold.fields.add(&up.field, from.peer.weight)?;
        fold.figures.add(&[up.log_likelihood, 0.0, 0.0, 0.0], from.peer.weight)?;
        fold.figures.add(&[0.0, up.lipschitz2, up.sigma2, 1.0], weight2)?;
        fold.weight += from.peer.weight;
        fold.count += 1;
        Ok(())
    }

    fn merge(&self, fold: &mut PathFold, other: PathFold) -> Result<()> {
        fold.fields.merge(&other.fields)?;
        fold.figures.merge(&other.figures)?;
        fold.weight += other.weight;
        fold.count += other.count;
        Ok(())
    }

    fn server_step(&self, mut server: PathServer, fold: PathFold, _: Key) -> Result<PathServer> {
        if fold.count == 0 {
            return Ok(server);
        }
        let mut field = fold.fields.value();
        vector::scale(&mut field, 1.0 / fold.weight);
        let figures = fold.figures.value();
        let loglik = figures[0] / fold.weight;
        let theta = self.fit.oracle.model.from_vector(&server.fit.global.theta)?;
        server.w_last = self.fit.oracle.model.penalty(&theta) - loglik;
        server.sigma2 = server.sigma2.max(figures[2] / figures[3]);
        let moments = server.fit.moments();
        if server.step == 0 {
            server.fit.global.s_hat = field;
        } else {
            server.w_first.get_or_insert(server.w_last);
            // L² = Σ w_i² L_i² / Σ w_i²: the noise of a weighted mean.
            server.lipschitz2 = figures[1] / figures[3];
            let s = server.fit.global.s_hat.clone();
            let gradient = self.directional(&s, &moments, &field)?;
            if let Some(seen) = secant2(&server.last_s, &s, &server.last_gradient, &gradient) {
                server.lipschitz_w = server.lipschitz_w.max(seen.sqrt());
            }
            if server.step == 1 || server.step == STEPS {
                let (low, high) = self.spectrum(&s, &moments)?;
                server.v_min = server.v_min.min(low);
                server.v_max = server.v_max.max(high);
            }
            // One EM step: S + h(S).
            vector::axpy(&mut server.fit.global.s_hat, 1.0, &field);
            (server.last_s, server.last_gradient) = (s, gradient);
        }
        let next = self.fit.oracle.model.maximize(&server.fit.global.s_hat, &moments)?;
        server.fit.global.theta = self.fit.oracle.model.to_vector(&next.theta);
        server.step += 1;
        Ok(server)
    }

    fn artifact(&self, server: &PathServer) -> Result<Artifact> {
        let (omega, alpha) = self.compression()?;
        let found = Bounds {
            of: Smoothness {
                v_min: server.v_min,
                v_max: server.v_max,
                lipschitz_w: server.lipschitz_w,
                lipschitz: server.lipschitz2.sqrt(),
            },
            sigma2: server.sigma2,
            gap: server.w_first.map_or(0.0, |w| (w - server.w_last).max(0.0)),
            omega,
            alpha,
            p: self.participation,
            clients: server.fit.global.effective_clients(server.fit.total),
            rounds: self.rounds(server),
        };
        // The fit starts at the point of these estimates.
        let artifact =
            Artifact::new("theory").with("theta", &[server.theta_0.len()], server.theta_0.clone());
        let mut named = vec![
            ("v_min", found.of.v_min),
            ("v_max", found.of.v_max),
            ("lipschitz_w", found.of.lipschitz_w),
            ("lipschitz", found.of.lipschitz),
        ];
        match self.fit.oracle.estimator {
            Estimator::Minibatch => {
                let gamma_max = found.gamma_max()?;
                named.extend([
                    ("sigma2", found.sigma2),
                    ("gap", found.gap),
                    ("omega", omega),
                    ("gamma_max", gamma_max),
                    ("gamma", found.gamma(gamma_max)),
                ]);
            }
            Estimator::Spider { inner } => {
                let rows = server.fit.rows / u64::from(server.clients.max(1));
                let batch = self.fit.oracle.batch.expectations(rows) as f64;
                named.extend([
                    ("inner", f64::from(inner)),
                    ("batch", batch),
                    ("omega", omega),
                    ("gamma", found.spider(inner, batch)?),
                ]);
            }
        }
        Ok(named.into_iter().fold(artifact, |a, (name, value)| a.with(name, &[], vec![value])))
    }
}

impl<M: MixtureModel> Constants<M> {
    /// The largest `ω` and the smallest `α` of the uplinks in use.
    fn compression(&self) -> Result<(f64, f64)> {
        let mut worst = (0.0f64, 1.0f64);
        for uplink in &self.fit.terms.uplinks {
            let omega = uplink.omega().filter(|omega| uplink.has_memory() || *omega == 0.0);
            let omega = omega.ok_or_else(|| {
                Error::config("step = \"theory\" needs memories and an unbiased codec")
                    .hint("the theorems cover no other uplink: give the step as a number")
            })?;
            let alpha = if let UpRule::Memory { alpha } = uplink.rule() { *alpha } else { 1.0 };
            worst = (worst.0.max(omega), worst.1.min(alpha));
        }
        Ok(worst)
    }

    /// `B(s) v`, the derivative of `φ(T(s))` along `v`.
    fn directional(&self, s: &[f64], moments: &[f64], v: &[f64]) -> Result<Vec<f64>> {
        let length = vector::norm2_squared(v).sqrt();
        if length == 0.0 {
            return Ok(vec![0.0; s.len()]);
        }
        let small = 1e-6 * vector::norm2_squared(s).sqrt().max(1e-300) / length;
        let phi_at = |t: f64| -> Result<Vec<f64>> {
            let mut moved = s.to_vec();
            vector::axpy(&mut moved, t, v);
            let theta = self.fit.oracle.model.maximize(&moved, moments)?.theta;
            Ok(self.fit.oracle.model.natural(&theta))
        };
        let (mut high, low) = (phi_at(small)?, phi_at(-small)?);
        vector::axpy(&mut high, -1.0, &low);
        vector::scale(&mut high, 0.5 / small);
        Ok(high)
    }

    /// The extreme eigenvalues of `B(s)` without null directions.
    fn spectrum(&self, s: &[f64], moments: &[f64]) -> Result<(f64, f64)> {
        let q = s.len();
        let mut b = vec![0.0; q * q];
        for j in 0..q {
            let mut unit = vec![0.0; q];
            unit[j] = 1.0;
            let column = self.directional(s, moments, &unit)?;
            for i in 0..q {
                // Symmetric in exact arithmetic: the mean of both halves.
                b[i * q + j] += 0.5 * column[i];
                b[j * q + i] += 0.5 * column[i];
            }
        }
        let values = linalg::symmetric_eigen(&b, q)?.values;
        let v_max = values.iter().fold(0.0f64, |m, v| m.max(*v));
        let (kept, null): (Vec<f64>, Vec<f64>) =
            values.into_iter().partition(|v| *v > NULL_SHARE * v_max);
        let v_min = kept.into_iter().fold(f64::INFINITY, f64::min);
        let noise = null.into_iter().fold(0.0f64, |m, v| m.max(v.abs()));
        if v_min < NULL_GAP * noise {
            return Err(Error::numerical(
                "step = \"theory\" cannot tell the smallest eigenvalue of B from rounding: standardise the columns, or give the step as a number",
            ));
        }
        Ok((v_min, v_max))
    }

    /// `k_max` of the fit.
    fn rounds(&self, server: &PathServer) -> f64 {
        match self.fit.terms.budget {
            Budget::Rounds(rounds) | Budget::Converged(rounds) => f64::from(rounds),
            Budget::Epochs(epochs) => {
                let each =
                    self.fit.oracle.batch.expectations(server.fit.rows / u64::from(server.clients));
                let per_round = each as f64 * self.participation * f64::from(server.clients);
                epochs * server.fit.rows as f64 / per_round
            }
        }
    }
}

/// `||b − b'||² / ||a − a'||²`; `None` if the points are too close.
fn secant2(a_old: &[f64], a: &[f64], b_old: &[f64], b: &[f64]) -> Option<f64> {
    if a_old.len() != a.len() || b_old.len() != b.len() {
        return None;
    }
    let run = distance2(a_old, a);
    let rise = distance2(b_old, b);
    (run > SECANT_SHARE * vector::norm2_squared(a)).then(|| rise / run)
}

no_evaluation!([M: MixtureModel] Constants<M>);
