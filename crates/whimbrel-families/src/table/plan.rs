//! The stages of a low-rank table.

use super::keys::{EffectsKey, LowRankKeys};
use super::{TableFit, terms};
use crate::failure::Result;
use crate::job::{MemoryStart, Step};
use crate::plan::{Basis, Built, Common, Facts, FitStages, Planned, channels};
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{em_alpha, gradient_alpha};
use whimbrel_core::method::Artifact;
use whimbrel_core::{Erased, Error};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::fedmiss::select::{self, Given, Select, Selection};
use whimbrel_methods::fedmiss::units::{self, ColumnUnits};
use whimbrel_methods::fedmiss::{BindCells, Copies, FedMiss, StepRule};
use whimbrel_methods::one_shot::Once;
use whimbrel_methods::settings::Budget;
use whimbrel_methods::step::Schedule;
use whimbrel_models::lowrank::{Family, LAMBDA_EFFECTS, LowRank, Settings, Variance};

/// A low-rank table and the method that fits it.
struct TablePlan {
    asked: TableFit,
    /// The model, with placeholders for a rank and a penalty that are chosen by cross-validation.
    model: LowRank,
    /// The common codec, then those of single clients.
    codecs: Vec<Codec>,
    own_codecs: BTreeMap<u32, u8>,
    stages: Vec<Kind>,
}

/// The purpose of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Mean and scale of each column of numbers.
    Units,
    Select,
    Baselines,
    Fit,
}

pub(super) fn planned(asked: &TableFit, on: &Basis<'_>) -> Result<Planned> {
    let Basis { common, facts, .. } = *on;
    let job = &common.job;
    let model = LowRank::new(settings(asked, facts)?)?;
    let downlink =
        channels::downlink(job, &common.roster(), &model.blocks(), None, gradient_alpha)?;
    // The uplink of a client of average size, for messages about it.
    let cells = common.total_rows.unwrap_or(1) / common.clients.max(1) as u64;
    let batch = common.batch().expectations(cells.max(1)) as usize;
    let (uplinks, own_codecs) = channels::uplinks(common, &[batch], em_alpha)?;
    let codecs = uplinks.iter().map(|uplink| uplink.codec().clone()).collect();
    let stages = stages(asked, job.data.holdout() > 0.0);
    let plan = TablePlan { asked: asked.clone(), model, codecs, own_codecs, stages };
    plan.method(common, &plan.model)?.check()?;
    if plan.stages.contains(&Kind::Select) {
        plan.selection(common, plan.model.settings().clone())?;
    }
    Ok(Planned {
        rounds: rounds(common),
        uplink_is_known: common.total_rows.is_some(),
        ..Planned::over(common, uplinks[0].clone(), downlink, plan)
    })
}

fn stages(asked: &TableFit, judged: bool) -> Vec<Kind> {
    let select = (asked.is_chosen() || asked.starts > 1).then_some(Kind::Select);
    let baselines = judged.then_some(Kind::Baselines);
    // Baselines use the chosen ridges. Several starts of a given model replace its only fit at the
    // same index, so that they draw the same first start.
    let [first, second] = if asked.is_chosen() { [select, baselines] } else { [baselines, select] };
    let units = asked.is_standardised().then_some(Kind::Units);
    units.into_iter().chain(first).chain(second).chain([Kind::Fit]).collect()
}

/// Opening the memories takes a pass over the cells.
fn rounds(common: &Common) -> Option<u32> {
    common.rounds(&common.work(), (0, f64::from(opens_memories(common))))
}

impl TableFit {
    /// Whether columns of unlike scales are standardised. The paper's iterates and a given variance
    /// refer to the units of the data.
    fn is_standardised(&self) -> bool {
        let LowRankKeys { family, variance, .. } = self.table;
        family == Family::Gaussian && variance == Variance::Estimated && !self.exact
    }

    /// Whether rank or lambda is chosen by cross-validation.
    fn is_chosen(&self) -> bool {
        self.table.rank.is_none() || self.table.lambda.is_none()
    }
}

impl TablePlan {
    fn selection(&self, common: &Common, settings: Settings) -> whimbrel_core::Result<Select> {
        let key = &self.asked.table;
        let given = Given {
            rank: key.rank,
            lambda: key.lambda,
            lambda_effects: key.lambda_effects.is_some(),
            per_term: matches!(key.effects, EffectsKey::Terms(_)) || !key.covariates.is_empty(),
            personal: key.personal,
            uncapped: !key.ceiling || self.asked.exact,
        };
        if self.asked.is_chosen() {
            return Select::new(settings, given, select::ROUNDS, common.job.data.seed);
        }
        let rounds = match common.budget() {
            Budget::Rounds(rounds) | Budget::Converged(rounds) => rounds,
            Budget::Epochs(epochs) => epochs.ceil() as u32,
        };
        Select::starts(settings, given, self.asked.starts, rounds.max(1))
    }

