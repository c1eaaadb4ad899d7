//! The rule of the smallest group for cells: values of a column that few rows have.
//!
//! Sums over rows are linear in the rows' weights, so a sum over the rows with a rare value follows from
//! sums over columns: the information matrix of a regression holds `Σ w x_j z`, which is `w z` of one row if
//! `x_j` is 1 in that row alone. Under `min_group = G` a value *stands out* on a client
//! - if 1 to `G - 1` rows have it, in a column with levels, or of at most three numbers: sums of `1`, `x` and
//!   `x²` separate three numbers. A gap counts as a value;
//! - in other columns, if 1 to `G - 1` rows differ from the most frequent value, or have a gap.
//!
//! [`cells`] reads such cells as the column's most frequent value, and adds gaps to few of them. [`rows`], for
//! regressions, leaves such rows out, to a fixed point: a selection on covariates keeps coefficients
//! consistent. Both depend on the client's rows alone, so all stages of a run read the same cells.
//!
//! [`surrogates`], for mixtures, replaces all rows once, before the first message.

use crate::microaggregation;
use std::collections::BTreeMap;
use whimbrel_core::{ClientData, FeatureRows, Labelled, Result, Table};
use whimbrel_models::glm::{Design, Family, Model, Rows, Scaling, Term};

/// The most numbers that sums of `1`, `x` and `x²` separate.
const SEPARATED_MAX: usize = 3;

/// The cells and rows of a client that the rule keeps back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Withheld {
    /// Replaced cells.
    pub cells: u64,
    /// Rows left out.
    pub rows: u64,
}

impl Withheld {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { cells: self.cells + other.cells, rows: self.rows + other.rows }
    }

    /// A sentence about them; `None` without any.
    pub fn sentence(&self, group: u32) -> Option<String> {
        let count = |count: u64, what: &str| match count {
            1 => format!("1 {what} is"),
            count => format!("{count} {what}s are"),
        };
        let each = [
            (self.rows, "row", "left out"),
            (self.cells, "cell", "read as the most frequent value of the column"),
        ];
        let each = each.iter().filter(|(n, ..)| *n > 0);
        let said: Vec<String> =
            each.map(|(n, what, fate)| format!("{} {fate}", count(*n, what))).collect();
        let carry = if self.rows > 0 { " or carry such sums" } else { "" };
        let why =
            format!("fewer than min_group = {group} rows of a client have such values{carry}");
        (!said.is_empty()).then(|| format!("withheld: {}; {why}", said.join(", ")))
    }
}

/// Cells that stand out, and the value that replaces them.
struct Outstanding {
    places: Vec<usize>,
    most_frequent: f64,
}

/// The cells of a column that stand out.
fn outstanding(values: &[f64], has_levels: bool, group: usize) -> Outstanding {
    let is_small = |count: usize| (1..group).contains(&count);
    let (counts, few_values) = counted(values, has_levels || values.len() < 2 * group);
    // The first of the most frequent values.
    let most = counts.iter().rev().max_by_key(|(_, count)| **count).map(|(key, _)| *key);
    let places = |rare: &dyn Fn(u64) -> bool| -> Vec<usize> {
        (0..values.len()).filter(|at| rare(key(values[*at]))).collect()
    };
    let most = most.unwrap_or_default();
    let found = if has_levels || few_values {
        places(&|key| key != most && is_small(counts[&key]))
    } else if is_small(values.len() - counts.get(&most).copied().unwrap_or(0)) {
        places(&|key| key != most)
    } else {
        Vec::new()
    };
    Outstanding { places: found, most_frequent: f64::from_bits(most) }
}

/// The key of a value: gaps are equal, and so are both zeros.
fn key(x: f64) -> u64 {
    if x.is_nan() { f64::NAN.to_bits() } else { (x + 0.0).to_bits() }
}

/// The number of rows of each value, and whether sums separate the values. Without `all`, of many values only
/// that of the majority is counted, if there is one.
fn counted(values: &[f64], all: bool) -> (BTreeMap<u64, usize>, bool) {
    let gap = key(f64::NAN);
    let mut counts = BTreeMap::new();
    for x in values {
        *counts.entry(key(*x)).or_insert(0) += 1;
        if !all && counts.len() > SEPARATED_MAX + 1 {
            return (majority(values), false);
        }
    }
    let numbers = counts.keys().filter(|key| **key != gap).count();
    (counts, numbers <= SEPARATED_MAX)
}

