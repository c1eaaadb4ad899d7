//! Federated Fisher scoring: clients send sums, the server takes Newton steps.
//!
//! Log-likelihood, score and information of a regression are sums over rows, so sums over clients are
//! those of the pooled rows, and the fit is the pooled fit: iteratively reweighted least squares
//! (McCullagh and Nelder, *Generalized Linear Models*, 1989, section 2.5) without moving rows.
//!
//! | notation | here | meaning |
//! |---|---|---|
//! | `β` | `beta` | coefficients of standardised columns |
//! | `ℓ_i(β), U_i(β), I_i(β)` | [`Sums`](whimbrel_models::glm::Sums) | a client's log-likelihood, score, information |
//! | `λ² = U' I⁻¹ U` | `decrement` | squared Newton decrement |
//!
//! Exchanges, each with all clients; one without all answers is repeated:
//! 1. rounds: `β` goes down, `(ℓ_i, U_i, I_i)` up; the server moves to `β + t I⁻¹ U`, with `t = 1` halved while
//!    the log-likelihood falls, until `λ² ≤ 1e-16`;
//! 2. for likelihood-ratio tests, the same for each model without one term, all in the same rounds;
//! 3. one exchange at the estimate: deviance, Pearson's statistic, products of scores.
//!
//! *Reduces to* the pooled fit for any split of the rows; with the Gaussian family one step is exact.

mod path;
mod result;

pub use path::{End, Path};
pub use result::KIND;

use crate::federated::{BindRows, aggregate};
use crate::measures;
use crate::settings::ROWS_MAX;
use whimbrel_core::declare::{Better, Role};
use whimbrel_core::linalg::packed_len;
use whimbrel_core::method::{
    Allowance, Artifact, Bind, ClientGroup, Cohort, Declaration, Evaluate, Metric, Next, Sender,
    Status,
};
use whimbrel_core::sum::{ExactSum, MAGNITUDE_MAX};
use whimbrel_core::{ClientData, ClientId, Error, Key, Measure, Method, Result, vector, wire};
use whimbrel_models::glm::{Asked, Errors, Model, Rows, Scaling};

/// The method.
#[derive(Clone, Debug)]
pub struct Newton {
    pub model: Model,
    /// Factor of half the squared norm of the coefficients in data units, beside the mean
    /// log-likelihood; intercepts are free.
    pub ridge: f64,
    pub asked: Asked,
    /// Whether each term has a likelihood-ratio test.
    pub tests: bool,
    /// Most rounds.
    pub rounds: u32,
    /// Fewest rows behind a client's sums.
    pub min_group: Option<u32>,
}

/// A client's message at enrolment.
#[derive(Clone, Debug)]
pub struct Enrolment {
    rows: u64,
    dropped: u64,
    /// `(rows, Σ w, Σ w y, Σ w y²)`, then means and sums of squared deviations of the columns.
    sums: Vec<f64>,
}

/// The server's state.
#[derive(Clone, Debug)]
pub struct Server {
    means: Vec<f64>,
    scales: Vec<f64>,
    /// `(rows, Σ w, Σ w y, Σ w y²)` over clients.
    totals: Vec<f64>,
    dropped: u64,
    clients: u32,
    rounds: u32,
    /// The fit, then the fits without one term.
    paths: Vec<Path>,
    /// Sums at the estimate; empty until the last exchange.
    last: Vec<f64>,
}

/// Points at which clients compute, in the standardised columns.
#[derive(Clone, Debug)]
pub struct Down {
    means: Vec<f64>,
    scales: Vec<f64>,
    points: Vec<Vec<f64>>,
    /// Whether this is the exchange at the estimate.
    last: bool,
}

/// Sums over uploads.
#[derive(Clone, Debug)]
pub struct Fold {
    sums: ExactSum,
    count: u32,
}

wire!(Enrolment { rows, dropped, sums });
wire!(Server { means, scales, totals, dropped, clients, rounds, paths, last });
wire!(Down { means, scales, points, last });
wire!(Fold { sums, count });

impl Newton {
    /// Length of the sums at one point: log-likelihood, invalid rows, score, information.
    fn point_len(&self) -> usize {
        let p = self.model.parameters();
        2 + p + packed_len(p)
    }

    fn misfit_len(&self) -> usize {
        self.model.misfit_parts(&self.asked).iter().sum()
    }

