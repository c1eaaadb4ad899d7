//! The central trait: a federated method as typed pure steps over explicit state.
//!
//! The engine owns the loop. `&self` holds hyper-parameters only: a method has no interior
//! mutability and uses no clock, file, log or thread. Both ends keep state about one client
//! (`Client` there, `Peer` here). The engine stages it and commits it on one event: *the server
//! accepted that client's upload of that round*. Otherwise both ends keep their previous state.

use crate::declare::Measure;
use crate::{ClientData, ClientId, Error, Key, Result, Spread, State, Wire};
use std::borrow::Cow;

/// A federated algorithm. Methods stand in call order.
pub trait Method: Send + Sync + 'static {
    /// A client's rows in the layout that this method reads.
    type Data: Send + Sync + 'static;
    /// The global state. Its size must not depend on the number of clients.
    type Server: State;
    /// The server's record of one client.
    type Peer: State;
    /// A client's state.
    type Client: State;
    /// The message of a client at enrolment.
    type Summary: Wire;
    /// The message to one client.
    type Down: Wire;
    /// The message from one client.
    type Up: Wire + Send;
    /// The part that all messages of an exchange share; `()` if there is none.
    type Broadcast: Send + Sync + 'static;
    /// The accumulator of a round's uploads; merges exactly.
    type Fold: State;

    /// Limits, disclosures and figures of this method.
    fn declare(&self) -> Declaration;

    /// A client's first state, and its message at enrolment.
    fn enroll(&self, data: &Self::Data, key: Key) -> Result<(Self::Client, Self::Summary)>;
    /// The first global state, from the roster's summaries in id order.
    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Self::Summary)>,
        key: Key,
    ) -> Result<Self::Server>;
    /// Adds one client to the totals: each of the roster after `start`, and every late joiner.
    /// A refused summary must leave the state unchanged.
    fn admit(
        &self,
        server: &mut Self::Server,
        id: ClientId,
        summary: &Self::Summary,
    ) -> Result<Self::Peer>;
    /// The number of rows that a client stated at admission, if the method records it.
    fn rows(&self, _: &Self::Peer) -> Option<u64> {
        None
    }

    /// The next exchange and the norm of the state.
    fn status(&self, server: &Self::Server) -> Status;
    /// Opens an exchange with a cohort, in id order: the shared part of its messages, encoded once
    /// ([`Shared`](crate::Shared)), and an empty fold for its uploads.
    fn open(
        &self,
        server: &Self::Server,
        cohort: &[ClientId],
    ) -> Result<(Self::Broadcast, Self::Fold)>;
    /// The message to one client, and the record of it once its upload is accepted.
    fn downlink(
        &self,
        server: &Self::Server,
        broadcast: &Self::Broadcast,
        peer: &Self::Peer,
        key: Key,
    ) -> Result<(Self::Peer, Self::Down)>;
    /// The place of a message in the run, as its client knows it.
    fn place(&self, _client: &Self::Client, _down: &Self::Down) -> Result<Place> {
        Ok(Place::default())
    }
    /// A client's work.
    fn local_step(
        &self,
        client: &Self::Client,
        down: &Self::Down,
        data: &Self::Data,
        key: Key,
    ) -> Result<Done<Self>>;
    /// The work of several clients, by default one after the other. Each result must equal that of
    /// [`Method::local_step`], to the bit. The caller's threads may share parts of it.
    fn local_steps(
        &self,
        tasks: &[Task<'_, Self>],
        _threads: &dyn Spread,
    ) -> Vec<Result<Done<Self>>>
    where
        Self: Sized,
    {
        let step = |t: &Task<'_, Self>| self.local_step(t.client, &t.down, t.data, t.key);
        tasks.iter().map(step).collect()
    }
    /// Adds one upload. The result must not depend on the order of calls.
    fn absorb(
        &self,
        fold: &mut Self::Fold,
        from: Sender<'_, Self::Peer>,
        up: Self::Up,
    ) -> Result<()>;
    /// Adds another fold. Every tree of merges must give the same bits.
    fn merge(&self, fold: &mut Self::Fold, other: Self::Fold) -> Result<()>;
    /// Moves the global state. An empty fold is legal.
    fn server_step(&self, server: Self::Server, fold: Self::Fold, key: Key)
    -> Result<Self::Server>;

    /// The global state after all clients left, without their memories and weights. They may be
    /// admitted again. Methods that do not override this cannot be repaired.
    fn without_clients(&self, _: Self::Server) -> Result<Self::Server> {
        Err(Error::config("this method cannot re-admit clients after a repair"))
    }

    /// The fitted model as named tensors.
    fn artifact(&self, server: &Self::Server) -> Result<Artifact>;
    /// A client's personal result (a model, weights, samples), which stays with the client; `None`
    /// if the global model is the whole result.
    fn client_artifact(&self, _: &Self::Client, _: &Self::Data) -> Result<Option<Artifact>> {
        Ok(None)
    }
}

