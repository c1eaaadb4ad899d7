//! Distributed stochastic gradient descent over any uplink and any downlink: SGD, QSGD, Diana,
//! Artemis, Dore, Double-Squeeze, MCM, Rand-MCM and their combinations.
//!
//! Reference: Philippenko, Dieuleveut, *Preserved central model for faster bidirectional compression
//! in distributed settings*, NeurIPS 2021, equation (3) and Algorithm 1. The algorithms of its
//! Table 1 are values of (uplink, downlink): see [`preset`](whimbrel_codec::channel::preset).
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `w_k` | `w` | the central model |
//! | `ŵ_k^i` | result of `Downlink::receive` | the model at which client i computes |
//! | `g_{k+1}^i` | oracle | its stochastic gradient |
//! | `h_k^i`, `C_up`, `α_up` | uplink memory, codec, `alpha` | |
//! | `H_k^i`, `C_dwn`, `α_dwn` | downlink memory, codec, `alpha` | |
//! | `γ` | `step` | the step |
//! | `N` | total weight | clients (`1/N` each by default, as in the paper) |
//!
//! Reduces to
//! - `diana`: an exact downlink codec (`mcm`'s memory then cancels), bit for bit;
//! - `qsgd`: a plain uplink; `sgd`: exact codecs both ways;
//! - `mcm`: one group of `rand-mcm-g`; `rand-mcm`: as many groups as clients, full participation.
//!
//! Departures from the paper: partial participation for every variant (weights and
//! catch-up as for every method); `1/L` takes the mean of the clients' spectral constants.

mod evaluate;
mod smoothness;
mod state;
pub mod steps;

pub use smoothness::{SMOOTHNESS, Smoothness};
pub use state::{Global, Summary};
pub use steps::{Bounds, StepRule};

use crate::federated::{
    self, Computed, Context, ExchangeKind, Federated, Member, Oracle, Publish, Received, Terms,
    aggregate,
};
use crate::settings::{Batch, DRAW, check_sums, largest_norm};
use std::borrow::Cow;
use whimbrel_core::method::{Artifact, Declaration};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, vector};
use whimbrel_models::Rows;
use whimbrel_models::convex::{Examples, Problem};
use whimbrel_privacy::gaussian::Bits;
use whimbrel_privacy::noise::Source;

/// The complete method.
pub type Sgd = Federated<Gradient>;
pub type Server = federated::Server<Global>;

/// Hyper-parameters.
pub struct Gradient {
    pub problem: Problem,
    pub dimension: usize,
    /// The rows of a gradient.
    pub batch: Batch,
    /// `γ_k`.
    pub step: StepRule,
    /// Heavy-ball momentum on the server, in [0, 1).
    pub momentum: f64,
    /// The model that is delivered and evaluated.
    pub average: Average,
    /// The planned mean probability of participation; used by `theory` only.
    pub participation: f64,
    /// The minimiser and the minimum, if they are known, for excess losses.
    pub reference: Option<Reference>,
    /// Constants that are known before the clients enrol.
    pub known: Option<KnownConstants>,
}

impl Gradient {
    /// Full batches, the step `1/L`, no momentum, and the last iterate.
    pub fn new(problem: Problem, dimension: usize) -> Self {
        Self {
            problem,
            dimension,
            batch: Batch::Full,
            step: StepRule::OverSmoothness { factor: 1.0, frobenius: false },
            momentum: 0.0,
            average: Average::Last,
            participation: 1.0,
            reference: None,
            known: None,
        }
    }
}

/// Constants of an earlier stage, or public ones: clients send none of their rows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KnownConstants {
    /// The bound of a row's gradient, under differential privacy of rows.
    pub row_bound: Option<f64>,
    /// `L`.
    pub smoothness: f64,
    /// The sampling of rows with such a bound; `None`: all rows.
    pub sampling: Option<Sampling>,
}

/// Poisson sampling: each row of an upload independently, with one probability. Its draws are secret,
/// because noise is smaller only for those who do not know the drawn rows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    /// `q`.
    pub rate: f64,
    pub source: Source,
}

impl Sampling {
    /// The rows of one upload; `key` separates clients and exchanges.
    pub fn draw(&self, rows: usize, key: Key) -> Vec<u32> {
        let mut bits = self.source.bits_of_client(key.child(DRAW));
        // Rounded down, by less than 2^-53 of the rate.
        let below = (self.rate * 2f64.powi(64)) as u64;
        (0..rows as u32).filter(|_| bits.word() < below).collect()
    }
}

