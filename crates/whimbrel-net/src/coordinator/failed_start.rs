//! The clients that cause a failed start.
//!
//! Unreadable summaries, and those whose client is at fault in a start with it alone, were refused
//! on arrival. This module finds the others: summaries that fail alone for a reason that need not
//! be the client's fault, and summaries that fail only together with others.

use std::collections::BTreeSet;
use whimbrel_core::ClientId;

/// Maximal number of clients for the search of failing combinations: each attempt is a start with
/// nearly all clients.
const TOGETHER_MAX: usize = 1000;

/// The clients without which the start works: a single client, the clients whose summaries fail
/// alone, or a minority that is incompatible with the others. `None` if no such set is found, for
/// instance with too few rows in total.
pub(super) fn offenders(
    everyone: &[ClientId],
    suspects: &BTreeSet<ClientId>,
    works: impl Fn(&BTreeSet<ClientId>) -> bool,
) -> Option<BTreeSet<ClientId>> {
    let (first, then): (Vec<ClientId>, Vec<ClientId>) =
        everyone.iter().partition(|id| suspects.contains(id));
    let single = first.into_iter().chain(then).map(|id| BTreeSet::from([id]));
    if let Some(single) = single.into_iter().find(|single| works(single)) {
        return Some(single);
    }
    if !suspects.is_empty() && works(suspects) {
        return Some(fewest(suspects, &works));
    }
    minority(everyone, &works)
}

/// Reduces a set of offenders: a client that works together with the others stays.
fn fewest(
    suspects: &BTreeSet<ClientId>,
    works: &impl Fn(&BTreeSet<ClientId>) -> bool,
) -> BTreeSet<ClientId> {
    let mut offenders = suspects.clone();
    for id in suspects {
        offenders.remove(id);
        if !works(&offenders) {
            offenders.insert(*id);
        }
    }
    offenders
}

/// The offenders, if they are fewer than half of the clients. Halves, quarters and eighths of the
/// clients are tried until one of these groups starts alone; every client with which the group still
/// starts joins it, and the others are the offenders. A group of offenders alone stays a minority.
fn minority(
    everyone: &[ClientId],
    works: &impl Fn(&BTreeSet<ClientId>) -> bool,
) -> Option<BTreeSet<ClientId>> {
    if everyone.len() > TOGETHER_MAX {
        return None;
    }
    for groups in [2, 4, 8] {
        for group in everyone.chunks(everyone.len().div_ceil(groups).max(1)) {
            let others: BTreeSet<ClientId> =
                everyone.iter().copied().filter(|id| !group.contains(id)).collect();
            if !works(&others) {
                continue;
            }
            let offenders = fewest(&others, works);
            if 2 * offenders.len() < everyone.len() {
                return Some(offenders);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u32]) -> BTreeSet<ClientId> {
        ids.iter().copied().map(ClientId).collect()
    }

    fn numbers(found: Option<BTreeSet<ClientId>>) -> Option<Vec<u32>> {
        found.map(|ids| ids.into_iter().map(|id| id.0).collect())
    }

    /// A start that fails with any bad client, and with fewer than two clients.
    fn found(bad: &[u32], suspects: &[u32]) -> Option<Vec<u32>> {
        let everyone: Vec<ClientId> = (0..6).map(ClientId).collect();
        let works = |without: &BTreeSet<ClientId>| {
            bad.iter().all(|id| without.contains(&ClientId(*id))) && without.len() <= 4
        };
        numbers(offenders(&everyone, &ids(suspects), works))
    }

    #[test]
    fn the_offenders_are_the_clients_without_which_the_start_works() {
        assert_eq!(found(&[3], &[]), Some(vec![3]));
        assert_eq!(found(&[3], &[0, 1]), Some(vec![3]), "too few rows alone is not a fault");
        assert_eq!(found(&[1, 4], &[1, 2, 4]), Some(vec![1, 4]));
        assert_eq!(found(&[1, 2], &[]), Some(vec![1, 2]));
        assert_eq!(found(&[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]), None);
    }

    #[test]
    fn a_minority_that_is_incompatible_with_the_others_is_found() {
        // Odd clients work together, and so do the others, but not both.
        let find = |odd: &[u32], count: u32| {
            let (odd, everyone) = (ids(odd), (0..count).map(ClientId).collect::<Vec<_>>());
            let works = |without: &BTreeSet<ClientId>| {
                let mut left = everyone.iter().filter(|id| !without.contains(id)).peekable();
                let is_odd = left.peek().is_some_and(|id| odd.contains(id));
                left.all(|id| odd.contains(id) == is_odd)
            };
            numbers(offenders(&everyone, &BTreeSet::new(), works))
        };
        assert_eq!(find(&[0, 1], 6), Some(vec![0, 1]));
        assert_eq!(find(&[0, 9], 12), Some(vec![0, 9]));
        assert_eq!(find(&[3, 4, 5], 40), Some(vec![3, 4, 5]));
        assert_eq!(find(&[0, 1, 2], 6), None, "neither half is the minority");
    }
}