/// A read-only exchange beside the method's rounds; its bytes are counted separately.
pub trait Evaluate: Method {
    /// The question to every client.
    type Ask: Wire + Send + Sync + 'static;
    /// A client's answer.
    type Answer: Wire;
    /// The global state at the start of an evaluation by separate exchanges
    /// ([`Next::Evaluation`]); `None` if clients are asked instead, or if these exchanges are over.
    fn begin(&self, _: &Self::Server) -> Result<Option<Self::Server>> {
        Ok(None)
    }
    /// The question, from the global state.
    fn ask(&self, server: &Self::Server) -> Result<Self::Ask>;
    /// One client's answer; changes no state.
    fn answer(
        &self,
        client: &Self::Client,
        ask: &Self::Ask,
        data: &Self::Data,
    ) -> Result<Self::Answer>;
    /// One client's figures: its loss ([`Metric::loss`]) first, then those declared as
    /// [`per_client`](Measure::per_client). Refuses an invalid answer (a non-finite number, another
    /// row count than at enrolment), so that one client cannot spoil everyone's figures; runners
    /// call this before `conclude`. `peer` is `None` for a client that is only evaluated.
    fn own(
        &self,
        _id: ClientId,
        _peer: Option<&Self::Peer>,
        _answer: &Self::Answer,
    ) -> Result<Vec<Metric>> {
        Ok(Vec::new())
    }
    /// Figures over a group of clients, from their answers in id order. Every figure must be declared
    /// in [`Declaration::measures`]. An empty list means that the method does not judge this group.
    fn conclude(
        &self,
        server: &Self::Server,
        answers: &mut dyn Iterator<Item = (ClientId, Self::Answer)>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>>;
}

/// A group of evaluated clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientGroup {
    /// Clients of the roster.
    Trained,
    /// Clients that are only evaluated.
    Unseen,
}

/// Facts about a method that hold before it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Declaration {
    /// Kinds of exchange with the most of each: a client refuses anything beyond them. Empty if the
    /// method ends with the enrolment.
    pub exchanges: Vec<Allowance>,
    /// Everything that leaves a client.
    pub disclosures: Vec<Disclosure>,
    /// Figures of an evaluation, in display order.
    pub measures: Vec<Measure>,
    /// The most clients that [`Method::local_steps`] gains from processing together.
    pub batch: usize,
    /// The fewest clients of a cohort: the engine asks nobody instead of a smaller one.
    pub cohort_min: usize,
    /// Consecutive exchanges that form one, for the random draws: `n`, less the asides before it, is
    /// step `n % steps` of number `n / steps`.
    pub steps: u32,
    /// The noise multiplier of each upload's sum, under differential privacy.
    pub noise: Option<f64>,
    /// Whether the method ends with the enrolment: it then needs no rows afterwards, and `Peer` is
    /// empty.
    pub enrols_only: bool,
}

impl Declaration {
    /// Whether evaluations are exchanges of the method: clients are not asked otherwise.
    pub fn evaluates_by_exchanges(&self) -> bool {
        self.exchanges.iter().any(|kind| kind.rank == Allowance::EVALUATIONS)
    }
}

