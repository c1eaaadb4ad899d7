//! One-shot federated k-means: a stage that finds first means for a mixture.
//!
//! Each client clusters its rows and sends centres and counts at enrolment; the server clusters the
//! centres, weighted by their counts. There are no rounds. The centre of a single row would reveal that
//! row, so clusters of fewer than `rows_min` rows are merged into the nearest other cluster before they
//! are sent. A client with fewer than `rows_min` rows in all sends their mean.

use crate::federated::aggregate;
use crate::one_shot::OneShot;
use crate::settings::{Weights, check_sums};
use std::borrow::Cow;
use whimbrel_core::method::{Artifact, Disclosure};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, sum::ExactSum, vector, wire};
use whimbrel_models::MixtureModel;
use whimbrel_models::kmeans::{Clusters, best_of, kmeans};

/// The default for the fewest rows behind a centre that leaves a client.
pub const ROWS_MIN: usize = 5;
const STEPS_MAX: usize = 100;
/// Restarts on the server; the best is kept.
const RESTARTS: u64 = 10;

/// The stage.
pub struct FederatedKmeans<M: MixtureModel> {
    pub model: M,
    /// The fewest rows behind a centre: the client's choice, at least [`ROWS_MIN`].
    pub rows_min: usize,
}

/// A client's message.
#[derive(Clone, Debug)]
pub struct Summary {
    rows: u64,
    moments: Vec<f64>,
    centres: Vec<f64>,
    counts: Vec<f64>,
}

wire!(Summary { rows, moments, centres, counts });

impl<M: MixtureModel> OneShot for FederatedKmeans<M> {
    type Data = M::Data;
    type Summary = Summary;

    fn read(&self, data: &ClientData) -> Result<M::Data> {
        self.model.bind(data)
    }

    fn summarise(&self, data: &M::Data, key: Key) -> Result<Summary> {
        let count = self.model.rows(data);
        let window = self.model.window(data, 0, count)?;
        let data = window.as_ref().unwrap_or(data);
        let moments = self.model.moments(data)?;
        let points = Points::of(&self.model, data, &moments);
        let (centres, counts) = points.centres(self.model.components(), self.rows_min, key)?;
        Ok(Summary { rows: count as u64, moments, centres, counts })
    }

    fn pool(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Summary)>,
        key: Key,
    ) -> Result<Artifact> {
        let (mut total, mut moments) = (0.0, ExactSum::new(self.model.moments_len()));
        let mut centres = Centres::default();
        for (id, summary) in roster {
            if summary.moments.len() != moments.len() {
                return Err(Error::peer(format!("client {id} sent moments of another length")));
            }
            for sums in [&summary.moments, &summary.centres, &summary.counts] {
                check_sums(id, sums)?;
            }
            total += Weights::Samples.of(id, summary.rows)?;
            moments.add(&summary.moments, summary.rows as f64)?;
            if summary.centres.len() != summary.counts.len() * self.model.point_len() {
                return Err(Error::peer(format!("client {id} sent centres without counts")));
            }
            centres.add(&self.model, &summary.moments, summary.centres, summary.counts);
        }
        if total == 0.0 {
            return Err(Error::data("there is no client"));
        }
        let mut mean = moments.value();
        vector::scale(&mut mean, 1.0 / total);
        let centres = centres.filled(&self.model, &mean);
        let theta = centres.start(&self.model, &mean, RESTARTS, key)?;
        let start = Artifact::new("start");
        Ok(start.with("theta", &[theta.len()], theta))
    }

    fn disclosure(&self) -> Disclosure {
        let (k, d) = (self.model.components(), self.model.point_len());
        let meaning = format!(
            "averages over all rows: of the columns, and of their squares or products; and the centres and sizes \
             of clusters of at least {} rows",
            self.rows_min
        );
        aggregate("summary", &meaning, 8 * (k * (d + 1) + self.model.moments_len()) + 32)
    }
}

/// A client's rows as points, in the units of distances.
pub struct Points {
    values: Vec<f64>,
    width: usize,
    scales: Option<Vec<f64>>,
    /// The mask of observed values; `None` if all were observed.
    observed: Option<Vec<bool>>,
}

impl Points {
    pub(crate) fn of<M: MixtureModel>(model: &M, data: &M::Data, moments: &[f64]) -> Self {
        let (mut values, scales) = (model.points(data), model.point_scales(moments));
        each(&mut values, scales.as_deref(), |x, scale| x / scale);
        Self { values, width: model.point_len(), scales, observed: model.observed(data) }
    }

    /// The same in the units of the pooled moments; columns without observations hold the pooled mean.
    pub(crate) fn pooled<M: MixtureModel>(
        model: &M,
        data: &M::Data,
        moments: &[f64],
    ) -> Result<Self> {
        let mut points = Self::of(model, data, moments);
        let gaps = model.point_gaps(&model.moments(data)?);
        if !gaps.is_empty() {
            let mut means = model.point_means(moments);
            each(&mut means, points.scales.as_deref(), |x, scale| x / scale);
            for row in points.values.chunks_exact_mut(points.width) {
                gaps.iter().for_each(|at| row[*at] = means[*at]);
            }
        }
        Ok(points)
    }

