//! FedEM: expectation maximisation over compressed sufficient statistics.
//!
//! Reference: Dieuleveut, Fort, Moulines, Robin, *Federated Expectation Maximization with
//! heterogeneity mitigation and variance reduction*, NeurIPS 2021, Algorithm 1 (with partial
//! participation; Algorithm 4 is the same with independent Bernoulli cohorts, Algorithm 3 with
//! everyone, Algorithm 6 with everyone and no compression).
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `Ŝ_k` | `s_hat` | the global statistic |
//! | `T` | `LatentModel::maximize` | from statistics to parameters |
//! | `s̄_i` | `LatentModel::expect` | client i's mean conditional expectation |
//! | `S_{k+1,i}` | `s_i` | its estimate from a minibatch |
//! | `h_i(s) = s̄_i(T(s)) − s` | oracle | client i's field |
//! | `V_{k,i}`, `V_k` | uplink memory | the control variate of `h_i` |
//! | `Quant`, `ω`, `α` | uplink codec, `omega`, `alpha` | compression |
//! | `H_{k+1}` | `field` | the estimated mean field |
//! | `γ_k` | `step` | the step |
//! | `p`, `n` | inclusion, total weight | participation, clients |
//!
//! Reduces to
//! - pooled EM: full participation, exact codec, step 1, full batches;
//! - Algorithm 3: full participation; with an exact codec `alpha` and the first memories cancel;
//! - the naive distributed EM of Appendix A (`dem`): a plain uplink.
//!
//! VR-FedEM, Algorithm 2, is FedEM with another [`Estimator`]; only `S_{k+1,i}` differs, and its lines 9
//! to 17 are lines 7 to 17 of Algorithm 1.
//!
//! The job's `form` is the published vector: the `pair` `(Ŝ, T(Ŝ))` of the paper; the `state` `Ŝ`
//! alone, with `T` computed on the client from pooled moments sent once; or, `lean`, `T(Ŝ)` alone,
//! where the oracle is `s̄_i` itself and the server subtracts `Ŝ`. With an exact codec and full
//! participation all three give the same iterates.
//!
//! With `frame = Fisher` differences are compressed in the coordinates of the complete-data Fisher
//! information at the client's parameters ([`LatentModel::frame`](whimbrel_models::LatentModel::frame)); memories and `Ŝ` stay in raw
//! coordinates. The server's automatic step has a trust region (`step.rs`).
//!
//! Departures from the paper
//! - clients are weighted by their rows by default, so that (1) is pooled EM's objective for clients
//!   of unequal size, too;
//! - `Ŝ_0 = s̄(θ_0)`, as in the paper's experiments, is the first round, with full participation, so
//!   that R rounds of EM are R steps from `θ_0`; `V_{0,i} = h_i(Ŝ_0)` takes a counted exchange after it;
//! - second moments that `T` needs beside the statistic are sent once at enrolment;
//! - `T` clips to the interior of its domain; the number of clips is a metric.

mod estimator;
mod evaluate;
mod form;
mod iterate;
mod moments;
mod state;
mod step;

pub use crate::federated::FirstMemories;
pub use crate::settings::{Batch, Budget, Weights};
pub use estimator::{Decoded, Estimator, Running};
pub use evaluate::{Ask, SHARES};
pub use form::Form;
pub use moments::{MOMENTS, Moments};
pub(crate) use state::list_bytes;
pub use state::{Global, OuterLoop, Own, Record, Summary};
pub use step::{AutoStep, DownNoise, Step};

use crate::federated::{
    self, Computed, Context, End, ExchangeKind, Federated, Framed, MaybeFrame, Member, Oracle,
    Publish, Received, Terms, Told,
};
use crate::mixture::MixtureInitial;
use crate::settings::{check_sums, largest_norm};
use estimator::Estimate;
use iterate::Iterate;
use std::borrow::Cow;
use std::ops::Range;
use whimbrel_core::frame::Blocks;
use whimbrel_core::method::{Allowance, Artifact, Declaration, Disclosure};
use whimbrel_core::{ClientData, ClientId, Error, Frame, Key, Result, sum::ExactSum, vector};
use whimbrel_models::MixtureModel;

