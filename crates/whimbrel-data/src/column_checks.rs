//! Columns that look like numbers or text but are identifiers, or numbers with decimal commas.

use crate::dataset::Kind;
use crate::{Dataset, Error, Result, parse_number};
use std::borrow::Cow;
use std::collections::HashSet;

/// Names of columns that identify rows, beside those that end in `id`.
const NAMES: [&str; 20] = [
    "id",
    "index",
    "rowid",
    "uid",
    "uuid",
    "pid",
    "mrn",
    "userid",
    "identifier",
    "key",
    "record",
    "row",
    "nr",
    "no",
    "case_no",
    "case_nr",
    "study_nr",
    "subject",
    "participant",
    "unnamed: 0",
];

/// Integers in a column named like an identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identifier {
    /// All distinct: the column identifies rows, and is a feature only on request.
    OfRows,
    /// Repeated: the column may identify groups of rows.
    OfGroups,
}

impl Dataset {
    /// The kind of identifier, if the column holds integers and has a name like `id` or `patient_id`.
    pub fn identifier(&self, column: usize) -> Option<Identifier> {
        let named = &self.columns()[column];
        if named.kind != Kind::Number || !is_identifiers_name(&named.name) || self.rows() < 2 {
            return None;
        }
        let mut seen = HashSet::new();
        let mut repeated = false;
        for row in 0..self.rows() {
            let x = self.number(row, column)?;
            if x.fract() != 0.0 {
                return None;
            }
            repeated |= !seen.insert(x.to_bits());
        }
        Some(if repeated { Identifier::OfGroups } else { Identifier::OfRows })
    }

    /// Refuses a text column of numbers with decimal commas, which would be left out silently.
    pub(crate) fn refuse_decimal_commas(&self, column: usize) -> Result<()> {
        let texts = match self.columns()[column].kind {
            Kind::Text => &self.texts[self.slots[column]].names,
            Kind::Number => return Ok(()),
        };
        // Some cells may be remarks.
        let is_number = |text: &&String| has_decimal_comma(&without_thousands(text));
        let Some(first) = texts.iter().find(is_number) else { return Ok(()) };
        if 2 * texts.iter().filter(is_number).count() <= texts.len() {
            return Ok(());
        }
        let name = &self.columns()[column].name;
        if texts.iter().filter(is_number).all(|text| has_groups(text)) {
            let what = format!("column {name:?} holds numbers with commas, as in {first}");
            return Err(Error::format(self.name(), what).hint(THOUSANDS));
        }
        let what = format!("column {name:?} holds numbers with decimal commas, as in {first}");
        Err(Error::format(self.name(), what).hint(if has_points(first) {
            "if points separate thousands, write thousands = \".\" in [data]"
        } else {
            "write decimals with a point, or separate columns with semicolons; `columns` can leave \
             the column out"
        }))
    }
}

/// `id`, `patient_id`, `patient-id`, `patient.id`, `patientId`, `patientID`, `id_patient`.
fn is_identifiers_name(name: &str) -> bool {
    let lower = name.trim().to_lowercase();
    let parted = |c: char| "_-. ".contains(c);
    let camel = name.strip_suffix("Id").or(name.strip_suffix("ID"));
    NAMES.contains(&lower.as_str())
        || lower.strip_suffix("id").is_some_and(|rest| rest.ends_with(parted))
        || lower.strip_prefix("id").is_some_and(|rest| rest.starts_with(parted))
        || camel.is_some_and(|rest| rest.ends_with(|c: char| c.is_lowercase()))
}

/// `3.805,22` as `3805,22`: points between groups of three digits before a comma.
fn without_thousands(text: &str) -> Cow<'_, str> {
    let Some((whole, _)) = text.split_once(',') else { return text.into() };
    let mut groups = whole.split('.').skip(1).peekable();
    let of_three = |group: &str| group.len() == 3 && group.bytes().all(|b| b.is_ascii_digit());
    if groups.peek().is_some() && groups.all(of_three) {
        (whole.replace('.', "") + &text[whole.len()..]).into()
    } else {
        text.into()
    }
}

/// Whether points part the digits in groups of three before a decimal comma, as in `1.000,5`.
pub(crate) fn has_points(text: &str) -> bool {
    matches!(without_thousands(text), Cow::Owned(plain) if has_decimal_comma(&plain))
}

/// The advice for numbers such as `1,000`.
pub(crate) const THOUSANDS: &str = "if the comma separates thousands, write thousands = \",\" in [data]; if it is a \
     decimal comma, write a point";

/// Whether commas part the digits in groups of three, as in `1,000`.
pub(crate) fn has_groups(text: &str) -> bool {
    let digits = |group: &str| group.bytes().all(|b| b.is_ascii_digit());
    let mut groups = text.trim_start_matches('-').split(',');
    let first = groups.next().is_some_and(|g| (1..=3).contains(&g.len()) && digits(g));
    let mut rest = groups.peekable();
    first && rest.peek().is_some() && rest.all(|g| g.len() == 3 && digits(g))
}

/// Whether the text is a number with a decimal comma.
pub(crate) fn has_decimal_comma(text: &str) -> bool {
    decimal_comma(text.as_bytes()).is_some()
}

/// The value of a number with a decimal comma; `None` if the text has a point or is not a number.
pub(crate) fn decimal_comma(text: &[u8]) -> Option<f64> {
    let at = text.iter().position(|b| *b == b',')?;
    if text.contains(&b'.') {
        return None;
    }
    let mut pointed = text.to_vec();
    pointed[at] = b'.';
    parse_number(&pointed).filter(|x| x.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_identifiers() {
        for name in [
            "mrn",
            "Subject",
            "case_no",
            "id",
            "ID",
            "patient_id",
            "patient id",
            "patientId",
            "patientID",
            "id_no",
        ] {
            assert!(is_identifiers_name(name), "{name}");
        }
        for name in ["acid", "humid", "width", "grid", "ACID", "idle", "solid", "x"] {
            assert!(!is_identifiers_name(name), "{name}");
        }
    }

    #[test]
    fn points_may_group_thousands_before_a_comma() {
        assert_eq!(without_thousands("3.805,22"), "3805,22");
        assert_eq!(without_thousands("-1.234.567,8"), "-1234567,8");
        for text in ["1.5", "3.80,22", "3.8055,2", "k.A.", "8,40"] {
            assert_eq!(without_thousands(text), text);
        }
    }

    #[test]
    fn one_comma_is_a_point() {
        assert_eq!(decimal_comma(b"1,5"), Some(1.5));
        assert_eq!(decimal_comma(b"-0,25e3"), Some(-250.0));
        for text in ["1.5", "1.234,5", "1,2,3", "a,b", ",", "5"] {
            assert_eq!(decimal_comma(text.as_bytes()), None, "{text}");
        }
    }
}