    pub(crate) fn into_values(self) -> Vec<f64> {
        self.values
    }

    /// Centres and row counts of the client's clusters, after small clusters are merged. A value that
    /// fewer than `rows_min` rows of a cluster have is replaced by the client's mean.
    pub(crate) fn centres(
        &self,
        components: usize,
        rows_min: usize,
        key: Key,
    ) -> Result<(Vec<f64>, Vec<f64>)> {
        let k = components.min((self.values.len() / self.width).div_ceil(rows_min));
        let found = kmeans(&self.values, self.width, None, k, STEPS_MAX, key)?;
        let labels = found.labels.clone();
        let Joined { mut centres, counts, place_of } = join_small(found, self.width, rows_min);
        if let Some(observed) = &self.observed {
            let mut known = vec![0; centres.len()];
            for (row, label) in observed.chunks_exact(self.width).zip(labels) {
                let of_cluster = &mut known[place_of[label as usize] * self.width..][..self.width];
                of_cluster.iter_mut().zip(row).for_each(|(n, seen)| *n += usize::from(*seen));
            }
            for (i, centre) in centres.iter_mut().enumerate().filter(|(i, _)| known[*i] < rows_min)
            {
                *centre = self.mean(i % self.width);
            }
        }
        each(&mut centres, self.scales.as_deref(), |x, scale| x * scale);
        Ok((centres, counts))
    }

    /// The mean of a column; gaps hold the mean of the observed values.
    fn mean(&self, column: usize) -> f64 {
        let values = self.values.iter().skip(column).step_by(self.width);
        values.sum::<f64>() * self.width as f64 / self.values.len() as f64
    }
}

/// Centres and row counts of all clients.
#[derive(Clone, Default)]
pub(crate) struct Centres {
    centres: Vec<f64>,
    counts: Vec<f64>,
    /// Places without observations of their client.
    gaps: Vec<usize>,
}

impl Centres {
    /// Adds the centres of a client with these moments.
    pub(crate) fn add<M: MixtureModel>(
        &mut self,
        model: &M,
        moments: &[f64],
        centres: Vec<f64>,
        counts: Vec<f64>,
    ) {
        let gaps = model.point_gaps(moments);
        for from in (0..counts.len()).map(|n| self.centres.len() + n * model.point_len()) {
            self.gaps.extend(gaps.iter().map(|at| from + at));
        }
        self.centres.extend(centres);
        self.counts.extend(counts);
    }

    /// Fills places without observations from the mean point.
    pub(crate) fn filled<M: MixtureModel>(mut self, model: &M, moments: &[f64]) -> Self {
        if !self.gaps.is_empty() {
            let means = model.point_means(moments);
            self.gaps.drain(..).for_each(|at| self.centres[at] = means[at % means.len()]);
        }
        self
    }

    /// First parameters: the best of this number of restarts. With fewer centres than components (few
    /// clients whose small clusters were merged) they come from the pooled moments alone.
    pub(crate) fn start<M: MixtureModel>(
        &self,
        model: &M,
        moments: &[f64],
        restarts: u64,
        key: Key,
    ) -> Result<Vec<f64>> {
        let (width, k) = (model.point_len(), model.components());
        if self.counts.len() < k {
            return Ok(model.to_vector(&model.initial_from_moments(moments, key)?));
        }
        let scales = model.point_scales(moments);
        let mut points = Cow::Borrowed(&self.centres);
        if scales.is_some() {
            each(points.to_mut(), scales.as_deref(), |x, scale| x / scale);
        }
        let mut best = best_of(restarts, &points, width, &self.counts, k, STEPS_MAX, key)?;
        each(&mut best.centres, scales.as_deref(), |x, scale| x * scale);
        Ok(model.to_vector(&model.initial_from_centres(&best.centres, &best.counts, moments)?))
    }
}

/// Combines the numbers of each point with the scales.
fn each(points: &mut [f64], scales: Option<&[f64]>, by: impl Fn(f64, f64) -> f64) {
    let Some(scales) = scales else { return };
    for point in points.chunks_exact_mut(scales.len()) {
        point.iter_mut().zip(scales).for_each(|(x, scale)| *x = by(*x, *scale));
    }
}

/// Clusters after small ones were merged.
struct Joined {
    centres: Vec<f64>,
    counts: Vec<f64>,
    /// The new index of each cluster.
    place_of: Vec<usize>,
}

