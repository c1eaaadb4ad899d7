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
//! | `V_{k,i}`, `V_k` | uplink memory | what both ends know of `h_i` |
//! | `Quant`, `ω`, `α` | uplink codec, `omega`, `alpha` | compression |
//! | `H_{k+1}` | `field` | the estimated mean field |
//! | `γ_k` | `step` | the step |
//! | `p`, `n` | inclusion, total weight | participation, clients |
//!
//! Reduces to
//! - pooled EM: everyone, exact codec, step 1, full batches;
//! - Algorithm 3: everyone; then, with an exact codec, `alpha` and the first memories do not matter;
//! - the naive distributed EM of Appendix A (`dem`): a plain uplink.
//!
//! VR-FedEM, Algorithm 2, is FedEM with another [`Estimator`]; only `S_{k+1,i}` differs, and its lines 9
//! to 17 are lines 7 to 17 of Algorithm 1.
//!
//! What goes down is the job's `form`: the `pair` `(Ŝ, T(Ŝ))` of the paper; the `state` `Ŝ` alone,
//! with `T` computed on the client from pooled moments sent once; or, `lean`, `T(Ŝ)` alone, where
//! the oracle is `s̄_i` itself and the server subtracts `Ŝ`. With an exact codec and everyone all
//! three are the same iterates.
//!
//! With `frame = Fisher` differences are compressed in the coordinates of the complete-data Fisher
//! information at the parameters that the client computed at ([`LatentModel::frame`]); memories and
//! `Ŝ` stay in raw coordinates. The server's automatic step has a trust region (`step.rs`).
//!
//! Departures from the paper
//! - clients are weighted by their rows unless equal weights are asked for: then (1) is pooled
//!   EM's objective for clients of unequal size, too;
//! - `Ŝ_0 = s̄(θ_0)`, as in the paper's experiments, is the first round, with everyone (so that R
//!   rounds of EM are R steps from `θ_0`); `V_{0,i} = h_i(Ŝ_0)` takes a counted exchange after it;
//! - what `T` needs beside the statistic (second moments) is sent once at enrolment;
//! - `T` clips to the interior of its domain, and the count of clips is a metric.

mod estimator;
mod evaluate;
mod form;
mod initial;
mod iterate;
mod state;
mod step;

pub use crate::federated::FirstMemories;
pub use crate::settings::{Batch, Budget, Weights};
pub use estimator::{Decoded, Estimator, Running};
pub use evaluate::SHARES;
pub use form::Form;
pub use initial::Initial;
pub(crate) use state::list_bytes;
pub use state::{Global, OuterLoop, Own, Record, Summary};
pub use step::{AutoStep, DownNoise, Step};

use crate::federated::{
    self, Context, ExchangeKind, Federated, Framed, FullPasses, Member, Oracle, Received, Terms,
};
use crate::settings::check_sums;
use estimator::Estimate;
use iterate::Iterate;
use std::borrow::Cow;
use std::sync::Arc;
use whimbrel_core::frame::Blocks;
use whimbrel_core::method::{Artifact, Disclosure};
use whimbrel_core::{ClientData, ClientId, Error, Frame, Key, Result, sum::ExactSum, vector};
use whimbrel_models::LatentModel;

/// Mean fields over channels: the whole method.
pub type FedEm<M> = Federated<Em<M>>;
/// Its server's state.
pub type Server = federated::Server<Global>;
/// What the server remembers about one client.
pub type Peer = federated::Peer<Record>;
/// What a client remembers.
pub type Client = federated::Client<Own>;
/// What a client sends at enrolment.
pub type Enrolment = federated::Enrolment<Summary>;
/// The message to a client.
pub type Down = federated::Down<OuterLoop, Option<Vec<f64>>>;

/// Hyper-parameters.
pub struct Em<M: LatentModel> {
    /// The model.
    pub model: M,
    /// How it starts.
    pub initial: Arc<dyn Initial<M>>,
    /// `γ_k`.
    pub step: Step,
    /// How a client estimates its statistic.
    pub estimator: Estimator,
    /// Which rows an oracle call uses.
    pub batch: Batch,
    /// What goes down.
    pub form: Form,
    /// The coordinates in which channels compress.
    pub frame: FrameKind,
}

/// The coordinates in which channels compress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// Those of the complete-data Fisher information, where the model has them.
    Fisher,
    /// Those of the statistic, as in the paper.
    Raw,
}

impl<M: LatentModel> Oracle for Em<M> {
    type Number = f64;
    type Data = M::Data;
    type Own = Own;
    type Global = Global;
    type Summary = Summary;
    type Record = Record;
    type Note = OuterLoop;
    /// The pooled moments.
    type Private = Option<Vec<f64>>;

    fn bind(&self, data: &ClientData) -> Result<M::Data> {
        self.model.bind(data)
    }

