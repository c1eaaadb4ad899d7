//! Labels of a table's rows or columns: their order, and which are known.

use super::missing;
use crate::dataset::MISSING_CODE;
use crate::defect::Reasons;
use crate::source::Source;
use crate::{Dataset, Error, Result, parse_number};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

/// The labels of one side of a table.
pub(super) struct Labels {
    /// `row` or `column`, for messages.
    side: &'static str,
    /// The file's columns that make up a label.
    at: Vec<usize>,
    names: Vec<String>,
    index: HashMap<String, u32>,
    /// Labels by the codes of the file's columns, so that each is composed once.
    by_codes: HashMap<Vec<u32>, Option<u32>>,
    /// The codes of each label, to detect two that compose the same label.
    codes_of: HashMap<u32, Vec<u32>>,
    /// Whether the labels are given, so that others are refused.
    given: bool,
}

impl Labels {
    pub fn new(side: &'static str, at: Vec<usize>, known: Option<&[String]>) -> Result<Self> {
        let mut labels = Self {
            side,
            at,
            names: Vec::new(),
            index: HashMap::new(),
            by_codes: HashMap::new(),
            codes_of: HashMap::new(),
            given: known.is_some(),
        };
        for name in known.unwrap_or_default() {
            if labels.index.contains_key(name) {
                return Err(Error::config(format!("{side} label {name:?} is listed twice")));
            }
            labels.add(name.clone());
        }
        Ok(labels)
    }

    pub fn name(&self, at: u32) -> &str {
        &self.names[at as usize]
    }

    pub fn find(&self, name: &str) -> Option<u32> {
        self.index.get(name).copied()
    }

    /// The label of a numbered line; `None` if the labels are given without it.
    pub fn intern(&mut self, number: usize) -> Option<u32> {
        self.find_or_add(number.to_string())
    }

    /// The label of a line; without one, a reason is added.
    pub fn of_line(&mut self, data: &Dataset, line: usize, reasons: &mut Reasons) -> Option<u32> {
        let codes: Vec<u32> =
            self.at.iter().map(|&c| data.texts[data.slots[c]].codes[line]).collect();
        if let Some(at) = codes.iter().position(|&code| code == MISSING_CODE) {
            missing(data, self.at[at], reasons);
            return None;
        }
        let found = match self.by_codes.get(&codes) {
            Some(found) => *found,
            None => {
                let name = self.parts(data, &codes).join("-");
                let found = self.find_or_add(name.clone());
                if let Some(other) = found.and_then(|label| self.codes_of.get(&label)) {
                    let why = format!(
                        "{:?} and {:?} both make the {} label {name:?}: rename one of them",
                        self.parts(data, other),
                        self.parts(data, &codes),
                        self.side
                    );
                    reasons.push((Some(data.columns()[self.at[0]].name.clone()), why));
                    return None;
                }
                found.map(|label| self.codes_of.insert(label, codes.clone()));
                self.by_codes.insert(codes, found);
                found
            }
        };
        if found.is_none() {
            let shown = data.text(line, self.at[0]).unwrap_or_default();
            let column = data.columns()[self.at[0]].name.clone();
            let why = format!("{shown:?} is not in the list of {} labels", self.side);
            reasons.push((Some(column), why));
        }
        found
    }

    /// The texts of the file's columns with these codes.
    fn parts<'a>(&self, data: &'a Dataset, codes: &[u32]) -> Vec<&'a str> {
        let parts = self.at.iter().zip(codes);
        parts.map(|(&c, &code)| &*data.texts[data.slots[c]].names[code as usize]).collect()
    }

    /// The sorted labels, and the new place of each. Given labels keep their order.
    pub fn sorted(&self) -> (Arc<[String]>, Vec<u32>) {
        if self.given {
            return self.as_given();
        }
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        sort_labels(&mut order, &self.names);
        let mut place = vec![0; order.len()];
        for (to, &from) in order.iter().enumerate() {
            place[from] = to as u32;
        }
        (order.iter().map(|&i| self.names[i].clone()).collect(), place)
    }

    /// The labels in order of appearance.
    pub fn as_given(&self) -> (Arc<[String]>, Vec<u32>) {
        (self.names.iter().cloned().collect(), (0..self.names.len() as u32).collect())
    }

    fn find_or_add(&mut self, name: String) -> Option<u32> {
        match self.find(&name) {
            Some(at) => Some(at),
            None if self.given => None,
            None => Some(self.add(name)),
        }
    }

    fn add(&mut self, name: String) -> u32 {
        let at = self.names.len() as u32;
        self.names.push(name.clone());
        self.index.insert(name, at);
        at
    }
}

/// Reads labels, one per line; blank lines are skipped.
pub fn read_labels(path: impl AsRef<Path>) -> Result<Vec<String>> {
    let source = Source::File(path.as_ref());
    let name = source.name();
    let mut labels = Vec::new();
    for line in std::io::BufReader::new(source.open()?).lines() {
        let line = line.map_err(|e| Error::storage(&name, &e))?;
        let label = line.trim();
        if !label.is_empty() {
            labels.push(label.to_owned());
        }
    }
    if labels.is_empty() {
        return Err(Error::format(&name, "the file has no labels").hint("one label per line"));
    }
    Ok(labels)
}

/// Sorts numbers by value, names of months by the calendar, and other text with its numbers by value:
/// `week 2` before `week 10`.
pub(super) fn sort_labels(order: &mut [usize], names: &[String]) {
    let numbers: Option<Vec<f64>> =
        names.iter().map(|name| parse_number(name.as_bytes())).collect();
    if let Some(numbers) = numbers {
        order.sort_by(|&a, &b| numbers[a].total_cmp(&numbers[b]).then(names[a].cmp(&names[b])));
        return;
    }
    let months: Option<Vec<usize>> = names.iter().map(|name| month(name)).collect();
    match months {
        Some(months) => order.sort_by_key(|&i| (months[i], &names[i])),
        None => order.sort_by(|&a, &b| natural(&names[a], &names[b])),
    }
}

/// The month of an English name or of its first three letters.
fn month(name: &str) -> Option<usize> {
    const MONTHS: &str = "january february march april may june july august september october \
                          november december";
    let name = name.to_ascii_lowercase();
    let is_it = |month: &str| month == name || (name.len() == 3 && month.starts_with(&name));
    MONTHS.split(' ').position(is_it)
}

/// Compares runs of digits as numbers and everything else as text.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a.as_bytes(), b.as_bytes());
    while let (Some(&p), Some(&q)) = (x.first(), y.first()) {
        if p.is_ascii_digit() && q.is_ascii_digit() {
            let (m, n) = (digits(x), digits(y));
            let (u, v) = (significant(&x[..m]), significant(&y[..n]));
            let order = u.len().cmp(&v.len()).then_with(|| u.cmp(v));
            if order != Ordering::Equal {
                return order;
            }
            (x, y) = (&x[m..], &y[n..]);
        } else if p != q {
            return p.cmp(&q);
        } else {
            (x, y) = (&x[1..], &y[1..]);
        }
    }
    x.len().cmp(&y.len()).then_with(|| a.cmp(b))
}

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|b| b.is_ascii_digit()).count()
}

fn significant(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|&&b| b == b'0').count();
    &digits[zeros..]
}
