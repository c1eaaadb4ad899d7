//! The two traits of a paper's algorithm: [`Oracle`] (the algorithm) and [`Judge`] (its evaluations).

use super::{ExchangeKind, PartScores, Scores, Split, Terms};
use std::borrow::Cow;
use std::ops::Range;
use whimbrel_codec::Scalar;
use whimbrel_core::method::{Artifact, Declaration, Metric};
use whimbrel_core::{ClientData, ClientId, Error, Frame, Key, Result, Spread, State, Wire};

/// The local computation and the server step of an algorithm. Methods stand in call order.
pub trait Oracle: Send + Sync + 'static {
    /// The width of the published vector, of uploads and of memories: `f64` or `f32`. Sums over
    /// clients are `f64`.
    type Number: Scalar;
    /// A client's rows.
    type Data: Send + Sync + 'static;
    /// A client's state; never leaves the client.
    type Own: State;
    /// The global state.
    type Global: State;
    /// A client's message at enrolment, beside its number of rows.
    type Summary: Wire;
    /// The server's record of one client, beside its weight and channels: O(1).
    type Record: State + Default;
    /// Broadcast part of the message, beside the published vector.
    type Note: Wire + Clone;
    /// Part of the message to one client.
    type Private: Wire + Clone + Default;

    /// Whether the first state comes from an exchange with everyone, whose message is
    /// [`Oracle::published`] of [`ExchangeKind::FirstState`] and whose mean goes to
    /// [`Oracle::opened`]. Under differential privacy there is none.
    const FIRST_EXCHANGE: bool = false;

    /// Disclosures, figures, kinds of round beside the ordinary one, and the batch size of
    /// [`Oracle::locals`].
    fn declare(&self, terms: &Terms) -> Declaration;
    /// Checks and lays out a client's rows; returns them with the number that the client counts for.
    fn bind(&self, data: &ClientData) -> Result<(Self::Data, u64)>;
    /// A client's first state, and its message at enrolment.
    fn enroll(&self, data: &Self::Data, key: Key) -> Result<(Self::Own, Self::Summary)>;
    /// The first global state, from the roster in id order; `admit` follows for each member.
    fn start(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<Self::Summary>>>,
        terms: &Terms,
        key: Key,
    ) -> Result<Self::Global>;
    /// Adds one client to the global state: each of the roster, and every late joiner. A refused
    /// summary must leave the state unchanged.
    fn admit(&self, _: &mut Self::Global, _: &Member<&Self::Summary>) -> Result<Self::Record> {
        Ok(Self::Record::default())
    }
    /// Removes the contributions that [`Oracle::admit`] added.
    fn without_clients(&self, _: &mut Self::Global) {}

    /// The vector that goes down in an exchange of this kind.
    fn published<'a>(
        &self,
        global: &'a Self::Global,
        kind: ExchangeKind,
    ) -> Cow<'a, [Self::Number]>;
    /// The rest of the message to one client, and the record of it once its upload is accepted.
    fn tell(&self, _: &Self::Global, record: &Self::Record, _: &Context) -> Told<Self> {
        Told { record: record.clone(), note: None, private: Self::Private::default() }
    }
    /// The kind of a round for a client that was told this: 0 is an ordinary round, `n` the `n`-th
    /// kind in [`Declaration::exchanges`]. Refuses a note or a private part that the job does not
    /// have; by default no message has a note.
    fn round_kind(
        &self,
        _: &Self::Own,
        _: ExchangeKind,
        note: Option<&Self::Note>,
        _: &Self::Private,
    ) -> Result<usize> {
        match note {
            None => Ok(0),
            Some(_) => Err(Error::peer("a message has a note, and the job has none")),
        }
    }
    /// A client's work: its next state, and the value that goes up.
    fn local(
        &self,
        received: &Received<'_, Self>,
        own: &Self::Own,
        data: &Self::Data,
        key: Key,
    ) -> Result<Computed<Self>>;
    /// The work of several clients, by default one after the other. Each result must equal that of
    /// [`Oracle::local`], to the bit.
    fn locals(
        &self,
        tasks: &[Local<'_, Self>],
        _threads: &dyn Spread,
    ) -> Vec<Result<Computed<Self>>> {
        let local =
            |task: &Local<'_, Self>| self.local(&task.received, task.own, task.data, task.key);
        tasks.iter().map(local).collect()
    }
    /// The number of rows behind one upload of a client with `rows` rows: the unit of epochs.
    fn rows_used(&self, rows: u64, _: &Self::Record, _: ExchangeKind) -> u64 {
        rows
    }

    /// The coordinates in which a channel compresses a vector at the published vector `at`; `None`
    /// for raw coordinates. Both ends make the same frame.
    fn frame(&self, _: Framed, _at: &[Self::Number], _moments: &[f64]) -> Result<MaybeFrame> {
        Ok(None)
    }
    /// The data that frames need beside the published vector, fixed after the first state; `None`
    /// if there are no frames.
    fn frame_moments<'a>(&self, _: End<'a, Self>) -> Option<&'a [f64]> {
        None
    }

    /// Ends an exchange before the rounds: `mean` is the mean of the clients' values, from which the
    /// first state is made ([`ExchangeKind::FirstState`]) or at which memories start.
    fn opened(&self, _: &mut Self::Global, _mean: Vec<f64>, _: &Context) -> Result<()> {
        Ok(())
    }
    /// Moves the global state by the estimate of the clients' mean value, and publishes the new
    /// vector once: `publish` returns the vector that the server must hold, which a degraded
    /// downlink has changed. Returns the squared norm of the update direction.
    fn step(
        &self,
        global: &mut Self::Global,
        estimate: Vec<f64>,
        context: &Context,
        publish: Publish<'_, Self::Number>,
    ) -> Result<f64>;
    /// The change of a client's value that the step from `before` to `after` explains: the step times
    /// the values' Lipschitz constant. Uploads on a grid adapt to it.
    fn moved(&self, before: &Self::Global, after: &Self::Global) -> Vec<f64> {
        let round = ExchangeKind::Round;
        let (before, after) = (self.published(before, round), self.published(after, round));
        before
            .iter()
            .zip(after.iter())
            .map(|(before, after)| after.wide() - before.wide())
            .collect()
    }
    /// A norm of the state, watched for divergence. `local2` is the mean squared distance of the
    /// clients' states from the server's.
    fn magnitude(&self, global: &Self::Global, local2: f64) -> f64;

    /// The fitted model.
    fn artifact(&self, global: &Self::Global) -> Result<Artifact>;
    /// A client's personal result, if there is one.
    fn client_artifact(&self, _: &Self::Own) -> Option<Artifact> {
        None
    }
}

