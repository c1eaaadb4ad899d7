//! Mixtures: stages that prepare, start, bound the step and fit.

use super::EmFit;
use super::keys::Init;
use super::mixture::MixtureKeys;
use super::outer_loops;
use super::prepare::{Preparing, bound};
use super::start::{InitFile, read_init, read_memory};
use crate::failure::{AtKey, Result};
use crate::family::StagePlan;
use crate::job::Step;
use crate::load::Loaded;
use crate::plan::channels::{Channels, Vectors};
use crate::plan::{Common, Facts, Files, Work};
use std::any::Any;
use std::path::{Path, PathBuf};
use whimbrel_codec::channel::{DownRule, Downlink, Uplink, em_alpha, gradient_alpha};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Error};
use whimbrel_engine::Stage;
use whimbrel_methods::choice::{Choice, MixtureChoice};
use whimbrel_methods::fedem::{
    AutoStep, Batch, DownNoise, Em, Estimator, FedEm, FirstMemories, Form, FrameKind,
    Step as EmStep,
};
use whimbrel_methods::kmeans::FederatedKmeans;
use whimbrel_methods::mixture::{Mixture, MixtureInitial, MixtureStart};
use whimbrel_methods::one_shot::Once;
use whimbrel_methods::prepare::Preparation;
use whimbrel_methods::step::{Schedule, omega_with_sampling};
use whimbrel_methods::theory::Constants;
use whimbrel_models::LatentModel;

/// A mixture and the EM method that fits it.
pub(super) struct EmPlan<K: MixtureKeys> {
    asked: EmFit<K>,
    /// What is done to the rows before.
    preparing: Preparing,
    /// How many numbers a prepared row has, as far as the data tell now.
    width: usize,
    /// The file that the fit starts from.
    file: Option<(PathBuf, InitFile)>,
    /// The model and its start in the units of the data.
    model: K::Model,
    start: MixtureStart,
    form: Form,
    work: Work,
    channels: Channels,
}

/// What a stage is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Prepare,
    Choose,
    Kmeans,
    Constants,
    Fit,
}

impl<K: MixtureKeys> EmPlan<K> {
    pub fn new(
        common: &Common,
        asked: &EmFit<K>,
        facts: &Facts,
        rows: Option<&Loaded>,
        files: Files<'_>,
    ) -> Result<Self> {
        let mixture = asked.mixture.over(facts)?;
        let asked = &EmFit { mixture, ..asked.clone() };
        let preparing = asked.mixture.preparing(common, facts, rows)?;
        let file = match (asked.mixture.init(), files) {
            (Init::File(path), Files::Here) => {
                Some((path.clone(), read_init(path).at("model.init")?))
            }
            _ => None,
        };
        let width = preparing.width();
        let plan = Self::of_width(common, asked, preparing, width, file, files)?;
        if let Some(loaded) = rows {
            plan.look_at(common, loaded)?;
        }
        Ok(plan)
    }

    /// The plan for prepared rows of this width.
    fn of_width(
        common: &Common,
        asked: &EmFit<K>,
        preparing: Preparing,
        width: usize,
        file: Option<(PathBuf, InitFile)>,
        files: Files<'_>,
    ) -> Result<Self> {
        let job = &common.job;
        let asks = if file.is_some() { "model.init" } else { "model" };
        let (model, start) =
            asked.mixture.model_and_start(job, width, file.as_ref(), None).at(asks)?;
        let form = asked.keys.form.unwrap_or(Form::Pair);
        let (q, blocks) = (model.statistic_len(), form.blocks(&model));
        let read = |path: &Path| match files {
            Files::Here => read_memory(path, q),
            Files::Sent { memory } => sent_memory(memory, q),
        };
        let channels = Channels::new(
            common,
            &Vectors {
                read_memory: Some(&read),
                ..Vectors::new((&[q], em_alpha), (&blocks, gradient_alpha))
            },
        )?;
        let work = outer_loops::work(common, asked, &channels.uplinks, q)?;
        form.check(&channels.uplinks[0], &channels.downlink)?;
        Ok(Self {
            asked: asked.clone(),
            preparing,
            width,
            file,
            model,
            start,
            form,
            work,
            channels,
        })
    }

    /// What a simulation sees in the rows themselves.
    fn look_at(&self, common: &Common, loaded: &Loaded) -> Result<()> {
        // Centres and examples are different rows.
        let by_rows = matches!(self.asked.mixture.init(), Init::FederatedKmeans | Init::Examples);
        let (rows, components) = (common.total_rows, self.model.components() as u64);
        if let Some(rows) = rows.filter(|rows| by_rows && *rows < components) {
            let what = format!("components = {components}, and there are {rows} rows");
            let error = Error::config(what).hint(format!("ask for at most {rows} components"));
            return Err(error).at("model.components");
        }
        if loaded.clients.iter().any(|(_, data)| matches!(data, ClientData::Stream(_))) {
            self.work.estimator.check_stream(&self.work.batch)?;
        }
        Ok(())
    }

