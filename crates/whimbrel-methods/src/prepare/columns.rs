//! The first stage of preparation: variation, mean and scale of each column.

use super::{Affine, check_finite, rows_of};
use crate::fedem::list_bytes;
use crate::federated::aggregate;
use crate::one_shot::OneShot;
use crate::pooled::Totals;
use crate::settings::{ROWS_MAX, check_sums};
use whimbrel_core::method::{Artifact, Disclosure};
use whimbrel_core::{ClientData, ClientId, Error, ExactSum, Key, Result, wire};

/// The kind of the stage's result.
pub(super) const KIND: &str = "prepare-columns";

/// Deviations up to this share of the mean are rounding errors.
pub(crate) const CONSTANT: f64 = 1e-14;

/// The stage.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    pub columns: usize,
    /// Whether constant columns are dropped.
    pub drop_constant: bool,
    /// Whether columns are scaled to variance 1.
    pub standardize: bool,
    /// Whether columns are centred, for standardisation or principal components.
    pub centre: bool,
}

/// A client's message: rows, means, and squares about these means.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    rows: u64,
    means: Vec<f64>,
    squares: Vec<f64>,
}

wire!(Sums { rows, means, squares });

impl OneShot for Columns {
    type Data = Sums;
    type Summary = Sums;

    fn read(&self, data: &ClientData) -> Result<Sums> {
        rows_of(data, Sums::of)
    }

    fn summarise(&self, sums: &Sums, _: Key) -> Result<Sums> {
        if sums.means.len() != self.columns {
            return Err(Error::data(format!(
                "its rows have {} columns where the job's have {}",
                sums.means.len(),
                self.columns
            )));
        }
        Ok(sums.clone())
    }

    fn pool(&self, roster: &mut dyn Iterator<Item = (ClientId, Sums)>, _: Key) -> Result<Artifact> {
        let mut pool: Option<Pool> = None;
        for (id, sums) in roster {
            self.check(id, &sums)?;
            pool.get_or_insert_with(|| Pool::about(&sums.means)).add(&sums)?;
        }
        let (means, deviations) = pool.ok_or_else(|| Error::data("there is no client"))?.moments();
        self.deliver(&means, &deviations)
    }

    fn disclosure(&self) -> Disclosure {
        let meaning = "the number of rows, and each column's mean and sum of squares";
        aggregate("summary", meaning, 8 + 2 * list_bytes(self.columns))
    }
}

/// `(rows, Σ x)`, then `(rows, Σ (x − mean)²)`.
impl Totals for Columns {
    type Data = Sums;

    fn read(&self, data: &ClientData) -> Result<Sums> {
        self.summarise(&OneShot::read(self, data)?, Key::root(0))
    }

    fn rows(&self, sums: &Sums) -> u64 {
        sums.rows
    }

    fn meaning(&self) -> String {
        "the sum of each column, then its squared deviations from the mean over clients".into()
    }

    fn lengths(&self) -> Vec<usize> {
        vec![1 + self.columns; 2]
    }

    fn sums(&self, before: &[Vec<f64>], own: &Sums) -> Result<Vec<f64>> {
        let n = own.rows as f64;
        let each: Vec<f64> = match before.first() {
            None => own.means.iter().map(|mean| n * mean).collect(),
            Some(first) => {
                let gaps = own.means.iter().zip(means(first)).map(|(own, mean)| own - mean);
                own.squares.iter().zip(gaps).map(|(square, gap)| square + n * gap * gap).collect()
            }
        };
        Ok([vec![n], each].concat())
    }

    fn settle(&self, totals: &[Vec<f64>]) -> Result<Artifact> {
        let [first, second] = totals else { return Err(Error::internal("sums are missing")) };
        let (means, variances) = (means(first), means(second));
        // The pooled mean of a constant column is rounded.
        let deviation = |(variance, mean): (&f64, &f64)| {
            let deviation = variance.max(0.0).sqrt();
            if deviation > CONSTANT * mean.abs() { deviation } else { 0.0 }
        };
        self.deliver(&means, &variances.iter().zip(&means).map(deviation).collect::<Vec<f64>>())
    }
}

