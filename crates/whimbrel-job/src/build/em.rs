//! Mixtures: stages that standardise, start, bound the step and fit.

use super::{Common, channels, loops};
use crate::failure::Result;
use crate::load::Loaded;
use crate::spec::{
    Covariance as CovarianceKey, Form as FormKey, Gmm as GmmKey, Init, MemoryStart, MethodKind,
    Step, UpRule as UpKey,
};
use crate::start::{InitFile, read_init, read_memory};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use whimbrel_codec::channel::{DownRule, Downlink, Uplink, gradient_alpha};
use whimbrel_core::method::{Artifact, Bind, Evaluate};
use whimbrel_core::{ClientData, DynMethod, Erased, Error};
use whimbrel_engine::Stage;
use whimbrel_methods::fedem::{Batch, BindRows, FedEm, FirstMemories, Form, Oracle};
use whimbrel_methods::gmm::{GmmInitial, GmmStart};
use whimbrel_methods::kmeans::FederatedKmeans;
use whimbrel_methods::spider::auto_spider_step;
use whimbrel_methods::standardize::{Affine, BindStandardized, Standardize};
use whimbrel_methods::step::{Schedule, auto_step};
use whimbrel_methods::theory::Constants;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmPenalty, GmmSettings};

/// The decreasing step that minibatches get without asking.
const AUTO_POWER: f64 = 0.6;
const AUTO_DELAY: f64 = 20.0;

/// A mixture and the EM method that fits it.
pub(super) struct EmPlan {
    key: GmmKey,
    columns: usize,
    /// The file that the fit starts from.
    file: Option<(PathBuf, InitFile)>,
    /// The model and its start in the units of the data.
    model: Gmm,
    start: GmmStart,
    form: Form,
    memories: FirstMemories,
    uplinks: Vec<Uplink>,
    own_uplinks: BTreeMap<u32, u8>,
    downlink: Downlink,
    /// Columns that hold one value throughout.
    constant: Vec<String>,
}

/// What a stage is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Standardize,
    Kmeans,
    Constants,
    Fit,
}

impl EmPlan {
    pub fn new(common: &mut Common, key: &GmmKey, loaded: &Loaded) -> Result<Self> {
        let columns = loaded.columns.len();
        let file = match &key.init {
            Init::File(path) => Some((path.clone(), read_init(path)?)),
            _ => None,
        };
        let (model, start) = settle(key, columns, file.as_ref(), None)?;
        let q = model.statistic_len();
        let (uplinks, own_uplinks) = channels::uplinks(&common.job, &common.names, q)?;
        loops::settle(common, &uplinks);
        let job = &common.job;
        let form = match job.method.form {
            Some(FormKey::State) => Form::State,
            Some(FormKey::Lean) => Form::Lean,
            Some(FormKey::Pair) | None => Form::Pair,
        };
        let downlink = channels::downlink(job, &common.names, &form.blocks(&model), None)?;
        form.check(&uplinks[0], &downlink)?;
        let memories = match &job.uplink.rule {
            UpKey::Memory { start: MemoryStart::Oracle, .. } => FirstMemories::Oracle,
            UpKey::Memory { start: MemoryStart::File(path), .. } => {
                FirstMemories::Given(read_memory(path, q)?)
            }
            _ => FirstMemories::Zero,
        };
        let key = key.clone();
        let constant = constant_columns(loaded);
        let plan = Self {
            key,
            columns,
            file,
            model,
            start,
            form,
            memories,
            uplinks,
            own_uplinks,
            downlink,
            constant,
        };
        if loaded.clients.iter().any(|(_, data)| matches!(data, ClientData::Stream(_))) {
            let start = GmmInitial::plain(plan.start.clone());
            plan.fit(common, plan.model.clone(), start, Schedule::constant(1.0)?).check_stream()?;
        }
        Ok(plan)
    }

    pub fn uplink(&self) -> &Uplink {
        &self.uplinks[0]
    }

    pub fn downlink(&self) -> &Downlink {
        &self.downlink
    }

