//! The units of a table of numbers: mean and scale of each column, from one message of every client.
//!
//! Columns of unlike scales are fitted in units of their standard deviations: otherwise the column of the
//! largest variance alone determines factors, row effects and penalties.

use crate::fedem::list_bytes;
use crate::federated::aggregate;
use crate::one_shot::OneShot;
use crate::settings::{ROWS_MAX, check_sums};
use whimbrel_core::math::{exp, ln};
use whimbrel_core::method::{Artifact, Disclosure};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, wire};

/// The kind of the stage's result.
pub const KIND: &str = "table-units";
const UNITS: &str = "units";

/// The ratio of standard deviations from which columns are of unlike scales.
const UNLIKE: f64 = 10.0;
/// Fewer observations do not show the scale of a column.
const OBSERVED_MIN: f64 = 10.0;

/// The stage.
#[derive(Clone, Copy, Debug)]
pub struct ColumnUnits {
    /// Number of columns of the table.
    pub columns: usize,
}

/// A client's message: count, mean and sum of squares about it, for each column.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    counts: Vec<f64>,
    means: Vec<f64>,
    squares: Vec<f64>,
}

wire!(Sums { counts, means, squares });

impl Sums {
    fn new(columns: usize) -> Self {
        let zeros = vec![0.0; columns];
        Self { counts: zeros.clone(), means: zeros.clone(), squares: zeros }
    }

    /// Adds `count` observations of a column with this mean and sum of squares about it.
    fn add(&mut self, column: usize, [count, mean, squares]: [f64; 3]) {
        let before = self.counts[column];
        let total = before + count;
        if count > 0.0 {
            let gap = mean - self.means[column];
            self.means[column] += gap * count / total;
            self.squares[column] += squares + gap * gap * before * count / total;
            self.counts[column] = total;
        }
    }

    fn deviation(&self, column: usize) -> f64 {
        (self.squares[column] / self.counts[column].max(1.0)).sqrt()
    }

    /// Mean and scale of each column, or nothing for columns of one scale. A column that does not vary
    /// has the geometric mean of the other scales.
    fn units(&self) -> Vec<[f64; 2]> {
        let all = || (0..self.counts.len()).filter(|j| self.deviation(*j) > 0.0);
        let known = || all().filter(|j| self.counts[*j] >= OBSERVED_MIN);
        let least = known().map(|j| self.deviation(j)).fold(f64::INFINITY, f64::min);
        let most = known().map(|j| self.deviation(j)).fold(0.0, f64::max);
        if most <= UNLIKE * least {
            return Vec::new();
        }
        let usual = exp(all().map(|j| ln(self.deviation(j))).sum::<f64>() / all().count() as f64);
        let scale = |j: usize| Some(self.deviation(j)).filter(|sd| *sd > 0.0).unwrap_or(usual);
        (0..self.counts.len()).map(|j| [self.means[j], scale(j)]).collect()
    }
}

impl OneShot for ColumnUnits {
    type Data = Sums;
    type Summary = Sums;

    fn read(&self, data: &ClientData) -> Result<Sums> {
        let ClientData::Cells(cells) = data else {
            return Err(Error::data("a table is fitted to cells, but these data are rows"));
        };
        let mut sums = Sums::new(self.columns);
        for cell in &cells.observed {
            if cell.column as usize >= self.columns {
                return Err(Error::data("a cell lies outside the table"));
            }
            sums.add(cell.column as usize, [1.0, cell.value, 0.0]);
        }
        Ok(sums)
    }

    fn summarise(&self, sums: &Sums, _: Key) -> Result<Sums> {
        Ok(sums.clone())
    }

