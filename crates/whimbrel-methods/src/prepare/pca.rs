//! The second stage of preparation: principal components of the pooled rows.
//!
//! Clients send the sums of products of all pairs of (kept, centred, scaled) columns. The pooled
//! covariance is their exact sum over the number of rows, so the axes equal those of the pooled rows.
//! The sign of an axis is arbitrary: the loading of largest magnitude (the first of equals) is positive.

use super::{check_finite, rows_of};
use crate::fedem::list_bytes;
use crate::federated::aggregate;
use crate::one_shot::OneShot;
use crate::pooled::Totals;
use crate::settings::{ROWS_MAX, check_sums};
use whimbrel_core::linalg::{Eigen, packed_index, packed_len, symmetric_eigen, unpack};
use whimbrel_core::method::{Artifact, Disclosure};
use whimbrel_core::{ClientData, ClientId, Error, ExactSum, Key, Result, kernel, vector, wire};

/// The kind of the stage's result.
pub(super) const KIND: &str = "prepare-pca";

/// The most columns: with more, each client would send over 64 MiB and the server would need many
/// minutes for the axes.
pub const COLUMNS_MAX: usize = 4096;

/// Largest error of the products of two axes.
const ROUNDING: f64 = 1e-6;

/// Rows per block of products.
const BLOCK: usize = 8;

/// The stage.
#[derive(Clone, Copy, Debug)]
pub struct Pca {
    /// The number of prepared columns.
    pub columns: usize,
    pub components: usize,
}

/// A client's message: its number of rows, and `Σ x xᵀ` over them, packed.
#[derive(Clone, Debug)]
pub struct Products {
    rows: u64,
    products: Vec<f64>,
}

wire!(Products { rows, products });

impl Pca {
    /// Refuses more components than columns, and too many columns.
    pub fn new(columns: usize, components: usize) -> Result<Self> {
        if columns > COLUMNS_MAX {
            return Err(Error::config(format!(
                "principal components of {columns} columns are too many: each client would send \
                 {} numbers",
                packed_len(columns)
            ))
            .hint(format!("at most {COLUMNS_MAX}: choose some with `columns`")));
        }
        if components > columns || components == 0 {
            return Err(Error::config(format!(
                "pca = {components} of {columns} columns: there are at most as many components \
                 as columns that are left"
            ))
            .hint("ask for fewer components in [data.prepare]"));
        }
        Ok(Self { columns, components })
    }
}

impl OneShot for Pca {
    /// Prepared rows.
    type Data = Vec<f64>;
    type Summary = Products;

    fn read(&self, data: &ClientData) -> Result<Vec<f64>> {
        rows_of(data, |columns, values| {
            check_finite(columns, values)?;
            if columns.len() != self.columns || values.is_empty() {
                let what = format!("its rows do not have {} prepared columns", self.columns);
                return Err(Error::data(what));
            }
            Ok(values.to_vec())
        })
    }

    fn summarise(&self, rows: &Vec<f64>, _: Key) -> Result<Products> {
        let mut products = vec![0.0; packed_len(self.columns)];
        add_products(&mut products, rows, self.columns);
        Ok(Products { rows: (rows.len() / self.columns) as u64, products })
    }

    fn pool(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Products)>,
        _: Key,
    ) -> Result<Artifact> {
        let mut sum = ExactSum::new(packed_len(self.columns));
        let mut rows = 0;
        for (id, sent) in roster {
            self.check(id, &sent)?;
            rows += sent.rows;
            sum.add(&sent.products, 1.0)?;
        }
        self.deliver(rows, sum.value())
    }

    fn disclosure(&self) -> Disclosure {
        let numbers = packed_len(self.columns);
        let meaning = format!(
            "the number of rows, and the sum of products of each pair of columns: {numbers} numbers"
        );
        aggregate("summary", &meaning, 8 + list_bytes(numbers))
    }
}

/// `(rows, Σ x xᵀ)`.
impl Totals for Pca {
    type Data = Products;