    pub fn warnings(&self, common: &Common) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.start == GmmStart::Examples {
            warnings.push(
                "init = \"examples\" sends some of the clients' raw rows to the server".into(),
            );
        }
        if common.total_rows.is_some_and(|rows| rows <= self.model.components() as u64) {
            warnings.push("there are no more rows than components".into());
        }
        warnings.extend(loops::warning(common));
        for column in &self.constant {
            warnings.push(format!(
                "column `{column}` is constant: leave it out with `columns`, or set reg_covar"
            ));
        }
        warnings
    }

    pub fn stages(&self, common: &Common) -> Vec<Kind> {
        let standardize = common.job.data.standardize().then_some(Kind::Standardize);
        let kmeans = (self.key.init == Init::FederatedKmeans).then_some(Kind::Kmeans);
        let constants = (common.job.method.step == Step::Theory).then_some(Kind::Constants);
        standardize.into_iter().chain(kmeans).chain(constants).chain([Kind::Fit]).collect()
    }

    pub fn build(
        &self,
        common: &Common,
        index: usize,
        delivered: &[Artifact],
    ) -> whimbrel_core::Result<Stage> {
        let of_kind = |kind: &str| delivered.iter().find(|a| a.kind == kind);
        let affine = of_kind("standardize").and_then(Affine::from_artifact);
        let (model, start) = match &affine {
            None => (self.model.clone(), self.start.clone()),
            Some(_) => settle(&self.key, self.columns, self.file.as_ref(), affine.as_ref())?,
        };
        // An earlier stage's parameters are in the units of the fit already.
        let start = match delivered.last().and_then(|a| a.tensor("theta")) {
            Some(theta) => GmmStart::Given(theta.values.clone()),
            None => start,
        };
        let initial = GmmInitial { start, affine: affine.clone() };
        Ok(match self.stages(common)[index] {
            Kind::Standardize => {
                let columns = self.columns;
                common.quiet("standardise", Box::new(Erased(Standardize { columns }, BindRows)))
            }
            Kind::Kmeans => {
                common.quiet("federated k-means", bound(FederatedKmeans { model }, affine))
            }
            Kind::Constants => {
                let fit = self.fit(common, model, initial, Schedule::constant(1.0)?);
                let participation = common.participation_mean();
                common.quiet("constants", bound(Constants { fit, participation }, affine))
            }
            Kind::Fit => {
                let schedule = self.schedule(common, of_kind("theory"))?;
                common.fit(bound(self.fit(common, model, initial, schedule), affine))
            }
        })
    }

    fn fit(
        &self,
        common: &Common,
        model: Gmm,
        initial: GmmInitial,
        schedule: Schedule,
    ) -> FedEm<Gmm> {
        FedEm {
            model,
            initial: Arc::new(initial),
            schedule,
            budget: common.budget(),
            oracle: common.oracle(),
            batch: common.batch(),
            weights: common.weights(),
            memories: self.memories.clone(),
            form: self.form,
            uplinks: self.uplinks.clone(),
            own_uplinks: self.own_uplinks.clone(),
            downlink: self.downlink.clone(),
        }
    }

    /// The step, from the job or from the constants that a stage estimated.
    fn schedule(
        &self,
        common: &Common,
        theory: Option<&Artifact>,
    ) -> whimbrel_core::Result<Schedule> {
        match common.job.method.step {
            Step::Constant(gamma) => Schedule::constant(gamma),
            Step::Decreasing { initial, power, delay } => {
                Schedule::decreasing(initial, power, delay)
            }
            Step::Auto if common.job.method.kind == MethodKind::Em => Schedule::constant(1.0),
            Step::Auto => {
                let gamma = self.auto_step(common);
                match (common.oracle(), common.batch()) {
                    (Oracle::Minibatch, Batch::Sample { .. }) => {
                        Schedule::decreasing(gamma, AUTO_POWER, AUTO_DELAY)
                    }
                    // Without the noise of minibatches, and where it goes to zero.
                    _ => Schedule::constant(gamma),
                }
            }
            Step::Theory => {
                let gamma = theory.and_then(|a| a.tensor("gamma")).map(|t| t.values[0]);
                let missing = || Error::internal("the constants of the theory were not estimated");
                Schedule::constant(gamma.ok_or_else(missing)?)
            }
            Step::OverL(_) | Step::OverLRoot => {
                Err(Error::config("the EM methods have no smoothness constant L"))
            }
        }
    }

    fn auto_step(&self, common: &Common) -> f64 {
        let (p, clients) = (common.participation_mean(), common.names.len());
        let gamma = match loops::spider(common, &self.uplinks) {
            Some(spider) => auto_spider_step(&spider, p),
            None => auto_step(loops::omega(&self.uplinks), p, clients),
        };
        match (self.downlink.rule(), self.downlink.omega()) {
            // No faster than the memories that follow the state.
            (DownRule::Preserved { .. }, Some(omega)) => gamma.min(gradient_alpha(omega)),
            _ => gamma,
        }
    }
}

