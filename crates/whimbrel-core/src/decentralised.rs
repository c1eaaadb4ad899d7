//! Methods without a server: every client keeps a state, sends it to its neighbours, and mixes the
//! messages that it receives.
//!
//! The engine owns the graph and the mixing weights. Before the first round every client sends a
//! summary to all others. A round is a local step, a message to every neighbour, and a mix of the
//! received messages in id order.

use crate::erased::{Bound, Opaque};
use crate::method::{Artifact, ClientGroup, Declaration, Metric};
use crate::{ClientData, ClientId, Key, Message, Result};

/// A decentralised algorithm. Methods stand in call order. A *node* is the state of one client.
pub trait Decentralised: Send + Sync {
    /// Disclosures and figures; the other fields are unused.
    fn declare(&self) -> Declaration;
    /// Checks and lays out one client's rows.
    fn bind(&self, data: &ClientData) -> Result<Bound>;
    /// A client's message to all others before the first round.
    fn enroll(&self, data: &Bound, key: Key) -> Result<Vec<u8>>;
    /// The facts that all clients derive from all summaries, in id order; `key` is the same for all.
    fn agree(&self, roster: &[(ClientId, Vec<u8>)], key: Key) -> Result<Bound>;
    /// A client's first state; `key` is that of its enrolment.
    fn start(&self, common: &Bound, data: &Bound, key: Key) -> Result<Opaque>;
    /// The number of rounds.
    fn rounds(&self) -> u32;
    /// A client's local work of a round, and its message to all neighbours.
    fn local_step(&self, node: Opaque, data: &Bound, key: Key) -> Result<(Opaque, Message)>;
    /// The state after mixing: the neighbours' messages with their weights, in id order. `own` is
    /// the weight of the client's message to itself. The weights sum to one.
    fn mix(&self, node: Opaque, own: f64, received: &[(f64, &Message)]) -> Result<Opaque>;
    /// A norm of a client's state, watched for divergence.
    fn magnitude(&self, node: &Opaque) -> Result<f64>;
    /// The mean of all states, in id order: the run's result, and the state that unseen clients are
    /// evaluated with.
    fn mean(&self, nodes: &[Opaque]) -> Result<Opaque>;
    /// The mean as named tensors.
    fn artifact(&self, mean: &Opaque) -> Result<Artifact>;
    /// A client's personal result.
    fn client_artifact(&self, node: &Opaque, data: &Bound) -> Result<Option<Artifact>>;
    /// A client's answer to an evaluation, given the mean of all states.
    fn answer(&self, node: &Opaque, mean: &Opaque, data: &Bound) -> Result<Vec<u8>>;
    /// A client's figures, from its answer.
    fn own(&self, answer: &[u8]) -> Result<Vec<Metric>>;
    /// Figures over a group of clients, from their answers in id order. Every figure must be declared.
    fn conclude(
        &self,
        graph: &Graph,
        answers: &[(ClientId, Vec<u8>)],
        group: ClientGroup,
    ) -> Result<Vec<Metric>>;
    /// A saved state.
    fn load(&self, bytes: &[u8]) -> Result<Opaque>;
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
