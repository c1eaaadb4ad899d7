//! The E-step: scores, log-sum-exp and statistics in one pass over blocks that stay in cache.
//!
//! Rows are cut into chunks of a fixed size; each chunk is summed by one thread, and the chunks' sums are
//! added in a tree of fixed shape. Bits therefore do not depend on the number of threads.

use super::data::GmmData;
use super::kernels::{self, GROUP};
use super::parameters::{Factors, GmmParameters};
use super::second_moments::SecondMoments;
use super::{Covariance, Gmm};
use crate::lane::{LANES, Lane};
use crate::mixture::{check_density, sum_tree};
use crate::{LatentModel, Rows};
use std::cell::RefCell;
use whimbrel_core::{Error, Result};

/// Tiles processed together: the working set of 64 rows, 20 columns and 10 components is about 15 kB.
pub(super) const BLOCK_TILES: usize = 8;
/// Rows per chunk, a whole number of blocks: small enough to balance 70,000 rows over 16 threads, large
/// enough to make the cost of starting a chunk negligible.
const CHUNK_ROWS: usize = 512;

/// Reusable buffers of a thread.
#[derive(Default)]
pub(super) struct Scratch {
    /// Responsibilities, component after component.
    pub scores: Vec<Lane>,
    pub log_density: Vec<Lane>,
    totals: Vec<Lane>,
    work: Vec<Lane>,
    z: Vec<Lane>,
    sums: Vec<Lane>,
    second: SecondMoments,
    gathered: Vec<Lane>,
    pub(super) scores_before: Vec<Lane>,
    log_density_before: Vec<Lane>,
}

