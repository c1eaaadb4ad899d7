//! From a job and its clients to the chain of stages that the engine runs.
//!
//! The only place that knows concrete models and methods: it matches the model kind once and the
//! method kind once.

use crate::failure::{Failure, Result};
use crate::load::Loaded;
use crate::spec::{
    Batch as BatchKey, Blocks, Codec as CodecKey, Covariance as CovarianceKey, Init, Job, Kept,
    Length, MemoryStart, MethodKind, Model, Norm as NormKey, Participation as ParticipationKey,
    Step, UpRule as RuleKey, Weights as WeightsKey,
};
use crate::start::{InitFile, read_init, read_memory};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, UpRule, Uplink, em_alpha};
use whimbrel_codec::{BlockP, Codec, Norm};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, ClientId, Erased, Error, Probability};
use whimbrel_engine::{Chain, Faults, Participation, Stage, Stopping};
use whimbrel_methods::fedem::{Batch, BindRows, Budget, FedEm, FirstMemories, Form, Weights};
use whimbrel_methods::gmm::{GmmInitial, GmmStart};
use whimbrel_methods::kmeans::FederatedKmeans;
use whimbrel_methods::step::{Schedule, auto_step};
use whimbrel_methods::theory::Constants;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmPenalty, GmmSettings};

/// Evaluations of a run that does not say how many it wants.
const EVALUATIONS: u32 = 100;
/// The decreasing step that minibatches get without asking.
const AUTO_POWER: f64 = 0.6;
const AUTO_DELAY: f64 = 20.0;

/// A job with its clients known: everything checked that can be checked without running.
pub struct Plan {
    job: Job,
    model: Gmm,
    start: GmmStart,
    names: Vec<String>,
    total_rows: Option<u64>,
    participation: Participation,
    faults: Faults,
    uplink: Uplink,
    memories: FirstMemories,
}

/// What a stage is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Kmeans,
    Constants,
    Fit,
}

impl Plan {
    /// Checks a job against its clients.
    pub fn new(job: &Job, loaded: &Loaded) -> Result<Self> {
        let columns = loaded.columns.len();
        let Model::Gmm(table) = &job.model;
        let file = match &table.init {
            Init::File(path) => Some((path, read_init(path)?)),
            _ => None,
        };
        let known = known_covariance(job, file.as_ref().map(|(_, init)| init))?;
        let mut settings = GmmSettings::new(table.components, columns, known);
        settings.reg_covar = table.reg_covar;
        settings.weight_floor = table.weight_floor;
        settings.covariance_floor = table.covariance_floor;
        settings.penalty = GmmPenalty {
            dirichlet: table.penalty.dirichlet,
            wishart_degrees: table.penalty.inverse_wishart.nu,
            wishart_scale: table.penalty.inverse_wishart.psi,
        };
        settings.want_moments = file.is_none();
        let model = Gmm::new(settings)?;
        let start = match &file {
            Some((path, init)) => given(&model, init).map_err(|e| match e {
                Error::Config { what, hint } => {
                    Error::Config { what: format!("{}: {what}", path.display()), hint }
                }
                other => other,
            })?,
            None if table.init == Init::Examples => GmmStart::Examples,
            None => GmmStart::Moments,
        };
        let q = model.statistic_len();
        let codec = codec(&job.uplink.codec)?;
        let omega = codec.omega(q);
        let (rule, memories) = match &job.uplink.rule {
            RuleKey::Plain => (UpRule::Plain, FirstMemories::Zero),
            RuleKey::Feedback => (UpRule::Feedback, FirstMemories::Zero),
            RuleKey::Memory { alpha, start } => {
                let alpha = alpha.unwrap_or_else(|| em_alpha(omega.unwrap_or(0.0)));
                let memories = match start {
                    MemoryStart::Oracle => FirstMemories::Oracle,
                    MemoryStart::Zero => FirstMemories::Zero,
                    MemoryStart::File(path) => FirstMemories::Given(read_memory(path, q)?),
                };
                (UpRule::Memory { alpha }, memories)
            }
        };
        let names: Vec<String> = loaded.clients.iter().map(|(name, _)| name.clone()).collect();
        let plan = Self {
            participation: participation(&job.method.participation, &names)?,
            faults: faults(job, &names)?,
            uplink: Uplink::new(codec, rule, q)?,
            total_rows: loaded.total_rows(),
            job: job.clone(),
            model,
            start,
            names,
            memories,
        };
        let streams = loaded.clients.iter().any(|(_, d)| matches!(d, ClientData::Stream(_)));
        if streams {
            plan.fit(plan.start.clone(), Schedule::constant(1.0)?).check_stream()?;
        }
        Ok(plan)
    }

    /// The mixture.
    pub fn model(&self) -> &Gmm {
        &self.model
    }

    /// The uplink, its codec's constants resolved.
    pub fn uplink(&self) -> &Uplink {
        &self.uplink
    }

