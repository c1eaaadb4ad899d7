//! Methods without a server: every client keeps a state, tells its neighbours, and mixes what they
//! tell it.
//!
//! The engine owns the graph and the mixing weights. Before the first round every client tells all
//! others a summary; a round is a local step, a message to every neighbour, and a mix over what came,
//! in the order of ids. [`DynDecentralised`] is the engine's
//! view, as [`DynMethod`](crate::DynMethod) is of methods with a server.

use crate::declare::Measure;
use crate::erased::{Opaque, declared, own, view};
use crate::method::{Artifact, Disclosure, Metric};
use crate::{ClientData, ClientId, Key, Message, Result, State, Wire};
use std::sync::Arc;

/// A decentralised algorithm. Methods in call order.
pub trait Decentralised: Send + Sync + 'static {
    /// What a client holds.
    type Data: Send + Sync + 'static;
    /// What a client tells every other client once, before the first round.
    type Summary: Wire;
    /// What all clients derive from the summaries: the same for everyone.
    type Common: Send + Sync + 'static;
    /// What a client remembers.
    type Node: State;
    /// What it tells every neighbour.
    type Message: Wire + Send + Sync + 'static;
    /// What it says at an evaluation.
    type Answer: Wire;

    /// Checks and lays out one client's rows.
    fn bind(&self, data: &ClientData) -> Result<Self::Data>;
    /// What a client tells every other one.
    fn enroll(&self, data: &Self::Data, key: Key) -> Result<Self::Summary>;
    /// What follows from everyone's summaries, in id order; `key` is the same for all clients.
    fn agree(
        &self,
        roster: &mut dyn Iterator<Item = Result<(ClientId, Self::Summary)>>,
        key: Key,
    ) -> Result<Self::Common>;
    /// A client's first state; `key` is the one of its enrolment.
    fn start(&self, common: &Self::Common, data: &Self::Data, key: Key) -> Result<Self::Node>;
    /// How many rounds there are.
    fn rounds(&self) -> u32;
    /// The client's own work of a round.
    fn local_step(&self, node: Self::Node, data: &Self::Data, key: Key) -> Result<Self::Node>;
    /// What its neighbours are told.
    fn emit(&self, node: &Self::Node) -> Result<Self::Message>;
    /// Its state after what the neighbours told, each with its weight, in id order; `own` is the
    /// weight of what it told itself. The weights sum to one.
    fn mix(
        &self,
        node: Self::Node,
        own: f64,
        received: &mut dyn Iterator<Item = Result<(f64, Arc<Self::Message>)>>,
    ) -> Result<Self::Node>;
    /// A norm of a client's state: the engine watches it for divergence.
    fn magnitude(&self, node: &Self::Node) -> f64;
    /// The mean of all states, in id order: what the run delivers, and what a client that took no
    /// part is given.
    fn mean(&self, nodes: &mut dyn Iterator<Item = Result<&Self::Node>>) -> Result<Self::Node>;
    /// The mean as the run's result.
    fn artifact(&self, mean: &Self::Node) -> Result<Artifact>;
    /// What one client has of its own at the end.
    fn client_artifact(&self, _: &Self::Node, _: &Self::Data) -> Result<Option<Artifact>> {
        Ok(None)
    }
    /// Everything that leaves a client, and what could be read from it.
    fn disclosures(&self) -> Vec<Disclosure>;
    /// The figures that [`Decentralised::conclude`] and [`Decentralised::conclude_unseen`] give.
    fn measures(&self) -> Vec<Measure>;
    /// What a client says at an evaluation, given the mean of all states.
    fn answer(
        &self,
        node: &Self::Node,
        mean: &Self::Node,
        data: &Self::Data,
    ) -> Result<Self::Answer>;
    /// A client's own figures, from its answer.
    fn own(&self, _: &Self::Answer) -> Vec<Metric> {
        Vec::new()
    }
    /// The metrics, from the answers in id order.
    fn conclude(
        &self,
        graph: &Graph,
        answers: &mut dyn Iterator<Item = Result<(ClientId, Self::Answer)>>,
    ) -> Result<Vec<Metric>>;
    /// The metrics of clients that took no part: each answered with the mean as its state.
    fn conclude_unseen(
        &self,
        _: &mut dyn Iterator<Item = Result<(ClientId, Self::Answer)>>,
    ) -> Result<Vec<Metric>> {
        Ok(Vec::new())
    }
}

/// The graph that the neighbours form.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Graph {
    /// Clients.
    pub clients: u32,
    /// Pairs of neighbours; where graphs are redrawn, of the first round.
    pub edges: u64,
    /// One less the second largest absolute eigenvalue of the mixing matrix: what a round takes off
    /// the disagreement at least. None where the graph is too large to compute it.
    pub spectral_gap: Option<f64>,
}