    /// The most rounds: a round in which clients were missing is repeated, and the sums at the
    /// estimate take one more.
    fn rounds_max(&self) -> u32 {
        self.rounds.saturating_mul(2).saturating_add(1)
    }

    /// The points of the next exchange; `None` once the fit is complete.
    fn points(&self, server: &Server) -> Option<(Vec<Vec<f64>>, bool)> {
        let open = server.paths.iter().filter(|path| path.end == End::None);
        let points: Vec<Vec<f64>> = open.map(|path| path.trial.clone()).collect();
        match (points.is_empty(), server.last.is_empty()) {
            (false, _) => Some((points, false)),
            (true, true) => Some((vec![server.paths[0].beta.clone()], true)),
            (true, false) => None,
        }
    }

    fn upload_len(&self, points: usize, last: bool) -> usize {
        points * self.point_len() + if last { self.misfit_len() } else { 0 }
    }
}

impl Bind<Newton> for BindRows {
    fn bind(&self, method: &Newton, data: &ClientData) -> Result<Rows> {
        match data {
            ClientData::Table(table) => method.model.design.rows(table, method.model.family, true),
            _ => Err(Error::data("a regression reads tables")),
        }
    }
}

impl Method for Newton {
    type Data = Rows;
    type Server = Server;
    type Peer = u64;
    type Client = ();
    type Summary = Enrolment;
    type Down = Down;
    type Up = Vec<f64>;
    type Broadcast = ();
    type Fold = Fold;

    fn declare(&self) -> Declaration {
        let (p, k) = (self.model.parameters(), self.model.design.width());
        let summary = "numbers of complete and incomplete rows, sum and sum of squares of the target, \
                       and the mean and the squared deviations of each column of the design";
        let up = format!(
            "log-likelihood of its rows at the server's coefficients, its gradient ({p} numbers) and its \
             information matrix; once also deviance, for binomial targets counts by bins of the \
             predicted probability{}{}",
            if self.asked.heterogeneity { ", the coefficients of its rows alone" } else { "" },
            match self.asked.errors {
                Errors::Model => "",
                Errors::Robust => " and the sum of the outer products of its rows' scores",
                Errors::Clustered => " and the outer product of its score",
            }
        );
        let points = if self.tests { self.model.terms().len().max(1) } else { 1 };
        let bytes = 8 * (self.upload_len(points, true)) + 10;
        let disclosures =
            vec![aggregate("summary", summary, 8 * (2 * k + 4) + 32), aggregate("up", &up, bytes)];
        let decrement = Measure::new(
            "decrement",
            "Newton decrement",
            "decrement",
            "Squared length of the last step, in standard errors",
        );
        let separated =
            Measure::new("separated", "Separation", "separated", "Infinite coefficients");
        Declaration {
            exchanges: vec![Allowance::rounds(Some(self.rounds_max()))],
            disclosures,
            measures: vec![
                Measure::objective("Mean negative log-likelihood"),
                measures::epoch(),
                decrement.log().better(Better::Down).summary(),
                separated.without_curve().role(Role::List).defect(
                    "separation: coefficient {} is infinite; merge levels, drop the term or set a ridge",
                ),
            ],
            ..Declaration::default()
        }
    }

