//! What happened, exchange by exchange: who joined, who was asked, whose upload was accepted.
//!
//! One JSON object per line, ids as ranges (`"0-4,6"`). Together with job, data and seed it is
//! enough to replay a run.

use crate::runner::Done;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use whimbrel_core::{ClientId, Error, Result};

/// One line of the journal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Stage of the job, from zero.
    pub stage: u32,
    /// Exchange of the stage, openings included, from zero.
    pub exchange: u32,
    /// The round it was, from one; none for an opening.
    pub round: Option<u32>,
    /// Who joined just before it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub joined: String,
    /// Who was asked.
    pub cohort: String,
    /// Whose upload was accepted.
    pub accepted: String,
}

impl Entry {
    /// The line of one exchange.
    pub fn new(stage: u32, done: &Done) -> Self {
        Self {
            stage,
            exchange: done.exchange,
            round: done.round,
            joined: ranges(&done.joined),
            cohort: ranges(&done.cohort),
            accepted: ranges(&done.accepted),
        }
    }

    /// The line, with its end.
    pub fn to_line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("a journal entry is plain data");
        line.push('\n');
        line
    }

    /// Reads a line, without its end.
    pub fn parse(line: &str) -> Result<Self> {
        serde_json::from_str(line).map_err(|e| Error::storage("journal", e))
    }

    /// Whose upload was accepted, in order.
    pub fn accepted_ids(&self) -> Result<Vec<ClientId>> {
        listed(&self.accepted)
    }
}

/// Joined and accepted clients by exchange, of one stage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Journal {
    accepted: BTreeMap<u32, Ranges>,
    /// Exchanges before which somebody joined.
    joined: BTreeMap<u32, Ranges>,
}

/// Ids as ranges `first..=last`, ascending and apart.
type Ranges = Vec<(u32, u32)>;

impl Journal {
    /// Reads one stage's entries from a journal's text.
    pub fn parse(text: &str, stage: u32) -> Result<Self> {
        let (mut accepted, mut joined) = (BTreeMap::new(), BTreeMap::new());
        for (n, line) in text.lines().enumerate() {
            let bad = |what: String| Error::storage("journal", format!("line {}: {what}", n + 1));
            let entry: Entry = serde_json::from_str(line).map_err(|e| bad(e.to_string()))?;
            if entry.stage != stage {
                continue;
            }
            let ids = |list: &str| {
                parse_ranges(list)
                    .ok_or_else(|| bad(format!("`{list}` is not a list of client ids")))
            };
            if !entry.joined.is_empty() {
                joined.insert(entry.exchange, ids(&entry.joined)?);
            }
            if accepted.insert(entry.exchange, ids(&entry.accepted)?).is_some() {
                return Err(bad(format!("exchange {} is there twice", entry.exchange)));
            }
        }
        Ok(Self { accepted, joined })
    }

    /// The exchange before which that client joined; none where it was there from the start or
    /// never came.
    pub fn joins(&self, id: ClientId) -> Option<u32> {
        self.joined.iter().find(|(_, ids)| holds(ids, id)).map(|(exchange, _)| *exchange)
    }

    /// Whether that exchange accepted that client's upload; none where the journal ends before it.
    pub fn accepted(&self, exchange: u32, id: ClientId) -> Option<bool> {
        self.accepted.get(&exchange).map(|ids| holds(ids, id))
    }

    /// Whether it holds that exchange.
    pub fn holds(&self, exchange: u32) -> bool {
        self.accepted.contains_key(&exchange)
    }
}

fn holds(ranges: &Ranges, id: ClientId) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= id.0);
    after > 0 && id.0 <= ranges[after - 1].1
}

/// Sorted ids as ranges: `0-4,6`.
fn ranges(ids: &[ClientId]) -> String {
    let mut text = String::new();
    let mut rest = ids;
    while let Some(first) = rest.first() {
        let run = rest.iter().enumerate().take_while(|(i, id)| id.0 == first.0 + *i as u32).count();
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&first.0.to_string());
        if run > 1 {
            text.push('-');
            text.push_str(&rest[run - 1].0.to_string());
        }
        rest = &rest[run..];
    }
    text
}

fn listed(text: &str) -> Result<Vec<ClientId>> {
    let ranges = parse_ranges(text).ok_or_else(|| {
        Error::storage("journal", format!("`{text}` is not a list of client ids"))
    })?;
    Ok(ranges.into_iter().flat_map(|(first, last)| first..=last).map(ClientId).collect())
}

fn parse_ranges(text: &str) -> Option<Ranges> {
    let mut ranges = Ranges::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        let apart = ranges.last().is_none_or(|(_, before)| *before < first);
        if first > last || !apart {
            return None;
        }
        ranges.push((first, last));
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(exchange: u32, accepted: &str) -> String {
        let accepted = accepted.into();
        let joined = String::new();
        let cohort = "0-9".into();
        Entry { stage: 1, exchange, round: Some(exchange), joined, cohort, accepted }.to_line()
    }

    #[test]
    fn ids_survive_as_ranges() {
        for ids in [vec![], vec![3], vec![0, 1, 2, 3, 4, 6, 9, 10], vec![5, 7, 9]] {
            let ids: Vec<ClientId> = ids.into_iter().map(ClientId).collect();
            let journal = Journal::parse(&entry(4, &ranges(&ids)), 1).unwrap();
            for id in (0..12).map(ClientId) {
                assert_eq!(journal.accepted(4, id), Some(ids.contains(&id)), "{id} in {ids:?}");
            }
            assert_eq!(journal.accepted(5, ClientId(3)), None);
            let line = Entry::parse(entry(4, &ranges(&ids)).trim_end()).unwrap();
            assert_eq!(line.accepted_ids().unwrap(), ids);
        }
        assert_eq!(ranges(&[0, 1, 2, 3, 4, 6].map(ClientId)), "0-4,6");
    }

    #[test]
    fn a_huge_range_takes_no_memory() {
        let journal = Journal::parse(&entry(0, "7-4294967295"), 1).unwrap();
        assert_eq!(journal.accepted(0, ClientId(6)), Some(false));
        assert_eq!(journal.accepted(0, ClientId(u32::MAX)), Some(true));
    }

    #[test]
    fn what_is_no_journal_is_refused_with_its_line() {
        let torn = entry(0, "1") + &entry(1, "2")[..20];
        let twice = entry(0, "1") + &entry(0, "1");
        for text in [&torn, &twice] {
            let error = Journal::parse(text, 1).unwrap_err().to_string();
            assert!(error.starts_with("journal: line 2: "), "{error}");
        }
        for ids in ["1-x", "5-3", "3,3", "4,1-2", ",", "1,", "-1"] {
            assert!(Journal::parse(&entry(0, ids), 1).is_err(), "{ids}");
        }
        assert_eq!(Journal::parse(&entry(0, "1"), 0).unwrap(), Journal::default());
    }

    #[test]
    fn who_joined_is_told_by_exchange() {
        let mut entry: Entry = serde_json::from_str(&entry(3, "0-1")).unwrap();
        entry.joined = "4-5,8".into();
        let journal = Journal::parse(&entry.to_line(), 1).unwrap();
        let joins = [3, 4, 5, 6, 8].map(|id| journal.joins(ClientId(id)));
        assert_eq!(joins, [None, Some(3), Some(3), None, Some(3)]);
    }
}
