//! Guesses whether a file is a table with missing cells: one observation per line, by the names of
//! its columns, or one row of the table per line, by its empty cells.

use super::{Entries, cell_text};
use crate::Dataset;
use crate::dataset::Kind;
use std::collections::HashSet;

/// The guessed layout of a table with missing cells.
#[derive(Clone, Debug, PartialEq)]
pub struct TableGuess {
    /// The column that labels the table's row.
    pub row: String,
    /// The columns that label the table's column; empty if each line is a row of the table.
    pub column: Vec<String>,
    /// The column of the value; empty if each line is a row of the table.
    pub value: String,
    /// The column of the client.
    pub client: Option<String>,
    pub entries: Entries,
    /// Rows, columns and observations of the table.
    pub shape: [usize; 3],
    /// Repeated observations of a cell.
    pub repeated: usize,
}

const VALUES: [&str; 15] = [
    "count",
    "counts",
    "value",
    "birds",
    "abundance",
    "number",
    "total",
    "rating",
    "score",
    "individuals",
    "anzahl",
    "wert",
    "nombre",
    "effectif",
    "valeur",
];
const ROWS: [&str; 17] = [
    "site", "plot", "location", "station", "place", "transect", "patient", "row", "item", "grid",
    "square", "route", "ort", "standort", "lieu", "placette", "parcelle",
];
const COLUMNS: [&str; 27] = [
    "year", "winter", "season", "month", "period", "week", "date", "day", "visit", "time", "wave",
    "rep", "species", "column", "jahr", "monat", "woche", "tag", "datum", "art", "annee", "année",
    "mois", "semaine", "jour", "espece", "espèce",
];
const CLIENTS: [&str; 12] = [
    "client",
    "observer",
    "group",
    "hospital",
    "centre",
    "center",
    "region",
    "user",
    "beobachter",
    "gruppe",
    "observateur",
    "groupe",
];

/// Most values of a column that tells repeated cells apart.
const LABELS_MAX: usize = 30;

/// The guessed layout; `None` if the file has neither form.
pub fn guess_table(data: &Dataset) -> Option<TableGuess> {
    long(data).or_else(|| wide(data))
}

/// Numbers with missing cells beside one column of distinct labels.
fn wide(data: &Dataset) -> Option<TableGuess> {
    let columns = data.columns();
    if columns.iter().any(|c| !c.named) {
        return None;
    }
    let usual =
        |names: &[&str], c: usize| names.iter().any(|n| columns[c].name.eq_ignore_ascii_case(n));
    let (numbers, others): (Vec<usize>, Vec<usize>) = (0..columns.len())
        .partition(|&c| columns[c].kind == Kind::Number && !usual(&ROWS, c) && !usual(&CLIENTS, c));
    let client = others.iter().copied().find(|&c| usual(&CLIENTS, c));
    let mut labels = others.iter().copied().filter(|c| Some(*c) != client);
    let (row, None) = (labels.next()?, labels.next()) else { return None };
    let names: HashSet<String> =
        (0..data.rows()).filter_map(|line| cell_text(data, line, row)).collect();
    let observed: usize = numbers
        .iter()
        .map(|&c| (0..data.rows()).filter(|&line| data.number(line, c).is_some()).count())
        .sum();
    let gaps = observed < numbers.len() * data.rows();
    if names.len() != data.rows() || data.rows() < 2 || numbers.len() < 2 || observed == 0 || !gaps
    {
        return None;
    }
    Some(TableGuess {
        row: columns[row].name.clone(),
        column: Vec::new(),
        value: String::new(),
        client: client.map(|c| columns[c].name.clone()),
        entries: entries(data, &numbers),
        shape: [names.len(), numbers.len(), observed],
        repeated: 0,
    })
}