    fn enroll(&self, rows: &Rows, _: Key) -> Result<((), Enrolment)> {
        let sums = rows.totals().into_iter().chain(rows.moments()).collect();
        Ok(((), Enrolment { rows: rows.len() as u64, dropped: rows.dropped, sums }))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Enrolment)>,
        _: Key,
    ) -> Result<Server> {
        let k = self.model.design.width();
        let (mut totals, mut all) = (vec![0.0; 4], Vec::new());
        for (id, enrolment) in roster {
            check_enrolment(id, &enrolment, 4 + 2 * k)?;
            vector::axpy(&mut totals, 1.0, &enrolment.sums[..4]);
            all.push(enrolment);
        }
        let rows = totals[0];
        if rows == 0.0 {
            return Err(Error::data("no client has a complete row"));
        }
        let (mut means, mut scales) = (vec![0.0; k], vec![0.0; k]);
        for one in &all {
            vector::axpy(&mut means, one.sums[0] / rows, &one.sums[4..4 + k]);
        }
        // Σ (x − m)² = Σ_i Σ (x − m_i)² + n_i (m_i − m)²
        for Enrolment { sums, .. } in &all {
            for (j, scale) in scales.iter_mut().enumerate() {
                let gap = sums[4 + j] - means[j];
                *scale += sums[4 + k + j] + sums[0] * gap * gap;
            }
        }
        for ((scale, mean), name) in scales.iter_mut().zip(&means).zip(self.model.design.names()) {
            *scale = (*scale / rows).sqrt();
            if *scale <= 1e-14 * mean.abs() {
                let what = format!("{name:?} has the same value in all complete rows");
                return Err(
                    Error::data(what).hint("list the other columns with `columns` in [data]")
                );
            }
        }
        if !self.model.design.intercept && !self.model.by_client {
            means.fill(0.0);
        }
        let mut beta = self.model.start(totals[1], totals[2], totals[3])?;
        if self.model.by_client {
            beta.fill(0.0);
        }
        let paths = vec![Path::new(beta, &[])];
        let (totals, last) = (vec![0.0; 4], Vec::new());
        Ok(Server { means, scales, totals, dropped: 0, clients: 0, rounds: 0, paths, last })
    }

    fn admit(&self, server: &mut Server, id: ClientId, enrolment: &Enrolment) -> Result<u64> {
        check_enrolment(id, enrolment, 4 + 2 * server.means.len())?;
        vector::axpy(&mut server.totals, 1.0, &enrolment.sums[..4]);
        server.dropped += enrolment.dropped;
        server.clients += 1;
        if server.rounds > 0 {
            // The likelihood of a late joiner's rows was not in the sums so far.
            server.paths.truncate(1);
            server.paths[0].reopen();
            server.last.clear();
        }
        Ok(enrolment.rows)
    }

    fn rows(&self, peer: &u64) -> Option<u64> {
        Some(*peer)
    }

    fn status(&self, server: &Server) -> Status {
        let next = match self.points(server) {
            Some(_) => Next::Round(Cohort::Everyone),
            None if server.paths[0].end == End::Converged => Next::Converged,
            None => Next::Stop,
        };
        let norm = vector::norm2_squared(&server.paths[0].beta).sqrt();
        Status { next, magnitude: 1.0 + norm }
    }

    fn open(&self, server: &Server, _: &[ClientId]) -> Result<((), Fold)> {
        let length = self.points(server).map_or(0, |(all, last)| self.upload_len(all.len(), last));
        Ok(((), Fold { sums: ExactSum::new(length), count: 0 }))
    }

    fn downlink(&self, server: &Server, (): &(), peer: &u64, _: Key) -> Result<(u64, Down)> {
        let (points, last) = self.points(server).unwrap_or_default();
        let (means, scales) = (server.means.clone(), server.scales.clone());
        Ok((*peer, Down { means, scales, points, last }))
    }

    fn local_step(&self, (): &(), down: &Down, rows: &Rows, _: Key) -> Result<((), Vec<f64>)> {
        let k = self.model.design.width();
        let asked = if self.tests { self.model.terms().len().max(1) } else { 1 };
        if down.means.len() != k || down.scales.len() != k || down.points.len() > asked {
            return Err(Error::peer("the server asks for the sums of another model"));
        }
        let scaling = Scaling { means: down.means.clone(), scales: down.scales.clone() };
        let mut up = Vec::with_capacity(self.upload_len(down.points.len(), down.last));
        for point in &down.points {
            let sums = self.model.evaluate(rows, &scaling, point)?;
            let few = self.min_group.is_some_and(|group| sums.support < f64::from(group));
            let all = sums.score.iter().chain(&sums.information).chain([&sums.log_likelihood]);
            let finite = all.into_iter().all(|x| x.abs() < MAGNITUDE_MAX);
            let many = rows.y.len() >= self.min_group.unwrap_or(0) as usize;
            if !down.last && (few && many || !finite) {
                // Far from the estimate few rows may determine the sums, or overflow them: such a
                // point counts as one without a likelihood, and the server takes a shorter step.
                up.extend([0.0, rows.y.len() as f64]);
                up.resize(up.len() + sums.score.len() + sums.information.len(), 0.0);
                continue;
            }
            if few {
                return Err(Error::data(format!(
                    "its sums rest on {:.1} rows, fewer than min_group = {}",
                    sums.support,
                    self.min_group.unwrap_or(1)
                ))
                .hint("leave this client out, or write min_group = 1 in [privacy]"));
            }
            up.extend([sums.log_likelihood, sums.invalid]);
            up.extend(&sums.score);
            up.extend(&sums.information);
            if down.last {
                // At infinite coefficients some sums do not exist.
                let misfit = self.model.misfit(rows, &scaling, point, &self.asked, &sums.score)?;
                let defined = |x: f64| if x.abs() < MAGNITUDE_MAX { x } else { 0.0 };
                up.extend(misfit.into_iter().map(defined));
            }
        }
        Ok(((), up))
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, u64>, up: Vec<f64>) -> Result<()> {
        let summable = up.iter().all(|x| x.abs() < MAGNITUDE_MAX);
        if up.len() != fold.sums.len() || !summable {
            return Err(Error::peer(format!("client {} sent other sums than asked", from.id)));
        }
        fold.sums.add(&up, 1.0)?;
        fold.count += 1;
        Ok(())
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        fold.sums.merge(&other.sums)?;
        fold.count += other.count;
        Ok(())
    }

    fn server_step(&self, mut server: Server, fold: Fold, _: Key) -> Result<Server> {
        server.rounds += 1;
        let sums = fold.sums.value();
        if fold.count == server.clients {
            self.advance(&mut server, &sums)?;
        }
        if server.rounds >= self.rounds {
            server.paths.iter_mut().for_each(Path::give_up);
        }
        if server.rounds >= self.rounds_max() && self.points(&server).is_some() {
            return Err(Error::peer(format!(
                "clients were missing in too many of {} rounds: each round of newton needs them all",
                server.rounds
            )));
        }
        Ok(server)
    }

    fn without_clients(&self, server: Server) -> Result<Server> {
        Ok(Server { totals: vec![0.0; 4], dropped: 0, clients: 0, ..server })
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        self.result(server)
    }
}