/// The number of rows of the value that more than half of the rows have, by Boyer and Moore's vote; of some
/// other value if there is none.
fn majority(values: &[f64]) -> BTreeMap<u64, usize> {
    let (mut most, mut votes) = (0, 0_usize);
    for own in values.iter().map(|x| key(*x)) {
        match votes {
            0 => (most, votes) = (own, 1),
            _ if own == most => votes += 1,
            _ => votes -= 1,
        }
    }
    BTreeMap::from([(most, values.iter().filter(|x| key(**x) == most).count())])
}

/// Replaces the cells that stand out; `levels` are the levels of each column, empty for numbers. Targets
/// count as a column.
pub fn cells(data: &mut ClientData, levels: &[Vec<String>], group: u32) -> Withheld {
    let group = group as usize;
    let cells = match data {
        ClientData::Table(table) => in_table(table, levels, group),
        ClientData::Labelled(rows) => in_rows(rows, group),
        _ => 0,
    };
    Withheld { cells, rows: 0 }
}

/// Replaces the rows of a table by [surrogates](microaggregation::surrogates), held-out rows apart from
/// training rows. Rows with a number that is not finite remain for the method to refuse, and fewer rows
/// than a group for the client, which does not take part on a network.
pub fn surrogates(data: &mut ClientData, group: u32) -> Result<()> {
    let ClientData::Table(table) = data else { return Ok(()) };
    let held_out = [&mut table.held_out.validation, &mut table.held_out.test];
    let parts = held_out.into_iter().flatten().map(|part| &mut part.values);
    let width = table.columns.len();
    for values in parts.chain([&mut table.values]) {
        if values.iter().all(|x| x.is_finite()) {
            microaggregation::surrogates(values, width, group as usize)?;
        }
    }
    Ok(())
}

fn in_table(table: &mut Table, levels: &[Vec<String>], group: usize) -> u64 {
    let (width, mut count) = (table.width(), 0);
    for column in 0..width {
        let mut values: Vec<f64> = (0..table.rows()).map(|row| table.row(row)[column]).collect();
        let before = values.clone();
        let has_levels = levels.get(column).is_some_and(|levels| !levels.is_empty());
        replace(&mut values, has_levels, group);
        let gaps = values.iter().filter(|x| x.is_nan()).count();
        if (1..group).contains(&gaps) {
            // A column of numbers: further gaps, the last cells, hide which rows lack one.
            let observed = values.iter_mut().rev().filter(|x| !x.is_nan());
            observed.take(group - gaps).for_each(|x| *x = f64::NAN);
            replace(&mut values, has_levels, group);
        }
        for (row, (value, before)) in values.iter().zip(&before).enumerate() {
            if value.to_bits() != before.to_bits() {
                table.values[row * width + column] = *value;
                count += 1;
            }
        }
    }
    count
}

fn replace(values: &mut [f64], has_levels: bool, group: usize) -> u64 {
    let found = outstanding(values, has_levels, group);
    found.places.iter().for_each(|at| values[*at] = found.most_frequent);
    found.places.len() as u64
}

fn in_rows(rows: &mut Labelled, group: usize) -> u64 {
    let (n, width) = (rows.len(), rows.width());
    let mut count = replace(&mut rows.targets, false, group);
    match &mut rows.rows {
        FeatureRows::Dense(values) => {
            for column in 0..width {
                let own: Vec<f64> = values.iter().skip(column).step_by(width).copied().collect();
                let found = outstanding(&own, false, group);
                count += found.places.len() as u64;
                found
                    .places
                    .iter()
                    .for_each(|at| values[at * width + column] = found.most_frequent);
            }
        }
        FeatureRows::Sparse { starts, columns, values } => {
            let mut own = vec![Vec::new(); width];
            for row in 0..n {
                for at in starts[row]..starts[row + 1] {
                    own[columns[at] as usize].push((row, values[at]));
                }
            }
            let mut edits = vec![Vec::new(); n];
            for (column, own) in own.iter().enumerate() {
                let found = outstanding_of_sparse(own, n, group);
                count += found.places.len() as u64;
                let edit = (column as u32, found.most_frequent);
                found.places.iter().for_each(|row| edits[*row].push(edit));
            }
            if edits.iter().any(|edits| !edits.is_empty()) {
                rows.rows = edited(starts, columns, values, &edits);
            }
        }
    }
    count
}

