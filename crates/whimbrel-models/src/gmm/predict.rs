//! Predictions of a fitted mixture: labels and densities of rows, and samples.

use super::data::GmmData;
use super::estep::{BLOCK_TILES, Scratch, score_block};
use super::{Gmm, GmmParameters};
use crate::lane::LANES;
use whimbrel_core::linalg::cholesky;
use whimbrel_core::{Error, Key, Result};

/// Predictions for rows.
#[derive(Clone, Debug, PartialEq)]
pub struct GmmPrediction {
    /// The most probable component of each row, from 0; the first of ties.
    pub labels: Vec<u32>,
    /// The component probabilities, row after row.
    pub responsibilities: Vec<f64>,
    /// `ln p(y; theta)` of each row.
    pub log_density: Vec<f64>,
}

/// Rows drawn from a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct GmmSample {
    /// The rows, row-major.
    pub rows: Vec<f64>,
    /// The component of each row, from 0.
    pub labels: Vec<u32>,
}

impl Gmm {
    /// Labels, responsibilities and log-densities of rows.
    pub fn responsibilities(&self, theta: &GmmParameters, data: &GmmData) -> Result<GmmPrediction> {
        if data.columns() != theta.columns() {
            return Err(Error::internal("parameters and rows belong to different mixtures"));
        }
        let components = theta.components();
        let mut out = GmmPrediction {
            labels: Vec::with_capacity(data.rows),
            responsibilities: Vec::with_capacity(data.rows * components),
            log_density: Vec::with_capacity(data.rows),
        };
        let mut scratch = Scratch::default();
        scratch.prepare(components, theta.columns());
        for block in data.tiles.chunks(BLOCK_TILES * theta.columns()) {
            let tiles = score_block(theta, block, &mut scratch);
            for i in 0..(tiles * LANES).min(data.rows - out.labels.len()) {
                let (tile, lane) = (i / LANES, i % LANES);
                let of = |k: usize| scratch.scores[k * tiles + tile].0[lane];
                out.responsibilities.extend((0..components).map(of));
                let label =
                    (1..components).fold(0, |best, k| if of(k) > of(best) { k } else { best });
                out.labels.push(label as u32);
                out.log_density.push(scratch.log_density[tile].0[lane]);
            }
        }
        match out.log_density.iter().position(|d| !d.is_finite()) {
            None => Ok(out),
            Some(i) => Err(Error::numerical(format!(
                "row {} lies too far from every component to have a density",
                i + 1
            ))),
        }
    }

    /// Draws `n` rows.
    pub fn sample(&self, theta: &GmmParameters, n: usize, key: Key) -> Result<GmmSample> {
        let d = theta.columns();
        let roots = (0..theta.components())
            .map(|k| {
                let mut root = theta.covariance(k);
                cholesky(&mut root, d)?;
                Ok(root)
            })
            .collect::<Result<Vec<Vec<f64>>>>()?;
        let (mut choices, mut normals) = (key.child(0).stream(), key.child(1).stream());
        let mut out = GmmSample { rows: Vec::with_capacity(n * d), labels: Vec::with_capacity(n) };
        let mut row = vec![0.0; d];
        for _ in 0..n {
            let k = choices.categorical(theta.weights());
            normals.multivariate_normal(theta.mean(k), &roots[k], &mut row);
            out.rows.extend_from_slice(&row);
            out.labels.push(k as u32);
        }
        Ok(out)
    }
}