/// The complete method.
pub type FedEm<M> = Federated<Em<M>>;
pub type Server = federated::Server<Global>;
pub type Peer = federated::Peer<Record>;
pub type Client = federated::Client<Own>;
pub type Enrolment = federated::Enrolment<Summary>;
pub type Down = federated::Down<OuterLoop, Option<Vec<f64>>>;

/// Hyper-parameters.
pub struct Em<M: MixtureModel> {
    pub model: M,
    /// The start and the final form of the model.
    pub initial: MixtureInitial,
    /// `γ_k`.
    pub step: Step,
    pub estimator: Estimator,
    /// The rows of an oracle call.
    pub batch: Batch,
    /// The published vector.
    pub form: Form,
    /// The coordinates in which channels compress.
    pub frame: FrameKind,
    /// The pooled moments, if an earlier stage found them: clients then send none.
    pub moments: Option<Vec<f64>>,
    /// Settings under differential privacy.
    pub private: Option<PrivateEm>,
}

/// The largest rounding error of a clipped sum, in units of a row's bound.
const ROUNDING_SHARE: f64 = 1e-3;

/// EM under differential privacy: the first statistic is the one that the model expects at `θ_0`, rows
/// are clipped in the frame, and the result is the mean of the last states.
#[derive(Clone, PartialEq, Debug)]
pub struct PrivateEm {
    /// The bound of a row's statistic in the frame; `None` if the unit is a client.
    pub row_bound: Option<f64>,
    /// Whether clients add shares of the noise: they trust no coordinator with their exact sums.
    pub distributed: bool,
    /// The steps `k` whose states are averaged; the last of them is the last of the run.
    pub averaged: Range<u32>,
}

/// The coordinates in which channels compress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FrameKind {
    /// Those of the complete-data Fisher information, if the model has them.
    Fisher,
    /// Those of the statistic, as in the paper.
    #[default]
    Raw,
}

impl<M: MixtureModel> Oracle for Em<M> {
    type Number = f64;
    type Data = M::Data;
    type Own = Own;
    type Global = Global;
    type Summary = Summary;
    type Record = Record;
    type Note = OuterLoop;
    /// The pooled moments.
    type Private = Option<Vec<f64>>;

    /// `Ŝ_0 = s̄(θ_0)` comes from a first exchange at `θ_0`.
    const FIRST_EXCHANGE: bool = true;

    fn declare(&self, terms: &Terms) -> Declaration {
        let mut disclosures = self.summary_disclosures();
        disclosures.extend(state::disclosures(terms));
        let full_passes = self.full_passes_max(terms.rounds_max(true));
        let full_passes = Allowance { name: "full passes", ..Allowance::rounds(full_passes) };
        let measures = self.measures();
        let exchanges = vec![full_passes];
        Declaration { exchanges, disclosures, measures, ..Declaration::default() }
    }

    fn bind(&self, data: &ClientData) -> Result<(M::Data, u64)> {
        let data = self.model.bind(data)?;
        let rows = self.model.rows(&data) as u64;
        Ok((data, rows))
    }

    fn enroll(&self, data: &M::Data, key: Key) -> Result<(Own, Summary)> {
        let moments = match self.moments {
            Some(_) => Vec::new(),
            None => self.model.moments(data)?,
        };
        let offers = self.initial.offer(&self.model, data, key)?;
        Ok((Own::default(), Summary { moments, offers }))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<Summary>>>,
        _: &Terms,
        key: Key,
    ) -> Result<Global> {
        let (mean, offers) = pooled(roster)?;
        let mean = self.moments.clone().unwrap_or(mean);
        let theta = self.initial.first(&self.model, &mean, &offers, key)?;
        let s_hat = match self.private {
            None => vec![0.0; self.model.statistic_len()],
            Some(_) => self.model.expected(&theta).ok_or_else(unexpected)?,
        };
        Ok(Global {
            s_hat,
            theta: self.model.to_vector(&theta),
            // `admit` adds each client, now and later.
            moments_sum: vec![0.0; mean.len()],
            ..Global::default()
        })
    }

