//! The pooled figures alone, from sums over clients, whose terms masks hide.
//!
//! | stage, exchange | sums |
//! |---|---|
//! | tally, 1 | rows; of numbers `n`, `n m` and `n l` for the mean `m` of `x` and `l` of `sign(x) ln(1 + abs(x))`, and the cells of clients that hold other numbers than 0 and 1, or fractions, or withhold counts of 0 and 1; of categories the cells, and the fewest and the most rows of each |
//! | tally, 2 | of numbers, squares about the pooled means |
//! | bins | numbers of values and of times up to each edge |
//!
//! A client computes them from the two messages that it would send without masks, after the rules of
//! [`withhold`](super::withhold): a sum over clients has no smaller counts than its terms.

use super::bins::{Bins, Counts};
use super::table;
use super::tally::{Blocks, MERGED, NUMBERS, Tallies, Tally, WHOLE, delivery};
use crate::one_shot::OneShot;
use crate::pooled::Totals;
use crate::prepare::CONSTANT;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Error, Result, vector};

/// Sums of a column of numbers in the first exchange.
const FIRST: usize = 6;
/// Sums of a column of numbers in the second exchange.
const SECOND: usize = 2;

impl Totals for Tally {
    type Data = Tallies;

    fn read(&self, data: &ClientData) -> Result<Tallies> {
        OneShot::read(self, data)
    }

    fn rows(&self, tallies: &Tallies) -> u64 {
        tallies.rows
    }

    fn meaning(&self) -> String {
        "the number of rows; of each column the number of observed cells, and either sums of values \
         and of squares, as numbers and as logarithms, and cells that are not whole or not 0 and 1, or the count \
         of each category"
            .into()
    }

    fn lengths(&self) -> Vec<usize> {
        let numbers = self.blocks.levels.iter().filter(|levels| **levels == 0).count();
        let lengths = vec![1 + self.widths().sum::<usize>(), SECOND * numbers];
        lengths.into_iter().filter(|length| *length > 0).collect()
    }

    fn sums(&self, before: &[Vec<f64>], own: &Tallies) -> Result<Vec<f64>> {
        let block = |column| &own.figures[self.blocks.range(column)];
        let Some(first) = before.first() else {
            let mut sums = vec![own.rows as f64];
            for (column, levels) in self.blocks.levels.iter().enumerate() {
                sums.extend(if *levels == 0 {
                    numbers(block(column))
                } else {
                    categories(block(column))
                });
            }
            return Ok(sums);
        };
        let mut squares = Vec::new();
        for (column, sums) in self.columns(first).filter(|(at, _)| self.blocks.levels[*at] == 0) {
            let [n, mean, square, log_mean, log_square, kind] = six(block(column));
            let n = if kind == MERGED { 0.0 } else { n };
            let [_, means @ ..] = pooled(sums);
            for (own, square, mean) in [(mean, square, means[0]), (log_mean, log_square, means[1])]
            {
                squares.push(square + n * (own - mean) * (own - mean));
            }
        }
        Ok(squares)
    }

    fn settle(&self, totals: &[Vec<f64>]) -> Result<Artifact> {
        let first = totals.first().ok_or_else(|| Error::internal("sums are missing"))?;
        let mut squares = totals.get(1).map_or(&[][..], Vec::as_slice).chunks_exact(SECOND);
        let mut figures = vec![0.0; self.blocks.len()];
        let mut bounds = Vec::new();
        for (column, sums) in self.columns(first) {
            let block = &mut figures[self.blocks.range(column)];
            let known = if self.blocks.levels[column] > 0 {
                block[0] = sums[0];
                Some(sums[1..].to_vec())
            } else {
                let squares =
                    squares.next().ok_or_else(|| Error::internal("squares are missing"))?;
                settle_numbers(block, sums, squares)
            };
            bounds.extend(known.map(|known| (column, known)));
        }
        let mut artifact = delivery(vec![first[0]], figures);
        for (column, known) in bounds {
            artifact.add(&Tally::bounds_of(column), &[known.len() / 2, 2], known);
        }
        Ok(artifact)
    }
}

impl Tally {
    /// The name of the tensor with the fewest and the most rows of each category of a column.
    pub fn bounds_of(column: usize) -> String {
        format!("bounds.{column}")
    }

    /// Sums of each column in the first exchange.
    fn widths(&self) -> impl Iterator<Item = usize> {
        let width = |levels: &usize| if *levels == 0 { FIRST } else { 1 + 2 * levels };
        self.blocks.levels.iter().map(width)
    }