    /// The rounds that are planned, where the job or the data tell.
    pub fn rounds(&self) -> Option<u32> {
        match self.job.method.length {
            Length::Rounds(rounds) => Some(rounds),
            Length::Epochs(epochs) => {
                let rows = self.total_rows? as f64;
                let clients = self.names.len() as f64;
                let each = batch(&self.job).expectations((rows / clients) as u64) as f64;
                let per_round = each * clients * self.participation.mean(self.names.len());
                Some((epochs * rows / per_round).ceil() as u32)
            }
        }
    }

    /// What is worth saying before the run starts.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.start == GmmStart::Examples {
            warnings.push(
                "init = \"examples\" sends some of the clients' raw rows to the server".into(),
            );
        }
        if self.total_rows.is_some_and(|rows| rows <= self.model.components() as u64) {
            warnings.push("there are no more rows than components".into());
        }
        warnings
    }

    fn kinds(&self) -> Vec<Kind> {
        let Model::Gmm(table) = &self.job.model;
        let kmeans = (table.init == Init::FederatedKmeans).then_some(Kind::Kmeans);
        let constants = (self.job.method.step == Step::Theory).then_some(Kind::Constants);
        kmeans.into_iter().chain(constants).chain([Kind::Fit]).collect()
    }

    fn fit(&self, start: GmmStart, schedule: Schedule) -> FedEm<Gmm> {
        FedEm {
            model: self.model.clone(),
            initial: Arc::new(GmmInitial::plain(start)),
            schedule,
            budget: match self.job.method.length {
                Length::Rounds(rounds) => Budget::Rounds(rounds),
                Length::Epochs(epochs) => Budget::Epochs(epochs),
            },
            batch: batch(&self.job),
            weights: match self.job.method.weights {
                WeightsKey::Samples => Weights::Samples,
                WeightsKey::Equal => Weights::Equal,
            },
            memories: self.memories.clone(),
            uplink: self.uplink.clone(),
            form: Form::Pair,
            downlink: Downlink::exact(Form::Pair.published_len(&self.model)),
        }
    }

    /// The step, from the job or from the constants that a stage estimated.
    fn schedule(&self, theory: Option<&Artifact>) -> whimbrel_core::Result<Schedule> {
        match self.job.method.step {
            Step::Constant(gamma) => Schedule::constant(gamma),
            Step::Decreasing { initial, power, delay } => {
                Schedule::decreasing(initial, power, delay)
            }
            Step::Auto if self.job.method.kind == MethodKind::Em => Schedule::constant(1.0),
            Step::Auto => {
                let omega = self.uplink.omega().or_else(|| {
                    let delta = self.uplink.codec().contraction(self.uplink.dimension())?;
                    Some(1.0 / delta - 1.0)
                });
                let p = self.participation.mean(self.names.len());
                let gamma = auto_step(omega.unwrap_or(0.0), p, self.names.len());
                match self.job.method.batch {
                    BatchKey::Full => Schedule::constant(gamma),
                    BatchKey::Mini { .. } => Schedule::decreasing(gamma, AUTO_POWER, AUTO_DELAY),
                }
            }
            Step::Theory => {
                let gamma = theory.and_then(|a| a.tensor("gamma")).map(|t| t.values[0]);
                let missing = || Error::internal("the constants of the theory were not estimated");
                Schedule::constant(gamma.ok_or_else(missing)?)
            }
        }
    }

    fn evaluate_every(&self) -> u32 {
        let automatic = || self.rounds().map_or(10, |rounds| rounds.div_ceil(EVALUATIONS));
        self.job.method.evaluate_every.unwrap_or_else(automatic).max(1)
    }
}

impl Chain for Plan {
    fn len(&self) -> usize {
        self.kinds().len()
    }

    fn build(&self, index: usize, delivered: &[Artifact]) -> whimbrel_core::Result<Stage> {
        let of_kind = |kind: &str| delivered.iter().find(|a| a.kind == kind);
        let start = match delivered.last().and_then(|a| a.tensor("theta")) {
            Some(theta) => GmmStart::Given(theta.values.clone()),
            None => self.start.clone(),
        };
        let quiet = |name, method| Stage {
            name,
            method,
            participation: Participation::Everyone,
            faults: Faults::default(),
            evaluate_every: None,
            stopping: Stopping::default(),
        };
        match self.kinds()[index] {
            Kind::Kmeans => {
                let method = FederatedKmeans { model: self.model.clone() };
                Ok(quiet("federated k-means", Box::new(Erased(method, BindRows))))
            }
            Kind::Constants => {
                let fit = self.fit(start, Schedule::constant(1.0)?);
                let participation = self.participation.mean(self.names.len());
                let method = Constants { fit, participation };
                Ok(quiet("constants", Box::new(Erased(method, BindRows))))
            }
            Kind::Fit => {
                let fit = self.fit(start, self.schedule(of_kind("theory"))?);
                let stop = &self.job.method.stop;
                Ok(Stage {
                    name: "fit",
                    method: Box::new(Erased(fit, BindRows)),
                    participation: self.participation.clone(),
                    faults: self.faults.clone(),
                    evaluate_every: Some(self.evaluate_every()),
                    stopping: Stopping {
                        field_norm2: stop.field_norm2,
                        patience: stop.patience.map(|p| p.evaluations),
                        tolerance: stop.patience.map_or(0.0, |p| p.tolerance),
                    },
                })
            }
        }
    }
}