    fn admit(&self, global: &mut Global, member: &Member<&Summary>) -> Result<Record> {
        let length = if self.moments.is_some() { 0 } else { global.moments_sum.len() };
        check_moments(member.id, &member.summary.moments, length)?;
        let moments = self.moments.as_ref().unwrap_or(&member.summary.moments);
        vector::axpy(&mut global.moments_sum, member.weight, moments);
        global.weights_squared += member.weight * member.weight;
        Ok(Record::default())
    }

    fn without_clients(&self, global: &mut Global) {
        global.moments_sum.fill(0.0);
        global.weights_squared = 0.0;
    }

    /// Send `Ŝ_{k+1}` and `T(Ŝ_{k+1})`                                       (Alg. 1, l. 17)
    fn published<'a>(&self, global: &'a Global, kind: ExchangeKind) -> Cow<'a, [f64]> {
        match self.form {
            // θ_0 alone: Ŝ_0 does not exist yet.
            _ if kind == ExchangeKind::FirstState => (&global.theta).into(),
            Form::Pair => [&global.s_hat[..], &global.theta[..]].concat().into(),
            Form::State => (&global.s_hat).into(),
            Form::Lean => (&global.theta).into(),
        }
    }

    /// The outer loop `t`, under variance reduction: a client's first upload of a loop is a pass over
    /// all its rows. The pooled moments, to clients that compute `T` and lack them.
    fn tell(&self, global: &Global, record: &Record, context: &Context) -> Told<Self> {
        let outer = self.outer(global, context);
        let whole = outer.is_some() && outer != record.outer;
        let lacks = self.form == Form::State
            && context.kind != ExchangeKind::FirstState
            && record.moments_of != context.clients;
        let moments_of = if lacks { context.clients } else { record.moments_of };
        let private = lacks.then(|| global.moments_for(record, context.total));
        let record = Record { outer, whole, moments_of };
        Told { record, note: outer.map(OuterLoop), private }
    }

    /// A pass over all rows opens each outer loop. Outer loops are those of variance reduction, and
    /// moments those of the state form.
    fn round_kind(
        &self,
        own: &Own,
        kind: ExchangeKind,
        outer: Option<&OuterLoop>,
        moments: &Option<Vec<f64>>,
    ) -> Result<usize> {
        let rounds = kind == ExchangeKind::Round;
        if outer.is_some() != (self.has_loops() && rounds) {
            return Err(Error::peer("an outer loop is missing, or the job has none"));
        }
        let computes = self.form == Form::State && kind != ExchangeKind::FirstState;
        let length = self.model.moments_len();
        let fits = |moments: &Vec<f64>| {
            let twice = self.has_frame() && own.first_moments.is_empty();
            let lengths = if twice { [length, 2 * length] } else { [length; 2] };
            lengths.contains(&moments.len()) && vector::norm_inf(moments).is_finite()
        };
        let right = match moments {
            None => !computes || own.moments.len() == length,
            Some(moments) => computes && fits(moments),
        };
        if !right {
            return Err(Error::peer("pooled moments are missing, or not those of the job"));
        }
        let running = own.running.as_ref().map(|running| running.outer);
        Ok(usize::from(outer.is_some_and(|outer| running != Some(outer.0))))
    }

    /// `S_{k+1,i} − Ŝ_k`, with `S_{k+1,i}` an approximation of `s̄_i(T(Ŝ_k))`  (Alg. 1, l. 6, 7)
    fn local(
        &self,
        received: &Received<'_, Self>,
        own: &Own,
        data: &M::Data,
        key: Key,
    ) -> Result<Computed<Self>> {
        let (kind, outer) = (received.kind, received.note.copied());
        let Iterate { moments, first_moments, s_hat, theta, coordinates } =
            self.iterate(received, own)?;
        let group = received.min_group;
        if kind == ExchangeKind::Round {
            self.check_rounding(&theta, self.model.rows(data), s_hat.as_deref())?;
        }
        let Estimate { mut s_i, left_out, position, running } = match kind {
            ExchangeKind::Round => {
                self.estimate(own, outer, (theta, coordinates), data, group, key)?
            }
            ExchangeKind::FirstState | ExchangeKind::OpenMemories => {
                let (s_i, left_out) = self.whole_statistic(&theta, data, group)?;
                Estimate { s_i, left_out, position: own.position, running: None }
            }
        };
        if let Some(s_hat) = &s_hat {
            vector::axpy(&mut s_i, -1.0, s_hat);
        }
        let own = Own { position, running, moments, first_moments };
        Ok(Computed { left_out, ..Computed::new(own, s_i) })
    }

    fn rows_used(&self, rows: u64, record: &Record, kind: ExchangeKind) -> u64 {
        match kind {
            ExchangeKind::Round => self.estimator.expectations(&self.batch, rows, record.whole),
            ExchangeKind::FirstState | ExchangeKind::OpenMemories => rows,
        }
    }

    fn frame(&self, of: Framed, at: &[f64], moments: &[f64]) -> Result<MaybeFrame> {
        if !self.has_frame() {
            return Ok(None);
        }
        let theta = self.theta_at(at, moments)?;
        let (statistic, coordinates) =
            (|| self.model.frame(&theta), || self.model.coordinates_frame(&theta));
        Ok(match (of, self.form) {
            (Framed::Value, _) | (_, Form::State) => statistic(),
            (Framed::Published, Form::Lean) => coordinates(),
            (Framed::Published, Form::Pair) => {
                statistic().zip(coordinates()).map(|(statistic, coordinates)| {
                    let lengths = (self.model.statistic_len(), self.model.coordinates_len());
                    let parts = vec![(lengths.0, statistic), (lengths.1, coordinates)];
                    Box::new(Blocks(parts)) as Box<dyn Frame>
                })
            }
        })
    }

    /// The moments pooled over the first roster, from which the state form computes `T`.
    fn frame_moments<'a>(&self, end: End<'a, Self>) -> Option<&'a [f64]> {
        self.has_frame().then(|| match end {
            End::Server(global) => &global.first_moments[..],
            End::Client(own, sent) => self.first_moments(sent.as_deref(), own),
        })
    }

    /// `Ŝ_0 = s̄(θ_0)`.
    fn opened(&self, global: &mut Global, s_0: Vec<f64>, context: &Context) -> Result<()> {
        if context.kind != ExchangeKind::FirstState {
            return Ok(());
        }
        global.s_hat = s_0;
        if self.has_frame() && self.form == Form::State {
            global.first_moments = global.moments(context.total);
        }
        self.maximize(global, context)
    }

    fn step(
        &self,
        global: &mut Global,
        mut field: Vec<f64>,
        context: &Context,
        publish: Publish<'_, f64>,
    ) -> Result<f64> {
        // H_{k+1}                                                     (Alg. 1, l. 14 and 16)
        if self.form == Form::Lean {
            vector::axpy(&mut field, -1.0, &global.s_hat);
        }
        // Ŝ_{k+1} = Ŝ_k + γ_{k+1} H_{k+1}, then T(Ŝ_{k+1})                  (Alg. 1, l. 15)
        let (gamma, drifted) = self.step_along(global, &field, context)?;
        vector::axpy(&mut global.s_hat, gamma, &field);
        self.estimator.advance(global, drifted);
        self.average(global, context.k);
        if self.form == Form::State {
            // A degraded downlink replaces the state itself: publish before T.
            global.s_hat = publish(std::mem::take(&mut global.s_hat))?;
            self.maximize(global, context)?;
        } else {
            self.maximize(global, context)?;
            publish(self.published(global, ExchangeKind::Round).into_owned())?;
        }
        Ok(vector::norm2_squared(&field))
    }

    /// `Ŝ_{k+1} − Ŝ_k`; in the frame the field's Lipschitz constant is about one.
    fn moved(&self, before: &Global, after: &Global) -> Vec<f64> {
        let mut moved = after.s_hat.clone();
        vector::axpy(&mut moved, -1.0, &before.s_hat);
        moved
    }

    fn magnitude(&self, global: &Global, local2: f64) -> f64 {
        largest_norm([vector::norm2_squared(&global.s_hat), local2])
    }

    fn artifact(&self, global: &Global) -> Result<Artifact> {
        let theta = self.model.from_vector(&global.theta)?;
        let fitted = self.model.artifact(&theta);
        Ok(match &self.initial.preparation {
            None => fitted,
            Some(preparation) => preparation.restore(fitted),
        })
    }
}

