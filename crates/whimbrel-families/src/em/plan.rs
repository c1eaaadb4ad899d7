//! The stages of a mixture: preparation, start, constants of the step, fit.

use super::EmFit;
use super::keys::Init;
use super::mixture::{Candidates, MixtureKeys};
use super::outer_loops;
use super::prepare::{Preparing, bound, exact_sums, federated};
use super::start::{InitFile, read_init, read_memory};
use crate::failure::{AtKey, Result};
use crate::family::{Fit, refuse};
use crate::job::{PrivacyUnit, Step};
use crate::load::Loaded;
use crate::offer::elsewhere;
use crate::plan::channels::{Channels, Vectors};
use crate::plan::{
    Basis, Built, Common, Estimate, Files, FitStages, Planned, Private, THEORY, few_rows,
};
use std::path::{Path, PathBuf};
use whimbrel_codec::channel::{DownRule, em_alpha, gradient_alpha};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, Error, Key, vector};
use whimbrel_methods::choice::{Choice, MixtureChoice};
use whimbrel_methods::clustering::Clustering;
use whimbrel_methods::fedem::{
    AutoStep, Batch, DownNoise, Em, Estimator, FedEm, FirstMemories, Form, MOMENTS, Moments,
    PrivateEm, Step as EmStep,
};
use whimbrel_methods::federated::{Federated, Plain, Terms};
use whimbrel_methods::kmeans::FederatedKmeans;
use whimbrel_methods::lloyd::{self, Lloyd};
use whimbrel_methods::mixture::{MixtureInitial, MixtureStart};
use whimbrel_methods::one_shot::Once;
use whimbrel_methods::pooled;
use whimbrel_methods::prepare::Preparation;
use whimbrel_methods::settings::Budget;
use whimbrel_methods::step::{Schedule, omega_with_sampling};
use whimbrel_methods::theory::Constants;
use whimbrel_models::{LatentModel, MixtureModel};

/// The step under the noise of differential privacy, inside the trust region.
const PRIVATE_STEP: f64 = 0.7;
/// The variance of every column at a private start.
const PRIVATE_VARIANCE: f64 = 0.5;
/// The address of the centres of a private start.
const PRIVATE_START: u64 = 0xD9;

/// The fewest starts where one client holds all rows.
const STARTS_ALONE: u32 = 10;

/// Groups of rows per component below which a smallest group costs likelihood: with some 17 rows per
/// component a group of 5 costs at most 0.02 nats per row.
const ROWS_PER_GROUP: usize = 3;

/// A mixture and the EM method that fits it.
pub(super) struct EmPlan<K: MixtureKeys> {
    asked: EmFit<K>,
    preparing: Preparing,
    /// Numbers per prepared row, as far as known.
    width: usize,
    file: Option<(PathBuf, InitFile)>,
    /// The model in the units of the data.
    model: K::Model,
    /// The start in the units of the data.
    start: MixtureStart,
    form: Form,
    work: Estimate,
    channels: Channels,
    stages: Vec<Kind>,
    /// Noise and cost under differential privacy.
    private: Option<Private>,
}

/// The purpose of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Prepare,
    /// Pooled moments, where sums hide their terms.
    Moments,
    Choose,
    Kmeans,
    /// Noisy k-means, under differential privacy.
    Lloyd,
    Constants,
    Fit,
}

impl<K: MixtureKeys> EmPlan<K> {
    pub fn new(asked: &EmFit<K>, on: &Basis<'_>) -> Result<Self> {
        let Basis { common, facts, rows, files } = *on;
        let mixture = asked.mixture.over(facts)?;
        let asked = EmFit { mixture, ..asked.clone() };
        let preparing = asked.mixture.preparing(common, facts, rows)?;
        let file = match (asked.mixture.candidates().init, files) {
            (Init::File(path), Files::Here) => {
                Some((path.clone(), read_init(path).at("model.init")?))
            }
            _ => None,
        };
        let width = preparing.width();
        let plan = Self::of_width(common, asked, preparing, width, file, files)?;
        if let Some(loaded) = rows {
            plan.check_rows(common, loaded)?;
        }
        Ok(plan)
    }

