//! The privacy of a fit: rules on its messages, and its noise with the cost.

use super::{Common, Plan};
use crate::failure::{AtKey, Result};
use crate::family::refuse;
use crate::job::{Job, PrivacyUnit};
use crate::load::Loaded;
use whimbrel_core::{ClientData, FeatureRows, Labelled};
use whimbrel_engine::{Agreement, Consent, Stopping};
use whimbrel_methods::federated::{Release, Unit};
use whimbrel_methods::masked::Masks;
use whimbrel_methods::settings::Privacy;
use whimbrel_methods::sgd::Sampling;
use whimbrel_nn::Learner;
use whimbrel_privacy::accountant::{
    Guarantee, Releases, auto_delta, gaussian_epsilon, zcdp_epsilon,
};
use whimbrel_privacy::noise::{NoiseShare, Source};

/// The share of the privacy budget (of `mu^2`) for a start from the rows.
const START_SHARE: f64 = 0.15;
/// The share of the rounds whose states are averaged.
const AVERAGED: f64 = 0.3;

/// The job's rules of the end; the rounds of a private run are those that the budget allows.
pub(super) fn stopping(common: &Common) -> Stopping {
    let spent = common.private.is_some().then_some("budget");
    Stopping { spent, ..common.job.method.stop.clone() }
}

/// Root mean squares of columns that are of a scale of about one.
const SCALES: std::ops::RangeInclusive<f64> = 0.1..=10.0;
/// Most columns named in a warning.
const NAMED_MAX: usize = 5;

/// The warning about columns in natural units: bounds, noise and starts are for values of about one.
pub(super) fn unscaled(job: &Job, loaded: &Loaded) -> Option<String> {
    if job.data.prepare.limits {
        return None;
    }
    let mut sums: Vec<(f64, f64)> = vec![(0.0, 0.0); loaded.columns.len()];
    for (_, (_, data)) in loaded.training() {
        let values = match data {
            ClientData::Table(table) => &table.values,
            ClientData::Labelled(Labelled { rows: FeatureRows::Dense(values), .. }) => values,
            _ => return None,
        };
        for (at, x) in values.iter().enumerate().filter(|(_, x)| x.is_finite()) {
            let (squares, count) = &mut sums[at % loaded.columns.len()];
            *squares += x * x;
            *count += 1.0;
        }
    }
    let each = loaded.columns.iter().zip(sums);
    let each = each.map(|(name, (squares, count))| (name, (squares / count.max(1.0)).sqrt()));
    let far: Vec<(&String, f64)> =
        each.filter(|(_, size)| *size > 0.0 && !SCALES.contains(size)).collect();
    let some: Vec<String> =
        far.iter().take(NAMED_MAX).map(|(name, size)| format!("{name:?} ({size:.3})")).collect();
    let more = if far.len() > NAMED_MAX { " and others" } else { "" };
    (!far.is_empty()).then(|| {
        format!(
            "columns far from a scale of one (root mean square in brackets): {}{more}; under `epsilon` \
             bounds and noise are for values of about one, and the fit is of little use: declare `min` and \
             `max` of the columns in [schema] and write limits = true in [data.prepare]",
            some.join(", ")
        )
    })
}

/// Noise and cost of a private fit.
#[derive(Clone, Debug)]
pub struct Private {
    pub guarantee: Guarantee,
    pub unit: PrivacyUnit,
    /// Rows or clients; `None` before the clients of a network have stated their rows.
    units: Option<u64>,
    /// Rounds of the fit.
    rounds: u32,
    /// `mu^2` of the stages before the fit.
    before: f64,
    /// `1/z^2` of a round.
    each: f64,
    /// The probability of a row to be part of a round.
    rate: f64,
    /// The clients whose shares of the noise count; `None`: the server adds it.
    honest: Option<u32>,
    source: Source,
}

impl Private {
    /// The noise of a job, if it asks for privacy.
    pub(super) fn of(job: &Job, clients: usize, rows: Option<u64>) -> Result<Option<Self>> {
        let Some(epsilon) = job.privacy.epsilon else { return Ok(None) };
        let unit = job.privacy.unit;
        let units = match unit {
            PrivacyUnit::Client => Some(clients as u64),
            PrivacyUnit::Row => rows,
        };
        let Some(delta) = job.privacy.delta.or_else(|| units.map(auto_delta)) else {
            let what = "`delta` follows the number of rows, which is unknown before clients join";
            return refuse(what, "write it as a number below 1 / rows").at("privacy.delta");
        };
        let guarantee = Guarantee { epsilon, delta };
        let rounds = job.method.length.rounds_max().unwrap_or(1);
        let rate = job.privacy.sampling.unwrap_or(1.0);
        let honest = job.privacy.least_masked(clients);
        let honest = honest.map(|least| least.saturating_sub(job.privacy.colluders.unwrap_or(0)));
        if honest == Some(0) {
            let what = "the noise would be that of colluders alone";
            return refuse(what, "`colluders` is less than `min_cohort`").at("privacy.colluders");
        }
        let releases = match honest {
            Some(_) => Releases::in_shares(guarantee, rounds),
            None => Releases::within(guarantee, rounds, rate),
        };
        let Releases { multiplier, .. } = releases.at("privacy.epsilon")?;
        let source = match job.privacy.noise_seed {
            Some(seed) => Source::Seed(seed),
            None => Source::secret()?,
        };
        let each = 1.0 / (multiplier * multiplier);
        Ok(Some(Self { guarantee, unit, units, rounds, before: 0.0, each, rate, honest, source }))
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
        self.epsilon(self.before + self.each * f64::from(rounds.min(self.rounds)))
    }

