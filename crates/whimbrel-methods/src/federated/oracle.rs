//! What a paper contributes: the oracle, and what its evaluations report.

use super::{ExchangeKind, Score, Terms};
use std::borrow::Cow;
use whimbrel_codec::Scalar;
use whimbrel_core::declare::Measure;
use whimbrel_core::method::{Artifact, Disclosure, Metric};
use whimbrel_core::{ClientData, ClientId, Error, Frame, Key, Result, State, Wire};

/// What a client computes, and how the server moves. Methods in call order.
pub trait Oracle: Send + Sync + 'static {
    /// The width of the published vector, of what goes up, and of memories: `f64` or `f32`. Sums over
    /// clients are `f64`.
    type Number: Scalar;
    /// What a client holds.
    type Data: Send + Sync + 'static;
    /// A client's own state; it never leaves the client.
    type Own: State;
    /// The global state.
    type Global: State;
    /// What a client tells at enrolment beside its number of rows.
    type Summary: Wire;
    /// What the server remembers about one client beside weight and channels: O(1).
    type Record: State + Default;
    /// What every client of a round is told beside the published vector.
    type Note: Wire;
    /// What one client alone is told.
    type Private: Wire;

    /// Checks and lays out a client's rows.
    fn bind(&self, data: &ClientData) -> Result<Self::Data>;
    /// The number of rows that a client counts for.
    fn rows(&self, data: &Self::Data) -> u64;
    /// A client's first own state, and what it tells once.
    fn enroll(&self, data: &Self::Data, key: Key) -> Result<(Self::Own, Self::Summary)>;
    /// The first global state, from the roster in id order; `admit` follows for each of it.
    fn start(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<Self::Summary>>>,
        terms: &Terms,
        key: Key,
    ) -> Result<Self::Global>;
    /// Adds one client to the global state: each of the roster, and any that joins later. A summary
    /// that is refused must leave the state as it was.
    fn admit(&self, _: &mut Self::Global, _: &Member<&Self::Summary>) -> Result<()> {
        Ok(())
    }

    /// Takes every client's part out of the global state: what [`Oracle::admit`] added.
    fn without_clients(&self, _: &mut Self::Global) {}

    /// What the server remembers about a client from the start.
    fn record(&self, _: ClientId) -> Self::Record {
        Self::Record::default()
    }

    /// Whether the first state comes from an exchange with everyone: [`Oracle::first_question`].
    const FIRST_EXCHANGE: bool = false;
    /// What goes down, exactly, in a first exchange with everyone; none where the first state
    /// needs no exchange.
    fn first_question<'a>(&self, _: &'a Self::Global) -> Option<Cow<'a, [Self::Number]>> {
        None
    }
    /// The first state, from the mean of everyone's values at the first question.
    fn first_state(&self, _: &mut Self::Global, _mean: Vec<f64>, _: &Context) -> Result<()> {
        Err(Error::internal("this method has no first exchange"))
    }
    /// The memories were opened; `mean` is the mean of the clients' values at the first state.
    fn memories_opened(&self, _: &mut Self::Global, _mean: &[f64]) {}

    /// The vector that the downlink carries.
    fn published<'a>(&self, global: &'a Self::Global) -> Cow<'a, [Self::Number]>;
    /// What every client of a round is told beside it.
    fn note(&self, _: &Self::Global, _: &Context) -> Option<Self::Note> {
        None
    }
    /// What one client alone is told, and the record of it once its upload is accepted.
    fn private(
        &self,
        global: &Self::Global,
        record: &Self::Record,
        context: &Context,
    ) -> (Self::Record, Self::Private);
    /// The client's work: its next own state, and the value that goes up.
    fn local(
        &self,
        received: Received<'_, Self>,
        own: &Self::Own,
        data: &Self::Data,
        key: Key,
    ) -> Result<(Self::Own, Vec<Self::Number>)>;
    /// Many clients' work together, by default one after the other; each result must be what
    /// [`Oracle::local`] gives, to the bit.
    fn locals(&self, group: &mut [Local<'_, Self>]) {
        for task in group {
            let received = task.received.clone();
            task.done = Some(self.local(received, task.own, task.data, task.key));
        }
    }
    /// The most clients that [`Oracle::locals`] gains from taking together.
    fn clients_at_once(&self) -> usize {
        1
    }
    /// The frames in which channels compress, where there are any.
    fn framed(&self) -> Option<&dyn Framed<Self>> {
        None
    }
    /// Passes over all rows among rounds that use a minibatch, where there are any.
    fn full_passes(&self) -> Option<&dyn FullPasses<Self>> {
        None
    }
    /// Rows that went into one upload, by the client's number of rows: what epochs count.
    fn rows_used(&self, rows: u64, record: &Self::Record, kind: ExchangeKind) -> u64;

    /// The direction in which the server moves, from the estimate of the clients' mean value.
    fn field(&self, _: &Self::Global, estimate: Vec<f64>) -> Vec<f64> {
        estimate
    }
    /// Moves the global state.
    fn step(&self, global: &mut Self::Global, field: Vec<f64>, context: &Context) -> Result<()>;
    /// After the downlink published: `published` is the vector that the server must hold, which a
    /// degraded downlink has changed.
    fn after_publish(
        &self,
        global: &mut Self::Global,
        published: Vec<Self::Number>,
        context: &Context,
    ) -> Result<()>;

    /// A norm of the state, for the detection of divergence; `local2`: the mean squared distance of
    /// the clients' states from the server's.
    fn magnitude(&self, global: &Self::Global, local2: f64) -> f64;
    /// What a client has of its own at the end; none where the global model is all there is.
    fn client_artifact(&self, _: &Self::Own) -> Option<Artifact> {
        None
    }
    /// The fitted model.
    fn artifact(&self, global: &Self::Global) -> Result<Artifact>;
    /// Everything that leaves a client.
    fn disclosures(&self, terms: &Terms) -> Vec<Disclosure>;
}

