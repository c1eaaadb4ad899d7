//! Federated standardisation: a stage that finds each column's pooled mean and standard deviation
//! from sums that clients send, so that every column is on one scale before anything is compressed.
//!
//! A codec sends one norm for a whole vector: a statistic with columns in years and in milligrams
//! would drown the small ones in the noise of the large. EM is equivariant under affine maps, so
//! the fit is the same, and it is reported in the units of the data; only `reg_covar`, floors and
//! inverse-Wishart penalties, where a job sets them, act on the standardised columns.

use crate::fedem::{BindRows, FedEm, list_bytes};
use crate::kmeans::FederatedKmeans;
use crate::settings::ROWS_MAX;
use crate::theory::Constants;
use std::sync::Arc;
use whimbrel_core::method::{Artifact, Bind, Disclosure, Evaluate, Exposure, From, Metric, Plan};
use whimbrel_core::{
    ClientData, ClientId, Error, Key, Method, Result, RowStream, Table, math, vector, wire,
};
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::GmmData;

/// Rows that stand for a stream.
const STREAM_ROWS: usize = 1000;

/// A map from data to standardised columns: `(x − mean) / scale`.
#[derive(Clone, PartialEq, Debug)]
pub struct Affine {
    /// Pooled means.
    pub means: Vec<f64>,
    /// Pooled standard deviations; one for a constant column.
    pub scales: Vec<f64>,
}

impl Affine {
    /// What the stage delivered.
    pub fn from_artifact(artifact: &Artifact) -> Option<Self> {
        let values = |name| artifact.tensor(name).map(|t| t.values.clone());
        Some(Self { means: values("means")?, scales: values("scales")? })
    }

    /// `Σ ln scale`: what a log-density loses when it is stated in the units of the data.
    pub fn log_scale(&self) -> f64 {
        self.scales.iter().map(|s| math::ln(*s)).sum()
    }

    /// Rows in standardised columns.
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

    /// Covariances (square matrices one after the other) in the units of the data.
    pub fn covariances_backward(&self, matrices: &mut [f64]) {
        self.scale_covariances(matrices, |a, b| a * b);
    }

    /// Covariances of standardised columns.
    pub fn covariances_forward(&self, matrices: &mut [f64]) {
        self.scale_covariances(matrices, |a, b| 1.0 / (a * b));
    }

    /// Variances (a list per component): of standardised columns, or (not `forward`) in the units
    /// of the data.
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

    fn apply(&self, data: &ClientData) -> Result<ClientData> {
        Ok(match data {
            ClientData::Table(table) => {
                let mut values = table.values.clone();
                self.forward(&mut values);
                ClientData::Table(Table::new(table.columns.clone(), values)?)
            }
            ClientData::Stream(source) => ClientData::Stream(Arc::new(Standardized {
                source: source.clone(),
                affine: self.clone(),
            })),
            ClientData::Labelled(_) | ClientData::Cells(_) => return Err(no_rows()),
        })
    }
}

/// A stream whose rows are standardised as they are read.
struct Standardized {
    source: Arc<dyn RowStream>,
    affine: Affine,
}

impl RowStream for Standardized {
    fn columns(&self) -> &[String] {
        self.source.columns()
    }

    fn rows(&self, from: u64, count: usize, out: &mut Vec<f64>) -> Result<()> {
        let before = out.len();
        self.source.rows(from, count, out)?;
        self.affine.forward(&mut out[before..]);
        Ok(())
    }
}

/// Binds a client's rows after standardising them.
pub struct BindStandardized(pub Affine);

impl<M: LatentModel> Bind<FedEm<M>> for BindStandardized {
    fn bind(&self, method: &FedEm<M>, data: &ClientData) -> Result<M::Data> {
        BindRows.bind(method, &self.0.apply(data)?)
    }
}

impl<M: LatentModel> Bind<Constants<M>> for BindStandardized {
    fn bind(&self, method: &Constants<M>, data: &ClientData) -> Result<M::Data> {
        BindRows.bind(method, &self.0.apply(data)?)
    }
}

impl Bind<FederatedKmeans> for BindStandardized {
    fn bind(&self, method: &FederatedKmeans, data: &ClientData) -> Result<GmmData> {
        BindRows.bind(method, &self.0.apply(data)?)
    }
}

