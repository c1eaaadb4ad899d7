//! The second message: counts between edges.

use super::tally::Blocks;
use super::withhold::{counted, is_almost_constant, merged};
use super::{Tally, scaled, table};
use crate::fedem::list_bytes;
use crate::federated::aggregate;
use crate::one_shot::OneShot;
use crate::settings::ROWS_MAX;
use whimbrel_core::method::{Artifact, Disclosure};
use whimbrel_core::{ClientData, ClientId, Error, ExactSum, Key, Result, Table, math, wire};

/// The reported quantiles.
pub const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];
/// Half the width of the bins, in standard deviations.
const REACH: f64 = 4.0;
/// Most edges of a time grid that the job does not give.
const TIMES: usize = 50;

/// The stage that counts rows by bin.
#[derive(Clone, Debug)]
pub struct Bins {
    pub blocks: Blocks,
    /// Fewest rows behind a count.
    pub group: u64,
    /// Edges of each column, ascending; empty for categories, columns of 0 and 1, times and empty columns.
    pub edges: Vec<Vec<f64>>,
    pub survival: Option<Survival>,
}

/// The columns of survival times.
#[derive(Clone, Debug, PartialEq)]
pub struct Survival {
    pub time: usize,
    /// A column that is 1 for an event and 0 for a censored time; `None`: all are events.
    pub event: Option<usize>,
    /// A column of categories with one curve each.
    pub by: Option<usize>,
    /// Edges of the time grid.
    pub edges: Vec<f64>,
}

/// A client's message.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// For each column the ends of merged bins, and their counts.
    columns: Vec<Vec<u64>>,
    /// Ends of merged bins, events and censored times: of all rows, of each category, or nothing.
    curves: Vec<Vec<u64>>,
}

wire!(Counts { columns, curves });

impl Bins {
    pub const KIND: &str = "describe-bins";

    /// Edges of a column with these pooled figures: a given range in equal parts, or else half of them
    /// within four standard deviations of the mean and half likewise on a logarithmic scale. Under a smallest group
    /// the moments on that scale are those of the lognormal distribution with the mean and the deviation.
    pub fn grid(pooled: &[f64], range: Option<[f64; 2]>, bins: usize) -> Vec<f64> {
        let even = |from: f64, to: f64, parts: usize| {
            (0..=parts).map(move |at| from + (to - from) * at as f64 / parts as f64)
        };
        if let Some([low, high]) = range {
            return even(low, high, bins).collect();
        }
        let [count, mean, squares, log_mean, log_squares] = pooled else { return Vec::new() };
        let reach = |variance: f64| REACH * variance.sqrt();
        let linear = reach(squares / count);
        if *count == 0.0 {
            return Vec::new();
        }
        if linear == 0.0 {
            return vec![*mean];
        }
        let (low, high) = (mean - linear, mean + linear);
        let (from, to) = if *log_squares > 0.0 {
            let log = reach(log_squares / count);
            (log_mean - log, log_mean + log)
        } else {
            let variance = math::ln_1p(squares / count / (mean * mean));
            let (middle, log) = (math::ln_1p(mean.abs()) - 0.5 * variance, reach(variance));
            let end = |x: f64| x.copysign(x * mean).clamp(scaled(low), scaled(high));
            (end(middle - log), end(middle + log))
        };
        let back = |x: f64| (math::exp(x.abs()) - 1.0).copysign(x);
        let mut edges: Vec<f64> =
            even(low, high, bins / 2).chain(even(from, to, bins / 2).map(back)).collect();
        edges.retain(|edge| edge.is_finite());
        edges.sort_unstable_by(f64::total_cmp);
        edges.dedup();
        edges
    }

    /// A time grid of round numbers up to three standard deviations above the mean.
    pub fn time_grid(pooled: &[f64]) -> Vec<f64> {
        let [count, mean, squares, ..] = pooled else { return Vec::new() };
        let end = mean + 3.0 * (squares / count.max(1.0)).sqrt();
        if !(end > 0.0 && end.is_finite()) {
            return Vec::new();
        }
        let least = end / TIMES as f64;
        let mut power = 1.0;
        while power > least {
            power /= 10.0;
        }
        while power * 10.0 <= least {
            power *= 10.0;
        }
        let width = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|w| *w >= least);
        let width = width.unwrap_or(least);
        (1..=TIMES).map(|at| at as f64 * width).take_while(|edge| *edge < end + width).collect()
    }
}