/// Frames of an oracle: coordinates in which its channels compress. Both ends make the same frame.
pub trait Framed<O: Oracle + ?Sized> {
    /// The frame of clients' values at a published vector as it was decoded. `moments`: what the
    /// last two methods give.
    fn frame(&self, at: &[O::Number], moments: &[f64]) -> Result<Option<Box<dyn Frame>>>;
    /// The frame of the published vector itself, for downlinks that compress.
    fn published_frame(&self, at: &[O::Number], moments: &[f64]) -> Result<Option<Box<dyn Frame>>>;
    /// What frames need beside the vector; never changes after the first state.
    fn server_moments<'a>(&self, global: &'a O::Global) -> &'a [f64];
    /// The same, as the client holds it once it received `private`.
    fn client_moments<'a>(&self, own: &'a O::Own, private: &'a O::Private) -> &'a [f64];
}

/// Rounds of an oracle in which a client passes over all its rows, where others use a minibatch.
pub trait FullPasses<O: Oracle + ?Sized> {
    /// The most of them in this number of rounds; none where that does not bound them.
    fn most(&self, rounds: Option<u32>) -> Option<u32>;
    /// Whether a round is such a pass for this client.
    fn is_full_pass(&self, own: &O::Own, note: Option<&O::Note>) -> bool;
}

/// What the evaluations of an oracle ask and report.
pub trait Judge: Oracle {
    /// The question to every client.
    type Ask: Wire + Clone + Send + Sync + 'static;
    /// A client's answer.
    type Answer: Wire;

