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
        key.child(0).stream().fill_normal(&mut first.u);
        key.child(1).stream().fill_normal(&mut first.v);
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

    /// `t` times these.
    pub(super) fn scaled(&self, t: f64) -> Self {
        let mut out = self.clone();
        out.intercept *= t;
        out.parts_mut().into_iter().for_each(|part| vector::scale(part, t));
        out
    }

    fn parts(&self) -> [&[f64]; 4] {
        [&self.row_effects, &self.column_effects, &self.u, &self.v]
    }

    fn parts_mut(&mut self) -> [&mut [f64]; 4] {
        [&mut self.row_effects, &mut self.column_effects, &mut self.u, &mut self.v]
    }

    pub(super) fn dot(&self, other: &Self) -> f64 {
        let parts = self.parts().into_iter().zip(other.parts());
        self.intercept * other.intercept + parts.map(|(a, b)| vector::dot(a, b)).sum::<f64>()
    }

    /// `self += t other`
    pub(super) fn add(&mut self, t: f64, other: &Self) {
        self.intercept += t * other.intercept;
        for (own, other) in self.parts_mut().into_iter().zip(other.parts()) {
            vector::axpy(own, t, other);
        }
    }

    /// The coordinates in which the parameters travel: [`LowRank::blocks`] in order.
    pub fn to_vector(&self, model: &LowRank) -> Vec<f64> {
        let effects = model.settings().effects;
        let parts: [(bool, &[f64]); 5] = [
            (effects.has_intercept(), &[self.intercept]),
            (effects.has_row(), &self.row_effects),
            (effects.has_column(), &self.column_effects),
            (true, &self.u),
            (true, &self.v),
        ];
        parts.into_iter().filter(|(there, _)| *there).flat_map(|(_, part)| part).copied().collect()
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
