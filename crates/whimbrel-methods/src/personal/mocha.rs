//! `mocha`: a linear model for each client, and a matrix that relates the clients.
//!
//! Reference: Smith, Chiang, Sanjabi, Talwalkar, *Federated multi-task learning*, NeurIPS 2017,
//! Algorithm 1 with the hinge loss and SDCA as the local solver.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `W = [w_1, ..., w_m]` | `w` | the clients' models |
//! | `Omega^-1` | `relation` | the relation of clients: `sqrtm(W^T W)/trace`, times the number of clients |
//! | `alpha_t` | `Duals::alpha` | dual variables, one per sample in [0, 1]; they stay on the client |
//! | `v_t = X_t alpha_t` | `v` | the client's samples, weighted by its dual variables |
//! | `sigma'` | `spread` | the damping of a client's step for the steps of the others |
//!
//! Minimises `sum_t sum_i hinge(y_i <w_t, x_i>) + lambda/2 tr(W Omega W^T)`. *Reduces to* a support
//! vector machine for each client as long as the relation is the identity, as it is at the start.
//! *Departures*: the trace of `Omega^-1` is the number of clients instead of one, so that `lambda`
//! does not depend on it. After the last round one more exchange delivers the models that it produced;
//! evaluations before it are of the model of a client's last message. Losses are means of the hinge.

use super::evaluate::Told;
use super::per_client::{PerClient, PerClientRule, Upload};
use super::{
    Adaptation, Ensemble, Length, Local, LocalRule, Own, PARAMETERS, Personal, Round, Shape, Work,
};
use crate::federated::{BindRows, Split, Terms};
use crate::settings::{Weights, largest_norm};
use std::sync::Arc;
use whimbrel_core::linalg::symmetric_eigen;
use whimbrel_core::method::Artifact;
use whimbrel_core::{
    ClientId, DynMethod, Erased, Error, Inputs, Key, Result, Samples, Targets, vector, wire,
};

/// `mocha`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mocha {
    pub lambda: f64,
    /// Rounds between two updates of the relation.
    pub relation_every: u32,
}

impl Default for Mocha {
    fn default() -> Self {
        Self { lambda: 10.0, relation_every: 10 }
    }
}

/// The trace's share that is spread evenly over the diagonal of the relation, so that no client's
/// entry vanishes.
const EVEN: f64 = 1e-6;

/// The global state.
#[derive(Clone, Debug, Default)]
pub struct Related {
    /// Client ids in order of admission: the places of everything below.
    ids: Vec<u32>,
    v: Vec<Vec<f64>>,
    w: Vec<Vec<f64>>,
    relation: Vec<f64>,
    /// Whether the clients have their models of the last round.
    delivered: bool,
}

/// A client's state.
#[derive(Clone, Debug)]
pub struct Duals {
    alpha: Vec<f64>,
    /// Its model of the last message.
    w: Vec<f64>,
}

/// The client's model, and the scale of its local problem.
#[derive(Clone, Debug)]
pub struct RelatedMessage {
    w: Vec<f64>,
    /// `sigma' Omega^-1_tt / lambda`; zero in the delivery, at which nothing is trained.
    scale: f64,
}

wire!(Related { ids, v, w, relation, delivered });
wire!(Duals { alpha, w });
wire!(RelatedMessage { w, scale });

/// Training rows as numbers with the constant, and classes as signs.
pub struct SignedRows {
    x: Vec<f64>,
    y: Vec<f64>,
    width: usize,
}

/// `mocha` for a learner: its predictions, and the passes of the local solver in a round.
pub struct MochaClients {
    pub training: Personal,
    pub settings: Mocha,
}

impl PerClientRule for MochaClients {
    type Rows = SignedRows;
    type Global = Related;
    type Scale = ();
    type Client = Duals;
    type Down = RelatedMessage;
    type Number = f64;
    /// Empty: a client evaluates the model of its last message.
    type Ask = ();

    const DELIVERS: bool = true;

    fn training(&self) -> &Personal {
        &self.training
    }

    fn lay_out(&self, train: &Samples) -> Result<SignedRows> {
        let Targets::Classes { of, count: 2 } = &train.targets else {
            return Err(Error::data("mocha tells two classes apart"));
        };
        let y = of.iter().map(|class| 2.0 * f64::from(*class) - 1.0).collect();
        // The constant of a learner with an intercept comes after the features.
        let (features, width) = (train.width(), self.width());
        let mut x = vec![1.0; train.len() * width];
        for (i, row) in x.chunks_exact_mut(width).enumerate() {
            let from = i * features;
            for (j, x) in row[..features].iter_mut().enumerate() {
                *x = match &train.inputs {
                    Inputs::Real(values) => f64::from(values[from + j]),
                    Inputs::Bytes(values) => f64::from(values[from + j]) / 255.0,
                    Inputs::Symbols(_) => return Err(Error::data("mocha takes numbers")),
                };
            }
        }
        Ok(SignedRows { x, y, width })
    }

