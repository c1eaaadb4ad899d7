//! Learners trained on the clients: mixtures of learners, and methods to compare with.

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
use crate::family::{Family, Fit, Tables, refuse};
use crate::job::method::length::{BATCH, ROUNDS};
use crate::job::method::step::STEP;
use crate::job::{Job, MemoryStart, Step, UpRule};
use crate::load::Layout;
use crate::plan::{Basis, Planned};
use crate::predictions::OUTSIDE;
use crate::template::{DataFacts, Suggestion};
use decentralised::Neighbours;
use keys::{LOCAL_EPOCHS, SAMPLING, TRAINING, Training};
use methods::{COMPONENTS, METHODS, Rule, RuleKind};
use model::{MODELS, Model, SOFTMAX};
use own::{OWN, OwnTraining};
use std::path::PathBuf;
use whimbrel_core::ClientData;
use whimbrel_job::form::PATH;
use whimbrel_job::reader::{Read, Source};
use whimbrel_job::writer::Writer;
use whimbrel_methods::personal::{FedMix, Length, LocalRule, Sampling, ServerStep};

pub static FAMILY: Family =
    Family { name: "personal", models: &MODELS, methods: &METHODS, read, suggest };

const SCAFFOLD: &str = "scaffold";
const SGD: &str = "sgd";

/// For data with classes: a mixture of learners if the file names clients, otherwise `fedavg`.
fn suggest(facts: Option<&DataFacts>) -> Option<Suggestion> {
    let is_it = |facts: &&DataFacts| facts.target.is_some() && facts.regression.is_none();
    let facts = facts.filter(is_it).filter(|facts| facts.classes > 2)?;
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
        model: SOFTMAX,
        method: if facts.client.is_some() { "fedmix" } else { "fedavg" },
        method_keys,
        ..Suggestion::default()
    })
}

fn read(tables: &Tables<'_>) -> Read<Box<dyn Fit>> {
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

/// A learner and its training.
#[derive(Clone, Debug, PartialEq)]
pub struct PersonalFit {
    pub model: Model,
    pub training: Training,
    /// The method with its settings.
    pub rule: Rule,
    pub server: ServerStep,
    /// Local solvers of single clients.
    pub own: Vec<OwnTraining>,
    /// Unrelated images, for the report.
    pub outside: Option<PathBuf>,
    /// The graph of methods without a server.
    pub neighbours: Option<Neighbours>,
}

impl PersonalFit {
    /// The method's settings, if they have this type.
    fn setting<R: LocalRule>(&self) -> Option<&R> {
        self.rule.local.downcast_ref()
    }
}

/// Reports settings that no method over learners supports.
pub(crate) fn check_learners(method: &str, job: &Job, source: &Source<'_>) {
    if !job.method.stop.limits.is_empty() {
        source.report_at(
            &["method", "stop"],
            format!("{method} has neither a mean field nor a known minimum"),
            "stop by `patience`, or after a number of rounds",
        );
    }
    if let MemoryStart::File(_) = &job.uplink.start {
        source.report_at(
            &["uplink", "start"],
            format!("memories of {method} start at the first uploads or at zero, not in a file"),
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
                "sgd does not compress: the codec would be ignored",
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
                "`send_above` needs a plain uplink: memories and error feedback cover all components",
                "take `send_above` out, or compress without memories (channels = \"qsgd\")",
            );
        }
        if self.training.sampling == Sampling::Renormalise && !plain {
            source.report_at(
                &["method", "sampling"],
                "a mean over sampled clients needs a plain uplink: memories and error feedback \
                 include the others",
                "write sampling = \"keep-old\" or \"unbiased\"",
            );
        }
        let compresses = !job.uplink.codec.is_exact() || !job.downlink.codec.is_exact();
        if self.rule.method() == SCAFFOLD && compresses {
            source.report_at(
                &["method", if job.method.channels.is_some() { "channels" } else { "kind" }],
                "lossy messages make the control variates of clients and server drift apart",
                "send exactly, or use kind = \"fedavg\" or \"fedprox\" over this channel",
            );
        }
        if self.rule.local.sends_exactly() && compresses {
            source.report_at(
                &["method", "kind"],
                format!("{} does not compress its messages", self.rule.method()),
                "take the codecs out",
            );
        }
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let graph = self.neighbours.as_mut().map_or_else(Vec::new, Neighbours::paths_mut);
        graph.into_iter().chain(&mut self.outside).collect()
    }

    fn check_served(&self, _: &Job) -> Result<()> {
        if self.neighbours.is_none() {
            return Ok(());
        }
        refuse(
            format!("{} has no server: neighbours exchange messages", self.rule.method()),
            "simulate it with `whimbrel run`, or serve the method without `d-`",
        )
    }

    fn check_client(&self, data: &ClientData) -> Result<()> {
        self.model.check_client(data)
    }

    fn layout(&self) -> Layout {
        Layout::Samples { classes: self.model.classifies() }
    }

    fn plan(&self, on: &Basis<'_>) -> Result<Planned> {
        plan::planned(self, on)
    }
}