impl Newton {
    /// One step of every open path, or the sums at the estimate.
    fn advance(&self, server: &mut Server, sums: &[f64]) -> Result<()> {
        let points = sums.chunks_exact(self.point_len());
        let is_last = server.paths.iter().all(|path| path.end != End::None);
        if is_last {
            server.last = sums.to_vec();
            return Ok(());
        }
        let scaling = Scaling { means: server.means.clone(), scales: server.scales.clone() };
        let ridge = self.ridge * server.totals[1];
        for (path, point) in server.paths.iter_mut().filter(|p| p.end == End::None).zip(points) {
            path.step(&self.model, &self.penalty(&scaling, ridge), point)?;
        }
        if self.tests && server.paths.len() == 1 && server.paths[0].end == End::Converged {
            let full = server.paths[0].beta.clone();
            let without = |(_, places): (String, Vec<usize>)| Path::new(full.clone(), &places);
            server.paths.extend(self.model.terms().into_iter().map(without));
        }
        Ok(())
    }

    /// The ridge of each parameter, in standardised columns.
    fn penalty(&self, scaling: &Scaling, ridge: f64) -> Vec<f64> {
        let each = (0..self.model.parameters()).map(|at| self.model.scale(scaling, at));
        each.map(|scale| scale.map_or(0.0, |scale| ridge / (scale * scale))).collect()
    }
}

fn check_enrolment(id: ClientId, enrolment: &Enrolment, length: usize) -> Result<()> {
    let Enrolment { rows, dropped, sums } = enrolment;
    let summable = sums.iter().all(|x| x.abs() < MAGNITUDE_MAX);
    if sums.len() != length || !summable || rows.max(dropped) > &ROWS_MAX || sums[0] != *rows as f64
    {
        return Err(Error::peer(format!("client {id} sent an invalid summary")));
    }
    Ok(())
}

impl Evaluate for Newton {
    type Ask = ();
    type Answer = ();

    fn ask(&self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn answer(&self, (): &(), (): &(), _: &Rows) -> Result<()> {
        Ok(())
    }

    /// The server's own figures: no client is asked for more than it sends.
    fn conclude(
        &self,
        server: &Server,
        _: &mut dyn Iterator<Item = (ClientId, ())>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        let fit = &server.paths[0];
        if group == ClientGroup::Unseen || !fit.log_likelihood.is_finite() {
            return Ok(Vec::new());
        }
        let separated = fit.separated.iter().map(|at| f64::from(*at) + 1.0).collect();
        Ok(vec![
            Metric::number("objective", -fit.log_likelihood / server.totals[1]),
            Metric::number("epoch", f64::from(server.rounds)),
            Metric::number("decrement", fit.decrement),
            Metric::list("separated", separated),
        ])
    }
}
