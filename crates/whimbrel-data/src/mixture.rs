//! Federations drawn from a Gaussian mixture, from identical clients to one component per client.
//!
//! Row `r` of client `i` depends on the key, `i` and `r` only: not on the number of clients, nor on
//! rows drawn before. A client's table is the head of its stream.

use crate::split::client_name;
use crate::{Error, Result};
use rayon::prelude::*;
use std::sync::Arc;
use whimbrel_core::{Key, RowStream, Table, linalg};

/// A federation to draw.
#[derive(Debug, Clone, PartialEq)]
pub struct MixtureSpec {
    pub clients: usize,
    pub rows: Sizes,
    /// The components' weights over all clients; they sum to one.
    pub weights: Vec<f64>,
    pub means: Vec<Vec<f64>>,
    pub covariance: Covariance,
    pub heterogeneity: Heterogeneity,
}

impl Default for MixtureSpec {
    /// 100 clients of 100 rows each, from two components in the plane.
    fn default() -> Self {
        Self {
            clients: 100,
            rows: Sizes::Equal(100),
            weights: vec![0.5; 2],
            means: vec![vec![-1.5, 0.0], vec![1.5, 1.0]],
            covariance: Covariance::Shared(vec![vec![1.0, 0.3], vec![0.3, 0.8]]),
            heterogeneity: Heterogeneity::dirichlet(Heterogeneity::CONCENTRATION, 2),
        }
    }
}

/// Rows per client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sizes {
    Equal(usize),
    /// One number per client.
    Given(Vec<usize>),
}

/// The components' covariances, as rows of a matrix.
#[derive(Debug, Clone, PartialEq)]
pub enum Covariance {
    /// One for all components.
    Shared(Vec<Vec<f64>>),
    /// One per component.
    PerComponent(Vec<Vec<Vec<f64>>>),
}

/// The law of the clients' component weights.
#[derive(Debug, Clone, PartialEq)]
pub enum Heterogeneity {
    /// All clients have the same weights.
    Identical,
    /// Each client draws its weights from a Dirichlet law with these concentrations, one per
    /// component, which replace `weights`.
    Dirichlet(Vec<f64>),
    /// Client `i` has component `i mod K` only.
    OneComponent,
}

impl Heterogeneity {
    /// The default concentration.
    pub const CONCENTRATION: f64 = 0.2;

    /// The symmetric Dirichlet law.
    pub fn dirichlet(concentration: f64, components: usize) -> Self {
        Self::Dirichlet(vec![concentration; components])
    }
}

/// A checked specification and a key, from which rows are drawn.
#[derive(Debug)]
pub struct Mixture {
    spec: MixtureSpec,
    key: Key,
    columns: Arc<[String]>,
    /// Lower Cholesky factors: one for all components, or one each.
    factors: Vec<Vec<f64>>,
}

impl Mixture {
    /// Checks a specification.
    pub fn new(spec: MixtureSpec, key: Key) -> Result<Self> {
        check(&spec)?;
        let dims = spec.means[0].len();
        let factors = match &spec.covariance {
            Covariance::Shared(one) => vec![factor(one, dims, None)?],
            Covariance::PerComponent(each) => each
                .iter()
                .enumerate()
                .map(|(k, matrix)| factor(matrix, dims, Some(k)))
                .collect::<Result<_>>()?,
        };
        let columns = (1..=dims).map(|j| format!("x{j}")).collect();
        Ok(Self { spec, key, columns, factors })
    }

    pub fn spec(&self) -> &MixtureSpec {
        &self.spec
    }

    /// A client's component weights.
    pub fn client_weights(&self, client: usize) -> Vec<f64> {
        let components = self.spec.weights.len();
        match &self.spec.heterogeneity {
            Heterogeneity::Identical => self.spec.weights.clone(),
            Heterogeneity::Dirichlet(concentrations) => {
                let key = self.key.child(tag::CLIENT_WEIGHTS).child(client as u64);
                key.stream().dirichlet(concentrations)
            }
            Heterogeneity::OneComponent => {
                (0..components).map(|k| f64::from(u8::from(k == client % components))).collect()
            }
        }
    }

    /// A client's table: the head of its stream.
    pub fn table(self: &Arc<Self>, client: usize) -> Result<Table> {
        let count = match &self.spec.rows {
            Sizes::Equal(n) => *n,
            Sizes::Given(each) => each[client],
        };
        let mut values = Vec::with_capacity(count * self.columns.len());
        self.stream(client).rows(0, count, &mut values)?;
        Ok(Table { columns: self.columns.clone(), values, ..Table::default() })
    }

    /// All clients' tables with their names.
    pub fn tables(self: &Arc<Self>) -> Result<Vec<(String, Table)>> {
        let clients = self.spec.clients;
        let tables =
            (0..clients).into_par_iter().map(|i| self.table(i)).collect::<Result<Vec<_>>>();
        // Names are allocated after all rows: between them they would fragment the memory that a
        // fit frees table by table.
        Ok(tables?.into_iter().enumerate().map(|(i, t)| (client_name(i, clients), t)).collect())
    }

