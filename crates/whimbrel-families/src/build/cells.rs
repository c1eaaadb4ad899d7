//! Tables with gaps: stages that fit a low-rank table.

use super::{Common, Facts, channels};
use crate::failure::Result;
use crate::spec::{
    Copies as CopiesKey, Effects as EffectsKey, Family as FamilyKey, LowRank as LowRankKey,
    MemoryStart, Step, UpRule as UpKey, Variance as VarianceKey,
};
use std::sync::Arc;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{Downlink, UpRule, Uplink, em_alpha};
use whimbrel_core::method::Artifact;
use whimbrel_core::{Erased, Error};
use whimbrel_engine::Stage;
use whimbrel_methods::fedmiss::baselines::{self, Baselines};
use whimbrel_methods::fedmiss::select::{self, Given, Select, Selection};
use whimbrel_methods::fedmiss::{BindCells, Copies, FedMiss, Memory, Mix, StepRule};
use whimbrel_methods::step::Schedule;
use whimbrel_models::lowrank::{Effects, Family, LAMBDA_EFFECTS, LowRank, Settings, Variance};

/// A low-rank table and the method that fits it.
pub(super) struct CellsPlan {
    key: LowRankKey,
    /// The model with the rank and the penalty that the job gives; stand-ins where they are
    /// chosen on the way.
    model: LowRank,
    codec: Codec,
    memory: Memory,
    /// The uplink of a client of middling size, for what is said about it; without a size where
    /// nobody knows how much clients hold.
    uplink: Uplink,
    downlink: Downlink,
}

/// What a stage is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Select,
    Baselines,
    Fit,
}

impl CellsPlan {
    pub fn new(common: &Common, key: &LowRankKey, facts: &Facts) -> Result<Self> {
        let job = &common.job;
        let model = LowRank::new(settings(key, facts.rows.len(), facts.columns.len()))?;
        let codec = channels::codec(&job.uplink.codec)?;
        let memory = match &job.uplink.rule {
            UpKey::Plain | UpKey::MemoryOff => Memory::Off,
            UpKey::Memory { alpha, .. } => alpha.map_or(Memory::Auto, Memory::Alpha),
            UpKey::Feedback => {
                let what = "fedmiss sends residuals without error feedback";
                return Err(Error::config(what).hint("write rule = \"memory\" in [uplink]").into());
            }
        };
        let downlink = channels::downlink(job, &common.roster(), &model.blocks(), None)?;
        let uplink = usual_uplink(common, &codec, memory)?;
        let plan = Self { key: *key, model, codec, memory, uplink, downlink };
        plan.method(common, &plan.model)?.check()?;
        if plan.stages(common).contains(&Kind::Select) {
            plan.selection(common)?;
        }
        Ok(plan)
    }

    pub fn uplink(&self) -> &Uplink {
        &self.uplink
    }

    pub fn downlink(&self) -> &Downlink {
        &self.downlink
    }

    pub fn stages(&self, common: &Common) -> Vec<Kind> {
        let chosen = self.key.rank.is_none() || self.key.lambda.is_none();
        let judged = common.job.data.holdout() > 0.0;
        let select = chosen.then_some(Kind::Select);
        let baselines = judged.then_some(Kind::Baselines);
        select.into_iter().chain(baselines).chain([Kind::Fit]).collect()
    }

