//! A fitted table: what is expected of a cell, and how sure that is.

use super::ceiling::{Ceiling, capped};
use super::interval::{self, Calibration, Group, NORMAL_QUANTILE};
use super::side::Side;
use super::uncertainty::spread_of;
use super::{Effects, Factors, Family, LowRank, Settings, Uncertainty, Variance};
use whimbrel_core::linalg::packed_len;
use whimbrel_core::method::{Artifact, Tensor};
use whimbrel_core::{Error, Result, Stream};

/// The kind of the artifact.
pub const KIND: &str = "low-rank";

/// A low-rank fit, as read from or written to an artifact.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankFit {
    /// The model.
    pub model: LowRank,
    /// Effects and factors.
    pub factors: Factors,
    /// What no estimate of a count goes beyond.
    pub ceiling: Option<Ceiling>,
    /// `n`, which the penalties weigh against the cells: a row is fitted with ridge `n lambda`.
    pub clients: u32,
    /// How far off values are; none where a run stopped before it was known.
    pub calibration: Option<Calibration>,
    /// How sure the parameters are. Kept where nothing was held out: errors on held-out cells have
    /// it in them already.
    pub uncertainty: Option<Uncertainty>,
}

/// The natural parameter of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// `theta`.
    pub theta: f64,
    /// Its standard deviation.
    pub spread: f64,
}

impl LowRankFit {
    /// `theta_jl`, below its ceiling and in its box.
    pub fn theta(&self, row: usize, column: usize) -> f64 {
        self.model.family().boxed(self.below_ceiling(row, column))
    }

    /// `theta_jl`, below its ceiling.
    pub(super) fn below_ceiling(&self, row: usize, column: usize) -> f64 {
        capped(self.ceiling.as_ref(), self.factors.theta(row, column), row, column)
    }

    /// What is expected of a cell.
    pub fn mean(&self, row: usize, column: usize) -> f64 {
        self.model.family().mean(self.theta(row, column))
    }

    /// The parameter of a cell, with a client's own effect added under the box alone. It has no
    /// spread where errors on held-out cells tell.
    pub fn parameter(&self, row: usize, column: usize, effect: f64) -> Parameter {
        let theta = self.model.family().boxed(self.below_ceiling(row, column) + effect);
        let of =
            |sure: &Uncertainty| sure.spread(&self.model, &self.factors, [row, column], self.phi());
        Parameter { theta, spread: self.uncertainty.as_ref().map_or(0.0, of) }
    }

    /// A parameter with another variance beside its own.
    pub fn widened(&self, Parameter { theta, spread }: Parameter, variance: f64) -> Parameter {
        let spread = spread_of(self.model.family(), spread * spread + variance);
        Parameter { theta, spread }
    }

    /// The standard deviation of a value around its mean, with the dispersion that was found.
    pub fn sd(&self, Parameter { theta, spread }: Parameter) -> f64 {
        let family = self.model.family();
        let mean = family.mean(theta);
        let noise = self.dispersion_of(mean).sqrt() * interval::scale(family, mean);
        // The longer side: the deviation of the exponential of a normal number is longer still.
        let [down, up] = [theta - spread, theta + spread].map(|theta| family.mean(theta) - mean);
        let drift = up.max(-down);
        (noise * noise + drift * drift).sqrt()
    }

    /// An interval that is to hold nine values in ten, within the range of the family: on each side
    /// the root of the sum of squares of what the noise and what the mean's own error reach.
    pub fn interval(&self, Parameter { theta, spread }: Parameter) -> (f64, f64) {
        let family = self.model.family();
        let mean = family.mean(theta);
        let quantile = self.group_of(mean).map_or(NORMAL_QUANTILE, |group| group.quantile);
        let noise = quantile * interval::scale(family, mean);
        let reach = |theta| {
            let drift: f64 = family.mean(theta) - mean;
            (noise * noise + drift * drift).sqrt()
        };
        let (low, high) = match family {
            Family::Gaussian => (f64::NEG_INFINITY, f64::INFINITY),
            Family::Poisson => (0.0, f64::INFINITY),
            Family::Bernoulli => (0.0, 1.0),
        };
        let [down, up] = [-NORMAL_QUANTILE, NORMAL_QUANTILE].map(|z| reach(theta + z * spread));
        ((mean - down).max(low), (mean + up).min(high))
    }

    /// A value drawn from the fitted model, for a multiple imputation: the parameter first. Counts
    /// with a dispersion above one have a gamma-distributed rate, so that their variance is dispersion
    /// times mean.
    pub fn draw(&self, Parameter { theta, spread }: Parameter, stream: &mut Stream) -> f64 {
        let family = self.model.family();
        let theta = if spread > 0.0 { theta + spread * stream.normal() } else { theta };
        let mean = family.mean(theta);
        let dispersion = self.dispersion_of(mean);
        let excess = dispersion - 1.0;
        if family == Family::Poisson && excess > 0.0 && mean > 0.0 {
            let rate = excess * stream.gamma(mean / excess);
            return stream.poisson(rate) as f64;
        }
        family.draw(mean, dispersion.sqrt(), stream)
    }