    /// The plan for prepared rows of this width.
    fn of_width(
        common: &Common,
        asked: EmFit<K>,
        preparing: Preparing,
        width: usize,
        file: Option<(PathBuf, InitFile)>,
        files: Files<'_>,
    ) -> Result<Self> {
        let job = &common.job;
        let asks = if file.is_some() { "model.init" } else { "model" };
        let (model, start) =
            asked.mixture.model_and_start(job, width, file.as_ref(), None).at(asks)?;
        let form = asked.keys.form.unwrap_or_default();
        let (q, blocks) = (model.statistic_len(), form.blocks(&model));
        let read = |path: &Path| match files {
            Files::Here => read_memory(path, q),
            Files::Sent { memory } => sent_memory(memory, q),
        };
        let up = [q];
        let vectors = Vectors::new((&up, em_alpha), (&blocks, gradient_alpha));
        let channels = Channels::new(common, &Vectors { read_memory: Some(&read), ..vectors })?;
        let work = outer_loops::work(common, &asked, &channels.uplinks, q)?;
        form.check(&channels.uplinks[0], &channels.downlink)?;
        let stages = stages(common, &asked.mixture.candidates(), &preparing, model.moments_len());
        let starts = stages.contains(&Kind::Lloyd);
        if common.job.privacy.sampling.is_some() {
            let what = "a mixture is fitted to the statistics of all rows";
            return refuse(what, "take `sampling` out").at("privacy.sampling");
        }
        let private = common.private.clone();
        let private = private.map(|private| if starts { private.with_start() } else { private });
        Ok(Self {
            asked,
            preparing,
            width,
            file,
            model,
            start,
            form,
            work,
            channels,
            stages,
            private,
        })
    }

    /// The same plan for another mixture or other prepared rows.
    fn again(&self, common: &Common, asked: EmFit<K>, width: usize) -> Result<Self> {
        let files = Files::Sent { memory: self.memory() };
        let changed = asked.mixture != self.asked.mixture;
        let file = self.file.clone().filter(|_| !changed);
        Self::of_width(common, asked, self.preparing.clone(), width, file, files)
    }

    /// Checks that only a simulation can make.
    fn check_rows(&self, common: &Common, loaded: &Loaded) -> Result<()> {
        // Centres and examples are distinct rows.
        let init = self.asked.mixture.candidates().init;
        let by_rows = matches!(init, Init::FederatedKmeans | Init::Examples);
        let (rows, components) = (common.total_rows, self.model.components() as u64);
        if let Some(rows) = rows.filter(|rows| by_rows && *rows < components) {
            let what = format!("components = {components}, but there are {rows} rows");
            return refuse(what, format!("ask for at most {rows} components"))
                .at("model.components");
        }
        if loaded.clients.iter().any(|(_, data)| matches!(data, ClientData::Stream(_))) {
            self.work.estimator.check_stream(&self.work.batch)?;
        }
        Ok(())
    }

