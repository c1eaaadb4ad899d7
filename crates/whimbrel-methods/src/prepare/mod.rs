//! Federated preparation: maps of the columns, computed from the clients' sums and applied by every
//! later stage when it reads a client's rows.
//!
//! Three steps, each optional, in this order:
//! 1. *drop constant columns*: those with the same value in all rows of all clients;
//! 2. *standardise*: `(x − mean) / scale`, with the pooled mean and standard deviation. A codec sends
//!    one norm per vector, so columns of small scale would be lost in the noise of large ones;
//! 3. *principal components*: the directions of largest pooled variance.
//!
//! The first two need counts, means and squares of each column ([`Columns`]); the third needs the
//! products of all pairs of columns ([`Pca`]), centred at the pooled means to avoid cancellation.
//!
//! EM is equivariant under affine maps: after the first two steps the fit is the same and is reported
//! in the units of the data. A projection cannot be undone: the fit is then one of the components.

mod columns;
mod pca;

pub(crate) use columns::CONSTANT;
pub use columns::Columns;
pub use pca::{COLUMNS_MAX, Pca};

use std::sync::Arc;
use whimbrel_core::method::{Artifact, Bind, Tensor};
use whimbrel_core::{ClientData, Error, Method, Result, RowStream, Table, linalg, math};

/// The number of rows that represent a stream.
const STREAM_ROWS: usize = 1000;

/// The map from a row of the data to a row of the fit.
#[derive(Clone, PartialEq, Debug)]
pub struct Preparation {
    /// Indices of the kept columns, ascending.
    kept: Vec<usize>,
    /// `(x − mean) / scale` of the kept columns.
    affine: Affine,
    /// Principal axes, one after the other, each as long as the kept columns; `None` without
    /// projection.
    axes: Option<Vec<f64>>,
    /// The treatment of values outside the ranges that the job states for the columns.
    outside: Option<Outside>,
}

/// The treatment of a value outside the stated range of its column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outside {
    /// An error.
    Refuse,
    /// The nearest limit: under differential privacy a failure would tell something about one row.
    Clip,
}

/// Columns with known ranges are scaled to `-RANGE` to `RANGE`: a variance near one for values that
/// fill their range.
const RANGE: f64 = 2.0;

impl Preparation {
    /// Scales columns by their least and largest possible values.
    pub fn by_ranges(ranges: &[[f64; 2]], outside: Outside) -> Result<Self> {
        let means = ranges.iter().map(|[low, high]| low + (high - low) / 2.0).collect();
        let scales = ranges.iter().map(|[low, high]| (high - low) / (2.0 * RANGE)).collect();
        let all = Self::from_parts((0..ranges.len()).collect(), means, scales, None)?;
        Ok(Self { outside: Some(outside), ..all })
    }

    /// The preparation that these stages delivered, the second one only with principal components;
    /// `None` before the first has ended. Refuses artifacts that they cannot have delivered.
    pub fn delivered(
        columns: &Columns,
        components: Option<usize>,
        delivered: &[Artifact],
    ) -> Result<Option<Self>> {
        let Some(first) = delivered.first() else { return Ok(None) };
        let (kept, affine) = columns.delivered(first)?;
        let axes = match (components, delivered.get(1)) {
            (Some(components), Some(second)) => {
                Some(Pca::new(kept.len(), components)?.delivered(second)?)
            }
            _ => None,
        };
        Ok(Some(Self { kept, affine, axes, outside: None }))
    }

    /// The preparation saved with a model; refuses inconsistent parts.
    pub fn from_parts(
        kept: Vec<usize>,
        means: Vec<f64>,
        scales: Vec<f64>,
        axes: Option<Vec<f64>>,
    ) -> Result<Self> {
        let k = kept.len();
        let whole = axes.as_ref().is_none_or(|a| !a.is_empty() && a.len().is_multiple_of(k.max(1)));
        let usable = scales.iter().all(|s| *s > 0.0 && s.is_finite());
        let ascending = kept.is_sorted_by(|a, b| a < b);
        if k == 0 || means.len() != k || scales.len() != k || !whole || !usable || !ascending {
            return Err(Error::data("columns, means, scales and axes are inconsistent"));
        }
        Ok(Self { kept, affine: Affine { means, scales }, axes, outside: None })
    }

