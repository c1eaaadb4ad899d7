//! Clients as clusters of rows, by their features or by an embedding.
//!
//! Clusters are very unequal, so they are rebalanced: while the largest holds more than `ratio_max`
//! times the rows of the smallest, the half of the largest that is nearest to the smallest one's
//! centre moves there. Each move reduces the sum of squared sizes, so this terminates. Every client
//! then has at least one row, and the largest at most `ratio_max` times the rows of the smallest.
//!
//! The experiments of Philippenko and Dieuleveut (*Preserved central model for faster
//! bidirectional compression in distributed settings*, 2021) cluster a t-SNE by a Gaussian
//! mixture. Their text states no rebalancing; their code has this rule with the ratio 10, but
//! moves the first half in the order of the file, which mixes two clusters in one client.

use crate::split::{enough_rows, named};
use crate::{ClientRows, Error, Result};
use whimbrel_core::Key;
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};
use whimbrel_models::kmeans::kmeans;
use whimbrel_models::{LatentModel, MixtureModel, Rows};

/// The rule that groups rows into clients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clustering {
    /// Default: a Gaussian mixture, as in the paper.
    pub rule: ClusterRule,
    /// The largest allowed ratio of the sizes of two clients, at least 2. Default: 10, as in the
    /// paper's code.
    pub ratio_max: f64,
}

impl Default for Clustering {
    fn default() -> Self {
        Self { rule: ClusterRule::Mixture, ratio_max: 10.0 }
    }
}

/// The definition of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterRule {
    /// The rows nearest to a centre of k-means.
    KMeans,
    /// The rows likeliest under one component of a Gaussian mixture, started from k-means. Full
    /// covariances up to 8 columns, diagonal ones beyond.
    Mixture,
}

/// The clients found by clustering.
#[derive(Debug, Clone, PartialEq)]
pub struct Clustered {
    pub clients: Vec<ClientRows>,
    /// The clusters' sizes before any row was moved, in the clients' order.
    pub found: Vec<usize>,
    /// The number of moves of half a cluster.
    pub moves: usize,
}

/// Starts of k-means with few columns (one with many, which is slow); the tightest clusters are kept.
const STARTS: u64 = 4;
const LLOYD_STEPS_MAX: usize = 100;
const EM_STEPS_MAX: usize = 500;
/// EM stops once the mean log-likelihood increases by less.
const EM_TOLERANCE: f64 = 1e-6;
/// Added to the variances of columns scaled to 1, so that no component collapses to equal rows.
const RIDGE: f64 = 1e-6;
const FEW_COLUMNS_MAX: usize = 8;

/// Groups `points` (row-major, one per row of the data, `columns` numbers each) into clients.
pub fn clusters(
    points: &[f64],
    columns: usize,
    clients: usize,
    clustering: &Clustering,
    key: Key,
) -> Result<Clustered> {
    if columns == 0 || !points.len().is_multiple_of(columns) {
        let what = format!("{} numbers are not points of {columns} columns", points.len());
        return Err(Error::config(what));
    }
    let rows = points.len() / columns;
    enough_rows("the data set", rows, clients)?;
    if !(clustering.ratio_max >= 2.0 && clustering.ratio_max.is_finite()) {
        let what = format!("clusters cannot be kept within a ratio of {}", clustering.ratio_max);
        return Err(Error::config(what).hint("halving a cluster reaches ratios of 2 and above"));
    }
    let labels = match clustering.rule {
        ClusterRule::KMeans => tightest(points, columns, clients, key)?.labels,
        ClusterRule::Mixture => by_mixture(points, columns, clients, key)?,
    };
    let mut parts = vec![Vec::new(); clients];
    for (row, label) in labels.iter().enumerate() {
        parts[*label as usize].push(row);
    }
    let found = parts.iter().map(Vec::len).collect();
    let moves = rebalance(&mut parts, points, columns, clustering.ratio_max);
    Ok(Clustered { clients: named(parts), found, moves })
}