/// The delivered model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Average {
    Last,
    /// The mean of all iterates (Polyak-Ruppert).
    Uniform,
    /// Their mean weighted by `1/γ_{k−1}` (Theorem 1).
    Weighted,
    /// The mean of the iterates from this step on.
    Since(u32),
}

/// A minimum computed by a solver.
#[derive(Clone, PartialEq, Debug)]
pub struct Reference {
    pub w: Vec<f64>,
    pub f_star: f64,
    /// `F` at the start, zero.
    pub f_zero: f64,
}

impl Oracle for Gradient {
    type Number = f64;
    type Data = Examples;
    type Own = ();
    type Global = Global;
    type Summary = Summary;
    type Record = ();
    type Note = ();
    type Private = ();

    fn declare(&self, terms: &Terms) -> Declaration {
        let whole = 8 * self.dimension + 32;
        let over = match self.batch {
            Batch::Full if self.sampling().is_some() => "a random part of the rows".to_owned(),
            Batch::Full => "all rows".to_owned(),
            Batch::Sample { size: 1, .. } => "one row, which can reveal that row".to_owned(),
            Batch::Sample { size, .. } => format!("{size} rows, drawn at random"),
        };
        let summary = match self.known {
            Some(_) => "the number of rows",
            None => {
                "the number of rows, the largest and the smallest curvature of the loss, and the variance of its \
                 gradient over the rows"
            }
        };
        let mut disclosures = vec![
            aggregate("summary", summary, 32),
            aggregate(
                "up",
                &format!("each round: the gradient of the loss over {over}{}", terms.compressed()),
                terms.upload_bytes(whole),
            ),
            evaluate::disclosure(self.answered_len()),
        ];
        if terms.opens() {
            let opening = "once: the gradient at the first model";
            disclosures.push(aggregate("up", opening, whole));
        }
        Declaration { disclosures, measures: evaluate::measures(), ..Declaration::default() }
    }

    fn bind(&self, data: &ClientData) -> Result<(Examples, u64)> {
        let examples = self.problem.bind(data)?;
        let rows = examples.rows() as u64;
        Ok((examples, rows))
    }

    fn enroll(&self, data: &Examples, key: Key) -> Result<((), Summary)> {
        if data.dimension() != self.dimension {
            return Err(Error::data(format!(
                "its rows have {} columns where the model has {}",
                data.dimension(),
                self.dimension
            )));
        }
        if let Some(KnownConstants { smoothness, .. }) = self.known {
            return Ok(((), Summary { smoothness, strong_convexity: 0.0, sigma2: 0.0 }));
        }
        // Constants for the theorems leave the client only if the step needs them.
        let theory = self.step == StepRule::Theory;
        let summary = Summary {
            smoothness: if self.step.wants_frobenius() {
                self.problem.frobenius(data)
            } else {
                self.problem.smoothness(data)
            },
            strong_convexity: if theory { self.problem.strong_convexity(data) } else { 0.0 },
            sigma2: if theory {
                steps::gradient_variance(&self.problem, data, self.dimension, self.batch, key)?
            } else {
                0.0
            },
        };
        Ok(((), summary))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<Summary>>>,
        terms: &Terms,
        _: Key,
    ) -> Result<Global> {
        // The first roster determines the step.
        let mut sums = steps::Sums::default();
        for member in roster {
            let Member { id, weight, rows, summary } = member?;
            check(id, &summary)?;
            sums.add(weight, rows, &summary);
        }
        let (w, bounds) = (vec![0.0; self.dimension], sums.bounds(self, terms)?);
        Ok(Global {
            momentum: if self.momentum > 0.0 { w.clone() } else { Vec::new() },
            average: if self.average == Average::Last { Vec::new() } else { w.clone() },
            average_weight: 0.0,
            w,
            bounds,
            scale: None,
        })
    }

    fn admit(&self, _: &mut Global, member: &Member<&Summary>) -> Result<()> {
        check(member.id, member.summary)
    }

