//! The central trait: a federated method as typed pure steps over explicit state.
//!
//! The engine owns the loop. `&self` is hyper-parameters only: no interior mutability, clock,
//! file, log or thread in a method. Everything kept about one client, on both ends (`Client`
//! there, `Peer` here), is staged by the engine and moves on one event: *the server accepted that
//! client's upload of that round*. Otherwise both ends keep what they had.

use crate::declare::Measure;
use crate::{ClientData, ClientId, Error, Key, Result, State, Wire};
use std::borrow::Cow;

/// A federated algorithm.
pub trait Method: Send + Sync + 'static {
    /// What a client holds, as this method reads it.
    type Data: Send + Sync + 'static;
    /// The global state: independent of the number of clients.
    type Server: State;
    /// What the server remembers about one client.
    type Peer: State;
    /// What a client remembers.
    type Client: State;
    /// One-off facts that a client sends at enrolment.
    type Summary: Wire;
    /// The message to one client.
    type Down: Wire;
    /// The message from one client.
    type Up: Wire;
    /// What messages of one exchange have in common, made once; `()` where nothing.
    type Broadcast: Send + Sync + 'static;
    /// What the uploads of a round are gathered in; merges exactly.
    type Fold: State;
    /// Whether the method is over once everyone has enrolled: it needs no rows after that, and `Peer`
    /// has nothing in it.
    const ENROLS_ONLY: bool = false;

    /// A client's first state, and what it tells the server about its data.
    fn enroll(&self, data: &Self::Data, key: Key) -> Result<(Self::Client, Self::Summary)>;
    /// The first global state, from the roster's summaries in id order.
    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Self::Summary)>,
        key: Key,
    ) -> Result<Self::Server>;
    /// Adds one client to the totals: each of the roster after `start`, and any that joins later.
    /// A summary that is refused must leave the state as it was.
    fn admit(
        &self,
        server: &mut Self::Server,
        id: ClientId,
        summary: &Self::Summary,
    ) -> Result<Self::Peer>;

    /// How many rows a client stated when it was admitted; none where the method does not remember it.
    fn rows(&self, _: &Self::Peer) -> Option<u64> {
        None
    }

    /// The kinds of exchange that a client takes part in, with the most of each: its half refuses
    /// everything beyond them. Empty where the method is over with the enrolment.
    fn allowances(&self) -> Vec<Allowance>;
    /// Which of them a message to this client belongs to, by its place in the list.
    fn allowance(&self, _client: &Self::Client, _down: &Self::Down) -> usize {
        0
    }

    /// What comes next.
    fn next(&self, server: &Self::Server) -> Next;
    /// What the messages of an exchange share: values that go into many are made and encoded here
    /// ([`Shared`](crate::Shared)).
    fn broadcast(&self, server: &Self::Server) -> Result<Self::Broadcast>;
    /// The message to one client, and what the server will remember once its upload is accepted.
    fn downlink(
        &self,
        server: &Self::Server,
        broadcast: &Self::Broadcast,
        peer: &Self::Peer,
        key: Key,
    ) -> Result<(Self::Peer, Self::Down)>;
    /// The client's work: its state once its upload is accepted, and the upload.
    fn local_step(
        &self,
        client: &Self::Client,
        down: &Self::Down,
        data: &Self::Data,
        key: Key,
    ) -> Result<(Self::Client, Self::Up)>;
    /// Many clients' work together, by default one after the other. Each result must be what
    /// [`Method::local_step`] gives for that client alone, to the bit; a failure is its client's.
    fn local_steps(&self, tasks: &mut [Task<'_, Self>])
    where
        Self: Sized,
    {
        for task in tasks {
            task.done = Some(self.local_step(task.client, &task.down, task.data, task.key));
        }
    }
    /// The most clients that [`Method::local_steps`] gains from taking together.
    fn batch(&self) -> usize {
        1
    }
    /// An empty fold for this round.
    fn fold(&self, server: &Self::Server) -> Self::Fold;
    /// Adds one upload. The result must not depend on the order of calls.
    fn absorb(
        &self,
        fold: &mut Self::Fold,
        from: Sender<'_, Self::Peer>,
        up: Self::Up,
    ) -> Result<()>;
    /// Adds another fold: any tree of merges gives the same bits.
    fn merge(&self, fold: &mut Self::Fold, other: Self::Fold) -> Result<()>;
    /// Moves the global state. An empty fold is legal.
    fn server_step(&self, server: Self::Server, fold: Self::Fold, key: Key)
    -> Result<Self::Server>;

    /// The global state once every client has left, with their memories and weights: what the server
    /// knows by itself. They may then be admitted again. By default a method cannot do that.
    fn without_clients(&self, _: Self::Server) -> Result<Self::Server> {
        Err(Error::config("this method cannot re-admit clients after a repair"))
    }

    /// A norm of the global state: the engine watches it for divergence.
    fn magnitude(&self, server: &Self::Server) -> f64;
    /// What the global state amounts to: the fitted model, as named tensors.
    fn artifact(&self, server: &Self::Server) -> Result<Artifact>;
    /// What one client has of its own at the end: a personal model, weights, samples. It stays with
    /// the client; none where the global model is all there is.
    fn client_artifact(&self, _: &Self::Client, _: &Self::Data) -> Result<Option<Artifact>> {
        Ok(None)
    }
    /// Everything that leaves a client, and what could be read from it.
    fn disclosures(&self) -> Vec<Disclosure>;
}

/// Beside the method: one read-only exchange with the clients, its bytes counted apart.
pub trait Evaluate: Method {
    /// The question to every client.
    type Ask: Wire + Send + Sync + 'static;
    /// A client's answer.
    type Answer: Wire;
    /// The question, from the global state.
    fn ask(&self, server: &Self::Server) -> Result<Self::Ask>;
    /// The answer of one client; changes nothing there.
    fn answer(
        &self,
        client: &Self::Client,
        ask: &Self::Ask,
        data: &Self::Data,
    ) -> Result<Self::Answer>;
    /// Refuses an answer that no sound client gives (a number that is not finite, other rows than it
    /// enrolled with), so that one client cannot spoil everyone's figures. Whoever takes answers
    /// from strangers asks this before it concludes. Answers without content are always sound.
    fn check(&self, _id: ClientId, _peer: &Self::Peer, _answer: &Self::Answer) -> Result<()> {
        Ok(())
    }
    /// One client's own loss, from its answer; none where the method has no such figure.
    fn loss(&self, answer: &Self::Answer) -> Option<f64>;
    /// Its other figures: those declared as [`per_client`](Measure::per_client).
    fn own(&self, _answer: &Self::Answer) -> Vec<Metric> {
        Vec::new()
    }
    /// The figures that [`conclude`](Self::conclude) reports, in the order in which they are shown;
    /// none where it reports nothing.
    fn measures(&self) -> Vec<Measure> {
        Vec::new()
    }
    /// The metrics, from the answers in id order: declared ones only.
    fn conclude(
        &self,
        server: &Self::Server,
        answers: &mut dyn Iterator<Item = (ClientId, Self::Answer)>,
    ) -> Result<Vec<Metric>>;
    /// Metrics over clients that are only evaluated, from their answers in id order. By default
    /// there are none: such clients show in figures per client alone.
    fn conclude_unseen(
        &self,
        _: &Self::Server,
        _: &mut dyn Iterator<Item = (ClientId, Self::Answer)>,
    ) -> Result<Vec<Metric>> {
        Ok(Vec::new())
    }
}

/// Makes a client's typed data from the neutral form that readers give.
pub trait Bind<M: Method>: Send + Sync + 'static {
    /// Checks and lays out one client's rows.
    fn bind(&self, method: &M, data: &ClientData) -> Result<M::Data>;
}

