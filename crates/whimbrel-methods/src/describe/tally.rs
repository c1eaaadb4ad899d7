//! The first message: counts, means, squares and categories.

use super::withhold::{counted, is_almost_constant, merged, rounded};
use super::{scaled, table};
use crate::fedem::list_bytes;
use crate::federated::aggregate;
use crate::one_shot::OneShot;
use crate::settings::{ROWS_MAX, check_sums};
use whimbrel_core::method::{Artifact, Disclosure};
use whimbrel_core::{ClientData, ClientId, Error, ExactSum, Key, Result, wire};

/// The stage.
#[derive(Clone, Debug)]
pub struct Tally {
    pub blocks: Blocks,
    /// Fewest rows behind a figure.
    pub group: u64,
}

/// The figures of a client, column by column: observed cells, then for numbers mean and squares of `x`
/// and of `sign(x) ln(1 + |x|)` and whether all are 0 or 1, and for categories their counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocks {
    /// Number of categories of each column; zero for numbers.
    pub levels: Vec<usize>,
    /// The place of each category of a column among its counts: those of neighbours are merged, in an order that
    /// no job chooses.
    pub places: Vec<Vec<usize>>,
}

/// Figures of a column of numbers.
pub(super) const NUMBERS: usize = 6;
/// The last of them: 1 if all cells are 0 or 1, [`WHOLE`] if all are whole numbers, and [`MERGED`] if counts
/// of 0 and 1 are withheld.
const YES_NO: usize = NUMBERS - 1;
/// Stands for the count of a category that is part of the next count.
pub const MERGED: f64 = -1.0;
pub(super) const WHOLE: f64 = 2.0;

/// A client's message.
#[derive(Clone, Debug, PartialEq)]
pub struct Tallies {
    pub(super) rows: u64,
    pub(super) figures: Vec<f64>,
}

wire!(Tallies { rows, figures });

impl Tally {
    pub const KIND: &str = "describe-tally";

