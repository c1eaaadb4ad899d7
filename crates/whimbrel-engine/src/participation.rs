//! Cohorts of rounds, and simulated losses.

use crate::journal::Journal;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use whimbrel_core::{ClientId, Key, Probability};

/// The minimum of clients per thread: one draw takes tens of nanoseconds.
const DRAWN_TOGETHER: usize = 4096;

/// The distribution of the cohort of a sampled round.
#[derive(Clone, PartialEq, Debug)]
pub enum Participation {
    Everyone,
    /// Each client independently, with one probability.
    Bernoulli(Probability),
    /// Each client independently, with its own probability.
    PerClient {
        /// The probabilities of the clients that the job lists, by id.
        each: Vec<Probability>,
        /// The probability of clients that were invited later.
        others: Probability,
    },
    /// This number of clients, drawn without replacement; all if fewer are enrolled.
    Fixed(u32),
}

/// The number of uploads that closes a round.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Quorum {
    /// All clients that were asked.
    #[default]
    All,
    /// This number; all if fewer were asked.
    Number(u32),
    /// This share of those asked, rounded up.
    Share(f64),
}

impl Quorum {
    /// The number of uploads, given the number of clients asked.
    pub fn of(self, asked: usize) -> usize {
        match self {
            Self::All => asked,
            Self::Number(n) => (n as usize).min(asked),
            Self::Share(share) => {
                // 0.55 of 100 is 55, although the product is a little more: what is nearer to a
                // whole number than any share of clients can be is that number.
                let exact = share * asked as f64;
                let whole = exact.round();
                let near = (exact - whole).abs() <= 1e-9 * whole.max(1.0);
                (if near { whole } else { exact.ceil() }) as usize
            }
        }
    }
}

/// A client of a cohort with its inclusion probability.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Invited {
    pub id: ClientId,
    pub inclusion: f64,
}

impl Participation {
    /// Draws a cohort from the enrolled clients, in id order; it may be empty.
    pub fn draw(&self, enrolled: &[ClientId], key: Key) -> Vec<Invited> {
        let each = |p: &(dyn Fn(ClientId) -> Probability + Sync)| {
            let invite = |id: &ClientId| {
                let (id, inclusion) = (*id, p(*id).value());
                let is_drawn = inclusion >= 1.0 || key.child(u64::from(id.0)).uniform() < inclusion;
                is_drawn.then_some(Invited { id, inclusion })
            };
            enrolled.par_iter().with_min_len(DRAWN_TOGETHER).filter_map(invite).collect()
        };
        match self {
            Self::Everyone => everyone(enrolled),
            Self::Bernoulli(p) => each(&|_| *p),
            Self::PerClient { each: own, others } => {
                each(&|id| *own.get(id.0 as usize).unwrap_or(others))
            }
            Self::Fixed(size) => {
                let size = (*size as usize).min(enrolled.len());
                let mut ranks = key.stream().choose(enrolled.len(), size);
                ranks.sort_unstable();
                let inclusion = size as f64 / enrolled.len().max(1) as f64;
                ranks.into_iter().map(|r| Invited { id: enrolled[r], inclusion }).collect()
            }
        }
    }

    /// The mean inclusion probability over `clients` clients.
    pub fn mean(&self, clients: usize) -> f64 {
        match self {
            Self::Everyone => 1.0,
            Self::Bernoulli(p) => p.value(),
            Self::PerClient { each: all, .. } => {
                all.iter().map(|p| p.value()).sum::<f64>() / all.len().max(1) as f64
            }
            Self::Fixed(size) => (f64::from(*size) / clients.max(1) as f64).min(1.0),
        }
    }
}

/// All enrolled clients, with probability one.
pub fn everyone(enrolled: &[ClientId]) -> Vec<Invited> {
    enrolled.iter().map(|&id| Invited { id, inclusion: 1.0 }).collect()
}