/// Searches for usual names; `None` unless a row, a column and a value are found. The only text column is the
/// row, and the only other column of numbers the value, if they hardly repeat cells.
fn long(data: &Dataset) -> Option<TableGuess> {
    let named = |names: &[&str]| -> Vec<usize> {
        let at = |name: &&str| {
            data.columns().iter().position(|c| c.named && c.name.eq_ignore_ascii_case(name))
        };
        names.iter().filter_map(at).collect()
    };
    let is_number = |c: &usize| data.columns()[*c].named && data.columns()[*c].kind == Kind::Number;
    let mut column = named(&COLUMNS);
    let is_text = |c: &usize| data.columns()[*c].named && data.columns()[*c].kind == Kind::Text;
    let mut texts = (0..data.columns().len()).filter(|c| is_text(c) && !column.contains(c));
    let only_text = texts.next().filter(|_| texts.next().is_none());
    let named_row = named(&ROWS).first().copied();
    let row = named_row.or(only_text)?;
    let usual = named(&VALUES).into_iter().find(is_number);
    let taken = |c: &usize| *c == row || column.contains(c) || named(&CLIENTS).contains(c);
    let mut others = (0..data.columns().len()).filter(|c| is_number(c) && !taken(c));
    let only = others.next().filter(|_| others.next().is_none());
    let value = usual.or(only)?;
    let first = *column.first()?;
    let client = named(&CLIENTS).first().copied().filter(|c| *c != row);
    let mut counts = Counts::of(data, row, &column, value);
    // A further label, such as the substance that was measured, tells repeated cells apart.
    let is_label = |c: usize| {
        data.columns()[c].kind == Kind::Text
            && (2..=LABELS_MAX).contains(&data.distinct(c))
            && c != row
            && Some(c) != client
            && !column.contains(&c)
    };
    if 10 * counts.repeated > counts.cells {
        let with = |c: usize| Counts::of(data, row, &[&column[..], &[c]].concat(), value);
        let labels = (0..data.columns().len()).filter(|c| is_label(*c)).map(|c| (c, with(c)));
        let best = labels.min_by_key(|(_, counts)| counts.repeated);
        if let Some((c, own)) = best.filter(|(_, own)| 4 * own.repeated <= counts.repeated) {
            column.push(c);
            counts = own;
        }
    }
    let Counts { rows, columns, cells, repeated } = counts;
    // A table with one row or one column has nothing to share.
    if cells == 0 || first == row || rows < 2 || columns < 2 {
        return None;
    }
    if (usual.is_none() || named_row.is_none()) && 10 * repeated > cells {
        return None;
    }
    let name = |c: usize| data.columns()[c].name.clone();
    Some(TableGuess {
        row: name(row),
        column: column.into_iter().map(name).collect(),
        value: name(value),
        client: client.map(name),
        entries: entries(data, &[value]),
        shape: [rows, columns, cells + repeated],
        repeated,
    })
}

/// Sizes of a table: rows, columns, observed cells, and further observations of these.
struct Counts {
    rows: usize,
    columns: usize,
    cells: usize,
    repeated: usize,
}

impl Counts {
    fn of(data: &Dataset, row: usize, column: &[usize], value: usize) -> Self {
        let mut repeated = 0;
        let (mut rows, mut columns, mut cells) = (HashSet::new(), HashSet::new(), HashSet::new());
        for line in 0..data.rows() {
            let of = |c: usize| cell_text(data, line, c);
            let Some(row) = of(row) else { continue };
            let Some(column) = column.iter().map(|c| of(*c)).collect::<Option<Vec<_>>>() else {
                continue;
            };
            if data.number(line, value).is_some() && !cells.insert((row.clone(), column.clone())) {
                repeated += 1;
            }
            rows.insert(row);
            columns.insert(column);
        }
        Self { rows: rows.len(), columns: columns.len(), cells: cells.len(), repeated }
    }
}

/// The narrowest kind that all values of these columns fit.
fn entries(data: &Dataset, columns: &[usize]) -> Entries {
    let value = |line: usize, c: &usize| data.number(line, *c);
    let is_all = |sort: &Entries| {
        let mut values =
            (0..data.rows()).flat_map(|line| columns.iter().filter_map(move |c| value(line, c)));
        values.all(|x| sort.refuse(x).is_none())
    };
    [Entries::Binary, Entries::Counts].into_iter().find(is_all).unwrap_or(Entries::Numbers)
}
