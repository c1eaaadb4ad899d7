//! The messages of an exchange. Lists without ids follow the ascending order of the clients they
//! belong to, which both sides know.

use super::graph::Graph;
use super::keys::{Hash, Signature, hash};
use super::roster::Roster;
use super::words::Span;
use super::{has, is_ascending, refuse};
use crate::shamir::Element;
use whimbrel_core::{ClientId, Result, wire};

/// The terms of an exchange. Server and client each build it from the downlink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MaskTask {
    /// The number of the exchange in the run.
    pub exchange: u32,
    /// The clients that are asked, ascending.
    pub cohort: Vec<ClientId>,
    /// The form of every upload.
    pub layout: Vec<Span>,
    /// The hash of the downlink (model, grid) as sent and as received.
    pub content: Hash,
}

/// A client's masked words, with the shares of its seeds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MaskedUpload {
    pub exchange: u32,
    pub task: Hash,
    /// The masked words, packed.
    pub body: Vec<u8>,
    /// Commitments to `b_i` and to `k_ij` for each neighbour j.
    pub fingerprints: Vec<[u8; 16]>,
    /// For each neighbour its shares of those seeds, sealed.
    pub boxes: Vec<Vec<u8>>,
}

/// The clients whose uploads are summed, and the receiver's boxes from its neighbours among them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survivors {
    pub exchange: u32,
    pub task: Hash,
    pub survivors: Vec<ClientId>,
    pub boxes: Vec<Vec<u8>>,
}

/// A client's signature on the task and the survivors it was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vouch {
    pub exchange: u32,
    pub signature: Signature,
}

/// Signatures of two thirds of the cohort, for all clients that vouched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vouches {
    pub exchange: u32,
    pub signatures: Vec<(ClientId, Signature)>,
}

/// A holder's shares, for each of its neighbours and itself that survived: of its own seed, then of
/// its seeds with lost neighbours.
#[derive(Clone, PartialEq, Eq)]
pub struct Shares {
    pub exchange: u32,
    /// The hash of the task and the survivors.
    pub told: Hash,
    pub shares: Vec<Element>,
    /// The clients whose boxes did not open, ascending: shares of their seeds are missing.
    pub unopened: Vec<ClientId>,
}

wire!(MaskTask { exchange, cohort, layout, content });
wire!(MaskedUpload { exchange, task, body, fingerprints, boxes });
wire!(Survivors { exchange, task, survivors, boxes });
wire!(Vouch { exchange, signature });
wire!(Vouches { exchange, signatures });
wire!(Shares { exchange, told, shares, unopened });

impl MaskTask {
    /// Refuses cohorts that are small, unordered or not on the roster.
    pub(super) fn check(&self, roster: &Roster) -> Result<()> {
        let (n, least) = (self.cohort.len(), roster.rules().min_cohort as usize);
        if n < least {
            return refuse(format!("a cohort of {n}: at least {least} clients were agreed"));
        }
        if !is_ascending(&self.cohort) {
            return refuse("the clients of a cohort are not in ascending order");
        }
        self.cohort.iter().try_for_each(|&id| roster.member(id).map(|_| ()))
    }

    /// The hash on which all masks and vouches depend. It covers the cohort's keys, so that no vouch
    /// of an earlier stage or run counts.
    pub(super) fn hash(&self, roster: &Roster) -> Hash {
        let keys = self.cohort.iter().filter_map(|&id| roster.member(id).ok());
        let keys: Vec<_> = keys.map(|keys| (keys.identity, keys.key)).collect();
        hash("mask task", &(roster.rules().run, (self.clone(), keys)))
    }

    pub(super) fn graph(&self, run: &Hash) -> Graph {
        Graph::new(run, self.exchange, &self.cohort)
    }
}

/// The hash that binds vouches and shares to a task and a set of survivors.
pub(super) fn told(task: &Hash, survivors: &[ClientId]) -> Hash {
    hash("mask survivors", &(*task, survivors.to_vec()))
}

/// The survivors whose shares a holder reveals: its surviving neighbours and itself, ascending.
pub(super) fn dealers(graph: &Graph, survivors: &[ClientId], holder: ClientId) -> Vec<ClientId> {
    graph.holders(holder).into_iter().filter(|&i| has(survivors, i)).collect()
}

/// The places in a survivor's list of seeds that its holders reveal: 0 for its own seed, the others
/// for its seeds with lost neighbours.
pub(super) fn revealed(graph: &Graph, survivors: &[ClientId], dealer: ClientId) -> Vec<usize> {
    let near = graph.neighbours(dealer).into_iter().enumerate();
    let lost = near.filter(|(_, j)| !has(survivors, *j)).map(|(place, _)| place + 1);
    std::iter::once(0).chain(lost).collect()
}
