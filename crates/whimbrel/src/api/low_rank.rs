//! Tables with missing cells.

use super::estimator::{Estimator, Kind, kinds};
use super::rows::{Federation, Rows};
use super::run::Run;
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_families::failure::Result;
use whimbrel_families::table::TableFit;
use whimbrel_families::table::completed::{Completed, Estimate};

/// A low-rank model of a table with missing cells (NaN), fitted by `fedmiss`. Each client holds some
/// rows of the table.
///
/// ```
/// use whimbrel::{LowRank, Rows};
///
/// let cell = |i: u32, j: u32| match (5 * i + 3 * j) % 7 {
///     0 => f64::NAN,
///     _ => (1.0 + 0.1 * f64::from(i)) * (1.0 + f64::from(j)),
/// };
/// let client =
///     |c: u32| Rows::from_rows((0..20).map(|i| [0, 1, 2, 3].map(|j| cell(20 * c + i, j))));
/// let clients = [client(0), client(1)];
/// let fit = LowRank::gaussian(50).rank(1).fit(&clients)?;
/// let filled = fit.impute(&clients)?;
/// assert!(filled[0].values().iter().all(|x| x.is_finite()));
/// let estimate = fit.cell(0, 0);
/// assert!(estimate.lower < estimate.mean && estimate.mean < estimate.upper);
/// # Ok::<(), whimbrel::Error>(())
/// ```
pub type LowRank = Estimator<FedMiss>;

kinds! {
    /// The kind of [`LowRank`].
    FedMiss = ("low-rank", "fedmiss"), None, |run| LowRankFit: {
        let (rows, columns) = (run.names("rows"), run.names("columns"));
        let table = Completed::new(run.model(), rows, columns, run.flag("personal"))?;
        Ok(LowRankFit { run, table })
    };
}

impl Estimator<FedMiss> {
    /// A table of real numbers, fitted in this many passes over the observed cells.
    pub fn gaussian(epochs: impl Into<f64>) -> Self {
        Self::of("gaussian", epochs)
    }

    /// A table of counts.
    pub fn poisson(epochs: impl Into<f64>) -> Self {
        Self::of("poisson", epochs)
    }

    /// A table of zeros and ones.
    pub fn bernoulli(epochs: impl Into<f64>) -> Self {
        Self::of("bernoulli", epochs)
    }

    fn of(family: &str, epochs: impl Into<f64>) -> Self {
        Self::start().set("model.family", family).set("method.epochs", epochs.into())
    }

    /// The rank; chosen by cross-validation unless it is set.
    pub fn rank(self, rank: u32) -> Self {
        self.set("model.rank", rank)
    }
}

/// A fitted table.
pub struct LowRankFit {
    run: Run,
    table: Completed,
}

impl LowRankFit {
    /// The run: metrics, traffic, [`save`](Run::save).
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Opens the folder of a finished fit, written by [`Run::save`] or by `whimbrel run`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        FedMiss::finish(Run::open_of(folder.as_ref(), |fit| fit.is::<TableFit>())?)
    }

    /// The estimate of a cell with a 90 % prediction interval. Rows are numbered over all clients,
    /// in the order of the fit.
    ///
    /// # Panics
    ///
    /// Panics if the cell is outside the table.
    pub fn cell(&self, row: usize, column: usize) -> Estimate {
        let (rows, columns) = (self.table.rows.len(), self.table.columns.len());
        assert!(
            row < rows && column < columns,
            "cell ({row}, {column}) is outside the table of {rows} rows and {columns} columns"
        );
        self.table.estimate(self.table.cell(row, column, 0.0).parameter)
    }

    /// The personal effect of a client, of a fit with `set("model.personal", true)`.
    pub fn effect(&self, client: &str) -> Result<f64> {
        if !self.table.personal {
            let error = Error::config("this fit has no personal effects");
            return Err(error.hint("fit with `.set(\"model.personal\", true)`").into());
        }
        let effect = self.run.own(client)?.tensor("effect");
        Ok(effect.map_or(0.0, |effect| effect.values[0]))
    }

    /// The rows of a new client with their missing cells filled in. The fit's factors stay as they
    /// are; the client's effect and its rows are estimated from the observed cells.
    pub fn adapt(&self, rows: &Rows) -> Result<Rows> {
        let (width, cells) = (rows.width(), self.run.adapt(rows)?.predicted.numbers("estimate"));
        Ok(rows.filled(|i, j| cells[i * width + j]))
    }

    /// The rows of the fit, one element per client, with their missing cells filled in. Other clients, columns or
    /// values, or another order, are refused: [`adapt`](Self::adapt) fills in the rows of a new client.
    pub fn impute(&self, clients: &[Rows]) -> Result<Vec<Rows>> {
        if !self.run.is_fit_to(&Federation::new(clients)?.input)? {
            let hint = "give its clients in their order, with the same names, columns and values; `adapt` fills \
                        in new rows";
            return Err(Error::config("these are not the rows of the fit").hint(hint).into());
        }
        let mut first = 0;
        let mut filled = Vec::with_capacity(clients.len());
        for client in clients {
            filled.push(client.filled(|i, j| self.cell(first + i, j).mean));
            first += client.len();
        }
        Ok(filled)
    }
}
