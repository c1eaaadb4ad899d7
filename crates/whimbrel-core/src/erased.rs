//! [`Method`](crate::method::Method) without types: the engine's only view.
//!
//! Messages are bytes. States are decoded values behind a pointer that save themselves and are
//! loaded by their method. Nothing above the methods crate is generic over a method.

use crate::declare::Measure;
use crate::method::{
    Artifact, Bind, ClientGroup, Declaration, Done, Evaluate, Metric, Place, Sender, Status, Task,
};
use crate::{ClientData, ClientId, Error, InTurn, Key, Message, Result, Spread, State, Wire};
use std::any::Any;
use std::borrow::Cow;

/// A decoded state whose type only its method knows.
pub type Opaque = Box<dyn ErasedState>;

/// Bound rows of a client, or the shared part of an exchange's messages: never stored.
pub type Bound = Box<dyn Any + Send + Sync>;

/// A [`State`] without its type.
pub trait ErasedState: Any + Send + Sync {
    /// The state as bytes, which [`DynMethod::load`] reads back.
    fn save(&self) -> Vec<u8>;
    /// A copy of the state.
    fn copy(&self) -> Opaque;
}

impl<T: State> ErasedState for T {
    fn save(&self) -> Vec<u8> {
        self.to_bytes()
    }

    fn copy(&self) -> Opaque {
        Box::new(self.clone())
    }
}

impl dyn ErasedState {
    /// The state, if it has this type.
    pub fn downcast_ref<T: 'static>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// The kinds of state of a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateKind {
    /// The global state.
    Server,
    /// The server's record of one client.
    Peer,
    /// A client's state.
    Client,
    /// The accumulated uploads of an exchange.
    Fold,
}

/// The sender of an upload.
#[derive(Clone, Copy)]
pub struct DynSender<'a> {
    pub id: ClientId,
    /// The planned probability of its participation.
    pub inclusion: f64,
    /// The staged record of it.
    pub peer: &'a Opaque,
}

/// One client's work of an exchange.
pub struct DynTask<'a> {
    pub client: &'a Opaque,
    pub down: &'a Message,
    /// Its rows.
    pub data: &'a Bound,
    pub key: Key,
}

/// One client's finished work.
pub struct DynDone {
    /// Its state once the upload is accepted.
    pub client: Opaque,
    pub up: Vec<u8>,
    /// [`Done::withheld`](crate::method::Done::withheld).
    pub withheld: u32,
}

/// Encoded messages of clients, in id order.
pub type Messages<'a, 'b> = &'a mut dyn Iterator<Item = (ClientId, Cow<'b, [u8]>)>;