    fn rows(&self, data: &M::Data) -> u64 {
        self.model.rows(data) as u64
    }

    fn enroll(&self, data: &M::Data, key: Key) -> Result<(Own, Summary)> {
        let moments = self.model.moments(data)?;
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
        let theta = self.initial.first(&self.model, &mean, &offers, key)?;
        Ok(Global {
            s_hat: vec![0.0; self.model.statistic_len()],
            theta: self.model.to_vector(&theta),
            // `admit` adds each client, now and later.
            moments_sum: vec![0.0; mean.len()],
            ..Global::default()
        })
    }

    fn admit(&self, global: &mut Global, member: &Member<&Summary>) -> Result<()> {
        let moments = &member.summary.moments;
        check_moments(member.id, moments, global.moments_sum.len())?;
        vector::axpy(&mut global.moments_sum, member.weight, moments);
        global.weights_squared += member.weight * member.weight;
        Ok(())
    }

    fn without_clients(&self, global: &mut Global) {
        global.moments_sum.fill(0.0);
        global.weights_squared = 0.0;
    }

    const FIRST_EXCHANGE: bool = true;

    /// `θ_0` alone: `Ŝ_0` does not exist yet.
    fn first_question<'a>(&self, global: &'a Global) -> Option<Cow<'a, [f64]>> {
        Some((&global.theta).into())
    }

    /// `Ŝ_0 = s̄(θ_0)`.
    fn first_state(&self, global: &mut Global, s_0: Vec<f64>, context: &Context) -> Result<()> {
        global.s_hat = s_0;
        if self.has_frame() && self.form == Form::State {
            global.first_moments = global.moments(context.total);
        }
        self.maximize(global, context)
    }

    /// Send `Ŝ_{k+1}` and `T(Ŝ_{k+1})`                                       (Alg. 1, l. 17)
    fn published<'a>(&self, global: &'a Global) -> Cow<'a, [f64]> {
        match self.form {
            Form::Pair => [&global.s_hat[..], &global.theta[..]].concat().into(),
            Form::State => (&global.s_hat).into(),
            Form::Lean => (&global.theta).into(),
        }
    }

    /// The outer loop `t`, where there are loops.
    fn note(&self, global: &Global, context: &Context) -> Option<OuterLoop> {
        self.outer(global, context).map(OuterLoop)
    }

    /// A client's first upload of an outer loop is a pass over all its rows; pooled moments go to
    /// those who compute `T` and do not hold them yet, with those that frames are made from beside
    /// them where they differ.
    fn private(
        &self,
        global: &Global,
        record: &Record,
        context: &Context,
    ) -> (Record, Option<Vec<f64>>) {
        let outer = self.outer(global, context);
        let whole = outer.is_some() && outer != record.outer;
        let lacks = self.form == Form::State
            && context.kind != ExchangeKind::FirstState
            && record.moments_of != context.clients;
        let moments_of = if lacks { context.clients } else { record.moments_of };
        let moments = lacks.then(|| global.moments_for(record, context.total));
        (Record { outer, whole, moments_of }, moments)
    }

    /// `S_{k+1,i} − Ŝ_k`, with `S_{k+1,i}` an approximation of `s̄_i(T(Ŝ_k))`  (Alg. 1, l. 6, 7)
    fn local(
        &self,
        received: Received<'_, Self>,
        own: &Own,
        data: &M::Data,
        key: Key,
    ) -> Result<(Own, Vec<f64>)> {
        let (kind, outer) = (received.kind, received.note.copied());
        let Iterate { moments, first_moments, s_hat, theta, coordinates } =
            self.iterate(received, own)?;
        let Estimate { mut s_i, position, running } = match kind {
            ExchangeKind::Round => self.estimate(own, outer, (theta, coordinates), data, key)?,
            ExchangeKind::FirstState | ExchangeKind::OpenMemories => {
                let s_i = self.whole_statistic(&theta, data)?;
                Estimate { s_i, position: own.position, running: None }
            }
        };
        if let Some(s_hat) = &s_hat {
            vector::axpy(&mut s_i, -1.0, s_hat);
        }
        Ok((Own { position, running, moments, first_moments }, s_i))
    }

    fn framed(&self) -> Option<&dyn Framed<Self>> {
        self.has_frame().then_some(self)
    }

    fn full_passes(&self) -> Option<&dyn FullPasses<Self>> {
        self.has_loops().then_some(self)
    }

    fn rows_used(&self, rows: u64, record: &Record, kind: ExchangeKind) -> u64 {
        match kind {
            ExchangeKind::Round => self.estimator.expectations(&self.batch, rows, record.whole),
            ExchangeKind::FirstState | ExchangeKind::OpenMemories => rows,
        }
    }

    /// `H_{k+1}`                                                        (Alg. 1, l. 14 and 16)
    fn field(&self, global: &Global, mut estimate: Vec<f64>) -> Vec<f64> {
        if self.form == Form::Lean {
            vector::axpy(&mut estimate, -1.0, &global.s_hat);
        }
        estimate
    }

    /// `Ŝ_{k+1} = Ŝ_k + γ_{k+1} H_{k+1}`, then `T(Ŝ_{k+1})`                (Alg. 1, l. 15)
    fn step(&self, global: &mut Global, field: Vec<f64>, context: &Context) -> Result<()> {
        let (gamma, drifted) = self.step_along(global, &field, context)?;
        vector::axpy(&mut global.s_hat, gamma, &field);
        self.estimator.advance(global, drifted);
        match self.form {
            // The state itself is published first, since a degraded downlink replaces it.
            Form::State => Ok(()),
            Form::Pair | Form::Lean => self.maximize(global, context),
        }
    }

    fn after_publish(
        &self,
        global: &mut Global,
        published: Vec<f64>,
        context: &Context,
    ) -> Result<()> {
        match self.form {
            Form::Pair | Form::Lean => Ok(()),
            Form::State => {
                global.s_hat = published;
                self.maximize(global, context)
            }
        }
    }

    fn magnitude(&self, global: &Global, local2: f64) -> f64 {
        vector::largest([vector::norm2_squared(&global.s_hat), local2]).sqrt()
    }

    fn artifact(&self, global: &Global) -> Result<Artifact> {
        let theta = self.model.from_vector(&global.theta)?;
        Ok(self.initial.artifact(&self.model, &theta))
    }

    fn disclosures(&self, terms: &Terms) -> Vec<Disclosure> {
        let mut all = self.summary_disclosures();
        all.extend(state::disclosures(terms.uplinks[0].dimension(), terms.opens()));
        all
    }
}