    pub fn build(
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
                common.quiet("rank and penalty", Arc::new(Erased(method, BindCells)))
            }
            Kind::Baselines => {
                // With the ridge on effects that was found best: no weaker opponent than can be.
                let settings = model.settings().clone();
                let method = Baselines::new(settings, baselines::ROUNDS)?;
                common.quiet("simpler models", Arc::new(Erased(method, BindCells)))
            }
            Kind::Fit => {
                let (start, beside) = selection.map_or((None, None), |s| (s.factors, s.beside));
                let mix = beside.map(|(_, plain)| Mix { share: select::SHARE, plain });
                let method = FedMiss { start, mix, ..self.method(common, &model)? };
                common.fit(Arc::new(Erased(method, BindCells)), common.rounds(&common.work()))
            }
        })
    }

    fn selection(&self, common: &Common) -> whimbrel_core::Result<Select> {
        let (settings, key) = (self.model.settings().clone(), &self.key);
        let given = Given {
            rank: key.rank,
            lambda: key.lambda,
            lambda_effects: key.lambda_effects.is_some(),
            personal: key.personal,
        };
        Select::new(settings, given, select::ROUNDS, common.job.data.seed)
    }

    fn method(&self, common: &Common, model: &LowRank) -> whimbrel_core::Result<FedMiss> {
        let job = &common.job;
        let step = match job.method.step {
            Step::Auto => StepRule::Auto,
            Step::Constant(gamma) => StepRule::Given(Schedule::constant(gamma)?),
            Step::Decreasing { initial, power, delay } => {
                StepRule::Given(Schedule::decreasing(initial, power, delay)?)
            }
            Step::Theory | Step::OverL(_) | Step::OverLRoot => {
                return Err(Error::config(
                    "fedmiss takes a number, a schedule or \"auto\" as step",
                ));
            }
        };
        let copies = match job.method.copies {
            CopiesKey::Auto => step.copies(),
            CopiesKey::Clients => Copies::Clients,
            CopiesKey::Fewest => Copies::Fewest,
            CopiesKey::Given(copies) => Copies::Given(copies),
        };
        let downlink = match model.blocks() == self.model.blocks() {
            true => self.downlink.clone(),
            // The factors of another rank are another vector.
            false => channels::downlink(job, &common.roster(), &model.blocks(), None)
                .map_err(|failure| Error::config(failure.to_string()))?,
        };
        Ok(FedMiss {
            model: model.clone(),
            step,
            budget: common.budget(),
            batch: common.batch(),
            copies,
            codec: self.codec.clone(),
            memory: self.memory,
            open_memories: matches!(
                &job.uplink.rule,
                UpKey::Memory { start: MemoryStart::Oracle, .. }
            ),
            personal: self.key.personal,
            participation: common.participation_mean(),
            start: None,
            mix: None,
            downlink,
        })
    }
}

/// What a job says of its model, with stand-ins for what is to be chosen.
fn settings(key: &LowRankKey, rows: usize, columns: usize) -> Settings {
    let smaller = rows.min(columns);
    Settings {
        rank: key.rank.unwrap_or(smaller.saturating_sub(1).min(1)),
        effects: match key.effects {
            EffectsKey::None => Effects::None,
            EffectsKey::Row => Effects::Row,
            EffectsKey::Column => Effects::Column,
            EffectsKey::RowColumn => Effects::RowColumn,
        },
        lambda: key.lambda.unwrap_or(0.0),
        lambda_effects: key.lambda_effects.unwrap_or(LAMBDA_EFFECTS),
        variance: match key.variance {
            VarianceKey::Unit => Variance::Unit,
            VarianceKey::Estimated => Variance::Estimated,
        },
        ..Settings::new(rows, columns, family(key.family))
    }
}

/// The model's word for a job's.
pub(super) fn family(key: FamilyKey) -> Family {
    match key {
        FamilyKey::Gaussian => Family::Gaussian,
        FamilyKey::Poisson => Family::Poisson,
        FamilyKey::Bernoulli => Family::Bernoulli,
    }
}

/// A channel for the batch of a client with the mean number of cells.
fn usual_uplink(common: &Common, codec: &Codec, memory: Memory) -> Result<Uplink> {
    let cells = common.total_rows.unwrap_or(1) / common.clients.max(1) as u64;
    let batch = common.batch().expectations(cells.max(1)) as usize;
    let rule = match memory {
        Memory::Off => UpRule::Plain,
        Memory::Alpha(alpha) => UpRule::Memory { alpha },
        Memory::Auto => UpRule::Memory { alpha: em_alpha(codec.omega(batch).unwrap_or(0.0)) },
    };
    Ok(Uplink::new(codec.clone(), rule, batch)?)
}