impl Scratch {
    /// Resizes the buffers for a block; their contents are arbitrary.
    pub fn prepare(&mut self, components: usize, columns: usize) {
        self.scores.resize(BLOCK_TILES * components, Lane::ZERO);
        self.scores_before.resize(BLOCK_TILES * components, Lane::ZERO);
        self.log_density.resize(BLOCK_TILES, Lane::ZERO);
        self.log_density_before.resize(BLOCK_TILES, Lane::ZERO);
        self.totals.resize(BLOCK_TILES, Lane::ZERO);
        self.work.resize(BLOCK_TILES * columns, Lane::ZERO);
        self.z.resize(columns.next_multiple_of(GROUP), Lane::ZERO);
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Gmm {
    /// Writes the mean over the rows of the statistic whose responsibilities `score` leaves in the scratch;
    /// returns the mean of the log-densities that it leaves there.
    pub(super) fn mean_over(
        &self,
        data: &GmmData,
        rows: Rows<'_>,
        out: &mut [f64],
        score: impl Fn(&[Lane], &mut Scratch) -> usize + Sync,
    ) -> Result<f64> {
        let count = row_count(data, rows);
        let chunk = |chunk: usize, out: &mut [f64]| {
            with_chunk(data, rows, chunk, |tiles, count, scratch| {
                self.add_blocks(tiles, count, scratch, out, &score)
            })
        };
        let mut log_density = sum_tree(0..count.div_ceil(CHUNK_ROWS), &chunk, out);
        let n = count as f64;
        out.iter_mut().for_each(|x| *x /= n);
        log_density /= n;
        check_density(log_density, out)?;
        Ok(log_density)
    }

    /// Scores a block under two sets of parameters. The statistic is linear in the responsibilities, so
    /// their differences take the place of the responsibilities; log-densities are added.
    pub(super) fn score_change(
        &self,
        [from, to]: [&GmmParameters; 2],
        block: &[Lane],
        scratch: &mut Scratch,
    ) -> usize {
        score_block(from, block, scratch);
        std::mem::swap(&mut scratch.scores, &mut scratch.scores_before);
        std::mem::swap(&mut scratch.log_density, &mut scratch.log_density_before);
        let count = score_block(to, block, scratch);
        let r = count * self.components();
        kernels::subtract(&mut scratch.scores[..r], &scratch.scores_before[..r]);
        let before = &scratch.log_density_before[..count];
        for (now, before) in scratch.log_density.iter_mut().zip(before) {
            *now += *before;
        }
        count
    }

    pub(super) fn check_call(
        &self,
        theta: &GmmParameters,
        data: &GmmData,
        rows: Rows<'_>,
        statistic_len: usize,
    ) -> Result<()> {
        let own = theta.columns() == self.columns()
            && theta.components() == self.components()
            && data.columns() == self.columns();
        if !own {
            return Err(Error::internal("parameters or rows belong to another mixture"));
        }
        if statistic_len != self.statistic_len() {
            return Err(Error::internal(format!(
                "a statistic of {statistic_len} numbers where the mixture has {}",
                self.statistic_len()
            )));
        }
        if let Rows::These(chosen) = rows {
            if chosen.is_empty() {
                return Err(Error::internal("an E-step over no rows"));
            }
            if let Some(i) = chosen.iter().find(|i| **i as usize >= data.rows) {
                return Err(Error::internal(format!("row {i} of {} does not exist", data.rows)));
            }
        }
        Ok(())
    }

    /// Sums statistics and log-densities over blocks of rows; `score` leaves the weights of a
    /// block's rows and their log-densities in the scratch.
    fn add_blocks(
        &self,
        tiles: &[Lane],
        rows: usize,
        scratch: &mut Scratch,
        out: &mut [f64],
        score: impl Fn(&[Lane], &mut Scratch) -> usize,
    ) -> f64 {
        let (components, columns) = (self.components(), self.columns());
        scratch.prepare(components, columns);
        let is_full = self.settings().covariance == Covariance::Full;
        let triangles = if is_full { components * self.triangle() } else { 0 };
        let (out, out_triangles) = out.split_at_mut(out.len() - triangles);
        scratch.sums.clear();
        scratch.sums.resize(out.len() + 1, Lane::ZERO);
        if is_full {
            scratch.second.clear(components, columns);
        }
        let mut left = rows;
        for block in tiles.chunks(BLOCK_TILES * columns) {
            let count = score(block, scratch);
            if left < count * LANES {
                scratch.silence_padding(left, count, components);
            }
            self.add_statistics(block, count, scratch);
            left = left.saturating_sub(count * LANES);
        }
        for (out, sum) in out.iter_mut().zip(&scratch.sums) {
            *out = sum.sum();
        }
        if is_full {
            scratch.second.triangles(columns, out_triangles);
        }
        scratch.sums[out.len()].sum()
    }

    /// Adds the expected statistics and the log-densities of a block to the sums.
    fn add_statistics(&self, block: &[Lane], count: usize, scratch: &mut Scratch) {
        let (components, columns) = (self.components(), self.columns());
        let r = &scratch.scores[..count * components];
        let (first, rest) = scratch.sums.split_at_mut(components);
        let (second, rest) = rest.split_at_mut(components * columns);
        let (third, log_density) = rest.split_at_mut(rest.len() - 1);
        kernels::add_rows(r, count, first);
        kernels::add_rows(&scratch.log_density[..count], count, log_density);
        kernels::add_products(r, block, columns, second);
        match self.settings().covariance {
            Covariance::Known(_) | Covariance::Tied => {}
            Covariance::Diagonal | Covariance::Spherical => {
                let work = &mut scratch.work[..block.len()];
                kernels::squares(block, work);
                kernels::add_products(r, work, columns, third);
            }
            Covariance::Full => scratch.second.add(r, block, columns),
        }
    }
}

impl Scratch {
    /// Turns log-scores into responsibilities and log-densities.
    pub(super) fn normalise(&mut self, tiles: usize, components: usize) {
        let scores = &mut self.scores[..tiles * components];
        let (log_density, totals) = (&mut self.log_density[..tiles], &mut self.totals[..tiles]);
        kernels::responsibilities(scores, log_density, totals);
    }

    /// Excludes padding rows from all sums.
    fn silence_padding(&mut self, rows: usize, tiles: usize, components: usize) {
        let (tile, real) = (rows / LANES, rows % LANES);
        debug_assert_eq!(tile + 1, tiles, "only the last tile is padded");
        self.log_density[tile].0[real..].fill(0.0);
        for r in self.scores[..tiles * components].chunks_exact_mut(tiles) {
            r[tile].0[real..].fill(0.0);
        }
    }
}

fn row_count(data: &GmmData, rows: Rows<'_>) -> usize {
    match rows {
        Rows::All => data.rows,
        Rows::These(chosen) => chosen.len(),
    }
}

/// Calls `work` with the tiles of one chunk (gathered if rows are chosen), the number of rows and the
/// thread's buffers.
fn with_chunk<R>(
    data: &GmmData,
    rows: Rows<'_>,
    chunk: usize,
    work: impl FnOnce(&[Lane], usize, &mut Scratch) -> R,
) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        let first = chunk * CHUNK_ROWS;
        match rows {
            Rows::All => {
                let count = CHUNK_ROWS.min(data.rows - first);
                let tiles = &data.tiles[first / LANES * data.columns()..]
                    [..count.div_ceil(LANES) * data.columns()];
                work(tiles, count, scratch)
            }
            Rows::These(chosen) => {
                let chosen = &chosen[first..chosen.len().min(first + CHUNK_ROWS)];
                let mut gathered = std::mem::take(&mut scratch.gathered);
                data.gather(chosen, &mut gathered);
                let result = work(&gathered, chosen.len(), scratch);
                scratch.gathered = gathered;
                result
            }
        }
    })
}

/// Writes responsibilities and log-densities of a block to the scratch; returns the number of tiles.
pub(super) fn score_block(theta: &GmmParameters, block: &[Lane], scratch: &mut Scratch) -> usize {
    let tiles = log_scores(theta, block, scratch);
    scratch.normalise(tiles, theta.components());
    tiles
}

/// Writes each row's `ln(pi_k N(y; mu_k, Sigma_k))` to the scratch; returns the number of tiles.
pub(super) fn log_scores(theta: &GmmParameters, block: &[Lane], scratch: &mut Scratch) -> usize {
    let columns = theta.columns();
    let tiles = block.len() / columns;
    let scores = &mut scratch.scores[..tiles * theta.components()];
    let work = &mut scratch.work[..block.len()];
    let constants = &theta.constants;
    match &theta.factors {
        Factors::Shared { centre, panels, whitened } => {
            let z = &mut scratch.z;
            kernels::centre_rows(block, centre, work);
            kernels::shared_scores(work, columns, panels, whitened, constants, z, scores);
        }
        Factors::Diagonal { scales } => {
            let (means, z) = (theta.means(), &mut scratch.z);
            kernels::diagonal_scores(block, columns, means, scales, constants, z, scores);
        }
        Factors::Full { centre, panels, offsets } => {
            kernels::centre_rows(block, centre, work);
            kernels::full_scores(work, columns, offsets, panels, constants, scores);
        }
    }
    tiles
}
