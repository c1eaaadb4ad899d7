//! A start that fails with everyone's summaries: whose doing is it?
//!
//! A summary that is no message, or that a start with it alone blames on its client, was refused
//! when it came. Here are the others: summaries that fail a start for a reason that need not be
//! their client's fault, and summaries that fail only beside others.

use std::collections::BTreeSet;
use whimbrel_core::ClientId;

/// With more clients than this, those who fail only together are not looked for: each try is a
/// start with nearly everyone.
const TOGETHER_MAX: usize = 1000;

/// Without whom a start works that failed with everyone: a single client; or those whose summaries
/// fail alone; or a minority that fails beside the others. None where it is not a few clients'
/// doing, as with too few rows in all of them.
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

/// A client that works beside the others stays.
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

/// Fewer than half of the clients, without whom a start works. Groups are tried, from halves down
/// to eighths, until one works by itself; then everyone else who does no harm beside it is taken
/// back. A group of offenders may work by itself, but no other client works beside it.
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

    /// A start that fails with any of the bad ones, and with fewer than two clients.
    fn found(bad: &[u32], suspects: &[u32]) -> Option<Vec<u32>> {
        let everyone: Vec<ClientId> = (0..6).map(ClientId).collect();
        let works = |without: &BTreeSet<ClientId>| {
            bad.iter().all(|id| without.contains(&ClientId(*id))) && without.len() <= 4
        };
        numbers(offenders(&everyone, &ids(suspects), works))
    }

    #[test]
    fn a_failed_start_is_laid_at_the_door_of_those_without_whom_it_works() {
        assert_eq!(found(&[3], &[]), Some(vec![3]));
        assert_eq!(found(&[3], &[0, 1]), Some(vec![3]), "too few rows alone is no fault");
        assert_eq!(found(&[1, 4], &[1, 2, 4]), Some(vec![1, 4]));
        assert_eq!(found(&[1, 2], &[]), Some(vec![1, 2]));
        assert_eq!(found(&[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]), None);
    }

    #[test]
    fn clients_that_fail_only_beside_others_are_found_where_they_are_few() {
        // Any number of the odd ones works, and any number of the others; both together do not.
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
