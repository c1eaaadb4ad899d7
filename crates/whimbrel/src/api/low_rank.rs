//! Tables with gaps.

use super::estimator::{Estimator, Kind, sealed::Sealed};
use super::rows::Rows;
use super::run::Run;
use whimbrel::core::Error;
use whimbrel::families::failure::Result;
use whimbrel::families::table::completed::{Completed, Estimate};

/// A table with gaps (NaN) by low rank (`fedmiss`); clients hold rows of it.
pub type LowRank = Estimator<FedMiss>;

/// See [`LowRank`].
#[derive(Clone, Debug, PartialEq)]
pub enum FedMiss {}

impl Sealed for FedMiss {}

impl Kind for FedMiss {
    type Fit = LowRankFit;
    const WORDS: (&'static str, &'static str) = ("low-rank", "fedmiss");

    fn finish(run: Run) -> Result<LowRankFit> {
        let (rows, columns) = (run.names("rows"), run.names("columns"));
        let table = Completed::new(run.artifact(), rows, columns, run.flag("personal"))?;
        Ok(LowRankFit { run, table })
    }
}

impl Estimator<FedMiss> {
    /// A table of numbers, fitted for this many passes over the observed cells.
    pub fn gaussian(epochs: f64) -> Self {
        Self::of("gaussian", epochs)
    }

    /// A table of counts.
    pub fn poisson(epochs: f64) -> Self {
        Self::of("poisson", epochs)
    }

    /// A table of zeros and ones.
    pub fn bernoulli(epochs: f64) -> Self {
        Self::of("bernoulli", epochs)
    }

    fn of(family: &str, epochs: f64) -> Self {
        Self::usual().set("model.family", family).set("method.epochs", epochs)
    }

    /// The rank, in place of the one that the data ask for.
    pub fn rank(self, rank: u32) -> Self {
        self.set("model.rank", rank)
    }
}

/// A completed table.
pub struct LowRankFit {
    run: Run,
    table: Completed,
}

impl LowRankFit {
    /// The run that it comes from.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// A cell's estimate with an interval; rows count over all clients in the order of the fit.
    pub fn cell(&self, row: usize, column: usize) -> Estimate {
        self.table.estimate(self.table.cell(row, column, 0.0).parameter)
    }

    /// The fitted rows with their gaps filled in.
    pub fn impute(&self, clients: &[Rows]) -> Result<Vec<Rows>> {
        let (rows, width) =
            (clients.iter().map(Rows::len).sum::<usize>(), self.table.columns.len());
        if rows != self.table.rows.len() || clients.iter().any(|client| client.width() != width) {
            let what = format!("the table that was fitted has {} rows", self.table.rows.len());
            return Err(Error::config(what).hint("give the rows of the fit").into());
        }
        let mut at = 0;
        let fill = |client: &Rows| {
            let first = at;
            at += client.len();
            client.clone().filled(|i, j| self.cell(first + i, j).mean)
        };
        Ok(clients.iter().map(fill).collect())
    }
}