    /// The fit as named tensors.
    pub fn to_artifact(&self) -> Artifact {
        let Settings { rows, columns, rank, family, effects, lambda, lambda_effects, variance } =
            *self.model.settings();
        let Factors { intercept, row_effects, column_effects, u, v, .. } = &self.factors;
        let out = Artifact::new(KIND)
            .with("row_effects", &[rows], row_effects.clone())
            .with("column_effects", &[columns], column_effects.clone())
            .with("u", &[rows, rank], u.clone())
            .with("v", &[columns, rank], v.clone());
        let number = |out: Artifact, (name, value): (&str, f64)| out.with(name, &[], vec![value]);
        let numbers = [
            ("intercept", *intercept),
            ("family", family.code()),
            ("effects", f64::from(effects as u8)),
            ("lambda", lambda),
            ("lambda_effects", lambda_effects),
            ("clients", f64::from(self.clients)),
            ("unit_variance", f64::from(u8::from(variance == Variance::Unit))),
        ];
        let mut out = numbers.into_iter().fold(out, number);
        if let Some(Ceiling { rows: of_rows, columns: of_columns }) = &self.ceiling {
            out = out.with("row_ceiling", &[rows], of_rows.clone());
            out = out.with("column_ceiling", &[columns], of_columns.clone());
        }
        if let Some(Calibration { dispersion, groups, calibrated, coverage, doubtful }) =
            &self.calibration
        {
            let column = |of: fn(&Group) -> f64| groups.iter().map(of).collect();
            out = out
                .with("interval_octaves", &[groups.len()], column(|g| f64::from(g.last)))
                .with("interval_quantiles", &[groups.len()], column(|g| g.quantile))
                .with("interval_dispersions", &[groups.len()], column(|g| g.dispersion));
            let flags = [
                ("dispersion", *dispersion),
                ("calibrated", f64::from(u8::from(*calibrated))),
                ("doubtful", f64::from(u8::from(*doubtful))),
            ];
            let coverage = coverage.map(|coverage| ("coverage", coverage));
            out = flags.into_iter().chain(coverage).fold(out, number);
        }
        if let Some(Uncertainty { rows: of_rows, columns: of_columns }) = &self.uncertainty {
            let shape = |lines: usize, all: &[f64]| [lines, all.len() / lines];
            out = out.with("row_uncertainty", &shape(rows, of_rows), of_rows.clone());
            out = out.with("column_uncertainty", &shape(columns, of_columns), of_columns.clone());
        }
        out
    }

    /// Reads an artifact back.
    pub fn from_artifact(artifact: &Artifact) -> Result<Self> {
        if artifact.kind != KIND {
            return Err(Error::data(format!("a model of kind `{}` has no cells", artifact.kind)));
        }
        let tensor = |name: &str| -> Result<&Tensor> {
            artifact.tensor(name).ok_or_else(|| Error::data(format!("the model lacks `{name}`")))
        };
        let values = |name: &str, length: usize| -> Result<Vec<f64>> {
            let values = &tensor(name)?.values;
            match values.len() == length {
                true => Ok(values.clone()),
                false => Err(Error::data(format!(
                    "`{name}` has {} numbers where the model needs {length}",
                    values.len()
                ))),
            }
        };
        let number = |name: &str| -> Result<f64> { Ok(values(name, 1)?[0]) };
        let has = |name: &str| artifact.tensor(name).is_some();
        let length = |name: &str| -> Result<usize> { Ok(tensor(name)?.values.len()) };
        let (rows, columns) = (length("row_effects")?, length("column_effects")?);
        let rank = tensor("u")?.shape.last().map_or(0, |r| *r as usize);
        let model = LowRank::new(Settings {
            rows,
            columns,
            rank,
            family: Family::from_code(number("family")?)?,
            effects: Effects::from_code(number("effects")?)
                .ok_or_else(|| Error::data("the model has no known kind of effects"))?,
            lambda: number("lambda")?,
            lambda_effects: number("lambda_effects")?,
            variance: match number("unit_variance")? {
                0.0 => Variance::Estimated,
                _ => Variance::Unit,
            },
        })?;
        let factors = Factors {
            rank: rank as u32,
            intercept: number("intercept")?,
            row_effects: values("row_effects", rows)?,
            column_effects: values("column_effects", columns)?,
            u: values("u", rows * rank)?,
            v: values("v", columns * rank)?,
        };
        let mut calibration = None;
        if has("interval_octaves") {
            let count = length("interval_octaves")?.max(1);
            let octaves = values("interval_octaves", count)?;
            let quantiles = values("interval_quantiles", count)?;
            let dispersions = values("interval_dispersions", count)?;
            let group = |i: usize| Group {
                last: octaves[i] as u32,
                quantile: quantiles[i],
                dispersion: dispersions[i],
            };
            calibration = Some(Calibration {
                dispersion: number("dispersion")?,
                groups: (0..count).map(group).collect(),
                calibrated: number("calibrated")? != 0.0,
                coverage: number("coverage").ok(),
                doubtful: number("doubtful")? != 0.0,
            });
        }
        let packed = |side: Side| packed_len(model.unknowns(side));
        let uncertainty = match has("row_uncertainty") {
            false => None,
            true => Some(Uncertainty {
                rows: values("row_uncertainty", rows * packed(Side::Row))?,
                columns: values("column_uncertainty", columns * packed(Side::Column))?,
            }),
        };
        let ceiling = match has("row_ceiling") {
            false => None,
            true => Some(Ceiling {
                rows: values("row_ceiling", rows)?,
                columns: values("column_ceiling", columns)?,
            }),
        };
        let clients = number("clients")? as u32;
        Ok(Self { model, factors, ceiling, clients, calibration, uncertainty })
    }

    /// The dispersion over all cells.
    pub(super) fn phi(&self) -> f64 {
        self.calibration.as_ref().map_or(1.0, |calibration| calibration.dispersion)
    }

    /// What is known about cells with such a mean.
    fn group_of(&self, mean: f64) -> Option<Group> {
        Some(self.calibration.as_ref()?.group_of(self.model.family(), mean))
    }

    fn dispersion_of(&self, mean: f64) -> f64 {
        self.group_of(mean).map_or(1.0, |group| group.dispersion)
    }
}
