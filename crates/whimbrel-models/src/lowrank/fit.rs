//! A fitted table: what is expected of a cell, and how sure that is.

use super::ceiling::{Ceiling, capped};
use super::interval::{self, Calibration, Group, NORMAL_QUANTILE};
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

impl LowRankFit {
    /// `theta_jl`, below its ceiling and in its box.
    pub fn theta(&self, row: usize, column: usize) -> f64 {
        self.theta_with(row, column, 0.0)
    }

    /// The same with something added under the box alone: a client's own effect.
    pub fn theta_with(&self, row: usize, column: usize, effect: f64) -> f64 {
        self.model.family().boxed(self.below_ceiling(row, column) + effect)
    }

    /// `theta_jl`, below its ceiling.
    pub(super) fn below_ceiling(&self, row: usize, column: usize) -> f64 {
        capped(self.ceiling.as_ref(), self.factors.theta(row, column), row, column)
    }

    /// What is expected of a cell.
    pub fn mean(&self, row: usize, column: usize) -> f64 {
        self.model.family().mean(self.theta(row, column))
    }

    /// The standard deviation of `theta_jl` itself; 0 where errors on held-out cells tell.
    pub fn spread(&self, row: usize, column: usize) -> f64 {
        let phi = self.calibration.map_or(1.0, |calibration| calibration.dispersion);
        self.uncertainty
            .as_ref()
            .map_or(0.0, |sure| sure.spread(&self.model, &self.factors, [row, column], phi))
    }

    /// The standard deviation of a value around its mean, with the dispersion that was found.
    pub fn sd(&self, row: usize, column: usize) -> f64 {
        self.sd_of(self.theta(row, column), self.spread(row, column))
    }

    /// An interval that is to hold nine values in ten.
    pub fn interval(&self, row: usize, column: usize) -> (f64, f64) {
        self.interval_of(self.theta(row, column), self.spread(row, column))
    }

    /// The standard deviation of a value with this `theta`, which is known up to `spread`.
    pub fn sd_of(&self, theta: f64, spread: f64) -> f64 {
        let family = self.model.family();
        let mean = family.mean(theta);
        let noise = self.dispersion_of(mean).sqrt() * interval::scale(family, mean);
        // The longer side: the deviation of the exponential of a normal number is longer still.
        let [down, up] = [theta - spread, theta + spread].map(|theta| family.mean(theta) - mean);
        let drift = up.max(-down);
        (noise * noise + drift * drift).sqrt()
    }