    /// Epsilon of releases with this sum of `1/z^2`; of sampled rows all are rounds of the fit.
    pub fn epsilon(&self, mu2: f64) -> f64 {
        match self.honest {
            Some(_) => zcdp_epsilon(0.5 * mu2, self.guarantee.delta),
            None if self.rate < 1.0 => {
                let rounds = (mu2 / self.each).round();
                self.releases().epsilon(rounds as u32, self.guarantee.delta)
            }
            None => gaussian_epsilon(mu2.sqrt(), self.guarantee.delta),
        }
    }

    /// The steps whose states are averaged.
    pub fn averaged(&self) -> std::ops::Range<u32> {
        let last = (AVERAGED * f64::from(self.rounds)).ceil() as u32;
        self.rounds - last..self.rounds
    }

    /// The noise of every round of vectors of this length; `bound` limits a unit's contribution.
    pub fn release(&self, common: &Common, dimension: usize, bound: f64) -> Result<Release> {
        self.noise(common, (0, self.rounds), self.releases(), dimension, (bound, bound))
    }

    /// The noise of the rounds of a start from the rows, which counts them.
    pub fn start_release(
        &self,
        common: &Common,
        rounds: u32,
        dimension: usize,
        bound: f64,
    ) -> Result<Release> {
        let releases = Releases { multiplier: (f64::from(rounds) / self.before).sqrt(), rate: 1.0 };
        let rows = self.units.unwrap_or(1) as f64 / common.clients as f64;
        self.noise(common, (1, rounds), releases, dimension, (bound, bound.max(rows)))
    }

    /// The noise of a stage with this number and this many rounds; `most` is the norm of a client's value.
    fn noise(
        &self,
        common: &Common,
        (stage, rounds): (u32, u32),
        releases: Releases,
        dimension: usize,
        (bound, most): (f64, f64),
    ) -> Result<Release> {
        let of = |honest| NoiseShare::new(bound, dimension, releases.multiplier, honest);
        let share = self.honest.map(of).transpose().at("privacy.epsilon")?;
        if let Some(share) = share {
            // The least cap of a grid of 32 bits.
            let cap = (1u64 << 31) as f64 / common.clients as f64 - 1.0;
            if share.magnitude(most, dimension) > cap {
                let what = "sums with their noise exceed the words of the grid";
                let hint = "raise `epsilon`, take fewer rounds, or start a mixture from a file";
                return refuse(what, hint).at("privacy.epsilon");
            }
        }
        let unit = match self.unit {
            PrivacyUnit::Row => Unit::Row { bound },
            PrivacyUnit::Client => Unit::Client { bound },
        };
        let source = self.source_of(common);
        Ok(Release { share, unit, releases, rounds, source, stage })
    }

    fn releases(&self) -> Releases {
        Releases { multiplier: self.multiplier(), rate: self.rate }
    }

    /// The sampling of rows, if the job asks for it.
    pub fn sampling(&self, common: &Common) -> Option<Sampling> {
        let sampling = Sampling { rate: self.rate, source: self.source_of(common) };
        (self.rate < 1.0).then_some(sampling)
    }

    /// The source of the plan, of which this may be an earlier copy.
    fn source_of(&self, common: &Common) -> Source {
        common.private.as_ref().map_or(self.source, |private| private.source)
    }