    fn enroll(&self, train: &Samples) -> Duals {
        Duals { alpha: vec![0.0; train.len()], w: Vec::new() }
    }

    fn start(&self, _: Key) -> Result<(Related, ())> {
        Ok((Related::default(), ()))
    }

    /// A late joiner is unrelated to the other clients until the next update.
    fn admit(&self, to: &mut Related, id: ClientId, _: f64) -> u32 {
        let old = to.ids.len();
        let mut relation = vec![0.0; (old + 1) * (old + 1)];
        for i in 0..old {
            relation[i * (old + 1)..][..old].copy_from_slice(&to.relation[i * old..][..old]);
        }
        relation[old * (old + 1) + old] = 1.0;
        to.relation = relation;
        to.ids.push(id.0);
        to.v.push(vec![0.0; self.width()]);
        to.w.push(vec![0.0; self.width()]);
        old as u32
    }

    fn message(&self, global: &Related, place: u32, round: Option<u32>) -> RelatedMessage {
        let (t, m) = (place as usize, global.ids.len());
        let scale = || global.spread() * global.relation[t * m + t] / self.settings.lambda;
        RelatedMessage { w: global.w[t].clone(), scale: round.map_or(0.0, |_| scale()) }
    }

    /// SDCA on the client's dual problem, with the others' part fixed; uploads the change of `v_t`.
    fn local(
        &self,
        client: &Duals,
        down: &RelatedMessage,
        (_, SignedRows { x, y, width }): &(Split<Samples>, SignedRows),
        key: Key,
    ) -> Result<(Duals, Vec<f64>)> {
        let scales = down.scale >= 0.0 && down.scale.is_finite();
        if down.w.len() != *width || !vector::all_finite(&down.w) || !scales {
            return Err(Error::peer("a model of another length, or numbers out of range"));
        }
        let (mut alpha, mut u) = (client.alpha.clone(), down.w.clone());
        let mut moved = vec![0.0; *width];
        let mut order: Vec<usize> = (0..y.len()).collect();
        for pass in 0..self.passes() {
            key.child(u64::from(pass)).stream().shuffle(&mut order);
            for &i in &order {
                let (x, y) = (&x[i * width..][..*width], y[i]);
                let curvature = down.scale * vector::norm2_squared(x);
                if curvature <= 0.0 {
                    continue;
                }
                // alpha_i in [0, 1] that maximises the dual along its coordinate
                let next = (alpha[i] + (1.0 - y * vector::dot(&u, x)) / curvature).clamp(0.0, 1.0);
                let step = (next - alpha[i]) * y;
                alpha[i] = next;
                if step != 0.0 {
                    vector::axpy(&mut u, down.scale * step, x);
                    vector::axpy(&mut moved, step, x);
                }
            }
        }
        Ok((Duals { alpha, w: down.w.clone() }, moved))
    }

    fn rows_used(&self, rows: u64) -> u64 {
        u64::from(self.passes()) * rows
    }

    fn step(&self, global: &mut Related, moves: &[Upload<f64>], round: u32) -> Result<f64> {
        for (place, moved) in moves {
            vector::axpy(&mut global.v[*place as usize], 1.0, moved);
        }
        let Mocha { lambda, relation_every } = self.settings;
        global.refresh(lambda);
        if round.is_multiple_of(relation_every) {
            global.relate()?;
            global.refresh(lambda);
        }
        Ok(moves.iter().map(|(_, moved)| vector::norm2_squared(moved)).sum())
    }

    fn delivered(&self, global: &Related) -> bool {
        global.delivered
    }

    fn deliver(&self, global: &mut Related) {
        global.delivered = true;
    }

    fn magnitude(&self, global: &Related, (): &()) -> f64 {
        1.0 + largest_norm(global.w.iter().map(|w| vector::norm2_squared(w)))
    }

    fn artifact(&self, global: &Related, to: Artifact) -> Artifact {
        let m = global.ids.len();
        let artifact = to.with("relation", &[m, m], global.relation.clone());
        artifact.with_f32(PARAMETERS, &[m, self.width()], narrow(&global.w.concat()))
    }

    fn own(client: &Duals) -> Own {
        let known = Some(narrow(&client.w)).filter(|model| !model.is_empty());
        Own::of_models(known.into_iter().collect())
    }