/// Sums over their number, which comes first.
fn means(totals: &[f64]) -> Vec<f64> {
    totals[1..].iter().map(|sum| sum / totals[0]).collect()
}

impl Columns {
    /// Refuses impossible sums.
    fn check(&self, id: ClientId, sums: &Sums) -> Result<()> {
        if [&sums.means, &sums.squares].iter().any(|list| list.len() != self.columns) {
            return Err(Error::peer(format!("client {id} sent another number of columns")));
        }
        check_sums(id, &sums.means)?;
        check_sums(id, &sums.squares)?;
        let negative = sums.squares.iter().any(|q| *q < 0.0);
        if !(1..=ROWS_MAX).contains(&sums.rows) || negative {
            return Err(Error::peer(format!("client {id} sent impossible sums")));
        }
        Ok(())
    }

    fn deliver(&self, means: &[f64], deviations: &[f64]) -> Result<Artifact> {
        let kept: Vec<usize> =
            (0..self.columns).filter(|j| !self.drop_constant || deviations[*j] > 0.0).collect();
        if kept.is_empty() {
            return Err(Error::data("every column is constant: there is nothing to fit"));
        }
        let each = |of: &dyn Fn(usize) -> f64| kept.iter().map(|j| of(*j)).collect::<Vec<f64>>();
        let means = each(&|j| if self.centre { means[j] } else { 0.0 });
        // A constant column is centred but not scaled, so it becomes zero.
        let scaled = |j: usize| self.standardize && deviations[j] > 0.0;
        let scales = each(&|j| if scaled(j) { deviations[j] } else { 1.0 });
        Ok(delivery(each(&|j| j as f64), means, scales))
    }

    /// Kept columns, and their map, from the stage's artifact; refuses an impossible one.
    pub(super) fn delivered(&self, artifact: &Artifact) -> Result<(Vec<usize>, Affine)> {
        let list = |name| artifact.tensor(name).map_or(&[][..], |tensor| &tensor.values);
        let (kept, means, scales) = (list("kept"), list("means"), list("scales"));
        let ascending = kept.is_sorted_by(|a, b| a < b);
        let inside = |at: &f64| at.fract() == 0.0 && (0.0..self.columns as f64).contains(at);
        let all = self.drop_constant || kept.len() == self.columns;
        let k = kept.len();
        let lengths = k > 0 && [means.len(), scales.len()] == [k; 2];
        let mean = |x: &f64| if self.centre { x.is_finite() } else { *x == 0.0 };
        let scale = |x: &f64| if self.standardize { *x > 0.0 && x.is_finite() } else { *x == 1.0 };
        let maps = means.iter().all(mean) && scales.iter().all(scale);
        if !(ascending && kept.iter().all(inside) && all && lengths && maps) {
            let what = format!("an artifact `{KIND}` that does not fit the columns of the job");
            return Err(Error::peer(what));
        }
        let kept = kept.iter().map(|at| *at as usize).collect();
        Ok((kept, Affine { means: means.to_vec(), scales: scales.to_vec() }))
    }

    /// A placeholder result that changes nothing.
    pub fn stand_in(columns: usize) -> Artifact {
        let places = (0..columns).map(|j| j as f64).collect();
        delivery(places, vec![0.0; columns], vec![1.0; columns])
    }
}

fn delivery(kept: Vec<f64>, means: Vec<f64>, scales: Vec<f64>) -> Artifact {
    let k = kept.len();
    let artifact = Artifact::new(KIND).with("kept", &[k], kept);
    artifact.with("means", &[k], means).with("scales", &[k], scales)
}