fn tightest(
    points: &[f64],
    columns: usize,
    clients: usize,
    key: Key,
) -> Result<whimbrel_models::kmeans::Clusters> {
    let start = |s: u64| kmeans(points, columns, None, clients, LLOYD_STEPS_MAX, key.child(s));
    let mut best = start(0)?;
    let starts = if columns <= FEW_COLUMNS_MAX { STARTS } else { 1 };
    for s in 1..starts {
        let next = start(s)?;
        if next.inertia < best.inertia {
            best = next;
        }
    }
    Ok(best)
}

/// The likeliest component of each point.
fn by_mixture(points: &[f64], columns: usize, clients: usize, key: Key) -> Result<Vec<u32>> {
    let points = centred(points, columns);
    let near = tightest(&points, columns, clients, key)?;
    // Fewer distinct points than clients: a mixture cannot be fitted.
    if near.counts.len() < clients {
        return Ok(near.labels);
    }
    let covariance =
        if columns <= FEW_COLUMNS_MAX { Covariance::Full } else { Covariance::Diagonal };
    let mut settings = GmmSettings::new(clients, columns, covariance);
    settings.reg_covar = RIDGE;
    settings.want_moments = true;
    let gmm = Gmm::new(settings)?;
    let data = gmm.data_from_rows(&points)?;
    let moments = gmm.moments(&data)?;
    let mut theta = gmm.initial_from_centres(&near.centres, &near.counts, &moments)?;
    let mut statistic = vec![0.0; gmm.statistic_len()];
    let mut likelihood = f64::NEG_INFINITY;
    for _ in 0..EM_STEPS_MAX {
        let now = gmm.expect(&theta, &data, Rows::All, &mut statistic)?;
        if now - likelihood < EM_TOLERANCE {
            break;
        }
        likelihood = now;
        theta = gmm.maximize(&statistic, &moments)?.theta;
    }
    Ok(gmm.responsibilities(&theta, &data)?.labels)
}

/// Points centred, and scaled by one number to a mean square of 1.
fn centred(points: &[f64], columns: usize) -> Vec<f64> {
    let mean = centre(points.chunks_exact(columns), columns);
    let mut moved: Vec<f64> = points.iter().zip(mean.iter().cycle()).map(|(x, m)| x - m).collect();
    let square = moved.iter().map(|x| x * x).sum::<f64>() / moved.len() as f64;
    if square > 0.0 && square.is_finite() {
        let scale = square.sqrt();
        moved.iter_mut().for_each(|x| *x /= scale);
    }
    moved
}

/// Moves halves of the largest part to the smallest one until their sizes are within the ratio;
/// returns the number of moves. Ties take the first part.
fn rebalance(parts: &mut [Vec<usize>], points: &[f64], columns: usize, ratio_max: f64) -> usize {
    let point = |row: usize| &points[row * columns..][..columns];
    let mut moves = 0;
    loop {
        let extreme = |largest: bool| {
            let better = |a: usize, b: usize| if largest { a > b } else { a < b };
            (1..parts.len())
                .fold(0, |best, i| if better(parts[i].len(), parts[best].len()) { i } else { best })
        };
        let (small, large) = (extreme(false), extreme(true));
        if parts[large].len() as f64 <= ratio_max * parts[small].len() as f64 {
            return moves;
        }
        let aim = centre(parts[small].iter().map(|&row| point(row)), columns);
        let mut rows: Vec<(f64, usize)> =
            parts[large].iter().map(|&row| (distance(point(row), &aim), row)).collect();
        rows.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (near, far) = rows.split_at(rows.len() / 2);
        parts[small].extend(near.iter().map(|(_, row)| row));
        parts[large] = far.iter().map(|(_, row)| *row).collect();
        moves += 1;
    }
}

/// The mean; the origin without points.
fn centre<'p>(points: impl ExactSizeIterator<Item = &'p [f64]>, columns: usize) -> Vec<f64> {
    let count = points.len().max(1) as f64;
    let mut mean = vec![0.0; columns];
    for point in points {
        mean.iter_mut().zip(point).for_each(|(sum, x)| *sum += x / count);
    }
    mean
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum()
}