/// A stage's method over rows as they are, or standardised.
fn bound<M>(method: M, affine: Option<Affine>) -> Box<dyn DynMethod>
where
    M: Evaluate,
    BindRows: Bind<M>,
    BindStandardized: Bind<M>,
{
    match affine {
        None => Box::new(Erased(method, BindRows)),
        Some(affine) => Box::new(Erased(method, BindStandardized(affine))),
    }
}

/// The model and its start, in standardised units where there is a map to them.
fn settle(
    key: &GmmKey,
    columns: usize,
    file: Option<&(PathBuf, InitFile)>,
    affine: Option<&Affine>,
) -> whimbrel_core::Result<(Gmm, GmmStart)> {
    let covariance = covariance(key, file.map(|(_, init)| init), affine)?;
    let mut settings = GmmSettings::new(key.components, columns, covariance);
    settings.reg_covar = key.reg_covar;
    settings.weight_floor = key.weight_floor;
    settings.covariance_floor = key.covariance_floor;
    settings.penalty = GmmPenalty {
        dirichlet: key.penalty.dirichlet,
        wishart_degrees: key.penalty.inverse_wishart.nu,
        wishart_scale: key.penalty.inverse_wishart.psi,
    };
    settings.want_moments = file.is_none();
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

fn covariance(
    key: &GmmKey,
    init: Option<&InitFile>,
    affine: Option<&Affine>,
) -> whimbrel_core::Result<Covariance> {
    let mut known = match key.covariance {
        CovarianceKey::Tied => return Ok(Covariance::Tied),
        CovarianceKey::Diagonal => return Ok(Covariance::Diagonal),
        CovarianceKey::Full => return Ok(Covariance::Full),
        CovarianceKey::Known => match (&key.known_covariance, init) {
            (Some(matrix), _) => matrix.concat(),
            (None, Some(init)) if !init.covariance.is_empty() => init.covariance.clone(),
            _ => {
                return Err(Error::config("covariance = \"known\" needs the covariance").hint(
                    "give known_covariance = [[..], ..] in [model], or a `covariance` in the init file",
                ));
            }
        },
    };
    if let Some(affine) = affine {
        affine.covariances_forward(&mut known);
    }
    Ok(Covariance::Known(known))
}

/// Columns with one value in every row of every table.
fn constant_columns(loaded: &Loaded) -> Vec<String> {
    let mut first: Option<Vec<f64>> = None;
    let mut varies = vec![false; loaded.columns.len()];
    for (_, data) in &loaded.clients {
        let ClientData::Table(table) = data else { return Vec::new() };
        for i in 0..table.rows() {
            let row = table.row(i);
            let first = first.get_or_insert_with(|| row.to_vec());
            for ((v, x), f) in varies.iter_mut().zip(row).zip(first.iter()) {
                *v |= x != f;
            }
        }
    }
    let names = loaded.columns.iter().zip(varies);
    names.filter(|(_, varies)| !varies).map(|(name, _)| name.clone()).collect()
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
    let mut covariance = if known { Vec::new() } else { init.covariance.clone() };
    // One matrix may stand for all components.
    let (k, d) = (model.components(), model.columns());
    if covariance.len() == d * d && k > 1 {
        match model.settings().covariance {
            Covariance::Full => covariance = covariance.repeat(k),
            Covariance::Diagonal if d > 1 && k != d => {
                let variances: Vec<f64> = (0..d).map(|j| covariance[j * (d + 1)]).collect();
                covariance = variances.repeat(k);
            }
            _ => {}
        }
    }
    if covariance.is_empty() && !known {
        return Err(Error::config("`covariance` is missing"));
    }
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