    /// The length of a prepared row.
    pub fn width(&self) -> usize {
        self.axes.as_ref().map_or(self.kept.len(), |axes| axes.len() / self.kept.len())
    }

    /// Indices of the kept columns, ascending.
    pub fn kept(&self) -> &[usize] {
        &self.kept
    }

    /// The affine map, unless a projection follows.
    pub fn affine(&self) -> Option<&Affine> {
        self.axes.is_none().then_some(&self.affine)
    }

    /// `Σ ln scale`: the log-density in the fit's units minus that in the units of the data. Zero for
    /// principal components, which keep their units.
    pub fn log_scale(&self) -> f64 {
        self.affine().map_or(0.0, Affine::log_scale)
    }

    /// Prepares rows of `columns` numbers.
    pub fn forward(&self, rows: &[f64], columns: usize) -> Result<Vec<f64>> {
        if self.kept.last().is_none_or(|last| *last >= columns) {
            return Err(Error::data(format!(
                "its rows have {columns} columns, fewer than the preparation"
            )));
        }
        let rows = rows.chunks_exact(columns);
        let mut out = Vec::with_capacity(rows.len() * self.width());
        let mut kept = vec![0.0; self.kept.len()];
        let mut components = vec![0.0; self.width()];
        for row in rows {
            for (x, at) in kept.iter_mut().zip(&self.kept) {
                *x = row[*at];
            }
            self.affine.forward(&mut kept);
            match &self.axes {
                None => out.extend_from_slice(&kept),
                Some(axes) => {
                    linalg::matvec(&mut components, axes, &kept);
                    out.extend_from_slice(&components);
                }
            }
        }
        Ok(out)
    }

    /// Maps prepared rows back to the units of the kept columns; for principal components, to the
    /// nearest rows with these components.
    pub fn backward(&self, rows: &[f64]) -> Vec<f64> {
        let mut out = match &self.axes {
            None => rows.to_vec(),
            Some(axes) => {
                let (n, p, k) = (rows.len() / self.width(), self.width(), self.kept.len());
                let mut out = vec![0.0; n * k];
                linalg::matmul(&mut out, rows, axes, n, p, k);
                out
            }
        };
        self.affine.backward(&mut out);
        out
    }

    /// A fitted mixture in the units of the data, with this preparation; after a projection in those
    /// of the components, with the means mapped back beside them.
    pub fn restore(&self, mut fit: Artifact) -> Artifact {
        match self.affine() {
            Some(affine) => fit.tensors.iter_mut().for_each(|tensor| affine.restore(tensor)),
            None => {
                let means = fit.tensor("means").map_or(&[][..], |means| &means.values);
                let (k, back) = (means.len() / self.width(), self.backward(means));
                fit = fit.with("data_means", &[k, self.kept.len()], back);
            }
        }
        self.save(fit)
    }

    /// Adds kept columns, means, scales and axes to a model.
    fn save(&self, model: Artifact) -> Artifact {
        let k = self.kept.len();
        let kept = self.kept.iter().map(|at| *at as f64).collect();
        let model = model
            .with("prepare.kept", &[k], kept)
            .with("prepare.means", &[k], self.affine.means.clone())
            .with("prepare.scales", &[k], self.affine.scales.clone());
        match &self.axes {
            None => model,
            Some(axes) => model.with("prepare.axes", &[self.width(), k], axes.clone()),
        }
    }

    fn apply(&self, data: &ClientData) -> Result<ClientData> {
        Ok(match data {
            ClientData::Table(table) => {
                let held_out = table.held_out.try_map(|rows| self.prepare(rows))?;
                ClientData::Table(Table { held_out, ..self.prepare(table)? })
            }
            ClientData::Stream(source) => ClientData::Stream(Arc::new(PreparedStream {
                columns: self.names(source.columns()),
                source: source.clone(),
                preparation: self.clone(),
            })),
            ClientData::Labelled(_) | ClientData::Samples(_) | ClientData::Cells(_) => {
                return Err(no_rows());
            }
        })
    }