    /// Notes and warnings for vectors of this length, with contributions of norm `bound` at most.
    pub fn messages(&self, dimension: usize, bound: f64) -> (String, Vec<String>) {
        let z = self.multiplier();
        let (unit, d) = (self.unit, dimension as f64);
        // The noise of a mean, in units of the spread of a contribution's coordinates.
        let of_sum = match unit {
            PrivacyUnit::Row => z * d / self.rate,
            PrivacyUnit::Client => z * bound * d.sqrt(),
        };
        let nu = self.units.map(|units| of_sum / units as f64);
        let shown = nu.map_or_else(|| format!("{of_sum:.0} / rows"), |nu| format!("{nu:.2}"));
        let unit = match unit {
            PrivacyUnit::Row => "row",
            PrivacyUnit::Client => "client",
        };
        let Guarantee { epsilon, delta } = self.guarantee;
        let uploads = match self.honest {
            Some(honest) => format!("uploads with shares of the noise, {honest} of which suffice,"),
            None => "plain exact uploads".into(),
        };
        let note = format!(
            "differential privacy of a {unit}: epsilon {epsilon} at delta {delta:.2e} in {} rounds, noise \
             z = {z:.2} times a bound of {bound:.3}, nu = {shown}; {uploads} of all clients, no \
             evaluations unless asked for",
            self.rounds
        );
        let mut warnings = Vec::new();
        if let Some(nu) = nu.filter(|nu| *nu > 3.0) {
            warnings.push(format!(
                "nu = {nu:.2} is above 3: the noise hides the model; use a diagonal covariance, fewer \
                 components, more {unit}s or a larger epsilon"
            ));
        } else if let Some(nu) = nu.filter(|nu| *nu > 1.0) {
            warnings.push(format!(
                "nu = {nu:.2}: the noise costs several per cent of the objective (below 1 about 3 %)"
            ));
        }
        if let Source::Seed(_) = self.source {
            warnings.push(
                "noise_seed makes the noise repeatable: anyone who knows it can remove the noise"
                    .into(),
            );
        }
        (note, warnings)
    }
}

/// The privacy loss of one stage.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Charge {
    /// `1/z^2` of an upload.
    pub each: f64,
    /// The most uploads of a client.
    pub uploads: u32,
}

impl Charge {
    /// `1/z^2` of all uploads.
    pub fn all(&self) -> f64 {
        self.each * f64::from(self.uploads)
    }
}

impl Plan {
    /// Noise and cost, under differential privacy.
    pub fn private(&self) -> Option<&Private> {
        self.fit.private.as_ref()
    }

    /// The secret of the noise, which a run keeps for its resumption; `None` without one.
    pub fn noise_key(&mut self) -> Option<&mut [u8; 32]> {
        match &mut self.common.private.as_mut()?.source {
            Source::Secret(key) => Some(key),
            Source::Seed(_) => None,
        }
    }

    /// The privacy loss of each stage.
    pub fn charges(&self) -> Result<Vec<Charge>> {
        if self.fit.private.is_none() {
            return Ok(Vec::new());
        }
        let agreed = self.agreements(&Consent::default())?;
        let noise = self.each_stage(|stage| Ok(stage.method.declare().noise))?;
        let charge = |(noise, agreed): (Option<f64>, &Agreement)| Charge {
            each: noise.map_or(0.0, |z| 1.0 / (z * z)),
            uploads: agreed.rounds(),
        };
        Ok(noise.into_iter().zip(&agreed).map(charge).collect())
    }
}

impl Common {
    /// Rules on what messages may reveal.
    pub fn privacy(&self) -> Privacy {
        Privacy {
            min_group: self.job.privacy.groups().filter(|_| !self.job.fit.takes_surrogates()),
            masks: self.job.privacy.least_masked(self.clients).map(|least| Masks {
                least,
                clients: self.clients,
                seed: self.job.seed,
                secret: self.secret,
                trust: self.trust,
            }),
            release: None,
        }
    }

    /// Masks of sums over all clients: sums of one question to different clients would reveal the difference.
    pub fn masks_of_all(&self) -> Result<Option<Masks>> {
        let least = self.trained() as u32;
        let masks = self.privacy().masks.map(|masks| Masks { least, ..masks });
        if masks.is_some() && !self.faults.late.is_empty() {
            let what = format!(
                "{} under masks takes no client after its first exchange",
                self.job.method.name()
            );
            return refuse(what, "take `late` out, or `masks`").at("simulation.late");
        }
        Ok(masks)
    }

    /// The noise of a method whose vectors have this length and whose bound of a contribution is `clip`.
    pub fn release(&self, dimension: usize) -> Result<Option<Release>> {
        match (&self.private, self.job.privacy.clip) {
            (Some(private), Some(clip)) => private.release(self, dimension, clip).map(Some),
            _ => Ok(None),
        }
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

    /// Refuses a learner whose start depends on the rows without noise.
    pub fn check_private_start(&self, learner: &dyn Learner) -> Result<()> {
        if self.private.is_some() && (!learner.classifies() || learner.start_sums_len() > 0) {
            let what = "this learner starts from exact sums over the clients' rows";
            return refuse(what, "use a classifier that starts from random parameters")
                .at("model.kind");
        }
        Ok(())
    }

    /// Whether clients are asked for evaluations: under privacy only if the job asks for them.
    pub(super) fn evaluates(&self) -> bool {
        self.private.is_none() || self.job.method.evaluate_every.is_some()
    }
}