/// [`outstanding`] of a column that is zero outside these rows.
fn outstanding_of_sparse(own: &[(usize, f64)], rows: usize, group: usize) -> Outstanding {
    let zeros = rows - own.len();
    if zeros > 0 && (1..group).contains(&own.len()) && zeros >= own.len() {
        // Most columns of sparse data: their own cells are all that few rows have.
        let places = own.iter().filter(|(_, x)| *x != 0.0).map(|(row, _)| *row).collect();
        return Outstanding { places, most_frequent: 0.0 };
    }
    let mut values = vec![0.0; rows];
    own.iter().for_each(|(row, x)| values[*row] = *x);
    outstanding(&values, false, group)
}

/// The sparse rows with some cells replaced; edits of a row are in ascending order of columns.
fn edited(
    starts: &[usize],
    columns: &[u32],
    values: &[f64],
    edits: &[Vec<(u32, f64)>],
) -> FeatureRows {
    let (mut to, mut to_columns, mut to_values) = (vec![0], Vec::new(), Vec::new());
    for (row, edits) in edits.iter().enumerate() {
        let of_row = starts[row]..starts[row + 1];
        let kept = columns[of_row.clone()].iter().copied().zip(values[of_row].iter().copied());
        let kept = kept.filter(|(column, _)| edits.iter().all(|(edited, _)| edited != column));
        let mut cells: Vec<(u32, f64)> =
            kept.chain(edits.iter().copied().filter(|(_, x)| *x != 0.0)).collect();
        cells.sort_by_key(|(column, _)| *column);
        to_columns.extend(cells.iter().map(|(column, _)| *column));
        to_values.extend(cells.iter().map(|(_, x)| *x));
        to.push(to_columns.len());
    }
    FeatureRows::Sparse { starts: to, columns: to_columns, values: to_values }
}

/// Leaves out the rows of a regression in which a column of the design stands out, by making all their
/// cells gaps. All rows are left out if a class of the target or the events stand out, which a selection of
/// rows would bias, if no more rows remain than the group or the coefficients (two sums of products of so
/// few rows give each of them), or if fewer rows than the group carry the sums without any covariate: then
/// they do near the estimate, where no fit could end.
pub fn rows(table: &mut Table, model: &Model, group: u32) -> Result<Withheld> {
    let group = group as usize;
    let rows = model.design.rows(table, model.family, true)?;
    let design = Columns { table, design: &model.design, rows: &rows };
    let mut kept: Vec<usize> = (0..rows.len()).collect();
    loop {
        let mut rare = vec![false; rows.len()];
        design.each(&kept, |values, has_levels| {
            let found = outstanding(values, has_levels, group);
            found.places.iter().for_each(|place| rare[kept[*place]] = true);
        });
        let before = kept.len();
        kept.retain(|at| !rare[*at]);
        if kept.len() == before {
            break;
        }
    }
    let time = (model.family == Family::Cox).then_some(model.design.target);
    let responses = [Some(model.design.target).filter(|at| Some(*at) != time), model.design.event];
    let stands_out = |column: usize| {
        !outstanding(&design.of_table(&kept, column), false, group).places.is_empty()
    };
    let least = group.max(model.parameters() + usize::from(model.by_client) + 1);
    if kept.len() < least || responses.into_iter().flatten().any(stands_out) {
        kept.clear();
    }
    let mut is_kept = vec![false; rows.len()];
    kept.iter().for_each(|at| is_kept[*at] = true);
    blank(table, &rows, |at| !is_kept[at]);
    if is_thin(table, model, group as u32)? {
        kept.clear();
        blank(table, &rows, |_| true);
    }
    Ok(Withheld { cells: 0, rows: (rows.len() - kept.len()) as u64 })
}