fn known_covariance(job: &Job, init: Option<&InitFile>) -> Result<Covariance> {
    let Model::Gmm(table) = &job.model;
    Ok(match table.covariance {
        CovarianceKey::Tied => Covariance::Tied,
        CovarianceKey::Diagonal => Covariance::Diagonal,
        CovarianceKey::Full => Covariance::Full,
        CovarianceKey::Known => match (&table.known_covariance, init) {
            (Some(matrix), _) => Covariance::Known(matrix.concat()),
            (None, Some(init)) if !init.covariance.is_empty() => {
                Covariance::Known(init.covariance.clone())
            }
            _ => {
                let error = Error::config("covariance = \"known\" needs the covariance")
                    .hint("give known_covariance = [[..], ..] in [model], or a `covariance` in the init file");
                return Err(error.into());
            }
        },
    })
}

/// The start of a file, checked against the model.
fn given(model: &Gmm, init: &InitFile) -> whimbrel_core::Result<GmmStart> {
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
    let covariance = if known { &[][..] } else { &init.covariance };
    if covariance.is_empty() && !known {
        return Err(Error::config("`covariance` is missing"));
    }
    let theta = model.parameters(&init.weights, &init.means, covariance)?;
    Ok(GmmStart::Given(model.to_vector(&theta)))
}

fn batch(job: &Job) -> Batch {
    match job.method.batch {
        BatchKey::Full => Batch::Full,
        BatchKey::Mini { rows, replacement, local_steps } => {
            Batch::Sample { size: rows, replacement, local_steps }
        }
    }
}

fn codec(key: &CodecKey) -> Result<Codec> {
    let norm = |norm: &NormKey| match norm {
        NormKey::P(p) => Norm::P(*p),
        NormKey::Infinity => Norm::Infinity,
    };
    Ok(match key {
        CodecKey::Exact => Codec::Exact,
        CodecKey::ExactF32 => Codec::ExactF32,
        CodecKey::Dithering { levels, norm: r, bucket } => {
            Codec::dithering(*levels, norm(r), *bucket)?
        }
        CodecKey::BlockP { p, blocks: Blocks::Size(size) } => Codec::block_p(*size, norm(p))?,
        CodecKey::BlockP { p, blocks: Blocks::Sizes(sizes) } => {
            Codec::BlockP(BlockP::listed(sizes.clone(), norm(p))?)
        }
        CodecKey::Sparse(Kept::Probability(q)) => Codec::sparse(*q)?,
        CodecKey::Sparse(Kept::Count(k)) => Codec::sparse_exactly(*k)?,
        CodecKey::Natural => Codec::Natural,
        CodecKey::TopK { k } => Codec::top_k(*k)?,
        CodecKey::Sign => Codec::Sign,
    })
}

fn participation(key: &ParticipationKey, names: &[String]) -> Result<Participation> {
    Ok(match key {
        ParticipationKey::Probability(p) if *p >= 1.0 => Participation::Everyone,
        ParticipationKey::Probability(p) => Participation::Bernoulli(Probability::new(*p)?),
        ParticipationKey::Size(size) => {
            if *size > names.len() {
                let what = format!("a cohort of {size} out of {} clients", names.len());
                let error = Error::config(what)
                    .hint("participation = { size } is at most the number of clients");
                return Err(error.into());
            }
            Participation::Fixed(*size as u32)
        }
        ParticipationKey::PerClient { default, clients } => {
            for name in clients.keys() {
                id_of(name, names, "participation.clients")?;
            }
            let each = names.iter().map(|n| Probability::new(*clients.get(n).unwrap_or(default)));
            Participation::PerClient(each.collect::<whimbrel_core::Result<_>>()?)
        }
    })
}

fn faults(job: &Job, names: &[String]) -> Result<Faults> {
    let mut drops: BTreeMap<u32, BTreeSet<ClientId>> = BTreeMap::new();
    for dropout in &job.simulation.drops {
        for name in &dropout.clients {
            let id = id_of(name, names, "simulation.drops")?;
            drops.entry(dropout.round).or_default().insert(id);
        }
    }
    let mut late = BTreeMap::new();
    for join in &job.simulation.late {
        late.insert(id_of(&join.client, names, "simulation.late")?, join.round);
    }
    if late.len() == names.len() && !names.is_empty() {
        return Err(Failure::config("every client joins late: nobody is there to start with"));
    }
    Ok(Faults { lost: job.simulation.lost, drops, late, replay: None })
}

fn id_of(name: &str, names: &[String], key: &str) -> Result<ClientId> {
    match names.iter().position(|n| n == name) {
        Some(at) => Ok(ClientId(at as u32)),
        None => {
            let some: Vec<&str> = names.iter().take(5).map(String::as_str).collect();
            let more = if names.len() > some.len() { ", ..." } else { "" };
            let error =
                Error::config(format!("`{key}` names client `{name}`, which the data do not have"))
                    .hint(format!("the clients are {}{more}", some.join(", ")));
            Err(error.into())
        }
    }
}