/// What a method wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// An exchange with everyone that is not counted as a round: it opens memories, or calibrates.
    Uncounted,
    /// A round.
    Round(Cohort),
    /// The method is done.
    Stop,
}

/// A kind of exchange and the most of it that a client answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// Its name, for people.
    pub name: &'static str,
    /// Its place in the order: nothing of a lower rank follows something of a higher one; kinds of
    /// one rank alternate.
    pub rank: u8,
    /// The most exchanges of it; none where the job does not bound them.
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
}

/// Whom a round asks; how a sample is drawn is the engine's business.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cohort {
    /// Every enrolled client.
    Everyone,
    /// Clients drawn by the job's participation.
    Sampled,
}

/// One client's work of an exchange, among those handed over together.
pub struct Task<'a, M: Method> {
    /// What it remembers.
    pub client: &'a M::Client,
    /// The message to it.
    pub down: M::Down,
    /// Its data.
    pub data: &'a M::Data,
    /// Its key.
    pub key: Key,
    /// Its state once its upload is accepted, and the upload: set by [`Method::local_steps`].
    pub done: Option<Result<(M::Client, M::Up)>>,
}

/// Whose upload it is, as the server knows it.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a, P> {
    /// The client.
    pub id: ClientId,
    /// The planned probability that it was asked.
    pub inclusion: f64,
    /// The record of it that will be kept.
    pub peer: &'a P,
}

/// A named figure of an evaluation.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// Its key in `metrics.jsonl`.
    pub name: Cow<'static, str>,
    /// Its value.
    pub value: MetricValue,
}

/// One number or several.
#[derive(Clone, PartialEq, Debug)]
pub enum MetricValue {
    /// A number.
    Number(f64),
    /// A list, such as mixture weights.
    List(Vec<f64>),
    /// Nothing to say (a quantity that does not exist for this method or round).
    Missing,
}

impl Metric {
    /// A metric of one number.
    pub fn number(name: impl Into<Cow<'static, str>>, value: f64) -> Self {
        Self { name: name.into(), value: MetricValue::Number(value) }
    }

    /// A metric of several numbers.
    pub fn list(name: impl Into<Cow<'static, str>>, values: Vec<f64>) -> Self {
        Self { name: name.into(), value: MetricValue::List(values) }
    }
}

/// A fitted model, or what one stage hands to the next: named tensors.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Artifact {
    /// The model's kind, such as `gmm`.
    pub kind: String,
    /// Its tensors in order.
    pub tensors: Vec<Tensor>,
    /// Those of `f32`: they take four bytes a number wherever they are stored.
    pub narrow: Vec<Tensor<f32>>,
}

/// A named array of numbers, last index fastest.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor<T = f64> {
    /// Its name.
    pub name: String,
    /// Its lengths; empty for a single number.
    pub shape: Vec<u64>,
    /// Its values.
    pub values: Vec<T>,
}

crate::wire!(Artifact { kind, tensors, narrow });
crate::wire!(Tensor<T: Wire> { name, shape, values });

impl Artifact {
    /// One without tensors.
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

    /// The numbers of a tensor, which must have this length.
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

    /// The same with one more tensor.
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

/// One thing that leaves a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disclosure {
    /// Which message carries it: `summary`, `up` or `answer`.
    pub message: &'static str,
    /// What it is.
    pub meaning: String,
    /// The most bytes it takes.
    pub bytes_max: usize,
    /// What it can give away.
    pub exposure: Exposure,
}

/// What a message can give away about single rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exposure {
    /// Sums over a client's rows: a client with few rows gives much away.
    Aggregate,
    /// Rows as they are.
    Rows,
}