/// The stage.
pub struct Standardize {
    /// How many columns the rows have.
    pub columns: usize,
}

/// A client's sums: rows, means, and squares about its own means.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    rows: u64,
    means: Vec<f64>,
    squares: Vec<f64>,
}

/// The pooled sums.
#[derive(Clone, Debug)]
pub struct Server {
    sums: Sums,
}

wire!(Sums { rows, means, squares });
wire!(Server { sums });

impl Sums {
    fn of(values: &[f64], columns: usize) -> Result<Self> {
        let rows = values.len() / columns.max(1);
        if rows == 0 {
            return Err(Error::data("there are no rows"));
        }
        if let Some(at) = values.iter().position(|v| !v.is_finite()) {
            return Err(Error::data(format!(
                "row {}, column {} holds {}, which is not a finite number",
                at / columns + 1,
                at % columns + 1,
                values[at]
            )));
        }
        // About the first row: a constant column then has exactly that mean and no spread.
        let first = &values[..columns];
        let mut means = vec![0.0; columns];
        for row in values.chunks_exact(columns) {
            for ((m, x), f) in means.iter_mut().zip(row).zip(first) {
                *m += (x - f) / rows as f64;
            }
        }
        means.iter_mut().zip(first).for_each(|(m, f)| *m += f);
        let mut squares = vec![0.0; columns];
        for row in values.chunks_exact(columns) {
            for ((q, x), m) in squares.iter_mut().zip(row).zip(&means) {
                *q += (x - m) * (x - m);
            }
        }
        Ok(Self { rows: rows as u64, means, squares })
    }

    /// Pools two sets of rows: squares about the common mean.
    fn add(&mut self, other: &Self) {
        let (n, m) = (self.rows as f64, other.rows as f64);
        for j in 0..self.means.len() {
            let gap = other.means[j] - self.means[j];
            self.means[j] += gap * m / (n + m);
            self.squares[j] += other.squares[j] + gap * gap * n * m / (n + m);
        }
        self.rows += other.rows;
    }
}

impl Bind<Standardize> for BindRows {
    fn bind(&self, _: &Standardize, data: &ClientData) -> Result<Sums> {
        match data {
            ClientData::Table(table) => Sums::of(&table.values, table.width()),
            ClientData::Stream(source) => {
                let mut rows = Vec::new();
                source.rows(0, STREAM_ROWS, &mut rows)?;
                Sums::of(&rows, source.columns().len())
            }
            ClientData::Labelled(_) | ClientData::Cells(_) => Err(no_rows()),
        }
    }
}

fn no_rows() -> Error {
    Error::config(
        "only plain rows are standardised here: rows with targets by their reader, observed cells never",
    )
}

impl Method for Standardize {
    type Data = Sums;
    type Server = Server;
    type Peer = ();
    type Client = ();
    type Summary = Sums;
    type Down = ();
    type Up = ();
    type Fold = ();

    fn enroll(&self, data: &Sums, _: Key) -> Result<((), Sums)> {
        if data.means.len() != self.columns {
            return Err(Error::data(format!(
                "its rows have {} columns where the job's have {}",
                data.means.len(),
                self.columns
            )));
        }
        Ok(((), data.clone()))
    }

    fn start(&self, roster: &mut dyn Iterator<Item = (ClientId, Sums)>, _: Key) -> Result<Server> {
        let mut pooled: Option<Sums> = None;
        for (id, sums) in roster {
            self.check(id, &sums)?;
            match &mut pooled {
                None => pooled = Some(sums),
                Some(all) => all.add(&sums),
            }
        }
        Ok(Server { sums: pooled.ok_or_else(|| Error::data("there is no client"))? })
    }

    fn admit(&self, server: Server, _: ClientId, _: &Sums) -> Result<(Server, ())> {
        Ok((server, ()))
    }

    fn plan(&self, _: &Server) -> Plan {
        Plan::Stop
    }

    fn downlink(&self, _: &Server, (): &(), _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }

    fn local_step(&self, (): &(), (): &(), _: &Sums, _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }

    fn fold(&self, _: &Server) {}

