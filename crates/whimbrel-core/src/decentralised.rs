//! Methods without a server: every client keeps a state, sends it to its neighbours, and mixes the
//! messages that it receives.
//!
//! The engine owns the graph and the mixing weights. Before the first round every client sends a
//! summary to all others. A round is a local step, a message to every neighbour, and a mix of the
//! received messages in id order. [`DynDecentralised`] is the engine's view, as
//! [`DynMethod`](crate::DynMethod) is of methods with a server.

use crate::erased::{Bound, Opaque, bound, declared, own, view};
use crate::method::{Artifact, ClientGroup, Declaration, Metric};
use crate::{ClientData, ClientId, Key, Message, Result, State, Wire};
use std::sync::Arc;

/// A decentralised algorithm. Methods stand in call order.
pub trait Decentralised: Send + Sync + 'static {
    /// A client's rows.
    type Data: Send + Sync + 'static;
    /// The message from every client to all others before the first round.
    type Summary: Wire;
    /// The facts that all clients derive from the summaries.
    type Common: Send + Sync + 'static;
    /// A client's state.
    type Node: State;
    /// The message to every neighbour.
    type Message: Wire + Send + Sync + 'static;
    /// A client's answer to an evaluation.
    type Answer: Wire;

    /// Disclosures and figures; the other fields are unused.
    fn declare(&self) -> Declaration;
    /// Checks and lays out one client's rows.
    fn bind(&self, data: &ClientData) -> Result<Self::Data>;
    /// A client's summary.
    fn enroll(&self, data: &Self::Data, key: Key) -> Result<Self::Summary>;
    /// The common facts, from all summaries in id order; `key` is the same for all clients.
    fn agree(
        &self,
        roster: &mut dyn Iterator<Item = Result<(ClientId, Self::Summary)>>,
        key: Key,
    ) -> Result<Self::Common>;
    /// A client's first state; `key` is that of its enrolment.
    fn start(&self, common: &Self::Common, data: &Self::Data, key: Key) -> Result<Self::Node>;
    /// The number of rounds.
    fn rounds(&self) -> u32;
    /// A client's local work of a round.
    fn local_step(&self, node: Self::Node, data: &Self::Data, key: Key) -> Result<Self::Node>;
    /// The message to all neighbours.
    fn emit(&self, node: &Self::Node) -> Result<Self::Message>;
    /// The state after mixing: the neighbours' messages with their weights, in id order. `own` is
    /// the weight of the client's message to itself. The weights sum to one.
    fn mix(
        &self,
        node: Self::Node,
        own: f64,
        received: &mut dyn Iterator<Item = Result<(f64, Arc<Self::Message>)>>,
    ) -> Result<Self::Node>;
    /// A norm of a client's state, watched for divergence.
    fn magnitude(&self, node: &Self::Node) -> f64;
    /// The mean of all states, in id order: the run's result, and the state that unseen clients are
    /// evaluated with.
    fn mean(&self, nodes: &mut dyn Iterator<Item = Result<&Self::Node>>) -> Result<Self::Node>;
    /// The mean as named tensors.
    fn artifact(&self, mean: &Self::Node) -> Result<Artifact>;
    /// A client's personal result.
    fn client_artifact(&self, _: &Self::Node, _: &Self::Data) -> Result<Option<Artifact>> {
        Ok(None)
    }
    /// A client's answer to an evaluation, given the mean of all states.
    fn answer(
        &self,
        node: &Self::Node,
        mean: &Self::Node,
        data: &Self::Data,
    ) -> Result<Self::Answer>;
    /// A client's figures, from its answer.
    fn own(&self, _: &Self::Answer) -> Vec<Metric> {
        Vec::new()
    }
    /// Figures over a group of clients, from their answers in id order.
    fn conclude(
        &self,
        graph: &Graph,
        answers: &mut dyn Iterator<Item = Result<(ClientId, Self::Answer)>>,
        group: ClientGroup,
    ) -> Result<Vec<Metric>>;
}

/// The communication graph.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Graph {
    pub clients: u32,
    /// The number of edges; that of the first round if graphs are redrawn.
    pub edges: u64,
    /// One minus the second largest absolute eigenvalue of the mixing matrix: the least relative
    /// decrease of the disagreement per round. `None` if the graph is too large to compute it.
    pub spectral_gap: Option<f64>,
}

