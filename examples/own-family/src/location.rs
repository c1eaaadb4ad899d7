//! A Student-t location model: `y = mu + eps / sqrt(z)`, `eps ~ N(0, I)`, `z ~ Gamma(nu/2, nu/2)`.
//!
//! | notation | here |
//! |---|---|
//! | `nu` | `degrees` |
//! | `mu` | `theta` |
//! | `s(y, z)` | `(z, z y)` |
//! | `T(s)` | `s[1..] / s[0]` |

use whimbrel::parts::core::{ClientData, Error, Result, math};
use whimbrel::parts::models::{LatentModel, Maximum, Rows};

/// The model.
#[derive(Clone, Debug)]
pub struct Location {
    /// `nu`.
    pub degrees: f64,
    /// `d`.
    pub columns: usize,
}

impl LatentModel for Location {
    /// Rows, one after the other.
    type Data = Vec<f64>;
    type Parameters = Vec<f64>;

    fn bind(&self, data: &ClientData) -> Result<Vec<f64>> {
        match data {
            ClientData::Table(table) if table.columns.len() == self.columns => {
                Ok(table.values.clone())
            }
            _ => Err(Error::data("a location needs rows of numbers, of one length")),
        }
    }

    fn rows(&self, data: &Vec<f64>) -> usize {
        data.len() / self.columns
    }

    fn window(&self, _: &Vec<f64>, _: u64, _: usize) -> Result<Option<Vec<f64>>> {
        Ok(None)
    }

    fn statistic_len(&self) -> usize {
        1 + self.columns
    }

    /// The mean of the rows, where the fit starts.
    fn moments(&self, data: &Vec<f64>) -> Result<Vec<f64>> {
        let mut mean = vec![0.0; self.columns];
        for row in data.chunks_exact(self.columns) {
            mean.iter_mut().zip(row).for_each(|(m, y)| *m += y);
        }
        let n = self.rows(data) as f64;
        mean.iter_mut().for_each(|m| *m /= n);
        Ok(mean)
    }

    /// `E[z | y] = (nu + d) / (nu + ||y - mu||^2)`.
    fn expect(
        &self,
        mu: &Vec<f64>,
        data: &Vec<f64>,
        rows: Rows<'_>,
        statistic: &mut [f64],
    ) -> Result<f64> {
        let (d, nu) = (self.columns, self.degrees);
        let all: Vec<u32>;
        let chosen = match rows {
            Rows::These(chosen) => chosen,
            Rows::All => {
                all = (0..self.rows(data) as u32).collect();
                &all
            }
        };
        statistic.fill(0.0);
        let mut log_likelihood = 0.0;
        for &i in chosen {
            let y = &data[i as usize * d..][..d];
            let distance2: f64 = y.iter().zip(mu).map(|(y, m)| (y - m) * (y - m)).sum();
            let z = (nu + d as f64) / (nu + distance2);
            statistic[0] += z;
            statistic[1..].iter_mut().zip(y).for_each(|(s, y)| *s += z * y);
            // Up to a constant of nu and d.
            log_likelihood -= 0.5 * (nu + d as f64) * math::ln(1.0 + distance2 / nu);
        }
        let n = chosen.len() as f64;
        statistic.iter_mut().for_each(|s| *s /= n);
        Ok(log_likelihood / n)
    }

    /// A mean weight that compression made tiny or negative is raised to a floor and counted.
    fn maximize(&self, statistic: &[f64], _: &[f64]) -> Result<Maximum<Vec<f64>>> {
        let weight = statistic[0].max(1e-6);
        let repairs = u32::from(weight > statistic[0]);
        let theta = statistic[1..].iter().map(|s| s / weight).collect();
        Ok(Maximum { theta, repairs, dead: Vec::new() })
    }

    fn penalty(&self, _: &Vec<f64>) -> f64 {
        0.0
    }

    /// `<s, phi> = z (-||mu||^2 / 2) + z y . mu`.
    fn natural(&self, mu: &Vec<f64>) -> Vec<f64> {
        let norm2: f64 = mu.iter().map(|m| m * m).sum();
        std::iter::once(-0.5 * norm2).chain(mu.iter().copied()).collect()
    }

    fn coordinates_len(&self) -> usize {
        self.columns
    }

    fn to_vector(&self, mu: &Vec<f64>) -> Vec<f64> {
        mu.clone()
    }

    fn from_vector(&self, coordinates: &[f64]) -> Result<Vec<f64>> {
        if !coordinates.iter().all(|x| x.is_finite()) {
            return Err(Error::peer("a location must be finite"));
        }
        Ok(coordinates.to_vec())
    }
}
