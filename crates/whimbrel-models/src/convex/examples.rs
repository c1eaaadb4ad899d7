//! A client's rows and targets, checked and laid out for the kernels.

use super::kernels::{self, BLOCK};
use crate::Rows;
use crate::lane::{LANES, Lane};
use std::cell::RefCell;
use whimbrel_core::{ClientData, Error, FeatureRows, Labelled, Result, Table, vector};

/// A client's examples: finite, at least one, with a column of ones at the end where the problem has
/// an intercept.
#[derive(Clone, Debug)]
pub struct Examples {
    dimension: usize,
    features: Features,
    targets: Vec<f64>,
}

#[derive(Clone, Debug)]
enum Features {
    /// Rows of `per_row` lanes, zeros after the last column.
    Dense {
        lanes: Vec<Lane>,
        per_row: usize,
    },
    Sparse(SparseRows),
}

/// Compressed rows.
#[derive(Clone, Debug)]
struct SparseRows {
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl SparseRows {
    /// Columns and values of row `i`.
    #[inline]
    fn row(&self, i: u32) -> (&[u32], &[f64]) {
        let row = self.starts[i as usize]..self.starts[i as usize + 1];
        (&self.columns[row.clone()], &self.values[row])
    }
}

impl Examples {
    pub fn rows(&self) -> usize {
        self.targets.len()
    }

    /// The length of a parameter: the columns, and one more with an intercept.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// One target per row, as the loss reads it (classes are -1 and 1).
    pub fn targets(&self) -> &[f64] {
        &self.targets
    }

    /// `read` checks targets and converts them to the form that the loss reads.
    pub(super) fn bind(
        data: &ClientData,
        intercept: bool,
        read: impl Fn(&[f64]) -> Result<Vec<f64>>,
    ) -> Result<Self> {
        let ClientData::Labelled(Labelled { columns, rows, targets, .. }) = data else {
            return Err(Error::data("the rows carry no targets; this problem needs one per row"));
        };
        Self::lay_out(columns, rows, read(targets)?, intercept)
    }

    /// Rows to predict; targets are not read.
    pub(super) fn bind_features(data: &ClientData, intercept: bool) -> Result<Self> {
        match data {
            ClientData::Labelled(Labelled { columns, rows, targets, .. }) => {
                Self::lay_out(columns, rows, vec![0.0; targets.len()], intercept)
            }
            ClientData::Table(Table { columns, values, .. }) => {
                let rows = values.len().checked_div(columns.len()).unwrap_or(0);
                let features = FeatureRows::Dense(values.clone());
                Self::lay_out(columns, &features, vec![0.0; rows], intercept)
            }
            ClientData::Stream(_) => Err(Error::data("a stream has no end; give a table of rows")),
            ClientData::Samples(_) | ClientData::Cells(_) => {
                Err(Error::data("images, sequences and observed cells are not rows of features"))
            }
        }
    }

    fn lay_out(
        names: &[String],
        rows: &FeatureRows,
        targets: Vec<f64>,
        intercept: bool,
    ) -> Result<Self> {
        let (n, width) = (targets.len(), names.len());
        let dimension = width + usize::from(intercept);
        if n == 0 {
            return Err(Error::data("there are no rows; a problem needs at least one"));
        }
        if dimension == 0 {
            return Err(Error::data("the rows have no columns and the problem no intercept"));
        }
        if u32::try_from(n).is_err() || u32::try_from(dimension).is_err() {
            return Err(Error::data(format!(
                "{n} rows of {dimension} columns; at most {} of either can be held",
                u32::MAX
            )));
        }
        let features = match rows {
            FeatureRows::Dense(values) => dense(names, values, n, intercept)?,
            FeatureRows::Sparse { starts, columns, values } => {
                sparse(names, starts, columns, values, n, intercept)?
            }
        };
        Ok(Self { dimension, features, targets })
    }

    /// Writes `z[i] = <x_i, w>` for every row.
    pub(super) fn products(&self, w: &[f64], z: &mut [f64]) {
        self.with_products(w, |products| {
            let mut z = z.chunks_mut(BLOCK);
            each_block(Rows::All, self.rows(), |chosen| {
                if let Some(z) = z.next() {
                    products(chosen, z);
                }
            });
        });
    }

    /// Calls `run` with each block of chosen rows and its products `<x_i, w>`.
    pub(super) fn each_product(
        &self,
        w: &[f64],
        rows: Rows<'_>,
        mut run: impl FnMut(&[u32], &mut [f64; BLOCK]),
    ) {
        self.with_products(w, |products| {
            each_block(rows, self.rows(), |chosen| {
                let mut z = [0.0; BLOCK];
                products(chosen, &mut z[..chosen.len()]);
                run(chosen, &mut z);
            });
        });
    }

