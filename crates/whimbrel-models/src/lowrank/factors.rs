//! Effects and factors: the parameters of a low-rank table.

use super::{Effects, LowRank};
use whimbrel_core::{Error, Key, Result, vector, wire};

/// Random parts of the first factors have this standard deviation.
const START_SD: f64 = 0.1;

/// `mu`, `a`, `b`, `U` and `V`.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    /// `r`.
    pub rank: u32,
    /// `mu`; 0 where the model has none.
    pub intercept: f64,
    /// `a`, one per row; zeros where the model has none.
    pub row_effects: Vec<f64>,
    /// `b`, one per column; zeros where the model has none.
    pub column_effects: Vec<f64>,
    /// `U`, row after row.
    pub u: Vec<f64>,
    /// `V`, column of the table after column.
    pub v: Vec<f64>,
}

wire!(Factors { rank, intercept, row_effects, column_effects, u, v });

impl Factors {
    /// All zero.
    pub fn zero(model: &LowRank) -> Self {
        Self {
            rank: model.rank() as u32,
            intercept: 0.0,
            row_effects: vec![0.0; model.rows()],
            column_effects: vec![0.0; model.columns()],
            u: vec![0.0; model.rows() * model.rank()],
            v: vec![0.0; model.columns() * model.rank()],
        }
    }

    /// Every cell near one mean, with small random factors: `U = V = 0` would be a saddle.
    pub fn start(model: &LowRank, mean: f64, key: Key) -> Self {
        let mut first = Self::zero(model);
        key.fold(0).stream().fill_normal(&mut first.u);
        key.fold(1).stream().fill_normal(&mut first.v);
        vector::scale(&mut first.u, START_SD);
        vector::scale(&mut first.v, START_SD);
        let theta = model.family().link(mean);
        if model.settings().effects.has_intercept() {
            first.intercept = theta;
        } else {
            // Without an intercept the first component carries the mean.
            let size = theta.abs().sqrt();
            first.u.iter_mut().step_by(model.rank()).for_each(|u| *u += size);
            first.v.iter_mut().step_by(model.rank()).for_each(|v| *v += size.copysign(theta));
        }
        first
    }

    /// `theta_jl`, not boxed.
    #[inline]
    pub fn theta(&self, row: usize, column: usize) -> f64 {
        let r = self.rank as usize;
        let (u, v) = (&self.u[row * r..][..r], &self.v[column * r..][..r]);
        let product: f64 = u.iter().zip(v).map(|(u, v)| u * v).sum();
        self.intercept + self.row_effects[row] + self.column_effects[column] + product
    }

    /// `share` of this table and the rest of another, `theta` by `theta`, where the other has effects
    /// alone.
    pub fn mixed(&self, plain: &Self, share: f64) -> Self {
        let mix = |own: f64, other: f64| share * own + (1.0 - share) * other;
        let list = |own: &[f64], other: &[f64]| -> Vec<f64> {
            own.iter().zip(other).map(|(own, other)| mix(*own, *other)).collect()
        };
        let root = share.sqrt();
        Self {
            rank: self.rank,
            intercept: mix(self.intercept, plain.intercept),
            row_effects: list(&self.row_effects, &plain.row_effects),
            column_effects: list(&self.column_effects, &plain.column_effects),
            u: self.u.iter().map(|u| root * u).collect(),
            v: self.v.iter().map(|v| root * v).collect(),
        }
    }

    /// The coordinates in which the parameters travel: [`LowRank::blocks`] in order.
    pub fn to_vector(&self, model: &LowRank) -> Vec<f64> {
        let effects = model.settings().effects;
        let mut out = Vec::with_capacity(model.coordinates_len());
        if effects.has_intercept() {
            out.push(self.intercept);
        }
        if effects.has_row() {
            out.extend_from_slice(&self.row_effects);
        }
        if effects.has_column() {
            out.extend_from_slice(&self.column_effects);
        }
        out.extend_from_slice(&self.u);
        out.extend_from_slice(&self.v);
        out
    }

    /// Back from the coordinates.
    pub fn from_vector(model: &LowRank, coordinates: &[f64]) -> Result<Self> {
        if coordinates.len() != model.coordinates_len() {
            return Err(Error::peer(format!(
                "the factors have {} numbers where the model has {}",
                coordinates.len(),
                model.coordinates_len()
            )));
        }
        if !vector::all_finite(coordinates) {
            return Err(Error::peer("the factors hold a number that is not finite"));
        }
        let mut out = Self::zero(model);
        let effects: Effects = model.settings().effects;
        let mut rest = coordinates;
        let mut fill = |there: bool, part: &mut [f64]| {
            if there {
                let (head, tail) = rest.split_at(part.len());
                part.copy_from_slice(head);
                rest = tail;
            }
        };
        fill(effects.has_intercept(), std::slice::from_mut(&mut out.intercept));
        fill(effects.has_row(), &mut out.row_effects);
        fill(effects.has_column(), &mut out.column_effects);
        fill(true, &mut out.u);
        fill(true, &mut out.v);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowrank::{Family, Settings};

    fn model(effects: Effects, rank: usize) -> LowRank {
        let settings = Settings { effects, rank, ..Settings::new(5, 4, Family::Poisson) };
        LowRank::new(settings).unwrap()
    }

    #[test]
    fn factors_come_back_from_their_coordinates() {
        for effects in [Effects::None, Effects::Row, Effects::Column, Effects::RowColumn] {
            let model = model(effects, 2);
            let factors = Factors::start(&model, 3.0, Key::root(1));
            let sent = factors.to_vector(&model);
            assert_eq!(sent.len(), model.blocks().iter().sum::<usize>());
            assert_eq!(Factors::from_vector(&model, &sent).unwrap(), factors);
            assert!(Factors::from_vector(&model, &sent[1..]).is_err());
            let mut odd = sent;
            odd[3] = f64::NAN;
            assert!(Factors::from_vector(&model, &odd).is_err());
        }
    }

    #[test]
    fn a_mixed_table_has_mixed_parameters() {
        let model = model(Effects::RowColumn, 2);
        let mut own = Factors::start(&model, 3.0, Key::root(1));
        own.row_effects = vec![0.3, -0.1, 0.0, 2.0, 1.0];
        let mut plain = Factors::start(&self::model(Effects::Column, 0), 5.0, Key::root(2));
        plain.column_effects = vec![1.0, 0.5, -1.0, 0.0];
        let mixed = own.mixed(&plain, 0.25);
        for cell in 0..20 {
            let theta = |of: &Factors| of.theta(cell / 4, cell % 4);
            let wanted = 0.25 * theta(&own) + 0.75 * theta(&plain);
            assert!((theta(&mixed) - wanted).abs() < 1e-14);
        }
    }

    #[test]
    fn the_start_is_near_the_mean_with_and_without_an_intercept() {
        for effects in [Effects::None, Effects::RowColumn] {
            let model = model(effects, 2);
            let factors = Factors::start(&model, 20.0, Key::root(2));
            let theta = factors.theta(3, 1);
            assert!((theta - 20f64.ln()).abs() < 1.0, "{theta}");
            assert!(factors.u.iter().all(|u| *u != 0.0));
        }
    }
}