/// [`Decentralised`] without types.
#[allow(missing_docs)] // each step is documented where it has its types
pub trait DynDecentralised: Send + Sync {
    fn bind(&self, data: &ClientData) -> Result<Opaque>;
    fn enroll(&self, data: &Opaque, key: Key) -> Result<Vec<u8>>;
    fn agree(&self, roster: &[(ClientId, Vec<u8>)], key: Key) -> Result<Opaque>;
    fn start(&self, common: &Opaque, data: &Opaque, key: Key) -> Result<Opaque>;
    fn rounds(&self) -> u32;
    fn local_step(&self, node: Opaque, data: &Opaque, key: Key) -> Result<Opaque>;
    fn emit(&self, node: &Opaque) -> Result<Message>;
    fn mix(&self, node: Opaque, own: f64, received: &[(f64, &Message)]) -> Result<Opaque>;
    fn magnitude(&self, node: &Opaque) -> Result<f64>;
    fn mean(&self, nodes: &[Opaque]) -> Result<Opaque>;
    fn artifact(&self, mean: &Opaque) -> Result<Artifact>;
    fn client_artifact(&self, node: &Opaque, data: &Opaque) -> Result<Option<Artifact>>;
    fn disclosures(&self) -> Vec<Disclosure>;
    fn measures(&self) -> Vec<Measure>;
    fn answer(&self, node: &Opaque, mean: &Opaque, data: &Opaque) -> Result<Vec<u8>>;
    fn own(&self, answer: &[u8]) -> Result<Vec<Metric>>;
    fn conclude(&self, graph: &Graph, answers: &[(ClientId, Vec<u8>)]) -> Result<Vec<Metric>>;
    fn conclude_unseen(&self, answers: &[(ClientId, Vec<u8>)]) -> Result<Vec<Metric>>;
    fn save(&self, node: &Opaque) -> Result<Vec<u8>>;
    fn load(&self, bytes: &[u8]) -> Result<Opaque>;
}

impl<D: Decentralised> DynDecentralised for D {
    fn bind(&self, data: &ClientData) -> Result<Opaque> {
        Ok(Box::new(Decentralised::bind(self, data)?))
    }

    fn enroll(&self, data: &Opaque, key: Key) -> Result<Vec<u8>> {
        Ok(Decentralised::enroll(self, view(data)?, key)?.to_bytes())
    }

    fn agree(&self, roster: &[(ClientId, Vec<u8>)], key: Key) -> Result<Opaque> {
        Ok(Box::new(Decentralised::agree(self, &mut roster.iter().map(decoded), key)?))
    }

    fn start(&self, common: &Opaque, data: &Opaque, key: Key) -> Result<Opaque> {
        let common = view::<D::Common>(common)?;
        Ok(Box::new(Decentralised::start(self, common, view(data)?, key)?))
    }

    fn rounds(&self) -> u32 {
        Decentralised::rounds(self)
    }

    fn local_step(&self, node: Opaque, data: &Opaque, key: Key) -> Result<Opaque> {
        Ok(Box::new(Decentralised::local_step(self, own(node)?, view(data)?, key)?))
    }

    fn emit(&self, node: &Opaque) -> Result<Message> {
        Ok(Message::to_many(&Decentralised::emit(self, view(node)?)?))
    }

    fn mix(&self, node: Opaque, own_weight: f64, received: &[(f64, &Message)]) -> Result<Opaque> {
        let mut each =
            received.iter().map(|(weight, message)| Ok((*weight, message.read_shared()?)));
        Ok(Box::new(Decentralised::mix(self, own(node)?, own_weight, &mut each)?))
    }

    fn magnitude(&self, node: &Opaque) -> Result<f64> {
        Ok(Decentralised::magnitude(self, view(node)?))
    }

    fn mean(&self, nodes: &[Opaque]) -> Result<Opaque> {
        Ok(Box::new(Decentralised::mean(self, &mut nodes.iter().map(view))?))
    }

    fn artifact(&self, mean: &Opaque) -> Result<Artifact> {
        Decentralised::artifact(self, view(mean)?)
    }

    fn client_artifact(&self, node: &Opaque, data: &Opaque) -> Result<Option<Artifact>> {
        Decentralised::client_artifact(self, view(node)?, view(data)?)
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        Decentralised::disclosures(self)
    }

    fn measures(&self) -> Vec<Measure> {
        Decentralised::measures(self)
    }

    fn answer(&self, node: &Opaque, mean: &Opaque, data: &Opaque) -> Result<Vec<u8>> {
        Ok(Decentralised::answer(self, view(node)?, view(mean)?, view(data)?)?.to_bytes())
    }

    fn own(&self, answer: &[u8]) -> Result<Vec<Metric>> {
        Ok(Decentralised::own(self, &D::Answer::from_bytes(answer)?))
    }

    fn conclude(&self, graph: &Graph, answers: &[(ClientId, Vec<u8>)]) -> Result<Vec<Metric>> {
        let metrics = Decentralised::conclude(self, graph, &mut answers.iter().map(decoded))?;
        declared(&Decentralised::measures(self), metrics)
    }

    fn conclude_unseen(&self, answers: &[(ClientId, Vec<u8>)]) -> Result<Vec<Metric>> {
        let metrics = Decentralised::conclude_unseen(self, &mut answers.iter().map(decoded))?;
        declared(&Decentralised::measures(self), metrics)
    }

    fn save(&self, node: &Opaque) -> Result<Vec<u8>> {
        Ok(view::<D::Node>(node)?.to_bytes())
    }

    fn load(&self, bytes: &[u8]) -> Result<Opaque> {
        Ok(Box::new(D::Node::from_bytes(bytes)?))
    }
}

fn decoded<T: Wire>((id, bytes): &(ClientId, Vec<u8>)) -> Result<(ClientId, T)> {
    Ok((*id, T::from_bytes(bytes)?))
}
