//! The sequence of Newton steps of one model.

use whimbrel_core::linalg::{packed_index, packed_len};
use whimbrel_core::{Error, Result, wire};
use whimbrel_models::glm::inference::{Dependent, Factored};
use whimbrel_models::glm::{Family, Model};

/// The fit ends once `λ²` is below this: the step that remains is below 1e-8 standard errors, and the one
/// after it below 1e-16.
pub(super) const DECREMENT_MAX: f64 = 1e-16;
/// Relative decrease of the log-likelihood that rounding can cause.
const ROUNDING: f64 = 1e-12;
/// Halvings of a step after which no progress is possible.
const HALVINGS_MAX: u32 = 40;
/// A coefficient whose variance grew by this factor is infinite: each Newton step towards infinity divides
/// its information by e.
const SEPARATED: f64 = 1e8;
/// Share of the variance of an exact fit's residuals.
const EXACT: f64 = 1e-12;
/// `ln alpha` below which the negative binomial is the Poisson model.
const LN_ALPHA_MIN: f64 = -16.0;

/// The state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// Not ended.
    None,
    Converged,
    /// Coefficients are infinite.
    Separated,
    /// Rounds ran out, or no step increased the likelihood.
    Stopped,
}

/// The advice for a fit that has not converged.
pub(super) fn remedy(min_group: Option<u32>) -> &'static str {
    match min_group {
        None | Some(1) => "raise `rounds`",
        _ => {
            "raise `rounds`; if that does not help, leave out clients with few rows, which stop it under min_group"
        }
    }
}

impl End {
    pub(super) fn of(code: u8) -> Self {
        [Self::None, Self::Converged, Self::Separated, Self::Stopped][usize::from(code.min(3))]
    }
}

impl whimbrel_core::Wire for End {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Ok(Self::of(u8::take(from)?))
    }
}

/// Newton steps with halving.
#[derive(Clone, Debug)]
pub struct Path {
    /// Parameters that stay at their first value, by place.
    pub(super) fixed: Vec<u32>,
    /// The last accepted point.
    pub(super) beta: Vec<f64>,
    /// The point of the next exchange.
    pub(super) trial: Vec<f64>,
    pub(super) direction: Vec<f64>,
    step: f64,
    halvings: u32,
    /// Penalised log-likelihood at `beta`; NaN before the first exchange.
    pub(super) log_likelihood: f64,
    /// The same at the first point.
    pub(super) first: f64,
    pub(super) decrement: f64,
    /// Variances at the first point.
    variances: Vec<f64>,
    pub(super) separated: Vec<u32>,
    pub(super) end: End,
}

wire!(Path {
    fixed,
    beta,
    trial,
    direction,
    step,
    halvings,
    log_likelihood,
    first,
    decrement,
    variances,
    separated,
    end
});

impl Path {
    /// A path from `beta` with the parameters at these places fixed at zero.
    pub(super) fn new(mut beta: Vec<f64>, zero: &[usize]) -> Self {
        zero.iter().for_each(|at| beta[*at] = 0.0);
        Self {
            fixed: zero.iter().map(|at| *at as u32).collect(),
            direction: vec![0.0; beta.len()],
            trial: beta.clone(),
            beta,
            step: 1.0,
            halvings: 0,
            log_likelihood: f64::NAN,
            first: f64::NAN,
            decrement: f64::NAN,
            variances: Vec::new(),
            separated: Vec::new(),
            end: End::None,
        }
    }

    /// Goes on from the last accepted point with other rows.
    pub(super) fn reopen(&mut self) {
        self.trial.clone_from(&self.beta);
        self.log_likelihood = f64::NAN;
        self.end = End::None;
    }

    pub(super) fn give_up(&mut self) {
        if self.end == End::None {
            self.end = End::Stopped;
        }
    }

    /// The parameters of levels without rows.
    pub(super) fn absent(&self, model: &Model) -> Vec<usize> {
        let fixed = self.fixed.iter().map(|at| *at as usize);
        fixed.filter(|at| model.column(*at).is_some()).collect()
    }

    /// The free parameters.
    pub(super) fn free(&self) -> Vec<usize> {
        (0..self.beta.len()).filter(|at| !self.fixed.contains(&(*at as u32))).collect()
    }

    /// Accepts the trial and moves on, or halves the step. `found` has log-likelihood, invalid rows,
    /// score and information at the trial, and rows have this total weight.
    pub(super) fn step(
        &mut self,
        model: &Model,
        penalty: &[f64],
        found: &[f64],
        weight: f64,
    ) -> Result<()> {
        let p = self.beta.len();
        let cost: f64 = self.trial.iter().zip(penalty).map(|(b, r)| 0.5 * r * b * b).sum();
        let (log_likelihood, invalid) = (found[0] - cost, found[1]);
        let slack = ROUNDING * (1.0 + self.log_likelihood.abs());
        if invalid > 0.0 || log_likelihood < self.log_likelihood - slack {
            return self.halve(invalid);
        }
        self.beta.clone_from(&self.trial);
        self.log_likelihood = log_likelihood;
        (self.step, self.halvings) = (1.0, 0);
        let alpha = p as u32 - 1;
        let is_zero = model.family.has_alpha() && self.beta[p - 1] < LN_ALPHA_MIN;
        if is_zero && !self.fixed.contains(&alpha) {
            self.fixed.push(alpha);
        }
        let score: Vec<f64> =
            (0..p).map(|at| found[2 + at] - penalty[at] * self.beta[at]).collect();
        let information = penalised(&found[2 + p..], penalty);
        let Some(factored) = self.factored(model, &information)? else { return Ok(()) };
        let free = self.free();
        let own: Vec<f64> = free.iter().map(|at| score[*at]).collect();
        let direction = factored.solve(&own);
        self.decrement = own.iter().zip(&direction).map(|(u, d)| u * d).sum();
        // Relative to the residual variance; an exact fit has none.
        let rest = -2.0 * self.log_likelihood.min(EXACT * self.first) / weight;
        if model.family == Family::Gaussian && rest > 0.0 {
            self.decrement /= rest;
        }
        self.direction.fill(0.0);
        free.iter().zip(direction).for_each(|(at, d)| self.direction[*at] = d);
        self.check_separation(model, &factored, &free);
        self.trial = self.beta.iter().zip(&self.direction).map(|(b, d)| b + d).collect();
        if self.end == End::None && self.decrement <= DECREMENT_MAX {
            self.end = End::Converged;
            self.beta.clone_from(&self.trial);
        }
        Ok(())
    }