impl OneShot for Bins {
    type Data = Counts;
    type Summary = Counts;

    fn read(&self, data: &ClientData) -> Result<Counts> {
        let table = table(data, self.blocks.levels.len())?;
        if (table.rows() as u64) < self.group {
            return Ok(Counts { columns: vec![Vec::new(); self.edges.len()], curves: Vec::new() });
        }
        let columns = (0..self.edges.len()).map(|column| self.histogram(table, column)).collect();
        let curves = self.survival.as_ref().map_or(Ok(Vec::new()), |it| it.curves(self, table))?;
        Ok(Counts { columns, curves })
    }

    fn summarise(&self, counts: &Counts, _: Key) -> Result<Counts> {
        Ok(counts.clone())
    }

    fn pool(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Counts)>,
        _: Key,
    ) -> Result<Artifact> {
        let sum = |length: usize| ExactSum::new(length);
        let mut columns: Vec<ExactSum> = self.column_lengths().map(sum).collect();
        let mut curves: Vec<ExactSum> = self.curve_lengths().map(sum).collect();
        let mut quantiles: Vec<Vec<f64>> = vec![Vec::new(); self.edges.len()];
        for (id, counts) in roster {
            let impossible = || Error::peer(format!("client {id} sent impossible counts"));
            let (spreads, addends) = self.addends(&counts).ok_or_else(impossible)?;
            for (column, spread) in spreads.iter().enumerate() {
                columns[column].add(&spread.flat(), 1.0)?;
                let each = QUANTILES.map(|q| spread.quantile(q));
                quantiles[column].extend(each.as_flattened());
            }
            addends.iter().try_for_each(|(curve, addend)| curves[*curve].add(addend, 1.0))?;
        }
        let values = |sums: &[ExactSum]| sums.iter().map(ExactSum::value).collect::<Vec<_>>();
        Ok(self.delivery(values(&columns), quantiles, values(&curves)))
    }

    fn disclosure(&self) -> Disclosure {
        let lengths = self.edges.iter().map(|edges| list_bytes(2 * edges.len() + 2));
        let mut bytes = 20 + lengths.sum::<usize>();
        if let Some(survival) = &self.survival {
            let groups = survival.by.map_or(1, |by| self.blocks.levels[by]);
            bytes += groups * list_bytes(3 * TIMES.max(survival.edges.len()) + 3);
        }
        aggregate("summary", &self.content(), bytes)
    }
}

/// Numbers of rows up to each edge, for the curve of all rows (0) or of a category (from 1).
type Addend = (usize, Vec<f64>);

impl Bins {
    /// The counts in words.
    pub(super) fn content(&self) -> String {
        let mut content = "of each column of numbers, counts of rows between edges that follow from the pooled mean \
                           and deviation or that the job gives"
            .to_owned();
        if let Some(survival) = &self.survival {
            content += "; numbers of events and of censored times between the edges of a time grid";
            content += if survival.by.is_some() { ", by category" } else { "" };
        }
        content
    }

    /// The number of sums of each column.
    pub(super) fn column_lengths(&self) -> impl Iterator<Item = usize> {
        self.edges.iter().map(|edges| 1 + 3 * edges.len())
    }

    /// The number of sums of each curve.
    pub(super) fn curve_lengths(&self) -> impl Iterator<Item = usize> {
        self.survival.iter().flat_map(|survival| {
            let curves = 1 + survival.by.map_or(0, |by| self.blocks.levels[by]);
            std::iter::repeat_n(3 + 6 * survival.edges.len(), curves)
        })
    }

    /// The most sums, whatever the edges.
    pub(super) fn sums_max(&self) -> usize {
        let columns = self.column_lengths().map(|length| length + 3).sum::<usize>();
        columns + self.curve_lengths().map(|length| length.max(3 + 6 * TIMES)).sum::<usize>()
    }

