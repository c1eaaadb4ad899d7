//! Mixtures: stages that prepare, start, bound the step and fit.

use super::EmFit;
use super::keys::{GmmKeys, Init};
use super::outer_loops;
use super::prepare::{Preparing, bound};
use super::start::{InitFile, read_init, read_memory};
use crate::failure::{AtKey, Result};
use crate::family::StagePlan;
use crate::job::{Job, MemoryStart, Step, UpRule as UpKey};
use crate::load::Loaded;
use crate::plan::{Common, Facts, Files, Work, channels};
use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use whimbrel_codec::channel::{DownRule, Downlink, Uplink, em_alpha, gradient_alpha};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Error};
use whimbrel_engine::Stage;
use whimbrel_methods::choice::{Choice, MixtureChoice};
use whimbrel_methods::fedem::{
    AutoStep, Batch, Em, Estimator, FedEm, FirstMemories, Form, FrameKind, Step as EmStep,
};
use whimbrel_methods::federated::Terms;
use whimbrel_methods::gmm::{GmmInitial, GmmStart};
use whimbrel_methods::kmeans::FederatedKmeans;
use whimbrel_methods::one_shot::Once;
use whimbrel_methods::prepare::{Affine, Preparation};
use whimbrel_methods::step::{Schedule, omega_with_sampling};
use whimbrel_methods::theory::Constants;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm};