/// Simulated faults.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Faults {
    /// The probability that an upload is lost.
    pub lost: f64,
    /// Clients whose upload is lost, by round from one.
    pub drops: BTreeMap<u32, BTreeSet<ClientId>>,
    /// Late joiners, with the round before which they join, from one.
    pub late: BTreeMap<ClientId, u32>,
    /// A journal whose joins, losses and answers are replayed; it overrides all other fields.
    pub replay: Option<Journal>,
}

impl Faults {
    /// Whether a client joins after the start.
    pub fn is_late(&self, id: ClientId) -> bool {
        match &self.replay {
            Some(journal) => !journal.enrolled(id),
            None => self.late.contains_key(&id),
        }
    }

    /// Whether a late joiner joins before this exchange, given the number of the next round.
    pub fn lets_in(&self, id: ClientId, exchange: u32, round: u32) -> bool {
        match &self.replay {
            Some(journal) => journal.joins(id).is_some_and(|at| at <= exchange),
            None => self.late.get(&id).is_none_or(|at| *at <= round),
        }
    }

    /// Whether the client answers the evaluation after the round.
    pub fn answers(&self, round: u32, id: ClientId) -> bool {
        self.replay.as_ref().is_none_or(|journal| journal.answered(round, id))
    }

    /// Whether the exchange's message does not reach the client.
    pub fn is_unsent(&self, exchange: u32, id: ClientId) -> bool {
        self.replay.as_ref().is_some_and(|journal| journal.unsent(exchange, id))
    }

    /// Whether the exchange counts no upload of the client.
    pub fn is_unheard(&self, exchange: u32, id: ClientId) -> bool {
        self.replay.as_ref().is_some_and(|journal| journal.unheard(exchange, id))
    }

    /// Whether the client's upload is lost.
    pub fn loses(&self, exchange: u32, round: Option<u32>, id: ClientId, key: Key) -> bool {
        if let Some(journal) = &self.replay {
            return journal.accepted(exchange, id) != Some(true);
        }
        let scripted = round.and_then(|r| self.drops.get(&r)).is_some_and(|ids| ids.contains(&id));
        scripted || (self.lost > 0.0 && key.child(u64::from(id.0)).uniform() < self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(n: u32) -> Vec<ClientId> {
        (0..n).map(ClientId).collect()
    }

    #[test]
    fn a_fixed_cohort_has_its_size_and_probability() {
        let cohort = Participation::Fixed(3).draw(&ids(10), Key::root(1));
        assert_eq!(cohort.len(), 3);
        assert!(cohort.iter().all(|c| c.inclusion == 0.3));
        assert!(cohort.windows(2).all(|w| w[0].id < w[1].id));
        assert_eq!(Participation::Fixed(30).draw(&ids(10), Key::root(1)).len(), 10);
        assert!(Participation::Fixed(3).draw(&[], Key::root(1)).is_empty());
    }

    #[test]
    fn bernoulli_cohorts_have_their_mean_size() {
        // 400 rounds x 50 clients at p = 0.3: sd of the mean rate 0.0032; 4 sd is a false alarm of 6e-5.
        let p = Participation::Bernoulli(Probability::new(0.3).unwrap());
        let taken: usize = (0..400).map(|k| p.draw(&ids(50), Key::root(8).child(k)).len()).sum();
        let rate = taken as f64 / 20_000.0;
        assert!((rate - 0.3).abs() < 0.013, "{rate}");
    }

    #[test]
    fn per_client_probabilities_are_each_clients_own() {
        let [high, low] = [1.0, 0.5].map(|p| Probability::new(p).unwrap());
        let p = Participation::PerClient { each: vec![high, low], others: low };
        assert!((0..50).all(|k| p.draw(&ids(2), Key::root(k))[0].id == ClientId(0)));
        let late = |k| p.draw(&ids(3), Key::root(k)).iter().any(|i| i.id == ClientId(2));
        let come = (0..50).filter(|k| late(*k)).count();
        assert!((1..50).contains(&come), "{come} of 50 at one half");
    }
}
