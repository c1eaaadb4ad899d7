//! Guesses about the cells of a text file: marks of gaps and of thousands, dates, signs of units.

use crate::column_checks::{has_decimal_comma, has_groups, has_points};
use crate::csv::Spelling;
use crate::dataset::{Dataset, Kind};
use crate::defect::Why;
use crate::split::value_classes;

/// Texts that usually mark a gap, in lower case.
const GAPS: [&str; 15] = [
    ".", "-", "--", "?", "n/a", "n.a.", "#n/a", "none", "null", "missing", "unknown", "k.a.",
    "nil", "*", "..",
];

/// Whether a text usually marks a gap.
pub(crate) fn is_gap(text: &str) -> bool {
    GAPS.contains(&text.to_lowercase().as_str())
}

/// Fewest other values of a column with a mark of a gap.
const DISTINCT_MIN: usize = 3;

/// Fewest non-negative values of a column that is not a short scale.
const SCALE_MIN: usize = 10;

/// The kind of text that numbers are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Days or months, with or without a time.
    Dates,
    /// Numbers with a sign of their unit.
    Signs,
    /// Numbers with commas between groups of three digits.
    Groups,
}

impl Written {
    /// The defect of such a column, and the remedy.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Dates => "it holds dates: add a column of years or months",
            Self::Signs => "its numbers have signs: take out $, % and units",
            Self::Groups => "its numbers are grouped: write thousands = \",\" in [data]",
        }
    }
}

/// A number that may mark a gap.
#[derive(Debug, Clone, PartialEq)]
pub struct GapMark {
    pub value: f64,
    pub rows: usize,
    /// The smallest and the largest other value of the column.
    pub rest: [f64; 2],
}

impl Dataset {
    /// Numbers that usually mark a gap and lie far outside the other values of a column: -9, 99, -99, 999
    /// and so on, further away than the others spread; -1 as the only negative value.
    pub fn gap_marks(&self, column: usize) -> Vec<GapMark> {
        if self.columns()[column].kind != Kind::Number {
            return Vec::new();
        }
        let numbers = (0..self.rows()).filter_map(|row| self.number(row, column));
        let (marks, rest): (Vec<_>, Vec<_>) =
            value_classes(numbers, usize::MAX).into_iter().partition(|(x, _)| is_gap_number(*x));
        if rest.len() < DISTINCT_MIN {
            return Vec::new();
        }
        let (low, high) =
            rest.iter().fold((f64::MAX, f64::MIN), |(l, h), (x, _)| (l.min(*x), h.max(*x)));
        // A scale such as -1, 0, 1 has few values and a zero.
        let is_far = |x: f64| {
            if x == -1.0 {
                low > 0.0 || low == 0.0 && rest.len() >= SCALE_MIN
            } else {
                (low - x).max(x - high) > high - low
            }
        };
        let far = marks.into_iter().filter(|(x, _)| is_far(*x));
        far.map(|(value, rows)| GapMark { value, rows: rows.len(), rest: [low, high] }).collect()
    }