impl Sums {
    fn of(columns: &[String], values: &[f64]) -> Result<Self> {
        let width = columns.len();
        let rows = values.len() / width.max(1);
        if rows == 0 {
            return Err(Error::data("there are no rows"));
        }
        check_finite(columns, values)?;
        // About the first row: a constant column then has exactly that mean and zero variance.
        let first = &values[..width];
        let mut means = vec![0.0; width];
        for row in values.chunks_exact(width) {
            for ((m, x), f) in means.iter_mut().zip(row).zip(first) {
                *m += (x - f) / rows as f64;
            }
        }
        means.iter_mut().zip(first).for_each(|(m, f)| *m += f);
        let mut squares = vec![0.0; width];
        for row in values.chunks_exact(width) {
            for ((q, x), m) in squares.iter_mut().zip(row).zip(&means) {
                *q += (x - m) * (x - m);
            }
        }
        Ok(Self { rows: rows as u64, means, squares })
    }
}

/// Sums over clients about the means `c` of one client, whose rows are among those pooled: this bounds
/// the cancellation by the ratio of all rows to that client's.
struct Pool {
    centre: Vec<f64>,
    rows: u64,
    /// `Σ n_i (m_i − c)` and `Σ q_i + n_i (m_i − c)²`, with one exact sum per column because the scales
    /// of columns may differ arbitrarily.
    shifts: Vec<ExactSum>,
    squares: Vec<ExactSum>,
}

impl Pool {
    fn about(centre: &[f64]) -> Self {
        let sums = vec![ExactSum::new(1); centre.len()];
        Self { centre: centre.to_vec(), rows: 0, shifts: sums.clone(), squares: sums }
    }

    fn add(&mut self, sums: &Sums) -> Result<()> {
        let n = sums.rows as f64;
        self.rows += sums.rows;
        for j in 0..self.centre.len() {
            let shift = sums.means[j] - self.centre[j];
            self.shifts[j].add(&[shift], n)?;
            self.squares[j].add(&[sums.squares[j]], 1.0)?;
            self.squares[j].add(&[shift * shift], n)?;
        }
        Ok(())
    }

    /// Means and standard deviations (divided by the number of rows).
    fn moments(&self) -> (Vec<f64>, Vec<f64>) {
        let n = self.rows as f64;
        let value = |sum: &ExactSum| sum.value()[0] / n;
        let moments = (0..self.centre.len()).map(|j| {
            let (shift, square) = (value(&self.shifts[j]), value(&self.squares[j]));
            (self.centre[j] + shift, (square - shift * shift).max(0.0).sqrt())
        });
        moments.unzip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(values: &[f64], columns: usize) -> Sums {
        let names: Vec<String> = (0..columns).map(|j| j.to_string()).collect();
        Sums::of(&names, values).unwrap()
    }

    fn pool(parts: &[Sums]) -> (Vec<f64>, Vec<f64>) {
        let mut pool = Pool::about(&parts[0].means);
        parts.iter().for_each(|part| pool.add(part).unwrap());
        pool.moments()
    }

    #[test]
    fn pooled_sums_are_those_of_all_rows() {
        let rows: Vec<f64> = (0..60).map(|i| 1e6 + f64::from(i * i % 17)).collect();
        let parts = [sums(&rows[..10], 2), sums(&rows[10..44], 2), sums(&rows[44..], 2)];
        let (means, deviations) = pool(&parts);
        let (right, spread) = pool(&[sums(&rows, 2)]);
        for j in 0..2 {
            assert!((means[j] - right[j]).abs() < 1e-9, "{means:?} {right:?}");
            assert!((deviations[j] - spread[j]).abs() < 1e-9 * spread[j]);
        }
    }

    #[test]
    fn a_constant_column_has_no_spread_at_all() {
        let (means, deviations) = pool(&[sums(&[0.1; 10], 1), sums(&[0.1; 7], 1)]);
        assert_eq!((means[0], deviations[0]), (0.1, 0.0));
    }

    #[test]
    fn a_first_client_far_from_the_others_costs_no_digits() {
        let far = sums(&[1e8, 1e8 + 1.0], 1);
        let near = sums(&[0.0, 1.0, 2.0, 3.0], 1);
        let (means, deviations) = pool(&[far.clone(), near.clone()]);
        let (other_means, other) = pool(&[near, far]);
        assert!((means[0] / other_means[0] - 1.0).abs() < 1e-15);
        assert!((deviations[0] / other[0] - 1.0).abs() < 1e-15);
    }
}