    /// The plan with its messages.
    pub fn planned(self, common: &Common) -> Result<Planned> {
        let mut warnings = Vec::new();
        if self.start == MixtureStart::Examples {
            warnings.push("init = \"examples\" sends raw rows of clients to the server".into());
        }
        if common.total_rows.is_some_and(|rows| rows <= self.model.components() as u64) {
            warnings.push("there are no more rows than components".into());
        }
        warnings.extend(outer_loops::warning(&self.work));
        let mut notes = self.preparing.notes();
        let settings: Vec<String> = outer_loops::note(&self.work).into_iter().collect();
        if let Some(private) = &self.private {
            if private.unit == PrivacyUnit::Client
                && (common.job.privacy.clip, common.total_rows) == (None, None)
            {
                let what = "the bound of a client follows the number of rows, which is unknown";
                return refuse(what, "give `clip` in [privacy]").at("privacy");
            }
            let q = self.model.statistic_len();
            let (note, more) = private.messages(q, self.bound(common));
            notes.push(note);
            warnings.extend(more);
        }
        if let Some(group) = common.job.privacy.groups().filter(|_| K::SURROGATES) {
            notes.push(format!(
                "min_group = {group}: clients compute with surrogates of groups of {group} to {} similar rows",
                2 * group - 1
            ));
        }
        let (rounds, (_, passes)) = (self.rounds(common), self.channels.opening());
        if let (Budget::Epochs(epochs), Some(rounds), true) =
            (common.budget(), rounds, passes > 1.0)
        {
            notes.push(format!(
                "epochs = {epochs} gives {rounds} rounds: the first one passes over all rows {passes} times, \
                 for the first state and the first memories"
            ));
        }
        let rows_wanted = ROWS_PER_GROUP * self.model.components() * common.group_min();
        let each = common.total_rows.map(|rows| rows / common.clients.max(1) as u64);
        warnings.extend(each.and_then(|rows| few_rows(&common.job, Some(rows_wanted), rows)));
        let channels = self.channels.clone();
        Ok(Planned {
            rows_wanted: Some(rows_wanted),
            rounds,
            warnings,
            notes,
            settings,
            batch_min: self.work.batch.size(),
            memory: self.memory().map(<[f64]>::to_vec),
            offered: self.without_file(),
            private: self.private.clone(),
            ..Planned::new(common, &channels, self)
        })
    }

    /// The fit for clients, who do not receive the init file.
    fn without_file(&self) -> Option<Box<dyn Fit>> {
        let mut fit = self.asked.clone();
        *fit.mixture.init_path()? = elsewhere("json");
        fit.mixture.keep_of_file(&self.model);
        Some(Box::new(fit))
    }

    fn rounds(&self, common: &Common) -> Option<u32> {
        match self.budget(common) {
            Budget::Converged(most) => Some(most),
            _ => common.rounds(&self.work, self.channels.opening()),
        }
    }

    /// The length of the fit. The most rounds of a fit that ends by itself grow with `(1 + omega) / p`,
    /// which slows it.
    fn budget(&self, common: &Common) -> Budget {
        match common.budget() {
            Budget::Converged(most) => {
                let slower = 1.0 + outer_loops::omega(&self.channels.uplinks);
                let slower = slower / common.participation_mean();
                Budget::Converged((f64::from(most) * slower).ceil() as u32)
            }
            given => given,
        }
    }

    fn memory(&self) -> Option<&[f64]> {
        match &self.channels.memories {
            FirstMemories::Given(memory) => Some(memory),
            FirstMemories::Oracle | FirstMemories::Zero => None,
        }
    }

    fn fit(
        &self,
        common: &Common,
        model: K::Model,
        initial: MixtureInitial,
        step: EmStep,
    ) -> Result<FedEm<K::Model>> {
        let (bound, q) = (self.bound(common), model.statistic_len());
        let release = self.private.as_ref().map(|private| private.release(common, q, bound));
        let release = release.transpose()?;
        let private = self.private.as_ref().map(|private| PrivateEm {
            row_bound: (private.unit == PrivacyUnit::Row).then_some(bound),
            distributed: common.job.privacy.is_masked(),
            averaged: private.averaged(),
        });
        Ok(FedEm {
            terms: Terms {
                budget: self.budget(common),
                ..self.channels.private_terms(common, release)
            },
            oracle: Em {
                model,
                initial,
                step,
                estimator: self.work.estimator,
                batch: self.work.batch,
                form: self.form,
                frame: common.job.uplink.frame.unwrap_or_default(),
                moments: None,
                private,
            },
        })
    }

