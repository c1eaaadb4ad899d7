//! The record of a run: the clients that were enrolled when a stage began, that joined, were asked
//! and accepted in each exchange, and that answered each evaluation.
//!
//! One JSON object per line, ids as ranges (`"0-4,6"`). Job, data, seed and journal suffice to
//! replay a run, stopping rules and figures of evaluations included. The first line with a higher
//! id than all lines before it also names the clients up to that id ([`Naming`]): on a network,
//! late joiners get the remaining ids.

use crate::runner::Done;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use whimbrel_core::{ClientId, Error, Result};

/// One line of the journal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum Line {
    StageBegin(StageBegin),
    Exchange(Entry),
    Evaluation(Evaluation),
    Repair(Repair),
}

/// A stage began.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageBegin {
    /// Stage of the job, from zero.
    pub stage: u32,
    pub enrolled: String,
    /// Names of the next clients, by id, that no earlier line has named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// An exchange was closed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Stage of the job, from zero.
    pub stage: u32,
    /// Exchange of the stage, from zero.
    pub exchange: u32,
    /// The number of the round, from one; `None` for an opening.
    pub round: Option<u32>,
    /// Clients that joined just before it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub joined: String,
    /// Names of the next clients, by id, that no earlier line has named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    pub cohort: String,
    /// Clients whose upload was accepted.
    pub accepted: String,
    /// Clients of the cohort that the message did not reach; its bytes are not counted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unsent: String,
    /// Clients of the cohort without a counted upload. (A simulated loss is counted.)
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unheard: String,
}

/// A round was evaluated.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Evaluation {
    /// Stage of the job, from zero.
    pub stage: u32,
    /// The last round before it; zero before the first.
    pub evaluated: u32,
    pub answered: String,
}

/// A coordinator was repaired after a loss of state: all clients left and join again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Repair {
    /// Stage of the job, from zero.
    pub stage: u32,
    /// Exchanges of the stage that were kept.
    pub repaired: u32,
}

impl Line {
    /// The line of a stage that begins.
    pub fn stage_begin(stage: u32, enrolled: &[ClientId]) -> Self {
        Self::StageBegin(StageBegin { stage, enrolled: ranges(enrolled), names: Vec::new() })
    }

    /// The line of one exchange.
    pub fn exchange(stage: u32, done: &Done) -> Self {
        Self::Exchange(Entry {
            stage,
            exchange: done.exchange,
            round: done.round,
            joined: ranges(&done.joined),
            names: Vec::new(),
            cohort: ranges(&done.cohort),
            accepted: ranges(&done.accepted),
            unsent: ranges(&done.unsent),
            unheard: ranges(&done.unheard),
        })
    }

    /// The line of one evaluation.
    pub fn evaluation(stage: u32, round: u32, answered: &[ClientId]) -> Self {
        Self::Evaluation(Evaluation { stage, evaluated: round, answered: ranges(answered) })
    }

    /// Adds the names of clients that no earlier line has named.
    #[must_use]
    pub fn naming(mut self, new: Vec<String>) -> Self {
        match &mut self {
            Self::StageBegin(StageBegin { names, .. }) | Self::Exchange(Entry { names, .. }) => {
                *names = new;
            }
            Self::Evaluation(_) | Self::Repair(_) => {}
        }
        self
    }

    /// The line, with its end.
    pub fn to_text(&self) -> String {
        let mut line = serde_json::to_string(self).expect("a journal line is plain data");
        line.push('\n');
        line
    }

    /// Reads a line, without its end.
    pub fn parse(line: &str) -> Result<Self> {
        Self::read(line).map_err(|e| Error::storage("journal", e))
    }

    fn read(line: &str) -> serde_json::Result<Self> {
        let object: serde_json::Value = serde_json::from_str(line)?;
        if object.get("enrolled").is_some() {
            serde_json::from_value(object).map(Self::StageBegin)
        } else if object.get("repaired").is_some() {
            serde_json::from_value(object).map(Self::Repair)
        } else if object.get("evaluated").is_some() {
            serde_json::from_value(object).map(Self::Evaluation)
        } else {
            serde_json::from_value(object).map(Self::Exchange)
        }
    }
}

impl Entry {
    /// Clients whose upload was accepted, in order.
    pub fn accepted_ids(&self) -> Result<Vec<ClientId>> {
        let ranges = ranges_of(&self.accepted).map_err(|what| Error::storage("journal", what))?;
        Ok(ranges.into_iter().flat_map(|(first, last)| first..=last).map(ClientId).collect())
    }
}

/// The ids that a journal has named so far: all below this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Naming(usize);

impl Naming {
    /// The state after the lines of a journal.
    pub fn after(text: &str) -> Result<Self> {
        Ok(Self(names(text)?.len()))
    }