    /// A client's part of the sums over clients; `None` if its counts are impossible.
    pub(super) fn addends(&self, counts: &Counts) -> Option<(Vec<Spread>, Vec<Addend>)> {
        if counts.columns.len() != self.edges.len() {
            return None;
        }
        let spread = |(cells, edges): (&Vec<u64>, &Vec<f64>)| {
            let cells = cut::<1>(cells, edges.len() + 1)?;
            Some(Spread::of(edges, cells.iter().map(|(end, n)| (*end, n[0]))))
        };
        let spreads = counts.columns.iter().zip(&self.edges).map(spread);
        let curves = self.curve_lengths().count();
        let addends = self.survival.as_ref().map(|it| it.addends(&counts.curves, curves));
        Some((spreads.collect::<Option<_>>()?, addends.unwrap_or(Some(Vec::new()))?))
    }

    /// The result, from the sums over clients and the quantiles of each one.
    pub(super) fn delivery(
        &self,
        columns: Vec<Vec<f64>>,
        quantiles: Vec<Vec<f64>>,
        curves: Vec<Vec<f64>>,
    ) -> Artifact {
        let mut artifact = Artifact::new(Self::KIND);
        let mut quantiles = quantiles.into_iter();
        for (column, (edges, spread)) in self.edges.iter().zip(columns).enumerate() {
            let each = quantiles.next();
            if edges.is_empty() {
                continue;
            }
            artifact.add(&format!("edges.{column}"), &[edges.len()], edges.clone());
            artifact.add(&format!("counts.{column}"), &[spread.len()], spread);
            if let Some(each) = each {
                let shape = [each.len() / (3 * QUANTILES.len()), QUANTILES.len(), 3];
                artifact.add(&format!("quantiles.{column}"), &shape, each);
            }
        }
        for (group, sum) in curves.into_iter().enumerate() {
            artifact.add(&format!("curve.{group}"), &[sum.len()], sum);
        }
        if let Some(survival) = &self.survival {
            artifact.add("times", &[survival.edges.len()], survival.edges.clone());
        }
        artifact
    }

    fn histogram(&self, table: &Table, column: usize) -> Vec<u64> {
        let edges = &self.edges[column];
        let cells = table.values.iter().skip(column).step_by(table.width()).copied();
        let mut observed: Vec<f64> = cells.filter(|x| !x.is_nan()).collect();
        let group = self.group as usize;
        observed.truncate(counted(observed.len(), table.rows(), group));
        if edges.is_empty() || observed.is_empty() || is_almost_constant(&observed, group) {
            return Vec::new();
        }
        let mut bins = vec![[0]; edges.len() + 1];
        observed.iter().for_each(|x| bins[place(edges, *x)][0] += 1);
        flat(&merged(&bins, self.group, true).unwrap_or_default())
    }
}

impl Survival {
    /// The tables of a client: by category if every count may leave, else of all rows, else none. One of
    /// them only, since two would differ by few rows.
    fn curves(&self, stage: &Bins, table: &Table) -> Result<Vec<Vec<u64>>> {
        let groups = self.by.map_or(1, |by| stage.blocks.levels[by]);
        let mut bins = vec![vec![[0; 2]; self.edges.len() + 1]; groups];
        let used = [Some(self.time), self.event, self.by];
        let rows = (0..table.rows()).map(|at| table.row(at));
        let is_complete = |row: &&[f64]| used.iter().flatten().all(|at| !row[*at].is_nan());
        let complete: Vec<&[f64]> = rows.filter(is_complete).collect();
        let count = counted(complete.len(), table.rows(), stage.group as usize);
        for row in &complete[..count] {
            let (time, event) = (row[self.time], self.event.map_or(1.0, |at| row[at]));
            if time < 0.0 || (event != 0.0 && event != 1.0) {
                let what = format!("a time of {time} with an event of {event}");
                let hint = "times are non-negative; events are 1, and censored times 0";
                return Err(Error::data(what).hint(hint));
            }
            let group = self.by.map_or(0, |by| row[by] as usize);
            bins[group][place(&self.edges, time)][usize::from(event == 0.0)] += 1;
        }
        let tables = |all: &[Vec<[u64; 2]>]| -> Option<Vec<Vec<u64>>> {
            all.iter()
                .map(|bins| merged(bins, stage.group, false).map(|found| flat(&found)))
                .collect()
        };
        let sum = |at: usize| [0, 1].map(|part| bins.iter().map(|group| group[at][part]).sum());
        let together: Vec<[u64; 2]> = (0..=self.edges.len()).map(sum).collect();
        Ok(tables(&bins).or_else(|| tables(&[together])).unwrap_or_default())
    }