    /// The bound of a contribution in the frame, under differential privacy.
    fn bound(&self, common: &Common) -> f64 {
        let privacy = &common.job.privacy;
        let (q, clients) = (self.model.statistic_len() as f64, common.clients as f64);
        privacy.clip.unwrap_or_else(|| match privacy.unit {
            PrivacyUnit::Row => 1.5 * q.sqrt(),
            PrivacyUnit::Client => {
                0.7 * (q * clients / common.total_rows.unwrap_or(1) as f64).sqrt()
            }
        })
    }

    /// The step, from the job or from the estimated constants.
    fn step(&self, common: &Common, theory: Option<&Artifact>) -> whimbrel_core::Result<EmStep> {
        let given = match common.job.method.step {
            Step::Constant(gamma) => Schedule::constant(gamma),
            Step::Decreasing { initial, power, delay } => {
                Schedule::decreasing(initial, power, delay)
            }
            Step::Auto if self.private.is_some() => Schedule::constant(PRIVATE_STEP),
            Step::Auto if self.asked.is_pooled() => Schedule::constant(1.0),
            Step::Auto => return Ok(EmStep::Auto(self.auto_step(common))),
            Step::Theory => {
                let missing =
                    || Error::internal("the constants of step = \"theory\" were not estimated");
                Schedule::constant(theory.ok_or_else(missing)?.number("gamma")?)
            }
            Step::OverL(_) | Step::OverLRoot | Step::Parts { .. } => {
                Err(Error::config("the EM methods have no smoothness constant L"))
            }
        };
        given.map(if self.private.is_some() { EmStep::Within } else { EmStep::Given })
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
            // Variance reduction removes the noise of minibatches.
            falls: samples && !recursive,
            trusts: omega_with_sampling(omega, p) > 0.0 || samples && recursive || !exact_down,
        }
    }
}

impl<K: MixtureKeys> FitStages for EmPlan<K> {
    fn count(&self) -> usize {
        self.stages.len()
    }

    fn build(&self, common: &Common, index: usize, delivered: &[Artifact]) -> Built {
        let kind = self.stages[index];
        let preparation = self.preparing.delivered(delivered)?;
        if kind == Kind::Prepare {
            return self.preparing.build(common, preparation);
        }
        let width = preparation.as_ref().map_or(self.width, Preparation::width);
        if width != self.width {
            // Only the preparing stage determines the constant columns for certain.
            let plan = self.again(common, self.asked.clone(), width)?;
            return plan.build(common, index, delivered);
        }
        if let Some(components) = self.chosen_components(delivered)? {
            let mixture = self.asked.mixture.with_components(components);
            let asked = EmFit { mixture, ..self.asked.clone() };
            return self.again(common, asked, self.width)?.build(common, index, delivered);
        }
        let (model, initial) = self.initial(common, &preparation, delivered)?;
        Ok(match kind {
            Kind::Moments => {
                let moments = Moments { model, weights: common.weights() };
                common.quiet("moments", exact_sums(common, pooled::Stage(moments), preparation))
            }
            Kind::Choose => {
                let choice = self.choice(common, preparation.as_ref())?;
                common.quiet("choice of the mixture", bound(choice, preparation))
            }
            Kind::Kmeans if common.job.uplink.is_on_grid() => {
                let moments = self.moments(delivered)?.unwrap_or_default();
                let rows_min = common.privacy().min_group.map_or(1, |group| group as usize);
                let method = Clustering { model, moments, rows_min };
                common.quiet("k-means", exact_sums(common, method, preparation))
            }
            Kind::Kmeans => {
                let kmeans = Once(FederatedKmeans { model, rows_min: common.group_min() });
                common.quiet("federated k-means", bound(kmeans, preparation))
            }
            Kind::Lloyd => {
                common.quiet("noisy k-means", federated(self.noisy_kmeans(common)?, preparation))
            }
            Kind::Constants => {
                let fit = self.fit(common, model, initial, Schedule::constant(1.0)?.into())?;
                let participation = common.participation_mean();
                common.quiet("constants", bound(Constants { fit, participation }, preparation))
            }
            Kind::Prepare | Kind::Fit => {
                let step = self.step(common, delivered.iter().find(|a| a.kind == THEORY))?;
                let mut fit = self.fit(common, model, initial, step)?;
                fit.oracle.moments = self.moments(delivered)?;
                let usual = common.rounds(&self.work, self.channels.opening());
                common.fit(federated(fit, preparation), usual)
            }
        })
    }