    /// The question, from the global state.
    fn ask(&self, global: &Self::Global, terms: &Terms) -> Result<Self::Ask>;
    /// The question with what the client makes of it on its training rows: its own model, where
    /// models are personal.
    fn localise<'a>(
        &self,
        ask: &'a Self::Ask,
        _: &Self::Own,
        _train: &Self::Data,
    ) -> Result<Cow<'a, Self::Ask>> {
        Ok(Cow::Borrowed(ask))
    }
    /// A client's answer.
    fn answer(&self, ask: &Self::Ask, own: &Self::Own, data: &Self::Data) -> Result<Self::Answer>;
    /// The limit of a client's uplink memory, where that is known; asked where there are memories.
    fn memory_limit(
        &self,
        _: &Self::Ask,
        _: &Self::Answer,
        _: &Self::Data,
    ) -> Result<Option<Vec<Self::Number>>> {
        Ok(None)
    }
    /// Refuses an answer with a value of another length or one that cannot be averaged.
    fn check(&self, id: ClientId, answer: &Self::Answer) -> Result<()>;
    /// A client's own loss.
    fn loss(&self, answer: &Self::Answer) -> Option<f64>;
    /// Means over rows by which the model is judged on rows that are kept out of the fit; none by
    /// default.
    fn scores(&self) -> Vec<Score> {
        Vec::new()
    }
    /// Whether clients that took no part in training can be scored.
    fn judges_unseen(&self) -> bool {
        true
    }
    /// Whether a client counts in the means of scores by its training rows, whatever the number of
    /// rows that are scored; otherwise by those.
    fn scores_weigh_training_rows(&self) -> bool {
        false
    }
    /// A client's figures of its own beside those: declared as
    /// [`per_client`](whimbrel_core::Measure::per_client).
    fn own(&self, _: &Self::Answer) -> Vec<Metric> {
        Vec::new()
    }
    /// Those means over these rows, in the order of [`scores`](Self::scores).
    fn score(&self, _ask: &Self::Ask, _data: &Self::Data) -> Result<Vec<f64>> {
        Ok(Vec::new())
    }
    /// The figures that [`conclude`](Self::conclude) reports, in the order in which they are shown.
    fn measures(&self) -> Vec<Measure>;
    /// The metrics, from weighted answers in id order; those of the channels are added to them.
    fn conclude(
        &self,
        global: &Self::Global,
        answers: &mut dyn Iterator<Item = (f64, Self::Answer)>,
        context: &Context,
    ) -> Result<Vec<Metric>>;
}

/// One client of the roster.
#[derive(Clone, Copy, Debug)]
pub struct Member<S> {
    /// Who it is.
    pub id: ClientId,
    /// `n_i`.
    pub weight: f64,
    /// Its number of rows.
    pub rows: u64,
    /// What it told at enrolment.
    pub summary: S,
}

/// What a client received.
pub struct Received<'a, O: Oracle + ?Sized> {
    /// The kind of exchange.
    pub kind: ExchangeKind,
    /// `ŵ_i`: the published vector as the downlink gives it, or the first question.
    pub state: Cow<'a, [O::Number]>,
    /// What every client of the round was told.
    pub note: Option<&'a O::Note>,
    /// What it alone was told.
    pub private: &'a O::Private,
}

impl<O: Oracle + ?Sized> Clone for Received<'_, O> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), ..*self }
    }
}

/// One client's work, among those handed over together.
pub struct Local<'a, O: Oracle + ?Sized> {
    /// What it received.
    pub received: Received<'a, O>,
    /// Its own state.
    pub own: &'a O::Own,
    /// Its rows.
    pub data: &'a O::Data,
    /// Its key.
    pub key: Key,
    /// Its next own state, and the value that goes up: set by [`Oracle::locals`].
    pub done: Option<Done<O>>,
}

/// The server's counts, as an oracle may read them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Context {
    /// The kind of the exchange under way, or of the next one.
    pub kind: ExchangeKind,
    /// Rounds done.
    pub round: u32,
    /// `k`: steps of the algorithm done (rounds without the one that made the first state).
    pub k: u32,
    /// `N`, the weight of everyone enrolled.
    pub total: f64,
    /// Rows of everyone enrolled.
    pub rows: u64,
    /// How many are enrolled.
    pub clients: u32,
    /// The weight of those whose uploads are in the fold; zero outside the server's step.
    pub cohort: f64,
    /// Whether the server's updates have become small: a fit without a number of rounds ends there.
    pub converged: bool,
}

/// A client's next own state and the value that goes up, or why there is none.
pub type Done<O> = Result<(<O as Oracle>::Own, Vec<<O as Oracle>::Number>)>;