    fn halve(&mut self, invalid: f64) -> Result<()> {
        if self.log_likelihood.is_nan() {
            let what = format!("{invalid} rows have no likelihood at the first coefficients");
            return Err(Error::numerical(what).hint(
                "the model needs an intercept; if it has one, clients with few rows refuse under \
                 min_group: leave them out, or write min_group = 1 in [privacy]",
            ));
        }
        self.step *= 0.5;
        self.halvings += 1;
        if self.halvings > HALVINGS_MAX {
            self.end = End::Stopped;
        }
        let moved = self.beta.iter().zip(&self.direction).map(|(b, d)| b + self.step * d);
        self.trial = moved.collect();
        Ok(())
    }

    /// The factor of the free parameters' information. A singular matrix at the first point names
    /// collinear columns; later, `None` ends the path at infinite coefficients.
    fn factored(&mut self, model: &Model, information: &[f64]) -> Result<Option<Factored>> {
        let free = self.free();
        let own = select(information, &free);
        let p = free.len();
        let dependent = match Factored::new(&own, p) {
            Ok(factored) => return Ok(Some(factored)),
            Err(dependent) => dependent,
        };
        let has_alpha = model.family.has_alpha() && free.last() == Some(&(self.beta.len() - 1));
        if has_alpha {
            // Far from the maximum the curvature in ln alpha may have the wrong sign.
            let mut apart = own;
            apart[packed_len(p - 1)..packed_len(p) - 1].fill(0.0);
            let last = &mut apart[packed_len(p) - 1];
            *last = last.abs().max(1e-3);
            if let Ok(factored) = Factored::new(&apart, p) {
                return Ok(Some(factored));
            }
        }
        if self.variances.is_empty() {
            return Err(collinear(model, &free, &dependent));
        }
        self.separated = vec![free[dependent.column] as u32];
        self.end = if model.family.can_separate() { End::Separated } else { End::Stopped };
        Ok(None)
    }

    fn check_separation(&mut self, model: &Model, factored: &Factored, free: &[usize]) {
        let (p, inverse) = (free.len(), factored.inverse());
        let variances: Vec<f64> = (0..p).map(|i| inverse[i * p + i]).collect();
        if self.variances.is_empty() {
            self.first = self.log_likelihood;
        }
        if self.variances.len() != p {
            self.variances = variances;
        } else if model.family.can_separate() {
            let growth = |i: usize| variances[i] / self.variances[i];
            // Coefficients that diverge together pass the bound within a few steps of each other.
            let is_one = (0..p).any(|i| growth(i) > SEPARATED);
            let grown = (0..p).filter(|i| is_one && growth(*i) > SEPARATED.sqrt());
            self.separated = grown.map(|i| free[i] as u32).collect();
            // The intercept of centred columns moves with every infinite slope.
            let intercepts = model.intercepts();
            let is_slope = |at: &u32| !intercepts.contains(&(*at as usize));
            if self.separated.iter().any(is_slope) {
                self.separated.retain(is_slope);
            }
            if !self.separated.is_empty() {
                self.end = End::Separated;
            }
        }
    }
}

/// Adds the penalties to the diagonal.
pub(super) fn penalised(information: &[f64], penalty: &[f64]) -> Vec<f64> {
    let mut out = information[..packed_len(penalty.len())].to_vec();
    penalty.iter().enumerate().for_each(|(at, r)| out[packed_index(at, at)] += r);
    out
}

/// The rows and columns of a packed matrix at these places.
pub(super) fn select(packed: &[f64], places: &[usize]) -> Vec<f64> {
    let pairs =
        places.iter().enumerate().flat_map(|(i, a)| places[..=i].iter().map(move |b| (a, b)));
    pairs.map(|(a, b)| packed[packed_index(*a, *b)]).collect()
}

fn collinear(model: &Model, free: &[usize], dependent: &Dependent) -> Error {
    let names = model.names();
    let name = |at: &usize| format!("{:?}", names[free[*at]]);
    let own = name(&dependent.column);
    let what = match &dependent.on[..] {
        [] if model.by_client => format!("{own} does not vary within clients"),
        [] => format!("{own} carries no information"),
        on => {
            let on: Vec<String> = on.iter().map(name).collect();
            format!("{own} is a linear combination of {}", on.join(", "))
        }
    };
    Error::data(what)
        .hint("leave one of these columns out: list the others with `columns` in [data]")
}
