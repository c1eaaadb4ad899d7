//! Lloyd's k-means under differential privacy: the start of a private mixture.
//!
//! The state is the share of the rows and the centre of each cluster, centres in units of a radius `R`.
//! A row sends a one for its nearest centre and itself over `R`, scaled down to the unit ball, so that
//! it moves the sum by at most `sqrt(2)`. The first round assigns all rows to one cluster and places the
//! centres on a sphere of one column's scale around their noisy mean, in directions that do not depend on
//! the data. Centres at one distance have cones as cells; of centres at several distances the nearest one
//! would get most rows, since in high dimensions its distance decides.

use crate::federated::Simple;
use crate::kmeans::distance2;
use std::f64::consts::SQRT_2;
use whimbrel_core::{Key, Table, vector};

/// The rounds of the start.
pub const ROUNDS: u32 = 4;
/// The largest norm of one row's part in a client's value.
pub const ROW_BOUND: f64 = SQRT_2;
/// A cluster with less than this part of an equal share of the rows keeps its centre: noise would
/// move it anywhere.
const SMALL: f64 = 0.1;

/// The method; columns have a scale of about one.
#[derive(Clone, Debug)]
pub struct Lloyd {
    pub clusters: usize,
    /// Unit vectors from the mean to the first centres, over the radius.
    directions: Vec<f64>,
    columns: usize,
}

impl Lloyd {
    /// Directions drawn from `key`.
    pub fn new(clusters: usize, columns: usize, key: Key) -> Self {
        let mut directions = vec![0.0; clusters * columns];
        key.stream().fill_normal(&mut directions);
        for direction in directions.chunks_exact_mut(columns) {
            let norm = vector::norm2_squared(direction).sqrt();
            vector::scale(direction, 1.0 / (norm * radius(columns)));
        }
        Self { clusters, directions, columns }
    }

    /// The length of the state.
    pub fn dimension(&self) -> usize {
        self.clusters * (1 + self.columns)
    }

    /// The centres of a state.
    pub fn centres(&self, state: &[f64]) -> Vec<f64> {
        state[self.clusters..].iter().map(|x| x * radius(self.columns)).collect()
    }
}

/// `R = 1.5 sqrt(d)`.
fn radius(columns: usize) -> f64 {
    1.5 * (columns as f64).sqrt()
}

impl Simple for Lloyd {
    fn start(&self, _: usize) -> Vec<f64> {
        vec![0.0; self.dimension()]
    }

    fn value(&self, at: &[f64], rows: &Table, _: Key) -> Vec<f64> {
        let d = self.columns;
        let (_, centres) = at.split_at(self.clusters);
        let mut sums = vec![0.0; at.len()];
        for i in 0..rows.rows() {
            let row: Vec<f64> = rows.row(i).iter().map(|x| x / radius(d)).collect();
            let distances = centres.chunks_exact(d).map(|c| distance2(c, &row)).enumerate();
            let Some((k, _)) = distances.min_by(|(_, a), (_, b)| a.total_cmp(b)) else { continue };
            let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
            let share = (1.0 / norm).min(1.0) / rows.rows() as f64;
            sums[k] += 1.0 / rows.rows() as f64;
            let sum = &mut sums[self.clusters + k * d..][..d];
            sum.iter_mut().zip(&row).for_each(|(sum, x)| *sum += share * x);
        }
        sums
    }

    fn step(&self, at: &mut [f64], mean: &[f64], round: u32) {
        let (shares, centres) = at.split_at_mut(self.clusters);
        let (counts, sums) = mean.split_at(self.clusters);
        shares.copy_from_slice(counts);
        if round == 0 {
            // All centres are zero, and equal distances assign all rows to the first one.
            centres.copy_from_slice(&self.directions);
            for centre in centres.chunks_exact_mut(self.columns) {
                vector::axpy(centre, 1.0 / counts[0].max(SMALL), &sums[..self.columns]);
            }
            return;
        }
        let clusters = centres.chunks_exact_mut(self.columns).zip(sums.chunks_exact(self.columns));
        for ((centre, sum), count) in clusters.zip(counts) {
            if *count * self.clusters as f64 >= SMALL {
                centre.iter_mut().zip(sum).for_each(|(centre, sum)| *centre = sum / count);
            }
        }
    }

    fn loss(&self, _: &[f64], _: &Table) -> f64 {
        0.0
    }
}