    /// A client's endless stream of rows.
    pub fn stream(self: &Arc<Self>, client: usize) -> MixtureRows {
        MixtureRows {
            weights: self.client_weights(client),
            key: self.key.child(tag::ROWS).child(client as u64),
            mixture: Arc::clone(self),
        }
    }
}

/// One client's rows, which can be drawn from any position.
#[derive(Debug, Clone)]
pub struct MixtureRows {
    mixture: Arc<Mixture>,
    key: Key,
    weights: Vec<f64>,
}

impl MixtureRows {
    /// The components of rows `from..from + count`.
    pub fn components(&self, from: u64, count: usize) -> Vec<usize> {
        let component = |r: u64| self.key.child(r).stream().categorical(&self.weights);
        (from..).take(count).map(component).collect()
    }
}

impl RowStream for MixtureRows {
    fn columns(&self) -> &[String] {
        &self.mixture.columns
    }

    fn rows(&self, from: u64, count: usize, out: &mut Vec<f64>) -> whimbrel_core::Result<()> {
        let Mixture { spec, columns, factors, .. } = &*self.mixture;
        let start = out.len();
        out.resize(start + count * columns.len(), 0.0);
        for (r, row) in (from..).zip(out[start..].chunks_exact_mut(columns.len())) {
            let mut stream = self.key.child(r).stream();
            let k = stream.categorical(&self.weights);
            let factor = &factors[k.min(factors.len() - 1)];
            stream.multivariate_normal(&spec.means[k], factor, row);
        }
        Ok(())
    }
}

/// Key tags.
mod tag {
    pub const CLIENT_WEIGHTS: u64 = 4;
    pub const ROWS: u64 = 5;
}

fn check(spec: &MixtureSpec) -> Result<()> {
    let refuse = |what: String, hint: &str| Err(Error::config(what).hint(hint));
    let components = spec.weights.len();
    if components == 0 {
        return refuse("a mixture without components".into(), "give at least one weight");
    }
    let sum: f64 = spec.weights.iter().sum();
    if !spec.weights.iter().all(|w| *w >= 0.0) || (sum - 1.0).abs() > 1e-9 {
        let what = format!("mixture weights {:?} sum to {sum}", spec.weights);
        return refuse(what, "give weights of at least zero that sum to one");
    }
    if spec.means.len() != components {
        let what = format!("{} means for {components} weights", spec.means.len());
        return refuse(what, "give one mean per component");
    }
    let dims = spec.means[0].len();
    let usable = |mean: &Vec<f64>| mean.len() == dims && mean.iter().all(|x| x.is_finite());
    if dims == 0 || !spec.means.iter().all(usable) {
        let what = "the means are not finite vectors of one length".into();
        return refuse(what, "give every component as many coordinates as there are columns");
    }
    if let Covariance::PerComponent(each) = &spec.covariance
        && each.len() != components
    {
        let what = format!("{} covariances for {components} components", each.len());
        return refuse(what, "give one covariance, or one per component");
    }
    if let Heterogeneity::Dirichlet(alpha) = &spec.heterogeneity
        && (alpha.len() != components || !alpha.iter().all(|a| *a > 0.0 && a.is_finite()))
    {
        let what = format!("concentrations {alpha:?} for {components} components");
        return refuse(what, "give one positive number per component");
    }
    let sizes_fit = match &spec.rows {
        Sizes::Equal(n) => *n > 0,
        Sizes::Given(each) => each.len() == spec.clients && each.iter().all(|n| *n > 0),
    };
    if spec.clients == 0 || !sizes_fit {
        let what = format!("{} clients with rows {:?}", spec.clients, spec.rows);
        return refuse(what, "give at least one client, and every client at least one row");
    }
    Ok(())
}

fn factor(matrix: &[Vec<f64>], dims: usize, component: Option<usize>) -> Result<Vec<f64>> {
    let of = component.map(|k| format!(" of component {k}")).unwrap_or_default();
    let square = matrix.len() == dims && matrix.iter().all(|row| row.len() == dims);
    let symmetric = || (0..dims).all(|i| (0..i).all(|j| matrix[i][j] == matrix[j][i]));
    if !square || !symmetric() {
        let what = format!("the covariance{of} is not a symmetric {dims} x {dims} matrix");
        return Err(Error::config(what).hint("give it as rows, one per column of the data"));
    }
    let mut flat: Vec<f64> = matrix.iter().flatten().copied().collect();
    if linalg::cholesky(&mut flat, dims).is_err() {
        let what = format!("the covariance{of} is not positive definite");
        return Err(Error::config(what).hint("all its eigenvalues must be above zero"));
    }
    Ok(flat)
}