/// The evaluations of an oracle.
pub trait Judge: Oracle {
    /// The question to every client.
    type Ask: Wire + Clone + Send + Sync + 'static;
    /// A client's answer.
    type Answer: Wire;

    /// Means over rows by which the model is scored on each part of a client's rows.
    fn scores(&self) -> Scores {
        Scores::default()
    }
    /// The question, from the global state.
    fn ask(&self, global: &Self::Global, terms: &Terms) -> Result<Self::Ask>;
    /// A client's answer.
    fn answer(
        &self,
        ask: &Self::Ask,
        own: &Self::Own,
        data: &Split<Self::Data>,
        terms: &Terms,
    ) -> Result<Answered<Self>>;
    /// The figures of an answer, for a client of this weight. An answer with another number of addends
    /// than [`Scores::addends`], or with one that cannot be averaged, is refused.
    fn figures(&self, answer: &Self::Answer, weight: f64) -> Figures;
    /// Figures over the roster, from the sums of all clients' addends and of their weights. Those of
    /// the channels are added to them.
    fn conclude(
        &self,
        global: &Self::Global,
        sums: &[f64],
        total: f64,
        context: &Context,
    ) -> Result<Vec<Metric>>;
}

/// A frame, or `None` for raw coordinates.
pub type MaybeFrame = Option<Box<dyn Frame>>;

/// Hands the new vector to the downlink; returns the vector that the server must hold.
pub type Publish<'a, N> = &'a mut dyn FnMut(Vec<N>) -> Result<Vec<N>>;