    /// Marks of gaps among numbers, and commas or points between groups of three digits. In a file with
    /// such marks, those without letters are gaps of texts, too.
    pub fn guess_spelling(&self) -> Spelling {
        let unreadable =
            self.bad.iter().flat_map(|cells| &cells.first).filter_map(|cell| match &cell.why {
                Why::NotANumber(text) => Some(text),
                _ => None,
            });
        let mut na: Vec<String> = unreadable.clone().filter(|text| is_gap(text)).cloned().collect();
        let texts = (0..self.columns().len()).filter(|at| self.columns()[*at].kind == Kind::Text);
        let grouped = |at: usize| {
            let cells = &self.texts[self.slots[at]].names;
            let known: Vec<&String> = cells.iter().filter(|text| !is_gap(text)).collect();
            let marks = known.iter().filter(|text| is_grouped(text)).count();
            marks > 0 && known.iter().filter(|text| is_number(text)).count() == known.len()
        };
        let mut thousands = unreadable.clone().any(|text| is_grouped(text)).then_some(b',');
        let mut points = unreadable.clone().any(|text| has_points(text));
        for at in texts.clone() {
            let cells = &self.texts[self.slots[at]].names;
            let gaps = cells.iter().filter(|text| is_gap(text));
            if grouped(at) {
                thousands = Some(b',');
                na.extend(gaps.cloned());
            } else if cells.iter().all(|text| is_gap(text) || is_european(text)) {
                points |= cells.iter().any(|text| has_points(text));
                na.extend(gaps.filter(|_| points).cloned());
            }
        }
        let has_gaps = !na.is_empty();
        for at in texts.filter(|_| has_gaps) {
            let (gaps, others): (Vec<&String>, Vec<_>) =
                self.texts[self.slots[at]].names.iter().partition(|text| is_gap(text));
            let marks = gaps.into_iter().filter(|text| !text.contains(char::is_alphabetic));
            na.extend(marks.filter(|_| others.len() > 1).cloned());
        }
        na.sort_unstable();
        na.dedup();
        Spelling { na, thousands: if points { Some(b'.') } else { thousands } }
    }

    /// Whether a column of numbers has cells that are neither numbers nor gaps.
    pub fn has_unreadable(&self, column: usize) -> bool {
        self.bad[column].count > 0
    }

    /// The kind of text in a column, if most of its values are of one kind.
    pub fn written(&self, column: usize) -> Option<Written> {
        if self.columns()[column].kind != Kind::Text {
            return None;
        }
        let names = &self.texts[self.slots[column]].names;
        let most = |is: &dyn Fn(&str) -> bool| {
            2 * names.iter().filter(|text| is(text)).count() > names.len()
        };
        match () {
            () if most(&is_date) => Some(Written::Dates),
            () if most(&has_sign) => Some(Written::Signs),
            () if names.iter().any(|text| is_grouped(text)) && most(&is_number) => {
                Some(Written::Groups)
            }
            () => None,
        }
    }
}

fn is_number(text: &str) -> bool {
    is_grouped(text) || text.parse::<f64>().is_ok()
}

/// `1.234,50`, `12,5`, `7`.
fn is_european(text: &str) -> bool {
    has_points(text) || has_decimal_comma(text) || text.parse::<f64>().is_ok()
}

/// Whether a number usually marks a gap: -1, -9, and two or more nines with either sign.
fn is_gap_number(x: f64) -> bool {
    let nines = |digits| 10f64.powi(digits) - 1.0;
    x == -1.0 || x == -9.0 || (2..10).any(|digits| x.abs() == nines(digits))
}

/// `1,000`, `1,234.50`.
fn is_grouped(text: &str) -> bool {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    has_groups(whole) && rest.bytes().all(|b| b.is_ascii_digit())
}

/// `2024-05-17`, `17.05.2024`, `5/17/24`, `2024-05`, each with or without a time.
fn is_date(text: &str) -> bool {
    let day = text.split([' ', 'T']).next().unwrap_or("");
    let Some(mark) = day.chars().find(|c| "-/.".contains(*c)) else { return false };
    let parts: Vec<&str> = day.split(mark).collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let years = parts.iter().filter(|part| part.len() == 4).count();
    let short = parts.iter().filter(|part| part.len() <= 2).count();
    let is_split = match parts.len() {
        3 => years + short == 3 && years <= 1,
        2 => years == 1 && short == 1 && mark != '.',
        _ => false,
    };
    is_split && parts.iter().all(digits)
}