    /// A placeholder result with one row in every column.
    pub fn stand_in(blocks: &Blocks) -> Artifact {
        let mut figures = vec![0.0; blocks.len()];
        for column in 0..blocks.levels.len() {
            let block = &mut figures[blocks.range(column)];
            block[0] = 1.0;
            if blocks.levels[column] == 0 {
                block.copy_from_slice(&[1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
            }
        }
        delivery(vec![1.0], figures)
    }
}

impl Blocks {
    /// Number of figures of all columns.
    pub fn len(&self) -> usize {
        (0..self.levels.len()).map(|column| self.width(column)).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    fn width(&self, column: usize) -> usize {
        if self.levels[column] == 0 { NUMBERS } else { 1 + self.levels[column] }
    }

    /// The figures of a column.
    pub fn range(&self, column: usize) -> std::ops::Range<usize> {
        let start = (0..column).map(|before| self.width(before)).sum();
        start..start + self.width(column)
    }

    /// The figures of a column by client; those of numbers are zero where they are withheld.
    pub fn each<'a>(&self, column: usize, clients: &'a [f64]) -> impl Iterator<Item = &'a [f64]> {
        let (range, numbers) = (self.range(column), self.levels[column] == 0);
        clients.chunks_exact(self.len().max(1)).map(move |all| match &all[range.clone()] {
            block if numbers && block[YES_NO] == MERGED => &[0.0; NUMBERS],
            block => block,
        })
    }

    /// Observed cells, zeros and ones by client, as the figures of two categories, of a column of
    /// numbers that holds both and nothing else.
    pub fn yes_no(&self, column: usize, clients: &[f64]) -> Option<Vec<[f64; 3]>> {
        let (range, numbers) = (self.range(column), self.levels[column] == 0);
        let counts = |all: &[f64]| {
            let block = &all[range.clone()];
            let (count, ones) = (block[0], (block[0] * block[1]).round());
            match block[YES_NO] {
                _ if count == 0.0 => Some([0.0; 3]),
                0.0 | WHOLE => None,
                MERGED => Some([count, MERGED, count]),
                _ => Some([count, count - ones, ones]),
            }
        };
        let all = clients.chunks_exact(self.len().max(1)).filter(|_| numbers);
        let all = all.map(counts).collect::<Option<Vec<_>>>()?;
        let occurs = |at: usize| all.iter().any(|counts| counts[at] != 0.0);
        (occurs(1) && occurs(2)).then_some(all)
    }

    /// Whether a column of numbers holds whole numbers alone.
    pub fn whole(&self, column: usize, clients: &[f64]) -> bool {
        let range = self.range(column);
        let all = clients.chunks_exact(self.len().max(1)).map(|all| &all[range.clone()]);
        let mut known = all.filter(|block| block[0] > 0.0);
        self.levels[column] == 0 && known.all(|block| block[YES_NO] != 0.0)
    }

    /// The fewest and the most rows of each category, from a client's figures of a column.
    pub fn bounds(block: &[f64]) -> Vec<[f64; 2]> {
        let mut bounds = Vec::new();
        for group in block[1..].split_inclusive(|n| *n != MERGED) {
            let sum = group.last().copied().unwrap_or(0.0);
            let least = if group.len() == 1 { sum } else { 0.0 };
            bounds.resize(bounds.len() + group.len(), [least, sum]);
        }
        bounds
    }

    /// Pooled figures of one column; of categories the observed cells alone.
    pub fn pooled(&self, column: usize, clients: &[f64]) -> Result<Vec<f64>> {
        let each = || self.each(column, clients);
        let mut pooled = vec![each().map(|block| block[0]).sum()];
        let parts = if self.levels[column] > 0 { &[][..] } else { &[1, 3] };
        for part in parts {
            pooled.extend(moments(each().map(|block| [block[0], block[*part], block[part + 1]]))?);
        }
        Ok(pooled)
    }
}

/// Mean and squares about it, from counts, means and squares of parts; summed about the mean of one part,
/// exactly.
fn moments(parts: impl Iterator<Item = [f64; 3]>) -> Result<[f64; 2]> {
    let (mut count, mut centre) = (0.0, None);
    let (mut shift, mut squares) = (ExactSum::new(1), ExactSum::new(1));
    for [n, mean, square] in parts.filter(|part| part[0] > 0.0) {
        let gap = mean - *centre.get_or_insert(mean);
        count += n;
        shift.add(&[gap], n)?;
        squares.add(&[square], 1.0)?;
        squares.add(&[gap * gap], n)?;
    }
    let Some(centre) = centre else { return Ok([0.0; 2]) };
    let (shift, squares) = (shift.value()[0], squares.value()[0]);
    Ok([centre + shift / count, (squares - shift * shift / count).max(0.0)])
}

impl OneShot for Tally {
    type Data = Tallies;
    type Summary = Tallies;

    fn read(&self, data: &ClientData) -> Result<Tallies> {
        let table = table(data, self.blocks.levels.len())?;
        let mut tallies = Tallies { rows: 0, figures: vec![0.0; self.blocks.len()] };
        if (table.rows() as u64) < self.group {
            return Ok(tallies);
        }
        tallies.rows = table.rows() as u64;
        for (column, count) in self.blocks.levels.iter().enumerate() {
            let cells = table.values.iter().skip(column).step_by(table.width()).copied();
            let mut observed: Vec<f64> = cells.filter(|x| !x.is_nan()).collect();
            if let Some(x) = observed.iter().find(|x| x.is_infinite()) {
                let name = &table.columns[column];
                return Err(Error::data(format!("column {name:?} holds {x}")));
            }
            observed.truncate(counted(observed.len(), table.rows(), self.group as usize));
            let block = &mut tallies.figures[self.blocks.range(column)];
            if *count > 0 {
                let mut counts = vec![[0]; *count];
                let places = &self.blocks.places[column];
                observed.iter().for_each(|level| counts[places[*level as usize]][0] += 1);
                block.fill(MERGED);
                block[0] = observed.len() as f64;
                for (end, [n]) in merged(&counts, self.group, false).unwrap_or_default() {
                    block[end] = n as f64;
                }
            } else if self.group == 1 || !is_almost_constant(&observed, self.group as usize) {
                block.copy_from_slice(&numbers(&mut observed, self.group > 1));
            } else if is_yes_no(&observed) {
                (block[0], block[YES_NO]) = (observed.len() as f64, MERGED);
            }
        }
        Ok(tallies)
    }

