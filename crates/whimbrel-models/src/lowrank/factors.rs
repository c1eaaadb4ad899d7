//! The parameters of a low-rank model: main effects and factors.

use super::LowRank;
use whimbrel_core::{Error, Key, Result, vector, wire};

/// Standard deviation of the random part of the initial factors.
const START_SD: f64 = 0.1;
/// Smallest norm of a component's factors: alternating steps cannot leave an exact zero.
const FACTOR_MIN: f64 = 1e-7;

/// `mu`, the main effects, `U` and `V`.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    /// `r`.
    pub rank: u32,
    /// `mu`; 0 if the model has no effects.
    pub intercept: f64,
    /// The coefficients of each term, by class of the row and then of the column.
    pub effects: Vec<Vec<f64>>,
    /// `U`, row-major.
    pub u: Vec<f64>,
    /// `V`, row-major: one line per column of the table.
    pub v: Vec<f64>,
}

wire!(Factors { rank, intercept, effects, u, v });

impl Factors {
    /// All zero.
    pub fn zero(model: &LowRank) -> Self {
        Self {
            rank: model.rank() as u32,
            intercept: 0.0,
            effects: model.terms().iter().map(|term| vec![0.0; model.term_len(term)]).collect(),
            u: vec![0.0; model.rows() * model.rank()],
            v: vec![0.0; model.columns() * model.rank()],
        }
    }

    /// Initial parameters: every cell near `mean`, with small random factors, since `U = V = 0` is a
    /// saddle point.
    pub fn start(model: &LowRank, mean: f64, key: Key) -> Self {
        let mut first = Self::zero(model);
        key.child(0).stream().fill_normal(&mut first.u);
        key.child(1).stream().fill_normal(&mut first.v);
        vector::scale(&mut first.u, START_SD);
        vector::scale(&mut first.v, START_SD);
        let theta = model.family().link(mean);
        if !model.terms().is_empty() {
            first.intercept = theta;
        } else {
            // Without an intercept the first component carries the mean.
            let size = theta.abs().sqrt();
            first.u.iter_mut().step_by(model.rank()).for_each(|u| *u += size);
            first.v.iter_mut().step_by(model.rank()).for_each(|v| *v += size.copysign(theta));
        }
        first
    }

    /// Rescales both factors of each component to the same norm. This keeps the product and minimises
    /// `(|u_k|^2 + |v_k|^2)/2`. Alternating steps tend to `U^T U = V^T V`, where the sum over components
    /// is the nuclear norm of the product.
    pub(super) fn balance(&mut self) {
        let r = self.rank as usize;
        for k in 0..r {
            let norm = |a: &[f64]| a.iter().skip(k).step_by(r).map(|x| x * x).sum::<f64>().sqrt();
            let (u, v) = (norm(&self.u), norm(&self.v));
            if u == 0.0 || v == 0.0 {
                continue;
            }
            let common = (u * v).sqrt().max(FACTOR_MIN);
            self.u.iter_mut().skip(k).step_by(r).for_each(|x| *x *= common / u);
            self.v.iter_mut().skip(k).step_by(r).for_each(|x| *x *= common / v);
        }
    }

    /// `u_j` and `v_l`.
    #[inline(always)]
    pub(super) fn lines(&self, row: usize, column: usize) -> [&[f64]; 2] {
        let r = self.rank as usize;
        [&self.u[row * r..][..r], &self.v[column * r..][..r]]
    }

    fn parts(&self) -> impl Iterator<Item = &Vec<f64>> {
        self.effects.iter().chain([&self.u, &self.v])
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut Vec<f64>> {
        self.effects.iter_mut().chain([&mut self.u, &mut self.v])
    }

    /// The parameters as one vector, in the order of [`LowRank::blocks`].
    pub fn to_vector(&self, model: &LowRank) -> Vec<f64> {
        let intercept = (!model.terms().is_empty()).then_some(self.intercept);
        intercept.into_iter().chain(self.parts().flatten().copied()).collect()
    }

    /// The inverse of [`to_vector`](Self::to_vector).
    pub fn from_vector(model: &LowRank, coordinates: &[f64]) -> Result<Self> {
        if coordinates.len() != model.coordinates_len() {
            return Err(Error::peer(format!(
                "{} coordinates given where the model has {}",
                coordinates.len(),
                model.coordinates_len()
            )));
        }
        if !vector::all_finite(coordinates) {
            return Err(Error::peer("the factors contain a number that is not finite"));
        }
        let mut out = Self::zero(model);
        let (intercept, mut rest) = coordinates.split_at(usize::from(!model.terms().is_empty()));
        out.intercept = intercept.first().copied().unwrap_or(0.0);
        for part in out.parts_mut() {
            let (head, tail) = rest.split_at(part.len());
            part.copy_from_slice(head);
            rest = tail;
        }
        Ok(out)
    }
}