/// `$12.50`, `20 %`, `7 kg`: a number with a sign or, after a space, a unit.
fn has_sign(text: &str) -> bool {
    const SIGNS: [char; 5] = ['$', '€', '£', '%', ' '];
    let bare = text.trim_matches(SIGNS);
    let number = match bare.split_once(' ') {
        Some((number, unit)) if unit.chars().all(char::is_alphabetic) => number,
        _ => bare,
    };
    number.len() < text.len() && (number.parse::<f64>().is_ok() || is_grouped(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CsvOptions, Source, read_csv};

    #[test]
    fn dates_and_signs() {
        for text in [
            "2024-05-17",
            "17.05.2024",
            "5/17/24",
            "2024-05",
            "2024-05-17T10:00:00",
            "1.5.2024 12:00",
        ] {
            assert!(is_date(text), "{text}");
        }
        for text in ["12.5", "1.2.3.4", "2024", "10-20", "a-b-c", "192.168.0", "3-4"] {
            assert!(!is_date(text), "{text}");
        }
        for text in ["$12.50", "20%", "7 kg", "€1,200", "-3 %"] {
            assert!(has_sign(text), "{text}");
        }
        for text in ["12.5", "kg", "SKU004", "A1", "5A", "4-6 kg", ""] {
            assert!(!has_sign(text), "{text}");
        }
    }

    #[test]
    fn gaps_and_thousands() {
        let guess = |text: &str| {
            let source = Source::bytes("d.csv", text);
            read_csv(source, &CsvOptions::default()).unwrap().guess_spelling()
        };
        let plain = guess("x,y\n1,a\n2,b\n");
        assert_eq!(plain, Spelling::default());
        let gaps = guess("x,y\n1,.\n2,3\nN/A,4\n5,6\nhm,7\n");
        assert_eq!((gaps.na, gaps.thousands), (vec![".".into(), "N/A".into()], None));
        let marks = guess("x\n\"1,200\"\n\"31,245.50\"\n850\n-\n");
        assert_eq!((marks.na, marks.thousands), (vec!["-".into()], Some(b',')));
        let points = guess("x;c\n1.200,5;a\n31.245,50;.\n850,0;b\n-;a\n");
        assert_eq!((points.na, points.thousands), (vec!["-".into(), ".".into()], Some(b'.')));
        let texts = guess("x,c,rh\n1,low,+\nn/a,.,-\n2,none,+\n3,high,-\n");
        assert_eq!(texts.na, [".", "n/a"]);
        // Decimal commas are not thousands.
        assert_eq!(guess("x\n\"1,2\"\n\"1,234\"\n").thousands, None);
    }

    #[test]
    fn numbers_that_mark_gaps_lie_far_outside() {
        let marks = |cells: &[f64]| -> Vec<f64> {
            let rows: Vec<String> = cells.iter().map(f64::to_string).collect();
            let text = format!("x\n{}\n", rows.join("\n"));
            let data = read_csv(Source::bytes("d.csv", &text), &CsvOptions::default()).unwrap();
            data.gap_marks(0).iter().map(|mark| mark.value).collect()
        };
        assert_eq!(marks(&[18.0, 97.0, 999.0, 44.0, 999.0]), [999.0]);
        assert_eq!(marks(&[-20.0, 35.0, -999.0, 4.0, 9999.0]), [-999.0, 9999.0]);
        assert_eq!(marks(&[1.0, 5.0, 99.0, 3.0]), [99.0]);
        assert_eq!(marks(&[0.0, 3.0, -9.0, 2.0]), [-9.0]);
        assert_eq!(marks(&[18.0, 90.0, -1.0, 33.0]), [-1.0]);
        let counts: Vec<f64> = (-1..10).map(f64::from).collect();
        assert_eq!(marks(&counts), [-1.0]);
        // Values of a scale, and nines among their neighbours.
        for cells in [
            &[-1.0, 0.0, 1.0, 2.0][..],
            &[-1.0, -2.0, 3.0, 4.0],
            &[-1.0, 1.0, 1.0],
            &[96.0, 97.0, 98.0, 99.0, 100.0],
            &[500.0, 9000.0, 9999.0, 120.0],
            &[5.0, 6.0, 998.0, 999.0],
        ] {
            assert!(marks(cells).is_empty(), "{cells:?}");
        }
    }
}