    fn answer(&self, own: &Ensemble, parts: &Split<Samples>) -> Result<Told> {
        let score = |rows: &Samples| {
            let mut scores = own.score(&*self.training.learner, rows);
            if let (Some(loss), [model]) = (scores.first_mut(), &own.models[..]) {
                *loss = self.hinge(model, rows)?;
            }
            Ok(scores)
        };
        let answer = score(&parts.train)?.first().copied().unwrap_or(0.0);
        Ok(Told { rows: parts.rows[0], answer, memory_gap2: None, parts: parts.scores(score)? })
    }

    fn ask(&self, _: &Related) {}

    /// The model of a client without a message.
    fn shared(&self, (): &()) -> Vec<f32> {
        vec![0.0; self.width()]
    }
}

fn narrow(w: &[f64]) -> Vec<f32> {
    w.iter().map(|x| *x as f32).collect()
}

impl MochaClients {
    fn width(&self) -> usize {
        self.training.learner.parameters()
    }

    /// The mean hinge loss of a model on rows.
    fn hinge(&self, model: &[f32], rows: &Samples) -> Result<f64> {
        let SignedRows { x, y, width } = self.lay_out(rows)?;
        let model: Vec<f64> = model.iter().map(|w| f64::from(*w)).collect();
        let losses = x.chunks_exact(width).zip(&y);
        let losses = losses.map(|(x, y)| (1.0 - y * vector::dot(&model, x)).max(0.0));
        Ok(losses.sum::<f64>() / y.len().max(1) as f64)
    }

    fn passes(&self) -> u32 {
        let (Length::Epochs(passes) | Length::Steps(passes)) = self.training.solver.length;
        passes
    }
}

impl Related {
    /// `sigma' = max_t sum_s |Omega^-1_ts| / Omega^-1_tt` (Lemma 9).
    fn spread(&self) -> f64 {
        let m = self.ids.len();
        let of = |t: usize| {
            let row = &self.relation[t * m..(t + 1) * m];
            row.iter().map(|x| x.abs()).sum::<f64>() / row[t]
        };
        (0..m).map(of).fold(1.0, f64::max)
    }

    /// `w_t = (1/lambda) sum_s Omega^-1_ts v_s`.
    fn refresh(&mut self, lambda: f64) {
        let m = self.ids.len();
        for t in 0..m {
            self.w[t].fill(0.0);
            for (s, v) in self.v.iter().enumerate() {
                let weight = self.relation[t * m + s] / lambda;
                if weight != 0.0 {
                    vector::axpy(&mut self.w[t], weight, v);
                }
            }
        }
    }

    /// `Omega^-1 = m sqrtm(W^T W) / trace`.
    fn relate(&mut self) -> Result<()> {
        let m = self.ids.len();
        let mut gram = vec![0.0; m * m];
        for i in 0..m {
            for j in 0..=i {
                let dot = vector::dot(&self.w[i], &self.w[j]);
                (gram[i * m + j], gram[j * m + i]) = (dot, dot);
            }
        }
        let eigen = symmetric_eigen(&gram, m)?;
        let roots: Vec<f64> = eigen.values.iter().map(|x| x.max(0.0).sqrt()).collect();
        let trace: f64 = roots.iter().sum();
        if trace <= 0.0 {
            return Ok(());
        }
        let scale = (1.0 - EVEN) * m as f64 / trace;
        let mut relation = vec![0.0; m * m];
        for (k, root) in roots.iter().enumerate() {
            let axis = &eigen.vectors[k * m..(k + 1) * m];
            for i in 0..m {
                vector::axpy(&mut relation[i * m..(i + 1) * m], scale * root * axis[i], axis);
            }
        }
        (0..m).for_each(|i| relation[i * m + i] += EVEN);
        self.relation = relation;
        Ok(())
    }
}

/// A client predicts with its own model, as under `local`.
impl LocalRule for Mocha {
    fn check(&self, shape: &Shape<'_>) -> Result<()> {
        match shape.learner.name() {
            "logistic" => Ok(()),
            other => {
                let what = format!("mocha fits logistic regressions of two classes, not {other}");
                Err(Error::config(what).hint("write kind = \"logistic\" in [model]"))
            }
        }
    }

    fn method(&self, training: Personal, terms: Terms) -> Arc<dyn DynMethod> {
        let rule = MochaClients { training, settings: self.clone() };
        let (weights, budget) = (Weights::Samples, terms.budget);
        Arc::new(Erased(PerClient { rule, weights, budget }, BindRows))
    }

    fn sends_exactly(&self) -> bool {
        true
    }

    fn blocks(&self, shape: &Shape<'_>) -> Vec<usize> {
        Local.blocks(shape)
    }

    fn begin(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<Round> {
        Local.begin(work, w, own)
    }

    fn adaptation(&self) -> Adaptation {
        Local.adaptation()
    }

    fn sent(&self) -> &'static str {
        "each round: by how much a sum of the rows changed, in which training weights each row and \
         its class gives the sign"
    }
}
