//! The noise of a private fit and its cost.

use super::Common;
use crate::failure::{AtKey, Result};
use crate::family::refuse;
use crate::job::{Job, PrivacyUnit};
use whimbrel_methods::federated::{Release, Unit};
use whimbrel_privacy::accountant::{Guarantee, Releases, auto_delta, gaussian_epsilon};
use whimbrel_privacy::noise::Source;

/// The share of the privacy budget (of `mu^2`) for a start from the rows.
const START_SHARE: f64 = 0.15;
/// The share of the rounds whose states are averaged.
const AVERAGED: f64 = 0.3;

/// Noise and cost of a private fit.
#[derive(Clone, Debug)]
pub struct Private {
    pub guarantee: Guarantee,
    pub unit: PrivacyUnit,
    /// Rows or clients.
    units: u64,
    /// Rounds of the fit.
    rounds: u32,
    /// `mu^2` of the stages before the fit.
    before: f64,
    /// `1/z^2` of a round.
    each: f64,
    source: Source,
}

impl Private {
    /// The noise of a job, if it asks for privacy.
    pub(super) fn of(job: &Job, clients: usize, rows: Option<u64>) -> Result<Option<Self>> {
        let Some(epsilon) = job.privacy.epsilon else { return Ok(None) };
        let unit = job.privacy.unit;
        let units = match (unit, rows) {
            (PrivacyUnit::Client, _) => clients as u64,
            (PrivacyUnit::Row, Some(rows)) => rows,
            (PrivacyUnit::Row, None) => {
                let what = "the noise needs the number of rows";
                return refuse(what, "take `epsilon` out").at("privacy.epsilon");
            }
        };
        let delta = job.privacy.delta.unwrap_or_else(|| auto_delta(units));
        let guarantee = Guarantee { epsilon, delta };
        let rounds = job.method.length.rounds_max().unwrap_or(1);
        let Releases { multiplier, .. } =
            Releases::within(guarantee, rounds, 1.0).at("privacy.epsilon")?;
        let source = match job.privacy.noise_seed {
            Some(seed) => Source::Seed(seed),
            None => Source::secret()?,
        };
        let each = 1.0 / (multiplier * multiplier);
        Ok(Some(Self { guarantee, unit, units, rounds, before: 0.0, each, source }))
    }

    /// The same with a part of the budget for a start from the rows.
    #[must_use]
    pub fn with_start(self) -> Self {
        let all = self.each * f64::from(self.rounds);
        let before = START_SHARE * all;
        Self { before, each: (all - before) / f64::from(self.rounds), ..self }
    }

    /// The noise multiplier of a round.
    pub fn multiplier(&self) -> f64 {
        1.0 / self.each.sqrt()
    }

    /// Epsilon after this number of rounds of the fit.
    pub fn spent(&self, rounds: u32) -> f64 {
        let mu2 = self.before + self.each * f64::from(rounds.min(self.rounds));
        gaussian_epsilon(mu2.sqrt(), self.guarantee.delta)
    }

    /// The steps whose states are averaged.
    pub fn averaged(&self) -> std::ops::Range<u32> {
        let last = (AVERAGED * f64::from(self.rounds)).ceil() as u32;
        self.rounds - last..self.rounds
    }

    /// The noise of every round; `bound` limits a client's value.
    pub fn release(&self, bound: f64) -> Release {
        Release {
            unit: match self.unit {
                PrivacyUnit::Row => Unit::Row,
                PrivacyUnit::Client => Unit::Client { bound },
            },
            releases: Releases { multiplier: self.multiplier(), rate: 1.0 },
            rounds: self.rounds,
            source: self.source,
            stage: 0,
        }
    }

    /// The noise of a start from the rows.
    pub fn start_release(&self, rounds: u32) -> Release {
        let releases = Releases { multiplier: (f64::from(rounds) / self.before).sqrt(), rate: 1.0 };
        Release { unit: Unit::Row, releases, rounds, source: self.source, stage: 1 }
    }

    /// Notes and warnings for vectors of this length, with contributions of norm `bound` at most.
    pub fn messages(&self, dimension: usize, bound: f64) -> (String, Vec<String>) {
        let z = self.multiplier();
        let (unit, d) = (self.unit, dimension as f64);
        // The noise of a mean, in units of the spread of a contribution's coordinates.
        let nu = match unit {
            PrivacyUnit::Row => z * d / self.units as f64,
            PrivacyUnit::Client => z * bound * d.sqrt() / self.units as f64,
        };
        let unit = match unit {
            PrivacyUnit::Row => "row",
            PrivacyUnit::Client => "client",
        };
        let Guarantee { epsilon, delta } = self.guarantee;
        let note = format!(
            "differential privacy of a {unit}: epsilon {epsilon} at delta {delta:.2e} in {} rounds, noise \
             z = {z:.2} times a bound of {bound:.3}, nu = {nu:.2}; plain exact uploads of all clients, no \
             evaluations unless asked for",
            self.rounds
        );
        let mut warnings = Vec::new();
        if nu > 3.0 {
            warnings.push(format!(
                "nu = {nu:.2} is above 3: the noise hides the model; use a diagonal covariance, fewer \
                 components, more {unit}s or a larger epsilon"
            ));
        } else if nu > 1.0 {
            warnings.push(format!(
                "nu = {nu:.2}: the noise costs several per cent of the objective (below 1 about 3 %)"
            ));
        }
        if let Source::Seed(_) = self.source {
            warnings.push(
                "noise_seed makes the noise repeatable: whoever knows it can remove the noise"
                    .into(),
            );
        }
        (note, warnings)
    }
}

impl Common {
    /// The noise of a method whose bound of a contribution is `clip`.
    pub fn release(&self) -> Option<Release> {
        Some(self.private.as_ref()?.release(self.job.privacy.clip?))
    }

    /// The note and the warnings of such a method; refuses a job without `clip`.
    pub fn private_messages(&self, dimension: usize) -> Result<(Option<String>, Vec<String>)> {
        let Some(private) = &self.private else { return Ok((None, Vec::new())) };
        let Some(clip) = self.job.privacy.clip else {
            let what = "the noise needs the largest norm of one contribution";
            return refuse(what, "give `clip` in [privacy]").at("privacy");
        };
        let (note, warnings) = private.messages(dimension, clip);
        Ok((Some(note), warnings))
    }

    /// Whether clients are asked for evaluations: under privacy only if the job asks for them.
    pub(super) fn evaluates(&self) -> bool {
        self.private.is_none() || self.job.method.evaluate_every.is_some()
    }
}