/// A mixture and the EM method that fits it.
pub(super) struct EmPlan {
    asked: EmFit,
    /// What is done to the rows before.
    preparing: Preparing,
    /// How many numbers a prepared row has, as far as the data tell now.
    width: usize,
    /// The file that the fit starts from.
    file: Option<(PathBuf, InitFile)>,
    /// The model and its start in the units of the data.
    model: Gmm,
    start: GmmStart,
    form: Form,
    memories: FirstMemories,
    work: Work,
    uplinks: Vec<Uplink>,
    own_uplinks: BTreeMap<u32, u8>,
    downlink: Downlink,
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

impl EmPlan {
    pub fn new(
        common: &Common,
        asked: &EmFit,
        facts: &Facts,
        rows: Option<&Loaded>,
        files: Files<'_>,
    ) -> Result<Self> {
        let preparing = match rows {
            Some(loaded) => Preparing::seen(common, loaded)?,
            None => Preparing::unseen(common, asked, facts.columns.len())?,
        };
        let file = match (&asked.gmm.init, files) {
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

    /// The plan for prepared rows of so many numbers.
    fn of_width(
        common: &Common,
        asked: &EmFit,
        preparing: Preparing,
        width: usize,
        file: Option<(PathBuf, InitFile)>,
        files: Files<'_>,
    ) -> Result<Self> {
        let job = &common.job;
        let asks = if file.is_some() { "model.init" } else { "model" };
        let (model, start) =
            model_and_start(job, &asked.gmm, width, file.as_ref(), None).at(asks)?;
        let form = asked.keys.form.unwrap_or(Form::Pair);
        let (roster, blocks) = (common.roster(), form.blocks(&model));
        let downlink = channels::downlink(job, &roster, &blocks, None, gradient_alpha)?;
        let q = model.statistic_len();
        let (uplinks, own_uplinks) = channels::uplinks(job, &roster, &[q], em_alpha)?;
        let work = outer_loops::work(common, asked, &uplinks)?;
        form.check(&uplinks[0], &downlink)?;
        let memories = match &job.uplink.rule {
            UpKey::Memory { start: MemoryStart::Oracle, .. } => FirstMemories::Oracle,
            UpKey::Memory { start: MemoryStart::File(path), .. } => {
                FirstMemories::Given(match files {
                    Files::Here => read_memory(path, q)?,
                    Files::Sent { memory } => sent_memory(memory, q)?,
                })
            }
            _ => FirstMemories::Zero,
        };
        Ok(Self {
            asked: asked.clone(),
            preparing,
            width,
            file,
            model,
            start,
            form,
            memories,
            work,
            uplinks,
            own_uplinks,
            downlink,
        })
    }

    /// What a simulation sees in the rows themselves.
    fn look_at(&self, common: &Common, loaded: &Loaded) -> Result<()> {
        // Centres and examples are different rows.
        let by_rows = matches!(self.asked.gmm.init, Init::FederatedKmeans | Init::Examples);
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

    /// The covariance that is given and not fitted.
    pub fn known_covariance(&self) -> Option<&[f64]> {
        match &self.model.settings().covariance {
            Covariance::Known(values) => Some(values),
            Covariance::Tied | Covariance::Diagonal | Covariance::Full => None,
        }
    }

    fn stages(&self, common: &Common) -> Vec<Kind> {
        let prepare = vec![Kind::Prepare; self.preparing.stages()];
        let start = match &self.asked.gmm {
            gmm if gmm.chooses() => Some(Kind::Choose),
            gmm => (gmm.init == Init::FederatedKmeans).then_some(Kind::Kmeans),
        };
        let constants = (common.job.method.step == Step::Theory).then_some(Kind::Constants);
        prepare.into_iter().chain(start).chain(constants).chain([Kind::Fit]).collect()
    }

    fn fit(&self, common: &Common, model: Gmm, initial: GmmInitial, step: EmStep) -> FedEm<Gmm> {
        FedEm {
            terms: Terms {
                budget: common.budget(),
                weights: common.weights(),
                memories: self.memories.clone(),
                uplinks: self.uplinks.clone(),
                own_uplinks: self.own_uplinks.clone(),
                downlink: self.downlink.clone(),
            },
            oracle: Em {
                model,
                initial: Arc::new(initial),
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
        let (p, omega) = (common.participation_mean(), outer_loops::omega(&self.uplinks));
        let samples = matches!(self.work.batch, Batch::Sample { .. });
        let recursive = matches!(self.work.estimator, Estimator::Spider { .. });
        let exact_down = self.downlink.is_exact();
        AutoStep {
            omega,
            p,
            spider: outer_loops::spider(&self.work, common, &self.uplinks),
            step_max: match (self.downlink.rule(), self.downlink.omega()) {
                // No faster than the memories that follow the state.
                (DownRule::Preserved { .. }, Some(omega)) => gradient_alpha(omega),
                _ if exact_down => 1.0,
                _ => 0.5,
            },
            // Under variance reduction the noise of minibatches goes to zero.
            falls: samples && !recursive,
            trusts: omega_with_sampling(omega, p) > 0.0 || samples && recursive || !exact_down,
        }
    }
}

impl StagePlan for EmPlan {
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
            let gmm = self.asked.gmm.of(choice.chosen()?.components as usize);
            let (asked, preparing) = (EmFit { gmm, ..self.asked.clone() }, self.preparing.clone());
            let files = Files::Sent { memory: self.memory() };
            let plan = Self::of_width(common, &asked, preparing, self.width, None, files)?;
            return plan.build(common, index, delivered);
        }
        let (model, start) = match preparation.as_ref().and_then(Preparation::affine) {
            Some(affine) if kind != Kind::Prepare => {
                let (job, gmm) = (&common.job, &self.asked.gmm);
                model_and_start(job, gmm, self.width, self.file.as_ref(), Some(affine))?
            }
            _ => (self.model.clone(), self.start.clone()),
        };
        // An earlier stage's parameters are in the units of the fit already.
        let start = match delivered.last().and_then(|a| a.tensor("theta")) {
            Some(theta) => GmmStart::Given(theta.values.clone()),
            None => start,
        };
        let initial = GmmInitial { start, preparation: preparation.clone() };
        Ok(match kind {
            Kind::Prepare => self.preparing.build(common, preparation)?,
            Kind::Choose => {
                let affine = preparation.as_ref().and_then(Preparation::affine);
                let (job, gmm) = (&common.job, &self.asked.gmm);
                let model = |k: &usize| {
                    model_and_start(job, &gmm.of(*k), self.width, None, affine).map(|(m, _)| m)
                };
                let choice = MixtureChoice {
                    models: gmm.components.iter().map(model).collect::<Result<_, Error>>()?,
                    starts: gmm.starts,
                    clusters: gmm.init == Init::FederatedKmeans,
                    log_scale: preparation.as_ref().map_or(0.0, Preparation::log_scale),
                };
                common.quiet("choice of the mixture", bound(choice, preparation))
            }
            Kind::Kmeans => {
                let kmeans = Once(FederatedKmeans { model });
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
            Kind::Kmeans | Kind::Fit => of("gmm"),
        }
    }

    fn uplink(&self) -> &Uplink {
        &self.uplinks[0]
    }

    fn downlink(&self) -> &Downlink {
        &self.downlink
    }

    fn rounds(&self, common: &Common) -> Option<u32> {
        common.rounds(&self.work, EmFit::opening(&common.job))
    }

    fn warnings(&self, common: &Common) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.start == GmmStart::Examples {
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

    fn memory(&self) -> Option<&[f64]> {
        match &self.memories {
            FirstMemories::Given(memory) => Some(memory),
            FirstMemories::Oracle | FirstMemories::Zero => None,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The model and its start, in standardised units where there is a map to them.
fn model_and_start(
    job: &Job,
    key: &GmmKeys,
    columns: usize,
    file: Option<&(PathBuf, InitFile)>,
    affine: Option<&Affine>,
) -> whimbrel_core::Result<(Gmm, GmmStart)> {
    let mut settings = key.settings.clone();
    settings.columns = columns;
    if let Covariance::Known(given) = &settings.covariance {
        let known = known_covariance(given, file.map(|(_, init)| init), affine)?;
        settings.covariance = Covariance::Known(known);
    }
    settings.want_moments = !matches!(key.init, Init::File(_));
    settings.centred = job.uplink.frame == Some(FrameKind::Fisher) && compresses(job);
    let model = Gmm::new(settings)?;
    let start = match file {
        Some((path, init)) => given(&model, init, affine).map_err(|e| match e {
            Error::Config { what, hint } => {
                Error::Config { what: format!("{}: {what}", path.display()), hint }
            }
            other => other,
        })?,
        None if key.init == Init::Examples => GmmStart::Examples,
        None => GmmStart::Moments,
    };
    Ok((model, start))
}

/// Whether any channel loses something on the way.
fn compresses(job: &Job) -> bool {
    let own = job.uplink.own.iter().map(|own| &own.codec);
    let lossy = std::iter::once(&job.uplink.codec).chain(own).any(|codec| !codec.is_exact());
    lossy || !job.downlink.is_exact()
}

/// The covariance of the job, or else of the init file.
fn known_covariance(
    given: &[f64],
    init: Option<&InitFile>,
    affine: Option<&Affine>,
) -> whimbrel_core::Result<Vec<f64>> {
    let mut known = match init {
        _ if !given.is_empty() => given.to_vec(),
        Some(init) if !init.covariance.is_empty() => init.covariance.clone(),
        _ => {
            return Err(Error::config("covariance = \"known\" needs the covariance").hint(
                "give known_covariance = [[..], ..] in [model], or a `covariance` in the init file",
            ));
        }
    };
    if let Some(affine) = affine {
        affine.covariances_forward(&mut known);
    }
    Ok(known)
}

/// A first memory as the coordinator sent it.
fn sent_memory(memory: Option<&[f64]>, q: usize) -> Result<Vec<f64>> {
    match memory {
        Some(memory) if memory.len() == q => Ok(memory.to_vec()),
        _ => Err(Error::peer("the offer lacks the first memory that its job speaks of").into()),
    }
}

/// The start of a file, checked against the model.
fn given(model: &Gmm, init: &InitFile, affine: Option<&Affine>) -> whimbrel_core::Result<GmmStart> {
    if init.weights.len() != model.components() || init.columns != model.columns() {
        return Err(Error::config(format!(
            "it holds {} components of {} columns, the job {} components of {} columns",
            init.weights.len(),
            init.columns,
            model.components(),
            model.columns()
        )));
    }
    let known = matches!(model.settings().covariance, Covariance::Known(_));
    let mut covariance = match known {
        true => Vec::new(),
        false => init.covariances_as(&model.settings().covariance)?,
    };
    let mut means = init.means.clone();
    if let Some(affine) = affine {
        affine.forward(&mut means);
        if covariance.len() == means.len() && model.settings().covariance == Covariance::Diagonal {
            affine.variances(&mut covariance, true);
        } else {
            affine.covariances_forward(&mut covariance);
        }
    }
    let theta = model.parameters(&init.weights, &means, &covariance)?;
    Ok(GmmStart::Given(model.to_vector(&theta)))
}