impl<M: MixtureModel> Em<M> {
    /// Disclosures at enrolment.
    pub(crate) fn summary_disclosures(&self) -> Vec<Disclosure> {
        let moments = if self.moments.is_some() { 0 } else { self.model.moments_len() };
        state::summary_disclosures(moments, self.initial.offers_max(&self.model))
    }

    /// The most full passes in a number of rounds: one for each outer loop, and as many again for lost
    /// uploads, since a client whose pass was not accepted repeats it. With the automatic step a loop
    /// may end after its first round.
    fn full_passes_max(&self, rounds: Option<u32>) -> Option<u32> {
        match (self.estimator, &self.step) {
            (Estimator::Minibatch, _) => Some(0),
            (Estimator::Spider { .. }, Step::Auto(_)) => rounds,
            (Estimator::Spider { inner }, Step::Given(_) | Step::Within(_)) => {
                rounds.map(|rounds| rounds.min(2 * rounds.div_ceil(inner)))
            }
        }
    }

    /// The outer loop of the next round, under variance reduction.
    fn outer(&self, global: &Global, context: &Context) -> Option<u32> {
        (self.has_loops() && context.kind == ExchangeKind::Round).then_some(global.outer)
    }

    /// Under differential privacy, adds the state to the mean of the last ones, which replaces it
    /// in the last step.
    fn average(&self, global: &mut Global, k: u32) {
        let Some(PrivateEm { averaged, .. }) = &self.private else { return };
        if !averaged.contains(&k) {
            return;
        }
        global.last_states.resize(global.s_hat.len(), 0.0);
        vector::axpy(&mut global.last_states, 1.0 / averaged.len() as f64, &global.s_hat);
        if k + 1 == averaged.end {
            global.s_hat = std::mem::take(&mut global.last_states);
        }
    }