    /// `||x_i||`, the intercept's 1 included.
    pub(super) fn row_norm(&self, i: u32) -> f64 {
        let squares = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>();
        let square: f64 = match &self.features {
            Features::Dense { lanes, per_row } => {
                let row = &lanes[i as usize * per_row..][..*per_row];
                row.iter().map(|lane| squares(&lane.0)).sum()
            }
            Features::Sparse(sparse) => squares(sparse.row(i).1),
        };
        square.sqrt()
    }

    /// Writes `out = sum_r c_r x_i` over the chosen rows `i`, where `coefficients` turns a block's
    /// products `<x_i, w>` into its `c`.
    pub(super) fn transposed(
        &self,
        w: &[f64],
        rows: Rows<'_>,
        out: &mut [f64],
        mut coefficients: impl FnMut(&[u32], &mut [f64; BLOCK]),
    ) {
        SUM.with_borrow_mut(|sum| {
            sum.clear();
            match &self.features {
                Features::Dense { per_row, .. } => sum.resize(*per_row, Lane::ZERO),
                Features::Sparse(_) => out.fill(0.0),
            }
            self.with_products(w, |products| {
                each_block(rows, self.rows(), |chosen| {
                    let mut z = [0.0; BLOCK];
                    products(chosen, &mut z[..chosen.len()]);
                    coefficients(chosen, &mut z);
                    match &self.features {
                        Features::Dense { lanes, per_row } => {
                            let c = &z[..chosen.len()];
                            kernels::dense_combine(lanes, *per_row, chosen, c, sum);
                        }
                        Features::Sparse(sparse) => {
                            for (i, c) in chosen.iter().zip(&z) {
                                let (columns, values) = sparse.row(*i);
                                for (j, x) in columns.iter().zip(values) {
                                    out[*j as usize] += c * x;
                                }
                            }
                        }
                    }
                });
            });
            let (whole, rest) = out.as_chunks_mut::<LANES>();
            whole.iter_mut().zip(&*sum).for_each(|(out, lane)| *out = lane.0);
            if let Some(last) = sum.get(whole.len()) {
                rest.copy_from_slice(&last.0[..rest.len()]);
            }
        });
    }

    /// Adds the lower triangle of `sum_i a_i x_i x_i^T` to a `d x d` matrix; `weights` writes the
    /// `a` of the chosen block of rows.
    pub(super) fn add_outer(
        &self,
        out: &mut [f64],
        mut weights: impl FnMut(&[u32], &mut [f64; BLOCK]),
    ) {
        let d = self.dimension;
        assert_eq!(out.len(), d * d, "not a {d} x {d} matrix");
        let mut a = [0.0; BLOCK];
        match &self.features {
            Features::Dense { lanes, per_row } => {
                let mut sum = vec![Lane::ZERO; per_row * LANES * per_row];
                each_block(Rows::All, self.rows(), |chosen| {
                    weights(chosen, &mut a);
                    let block = &lanes[chosen[0] as usize * per_row..][..chosen.len() * per_row];
                    kernels::dense_outer(block, *per_row, &a[..chosen.len()], &mut sum);
                });
                for (i, row) in out.chunks_exact_mut(d).enumerate() {
                    for (j, out) in row[..=i].iter_mut().enumerate() {
                        *out += sum[i * per_row + j / LANES].0[j % LANES];
                    }
                }
            }
            Features::Sparse(sparse) => {
                each_block(Rows::All, self.rows(), |chosen| {
                    weights(chosen, &mut a);
                    for (i, a) in chosen.iter().zip(&a) {
                        let (columns, values) = sparse.row(*i);
                        for (k, (i, x)) in columns.iter().zip(values).enumerate() {
                            let (scaled, out) = (a * x, &mut out[*i as usize * d..][..d]);
                            for (j, y) in columns[..=k].iter().zip(values) {
                                out[*j as usize] += scaled * y;
                            }
                        }
                    }
                });
            }
        }
    }

    /// Each column's mean square: the diagonal of the Gram matrix.
    pub(super) fn mean_squares(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.dimension];
        match &self.features {
            Features::Dense { lanes, per_row } => {
                for row in lanes.chunks_exact(*per_row) {
                    let cells = row.iter().flat_map(|lane| &lane.0);
                    out.iter_mut().zip(cells).for_each(|(out, x)| *out += x * x);
                }
            }
            Features::Sparse(SparseRows { columns, values, .. }) => {
                columns.iter().zip(values).for_each(|(j, x)| out[*j as usize] += x * x);
            }
        }
        vector::scale(&mut out, 1.0 / self.rows() as f64);
        out
    }

    /// Refuses a parameter of another length, row numbers out of range, and an empty choice of rows.
    pub(super) fn check(&self, w: &[f64], rows: Rows<'_>) -> Result<()> {
        if w.len() != self.dimension {
            return Err(Error::internal(format!(
                "a parameter of {} numbers for examples of dimension {}",
                w.len(),
                self.dimension
            )));
        }
        if let Rows::These(chosen) = rows {
            let Some(last) = chosen.iter().max() else {
                return Err(Error::internal("the mean over no rows is undefined"));
            };
            if *last as usize >= self.rows() {
                return Err(Error::internal(format!("row {last} of {} rows", self.rows())));
            }
        }
        Ok(())
    }