    fn prepare(&self, table: &Table) -> Result<Table> {
        check_finite(&table.columns, &table.values)?;
        let mut values = self.forward(&table.values, table.width())?;
        match self.outside {
            None => {}
            Some(Outside::Clip) => values.iter_mut().for_each(|x| *x = x.clamp(-RANGE, RANGE)),
            Some(Outside::Refuse) => self.check_ranges(table, &values)?,
        }
        Table::new(self.names(&table.columns), values)
    }

    /// Refuses values outside the stated ranges; one part in 10^9 is rounding.
    fn check_ranges(&self, table: &Table, prepared: &[f64]) -> Result<()> {
        match prepared.iter().position(|x| x.abs() > RANGE * (1.0 + 1e-9)) {
            None => Ok(()),
            Some(at) => {
                let (row, column) = (at / self.kept.len(), self.kept[at % self.kept.len()]);
                Err(Error::data(format!(
                    "row {} has {} in column `{}`, outside its limits in [schema]",
                    row + 1,
                    table.row(row)[column],
                    table.columns[column]
                )))
            }
        }
    }

    fn names(&self, columns: &[String]) -> Vec<String> {
        match self.axes {
            None => self.kept.iter().filter_map(|at| columns.get(*at).cloned()).collect(),
            Some(_) => (1..=self.width()).map(|n| format!("pc{n}")).collect(),
        }
    }
}

/// A stream whose rows are prepared as they are read.
struct PreparedStream {
    columns: Vec<String>,
    source: Arc<dyn RowStream>,
    preparation: Preparation,
}

impl RowStream for PreparedStream {
    fn columns(&self) -> &[String] {
        &self.columns
    }

    fn rows(&self, from: u64, count: usize, out: &mut Vec<f64>) -> Result<()> {
        let mut rows = Vec::new();
        self.source.rows(from, count, &mut rows)?;
        out.extend(self.preparation.forward(&rows, self.source.columns().len())?);
        Ok(())
    }
}

/// Binds a client's rows after preparing them.
pub struct Prepared<B> {
    pub preparation: Preparation,
    /// The binding of the prepared rows.
    pub then: B,
}

impl<M: Method, B: Bind<M>> Bind<M> for Prepared<B> {
    fn bind(&self, method: &M, data: &ClientData) -> Result<M::Data> {
        self.then.bind(method, &self.preparation.apply(data)?)
    }
}

/// `(x − mean) / scale`, column by column.
#[derive(Clone, PartialEq, Debug)]
pub struct Affine {
    pub means: Vec<f64>,
    pub scales: Vec<f64>,
}

impl Affine {
    /// `Σ ln scale`.
    pub fn log_scale(&self) -> f64 {
        self.scales.iter().map(|s| math::ln(*s)).sum()
    }

    /// Rows in scaled columns.
    pub fn forward(&self, rows: &mut [f64]) {
        for row in rows.chunks_exact_mut(self.means.len()) {
            for ((x, m), s) in row.iter_mut().zip(&self.means).zip(&self.scales) {
                *x = (*x - m) / s;
            }
        }
    }

    /// Rows in the units of the data.
    pub fn backward(&self, rows: &mut [f64]) {
        for row in rows.chunks_exact_mut(self.means.len()) {
            for ((x, m), s) in row.iter_mut().zip(&self.means).zip(&self.scales) {
                *x = *x * s + m;
            }
        }
    }

    /// Brings a mixture's means, variances or covariances into the units of the data.
    fn restore(&self, tensor: &mut Tensor) {
        match (tensor.name.as_str(), tensor.shape.len()) {
            ("means", _) => self.backward(&mut tensor.values),
            ("covariances", 2) => {
                let scales = self.scales.iter().cycle();
                tensor.values.iter_mut().zip(scales).for_each(|(v, s)| *v *= s * s);
            }
            ("covariance" | "covariances", _) => {
                self.scale_covariances(&mut tensor.values, |a, b| a * b);
            }
            _ => {}
        }
    }

    /// Covariances of scaled columns.
    pub fn covariances_forward(&self, matrices: &mut [f64]) {
        self.scale_covariances(matrices, |a, b| 1.0 / (a * b));
    }

    /// Variances (one list per component) of scaled columns or, if not `forward`, in the units of the
    /// data.
    pub fn variances(&self, variances: &mut [f64], forward: bool) {
        for row in variances.chunks_exact_mut(self.scales.len()) {
            for (v, s) in row.iter_mut().zip(&self.scales) {
                *v = if forward { *v / (s * s) } else { *v * s * s };
            }
        }
    }