    fn stand_in(&self, index: usize) -> Artifact {
        match self.stages[index] {
            Kind::Prepare => self.preparing.stand_in(index),
            Kind::Constants => Artifact::new(THEORY).with("gamma", &[], vec![1.0]),
            Kind::Moments => {
                let length = self.model.moments_len();
                Artifact::new(MOMENTS).with(MOMENTS, &[length], vec![0.0; length])
            }
            Kind::Choose => Choice::stand_in(self.model.components() as u32),
            Kind::Kmeans => Artifact::new("start"),
            Kind::Lloyd => Artifact::new("simple"),
            Kind::Fit => Artifact::new(self.asked.mixture.words().0),
        }
    }
}

impl<K: MixtureKeys> EmPlan<K> {
    /// The model in the units of the prepared rows, and its start: that of the last stage, if any.
    fn initial(
        &self,
        common: &Common,
        preparation: &Option<Preparation>,
        delivered: &[Artifact],
    ) -> whimbrel_core::Result<(K::Model, MixtureInitial)> {
        let (job, mixture) = (&common.job, &self.asked.mixture);
        let (model, start) = match preparation.as_ref().and_then(Preparation::affine) {
            Some(affine) => {
                mixture.model_and_start(job, self.width, self.file.as_ref(), Some(affine))?
            }
            None => (self.model.clone(), self.start.clone()),
        };
        // Parameters of an earlier stage are in the units of the fit already.
        let start = match delivered.last().and_then(|a| a.tensor("theta")) {
            Some(theta) => {
                model
                    .from_vector(&theta.values)
                    .map_err(|e| Error::peer(format!("a start: {e}")))?;
                MixtureStart::Given(theta.values.clone())
            }
            None => match self.lloyd_start(common, &model, delivered)? {
                Some(theta) => MixtureStart::Given(theta),
                None => start,
            },
        };
        Ok((model, MixtureInitial { start, preparation: preparation.clone() }))
    }

    /// The pooled moments, if that stage has run.
    fn moments(&self, delivered: &[Artifact]) -> whimbrel_core::Result<Option<Vec<f64>>> {
        let found = delivered.iter().find(|a| a.kind == MOMENTS);
        found.map(|found| found.values(MOMENTS, self.model.moments_len())).transpose()
    }

    fn choice(
        &self,
        common: &Common,
        preparation: Option<&Preparation>,
    ) -> whimbrel_core::Result<MixtureChoice<K::Model>> {
        let affine = preparation.and_then(Preparation::affine);
        let mixture = &self.asked.mixture;
        let candidates = mixture.candidates();
        let model = |k: &usize| {
            let mixture = mixture.with_components(*k);
            mixture.model_and_start(&common.job, self.width, None, affine).map(|(m, _)| m)
        };
        Ok(MixtureChoice {
            models: candidates.components.iter().map(model).collect::<Result<_, Error>>()?,
            starts: starts(common, &candidates),
            clusters: *candidates.init == Init::FederatedKmeans,
            rows_min: common.group_min(),
            privacy: common.privacy(),
            log_scale: preparation.map_or(0.0, Preparation::log_scale),
        })
    }

    /// The stage of noisy k-means, over the channels of the job.
    fn noisy_kmeans(&self, common: &Common) -> Result<Federated<Plain<Lloyd>>> {
        let method = self.lloyd(common);
        let dimension = [method.dimension()];
        let release = self.private.as_ref().map(|private| {
            private.start_release(common, lloyd::ROUNDS, dimension[0], lloyd::ROW_BOUND)
        });
        let channels = Channels::new(common, &Vectors::gradients(&dimension))?;
        let terms = channels.private_terms(common, release.transpose()?);
        let terms = Terms { budget: Budget::Rounds(lloyd::ROUNDS), ..terms };
        Ok(Federated { oracle: Plain { method, columns: self.width }, terms })
    }