    /// Refuses parameters at which rounding errors could move the coordinates that the noise hides.
    fn check_rounding(
        &self,
        theta: &M::Parameters,
        rows: usize,
        s_hat: Option<&[f64]>,
    ) -> Result<()> {
        let Some(PrivateEm { row_bound: Some(bound), distributed: true, .. }) = self.private else {
            return Ok(());
        };
        // Both sums of a pair of neighbours have such an error in each coordinate.
        let root = (self.model.statistic_len() as f64).sqrt();
        let error = 2.0 * root * self.model.clipped_rounding(theta, rows, bound, s_hat);
        if error <= ROUNDING_SHARE * bound {
            return Ok(());
        }
        Err(federated::too_narrow())
    }

    fn has_loops(&self) -> bool {
        matches!(self.estimator, Estimator::Spider { .. })
    }

    fn has_frame(&self) -> bool {
        self.frame == FrameKind::Fisher
    }
}

fn unexpected() -> Error {
    Error::config("this model has no expected statistic to start from under differential privacy")
}

/// Raw rows offered for the start, with the weight of their client.
type Offers = Vec<(f64, Vec<f64>)>;

/// The weighted mean of the clients' moments, and their offers.
fn pooled(roster: &mut dyn Iterator<Item = Result<Member<Summary>>>) -> Result<(Vec<f64>, Offers)> {
    let mut total = 0.0;
    let mut moments: Option<ExactSum> = None;
    let mut offers = Vec::new();
    for member in roster {
        let Member { id, weight, rows, summary } = member?;
        total += weight;
        let sum = moments.get_or_insert_with(|| ExactSum::new(summary.moments.len()));
        check_moments(id, &summary.moments, sum.len())?;
        sum.add(&summary.moments, weight)?;
        check_sums(id, &summary.offers)?;
        offers.push((rows as f64, summary.offers));
    }
    let moments = moments.ok_or_else(|| Error::data("there is no client"))?;
    let mut mean = moments.value();
    vector::scale(&mut mean, 1.0 / total);
    Ok((mean, offers))
}

fn check_moments(id: ClientId, moments: &[f64], len: usize) -> Result<()> {
    if moments.len() != len {
        return Err(Error::peer(format!("client {id} sent moments of another length")));
    }
    check_sums(id, moments)
}