    /// The interval of a value with this `theta`, which is known up to `spread`, within the range
    /// of the family: on each side the root of the sum of squares of what the noise and what the
    /// mean's own error reach.
    pub fn interval_of(&self, theta: f64, spread: f64) -> (f64, f64) {
        let family = self.model.family();
        let mean = family.mean(theta);
        let quantile =
            self.calibration.map_or(NORMAL_QUANTILE, |c| c.group_of(family, mean).quantile);
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

    /// A value drawn from the fitted model: for a multiple imputation.
    pub fn draw(&self, row: usize, column: usize, stream: &mut Stream) -> f64 {
        self.draw_of(self.theta(row, column), self.spread(row, column), stream)
    }

    /// A value with this `theta`, which is known up to `spread`, drawn from the fitted model.
    /// Counts with a dispersion above one have a gamma-distributed rate, so that their variance is
    /// dispersion times mean.
    pub fn draw_of(&self, theta: f64, spread: f64, stream: &mut Stream) -> f64 {
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
        let number = |artifact: Artifact, name, value| artifact.with(name, &[], vec![value]);
        let mut out = Artifact::new(KIND)
            .with("intercept", &[], vec![*intercept])
            .with("row_effects", &[rows], row_effects.clone())
            .with("column_effects", &[columns], column_effects.clone())
            .with("u", &[rows, rank], u.clone())
            .with("v", &[columns, rank], v.clone());
        out = number(out, "family", family.code());
        out = number(out, "effects", f64::from(effects as u8));
        out = number(out, "lambda", lambda);
        out = number(out, "lambda_effects", lambda_effects);
        out = number(out, "clients", f64::from(self.clients));
        out = number(out, "unit_variance", f64::from(u8::from(variance == Variance::Unit)));
        if let Some(ceiling) = &self.ceiling {
            out = out.with("row_ceiling", &[rows], ceiling.rows.clone()).with(
                "column_ceiling",
                &[columns],
                ceiling.columns.clone(),
            );
        }
        if let Some(calibration) = self.calibration {
            out = number(out, "dispersion", calibration.dispersion);
            let groups = calibration.groups();
            let column = |of: fn(&Group) -> f64| groups.iter().map(of).collect();
            out = out
                .with("interval_octaves", &[groups.len()], column(|g| f64::from(g.last)))
                .with("interval_quantiles", &[groups.len()], column(|g| g.quantile))
                .with("interval_dispersions", &[groups.len()], column(|g| g.dispersion));
            out = number(out, "calibrated", f64::from(u8::from(calibration.calibrated)));
            out = number(out, "doubtful", f64::from(u8::from(calibration.doubtful)));
            if let Some(coverage) = calibration.coverage {
                out = number(out, "coverage", coverage);
            }
        }
        if let Some(Uncertainty { rows: of_rows, columns: of_columns }) = &self.uncertainty {
            out = out.with("row_uncertainty", &[rows, of_rows.len() / rows], of_rows.clone()).with(
                "column_uncertainty",
                &[columns, of_columns.len() / columns],
                of_columns.clone(),
            );
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
        let number = |name: &str| -> Result<f64> {
            let values = &tensor(name)?.values;
            values.first().copied().ok_or_else(|| Error::data(format!("`{name}` is empty")))
        };
        let values = |name: &str, length: usize| -> Result<Vec<f64>> {
            let values = &tensor(name)?.values;
            if values.len() != length {
                return Err(Error::data(format!(
                    "`{name}` has {} numbers where the model needs {length}",
                    values.len()
                )));
            }
            Ok(values.clone())
        };
        let (rows, columns) =
            (tensor("row_effects")?.values.len(), tensor("column_effects")?.values.len());
        let rank = tensor("u")?.shape.last().map_or(0, |r| *r as usize);
        let settings = Settings {
            rows,
            columns,
            rank,
            family: Family::from_code(number("family")?)?,
            effects: effects_of(number("effects")?)?,
            lambda: number("lambda")?,
            lambda_effects: number("lambda_effects")?,
            variance: match number("unit_variance")? {
                0.0 => Variance::Estimated,
                _ => Variance::Unit,
            },
        };
        let factors = Factors {
            rank: rank as u32,
            intercept: number("intercept")?,
            row_effects: values("row_effects", rows)?,
            column_effects: values("column_effects", columns)?,
            u: values("u", rows * rank)?,
            v: values("v", columns * rank)?,
        };
        let calibration = match artifact.tensor("interval_octaves") {
            None => None,
            Some(octaves) => {
                let count = octaves.values.len();
                let quantiles = values("interval_quantiles", count)?;
                let dispersions = values("interval_dispersions", count)?;
                let rest = quantiles.into_iter().zip(dispersions);
                let group = |(last, (quantile, dispersion)): (&f64, (f64, f64))| Group {
                    last: *last as u32,
                    quantile,
                    dispersion,
                };
                let mut all = Calibration::from_parts(
                    number("dispersion")?,
                    &octaves.values.iter().zip(rest).map(group).collect::<Vec<_>>(),
                    number("calibrated")? != 0.0,
                    number("coverage").ok(),
                )?;
                all.doubtful = number("doubtful").is_ok_and(|doubtful| doubtful != 0.0);
                Some(all)
            }
        };
        let packed = |effect: bool| packed_len(rank + usize::from(effect));
        let uncertainty = match artifact.tensor("row_uncertainty") {
            None => None,
            Some(_) => Some(Uncertainty {
                rows: values("row_uncertainty", rows * packed(settings.effects.has_row()))?,
                columns: values(
                    "column_uncertainty",
                    columns * packed(settings.effects.has_column()),
                )?,
            }),
        };
        let ceiling = match artifact.tensor("row_ceiling") {
            None => None,
            Some(_) => Some(Ceiling {
                rows: values("row_ceiling", rows)?,
                columns: values("column_ceiling", columns)?,
            }),
        };
        let clients = number("clients")? as u32;
        let model = LowRank::new(settings)?;
        Ok(Self { model, factors, ceiling, clients, calibration, uncertainty })
    }

    fn dispersion_of(&self, mean: f64) -> f64 {
        let family = self.model.family();
        self.calibration.map_or(1.0, |calibration| calibration.group_of(family, mean).dispersion)
    }
}

fn effects_of(code: f64) -> Result<Effects> {
    [Effects::None, Effects::Row, Effects::Column, Effects::RowColumn]
        .into_iter()
        .find(|effects| f64::from(*effects as u8) == code)
        .ok_or_else(|| Error::data(format!("{code} stands for no kind of effects")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Key;

    fn fit(family: Family) -> LowRankFit {
        let settings = Settings { effects: Effects::RowColumn, ..Settings::new(6, 5, family) };
        let model = LowRank::new(settings).unwrap();
        let factors = Factors::start(&model, 0.7, Key::root(3));
        let group = |last, quantile| Group { last, quantile, dispersion: 2.5 };
        let groups = [group(9, 2.0), group(31, 3.0)];
        let calibration = Calibration::from_parts(2.5, &groups, true, Some(0.9)).unwrap();
        let ceiling = Ceiling::over(&model, &factors, [3, 8].into_iter());
        let calibration = Some(calibration);
        LowRankFit { model, factors, ceiling, clients: 4, calibration, uncertainty: None }
    }

    #[test]
    fn a_fit_comes_back_from_its_artifact() {
        for family in Family::ALL {
            let mut fit = fit(family);
            assert_eq!(LowRankFit::from_artifact(&fit.to_artifact()).unwrap(), fit);
            fit.calibration = None;
            let sure = Uncertainty::new(&fit.model, &fit.factors, 4, 1.0, &[(3, 1), (8, 2)]);
            fit.uncertainty = Some(sure.unwrap());
            assert_eq!(LowRankFit::from_artifact(&fit.to_artifact()).unwrap(), fit);
        }
        let mut artifact = fit(Family::Gaussian).to_artifact();
        artifact.tensors.retain(|t| t.name != "v");
        assert!(LowRankFit::from_artifact(&artifact).is_err());
    }

    /// 20,000 draws: the mean has a standard error of 0.8 %, the variance of about 2 %; five of
    /// each are allowed.
    #[test]
    fn draws_have_the_mean_and_the_variance_of_the_fit() {
        for family in Family::ALL {
            let fit = fit(family);
            let mean = fit.mean(2, 3);
            let wanted = match family {
                Family::Bernoulli => mean * (1.0 - mean),
                _ => 2.5 * family.variance(mean),
            };
            let mut stream = Key::root(4).stream();
            let draws: Vec<f64> = (0..20_000).map(|_| fit.draw(2, 3, &mut stream)).collect();
            let average = draws.iter().sum::<f64>() / 20_000.0;
            let spread = draws.iter().map(|d| (d - average).powi(2)).sum::<f64>() / 20_000.0;
            let error = (wanted / 20_000.0).sqrt();
            assert!((average - mean).abs() < 5.0 * error, "{family:?} {average} {mean}");
            assert!((spread / wanted - 1.0).abs() < 0.12, "{family:?} {spread} {wanted}");
        }
    }

    #[test]
    fn intervals_stay_in_the_range_of_the_family() {
        let of = |family: Family, spread| {
            let fit = fit(family);
            fit.interval_of(family.link(0.1), spread)
        };
        assert_eq!((of(Family::Poisson, 0.0).0, of(Family::Bernoulli, 9.0)), (0.0, (0.0, 1.0)));
        assert_eq!(of(Family::Gaussian, 0.0), (0.1 - 2.0, 0.1 + 2.0));
        // 2 for the noise and 1.645 for a mean known up to 1.
        let (low, high) = of(Family::Gaussian, 1.0);
        let reach = (4.0 + NORMAL_QUANTILE * NORMAL_QUANTILE).sqrt();
        assert!((high - 0.1 - reach).abs() < 1e-12 && (low - 0.1 + reach).abs() < 1e-12);
        assert!((fit(Family::Gaussian).sd_of(0.1, 1.0) - 3.5f64.sqrt()).abs() < 1e-12);
        // Of a count with a mean of 1 that may be e: the noise, and the longer side of the mean's.
        let (noise, drift) = (2.5 * 1.05, (1f64.exp() - 1.0).powi(2));
        assert!((fit(Family::Poisson).sd_of(0.0, 1.0) - (noise + drift).sqrt()).abs() < 1e-12);
    }
}