fn blank(table: &mut Table, rows: &Rows, is_out: impl Fn(usize) -> bool) {
    let width = table.width();
    let out = rows.kept.iter().enumerate().filter(|(at, _)| is_out(*at));
    out.for_each(|(_, row)| table.values[*row as usize * width..][..width].fill(f64::NAN));
}

/// Whether fewer rows than a group carry the sums of these rows at their own mean target.
fn is_thin(table: &Table, model: &Model, group: u32) -> Result<bool> {
    let rows = model.design.rows(table, model.family, true)?;
    let [_, weights, sum, squares] = rows.totals();
    let scaling = Scaling { means: vec![0.0; rows.width], scales: vec![1.0; rows.width] };
    // A target of one value has no such mean, and no residuals either.
    let Ok(theta) = model.start(weights, sum, squares, rows.offsets() / weights) else {
        return Ok(false);
    };
    Ok(model.evaluate(&rows, &scaling, &theta)?.support < f64::from(group))
}

/// Flags of the complete rows that have the values of two columns alone, or with fewer than a group: a product
/// of the two columns is a sum over these rows. At least a group of rows is flagged; empty for none.
pub fn exposed(table: &Table, design: &Design, rows: &Rows, group: u32) -> Vec<bool> {
    let all: Vec<usize> = (0..rows.len()).collect();
    let mut columns: Vec<(Vec<usize>, usize)> = Vec::new();
    Columns { table, design, rows }.each(&all, |values, has_levels| {
        let (counts, few_values) = counted(values, has_levels);
        if has_levels || few_values {
            let numbers: BTreeMap<u64, usize> = counts.keys().copied().zip(0..).collect();
            columns.push((values.iter().map(|x| numbers[&key(*x)]).collect(), counts.len()));
        }
    });
    let mut flags = vec![false; rows.len()];
    for (at, (a, height)) in columns.iter().enumerate() {
        for (b, width) in &columns[..at] {
            let cell = |row: usize| a[row] * width + b[row];
            let mut counts = vec![0; height * width];
            (0..rows.len()).for_each(|row| counts[cell(row)] += 1);
            flags.iter_mut().enumerate().for_each(|(row, flag)| *flag |= counts[cell(row)] < group);
        }
    }
    let missing = (group as usize).saturating_sub(flags.iter().filter(|flag| **flag).count());
    if missing == group as usize {
        return Vec::new();
    }
    flags.iter_mut().filter(|flag| !**flag).take(missing).for_each(|flag| *flag = true);
    flags
}

/// The columns that products of the design separate, over the complete rows.
struct Columns<'a> {
    table: &'a Table,
    design: &'a Design,
    rows: &'a Rows,
}

impl Columns<'_> {
    /// Values in some of the complete rows.
    fn of<'a>(&'a self, kept: &'a [usize], value: impl Fn(&[f64]) -> f64 + 'a) -> Vec<f64> {
        kept.iter().map(|at| value(self.table.row(self.rows.kept[*at] as usize))).collect()
    }

    fn of_table(&self, kept: &[usize], column: usize) -> Vec<f64> {
        self.of(kept, |row| row[column])
    }

    /// Passes each column, and whether it holds levels: offsets, weights, the columns of terms, and for
    /// interactions the design's own and the joint levels.
    fn each(&self, kept: &[usize], mut then: impl FnMut(&[f64], bool)) {
        let others = [self.design.offset, self.design.weights].into_iter().flatten();
        others.for_each(|column| then(&self.of_table(kept, column), false));
        let mut from = 0;
        for term in &self.design.terms {
            let own = from..from + term.width();
            from = own.end;
            for factor in &term.factors {
                then(&self.of_table(kept, factor.column), !factor.levels.is_empty());
            }
            if term.factors.len() > 1 {
                then(&self.of(kept, |row| joint(term, row)), true);
                for j in own {
                    let x = |at: &usize| self.rows.x[at * self.rows.width + j];
                    then(&kept.iter().map(x).collect::<Vec<f64>>(), false);
                }
            }
        }
    }
}

/// The number of the combination of levels in a row.
fn joint(term: &Term, row: &[f64]) -> f64 {
    let factors = term.factors.iter().filter(|factor| !factor.levels.is_empty());
    factors.fold(0.0, |code, factor| code * factor.levels.len() as f64 + row[factor.column])
}
