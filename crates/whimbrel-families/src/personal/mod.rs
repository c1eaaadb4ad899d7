//! Learners trained on the clients: mixtures of learners, and the methods they are compared with.

pub mod decentralised;
pub mod keys;
pub mod own_learner;

mod methods;
pub(crate) mod model;
mod own;
mod plan;
pub(crate) mod predict;
mod results;

use crate::failure::Result;
use crate::family::{
    AdaptOptions, Adapted, Ended, Family, Fit, FittedClient, MethodKind, ModelKind, ModelUse,
    Predicted, Results, RunData, StagePlan, Tables, refuse,
};
use crate::job::method::length::{BATCH, ROUNDS};
use crate::job::method::step::STEP;
use crate::job::{Job, MemoryStart, Step, UpRule};
use crate::load::{Layout, Loaded};
use crate::plan::{Common, Facts, Files};
use crate::predictions::OUTSIDE;
use crate::template::{DataFacts, Suggestion};
use decentralised::Neighbours;
use keys::{LOCAL_EPOCHS, SAMPLING, TRAINING, Training};
use methods::{COMPONENTS, METHODS, Rule, RuleKind};
use model::{LOGISTIC, MODELS, Model, SOFTMAX};
use own::{OWN, OwnTraining};
use plan::PersonalPlan;
use serde_json::{Map, Value};
use std::any::Any;
use std::path::{Path, PathBuf};
use whimbrel_core::method::Artifact;
use whimbrel_data::Input;
use whimbrel_job::form::PATH;
use whimbrel_job::reader::{Read, Source};
use whimbrel_job::writer::Writer;
use whimbrel_methods::personal::{FedAvg, FedMix, Length, LocalRule, Sampling, ServerStep};

/// Learners trained on the clients.
pub static FAMILY: Personal = Personal;

/// Learners trained on the clients.
pub struct Personal;

const SCAFFOLD: &str = "scaffold";
const SGD: &str = "sgd";

impl Family for Personal {
    fn name(&self) -> &'static str {
        "personal"
    }

    fn models(&self) -> &'static [ModelKind] {
        &MODELS
    }

    fn methods(&self) -> &'static [MethodKind] {
        &METHODS
    }

    /// Classes to predict: with clients of a file's own a mixture of learners, else one for all.
    fn suggest(&self, facts: Option<&DataFacts>) -> Option<Suggestion> {
        let facts = facts.filter(|facts| facts.target.is_some())?;
        let mut method_keys = vec![
            (&ROUNDS, "100".into()),
            (&BATCH, "32".into()),
            (&LOCAL_EPOCHS, "1".into()),
            (&STEP, "0.1".into()),
        ];
        if facts.client.is_some() {
            method_keys.insert(0, (&COMPONENTS, "2".into()));
        }
        Some(Suggestion {
            model: if facts.classes == 2 { LOGISTIC } else { SOFTMAX },
            method: if facts.client.is_some() { "fedmix" } else { "fedavg" },
            method_keys,
            ..Suggestion::default()
        })
    }

    fn read(&self, tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
        let kind = RuleKind::of(tables.method_kind.algorithm);
        let model = Model::read(tables.model_kind, tables.model);
        let training = TRAINING.read(tables.method).map(|mut training| {
            if !tables.method.has(&SAMPLING) {
                training.sampling = kind.sampling;
            }
            if tables.method_kind.algorithm == SGD {
                training.length = Length::Steps(1);
            }
            training
        });
        let rule = kind.read(tables.method);
        let server = kind.server.read(tables.method);
        let own = tables.method.read(&OWN, own::read_all);
        let outside = tables.method.optional_as(&OUTSIDE, &PATH);
        let neighbours = kind.has_neighbours().then(|| Neighbours::read(tables.method)).transpose();
        Ok(Box::new(PersonalFit {
            model: model?,
            training: training?,
            rule: rule?,
            server: server?,
            own: own?,
            outside: outside?,
            neighbours: neighbours?,
        }))
    }
}

/// What a job asks: a learner, and how it is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct PersonalFit {
    /// The learner.
    pub model: Model,
    /// Local training.
    pub training: Training,
    /// The method, and what it does with it.
    pub rule: Rule,
    /// How the server moves.
    pub server: ServerStep,
    /// Clients that train in their own way.
    pub own: Vec<OwnTraining>,
    /// Images unlike the data, for the report.
    pub outside: Option<PathBuf>,
    /// The graph, of methods without a server.
    pub neighbours: Option<Neighbours>,
}

impl PersonalFit {
    /// The method's settings, where they are of this type.
    fn setting<R: LocalRule>(&self) -> Option<&R> {
        self.rule.local.downcast_ref()
    }
}

/// Reports what no method over learners takes.
pub(crate) fn check_learners(method: &str, job: &Job, source: &Source<'_>) {
    if !job.method.stop.limits.is_empty() {
        source.report_at(
            &["method", "stop"],
            format!("{method} has neither a field nor a known minimum"),
            "stop with `patience`, or at a number of rounds",
        );
    }
    if let MemoryStart::File(_) = &job.uplink.start {
        source.report_at(
            &["uplink", "start"],
            format!(
                "the memories of {method} start at the first uploads or at zero, not in a file"
            ),
            "write start = \"oracle\" or \"zero\"",
        );
    }
}

impl Fit for PersonalFit {
    fn describe(&self) -> String {
        match self.setting::<FedMix>() {
            Some(fedmix) => format!("{}, {} components", self.model.describe(), fedmix.components),
            None => self.model.describe(),
        }
    }