    /// The model in the units of the data.
    pub fn model(&self) -> &K::Model {
        &self.model
    }

    fn stages(&self, common: &Common) -> Vec<Kind> {
        let prepare = vec![Kind::Prepare; self.preparing.stages()];
        let start = match &self.asked.mixture {
            mixture if mixture.chooses() => Some(Kind::Choose),
            mixture => (*mixture.init() == Init::FederatedKmeans).then_some(Kind::Kmeans),
        };
        let constants = (common.job.method.step == Step::Theory).then_some(Kind::Constants);
        prepare.into_iter().chain(start).chain(constants).chain([Kind::Fit]).collect()
    }

    fn fit(
        &self,
        common: &Common,
        model: K::Model,
        initial: MixtureInitial,
        step: EmStep,
    ) -> FedEm<K::Model> {
        FedEm {
            terms: self.channels.terms(common),
            oracle: Em {
                model,
                initial,
                step,
                estimator: self.work.estimator,
                batch: self.work.batch,
                form: self.form,
                frame: common.job.uplink.frame.unwrap_or(FrameKind::Raw),
            },
        }
    }

    /// The step, from the job or from the constants that a stage estimated.
    fn step(&self, common: &Common, theory: Option<&Artifact>) -> whimbrel_core::Result<EmStep> {
        let given = match common.job.method.step {
            Step::Constant(gamma) => Schedule::constant(gamma),
            Step::Decreasing { initial, power, delay } => {
                Schedule::decreasing(initial, power, delay)
            }
            Step::Auto if self.asked.is_pooled() => Schedule::constant(1.0),
            Step::Auto => return Ok(EmStep::Auto(self.auto_step(common))),
            Step::Theory => {
                let gamma = theory.and_then(|a| a.tensor("gamma")).map(|t| t.values[0]);
                let missing = || Error::internal("the constants of the theory were not estimated");
                Schedule::constant(gamma.ok_or_else(missing)?)
            }
            Step::OverL(_) | Step::OverLRoot | Step::Parts { .. } => {
                Err(Error::config("the EM methods have no smoothness constant L"))
            }
        };
        given.map(EmStep::Given)
    }

    fn auto_step(&self, common: &Common) -> AutoStep {
        let (p, omega) = (common.participation_mean(), outer_loops::omega(&self.channels.uplinks));
        let samples = matches!(self.work.batch, Batch::Sample { .. });
        let recursive = matches!(self.work.estimator, Estimator::Spider { .. });
        let exact_down = self.channels.downlink.is_exact();
        AutoStep {
            omega,
            p,
            spider: outer_loops::spider(&self.work, common, &self.channels.uplinks),
            downlink: match (self.channels.downlink.rule(), self.channels.downlink.omega()) {
                _ if exact_down => DownNoise::None,
                (_, None) => DownNoise::Unknown,
                (DownRule::Preserved { .. }, Some(omega)) => DownNoise::Preserved(omega),
                (_, Some(omega)) => DownNoise::Degraded(omega),
            },
            // Under variance reduction the noise of minibatches goes to zero.
            falls: samples && !recursive,
            trusts: omega_with_sampling(omega, p) > 0.0 || samples && recursive || !exact_down,
        }
    }
}

impl<K: MixtureKeys> StagePlan for EmPlan<K> {
    fn len(&self, common: &Common) -> usize {
        self.stages(common).len()
    }