    /// The sums of each column in the first exchange.
    fn columns<'a>(&self, first: &'a [f64]) -> impl Iterator<Item = (usize, &'a [f64])> {
        let mut rest = &first[1..];
        let split = move |width| rest.split_off(..width).unwrap_or_default();
        self.widths().map(split).enumerate()
    }
}

/// A client's figures of a column of numbers.
fn six(block: &[f64]) -> [f64; NUMBERS] {
    std::array::from_fn(|at| block[at])
}

fn numbers(block: &[f64]) -> Vec<f64> {
    let [n, mean, _, log_mean, _, kind] = six(block);
    if kind == MERGED {
        return vec![0.0, 0.0, 0.0, 0.0, 0.0, n];
    }
    let of = |kinds: &[f64]| if kinds.contains(&kind) { n } else { 0.0 };
    vec![n, n * mean, n * log_mean, of(&[0.0, WHOLE]), of(&[0.0]), 0.0]
}

fn categories(block: &[f64]) -> Vec<f64> {
    [&block[..1], Blocks::bounds(block).as_flattened()].concat()
}

/// Count and means of a column of numbers, from sums over clients.
fn pooled(sums: &[f64]) -> [f64; 3] {
    let n = sums[0];
    let mean = |sum: f64| if n > 0.0 { sum / n } else { 0.0 };
    [n, mean(sums[1]), mean(sums[2])]
}

/// The figures of a column of numbers as those of one client that holds all rows; for counts of 0 and
/// 1 that some clients withhold, also the bounds of the two categories.
fn settle_numbers(block: &mut [f64], sums: &[f64], squares: &[f64]) -> Option<Vec<f64>> {
    let [n, mean, log_mean] = pooled(sums);
    let (other, fractions, merged) = (sums[3], sums[4], sums[5]);
    // The pooled mean of a constant column is rounded.
    let spread = |square: f64, mean: f64| {
        let constant = n * (CONSTANT * mean) * (CONSTANT * mean);
        if square > constant { square } else { 0.0 }
    };
    let kind = match () {
        () if n + merged == 0.0 || fractions > 0.0 => 0.0,
        () if other > 0.0 => WHOLE,
        () if merged > 0.0 => MERGED,
        () => 1.0,
    };
    let (square, log_square) = (spread(squares[0], mean), spread(squares[1], log_mean));
    let count = if kind == MERGED { n + merged } else { n };
    block.copy_from_slice(&[count, mean, square, log_mean, log_square, kind]);
    let ones = (n * mean).round();
    (kind == MERGED).then(|| vec![n - ones, n - ones + merged, ones, ones + merged])
}

impl Totals for Bins {
    type Data = (u64, Counts);

    fn read(&self, data: &ClientData) -> Result<(u64, Counts)> {
        let rows = table(data, self.blocks.levels.len())?.rows() as u64;
        Ok((if rows < self.group { 0 } else { rows }, OneShot::read(self, data)?))
    }

    fn rows(&self, (rows, _): &(u64, Counts)) -> u64 {
        *rows
    }

    fn meaning(&self) -> String {
        self.content()
    }

    fn lengths(&self) -> Vec<usize> {
        vec![self.column_lengths().chain(self.curve_lengths()).sum()]
    }

    fn length_max(&self) -> usize {
        self.sums_max()
    }

    fn sums(&self, _: &[Vec<f64>], (_, own): &(u64, Counts)) -> Result<Vec<f64>> {
        let impossible = || Error::internal("counts of other bins");
        let (spreads, addends) = self.addends(own).ok_or_else(impossible)?;
        let mut curves: Vec<Vec<f64>> = self.curve_lengths().map(|n| vec![0.0; n]).collect();
        addends.iter().for_each(|(curve, addend)| vector::axpy(&mut curves[*curve], 1.0, addend));
        let columns = spreads.iter().flat_map(|spread| spread.flat());
        Ok(columns.chain(curves.concat()).collect())
    }

    fn settle(&self, totals: &[Vec<f64>]) -> Result<Artifact> {
        let mut rest =
            totals.first().ok_or_else(|| Error::internal("sums are missing"))?.iter().copied();
        let mut next = |length: usize| rest.by_ref().take(length).collect::<Vec<f64>>();
        let columns = self.column_lengths().map(&mut next).collect();
        let curves = self.curve_lengths().map(&mut next).collect();
        Ok(self.delivery(columns, Vec::new(), curves))
    }
}
