//! What happened, exchange by exchange: who joined, who was asked, whose upload was accepted.
//!
//! One JSON object per line, ids as ranges (`"0-4,6"`). Together with job, data and seed it is
//! enough to replay a run.

use crate::simulator::Done;
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
}

/// Accepted clients by exchange, of one stage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Journal {
    accepted: BTreeMap<u32, Vec<ClientId>>,
}

impl Journal {
    /// Reads one stage's entries from a journal's text.
    pub fn parse(text: &str, stage: u32) -> Result<Self> {
        let mut accepted = BTreeMap::new();
        for (n, line) in text.lines().enumerate() {
            let entry: Entry = serde_json::from_str(line)
                .map_err(|e| Error::storage("journal", format!("line {}: {e}", n + 1)))?;
            if entry.stage == stage {
                accepted.insert(entry.exchange, parse_ranges(&entry.accepted)?);
            }
        }
        Ok(Self { accepted })
    }

    /// Whose uploads that exchange accepted.
    pub fn accepted(&self, exchange: u32) -> Option<&[ClientId]> {
        self.accepted.get(&exchange).map(|ids| &ids[..])
    }
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

fn parse_ranges(text: &str) -> Result<Vec<ClientId>> {
    let bad = || Error::storage("journal", format!("`{text}` is not a list of client ids"));
    let mut ids = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.parse().map_err(|_| bad())?;
        let last: u32 = last.parse().map_err(|_| bad())?;
        ids.extend((first..=last).map(ClientId));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_as_ranges() {
        for ids in [vec![], vec![3], vec![0, 1, 2, 3, 4, 6, 9, 10], vec![5, 7, 9]] {
            let ids: Vec<ClientId> = ids.into_iter().map(ClientId).collect();
            assert_eq!(parse_ranges(&ranges(&ids)).unwrap(), ids);
        }
        let ids = [0, 1, 2, 3, 4, 6].map(ClientId);
        assert_eq!(ranges(&ids), "0-4,6");
        assert!(parse_ranges("1-x").is_err());
    }
}
