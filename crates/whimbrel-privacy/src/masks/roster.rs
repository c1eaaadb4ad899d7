//! The clients of a run with their public keys, and the rules they agreed to.

use super::accepted::ShortHash;
use super::keys::{Hash, Signature, hash, is_signed, is_sound};
use super::refuse;
use whimbrel_core::{ClientId, Error, Result, Wire, wire};

/// The rules that clients consent to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The hash of the run: exchanges are numbered within each stage of it.
    pub run: Hash,
    /// The fewest clients in a sum, at least 3.
    pub min_cohort: u32,
}

/// A client's public keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enrolment {
    /// The Ed25519 key that identifies the client, in all stages.
    pub identity: [u8; 32],
    /// The X25519 key of this stage.
    pub key: [u8; 32],
    /// The identity's signature on run and key.
    pub signature: Signature,
}

/// Clients and rules, checked. Only the users' comparison of [`Roster::fingerprint`], or of the
/// identities, keeps out invented clients and false keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roster {
    rules: Rules,
    members: Vec<(ClientId, Enrolment)>,
}

wire!(Enrolment { identity, key, signature });
// The stored form, which is trusted: a received roster is made from its parts by `Roster::new`.
wire!(Roster { rules, members });

/// A last byte, always 1, stands for the step of vouches.
impl Wire for Rules {
    fn put(&self, out: &mut Vec<u8>) {
        (self.run, self.min_cohort).put(out);
        true.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let (run, min_cohort) = Wire::take(from)?;
        if bool::take(from)? {
            Ok(Self { run, min_cohort })
        } else {
            refuse("rules without vouches")
        }
    }
}

impl Enrolment {
    /// The signed hash.
    pub(super) fn statement(run: &Hash, key: &[u8; 32]) -> Hash {
        hash("mask enrolment", &(*run, *key))
    }
}

impl Roster {
    /// Checks rules, distinctness and signatures.
    pub fn new(rules: Rules, members: Vec<(ClientId, Enrolment)>) -> Result<Self> {
        if rules.min_cohort < 3 {
            return Err(Error::config("sums of fewer than 3 clients are not masked")
                .hint("set min_cohort to 3 or more"));
        }
        Self { rules, members: Vec::new() }.with(members)
    }

    /// Checks that a client can be added.
    pub fn check(&self, id: ClientId, keys: &Enrolment) -> Result<()> {
        let same = |other: &Enrolment| other.identity == keys.identity || other.key == keys.key;
        if self.members.iter().any(|(other, its)| *other == id || same(its)) {
            return refuse("two clients of a roster have the same number or key");
        }
        if !is_sound(&keys.key) {
            return refuse(format!("the key of client {id} has low order"));
        }
        let statement = Enrolment::statement(&self.rules.run, &keys.key);
        if !is_signed(&keys.identity, &statement, &keys.signature) {
            return refuse(format!("the key of client {id} is not signed by its identity"));
        }
        Ok(())
    }

    /// The roster with more clients, which are checked.
    pub fn with(mut self, newcomers: Vec<(ClientId, Enrolment)>) -> Result<Self> {
        for (id, keys) in newcomers {
            self.check(id, &keys)?;
            self.push(id, keys);
        }
        Ok(self)
    }

    pub(super) fn push(&mut self, id: ClientId, keys: Enrolment) {
        let place = self.members.partition_point(|(other, _)| *other < id);
        self.members.insert(place, (id, keys));
    }

    /// Refuses a roster that does more than add clients to an earlier one.
    pub(super) fn check_extends(&self, old: &Self) -> Result<()> {
        let same = |(id, member): &(_, _)| self.member(*id).is_ok_and(|new| new == member);
        if old.rules == self.rules && old.members.iter().all(same) {
            return Ok(());
        }
        refuse("the roster changes rules or clients that were agreed")
    }

    /// The hash that users compare. It covers the identities, which sign the keys of each stage: it
    /// is the same in all stages, and clients can compute it beforehand.
    pub fn fingerprint(&self) -> ShortHash {
        let mut identities: Vec<_> = self.members.iter().map(|(_, keys)| keys.identity).collect();
        identities.sort_unstable();
        ShortHash::of(hash("mask roster", &identities))
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    pub fn members(&self) -> &[(ClientId, Enrolment)] {
        &self.members
    }

    /// The keys of a client.
    pub fn member(&self, id: ClientId) -> Result<&Enrolment> {
        let at = self.members.binary_search_by_key(&id, |(id, _)| *id);
        let unknown = |_| Error::peer(format!("client {id} is not on the roster"));
        at.map(|at| &self.members[at].1).map_err(unknown)
    }
}