    /// A client's part of the curve of all rows and, by category, of the others. A table without an inner
    /// edge tells nothing about the curve and is left out.
    fn addends(&self, tables: &[Vec<u64>], curves: usize) -> Option<Vec<Addend>> {
        let categories = curves - 1;
        if ![0, 1, categories.max(1)].contains(&tables.len()) {
            return None;
        }
        let cut = |table: &Vec<u64>| cut::<2>(table, self.edges.len() + 1);
        let tables: Vec<_> = tables.iter().map(cut).collect::<Option<_>>()?;
        let whole = tables.iter().all(|cells| cells.len() > 1);
        let mut addends = Vec::new();
        for (category, cells) in tables.iter().enumerate().filter(|(_, cells)| cells.len() > 1) {
            let part = |part: usize| {
                Spread::of(&self.edges, cells.iter().map(|(end, n)| (*end, n[part]))).flat()
            };
            let both = [part(0), part(1)].concat();
            let mut add = |curve: usize, client: f64| {
                addends.push((curve, [&both[..], &[client]].concat()));
            };
            if whole {
                add(0, f64::from(u8::from(category == 0)));
            }
            if tables.len() == categories && categories > 0 {
                add(1 + category, 1.0);
            }
        }
        Some(addends)
    }
}

/// The bin of a value: bin `j` ends with edge `j`, which belongs to it.
fn place(edges: &[f64], x: f64) -> usize {
    edges.partition_point(|edge| *edge < x)
}

fn flat<const P: usize>(cells: &[(usize, [u64; P])]) -> Vec<u64> {
    cells.iter().flat_map(|(end, n)| std::iter::once(*end as u64).chain(*n)).collect()
}

/// Merged bins of a message; `None` for impossible ones.
fn cut<const P: usize>(cells: &[u64], bins: usize) -> Option<Vec<(usize, [u64; P])>> {
    let found: Vec<(usize, [u64; P])> = cells
        .chunks_exact(1 + P)
        .map(|cell| (cell[0] as usize, std::array::from_fn(|part| cell[1 + part])))
        .collect();
    let ascending =
        found.is_sorted_by(|a, b| a.0 < b.0) && found.first().is_none_or(|(end, _)| *end > 0);
    let ends = found.last().is_none_or(|(end, _)| *end == bins);
    let counts = found.iter().flat_map(|(_, n)| n).all(|n| *n <= ROWS_MAX);
    (cells.len().is_multiple_of(1 + P) && ascending && ends && counts).then_some(found)
}

/// Numbers of values up to each edge: the fewest, an estimate, the most. Values are spread evenly within merged
/// bins, and in the outermost ones, which are open, with the density of the next bin, falling linearly to zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    pub total: f64,
    pub low: Vec<f64>,
    pub middle: Vec<f64>,
    pub high: Vec<f64>,
}

