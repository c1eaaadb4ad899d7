//! The byte-erased twin of [`Method`](crate::method::Method): the engine's only view.
//!
//! Messages are bytes; states are decoded values behind a pointer, with `save` and `load`. Nothing
//! above the methods crate is generic over a method.

use crate::declare::Measure;
use crate::method::{Artifact, Bind, Disclosure, Evaluate, From, Metric, Plan};
use crate::{ClientData, ClientId, Error, Key, Result, Wire};
use std::any::Any;

/// A decoded state, or a client's bound data, whose type only its method knows.
pub type Opaque = Box<dyn Any + Send + Sync>;

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
pub struct Sender<'a> {
    /// The client.
    pub id: ClientId,
    /// The planned probability that it was asked.
    pub inclusion: f64,
    /// The staged record of it.
    pub peer: &'a Opaque,
}

/// [`Method`] and [`Evaluate`] without types.
///
/// [`Method`]: crate::method::Method
#[allow(missing_docs)] // each step is documented where it has its types: on `Method` and `Evaluate`
pub trait DynMethod: Send + Sync {
    fn bind(&self, data: &ClientData) -> Result<Opaque>;
    fn enroll(&self, data: &Opaque, key: Key) -> Result<(Opaque, Vec<u8>)>;
    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, &[u8])>,
        key: Key,
    ) -> Result<Opaque>;
    fn admit(&self, server: Opaque, id: ClientId, summary: &[u8]) -> Result<(Opaque, Opaque)>;
    fn plan(&self, server: &Opaque) -> Result<Plan>;
    fn downlink(&self, server: &Opaque, peer: &Opaque, key: Key) -> Result<(Opaque, Vec<u8>)>;
    fn local_step(
        &self,
        client: &Opaque,
        down: &[u8],
        data: &Opaque,
        key: Key,
    ) -> Result<(Opaque, Vec<u8>)>;
    fn fold(&self, server: &Opaque) -> Result<Opaque>;
    fn absorb(&self, fold: &mut Opaque, from: Sender<'_>, up: &[u8]) -> Result<()>;
    fn merge(&self, fold: &mut Opaque, other: Opaque) -> Result<()>;
    fn server_step(&self, server: Opaque, fold: Opaque, key: Key) -> Result<Opaque>;
    fn magnitude(&self, server: &Opaque) -> Result<f64>;
    fn artifact(&self, server: &Opaque) -> Result<Artifact>;
    fn disclosures(&self) -> Vec<Disclosure>;
    fn ask(&self, server: &Opaque) -> Result<Vec<u8>>;
    fn answer(&self, client: &Opaque, ask: &[u8], data: &Opaque) -> Result<Vec<u8>>;
    fn check(&self, id: ClientId, peer: &Opaque, answer: &[u8]) -> Result<()>;
    fn loss(&self, answer: &[u8]) -> Result<Option<f64>>;
    fn measures(&self) -> Vec<Measure>;
    fn conclude(
        &self,
        server: &Opaque,
        answers: &mut dyn Iterator<Item = (ClientId, &[u8])>,
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

    fn enroll(&self, data: &Opaque, key: Key) -> Result<(Opaque, Vec<u8>)> {
        let (client, summary) = self.0.enroll(view(data)?, key)?;
        Ok((Box::new(client), summary.to_bytes()))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, &[u8])>,
        key: Key,
    ) -> Result<Opaque> {
        let server = decoded(roster, |typed| self.0.start(typed, key))?;
        Ok(Box::new(server))
    }

    fn admit(&self, server: Opaque, id: ClientId, summary: &[u8]) -> Result<(Opaque, Opaque)> {
        let (server, peer) = self.0.admit(own(server)?, id, &M::Summary::from_bytes(summary)?)?;
        Ok((Box::new(server), Box::new(peer)))
    }

    fn plan(&self, server: &Opaque) -> Result<Plan> {
        Ok(self.0.plan(view(server)?))
    }

    fn downlink(&self, server: &Opaque, peer: &Opaque, key: Key) -> Result<(Opaque, Vec<u8>)> {
        let (peer, down) = self.0.downlink(view(server)?, view(peer)?, key)?;
        Ok((Box::new(peer), down.to_bytes()))
    }

    fn local_step(
        &self,
        client: &Opaque,
        down: &[u8],
        data: &Opaque,
        key: Key,
    ) -> Result<(Opaque, Vec<u8>)> {
        let down = M::Down::from_bytes(down)?;
        let (client, up) = self.0.local_step(view(client)?, &down, view(data)?, key)?;
        Ok((Box::new(client), up.to_bytes()))
    }

    fn fold(&self, server: &Opaque) -> Result<Opaque> {
        Ok(Box::new(self.0.fold(view(server)?)))
    }

    fn absorb(&self, fold: &mut Opaque, from: Sender<'_>, up: &[u8]) -> Result<()> {
        let up = M::Up::from_bytes(up)?;
        let from = From { id: from.id, inclusion: from.inclusion, peer: view(from.peer)? };
        self.0.absorb(fold.downcast_mut().ok_or_else(foreign)?, from, up)
    }

    fn merge(&self, fold: &mut Opaque, other: Opaque) -> Result<()> {
        self.0.merge(fold.downcast_mut().ok_or_else(foreign)?, own(other)?)
    }

    fn server_step(&self, server: Opaque, fold: Opaque, key: Key) -> Result<Opaque> {
        Ok(Box::new(self.0.server_step(own(server)?, own(fold)?, key)?))
    }

    fn magnitude(&self, server: &Opaque) -> Result<f64> {
        Ok(self.0.magnitude(view(server)?))
    }

    fn artifact(&self, server: &Opaque) -> Result<Artifact> {
        self.0.artifact(view(server)?)
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        self.0.disclosures()
    }

    fn ask(&self, server: &Opaque) -> Result<Vec<u8>> {
        Ok(self.0.ask(view(server)?)?.to_bytes())
    }

    fn answer(&self, client: &Opaque, ask: &[u8], data: &Opaque) -> Result<Vec<u8>> {
        let ask = M::Ask::from_bytes(ask)?;
        Ok(self.0.answer(view(client)?, &ask, view(data)?)?.to_bytes())
    }

    fn check(&self, id: ClientId, peer: &Opaque, answer: &[u8]) -> Result<()> {
        self.0.check(id, view(peer)?, &M::Answer::from_bytes(answer)?)
    }

    fn loss(&self, answer: &[u8]) -> Result<Option<f64>> {
        Ok(self.0.loss(&M::Answer::from_bytes(answer)?))
    }

    fn measures(&self) -> Vec<Measure> {
        self.0.measures()
    }

    fn conclude(
        &self,
        server: &Opaque,
        answers: &mut dyn Iterator<Item = (ClientId, &[u8])>,
    ) -> Result<Vec<Metric>> {
        let server = view(server)?;
        let metrics = decoded(answers, |typed| self.0.conclude(server, typed))?;
        let declared = self.0.measures();
        match metrics.iter().find(|metric| declared.iter().all(|m| m.key != metric.name)) {
            Some(metric) => {
                Err(Error::internal(format!("`{}` is reported and not declared", metric.name)))
            }
            None => Ok(metrics),
        }
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

fn view<T: 'static>(state: &Opaque) -> Result<&T> {
    state.downcast_ref().ok_or_else(foreign)
}

fn own<T: 'static>(state: Opaque) -> Result<T> {
    state.downcast().map(|boxed| *boxed).map_err(|_| foreign())
}

fn foreign() -> Error {
    Error::internal("a state was handed to a method that did not make it")
}

/// Runs `use_them` over decoded messages; the first that cannot be decoded is the error.
fn decoded<T: Wire, R>(
    messages: &mut dyn Iterator<Item = (ClientId, &[u8])>,
    use_them: impl FnOnce(&mut dyn Iterator<Item = (ClientId, T)>) -> Result<R>,
) -> Result<R> {
    let mut bad = None;
    let mut typed = messages.map_while(|(id, bytes)| match T::from_bytes(bytes) {
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