    fn summarise(&self, tallies: &Tallies, _: Key) -> Result<Tallies> {
        Ok(tallies.clone())
    }

    fn pool(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Tallies)>,
        _: Key,
    ) -> Result<Artifact> {
        let (mut rows, mut figures) = (Vec::new(), Vec::new());
        for (id, tallies) in roster {
            self.check(id, &tallies)?;
            rows.push(tallies.rows as f64);
            figures.extend(tallies.figures);
        }
        if rows.is_empty() {
            return Err(Error::data("there is no client"));
        }
        Ok(delivery(rows, figures))
    }

    fn disclosure(&self) -> Disclosure {
        let meaning = "the number of rows; of each column the number of observed cells, and either mean \
                       and sum of squares, as numbers and as logarithms, and whether all are whole or 0 and 1, or the \
                       count of each category";
        aggregate("summary", meaning, 8 + list_bytes(self.blocks.len()))
    }
}

impl Tally {
    /// Refuses impossible figures.
    fn check(&self, id: ClientId, tallies: &Tallies) -> Result<()> {
        let impossible = || Error::peer(format!("client {id} sent impossible figures"));
        if tallies.figures.len() != self.blocks.len() || tallies.rows > ROWS_MAX {
            return Err(impossible());
        }
        check_sums(id, &tallies.figures)?;
        for (column, levels) in self.blocks.levels.iter().enumerate() {
            let block = &tallies.figures[self.blocks.range(column)];
            let is_count = |n: f64| n >= 0.0 && n.fract() == 0.0;
            let fits = match levels {
                0 => {
                    let flag = block[YES_NO];
                    let share = flag != 1.0 || (0.0..=1.0).contains(&block[1]);
                    [0.0, 1.0, WHOLE, MERGED].contains(&flag)
                        && share
                        && block[2] >= 0.0
                        && block[4] >= 0.0
                }
                _ => {
                    let known = || block[1..].iter().filter(|n| **n != MERGED);
                    let total =
                        known().sum::<f64>() == block[0] && *block.last().unwrap_or(&0.0) >= 0.0;
                    total && known().all(|n| is_count(*n))
                }
            };
            if !fits || !is_count(block[0]) || block[0] > tallies.rows as f64 {
                return Err(impossible());
            }
        }
        Ok(())
    }
}

pub(super) fn delivery(rows: Vec<f64>, figures: Vec<f64>) -> Artifact {
    let (m, width) = (rows.len(), figures.len() / rows.len());
    Artifact::new(Tally::KIND).with("rows", &[m], rows).with("figures", &[m, width], figures)
}

fn is_yes_no(values: &[f64]) -> bool {
    !values.is_empty() && values.iter().all(|x| *x == 0.0 || *x == 1.0)
}

/// Count, mean and squares of numbers, then of their logarithms, and whether all are 0 or 1, or whole. Of a
/// group, mean and squares are rounded unless they count zeros and ones, and logarithms have none.
fn numbers(values: &mut [f64], of_group: bool) -> [f64; NUMBERS] {
    let count = values.len() as f64;
    let kind = match () {
        () if is_yes_no(values) => 1.0,
        () if values.iter().all(|x| x.fract() == 0.0) => WHOLE,
        () => 0.0,
    };
    let [mean, squares] = about_first(values);
    if of_group {
        let [mean, squares] =
            if kind == 1.0 { [mean, squares] } else { rounded(count, [mean, squares]) };
        return [count, mean, squares, 0.0, 0.0, kind];
    }
    values.iter_mut().for_each(|x| *x = scaled(*x));
    let [log_mean, log_squares] = about_first(values);
    [count, mean, squares, log_mean, log_squares, kind]
}

/// Mean and squares about it; a constant column has exactly that mean and no squares.
fn about_first(values: &[f64]) -> [f64; 2] {
    let Some(first) = values.first() else { return [0.0; 2] };
    let shift = values.iter().map(|x| x - first).sum::<f64>() / values.len() as f64;
    let mean = first + shift;
    [mean, values.iter().map(|x| (x - mean) * (x - mean)).sum()]
}