impl Spread {
    fn of(edges: &[f64], cells: impl Iterator<Item = (usize, u64)>) -> Self {
        let empty = || vec![0.0; edges.len()];
        let mut all = Self { total: 0.0, low: empty(), middle: empty(), high: empty() };
        let cells: Vec<(usize, u64)> = cells.collect();
        let reach = |own: usize, next: usize| {
            let ends = [cells[next - 1].0, cells[next].0].map(|end| edges[end - 1]);
            2.0 * (ends[1] - ends[0]) * cells[own].1 as f64 / cells[next].1 as f64
        };
        let mut from = 0_usize;
        for (place, (end, count)) in cells.iter().copied().enumerate() {
            let after = all.total + count as f64;
            let inside = from..end.min(edges.len());
            let at = |place: usize| edges.get(place.saturating_sub(1)).copied().unwrap_or(0.0);
            let (left, right) = (at(from), at(inside.end));
            for edge in inside {
                let is_end = edge + 1 == end;
                let share = match cells.len() - 1 {
                    last if place > 0 && place < last || last < 2 => {
                        ((edges[edge] - left) / (right - left)).clamp(0.0, 1.0)
                    }
                    _ if place == 0 => (1.0 - (right - edges[edge]) / reach(0, 1)).max(0.0).powi(2),
                    last => {
                        1.0 - (1.0 - (edges[edge] - left) / reach(last, last - 1)).max(0.0).powi(2)
                    }
                };
                let share = if is_end || share.is_nan() { 1.0 } else { share };
                all.low[edge] = if is_end { after } else { all.total };
                all.middle[edge] = all.total + share * count as f64;
                all.high[edge] = after;
            }
            (all.total, from) = (after, end);
        }
        all
    }

    pub(super) fn flat(&self) -> Vec<f64> {
        [&[self.total][..], &self.low, &self.middle, &self.high].concat()
    }

    /// The parts of a flat list.
    pub fn from_flat(all: &[f64]) -> Self {
        let (total, parts) = all.split_first().map_or((0.0, &[][..]), |(n, parts)| (*n, parts));
        let mut parts = parts.chunks_exact((parts.len() / 3).max(1)).map(<[f64]>::to_vec);
        let mut next = || parts.next().unwrap_or_default();
        Self { total, low: next(), middle: next(), high: next() }
    }

    /// The smallest value with a share `q` of the values at or below it, as places among the edges
    /// counted from 1: an estimate between two edges, the last edge below the value, the first edge at or above
    /// it. Zero stands for an unknown estimate and for no edge below, one more than the edges for none above.
    pub fn quantile(&self, q: f64) -> [f64; 3] {
        let (wanted, edges) = (q * self.total, self.middle.len());
        if self.total == 0.0 {
            return [0.0, 0.0, edges as f64 + 1.0];
        }
        let reached = |counts: &[f64]| counts.iter().position(|n| *n >= wanted).unwrap_or(edges);
        let (below, at, above) =
            (reached(&self.high), reached(&self.middle), reached(&self.low) + 1);
        let estimate = if at == 0 || at == edges {
            0.0
        } else {
            let [before, after] = [self.middle[at - 1], self.middle[at]];
            at as f64 + (wanted - before) / (after - before)
        };
        [estimate, below as f64, above as f64]
    }
}

impl Bins {
    /// The stage after the first one, with the job's ranges by column, number of bins and time grid.
    pub fn after(
        tally: &Tally,
        delivered: &Artifact,
        ranges: &[Option<[f64; 2]>],
        bins: usize,
        survival: Option<&Survival>,
    ) -> Result<Self> {
        let blocks = tally.blocks.clone();
        let figures = delivered.tensor("figures").map_or(&[][..], |tensor| &tensor.values);
        let whole = figures.len().is_multiple_of(blocks.len().max(1));
        if figures.is_empty() || !whole || figures.iter().any(|x| !x.is_finite()) {
            return Err(Error::peer("figures outside the range of the clients of this job"));
        }
        let time = survival.map(|survival| survival.time);
        let mut edges = Vec::with_capacity(ranges.len());
        for (column, range) in ranges.iter().enumerate() {
            let is_category = blocks.levels[column] > 0 || blocks.yes_no(column, figures).is_some();
            edges.push(if is_category || time == Some(column) {
                Vec::new()
            } else {
                Self::grid(&blocks.pooled(column, figures)?, *range, bins)
            });
        }
        let mut survival = survival.cloned();
        if let Some(survival) = &mut survival
            && survival.edges.is_empty()
        {
            survival.edges = Self::time_grid(&blocks.pooled(survival.time, figures)?);
        }
        // Without an observed time there is no curve.
        let survival = survival.filter(|survival| !survival.edges.is_empty());
        Ok(Self { blocks, group: tally.group, edges, survival })
    }
}