    fn read(&self, data: &ClientData) -> Result<Products> {
        self.summarise(&OneShot::read(self, data)?, Key::root(0))
    }

    fn rows(&self, own: &Products) -> u64 {
        own.rows
    }

    fn meaning(&self) -> String {
        "the sum of products of each pair of columns".into()
    }

    fn lengths(&self) -> Vec<usize> {
        vec![1 + packed_len(self.columns)]
    }

    fn sums(&self, _: &[Vec<f64>], own: &Products) -> Result<Vec<f64>> {
        Ok([&[own.rows as f64], &own.products[..]].concat())
    }

    fn settle(&self, totals: &[Vec<f64>]) -> Result<Artifact> {
        let [sums] = totals else { return Err(Error::internal("sums are missing")) };
        self.deliver(sums[0] as u64, sums[1..].to_vec())
    }
}

impl Pca {
    /// The axes of these sums of products.
    fn deliver(&self, rows: u64, mut covariance: Vec<f64>) -> Result<Artifact> {
        // Centred rows span at most one direction fewer than their number.
        if rows <= self.components as u64 {
            let what = format!("{rows} rows have fewer than {} components", self.components);
            return Err(Error::data(what));
        }
        vector::scale(&mut covariance, 1.0 / rows as f64);
        self.axes(&unpack(&covariance, self.columns))
    }

    /// Refuses impossible products.
    fn check(&self, id: ClientId, sent: &Products) -> Result<()> {
        let right = sent.products.len() == packed_len(self.columns)
            && (1..=ROWS_MAX).contains(&sent.rows)
            && (0..self.columns).all(|j| sent.products[packed_index(j, j)] >= 0.0);
        if !right {
            return Err(Error::peer(format!("client {id} sent impossible products")));
        }
        check_sums(id, &sent.products)
    }

    /// The leading axes of a covariance, largest variance first.
    fn axes(&self, covariance: &[f64]) -> Result<Artifact> {
        let (d, p) = (self.columns, self.components);
        let total: f64 = (0..d).map(|j| covariance[j * d + j]).sum();
        let Eigen { values, vectors } = symmetric_eigen(covariance, d)?;
        let leading = || (d - p..d).rev();
        // Eigenvalues have the rounding error of the largest one.
        let noise = d as f64 * f64::EPSILON * values[d - 1].max(0.0);
        let varying = values.iter().filter(|v| **v > noise).count();
        if varying < p {
            return Err(Error::data(format!(
                "pca = {p}, but the rows vary in {varying} directions only"
            )));
        }
        let axes = leading().flat_map(|k| positive(&vectors[k * d..][..d])).collect();
        let variances = leading().map(|k| values[k]).collect();
        Ok(Artifact::new(KIND).with("axes", &[p, d], axes).with("variances", &[p], variances).with(
            "variance",
            &[],
            vec![total],
        ))
    }

    /// The axes of the stage's artifact; refuses vectors that are not orthonormal.
    pub(super) fn delivered(&self, artifact: &Artifact) -> Result<Vec<f64>> {
        let (d, p) = (self.columns, self.components);
        let axes = artifact.tensor("axes").map_or(&[][..], |tensor| &tensor.values);
        let right = |i: usize, j: usize| {
            let product = vector::dot(&axes[i * d..][..d], &axes[j * d..][..d]);
            (product - f64::from(u8::from(i == j))).abs() < ROUNDING
        };
        if axes.len() != p * d || !(0..p).all(|i| (0..=i).all(|j| right(i, j))) {
            return Err(Error::peer(format!(
                "an artifact `{KIND}` without {p} axes of {d} columns"
            )));
        }
        Ok(axes.to_vec())
    }

    /// Placeholder axes of the right shape: the first columns.
    pub fn stand_in(columns: usize, components: usize) -> Artifact {
        let mut axes = vec![0.0; components * columns];
        axes.iter_mut().step_by(columns + 1).for_each(|x| *x = 1.0);
        Artifact::new(KIND).with("axes", &[components, columns], axes)
    }
}