/// [`Decentralised`] without types; its documentation applies.
#[allow(missing_docs)] // each step is documented on `Decentralised`
pub trait DynDecentralised: Send + Sync {
    fn declare(&self) -> Declaration;
    fn bind(&self, data: &ClientData) -> Result<Bound>;
    fn enroll(&self, data: &Bound, key: Key) -> Result<Vec<u8>>;
    fn agree(&self, roster: &[(ClientId, Vec<u8>)], key: Key) -> Result<Bound>;
    fn start(&self, common: &Bound, data: &Bound, key: Key) -> Result<Opaque>;
    fn rounds(&self) -> u32;
    fn local_step(&self, node: Opaque, data: &Bound, key: Key) -> Result<Opaque>;
    fn emit(&self, node: &Opaque) -> Result<Message>;
    fn mix(&self, node: Opaque, own: f64, received: &[(f64, &Message)]) -> Result<Opaque>;
    fn magnitude(&self, node: &Opaque) -> Result<f64>;
    fn mean(&self, nodes: &[Opaque]) -> Result<Opaque>;
    fn artifact(&self, mean: &Opaque) -> Result<Artifact>;
    fn client_artifact(&self, node: &Opaque, data: &Bound) -> Result<Option<Artifact>>;
    fn answer(&self, node: &Opaque, mean: &Opaque, data: &Bound) -> Result<Vec<u8>>;
    fn own(&self, answer: &[u8]) -> Result<Vec<Metric>>;
    fn conclude(
        &self,
        graph: &Graph,
        answers: &[(ClientId, Vec<u8>)],
        group: ClientGroup,
    ) -> Result<Vec<Metric>>;
    fn load(&self, bytes: &[u8]) -> Result<Opaque>;
}

impl<D: Decentralised> DynDecentralised for D {
    fn declare(&self) -> Declaration {
        Decentralised::declare(self)
    }

    fn bind(&self, data: &ClientData) -> Result<Bound> {
        Ok(Box::new(Decentralised::bind(self, data)?))
    }

    fn enroll(&self, data: &Bound, key: Key) -> Result<Vec<u8>> {
        Ok(Decentralised::enroll(self, bound(data)?, key)?.to_bytes())
    }

    fn agree(&self, roster: &[(ClientId, Vec<u8>)], key: Key) -> Result<Bound> {
        Ok(Box::new(Decentralised::agree(self, &mut roster.iter().map(decoded), key)?))
    }

    fn start(&self, common: &Bound, data: &Bound, key: Key) -> Result<Opaque> {
        let common = bound::<D::Common>(common)?;
        Ok(Box::new(Decentralised::start(self, common, bound(data)?, key)?))
    }

    fn rounds(&self) -> u32 {
        Decentralised::rounds(self)
    }

    fn local_step(&self, node: Opaque, data: &Bound, key: Key) -> Result<Opaque> {
        Ok(Box::new(Decentralised::local_step(self, own(node)?, bound(data)?, key)?))
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

    fn client_artifact(&self, node: &Opaque, data: &Bound) -> Result<Option<Artifact>> {
        Decentralised::client_artifact(self, view(node)?, bound(data)?)
    }

    fn answer(&self, node: &Opaque, mean: &Opaque, data: &Bound) -> Result<Vec<u8>> {
        Ok(Decentralised::answer(self, view(node)?, view(mean)?, bound(data)?)?.to_bytes())
    }

    fn own(&self, answer: &[u8]) -> Result<Vec<Metric>> {
        Ok(Decentralised::own(self, &D::Answer::from_bytes(answer)?))
    }

    fn conclude(
        &self,
        graph: &Graph,
        answers: &[(ClientId, Vec<u8>)],
        group: ClientGroup,
    ) -> Result<Vec<Metric>> {
        let answers = &mut answers.iter().map(decoded);
        let metrics = Decentralised::conclude(self, graph, answers, group)?;
        declared(&Decentralised::declare(self).measures, metrics)
    }

    fn load(&self, bytes: &[u8]) -> Result<Opaque> {
        Ok(Box::new(D::Node::from_bytes(bytes)?))
    }
}

fn decoded<T: Wire>((id, bytes): &(ClientId, Vec<u8>)) -> Result<(ClientId, T)> {
    Ok((*id, T::from_bytes(bytes)?))
}