    /// The names that a line with these clients must add: of all clients up to the highest id among
    /// them. `all` returns the names by id.
    pub fn next<'a>(
        &mut self,
        ids: impl IntoIterator<Item = &'a ClientId>,
        all: &dyn Fn() -> Vec<String>,
    ) -> Vec<String> {
        let end = ids.into_iter().max().map_or(0, |id| id.0 as usize + 1);
        if end <= self.0 {
            return Vec::new();
        }
        let new: Vec<String> = all().into_iter().take(end).skip(self.0).collect();
        self.0 += new.len();
        new
    }
}

/// The names of clients by id in a journal; empty for a journal without clients.
pub fn names(text: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let bad = |e| Error::storage("journal", format!("line {}: {e}", n + 1));
        match Line::read(line).map_err(bad)? {
            Line::StageBegin(StageBegin { names, .. }) | Line::Exchange(Entry { names, .. }) => {
                all.extend(names);
            }
            Line::Evaluation(_) | Line::Repair(_) => {}
        }
    }
    let mut known = BTreeSet::new();
    match all.iter().find(|name| !known.insert(*name)) {
        Some(twice) => Err(Error::storage("journal", format!("client {twice:?} has two numbers"))),
        None => Ok(all),
    }
}

/// One stage of a journal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Journal {
    /// Clients enrolled at the start; `None` before the stage's first line.
    enrolled: Option<Ranges>,
    exchanges: BTreeMap<u32, Exchanged>,
    /// Joins by exchange, without empty ones: a replay searches them for every absent client before
    /// each exchange.
    joined: BTreeMap<u32, Ranges>,
    /// Clients that answered, by round.
    answered: BTreeMap<u32, Ranges>,
}

/// One exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Exchanged {
    accepted: Ranges,
    unsent: Ranges,
    unheard: Ranges,
}

/// Ids as ranges `first..=last`, ascending and disjoint.
type Ranges = Vec<(u32, u32)>;

impl Journal {
    /// Reads one stage's lines from a journal's text, which must have the stage's beginning.
    pub fn parse(text: &str, stage: u32) -> Result<Self> {
        let mut journal = Self::default();
        for (n, line) in text.lines().enumerate() {
            let bad = |what: String| Error::storage("journal", format!("line {}: {what}", n + 1));
            let line = Line::read(line).map_err(|e| bad(e.to_string()))?;
            journal.add(line, stage).map_err(bad)?;
        }
        match journal.enrolled {
            Some(_) => Ok(journal),
            None => Err(Error::storage("journal", format!("it ends before stage {stage}"))),
        }
    }

    /// All clients that were enrolled at the start or joined later.
    pub fn admitted(&self) -> BTreeSet<ClientId> {
        let ranges = self.enrolled.iter().chain(self.joined.values()).flatten();
        ranges.flat_map(|(first, last)| *first..=*last).map(ClientId).collect()
    }

    fn add(&mut self, line: Line, wanted: u32) -> std::result::Result<(), String> {
        let (twice, what) = match line {
            Line::StageBegin(StageBegin { stage, enrolled, .. }) if stage == wanted => {
                let twice = self.enrolled.replace(ranges_of(&enrolled)?).is_some();
                (twice, format!("the beginning of stage {stage}"))
            }
            Line::Repair(Repair { stage, .. }) if stage == wanted => {
                self.enrolled = Some(Ranges::new());
                self.joined.clear();
                return Ok(());
            }
            Line::Evaluation(Evaluation { stage, evaluated, answered }) if stage == wanted => {
                let twice = self.answered.insert(evaluated, ranges_of(&answered)?).is_some();
                (twice, format!("the evaluation after round {evaluated}"))
            }
            Line::Exchange(entry) if entry.stage == wanted => {
                let joined = ranges_of(&entry.joined)?;
                if !joined.is_empty() {
                    self.joined.insert(entry.exchange, joined);
                }
                let exchanged = Exchanged {
                    accepted: ranges_of(&entry.accepted)?,
                    unsent: ranges_of(&entry.unsent)?,
                    unheard: ranges_of(&entry.unheard)?,
                };
                let twice = self.exchanges.insert(entry.exchange, exchanged).is_some();
                (twice, format!("exchange {}", entry.exchange))
            }
            _ => return Ok(()),
        };
        if twice { Err(format!("{what} is there twice")) } else { Ok(()) }
    }

    /// Whether the client was enrolled when the stage began.
    pub fn enrolled(&self, id: ClientId) -> bool {
        self.enrolled.as_ref().is_some_and(|ids| holds(ids, id))
    }

