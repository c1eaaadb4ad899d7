//! Tables with gaps: stages that fit a low-rank table.

use super::keys::EffectsKey;
use super::{TableFit, terms};
use crate::failure::Result;
use crate::family::StagePlan;
use crate::job::{MemoryStart, Step};
use crate::plan::{Common, Facts, channels};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{Auto, Downlink, UpRule, Uplink, em_alpha, gradient_alpha};
use whimbrel_core::method::Artifact;
use whimbrel_core::{Erased, Error};
use whimbrel_engine::Stage;
use whimbrel_methods::fedmiss::select::{self, Given, Select, Selection};
use whimbrel_methods::fedmiss::{BindCells, Copies, FedMiss, StepRule};
use whimbrel_methods::settings::Budget;
use whimbrel_methods::step::Schedule;
use whimbrel_models::lowrank::{LAMBDA_EFFECTS, LowRank, Settings};

/// A low-rank table and the method that fits it.
pub(super) struct TablePlan {
    asked: TableFit,
    /// The model with the rank and the penalty that the job gives; any where they are chosen on the
    /// way.
    model: LowRank,
    /// Everyone's codec, then those of clients with one of their own.
    codecs: Vec<Codec>,
    own_codecs: BTreeMap<u32, u8>,
    rule: UpRule<Auto>,
    /// The uplink of a client of middling size, for what is said about it; without a size where
    /// the sizes of clients are unknown.
    uplink: Uplink,
    downlink: Downlink,
}

/// What a stage is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Select,
    Baselines,
    Fit,
}

impl TablePlan {
    pub fn new(common: &Common, asked: &TableFit, facts: &Facts) -> Result<Self> {
        let job = &common.job;
        let model = LowRank::new(settings(asked, facts)?)?;
        let downlink =
            channels::downlink(job, &common.roster(), &model.blocks(), None, gradient_alpha)?;
        let cells = common.total_rows.unwrap_or(1) / common.clients.max(1) as u64;
        let batch = common.batch().expectations(cells.max(1)) as usize;
        let (uplinks, own_codecs) = channels::uplinks(job, &common.roster(), &[batch], em_alpha)?;
        let codecs = uplinks.iter().map(|uplink| uplink.codec().clone()).collect();
        let (asked, uplink) = (asked.clone(), uplinks[0].clone());
        let plan =
            Self { asked, model, codecs, own_codecs, rule: job.uplink.rule, uplink, downlink };
        plan.method(common, &plan.model)?.check()?;
        if plan.stages(common).contains(&Kind::Select) {
            plan.selection(common)?;
        }
        Ok(plan)
    }

    fn stages(&self, common: &Common) -> Vec<Kind> {
        let chosen = self.is_chosen() || self.asked.starts > 1;
        let judged = common.job.data.holdout() > 0.0;
        let select = chosen.then_some(Kind::Select);
        let baselines = judged.then_some(Kind::Baselines);
        // Baselines have the ridges that were chosen. Starts of a given model are in the place that
        // its only fit would have: so they draw the same first start.
        let [first, second] =
            if self.is_chosen() { [select, baselines] } else { [baselines, select] };
        first.into_iter().chain(second).chain([Kind::Fit]).collect()
    }

    /// Whether rank or lambda is left to cross-validation.
    fn is_chosen(&self) -> bool {
        self.asked.table.rank.is_none() || self.asked.table.lambda.is_none()
    }

    fn selection(&self, common: &Common) -> whimbrel_core::Result<Select> {
        let (settings, key) = (self.model.settings().clone(), &self.asked.table);
        let given = Given {
            rank: key.rank,
            lambda: key.lambda,
            lambda_effects: key.lambda_effects.is_some(),
            per_term: matches!(key.effects, EffectsKey::Terms(_)) || !key.covariates.is_empty(),
            personal: key.personal,
            uncapped: !key.ceiling || self.asked.exact,
        };
        match self.is_chosen() {
            true => Select::new(settings, given, select::ROUNDS, common.job.data.seed),
            false => {
                let rounds = match common.budget() {
                    Budget::Rounds(rounds) | Budget::Converged(rounds) => rounds,
                    Budget::Epochs(epochs) => epochs.ceil() as u32,
                };
                Select::starts(settings, given, self.asked.starts, rounds.max(1))
            }
        }
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
        // The factors of another rank are another vector.
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
            rule: self.rule,
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

impl StagePlan for TablePlan {
    fn len(&self, common: &Common) -> usize {
        self.stages(common).len()
    }

    fn build(
        &self,
        common: &Common,
        index: usize,
        delivered: &[Artifact],
    ) -> whimbrel_core::Result<Stage> {
        let chosen = delivered.iter().find(|a| a.kind == select::KIND);
        let selection = chosen.map(Selection::from_artifact).transpose()?;
        let model = match &selection {
            None => self.model.clone(),
            Some(selection) => LowRank::new(selection.chosen.of(self.model.settings()))?,
        };
        Ok(match self.stages(common)[index] {
            Kind::Select => {
                let method = self.selection(common)?;
                let name = if self.is_chosen() { "rank and penalty" } else { "starts" };
                common.quiet(name, Arc::new(Erased(method, BindCells)))
            }
            Kind::Baselines => {
                // With the ridge on effects that was found best: no weaker opponent than can be.
                let settings = model.settings().clone();
                let method = Select::baselines(settings)?;
                common.quiet("simpler models", Arc::new(Erased(method, BindCells)))
            }
            Kind::Fit => {
                let start = selection.and_then(|selection| selection.factors);
                let method = FedMiss { start, ..self.method(common, &model)? };
                common.fit(Arc::new(Erased(method, BindCells)), self.rounds(common))
            }
        })
    }

    fn uplink(&self) -> &Uplink {
        &self.uplink
    }

    fn downlink(&self) -> &Downlink {
        &self.downlink
    }

    /// The residuals that memories open with are a pass over the cells.
    fn rounds(&self, common: &Common) -> Option<u32> {
        common.rounds(&common.work(), (0, f64::from(opens_memories(common))))
    }

    /// The constants of the uplink depend on how many cells there are.
    fn uplink_is_unknown(&self, common: &Common) -> bool {
        common.total_rows.is_none()
    }

    /// Where the rank is chosen on the way, any rank will do.
    fn can_skip(&self, common: &Common, index: usize) -> bool {
        index + 1 < self.stages(common).len()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn opens_memories(common: &Common) -> bool {
    common.job.uplink.start == MemoryStart::Oracle
}

/// What a job says of its model, with any numbers for what is to be chosen.
fn settings(asked: &TableFit, facts: &Facts) -> Result<Settings> {
    let (rows, columns) = (facts.rows.len(), facts.columns.len());
    let (key, smaller) = (&asked.table, rows.min(columns));
    Ok(Settings {
        rank: key.rank.unwrap_or(smaller.saturating_sub(1).min(1)),
        effects: terms::effects(key, [rows, columns], &facts.attributes)?,
        lambda: key.lambda.unwrap_or(0.0),
        lambda_effects: key.lambda_effects.unwrap_or(LAMBDA_EFFECTS),
        variance: key.variance,
        ..Settings::new(rows, columns, key.family)
    })
}