    fn build(
        &self,
        common: &Common,
        index: usize,
        delivered: &[Artifact],
    ) -> whimbrel_core::Result<Stage> {
        let of_kind = |kind: &str| delivered.iter().find(|a| a.kind == kind);
        let kind = self.stages(common)[index];
        let preparation = Preparation::from_delivered(delivered);
        let width = preparation.as_ref().map_or(self.width, Preparation::width);
        if kind != Kind::Prepare && width != self.width {
            // Which columns are constant is known for certain only now.
            let (preparing, file) = (self.preparing.clone(), self.file.clone());
            let files = Files::Sent { memory: self.memory() };
            let plan = Self::of_width(common, &self.asked, preparing, width, file, files)?;
            return plan.build(common, index, delivered);
        }
        if let Some(choice) = Choice::of(delivered)
            && choice.chosen()?.components as usize != self.model.components()
        {
            // A client's messages grow with the components: those that the job names, and no others.
            let components = choice.chosen()?.components as usize;
            if !self.asked.mixture.components().contains(&components) {
                let what =
                    format!("{components} components were chosen, which the job does not name");
                return Err(Error::peer(what));
            }
            let mixture = self.asked.mixture.with_components(components);
            let asked = EmFit { mixture, ..self.asked.clone() };
            let preparing = self.preparing.clone();
            let files = Files::Sent { memory: self.memory() };
            let plan = Self::of_width(common, &asked, preparing, self.width, None, files)?;
            return plan.build(common, index, delivered);
        }
        let (model, start) = match preparation.as_ref().and_then(Preparation::affine) {
            Some(affine) if kind != Kind::Prepare => {
                let (job, mixture) = (&common.job, &self.asked.mixture);
                mixture.model_and_start(job, self.width, self.file.as_ref(), Some(affine))?
            }
            _ => (self.model.clone(), self.start.clone()),
        };
        // An earlier stage's parameters are in the units of the fit already.
        let start = match delivered.last().and_then(|a| a.tensor("theta")) {
            Some(theta) => MixtureStart::Given(theta.values.clone()),
            None => start,
        };
        let initial = MixtureInitial { start, preparation: preparation.clone() };
        Ok(match kind {
            Kind::Prepare => self.preparing.build(common, preparation)?,
            Kind::Choose => {
                let affine = preparation.as_ref().and_then(Preparation::affine);
                let (job, mixture) = (&common.job, &self.asked.mixture);
                let model = |k: &usize| {
                    let mixture = mixture.with_components(*k);
                    mixture.model_and_start(job, self.width, None, affine).map(|(m, _)| m)
                };
                let choice = MixtureChoice {
                    models: mixture.components().iter().map(model).collect::<Result<_, Error>>()?,
                    starts: mixture.starts(),
                    clusters: *mixture.init() == Init::FederatedKmeans,
                    rows_min: common.group_min,
                    log_scale: preparation.as_ref().map_or(0.0, Preparation::log_scale),
                };
                common.quiet("choice of the mixture", bound(choice, preparation))
            }
            Kind::Kmeans => {
                let kmeans = Once(FederatedKmeans { model, rows_min: common.group_min });
                common.quiet("federated k-means", bound(kmeans, preparation))
            }
            Kind::Constants => {
                let fit = self.fit(common, model, initial, Schedule::constant(1.0)?.into());
                let participation = common.participation_mean();
                common.quiet("constants", bound(Constants { fit, participation }, preparation))
            }
            Kind::Fit => {
                let step = self.step(common, of_kind("theory"))?;
                let fit = bound(self.fit(common, model, initial, step), preparation);
                common.fit(fit, self.rounds(common))
            }
        })
    }

    fn stand_in(&self, common: &Common, index: usize) -> Artifact {
        let of = |kind: &str| Artifact::new(kind);
        match self.stages(common)[index] {
            Kind::Prepare => self.preparing.stand_in(index),
            Kind::Constants => of("theory").with("gamma", &[], vec![1.0]),
            Kind::Choose => Choice::stand_in(self.model.components() as u32),
            Kind::Kmeans => of("start"),
            Kind::Fit => of(self.asked.mixture.words().0),
        }
    }

    fn uplink(&self) -> &Uplink {
        &self.channels.uplinks[0]
    }

    fn downlink(&self) -> &Downlink {
        &self.channels.downlink
    }

    fn rounds(&self, common: &Common) -> Option<u32> {
        common.rounds(&self.work, self.channels.opening())
    }

    fn warnings(&self, common: &Common) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.start == MixtureStart::Examples {
            warnings.push(
                "init = \"examples\" sends some of the clients' raw rows to the server".into(),
            );
        }
        if common.total_rows.is_some_and(|rows| rows <= self.model.components() as u64) {
            warnings.push("there are no more rows than components".into());
        }
        warnings.extend(outer_loops::warning(&self.work));
        warnings.extend(self.preparing.warnings());
        warnings
    }

    fn notes(&self, _: &Common) -> Vec<String> {
        let mut notes = self.preparing.notes();
        notes.extend(outer_loops::note(&self.work));
        notes
    }

    fn batch_min(&self, _: &Common) -> Option<u32> {
        self.work.batch.size()
    }

    fn memory(&self) -> Option<&[f64]> {
        match &self.channels.memories {
            FirstMemories::Given(memory) => Some(memory),
            FirstMemories::Oracle | FirstMemories::Zero => None,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A first memory as the coordinator sent it.
fn sent_memory(memory: Option<&[f64]>, q: usize) -> Result<Vec<f64>> {
    match memory {
        Some(memory) if memory.len() == q => Ok(memory.to_vec()),
        _ => Err(Error::peer("the offer lacks the initial memory named by the job").into()),
    }
}
