//! Rows in the layout of the E-step: tiles of eight rows, column after column, so that every kernel
//! processes eight rows at once with unit stride.

use super::Gmm;
use super::estep::BLOCK_TILES;
use super::kernels;
use crate::MixtureModel;
use crate::lane::{LANES, Lane};
use std::sync::Arc;
use whimbrel_core::{ClientData, Error, Result, RowStream};

/// A client's rows: a fixed table, or the rows that represent a stream, with the stream.
#[derive(Clone)]
pub struct GmmData {
    pub(super) rows: usize,
    columns: usize,
    /// `tiles[t * columns + j]` holds column `j` of rows `8 t..8 t + 8`; the padding repeats the last row.
    pub(super) tiles: Vec<Lane>,
    pub(super) source: Option<Arc<dyn RowStream>>,
}

impl GmmData {
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    pub fn row(&self, i: usize) -> Vec<f64> {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        let tile = &self.tiles[i / LANES * self.columns..][..self.columns];
        tile.iter().map(|lane| lane.0[i % LANES]).collect()
    }

    /// All rows, row-major.
    pub fn values(&self) -> Vec<f64> {
        let mut values = vec![0.0; self.rows * self.columns];
        let eights = values.chunks_mut(LANES * self.columns);
        for (tile, rows) in self.tiles.chunks_exact(self.columns).zip(eights) {
            for (i, row) in rows.chunks_exact_mut(self.columns).enumerate() {
                row.iter_mut().zip(tile).for_each(|(x, lane)| *x = lane.0[i]);
            }
        }
        values
    }

    /// Appends the chosen rows to `tiles`, in the layout of [`GmmData::tiles`].
    pub(super) fn gather(&self, chosen: &[u32], tiles: &mut Vec<Lane>) {
        tiles.clear();
        tiles.resize(chosen.len().div_ceil(LANES) * self.columns, Lane::ZERO);
        for (tile, eight) in tiles.chunks_exact_mut(self.columns).zip(chosen.chunks(LANES)) {
            for lane in 0..LANES {
                let i = eight[lane.min(eight.len() - 1)] as usize;
                let from = &self.tiles[i / LANES * self.columns..][..self.columns];
                for (to, from) in tile.iter_mut().zip(from) {
                    to.0[lane] = from.0[i % LANES];
                }
            }
        }
    }
}

/// Largest admissible value: sums of squares stay far from overflow.
const VALUE_MAX: f64 = 1e100;

impl Gmm {
    /// Checks rows (row-major) and lays them out for the E-step.
    pub fn data_from_rows(&self, values: &[f64]) -> Result<GmmData> {
        let names: Vec<String> = (1..=self.columns()).map(|j| j.to_string()).collect();
        self.lay_out(&names, values, 0)
    }

    pub(super) fn bind_client(&self, data: &ClientData) -> Result<GmmData> {
        match data {
            ClientData::Table(table) => self.lay_out(&table.columns, &table.values, 0),
            ClientData::Stream(source) => {
                let first = self.read(source, 0, self.settings().stream_rows)?;
                Ok(GmmData { source: Some(source.clone()), ..first })
            }
            ClientData::Labelled(_) | ClientData::Samples(_) => {
                Err(Error::data("the rows carry targets; a mixture is fitted to rows without them"))
            }
            ClientData::Cells(_) => {
                Err(Error::data("observed cells are not rows; a mixture is fitted to whole rows"))
            }
        }
    }

    pub(super) fn read(
        &self,
        source: &Arc<dyn RowStream>,
        from: u64,
        count: usize,
    ) -> Result<GmmData> {
        let mut values = Vec::with_capacity(count * self.columns());
        source.rows(from, count, &mut values)?;
        let expected = count * source.columns().len();
        if values.len() != expected {
            return Err(Error::data(format!(
                "the stream gave {} values for rows {from}..{} where {expected} were asked for",
                values.len(),
                from + count as u64
            )));
        }
        self.lay_out(source.columns(), &values, from)
    }

    /// `first` is the index of the first row, for messages.
    fn lay_out(&self, names: &[String], values: &[f64], first: u64) -> Result<GmmData> {
        let columns = self.columns();
        if names.len() != columns {
            return Err(Error::data(format!(
                "the rows have {} columns ({}), the mixture has {columns}",
                names.len(),
                names.join(", ")
            )));
        }
        if !values.len().is_multiple_of(columns) {
            return Err(Error::data(format!(
                "{} values do not fill rows of {columns} columns",
                values.len()
            )));
        }
        let rows = values.len() / columns;
        if rows == 0 {
            return Err(Error::data("there are no rows; a mixture needs at least one"));
        }
        if let Some(at) = values.iter().position(|v| v.is_nan() || v.abs() > VALUE_MAX) {
            let (row, name) = (first + (at / columns) as u64 + 1, &names[at % columns]);
            let fault = match values[at] {
                v if v.is_finite() => {
                    format!("{v:e}, whose square is too large to sum; rescale the column")
                }
                v => format!("{v}, which is not a finite number"),
            };
            return Err(Error::data(format!("row {row}, column `{name}` holds {fault}")));
        }
        let mut tiles = vec![Lane::ZERO; rows.div_ceil(LANES) * columns];
        for (t, tile) in tiles.chunks_exact_mut(columns).enumerate() {
            for lane in 0..LANES {
                let i = (t * LANES + lane).min(rows - 1);
                for (to, from) in tile.iter_mut().zip(&values[i * columns..]) {
                    to.0[lane] = *from;
                }
            }
        }
        Ok(GmmData { rows, columns, tiles, source: None })
    }

    /// Means over the rows of `y` and of the lower triangle of `y y^T`.
    pub(super) fn moments_of(&self, data: &GmmData) -> Vec<f64> {
        if self.moments_len() == 0 {
            return Vec::new();
        }
        let columns = self.columns();
        let mut sums = vec![Lane::ZERO; self.moments_len()];
        let (first, second) = sums.split_at_mut(columns);
        let mut work = vec![Lane::ZERO; BLOCK_TILES * columns];
        let mut left = data.rows;
        for block in data.tiles.chunks(BLOCK_TILES * columns) {
            let mut ones = [Lane::splat(1.0); BLOCK_TILES];
            let tiles = block.len() / columns;
            if left < tiles * LANES {
                ones[tiles - 1].0[left % LANES..].fill(0.0);
            }
            let work = &mut work[..block.len()];
            kernels::add_moments(&ones[..tiles], block, columns, work, first, second);
            left = left.saturating_sub(tiles * LANES);
        }
        let n = data.rows as f64;
        sums.iter().map(|sum| sum.sum() / n).collect()
    }
}