    fn scale_covariances(&self, matrices: &mut [f64], factor: impl Fn(f64, f64) -> f64) {
        let d = self.scales.len();
        for matrix in matrices.chunks_exact_mut(d * d) {
            for i in 0..d {
                for j in 0..d {
                    matrix[i * d + j] *= factor(self.scales[i], self.scales[j]);
                }
            }
        }
    }
}

/// Hands a client's rows to `sums`; of a stream, its first rows.
fn rows_of<T>(data: &ClientData, sums: impl FnOnce(&[String], &[f64]) -> Result<T>) -> Result<T> {
    match data {
        ClientData::Table(table) => sums(&table.columns, &table.values),
        ClientData::Stream(source) => {
            let mut rows = Vec::new();
            source.rows(0, STREAM_ROWS, &mut rows)?;
            sums(source.columns(), &rows)
        }
        ClientData::Labelled(_) | ClientData::Samples(_) | ClientData::Cells(_) => Err(no_rows()),
    }
}

fn check_finite(columns: &[String], values: &[f64]) -> Result<()> {
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(at) => Err(Error::data(format!(
            "row {}, column `{}` holds {}, which is not a finite number",
            at / columns.len() + 1,
            columns[at % columns.len()],
            values[at]
        ))),
    }
}

fn no_rows() -> Error {
    Error::config(
        "only plain rows are prepared here: the reader prepares rows with targets, and cells stay raw",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preparation(axes: Option<Vec<f64>>) -> Preparation {
        Preparation::from_parts(vec![0, 2], vec![5.0, -2.0], vec![4.0, 0.5], axes).unwrap()
    }

    #[test]
    fn there_and_back_is_where_it_was() {
        let affine = preparation(None);
        let rows = affine.forward(&[1.0, 9.0, 2.0, 3.0, 9.0, 4.0], 3).unwrap();
        assert_eq!(rows, [-1.0, 8.0, -0.5, 12.0]);
        assert_eq!(affine.backward(&rows), [1.0, 2.0, 3.0, 4.0]);
        let mut matrix = vec![1.0, 0.5, 0.5, 1.0];
        affine.affine().unwrap().scale_covariances(&mut matrix, |a, b| a * b);
        assert_eq!(matrix, [16.0, 1.0, 1.0, 0.25]);
        let fit = Artifact::default().with("means", &[1, 2], vec![-1.0, 8.0]);
        let fit = affine.restore(fit.with("covariances", &[1, 2], vec![1.0, 1.0]));
        assert_eq!(fit.values("means", 2).unwrap(), [1.0, 2.0]);
        assert_eq!(fit.values("covariances", 2).unwrap(), [16.0, 0.25]);
    }

    #[test]
    fn a_projection_comes_back_to_the_nearest_row() {
        let projection = preparation(Some(vec![0.6, 0.8]));
        assert_eq!((projection.width(), projection.affine()), (1, None));
        let rows = projection.forward(&[1.0, 9.0, 2.0], 3).unwrap();
        assert!((rows[0] - (-0.6 + 0.8 * 8.0)).abs() < 1e-15);
        let back = projection.backward(&rows);
        assert!((back[0] - (5.0 + 4.0 * 0.6 * rows[0])).abs() < 1e-14);
        assert_eq!(projection.names(&["a", "b", "c"].map(String::from)), ["pc1"]);
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let parts = |kept: &[usize], scales: &[f64], axes| {
            Preparation::from_parts(kept.to_vec(), vec![0.0; kept.len()], scales.to_vec(), axes)
        };
        assert!(parts(&[], &[], None).is_err());
        assert!(parts(&[0, 1], &[1.0], None).is_err());
        assert!(parts(&[7, 0], &[1.0, 1.0], None).is_err());
        assert!(parts(&[0, 1], &[1.0, 0.0], None).is_err());
        assert!(parts(&[0, 1], &[1.0, 1.0], Some(vec![1.0; 3])).is_err());
        assert!(parts(&[0, 1], &[1.0, 1.0], Some(vec![])).is_err());
        assert!(preparation(None).forward(&[1.0, 2.0], 2).is_err());
    }
}