/// The squared distance of two points.
pub(crate) fn distance2(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// Merges clusters of fewer than `rows_min` rows into the nearest other cluster, smallest first.
fn join_small(found: Clusters, columns: usize, rows_min: usize) -> Joined {
    let (mut centres, mut counts) = (found.centres, found.counts);
    let mut place_of: Vec<usize> = (0..counts.len()).collect();
    while counts.len() > 1 {
        let Some(small) = (0..counts.len()).min_by(|i, j| counts[*i].total_cmp(&counts[*j])) else {
            break;
        };
        if counts[small] >= rows_min as f64 {
            break;
        }
        let count = counts.remove(small);
        let centre: Vec<f64> = centres.drain(small * columns..(small + 1) * columns).collect();
        let gap = |i: usize| -> f64 { distance2(&centres[i * columns..][..columns], &centre) };
        let near = (0..counts.len()).min_by(|i, j| gap(*i).total_cmp(&gap(*j))).unwrap_or(0);
        for place in &mut place_of {
            *place = if *place == small { near } else { *place - usize::from(*place > small) };
        }
        // Empty clusters are skipped.
        if count == 0.0 {
            continue;
        }
        let joined = counts[near] + count;
        for (c, x) in centres[near * columns..][..columns].iter_mut().zip(&centre) {
            *c += (x - *c) * (count / joined);
        }
        counts[near] = joined;
    }
    Joined { centres, counts, place_of }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_centre_stands_for_fewer_rows_than_allowed() {
        let found = Clusters {
            centres: vec![0.0, 10.0, 11.0, 50.0],
            counts: vec![8.0, 6.0, 2.0, 1.0],
            labels: Vec::new(),
            inertia: 0.0,
        };
        assert_eq!(join_small(found.clone(), 1, 9).counts, [8.0 + 9.0]);
        let Joined { centres, counts, place_of } = join_small(found, 1, ROWS_MIN);
        assert_eq!(place_of, [0, 1, 1, 1]);
        // 50 joins 11 (then 24, three rows), which joins 10: (6 * 10 + 3 * 24) / 9.
        assert_eq!(counts, [8.0, 9.0]);
        assert_eq!(centres[0], 0.0);
        assert!((centres[1] - 44.0 / 3.0).abs() < 1e-12, "{centres:?}");
    }

    #[test]
    fn a_client_may_ask_for_larger_clusters() {
        // Five groups of six rows.
        let values = (0..30).map(|i| f64::from(100 * (i / 6) + i)).collect();
        let points = Points { values, width: 1, scales: None, observed: None };
        let counts = |rows_min| points.centres(5, rows_min, Key::root(3)).unwrap().1;
        assert_eq!(counts(ROWS_MIN), [6.0; 5]);
        for rows_min in [7, 10, 25] {
            let counts = counts(rows_min);
            assert!(counts.iter().all(|count| *count >= rows_min as f64), "{counts:?}");
            assert_eq!(counts.iter().sum::<f64>(), 30.0);
        }
    }

    #[test]
    fn a_value_that_few_rows_of_a_cluster_have_is_not_in_its_centre() {
        // Two groups of ten rows; the second column is observed once in the first group and eight
        // times in the second, and holds the mean elsewhere.
        let is_observed = |row: usize| row == 3 || row >= 12;
        let value = |row: usize| if row == 3 { 157.3 } else { 100.0 };
        let seen: Vec<f64> = (0..20).filter(|row| is_observed(*row)).map(value).collect();
        let mean = seen.iter().sum::<f64>() / seen.len() as f64;
        let row = |row: usize| {
            [(1000 * (row / 10)) as f64, if is_observed(row) { value(row) } else { mean }]
        };
        let points = Points {
            values: (0..20).flat_map(row).collect(),
            width: 2,
            scales: None,
            observed: Some((0..20).flat_map(|row| [true, is_observed(row)]).collect()),
        };
        let (centres, counts) = points.centres(2, ROWS_MIN, Key::root(3)).unwrap();
        assert_eq!(counts, [10.0; 2]);
        let first = usize::from(centres[0] != 0.0);
        assert!((centres[2 * first + 1] - mean).abs() < 1e-12, "{centres:?}");
        let second = (2.0 * mean + 8.0 * 100.0) / 10.0;
        assert!((centres[2 * (1 - first) + 1] - second).abs() < 1e-12, "{centres:?}");
    }

    #[test]
    fn centres_without_rows_are_left_out() {
        let found = Clusters {
            centres: vec![0.0, 7.0, 8.0, 20.0],
            counts: vec![6.0, 0.0, 0.0, 2.0],
            labels: Vec::new(),
            inertia: 0.0,
        };
        let joined = join_small(found, 1, ROWS_MIN);
        assert_eq!((joined.centres, joined.counts), (vec![5.0], vec![8.0]));
    }

    #[test]
    fn a_tiny_client_sends_one_mean() {
        let found = Clusters {
            centres: vec![1.0, 3.0],
            counts: vec![1.0, 1.0],
            labels: Vec::new(),
            inertia: 0.0,
        };
        let joined = join_small(found, 1, ROWS_MIN);
        assert_eq!((joined.centres, joined.counts), (vec![2.0], vec![2.0]));
    }
}