impl Default for Declaration {
    fn default() -> Self {
        let (exchanges, disclosures, measures) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            exchanges,
            disclosures,
            measures,
            batch: 1,
            cohort_min: 0,
            steps: 1,
            noise: None,
            enrols_only: false,
        }
    }
}

/// The server's position in a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    pub next: Next,
    /// A norm of the global state, watched for divergence.
    pub magnitude: f64,
    /// Exchanges so far that address no random draws, such as those of evaluations.
    pub asides: u32,
    /// Parts of messages that clients withheld so far, as their uploads state.
    pub withheld: u64,
}

impl Status {
    /// A position with no asides before it and nothing withheld.
    pub fn new(next: Next, magnitude: f64) -> Self {
        Self { next, magnitude, asides: 0, withheld: 0 }
    }
}

/// The place of a message in a run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Place {
    /// The kind of exchange: an index into [`Declaration::exchanges`].
    pub kind: usize,
    /// [`Status::asides`] before the exchange.
    pub asides: u32,
}

impl From<usize> for Place {
    /// A place with no asides before it.
    fn from(kind: usize) -> Self {
        Self { kind, asides: 0 }
    }
}

/// Lays out a client's rows, as readers return them, for a method.
pub trait Bind<M: Method>: Send + Sync + 'static {
    /// Checks and lays out one client's rows.
    fn bind(&self, method: &M, data: &ClientData) -> Result<M::Data>;
}

/// The exchange that a method asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// An exchange with everyone that is not counted as a round: it opens memories or calibrates.
    Uncounted,
    /// An exchange with these clients, ascending, that continues the one before.
    Continued(Vec<ClientId>),
    /// An exchange of an evaluation with these clients, ascending; it moves no model.
    Evaluation(Vec<ClientId>),
    Round(Cohort),
    Stop,
    /// The method is done because it has converged by its own rule.
    Converged,
}

impl Next {
    /// Whether no exchange follows.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Stop | Self::Converged)
    }
}

/// A kind of exchange, with the number that a client answers at most.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowance {
    pub name: &'static str,
    /// The position in the order: ranks never decrease during a run; kinds of equal rank alternate,
    /// and those of rank [`Allowance::BETWEEN`] or [`Allowance::EVALUATIONS`] may follow any other.
    pub rank: u8,
    /// The most exchanges of this kind; `None` if the job does not bound them.
    pub most: Option<u32>,
}

impl Allowance {
    /// One exchange before the rounds.
    pub fn opening(name: &'static str, rank: u8) -> Self {
        Self { name, rank, most: Some(1) }
    }

    /// The rounds, after all openings.
    pub fn rounds(most: Option<u32>) -> Self {
        Self { name: "rounds", rank: Self::ROUNDS, most }
    }

    /// The rank of rounds.
    pub const ROUNDS: u8 = 100;
    /// The rank of exchanges that continue others.
    pub const BETWEEN: u8 = u8::MAX;
    /// The rank of evaluations that are exchanges; the job bounds their number.
    pub const EVALUATIONS: u8 = u8::MAX - 1;
}

/// The clients that a round asks. The engine draws samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cohort {
    Everyone,
    /// Clients drawn by the job's participation.
    Sampled,
}

/// One client's work of an exchange: the arguments of [`Method::local_step`].
pub struct Task<'a, M: Method> {
    pub client: &'a M::Client,
    pub down: M::Down,
    /// Its rows.
    pub data: &'a M::Data,
    pub key: Key,
}

/// One client's finished work.
pub struct Done<M: Method + ?Sized> {
    /// Its state once the upload is accepted.
    pub client: M::Client,
    pub up: M::Up,
    /// The parts of the upload that the client withheld because too few rows determine them.
    pub withheld: u32,
}

impl<M: Method + ?Sized> Done<M> {
    /// Work from which nothing is withheld.
    pub fn new(client: M::Client, up: M::Up) -> Self {
        Self { client, up, withheld: 0 }
    }
}

/// The sender of an upload.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a, P> {
    pub id: ClientId,
    /// The planned probability of its participation.
    pub inclusion: f64,
    /// The staged record of it.
    pub peer: &'a P,
}

