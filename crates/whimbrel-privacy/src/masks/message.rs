//! The messages of an exchange. Lists without ids follow the ascending order of the clients they
//! belong to, which both sides know.

use super::graph::Graph;
use super::keys::{Hash, Signature, hash};
use super::roster::Roster;
use super::words::Span;
use super::{is_ascending, refuse};
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
    /// The hash of the task.
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
    /// The hash of the task.
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

/// The signatures of all clients that vouched, for all of them.
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
}

wire!(MaskTask { exchange, cohort, layout, content });
wire!(MaskedUpload { exchange, task, body, fingerprints, boxes });
wire!(Survivors { exchange, task, survivors, boxes });
wire!(Vouch { exchange, signature });
wire!(Vouches { exchange, signatures });
wire!(Shares { exchange, told, shares });

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

    /// The hash on which all masks depend.
    pub(super) fn hash(&self, run: &Hash) -> Hash {
        hash("mask task", &(*run, self.clone()))
    }

    pub(super) fn graph(&self, run: &Hash) -> Graph {
        Graph::new(run, self.exchange, &self.cohort)
    }
}

/// The hash that binds vouches and shares to a task and a set of survivors.
pub(super) fn told(task: &Hash, survivors: &[ClientId]) -> Hash {
    hash("mask survivors", &(*task, survivors.to_vec()))
}

/// The seeds whose shares `holder` reveals: for each survivor i that it holds shares of, positions in
/// i's list of seeds. Position 0 is `b_i`; the others are `k_ij` for the lost neighbours j of i.
pub(super) fn revealed(
    graph: &Graph,
    survivors: &[ClientId],
    holder: ClientId,
) -> Vec<(ClientId, Vec<usize>)> {
    let around = graph.holders(holder).into_iter().filter(|&i| super::has(survivors, i));
    let positions = |i: ClientId| {
        let near = graph.neighbours(i).into_iter().enumerate();
        let lost = near.filter(|(_, j)| !super::has(survivors, *j)).map(|(at, _)| at + 1);
        (i, std::iter::once(0).chain(lost).collect())
    };
    around.map(positions).collect()
}