    fn absorb(&self, (): &mut (), _: From<'_, ()>, (): ()) -> Result<()> {
        Ok(())
    }

    fn merge(&self, (): &mut (), (): ()) -> Result<()> {
        Ok(())
    }

    fn server_step(&self, server: Server, (): (), _: Key) -> Result<Server> {
        Ok(server)
    }

    fn magnitude(&self, _: &Server) -> f64 {
        1.0
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let (d, n) = (server.sums.means.len(), server.sums.rows as f64);
        let scale = |q: &f64| {
            let sd = (q / n).sqrt();
            if sd > 0.0 && sd.is_finite() { sd } else { 1.0 }
        };
        let artifact = Artifact { kind: "standardize".into(), tensors: Vec::new() };
        Ok(artifact.with("means", &[d], server.sums.means.clone()).with(
            "scales",
            &[d],
            server.sums.squares.iter().map(scale).collect(),
        ))
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        vec![Disclosure {
            message: "summary",
            meaning: "the number of rows, and each column's mean and sum of squares".into(),
            bytes_max: 8 + 2 * list_bytes(self.columns),
            exposure: Exposure::Aggregate,
        }]
    }
}

impl Standardize {
    /// Refuses sums that no rows have.
    fn check(&self, id: ClientId, sums: &Sums) -> Result<()> {
        if [&sums.means, &sums.squares].iter().any(|list| list.len() != self.columns) {
            return Err(Error::peer(format!("client {id} has other columns")));
        }
        let numbers = vector::all_finite(&sums.means) && vector::all_finite(&sums.squares);
        let negative = sums.squares.iter().any(|q| *q < 0.0);
        if !(1..=ROWS_MAX).contains(&sums.rows) || !numbers || negative {
            return Err(Error::peer(format!("client {id} sent sums that no rows have")));
        }
        Ok(())
    }
}

/// Nothing to ask: the stage is over once everyone has enrolled.
impl Evaluate for Standardize {
    type Ask = ();
    type Answer = ();

    fn ask(&self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn answer(&self, (): &(), (): &(), _: &Sums) -> Result<()> {
        Ok(())
    }

    fn loss(&self, (): &()) -> Option<f64> {
        None
    }

    fn conclude(
        &self,
        _: &Server,
        _: &mut dyn Iterator<Item = (ClientId, ())>,
    ) -> Result<Vec<Metric>> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooled_sums_are_those_of_all_rows() {
        let rows: Vec<f64> = (0..60).map(|i| 1e6 + f64::from(i * i % 17)).collect();
        let mut pooled = Sums::of(&rows[..10], 2).unwrap();
        pooled.add(&Sums::of(&rows[10..44], 2).unwrap());
        pooled.add(&Sums::of(&rows[44..], 2).unwrap());
        let all = Sums::of(&rows, 2).unwrap();
        assert_eq!(pooled.rows, 30);
        for (a, b) in pooled.means.iter().zip(&all.means) {
            assert!((a - b).abs() < 1e-9, "{a} {b}");
        }
        for (a, b) in pooled.squares.iter().zip(&all.squares) {
            assert!((a - b).abs() < 1e-6 * b, "{a} {b}");
        }
    }

    #[test]
    fn a_constant_column_keeps_its_scale() {
        let sums = Sums::of(&[0.1; 10], 1).unwrap();
        let mut pooled = sums.clone();
        pooled.add(&Sums::of(&[0.1; 7], 1).unwrap());
        assert_eq!((sums.means[0], sums.squares[0], pooled.squares[0]), (0.1, 0.0, 0.0));
    }

    #[test]
    fn there_and_back_is_where_it_was() {
        let affine = Affine { means: vec![5.0, -2.0], scales: vec![4.0, 0.5] };
        let mut rows = vec![1.0, 2.0, 3.0, 4.0];
        affine.forward(&mut rows);
        assert_eq!(rows, [-1.0, 8.0, -0.5, 12.0]);
        affine.backward(&mut rows);
        assert_eq!(rows, [1.0, 2.0, 3.0, 4.0]);
        let mut matrix = vec![1.0, 0.5, 0.5, 1.0];
        affine.covariances_backward(&mut matrix);
        assert_eq!(matrix, [16.0, 1.0, 1.0, 0.25]);
    }
}