/// A named figure of an evaluation.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// The key in `metrics.jsonl`.
    pub name: Cow<'static, str>,
    pub value: MetricValue,
}

/// One number or several.
#[derive(Clone, PartialEq, Debug)]
pub enum MetricValue {
    Number(f64),
    /// A list, such as mixture weights.
    List(Vec<f64>),
    /// A quantity that does not exist for this method or round.
    Missing,
}

/// The key of a client's loss, which methods need not declare.
pub const LOSS: &str = "loss";

impl Metric {
    /// A client's loss.
    pub fn loss(value: f64) -> Self {
        Self::number(LOSS, value)
    }

    /// A metric of one number.
    pub fn number(name: impl Into<Cow<'static, str>>, value: f64) -> Self {
        Self { name: name.into(), value: MetricValue::Number(value) }
    }

    /// A metric of several numbers.
    pub fn list(name: impl Into<Cow<'static, str>>, values: Vec<f64>) -> Self {
        Self { name: name.into(), value: MetricValue::List(values) }
    }
}

/// A fitted model, or the result that one stage hands to the next: named tensors.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Artifact {
    /// The model's kind, such as `gmm`.
    pub kind: String,
    pub tensors: Vec<Tensor>,
    /// Tensors of `f32`, stored in four bytes per number.
    pub narrow: Vec<Tensor<f32>>,
}

/// A named array of numbers, last index fastest.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor<T = f64> {
    pub name: String,
    /// The length of each axis; empty for a single number.
    pub shape: Vec<u64>,
    pub values: Vec<T>,
}

crate::wire!(Artifact { kind, tensors, narrow });
crate::wire!(Tensor<T: Wire> { name, shape, values });

impl Artifact {
    /// An artifact without tensors.
    pub fn new(kind: impl Into<String>) -> Self {
        Self { kind: kind.into(), ..Self::default() }
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// The tensors that are single numbers.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        let single = self.tensors.iter().filter(|t| t.shape.is_empty());
        single.filter_map(|t| Some((t.name.as_str(), *t.values.first()?)))
    }

    /// The values of a tensor; refuses another length.
    pub fn values(&self, name: &str, length: usize) -> Result<Vec<f64>> {
        let found = self.tensor(name).map_or(&[][..], |tensor| &tensor.values);
        if found.len() != length {
            let count = found.len();
            return Err(Error::data(format!(
                "`{name}` has {count} numbers where the model needs {length}"
            )));
        }
        Ok(found.to_vec())
    }

    /// A tensor that is a single number.
    pub fn number(&self, name: &str) -> Result<f64> {
        Ok(self.values(name, 1)?[0])
    }

    /// Adds a tensor.
    pub fn add(&mut self, name: &str, shape: &[usize], values: Vec<f64>) {
        self.tensors.push(Tensor::new(name, shape, values));
    }

    /// Adds a tensor.
    #[must_use]
    pub fn with(mut self, name: &str, shape: &[usize], values: Vec<f64>) -> Self {
        self.add(name, shape, values);
        self
    }

    /// Adds a tensor of `f32`.
    #[must_use]
    pub fn with_f32(mut self, name: &str, shape: &[usize], values: Vec<f32>) -> Self {
        self.narrow.push(Tensor::new(name, shape, values));
        self
    }
}

impl<T> Tensor<T> {
    fn new(name: &str, shape: &[usize], values: Vec<T>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), values.len());
        let shape = shape.iter().map(|n| *n as u64).collect();
        Self { name: name.into(), shape, values }
    }
}

/// Information that leaves a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disclosure {
    /// The message that carries it: `summary`, `up` or `answer`.
    pub message: &'static str,
    /// The description shown to the client's user.
    pub meaning: String,
    /// The most bytes it takes.
    pub bytes_max: usize,
    pub exposure: Exposure,
}

/// The information about single rows that a message can reveal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exposure {
    /// Masked words: only the sum over at least this number of clients can be read.
    Sum(u32),
    /// Sums over a client's rows; sums over few rows can reveal individual rows.
    Aggregate,
    /// Raw rows.
    Rows,
}