    /// The exchange before which the client joined; `None` if it was enrolled at the start or never
    /// joined.
    pub fn joins(&self, id: ClientId) -> Option<u32> {
        self.joined.iter().find(|(_, ids)| holds(ids, id)).map(|(exchange, _)| *exchange)
    }

    /// Whether the exchange accepted the client's upload; `None` if the journal ends before it.
    pub fn accepted(&self, exchange: u32, id: ClientId) -> Option<bool> {
        self.exchanges.get(&exchange).map(|e| holds(&e.accepted, id))
    }

    /// Whether the exchange's message did not reach the client.
    pub fn unsent(&self, exchange: u32, id: ClientId) -> bool {
        self.exchanges.get(&exchange).is_some_and(|e| holds(&e.unsent, id))
    }

    /// Whether the exchange counted no upload of the client.
    pub fn unheard(&self, exchange: u32, id: ClientId) -> bool {
        self.exchanges.get(&exchange).is_some_and(|e| holds(&e.unheard, id))
    }

    /// Whether the client answered the evaluation after the round.
    pub fn answered(&self, round: u32, id: ClientId) -> bool {
        self.answered.get(&round).is_some_and(|ids| holds(ids, id))
    }

    /// Whether the journal has the exchange.
    pub fn holds(&self, exchange: u32) -> bool {
        self.exchanges.contains_key(&exchange)
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

fn ranges_of(list: &str) -> std::result::Result<Ranges, String> {
    parse_ranges(list).ok_or_else(|| format!("`{list}` is not a list of client ids"))
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
        let entry = Entry {
            stage: 1,
            exchange,
            round: Some(exchange),
            joined: String::new(),
            names: Vec::new(),
            cohort: "0-9".into(),
            accepted: accepted.into(),
            unsent: String::new(),
            unheard: String::new(),
        };
        Line::Exchange(entry).to_text()
    }

    /// Stage 1 with these lines after its first.
    fn begun(lines: &str) -> Result<Journal> {
        Journal::parse(&(Line::stage_begin(1, &[ClientId(0)]).to_text() + lines), 1)
    }

    #[test]
    fn ids_survive_as_ranges() {
        for ids in [vec![], vec![3], vec![0, 1, 2, 3, 4, 6, 9, 10], vec![5, 7, 9]] {
            let ids: Vec<ClientId> = ids.into_iter().map(ClientId).collect();
            let journal = begun(&entry(4, &ranges(&ids))).unwrap();
            for id in (0..12).map(ClientId) {
                assert_eq!(journal.accepted(4, id), Some(ids.contains(&id)), "{id} in {ids:?}");
            }
            assert_eq!(journal.accepted(5, ClientId(3)), None);
            let Line::Exchange(line) = Line::parse(entry(4, &ranges(&ids)).trim_end()).unwrap()
            else {
                panic!("another kind of line");
            };
            assert_eq!(line.accepted_ids().unwrap(), ids);
        }
        assert_eq!(ranges(&[0, 1, 2, 3, 4, 6].map(ClientId)), "0-4,6");
    }

    #[test]
    fn a_huge_range_takes_no_memory() {
        let journal = begun(&entry(0, "7-4294967295")).unwrap();
        assert_eq!(journal.accepted(0, ClientId(6)), Some(false));
        assert_eq!(journal.accepted(0, ClientId(u32::MAX)), Some(true));
    }

    #[test]
    fn what_is_no_journal_is_refused_with_its_line() {
        let torn = entry(0, "1") + &entry(1, "2")[..20];
        let twice = entry(0, "1") + &entry(0, "1");
        let begins = Line::stage_begin(1, &[]).to_text().repeat(2);
        let judged = Line::evaluation(1, 3, &[]).to_text().repeat(2);
        for text in [&torn, &twice, &begins, &judged] {
            let error = Journal::parse(text, 1).unwrap_err().to_string();
            assert!(error.starts_with("journal: line 2: "), "{error}");
        }
        for ids in ["1-x", "5-3", "3,3", "4,1-2", ",", "1,", "-1"] {
            assert!(begun(&entry(0, ids)).is_err(), "{ids}");
        }
        let error = Journal::parse(&entry(0, "1"), 1).unwrap_err().to_string();
        assert_eq!(error, "journal: it ends before stage 1");
    }

    #[test]
    fn a_journal_has_its_golden_lines() {
        let ids = |ids: &[u32]| -> Vec<ClientId> { ids.iter().copied().map(ClientId).collect() };
        let done = Done {
            exchange: 2,
            round: Some(2),
            joined: ids(&[4, 5, 8]),
            cohort: ids(&[0, 1, 2, 4, 5, 8]),
            accepted: ids(&[0, 4, 5]),
            unsent: ids(&[1]),
            unheard: ids(&[1, 2, 8]),
        };
        let lines = [
            Line::stage_begin(1, &ids(&[0, 1, 2, 3])),
            Line::exchange(1, &done),
            Line::evaluation(1, 2, &ids(&[0, 1, 2, 3, 5])),
        ];
        let text: String = lines.iter().map(Line::to_text).collect();
        assert_eq!(
            text,
            "{\"stage\":1,\"enrolled\":\"0-3\"}\n\
             {\"stage\":1,\"exchange\":2,\"round\":2,\"joined\":\"4-5,8\",\"cohort\":\"0-2,4-5,8\",\
             \"accepted\":\"0,4-5\",\"unsent\":\"1\",\"unheard\":\"1-2,8\"}\n\
             {\"stage\":1,\"evaluated\":2,\"answered\":\"0-3,5\"}\n"
        );
        for (line, text) in lines.iter().zip(text.lines()) {
            assert_eq!(Line::parse(text).unwrap(), *line);
        }
        let journal = Journal::parse(&text, 1).unwrap();
        let each = |says: &dyn Fn(ClientId) -> bool| -> Vec<u32> {
            (0..10).filter(|id| says(ClientId(*id))).collect()
        };
        assert_eq!(each(&|id| journal.enrolled(id)), [0, 1, 2, 3]);
        assert_eq!(each(&|id| journal.joins(id) == Some(2)), [4, 5, 8]);
        assert_eq!(each(&|id| journal.unsent(2, id)), [1]);
        assert_eq!(each(&|id| journal.unheard(2, id)), [1, 2, 8]);
        assert_eq!(each(&|id| journal.answered(2, id)), [0, 1, 2, 3, 5]);
        assert_eq!(each(&|id| journal.answered(3, id)), [0; 0], "no client answered then");
    }

    #[test]
    fn a_line_names_everyone_up_to_its_highest_new_number() {
        let all = || ["north", "south", "west", "zed", "east"].map(String::from).to_vec();
        let ids = |ids: &[u32]| -> Vec<ClientId> { ids.iter().copied().map(ClientId).collect() };
        let mut naming = Naming::default();
        let mut line = |enrolled: &[u32]| {
            let enrolled = ids(enrolled);
            Line::stage_begin(0, &enrolled).naming(naming.next(&enrolled, &all)).to_text()
        };
        // `west` has a number and did not come; who comes after it brings its name along.
        let text = [line(&[0, 1]), line(&[1]), line(&[]), line(&[0, 1, 3])].concat();
        assert_eq!(
            text,
            "{\"stage\":0,\"enrolled\":\"0-1\",\"names\":[\"north\",\"south\"]}\n\
             {\"stage\":0,\"enrolled\":\"1\"}\n\
             {\"stage\":0,\"enrolled\":\"\"}\n\
             {\"stage\":0,\"enrolled\":\"0-1,3\",\"names\":[\"west\",\"zed\"]}\n"
        );
        assert_eq!(names(&text).unwrap(), ["north", "south", "west", "zed"]);
        let mut again = Naming::after(&text).unwrap();
        assert_eq!(again, naming);
        assert_eq!(again.next(&ids(&[4]), &all), ["east"]);
        let done = Done {
            exchange: 7,
            round: Some(7),
            joined: ids(&[4]),
            cohort: ids(&[4]),
            accepted: ids(&[4]),
            unsent: ids(&[]),
            unheard: ids(&[]),
        };
        let late = Line::exchange(0, &done).naming(vec!["east".into()]);
        assert_eq!(
            late.to_text(),
            "{\"stage\":0,\"exchange\":7,\"round\":7,\"joined\":\"4\",\"names\":[\"east\"],\
             \"cohort\":\"4\",\"accepted\":\"4\"}\n"
        );
        assert_eq!(Line::parse(late.to_text().trim_end()).unwrap(), late);
        let twice = late.to_text() + &late.to_text();
        let error = names(&twice).unwrap_err().to_string();
        assert_eq!(error, "journal: client \"east\" has two numbers");
    }

    #[test]
    fn a_client_that_never_came_is_looked_for_where_somebody_joined_alone() {
        let mut text: String = (0..40).map(|exchange| entry(exchange, "0")).collect();
        for (exchange, joined) in [(40, "3-4"), (45, "6")] {
            text += &entry(exchange, "0")
                .replace("\"cohort\"", &format!("\"joined\":\"{joined}\",\"cohort\""));
        }
        let journal = begun(&text).unwrap();
        assert_eq!(journal.joined.keys().copied().collect::<Vec<u32>>(), [40, 45]);
        let joins = [3, 4, 5, 6].map(|id| journal.joins(ClientId(id)));
        assert_eq!(joins, [Some(40), Some(40), None, Some(45)]);
    }
}