    fn write_model(&self, out: &mut Writer) {
        self.model.write(out);
    }

    fn write_method(&self, out: &mut Writer) {
        TRAINING.write(&self.training, out);
        self.rule.write(out);
        self.rule.kind.server.write(&self.server, out);
        if !self.own.is_empty() {
            out.put(&OWN, own::write_all(&self.own));
        }
        if let Some(path) = &self.outside {
            out.put(&OUTSIDE, PATH.write(path));
        }
        if let Some(neighbours) = &self.neighbours {
            neighbours.write(out);
        }
    }

    fn check(&self, job: &Job, source: &Source<'_>) {
        let compresses = job.method.channels.is_some() || source.is_given(&["uplink", "rule"]);
        if self.rule.method() == SGD && !compresses && !job.uplink.codec.is_exact() {
            source.report_at(
                &["uplink", "codec"],
                "sgd does not compress: this codec would not be used",
                "take `codec` out, or compress with kind = \"qsgd\", \"diana\" or another preset",
            );
        }
        if !matches!(job.method.step, Step::Auto | Step::Constant(_)) {
            source.report_at(
                &["method", "step"],
                format!("the local step of {} is a number", self.rule.method()),
                "write a number, and milestones in `decay`",
            );
        }
        check_learners("local training", job, source);
        if let Some(neighbours) = &self.neighbours {
            neighbours.check(self.rule.method(), job, source);
        }
        let plain = job.uplink.rule == UpRule::Plain;
        if let Some(fedmix) = self.setting::<FedMix>()
            && fedmix.send_above > 0.0
            && !plain
        {
            source.report_at(
                &["method", "send_above"],
                "components that are not sent are for plain uplinks: memories and error feedback \
                 are about all of them",
                "take `send_above` out, or compress without memories (channels = \"qsgd\")",
            );
        }
        if self.training.sampling == Sampling::Renormalise && !plain {
            source.report_at(
                &["method", "sampling"],
                "a mean over the sampled clients is for plain uplinks: memories and error feedback \
                 count on those who are not sampled",
                "write sampling = \"keep-old\" or \"unbiased\"",
            );
        }
        let compresses = !job.uplink.codec.is_exact() || !job.downlink.codec.is_exact();
        if self.rule.method() == SCAFFOLD && compresses {
            source.report_at(
                &["method", if job.method.channels.is_some() { "channels" } else { "kind" }],
                "the control variates of clients and server drift apart where messages lose something",
                "send exactly, or use kind = \"fedavg\" or \"fedprox\" over this channel",
            );
        }
        if self.rule.local.sends_exactly() && compresses {
            source.report_at(
                &["method", "kind"],
                format!("{} sends what it sends exactly", self.rule.method()),
                "take the codecs out",
            );
        }
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let graph = self.neighbours.as_mut().map_or_else(Vec::new, Neighbours::paths_mut);
        graph.into_iter().chain(&mut self.outside).collect()
    }

    fn without_own(&self, run: &Path) -> Option<(String, String)> {
        let (Some(rule), None) = (self.setting::<FedAvg>(), &self.neighbours) else { return None };
        let (method, run) = (self.rule.method(), run.display());
        Some(match rule.fine_tune {
            true => (
                format!(
                    "{method} keeps no personal model: a client makes its own from the shared one"
                ),
                format!(
                    "`whimbrel adapt {run} --data ROWS --out FOLDER` makes one from the client's rows, and \
                     `whimbrel predict {run} --client FOLDER` uses it"
                ),
            ),
            false => {
                (format!("{method} has one model for all clients"), "leave --client out".into())
            }
        })
    }

    fn check_served(&self, _: &Job) -> Result<()> {
        match self.neighbours {
            None => Ok(()),
            Some(_) => refuse(
                &format!("{} has no server: neighbours talk to each other", self.rule.method()),
                "simulate it with `whimbrel run`, or serve the method without `d-`",
            ),
        }
    }

    fn layout(&self) -> Layout {
        Layout::Samples { classes: self.model.classifies() }
    }

    fn plan(
        &self,
        common: &Common,
        facts: &Facts,
        rows: Option<&Loaded>,
        _: Files<'_>,
    ) -> Result<Box<dyn StagePlan>> {
        Ok(Box::new(PersonalPlan::new(common, self, facts, rows)?))
    }

    fn model_keys(&self, data: &RunData, _: &Artifact) -> Map<String, Value> {
        let mut keys = self.model.keys();
        let remembered = data.remembered.as_ref();
        let kept = remembered.and_then(|kept| kept.downcast_ref::<results::Remembered>());
        let shape = kept.map_or_else(|| vec![data.columns.len()], |r| r.kept.shape.clone());
        keys.insert("shape".into(), shape.into());
        keys
    }

    fn remember(&self, loaded: &Loaded) -> Option<Box<dyn Any + Send + Sync>> {
        results::remember(loaded)
    }

    fn results(&self, ended: &Ended<'_>) -> Result<Results> {
        results::results(self, ended)
    }

    fn predict(&self, model: &ModelUse<'_>, file: &Input) -> Result<Predicted> {
        predict::predict(self, model, file)
    }

    fn adapt_rows(
        &self,
        run: &ModelUse<'_>,
        rows: &Input,
        labels: Option<&Path>,
    ) -> Result<FittedClient> {
        predict::adapt_rows(self, run, rows, labels)
    }

    fn adapt(&self, run: &ModelUse<'_>, options: &AdaptOptions<'_>) -> Result<Adapted> {
        self.adapt_rows(run, options.data, options.labels)?.write(run, options)
    }
}