impl<M: LatentModel> Framed<Self> for Em<M> {
    fn frame(&self, at: &[f64], moments: &[f64]) -> Result<Option<Box<dyn Frame>>> {
        let theta = self.theta_at(at, moments)?;
        Ok(self.model.frame(&theta))
    }

    fn published_frame(&self, at: &[f64], moments: &[f64]) -> Result<Option<Box<dyn Frame>>> {
        let theta = self.theta_at(at, moments)?;
        let (statistic, coordinates) =
            (|| self.model.frame(&theta), || self.model.coordinates_frame(&theta));
        Ok(match self.form {
            Form::State => statistic(),
            Form::Lean => coordinates(),
            Form::Pair => statistic().zip(coordinates()).map(|(statistic, coordinates)| {
                let lengths = (self.model.statistic_len(), self.model.coordinates_len());
                let parts = vec![(lengths.0, statistic), (lengths.1, coordinates)];
                Box::new(Blocks(parts)) as Box<dyn Frame>
            }),
        })
    }

    fn server_moments<'a>(&self, global: &'a Global) -> &'a [f64] {
        &global.first_moments
    }

    fn client_moments<'a>(&self, own: &'a Own, sent: &'a Option<Vec<f64>>) -> &'a [f64] {
        self.first_moments(sent.as_deref(), own)
    }
}

impl<M: LatentModel> FullPasses<Self> for Em<M> {
    /// One for each outer loop, and as many again for uploads that are lost: a client whose pass
    /// was not accepted makes it anew. With the automatic step a loop may end after its first
    /// round.
    fn most(&self, rounds: Option<u32>) -> Option<u32> {
        match (self.estimator, &self.step) {
            (Estimator::Minibatch, _) => Some(0),
            (Estimator::Spider { .. }, Step::Auto(_)) => rounds,
            (Estimator::Spider { inner }, Step::Given(_)) => {
                rounds.map(|rounds| rounds.min(2 * rounds.div_ceil(inner)))
            }
        }
    }

    fn is_full_pass(&self, own: &Own, note: Option<&OuterLoop>) -> bool {
        let outer = note.map(|outer| outer.0);
        outer.is_some() && own.running.as_ref().map(|running| running.outer) != outer
    }
}

impl<M: LatentModel> Em<M> {
    /// What leaves a client at enrolment.
    pub(crate) fn summary_disclosures(&self) -> Vec<Disclosure> {
        state::summary_disclosures(
            self.initial.moments_len(&self.model),
            self.initial.offers_max(&self.model),
        )
    }

    /// The outer loop of the next round, where there are loops.
    fn outer(&self, global: &Global, context: &Context) -> Option<u32> {
        (self.has_loops() && context.kind == ExchangeKind::Round).then_some(global.outer)
    }

    fn has_loops(&self) -> bool {
        matches!(self.estimator, Estimator::Spider { .. })
    }

    fn has_frame(&self) -> bool {
        self.frame == FrameKind::Fisher
    }
}

/// What clients offer for the start, each with its number of rows.
type Offers = Vec<(f64, Vec<f64>)>;

/// The mean of the clients' moments by weight, and their offers.
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