    /// Calls `run` with a function that writes the products `<x_i, w>` of a block of rows.
    fn with_products(&self, w: &[f64], run: impl FnOnce(Products<'_>)) {
        match &self.features {
            Features::Dense { lanes, per_row } => PARAMETER.with_borrow_mut(|padded| {
                kernels::pad(padded, w);
                run(&|chosen, z| kernels::dense_products(lanes, *per_row, chosen, padded, z));
            }),
            Features::Sparse(sparse) => run(&|chosen, z| {
                for (i, z) in chosen.iter().zip(z) {
                    let (columns, values) = sparse.row(*i);
                    let mut sum = 0.0;
                    for (j, x) in columns.iter().zip(values) {
                        sum += x * w[*j as usize];
                    }
                    *z = sum;
                }
            }),
        }
    }
}

type Products<'a> = &'a dyn Fn(&[u32], &mut [f64]);

thread_local! {
    /// A parameter, and a sum of rows, in lanes: kept so that a gradient allocates nothing.
    static PARAMETER: RefCell<Vec<Lane>> = const { RefCell::new(Vec::new()) };
    static SUM: RefCell<Vec<Lane>> = const { RefCell::new(Vec::new()) };
}

/// Calls `run` with the numbers of at most [`BLOCK`] rows at a time.
fn each_block(rows: Rows<'_>, n: usize, mut run: impl FnMut(&[u32])) {
    match rows {
        Rows::These(chosen) => chosen.chunks(BLOCK).for_each(run),
        Rows::All => {
            let mut chosen = [0; BLOCK];
            for first in (0..n).step_by(BLOCK) {
                let count = BLOCK.min(n - first);
                for (k, i) in chosen[..count].iter_mut().enumerate() {
                    *i = (first + k) as u32;
                }
                run(&chosen[..count]);
            }
        }
    }
}

fn dense(names: &[String], values: &[f64], n: usize, intercept: bool) -> Result<Features> {
    let width = names.len();
    if n.checked_mul(width) != Some(values.len()) {
        return Err(Error::data(format!(
            "{} values do not fill {n} rows of {width} columns",
            values.len()
        )));
    }
    if let Some(at) = values.iter().position(|v| !v.is_finite()) {
        return Err(not_finite(at / width, &names[at % width], values[at]));
    }
    let per_row = (width + usize::from(intercept)).div_ceil(LANES);
    let mut lanes = Vec::with_capacity(n * per_row);
    let (mut row, mut padded) = (Vec::with_capacity(width + 1), Vec::new());
    for i in 0..n {
        row.clear();
        row.extend_from_slice(&values[i * width..(i + 1) * width]);
        row.extend(intercept.then_some(1.0));
        kernels::pad(&mut padded, &row);
        lanes.extend_from_slice(&padded);
    }
    Ok(Features::Dense { lanes, per_row })
}

fn sparse(
    names: &[String],
    starts: &[usize],
    columns: &[u32],
    values: &[f64],
    n: usize,
    intercept: bool,
) -> Result<Features> {
    let whole = starts.len() == n + 1
        && starts[0] == 0
        && starts[n] == values.len()
        && columns.len() == values.len()
        && starts.is_sorted();
    if !whole {
        return Err(Error::data(format!("the row starts do not divide the values into {n} rows")));
    }
    let mut laid = SparseRows { starts: vec![0], columns: Vec::new(), values: Vec::new() };
    for (i, bounds) in starts.windows(2).enumerate() {
        let (columns, values) = (&columns[bounds[0]..bounds[1]], &values[bounds[0]..bounds[1]]);
        if let Some(j) = columns.iter().find(|j| **j as usize >= names.len()) {
            return Err(Error::data(format!(
                "row {} names column {}; there are {} columns",
                i + 1,
                u64::from(*j) + 1,
                names.len()
            )));
        }
        if !columns.is_sorted_by(|a, b| a < b) {
            return Err(Error::data(format!("row {}: its columns do not ascend", i + 1)));
        }
        if let Some(at) = values.iter().position(|v| !v.is_finite()) {
            return Err(not_finite(i, &names[columns[at] as usize], values[at]));
        }
        laid.columns.extend_from_slice(columns);
        laid.values.extend_from_slice(values);
        if intercept {
            laid.columns.push(names.len() as u32);
            laid.values.push(1.0);
        }
        laid.starts.push(laid.columns.len());
    }
    Ok(Features::Sparse(laid))
}

fn not_finite(row: usize, column: &str, value: f64) -> Error {
    Error::data(format!(
        "row {}, column `{column}` holds {value}, which is not a finite number",
        row + 1
    ))
}