    fn published<'a>(&self, global: &'a Global, _: ExchangeKind) -> Cow<'a, [f64]> {
        (&global.w).into()
    }

    /// `g_{k+1}^i(ŵ_k^i)` on a minibatch.
    fn local(
        &self,
        received: &Received<'_, Self>,
        (): &(),
        data: &Examples,
        key: Key,
    ) -> Result<Computed<Self>> {
        let mut gradient = vector::zeros(self.dimension);
        let drawn = self.batch.draw(data.rows(), &mut key.child(DRAW).stream());
        let rows = drawn.as_deref().map_or(Rows::All, Rows::These);
        match self.known.and_then(|known| known.row_bound) {
            None => self.problem.gradient(&received.state, data, rows, &mut gradient)?,
            Some(bound) => {
                let drawn = self.sampling().map(|sampling| sampling.draw(data.rows(), key));
                let expected = self.sampling().map_or(1.0, |s| s.rate) * data.rows() as f64;
                let (rows, bound) = match drawn.as_deref() {
                    None => (Rows::All, bound),
                    // The penalty alone: a row with weight zero.
                    Some([]) => (Rows::These(&[0]), 0.0),
                    Some(drawn) => (Rows::These(drawn), bound),
                };
                let rows = (rows, expected);
                self.problem.clipped_gradient(&received.state, data, rows, bound, &mut gradient)?
            }
        };
        let mut computed = Computed::new((), gradient);
        if received.min_group.is_some() {
            // Row j weighs ‖∇f_j(ŵ)‖ in the gradient.
            let support = self.problem.gradient_support(&received.state, data, rows)?;
            computed.supports.push((0..self.dimension, support.rows));
        }
        Ok(computed)
    }

    fn rows_used(&self, rows: u64, (): &(), _: ExchangeKind) -> u64 {
        match self.sampling() {
            Some(sampling) => (sampling.rate * rows as f64).round() as u64,
            None => self.batch.expectations(rows),
        }
    }

    fn opened(&self, global: &mut Global, mean: Vec<f64>, _: &Context) -> Result<()> {
        global.set_scale(&mean);
        Ok(())
    }

    fn step(
        &self,
        global: &mut Global,
        mut gradient: Vec<f64>,
        context: &Context,
        publish: Publish<'_, f64>,
    ) -> Result<f64> {
        let norm2 = vector::norm2_squared(&gradient);
        let gamma = self.step.at(context.k, &global.bounds);
        self.add_to_average(global, context.k, gamma);
        global.set_scale(&gradient);
        // v_{k+1} = m v_k + ĝ
        if self.momentum > 0.0 {
            vector::scale(&mut global.momentum, self.momentum);
            vector::axpy(&mut global.momentum, 1.0, &gradient);
            gradient.clone_from(&global.momentum);
        }
        // w_{k+1} = w_k − γ ĝ
        vector::axpy(&mut global.w, -gamma, &gradient);
        global.w = publish(std::mem::take(&mut global.w))?;
        Ok(norm2)
    }

    /// `L (w_{k+1} − w_k)`.
    fn moved(&self, before: &Global, after: &Global) -> Vec<f64> {
        let pairs = after.w.iter().zip(&before.w);
        pairs.map(|(w, from)| before.bounds.smoothness * (w - from)).collect()
    }

    fn magnitude(&self, global: &Global, local2: f64) -> f64 {
        // In steps 1/L of the first gradient, whatever the units; one at the start w = 0.
        let norm = largest_norm([vector::norm2_squared(&global.w), local2]);
        1.0 + norm / global.scale.unwrap_or(1.0)
    }

    fn artifact(&self, global: &Global) -> Result<Artifact> {
        let artifact = Artifact::new(self.problem.name());
        Ok(artifact.with("weights", &[self.dimension], self.delivered(global)))
    }
}

impl Gradient {
    fn sampling(&self) -> Option<Sampling> {
        self.known?.sampling
    }

    /// The delivered model.
    pub fn delivered(&self, global: &Global) -> Vec<f64> {
        if self.average == Average::Last || global.average_weight == 0.0 {
            return global.w.clone();
        }
        global.average.iter().map(|w| w / global.average_weight).collect()
    }

    /// `w̄_K = Σ λ_k w_{k−1} / Σ λ_k`, with `λ_k = 1` or `1/γ_{k−1}`.
    fn add_to_average(&self, global: &mut Global, k: u32, gamma: f64) {
        let lambda = match self.average {
            Average::Last => return,
            Average::Uniform => 1.0,
            Average::Weighted => 1.0 / gamma,
            Average::Since(first) if k < first => return,
            Average::Since(_) => 1.0,
        };
        vector::axpy(&mut global.average, lambda, &global.w);
        global.average_weight += lambda;
    }
}

/// Refuses constants that cannot be used.
fn check(id: ClientId, summary: &Summary) -> Result<()> {
    let constants = [summary.smoothness, summary.strong_convexity, summary.sigma2];
    if constants.iter().any(|c| !(*c >= 0.0 && c.is_finite())) {
        return Err(Error::peer(format!("client {id} sent a negative or non-finite constant")));
    }
    check_sums(id, &constants)
}