/// [`Method`] and [`Evaluate`] without types; their documentation applies.
///
/// [`Method`]: crate::method::Method
#[allow(missing_docs)] // each step is documented on `Method` and `Evaluate`
pub trait DynMethod: Send + Sync {
    fn declare(&self) -> Declaration;
    fn bind(&self, data: &ClientData) -> Result<Bound>;
    fn enroll(&self, data: &Bound, key: Key) -> Result<(Opaque, Vec<u8>)>;
    fn start(&self, roster: Messages<'_, '_>, key: Key) -> Result<Opaque>;
    fn admit(&self, server: &mut Opaque, id: ClientId, summary: &[u8]) -> Result<Opaque>;
    fn rows(&self, peer: &Opaque) -> Result<Option<u64>>;
    fn status(&self, server: &Opaque) -> Result<Status>;
    fn open(&self, server: &Opaque, cohort: &[ClientId]) -> Result<(Bound, Opaque)>;
    fn downlink(
        &self,
        server: &Opaque,
        broadcast: &Bound,
        peer: &Opaque,
        key: Key,
    ) -> Result<(Opaque, Message)>;
    fn place(&self, client: &Opaque, down: &Message) -> Result<Place>;
    fn local_steps(&self, tasks: &[DynTask<'_>], threads: &dyn Spread) -> Vec<Result<DynDone>>;
    fn absorb(&self, fold: &mut Opaque, from: DynSender<'_>, up: &[u8]) -> Result<()>;
    fn merge(&self, fold: &mut Opaque, other: Opaque) -> Result<()>;
    fn server_step(&self, server: Opaque, fold: Opaque, key: Key) -> Result<Opaque>;
    fn without_clients(&self, server: Opaque) -> Result<Opaque>;
    fn artifact(&self, server: &Opaque) -> Result<Artifact>;
    fn client_artifact(&self, client: &Opaque, data: &Bound) -> Result<Option<Artifact>>;
    fn begin(&self, server: &Opaque) -> Result<Option<Opaque>>;
    fn ask(&self, server: &Opaque) -> Result<Message>;
    fn answer(&self, client: &Opaque, ask: &Message, data: &Bound) -> Result<Vec<u8>>;
    fn own(&self, id: ClientId, peer: Option<&Opaque>, answer: &[u8]) -> Result<Vec<Metric>>;
    fn conclude(
        &self,
        server: &Opaque,
        answers: Messages<'_, '_>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>>;
    fn load(&self, kind: StateKind, bytes: &[u8]) -> Result<Opaque>;
}

impl dyn DynMethod + '_ {
    /// One client's work: [`DynMethod::local_steps`] of a single task.
    pub fn local_step(
        &self,
        client: &Opaque,
        down: &Message,
        data: &Bound,
        key: Key,
    ) -> Result<DynDone> {
        let done = self.local_steps(&[DynTask { client, down, data, key }], &InTurn).pop();
        done.unwrap_or_else(|| Err(left_out()))
    }
}

/// A method with the binding of its rows, without types.
pub struct Erased<M, B>(pub M, pub B);

impl<M: Evaluate, B: Bind<M>> DynMethod for Erased<M, B> {
    fn declare(&self) -> Declaration {
        self.0.declare()
    }

    fn bind(&self, data: &ClientData) -> Result<Bound> {
        Ok(Box::new(self.1.bind(&self.0, data)?))
    }

    fn enroll(&self, data: &Bound, key: Key) -> Result<(Opaque, Vec<u8>)> {
        let (client, summary) = self.0.enroll(bound(data)?, key)?;
        Ok((Box::new(client), summary.to_bytes()))
    }

    fn start(&self, roster: Messages<'_, '_>, key: Key) -> Result<Opaque> {
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

    fn status(&self, server: &Opaque) -> Result<Status> {
        Ok(self.0.status(view(server)?))
    }

    fn open(&self, server: &Opaque, cohort: &[ClientId]) -> Result<(Bound, Opaque)> {
        let (broadcast, fold) = self.0.open(view(server)?, cohort)?;
        Ok((Box::new(broadcast), Box::new(fold)))
    }

    fn downlink(
        &self,
        server: &Opaque,
        broadcast: &Bound,
        peer: &Opaque,
        key: Key,
    ) -> Result<(Opaque, Message)> {
        let (peer, down) = self.0.downlink(view(server)?, bound(broadcast)?, view(peer)?, key)?;
        Ok((Box::new(peer), Message::of(&down)))
    }

    fn place(&self, client: &Opaque, down: &Message) -> Result<Place> {
        self.0.place(view(client)?, &down.read()?)
    }

    fn local_steps(&self, tasks: &[DynTask<'_>], threads: &dyn Spread) -> Vec<Result<DynDone>> {
        let typed = tasks.iter().map(|task| {
            let (client, data) = (view(task.client)?, bound(task.data)?);
            Ok(Task { client, down: task.down.read()?, data, key: task.key })
        });
        let done = for_readable(typed, |tasks| self.0.local_steps(&tasks, threads));
        let erase = |Done { client, up, withheld }: Done<M>| DynDone {
            client: Box::new(client),
            up: up.to_bytes(),
            withheld,
        };
        threads.map(done, |done| done.map(erase))
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

    fn artifact(&self, server: &Opaque) -> Result<Artifact> {
        self.0.artifact(view(server)?)
    }

    fn client_artifact(&self, client: &Opaque, data: &Bound) -> Result<Option<Artifact>> {
        self.0.client_artifact(view(client)?, bound(data)?)
    }

    fn begin(&self, server: &Opaque) -> Result<Option<Opaque>> {
        let begun = self.0.begin(view(server)?)?;
        Ok(begun.map(|server| Box::new(server) as Opaque))
    }

    fn ask(&self, server: &Opaque) -> Result<Message> {
        Ok(Message::to_many(&self.0.ask(view(server)?)?))
    }

    fn answer(&self, client: &Opaque, ask: &Message, data: &Bound) -> Result<Vec<u8>> {
        let ask = ask.read_shared::<M::Ask>()?;
        Ok(self.0.answer(view(client)?, &ask, bound(data)?)?.to_bytes())
    }

    fn own(&self, id: ClientId, peer: Option<&Opaque>, answer: &[u8]) -> Result<Vec<Metric>> {
        self.0.own(id, peer.map(view).transpose()?, &M::Answer::from_bytes(answer)?)
    }

    fn conclude(
        &self,
        server: &Opaque,
        answers: Messages<'_, '_>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        let server = view(server)?;
        let metrics = decoded(answers, |typed| self.0.conclude(server, typed, group))?;
        declared(&self.0.declare().measures, metrics)
    }

    fn load(&self, kind: StateKind, bytes: &[u8]) -> Result<Opaque> {
        Ok(match kind {
            StateKind::Server => Box::new(M::Server::from_bytes(bytes)?),
            StateKind::Peer => Box::new(M::Peer::from_bytes(bytes)?),
            StateKind::Client => Box::new(M::Client::from_bytes(bytes)?),
            StateKind::Fold => Box::new(M::Fold::from_bytes(bytes)?),
        })
    }
}

/// Runs `work` over the items that could be read, all at once; the others keep their errors. The
/// results stand in the order of the items.
pub fn for_readable<T, R>(
    items: impl Iterator<Item = Result<T>>,
    work: impl FnOnce(Vec<T>) -> Vec<Result<R>>,
) -> Vec<Result<R>> {
    let items: Vec<Result<T>> = items.collect();
    if items.iter().all(Result::is_ok) {
        return work(items.into_iter().filter_map(Result::ok).collect());
    }
    let (mut readable, mut errors) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            Ok(item) => {
                readable.push(item);
                errors.push(None);
            }
            Err(error) => errors.push(Some(error)),
        }
    }
    let mut done = work(readable).into_iter();
    let next = |error: Option<Error>| match error {
        Some(error) => Err(error),
        None => done.next().unwrap_or_else(|| Err(left_out())),
    };
    errors.into_iter().map(next).collect()
}

/// Refuses a figure that is not declared.
pub fn declared(measures: &[Measure], metrics: Vec<Metric>) -> Result<Vec<Metric>> {
    match metrics.iter().find(|metric| measures.iter().all(|m| m.key != metric.name)) {
        Some(metric) => {
            Err(Error::internal(format!("`{}` is reported but not declared", metric.name)))
        }
        None => Ok(metrics),
    }
}

pub fn view<T: 'static>(state: &Opaque) -> Result<&T> {
    state.downcast_ref().ok_or_else(foreign)
}

fn view_mut<T: 'static>(state: &mut Opaque) -> Result<&mut T> {
    let state: &mut dyn Any = &mut **state;
    state.downcast_mut().ok_or_else(foreign)
}

pub fn own<T: 'static>(state: Opaque) -> Result<T> {
    let state: Box<dyn Any> = state;
    state.downcast().map(|boxed| *boxed).map_err(|_| foreign())
}

pub fn bound<T: 'static>(data: &Bound) -> Result<&T> {
    data.downcast_ref().ok_or_else(foreign)
}

fn left_out() -> Error {
    Error::internal("a client's local step was left out")
}

fn foreign() -> Error {
    Error::internal("a state was handed to a method that did not make it")
}

/// Runs `use_them` over decoded messages; fails with the first message that cannot be decoded.
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
