//! The byte-erased twin of [`Method`](crate::method::Method): the engine's only view.
//!
//! Messages are bytes; states are decoded values behind a pointer, with `save` and `load`. Nothing
//! above the methods crate is generic over a method.

use crate::declare::Measure;
use crate::method::{Allowance, Artifact, Bind, Disclosure, Evaluate, Metric, Next, Sender, Task};
use crate::{ClientData, ClientId, Error, Key, Message, Result, Wire};
use std::any::Any;
use std::borrow::Cow;

/// A decoded state, or a client's bound data, whose type only its method knows.
pub type Opaque = Box<dyn Any + Send + Sync>;

/// The key of a client's own loss, which methods need not declare.
pub const LOSS: &str = "loss";

/// Which state is saved or loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The global state.
    Server,
    /// What the server remembers about one client.
    Peer,
    /// What a client remembers.
    Client,
    /// The uploads gathered so far.
    Fold,
}

/// Whose upload it is.
#[derive(Clone, Copy)]
pub struct DynSender<'a> {
    /// The client.
    pub id: ClientId,
    /// The planned probability that it was asked.
    pub inclusion: f64,
    /// The staged record of it.
    pub peer: &'a Opaque,
}

/// One client's work of an exchange, among those handed over together.
pub struct DynTask<'a> {
    /// What it remembers.
    pub client: &'a Opaque,
    /// The message to it.
    pub down: &'a Message,
    /// Its bound data.
    pub data: &'a Opaque,
    /// Its key.
    pub key: Key,
    /// Its state once its upload is accepted, and the upload.
    pub done: Option<Result<(Opaque, Vec<u8>)>>,
}

impl DynTask<'_> {
    /// What came of it; an error where it was left out.
    pub fn outcome(self) -> Result<(Opaque, Vec<u8>)> {
        self.done.unwrap_or_else(|| Err(left_out()))
    }
}