/// The vectors that have frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framed {
    /// The clients' values.
    Value,
    /// The published vector, over a downlink that compresses.
    Published,
}

/// One end of the channels with the state that frames are made from.
pub enum End<'a, O: Oracle + ?Sized> {
    /// The server and its state.
    Server(&'a O::Global),
    /// A client, its state and its part of the message.
    Client(&'a O::Own, &'a O::Private),
}

/// One client of the roster.
#[derive(Clone, Copy, Debug)]
pub struct Member<S> {
    pub id: ClientId,
    /// `n_i`.
    pub weight: f64,
    pub rows: u64,
    /// The client's message at enrolment.
    pub summary: S,
}

/// The message to one client, beside the published vector.
pub struct Told<O: Oracle + ?Sized> {
    /// The record of the client once its upload is accepted.
    pub record: O::Record,
    /// Broadcast part.
    pub note: Option<O::Note>,
    /// Part for this client.
    pub private: O::Private,
}

/// A message as a client received it.
pub struct Received<'a, O: Oracle + ?Sized> {
    pub kind: ExchangeKind,
    /// `ŵ_i`: the published vector as the downlink decodes it.
    pub state: Cow<'a, [O::Number]>,
    /// Broadcast part.
    pub note: Option<&'a O::Note>,
    /// Part for this client.
    pub private: &'a O::Private,
    /// The fewest rows behind each block of the value ([`Privacy::min_group`](crate::settings::Privacy::min_group)).
    pub min_group: Option<u32>,
}

/// One client's work: the arguments of [`Oracle::local`].
pub struct Local<'a, O: Oracle + ?Sized> {
    pub received: Received<'a, O>,
    pub own: &'a O::Own,
    pub data: &'a O::Data,
    pub key: Key,
}

/// The result of a client's work.
pub struct Computed<O: Oracle + ?Sized> {
    /// The client's next state.
    pub own: O::Own,
    /// `g_i`: the value that goes up.
    pub value: Vec<O::Number>,
    /// The blocks of the value with the number of rows behind each (`sum r / max r`), if the message
    /// asks for a smallest group: [`Federated`](super::Federated) sends zeros for those with fewer.
    pub supports: Vec<(Range<usize>, f64)>,
    /// The parts that the oracle left out by itself because too few rows determine them.
    pub left_out: u32,
}

impl<O: Oracle + ?Sized> Computed<O> {
    /// A value of an oracle that does not count rows.
    pub fn new(own: O::Own, value: Vec<O::Number>) -> Self {
        Self { own, value, supports: Vec::new(), left_out: 0 }
    }
}

/// A client's answer, as its judge returns it.
pub struct Answered<O: Judge + ?Sized> {
    pub answer: O::Answer,
    /// The limit of the client's uplink memory, if it is known. Ignored without memories.
    pub memory_limit: Option<Vec<O::Number>>,
    /// Scores of each part of the rows ([`Split::scores`]).
    pub parts: Vec<PartScores>,
}

/// The figures of one answer.
pub struct Figures {
    /// The client's own figures beside its scores: its loss, then those declared as
    /// [`per_client`](whimbrel_core::Measure::per_client).
    pub own: Vec<Metric>,
    /// Its part in the sums over clients.
    pub addends: Vec<f64>,
}

impl Figures {
    /// The figures of an answer that is a loss.
    pub fn of_loss(loss: f64, weight: f64) -> Self {
        Self { own: vec![Metric::loss(loss)], addends: vec![weight * loss] }
    }
}

/// The server's counters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Context {
    /// The kind of the current exchange, or of the next one between exchanges.
    pub kind: ExchangeKind,
    pub round: u32,
    /// `k`: completed steps of the algorithm (rounds without the one that made the first state).
    pub k: u32,
    /// `N`, the total weight of the enrolled clients.
    pub total: f64,
    /// The rows of all enrolled clients.
    pub rows: u64,
    /// The number of enrolled clients.
    pub clients: u32,
    /// The total weight of the clients in the fold; zero outside the server step.
    pub cohort: f64,
}