    fn method(&self, common: &Common, model: &LowRank) -> whimbrel_core::Result<FedMiss> {
        let job = &common.job;
        let step = match job.method.step {
            Step::Auto => StepRule::Auto,
            Step::Constant(gamma) => StepRule::Given(Schedule::constant(gamma)?),
            Step::Decreasing { initial, power, delay } => {
                StepRule::Given(Schedule::decreasing(initial, power, delay)?)
            }
            Step::Theory | Step::OverL(_) | Step::OverLRoot | Step::Parts { .. } => {
                return Err(Error::config(
                    "fedmiss takes a number, a schedule or \"auto\" as step",
                ));
            }
        };
        // The length of the state depends on the rank.
        let downlink =
            channels::downlink(job, &common.roster(), &model.blocks(), None, gradient_alpha)
                .map_err(|failure| Error::config(failure.to_string()))?;
        Ok(FedMiss {
            model: model.clone(),
            step,
            budget: common.budget(),
            batch: common.batch(),
            copies: if self.asked.exact { Copies::Clients } else { self.asked.copies },
            codecs: self.codecs.clone(),
            own_codecs: self.own_codecs.clone(),
            rule: job.uplink.rule,
            open_memories: opens_memories(common),
            personal: self.asked.table.personal,
            participation: common.participation_mean(),
            start: None,
            ceiling: self.asked.table.ceiling && !self.asked.exact,
            full_t: self.asked.exact,
            downlink,
        })
    }
}

impl FitStages for TablePlan {
    fn count(&self) -> usize {
        self.stages.len()
    }

    fn build(&self, common: &Common, index: usize, delivered: &[Artifact]) -> Built {
        let chosen = delivered.iter().find(|a| a.kind == select::KIND);
        let selection = chosen.map(Selection::from_artifact).transpose()?;
        let mut settings = self.model.settings().clone();
        if let Some(found) = delivered.iter().find(|a| a.kind == units::KIND) {
            settings.units = units::delivered(found)?;
        }
        let model = match &selection {
            None => LowRank::new(settings.clone())?,
            Some(Selection { chosen, .. }) => {
                let given = self.asked.table.rank;
                if given.is_some_and(|given| chosen.rank > given) {
                    let what = format!("rank {} was chosen, above the job's", chosen.rank);
                    return Err(Error::peer(what));
                }
                LowRank::new(chosen.of(&settings))?
            }
        };
        Ok(match self.stages[index] {
            Kind::Units => {
                let method = Once(ColumnUnits { columns: settings.columns });
                common.quiet("scales of columns", Arc::new(Erased(method, BindRows)))
            }
            Kind::Select => {
                let method = self.selection(common, settings)?;
                let name = if self.asked.is_chosen() { "rank and penalty" } else { "starts" };
                common.quiet(name, Arc::new(Erased(method, BindCells)))
            }
            Kind::Baselines => {
                let method = Select::baselines(model.settings().clone())?;
                common.quiet("simpler models", Arc::new(Erased(method, BindCells)))
            }
            Kind::Fit => {
                let start = selection.and_then(|selection| selection.factors);
                let method = FedMiss { start, ..self.method(common, &model)? };
                common.fit(Arc::new(Erased(method, BindCells)), rounds(common))
            }
        })
    }

    fn stand_in(&self, index: usize) -> Artifact {
        match self.stages[index] {
            Kind::Units => Artifact::new(units::KIND),
            Kind::Select => Selection::stand_in(self.model.settings()),
            Kind::Baselines => Artifact::new(select::BASELINES_KIND),
            Kind::Fit => Artifact::default(),
        }
    }

    /// Any rank will do to try the fit.
    fn can_skip(&self, index: usize) -> bool {
        index + 1 < self.stages.len()
    }
}

fn opens_memories(common: &Common) -> bool {
    common.job.uplink.start == MemoryStart::Oracle
}

/// The job's settings of the model, with placeholders for values that are chosen.
fn settings(asked: &TableFit, facts: &Facts) -> Result<Settings> {
    let (rows, columns) = (facts.rows.len(), facts.columns.len());
    let (key, smaller) = (&asked.table, rows.min(columns));
    let new = Settings::new(rows, columns, key.family);
    // A table with fewer cells than a client states bounds its messages itself.
    let observations_max =
        facts.observations.map_or(new.observations_max, |own| own.min(new.observations_max));
    Ok(Settings {
        observations_max,
        rank: key.rank.unwrap_or(smaller.saturating_sub(1).min(1)),
        effects: terms::effects(key, [rows, columns], &facts.attributes)?,
        lambda: key.lambda.unwrap_or(0.0),
        lambda_effects: key.lambda_effects.unwrap_or(LAMBDA_EFFECTS),
        variance: key.variance,
        ..new
    })
}