/// Flips an axis so that its loading of largest magnitude is positive.
fn positive(axis: &[f64]) -> impl Iterator<Item = f64> + '_ {
    let largest = axis.iter().fold(0.0f64, |best, x| if x.abs() > best.abs() { *x } else { best });
    let sign = if largest < 0.0 { -1.0 } else { 1.0 };
    axis.iter().map(move |x| sign * x)
}

kernel! {
    /// Adds `Σ x xᵀ` over rows of `d` numbers to a packed matrix, several rows at a time because the
    /// matrix is far larger than the rows.
    fn add_products(packed: &mut [f64], rows: &[f64], d: usize) {
        let mut blocks = rows.chunks_exact(BLOCK * d);
        for block in &mut blocks {
            let mut at = 0;
            for i in 0..d {
                let n = i + 1;
                let out = &mut packed[at..at + n];
                at += n;
                let row = |r: usize| &block[r * d..][..n];
                let (a, b, c, e) = (row(0), row(1), row(2), row(3));
                let (f, g, h, k) = (row(4), row(5), row(6), row(7));
                let (a_i, b_i, c_i, e_i) = (a[i], b[i], c[i], e[i]);
                let (f_i, g_i, h_i, k_i) = (f[i], g[i], h[i], k[i]);
                for j in 0..n {
                    let first = (a_i * a[j] + b_i * b[j]) + (c_i * c[j] + e_i * e[j]);
                    let second = (f_i * f[j] + g_i * g[j]) + (h_i * h[j] + k_i * k[j]);
                    out[j] += first + second;
                }
            }
        }
        for row in blocks.remainder().chunks_exact(d) {
            let mut at = 0;
            for i in 0..d {
                let x_i = row[i];
                for (out, x) in packed[at..at + i + 1].iter_mut().zip(row) {
                    *out += x_i * x;
                }
                at += i + 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_plain_loops() {
        let d = 5;
        let mut stream = Key::root(3).stream();
        for rows in [1, 8, 21] {
            let x: Vec<f64> = (0..rows * d).map(|_| stream.normal()).collect();
            let mut found = vec![0.0; packed_len(d)];
            add_products(&mut found, &x, d);
            for i in 0..d {
                for j in 0..=i {
                    let right: f64 = x.chunks(d).map(|row| row[i] * row[j]).sum();
                    let gap = (found[packed_index(i, j)] - right).abs();
                    assert!(gap <= 1e-14 * rows as f64, "({i}, {j}) of {rows} rows: {gap:e}");
                }
            }
        }
    }

    #[test]
    fn the_largest_loading_is_positive() {
        let axis = |x: &[f64]| positive(x).collect::<Vec<f64>>();
        assert_eq!(axis(&[0.6, -0.8]), [-0.6, 0.8]);
        assert_eq!(axis(&[0.8, -0.6]), [0.8, -0.6]);
        assert_eq!(axis(&[-0.5, 0.5]), [0.5, -0.5]);
    }

    #[test]
    fn more_components_than_directions_are_refused() {
        assert!(Pca::new(3, 4).is_err());
        assert!(Pca::new(COLUMNS_MAX + 1, 4).is_err());
        let pca = Pca::new(3, 3).unwrap();
        // The third column is the sum of the others.
        let rows = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, -1.0, -1.0, -2.0, 3.0, 0.0, 3.0];
        let sent = pca.summarise(&rows.to_vec(), Key::root(1)).unwrap();
        let pool =
            |pca: Pca| pca.pool(&mut [(ClientId(0), sent.clone())].into_iter(), Key::root(1));
        let error = pool(pca).unwrap_err().to_string();
        assert!(error.contains("vary in 2 directions only"), "{error}");
        assert!(pool(Pca { components: 2, ..pca }).is_ok());
    }
}