    /// The noisy k-means of a private start.
    fn lloyd(&self, common: &Common) -> Lloyd {
        let key = Key::root(common.job.seed).child(PRIVATE_START);
        Lloyd::new(self.model.components(), self.width, key)
    }

    /// The start at the centres of noisy k-means, if that stage has run.
    fn lloyd_start(
        &self,
        common: &Common,
        model: &K::Model,
        delivered: &[Artifact],
    ) -> whimbrel_core::Result<Option<Vec<f64>>> {
        let found = delivered.last().and_then(|a| a.tensor("parameters"));
        let Some(found) = found.filter(|_| self.stages.contains(&Kind::Lloyd)) else {
            return Ok(None);
        };
        let lloyd = self.lloyd(common);
        if found.values.len() != lloyd.dimension() || !vector::all_finite(&found.values) {
            return Err(Error::peer("centres of noisy k-means that do not fit the job"));
        }
        // Of all weights, equal ones have the least noise in the component that has the most.
        let weights = vec![1.0 / lloyd.clusters as f64; lloyd.clusters];
        let means = lloyd.centres(&found.values);
        let theta = model.initial_isotropic(&weights, &means, PRIVATE_VARIANCE)?;
        Ok(Some(model.to_vector(&theta)))
    }

    /// The chosen number of components, if it is not that of the plan. Clients refuse a number that
    /// the job does not name: their messages grow with the components.
    fn chosen_components(&self, delivered: &[Artifact]) -> whimbrel_core::Result<Option<usize>> {
        let Some(choice) = Choice::of(delivered) else { return Ok(None) };
        let components = choice.chosen()?.components as usize;
        if !self.asked.mixture.candidates().components.contains(&components) {
            let what = format!("{components} components were chosen, which the job does not name");
            return Err(Error::peer(what));
        }
        Ok(Some(components).filter(|components| *components != self.model.components()))
    }
}

/// The starts of a fit. Where one client holds all rows, k-means has no second chance on the server.
fn starts(common: &Common, candidates: &Candidates<'_>) -> u32 {
    let by_clusters = *candidates.init == Init::FederatedKmeans;
    let alone = common.clients == 1 && by_clusters && !common.job.privacy.is_masked();
    if alone { candidates.starts.max(STARTS_ALONE) } else { candidates.starts }
}

fn stages(
    common: &Common,
    candidates: &Candidates<'_>,
    preparing: &Preparing,
    moments: usize,
) -> Vec<Kind> {
    let from_file = matches!(candidates.init, Init::File(_));
    let start = if common.private.is_some() {
        (!from_file).then_some(Kind::Lloyd)
    } else if candidates.components.len() > 1 || starts(common, candidates) > 1 {
        Some(Kind::Choose)
    } else {
        (*candidates.init == Init::FederatedKmeans).then_some(Kind::Kmeans)
    };
    let constants = (common.job.method.step == Step::Theory).then_some(Kind::Constants);
    let prepare = vec![Kind::Prepare; preparing.stages()];
    let sums = (common.job.uplink.is_on_grid() && common.private.is_none() && moments > 0)
        .then_some(Kind::Moments);
    prepare.into_iter().chain(sums).chain(start).chain(constants).chain([Kind::Fit]).collect()
}

/// The first memory that the coordinator sent.
fn sent_memory(memory: Option<&[f64]>, q: usize) -> Result<Vec<f64>> {
    match memory {
        Some(memory) if memory.len() == q => Ok(memory.to_vec()),
        _ => Err(Error::peer("the offer lacks the initial memory named by the job").into()),
    }
}
