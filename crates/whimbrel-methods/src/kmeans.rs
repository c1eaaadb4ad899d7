//! Federated k-means, the one-shot kind: a stage that finds first means for a mixture.
//!
//! Each client clusters its own rows and sends centres and counts with its enrolment; the server
//! clusters the centres, weighted by their counts. No round is needed. A centre is a mean of rows,
//! so a cluster of one row would give that row away: clusters of fewer than [`ROWS_MIN`] rows are
//! joined to the nearest other one before anything is sent. Only a client with fewer rows than that
//! sends the mean of fewer.

use crate::one_shot::OneShot;
use crate::settings::{Weights, check_sums};
use whimbrel_core::method::{Artifact, Disclosure, Exposure};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, sum::ExactSum, vector, wire};
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Gmm, GmmData};
use whimbrel_models::kmeans::{Clusters, best_of, kmeans};

/// The fewest rows behind a centre that leaves a client.
pub const ROWS_MIN: usize = 5;
const STEPS_MAX: usize = 100;
/// Restarts on the server; the best is kept.
const RESTARTS: u64 = 10;

/// The stage: the mixture whose start is wanted (with pooled moments).
pub struct FederatedKmeans {
    /// The mixture.
    pub model: Gmm,
}

/// What a client sends.
#[derive(Clone, Debug)]
pub struct Summary {
    rows: u64,
    moments: Vec<f64>,
    centres: Vec<f64>,
    counts: Vec<f64>,
}

wire!(Summary { rows, moments, centres, counts });

impl OneShot for FederatedKmeans {
    type Data = GmmData;
    type Summary = Summary;

    fn read(&self, data: &ClientData) -> Result<GmmData> {
        self.model.bind(data)
    }

    fn summarise(&self, data: &GmmData, key: Key) -> Result<Summary> {
        let count = self.model.rows(data);
        let window = self.model.window(data, 0, count)?;
        let data = window.as_ref().unwrap_or(data);
        let (centres, counts) = local_centres(&data.values(), &self.model, key)?;
        let moments = self.model.moments(data)?;
        Ok(Summary { rows: count as u64, moments, centres, counts })
    }

    fn pool(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Summary)>,
        key: Key,
    ) -> Result<Artifact> {
        let (mut total, mut moments) = (0.0, ExactSum::new(self.model.moments_len()));
        let (mut centres, mut counts) = (Vec::new(), Vec::new());
        for (id, summary) in roster {
            if summary.moments.len() != moments.len() {
                return Err(Error::peer(format!("client {id} sent moments of another length")));
            }
            for sums in [&summary.moments, &summary.centres, &summary.counts] {
                check_sums(id, sums)?;
            }
            total += Weights::Samples.of(id, summary.rows)?;
            moments.add(&summary.moments, summary.rows as f64)?;
            centres.extend(summary.centres);
            counts.extend(summary.counts);
        }
        if total == 0.0 {
            return Err(Error::data("there is no client"));
        }
        let mut mean = moments.value();
        vector::scale(&mut mean, 1.0 / total);
        let theta = start_from_centres(&self.model, &centres, &counts, &mean, RESTARTS, key)?;
        let start = Artifact::new("start");
        Ok(start.with("theta", &[theta.len()], theta))
    }

    fn disclosure(&self) -> Disclosure {
        let (k, d) = (self.model.components(), self.model.columns());
        Disclosure {
            message: "summary",
            meaning: format!(
                "mean moments of its rows, and centres and sizes of clusters of at least {ROWS_MIN} rows"
            ),
            bytes_max: 8 * (k * (d + 1) + self.model.moments_len()) + 32,
            exposure: Exposure::Aggregate,
        }
    }
}

/// Centres of a client's own clusters and the rows behind each, none of them few.
pub(crate) fn local_centres(rows: &[f64], model: &Gmm, key: Key) -> Result<(Vec<f64>, Vec<f64>)> {
    let columns = model.columns();
    let k = model.components().min((rows.len() / columns).div_ceil(ROWS_MIN));
    let found = kmeans(rows, columns, None, k, STEPS_MAX, key)?;
    Ok(join_small(found, columns))
}

/// First parameters from all clients' centres and the pooled moments: the best of so many restarts.
pub(crate) fn start_from_centres(
    model: &Gmm,
    centres: &[f64],
    counts: &[f64],
    moments: &[f64],
    restarts: u64,
    key: Key,
) -> Result<Vec<f64>> {
    let (columns, k) = (model.columns(), model.components());
    let best = best_of(restarts, centres, columns, counts, k, STEPS_MAX, key)?;
    Ok(model.to_vector(&model.initial_from_centres(&best.centres, &best.counts, moments)?))
}

/// Joins clusters of fewer than [`ROWS_MIN`] rows to the nearest other centre, smallest first.
fn join_small(found: Clusters, columns: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut centres, mut counts) = (found.centres, found.counts);
    let distance2 = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    while counts.len() > 1 {
        let Some(small) = (0..counts.len()).min_by(|i, j| counts[*i].total_cmp(&counts[*j])) else {
            break;
        };
        if counts[small] >= ROWS_MIN as f64 {
            break;
        }
        let count = counts.remove(small);
        let centre: Vec<f64> = centres.drain(small * columns..(small + 1) * columns).collect();
        // A centre that lost all its rows says nothing.
        if count == 0.0 {
            continue;
        }
        let gap = |i: usize| -> f64 { distance2(&centres[i * columns..][..columns], &centre) };
        let near = (0..counts.len()).min_by(|i, j| gap(*i).total_cmp(&gap(*j))).unwrap_or(0);
        let joined = counts[near] + count;
        for (c, x) in centres[near * columns..][..columns].iter_mut().zip(&centre) {
            *c += (x - *c) * (count / joined);
        }
        counts[near] = joined;
    }
    (centres, counts)
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
        let (centres, counts) = join_small(found, 1);
        // 50 joins 11 (then 24, three rows), which joins 10: (6 * 10 + 3 * 24) / 9.
        assert_eq!(counts, [8.0, 9.0]);
        assert_eq!(centres[0], 0.0);
        assert!((centres[1] - 44.0 / 3.0).abs() < 1e-12, "{centres:?}");
    }

    #[test]
    fn centres_without_rows_are_left_out() {
        let found = Clusters {
            centres: vec![0.0, 7.0, 8.0, 20.0],
            counts: vec![6.0, 0.0, 0.0, 2.0],
            labels: Vec::new(),
            inertia: 0.0,
        };
        assert_eq!(join_small(found, 1), (vec![5.0], vec![8.0]));
    }

    #[test]
    fn a_tiny_client_sends_one_mean() {
        let found = Clusters {
            centres: vec![1.0, 3.0],
            counts: vec![1.0, 1.0],
            labels: Vec::new(),
            inertia: 0.0,
        };
        assert_eq!(join_small(found, 1), (vec![2.0], vec![2.0]));
    }
}