/// [`Method`] and [`Evaluate`] without types.
///
/// [`Method`]: crate::method::Method
#[allow(missing_docs)] // each step is documented where it has its types: on `Method` and `Evaluate`
pub trait DynMethod: Send + Sync {
    fn bind(&self, data: &ClientData) -> Result<Opaque>;
    fn enrols_only(&self) -> bool;
    fn enroll(&self, data: &Opaque, key: Key) -> Result<(Opaque, Vec<u8>)>;
    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Cow<'_, [u8]>)>,
        key: Key,
    ) -> Result<Opaque>;
    fn admit(&self, server: &mut Opaque, id: ClientId, summary: &[u8]) -> Result<Opaque>;
    fn rows(&self, peer: &Opaque) -> Result<Option<u64>>;
    fn allowances(&self) -> Vec<Allowance>;
    fn allowance(&self, client: &Opaque, down: &Message) -> Result<usize>;
    fn next(&self, server: &Opaque) -> Result<Next>;
    fn broadcast(&self, server: &Opaque) -> Result<Opaque>;
    fn downlink(
        &self,
        server: &Opaque,
        broadcast: &Opaque,
        peer: &Opaque,
        key: Key,
    ) -> Result<(Opaque, Message)>;
    fn local_step(
        &self,
        client: &Opaque,
        down: &Message,
        data: &Opaque,
        key: Key,
    ) -> Result<(Opaque, Vec<u8>)>;
    fn local_steps(&self, tasks: &mut [DynTask<'_>]) {
        for task in tasks {
            task.done = Some(self.local_step(task.client, task.down, task.data, task.key));
        }
    }
    fn batch(&self) -> usize {
        1
    }
    fn fold(&self, server: &Opaque) -> Result<Opaque>;
    fn absorb(&self, fold: &mut Opaque, from: DynSender<'_>, up: &[u8]) -> Result<()>;
    fn merge(&self, fold: &mut Opaque, other: Opaque) -> Result<()>;
    fn server_step(&self, server: Opaque, fold: Opaque, key: Key) -> Result<Opaque>;
    fn without_clients(&self, server: Opaque) -> Result<Opaque>;
    fn magnitude(&self, server: &Opaque) -> Result<f64>;
    fn artifact(&self, server: &Opaque) -> Result<Artifact>;
    fn client_artifact(&self, client: &Opaque, data: &Opaque) -> Result<Option<Artifact>>;
    fn disclosures(&self) -> Vec<Disclosure>;
    fn ask(&self, server: &Opaque) -> Result<Message>;
    fn answer(&self, client: &Opaque, ask: &Message, data: &Opaque) -> Result<Vec<u8>>;
    fn check(&self, id: ClientId, peer: &Opaque, answer: &[u8]) -> Result<()>;
    /// One client's own figures: its loss, and what the method adds.
    fn own(&self, answer: &[u8]) -> Result<Vec<Metric>>;
    fn measures(&self) -> Vec<Measure>;
    fn conclude(
        &self,
        server: &Opaque,
        answers: &mut dyn Iterator<Item = (ClientId, Cow<'_, [u8]>)>,
    ) -> Result<Vec<Metric>>;
    fn conclude_unseen(
        &self,
        server: &Opaque,
        answers: &mut dyn Iterator<Item = (ClientId, Cow<'_, [u8]>)>,
    ) -> Result<Vec<Metric>>;
    fn save(&self, part: Part, state: &Opaque) -> Result<Vec<u8>>;
    fn load(&self, part: Part, bytes: &[u8]) -> Result<Opaque>;
}

/// A method and the binding of its data, seen without types.
pub struct Erased<M, B>(pub M, pub B);

impl<M: Evaluate, B: Bind<M>> DynMethod for Erased<M, B> {
    fn bind(&self, data: &ClientData) -> Result<Opaque> {
        Ok(Box::new(self.1.bind(&self.0, data)?))
    }

    fn enrols_only(&self) -> bool {
        M::ENROLS_ONLY
    }

    fn enroll(&self, data: &Opaque, key: Key) -> Result<(Opaque, Vec<u8>)> {
        let (client, summary) = self.0.enroll(view(data)?, key)?;
        Ok((Box::new(client), summary.to_bytes()))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Cow<'_, [u8]>)>,
        key: Key,
    ) -> Result<Opaque> {
        let server = decoded(roster, |typed| self.0.start(typed, key))?;
        Ok(Box::new(server))
    }

    fn admit(&self, server: &mut Opaque, id: ClientId, summary: &[u8]) -> Result<Opaque> {
        let summary = M::Summary::from_bytes(summary)?;
        Ok(Box::new(self.0.admit(view_mut(server)?, id, &summary)?))
    }

    fn rows(&self, peer: &Opaque) -> Result<Option<u64>> {
        Ok(self.0.rows(view::<M::Peer>(peer)?))
    }

    fn allowances(&self) -> Vec<Allowance> {
        self.0.allowances()
    }

    fn allowance(&self, client: &Opaque, down: &Message) -> Result<usize> {
        Ok(self.0.allowance(view(client)?, &down.read()?))
    }

    fn next(&self, server: &Opaque) -> Result<Next> {
        Ok(self.0.next(view(server)?))
    }

    fn broadcast(&self, server: &Opaque) -> Result<Opaque> {
        Ok(Box::new(self.0.broadcast(view(server)?)?))
    }

    fn downlink(
        &self,
        server: &Opaque,
        broadcast: &Opaque,
        peer: &Opaque,
        key: Key,
    ) -> Result<(Opaque, Message)> {
        let (peer, down) = self.0.downlink(view(server)?, view(broadcast)?, view(peer)?, key)?;
        Ok((Box::new(peer), Message::of(&down)))
    }

    fn local_step(
        &self,
        client: &Opaque,
        down: &Message,
        data: &Opaque,
        key: Key,
    ) -> Result<(Opaque, Vec<u8>)> {
        let (client, up) = self.0.local_step(view(client)?, &down.read()?, view(data)?, key)?;
        Ok((Box::new(client), up.to_bytes()))
    }

    fn local_steps(&self, tasks: &mut [DynTask<'_>]) {
        let mut typed = Vec::with_capacity(tasks.len());
        let mut places = Vec::with_capacity(tasks.len());
        for (at, task) in tasks.iter_mut().enumerate() {
            let read = || -> Result<Task<'_, M>> {
                let (client, data) = (view(task.client)?, view(task.data)?);
                Ok(Task { client, down: task.down.read()?, data, key: task.key, done: None })
            };
            match read() {
                Ok(task) => {
                    typed.push(task);
                    places.push(at);
                }
                Err(error) => task.done = Some(Err(error)),
            }
        }
        self.0.local_steps(&mut typed);
        for (at, task) in places.into_iter().zip(typed) {
            let done = task.done.unwrap_or_else(|| Err(left_out()));
            let erase =
                |(client, up): (M::Client, M::Up)| (Box::new(client) as Opaque, up.to_bytes());
            tasks[at].done = Some(done.map(erase));
        }
    }

    fn batch(&self) -> usize {
        self.0.batch()
    }

    fn fold(&self, server: &Opaque) -> Result<Opaque> {
        Ok(Box::new(self.0.fold(view(server)?)))
    }

    fn absorb(&self, fold: &mut Opaque, from: DynSender<'_>, up: &[u8]) -> Result<()> {
        let up = M::Up::from_bytes(up)?;
        let from = Sender { id: from.id, inclusion: from.inclusion, peer: view(from.peer)? };
        self.0.absorb(view_mut(fold)?, from, up)
    }

    fn merge(&self, fold: &mut Opaque, other: Opaque) -> Result<()> {
        self.0.merge(view_mut(fold)?, own(other)?)
    }

    fn server_step(&self, server: Opaque, fold: Opaque, key: Key) -> Result<Opaque> {
        Ok(Box::new(self.0.server_step(own(server)?, own(fold)?, key)?))
    }

    fn without_clients(&self, server: Opaque) -> Result<Opaque> {
        Ok(Box::new(self.0.without_clients(own(server)?)?))
    }

    fn magnitude(&self, server: &Opaque) -> Result<f64> {
        Ok(self.0.magnitude(view(server)?))
    }

    fn artifact(&self, server: &Opaque) -> Result<Artifact> {
        self.0.artifact(view(server)?)
    }

    fn client_artifact(&self, client: &Opaque, data: &Opaque) -> Result<Option<Artifact>> {
        self.0.client_artifact(view(client)?, view(data)?)
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        self.0.disclosures()
    }

    fn ask(&self, server: &Opaque) -> Result<Message> {
        Ok(Message::to_many(&self.0.ask(view(server)?)?))
    }

    fn answer(&self, client: &Opaque, ask: &Message, data: &Opaque) -> Result<Vec<u8>> {
        let ask = ask.read_shared::<M::Ask>()?;
        Ok(self.0.answer(view(client)?, &ask, view(data)?)?.to_bytes())
    }

    fn check(&self, id: ClientId, peer: &Opaque, answer: &[u8]) -> Result<()> {
        self.0.check(id, view(peer)?, &M::Answer::from_bytes(answer)?)
    }

    fn own(&self, answer: &[u8]) -> Result<Vec<Metric>> {
        let answer = M::Answer::from_bytes(answer)?;
        let loss = self.0.loss(&answer).map(|loss| Metric::number(LOSS, loss));
        Ok(loss.into_iter().chain(self.0.own(&answer)).collect())
    }

    fn measures(&self) -> Vec<Measure> {
        self.0.measures()
    }

    fn conclude(
        &self,
        server: &Opaque,
        answers: &mut dyn Iterator<Item = (ClientId, Cow<'_, [u8]>)>,
    ) -> Result<Vec<Metric>> {
        let server = view(server)?;
        let metrics = decoded(answers, |typed| self.0.conclude(server, typed))?;
        declared(&self.0.measures(), metrics)
    }

    fn conclude_unseen(
        &self,
        server: &Opaque,
        answers: &mut dyn Iterator<Item = (ClientId, Cow<'_, [u8]>)>,
    ) -> Result<Vec<Metric>> {
        let server = view(server)?;
        let metrics = decoded(answers, |typed| self.0.conclude_unseen(server, typed))?;
        declared(&self.0.measures(), metrics)
    }

    fn save(&self, part: Part, state: &Opaque) -> Result<Vec<u8>> {
        Ok(match part {
            Part::Server => view::<M::Server>(state)?.to_bytes(),
            Part::Peer => view::<M::Peer>(state)?.to_bytes(),
            Part::Client => view::<M::Client>(state)?.to_bytes(),
            Part::Fold => view::<M::Fold>(state)?.to_bytes(),
        })
    }

    fn load(&self, part: Part, bytes: &[u8]) -> Result<Opaque> {
        Ok(match part {
            Part::Server => Box::new(M::Server::from_bytes(bytes)?),
            Part::Peer => Box::new(M::Peer::from_bytes(bytes)?),
            Part::Client => Box::new(M::Client::from_bytes(bytes)?),
            Part::Fold => Box::new(M::Fold::from_bytes(bytes)?),
        })
    }
}

/// Refuses a figure that cannot be shown.
pub(crate) fn declared(measures: &[Measure], metrics: Vec<Metric>) -> Result<Vec<Metric>> {
    match metrics.iter().find(|metric| measures.iter().all(|m| m.key != metric.name)) {
        Some(metric) => {
            Err(Error::internal(format!("`{}` is reported and not declared", metric.name)))
        }
        None => Ok(metrics),
    }
}

pub(crate) fn view<T: 'static>(state: &Opaque) -> Result<&T> {
    state.downcast_ref().ok_or_else(foreign)
}

fn view_mut<T: 'static>(state: &mut Opaque) -> Result<&mut T> {
    state.downcast_mut().ok_or_else(foreign)
}

pub(crate) fn own<T: 'static>(state: Opaque) -> Result<T> {
    state.downcast().map(|boxed| *boxed).map_err(|_| foreign())
}

fn left_out() -> Error {
    Error::internal("a client's local step was left out")
}

fn foreign() -> Error {
    Error::internal("a state was handed to a method that did not make it")
}

/// Runs `use_them` over decoded messages; the first that cannot be decoded is the error.
fn decoded<T: Wire, B: AsRef<[u8]>, R>(
    messages: &mut dyn Iterator<Item = (ClientId, B)>,
    use_them: impl FnOnce(&mut dyn Iterator<Item = (ClientId, T)>) -> Result<R>,
) -> Result<R> {
    let mut bad = None;
    let mut typed = messages.map_while(|(id, bytes)| match T::from_bytes(bytes.as_ref()) {
        Ok(message) => Some((id, message)),
        Err(error) => {
            bad = Some(Error::peer(format!("client {id}: {error}")));
            None
        }
    });
    let result = use_them(&mut typed);
    match bad {
        Some(error) => Err(error),
        None => result,
    }
}