    fn pool(&self, roster: &mut dyn Iterator<Item = (ClientId, Sums)>, _: Key) -> Result<Artifact> {
        let mut all = Sums::new(self.columns);
        for (id, sums) in roster {
            let lists = [&sums.counts, &sums.means, &sums.squares];
            if lists.iter().any(|list| list.len() != self.columns) {
                return Err(Error::peer(format!("client {id} sent another number of columns")));
            }
            lists.into_iter().try_for_each(|list| check_sums(id, list))?;
            let is_count = |n: &f64| n.fract() == 0.0 && (0.0..=ROWS_MAX as f64).contains(n);
            if !sums.counts.iter().all(is_count) || sums.squares.iter().any(|q| *q < 0.0) {
                return Err(Error::peer(format!("client {id} sent impossible sums")));
            }
            for j in 0..self.columns {
                all.add(j, [sums.counts[j], sums.means[j], sums.squares[j]]);
            }
        }
        let units = all.units();
        let out = Artifact::new(KIND);
        let values = units.iter().flatten().copied().collect();
        Ok(if units.is_empty() { out } else { out.with(UNITS, &[units.len(), 2], values) })
    }

    fn disclosure(&self) -> Disclosure {
        let meaning = "of each column: the number of observations, their mean and sum of squares";
        aggregate("summary", meaning, 3 * list_bytes(self.columns))
    }
}

/// The units that the stage delivered; none if all columns are of one scale.
pub fn delivered(artifact: &Artifact) -> Result<Vec<[f64; 2]>> {
    let values = artifact.tensor(UNITS).map_or(&[][..], |tensor| &tensor.values);
    let (units, rest) = values.as_chunks();
    if rest.is_empty() {
        Ok(units.to_vec())
    } else {
        Err(Error::peer("the units of a column are incomplete"))
    }
}

/// The note on standardised columns.
pub fn note(artifact: &Artifact) -> Option<String> {
    let units = delivered(artifact).ok().filter(|_| artifact.kind == KIND)?;
    let scales = || units.iter().map(|unit| unit[1]);
    let ratio = scales().fold(0.0, f64::max) / scales().fold(f64::INFINITY, f64::min);
    (!units.is_empty()).then(|| {
        format!(
            "columns differ in scale by a factor of {ratio:.0}: fitted in units of their standard \
             deviations, as are figures per cell; the completed table is in units of the data"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(columns: &[&[f64]]) -> Sums {
        let mut sums = Sums::new(columns.len());
        for (j, values) in columns.iter().enumerate() {
            values.iter().for_each(|x| sums.add(j, [1.0, *x, 0.0]));
        }
        sums
    }

    #[test]
    fn pooled_sums_are_those_of_all_cells() {
        let values: Vec<f64> = (0..30).map(|i| 1e6 + f64::from(i * i % 17)).collect();
        let mut pooled = Sums::new(1);
        for part in [&values[..4], &[], &values[4..]] {
            let own = sums(&[part]);
            pooled.add(0, [own.counts[0], own.means[0], own.squares[0]]);
        }
        let whole = sums(&[&values]);
        assert_eq!(pooled.counts, whole.counts);
        assert!((pooled.means[0] - whole.means[0]).abs() < 1e-8);
        assert!((pooled.squares[0] / whole.squares[0] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn columns_of_one_scale_keep_their_units() {
        let values: Vec<f64> = (0..20).map(f64::from).collect();
        let wide: Vec<f64> = values.iter().map(|x| 9.0 * x).collect();
        assert!(sums(&[&values, &wide]).units().is_empty());
        let wider: Vec<f64> = values.iter().map(|x| 11.0 * x).collect();
        // Two observations do not show a scale, and a constant column has none.
        let units = sums(&[&values, &wider, &[1.0, 1.5], &[3.0; 20]]).units();
        assert_eq!(units.len(), 4);
        assert!((units[1][1] / units[0][1] - 11.0).abs() < 1e-9, "{units:?}");
        assert_eq!(units[3][0], 3.0);
        assert!(units[3][1] > units[2][1] && units[3][1] < units[1][1], "{units:?}");
        assert!(sums(&[&values, &[1.0, 1.0001]]).units().is_empty());
    }
}
