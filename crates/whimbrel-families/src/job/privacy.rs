//! `[privacy]`: differential privacy of a fit.

use super::{Budget, DownRule, Job, Participation};
use crate::job::method::search::Search;
use whimbrel_codec::channel::UpRule;
use whimbrel_engine::Stopping;
use whimbrel_job::form::{POSITIVE, SEED};
use whimbrel_job::key::Section;
use whimbrel_job::reader::{Read, Reader, Source};
use whimbrel_job::writer::Writer;
use whimbrel_job::{form, number, table};
use whimbrel_methods::fedem::FrameKind;
use whimbrel_methods::settings::{Batch, Weights};
use whimbrel_methods::sgd::Preset;

/// `[privacy]`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Privacy {
    /// `None`: no noise.
    pub epsilon: Option<f64>,
    /// `None`: from the number of rows or clients.
    pub delta: Option<f64>,
    pub unit: PrivacyUnit,
    /// `None`: the model's.
    pub clip: Option<f64>,
    /// `None`: a secret.
    pub noise_seed: Option<u64>,
}

/// The unit that noise hides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PrivacyUnit {
    #[default]
    Row,
    Client,
}

table! {
    PRIVACY: Privacy = "privacy",
        "Differential privacy of a simulated fit: the server adds Gaussian noise to each round's sum of \
         clipped contributions. The number of rounds is fixed beforehand, all clients take part, messages \
         are exact, and evaluations happen only if the job asks for them.",
        example "[privacy]\nepsilon = 1.0\n"
    {
        /// privacy loss of the whole run
        epsilon: EPSILON = "epsilon", POSITIVE, unset "no noise";
        /// probability with which the loss may be larger
        delta: DELTA = "delta", DELTAS, default;
        /// unit that the noise hides
        unit: UNIT = "unit", UNITS, default;
        /// largest norm of one unit's contribution; of a row's gradient, or of a client's update. Regressions
        /// and learners need it: it must not depend on the data
        clip: CLIP = "clip", POSITIVE,
            unset "mixtures: 1.5 sqrt(q) for rows and 0.7 sqrt(q / mean rows) for clients, with q the \
                   length of the statistic";
        /// seed of the noise, for repeatable experiments; whoever knows it can remove the noise
        noise_seed: NOISE_SEED = "noise_seed", SEED, unset "a secret that is not stored";
    }
}

form! {
    DELTAS: Option<f64>, "a number between 0 and 1, or \"auto\"" {
        /// N^-1.1 for N rows or clients
        "auto" => None,
    }
    number number!("a number between 0 and 1", |x| x > 0.0 && x < 1.0) => Some;
}

form! {
    UNITS: PrivacyUnit {
        /// one row
        "row" => PrivacyUnit::Row,
        /// all rows of one client
        "client" => PrivacyUnit::Client,
    }
}

pub(crate) static SECTION: Section = PRIVACY.section;

/// The default number of rounds under noise.
const ROUNDS: u32 = 80;

impl Privacy {
    pub(crate) fn read(reader: &Reader<'_>) -> Read<Self> {
        PRIVACY.read(reader)
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        if *self != Self::default() {
            out.table(&SECTION);
            PRIVACY.write(self, out);
        }
    }
}

impl Job {
    /// The defaults under differential privacy; reports settings that it forbids.
    pub(super) fn settle_privacy(&mut self, source: &Source<'_>) {
        if self.privacy.epsilon.is_none() {
            return;
        }
        let given = |table: &str, key: &str| source.is_given(&[table, key]);
        let asks_memory =
            ["rule", "memory", "alpha", "start"].iter().any(|key| given("uplink", key));
        if matches!(self.uplink.rule, UpRule::Memory { .. })
            && !asks_memory
            && self.method.channels.is_none()
        {
            (self.uplink.rule, self.uplink.start) = (UpRule::Plain, super::MemoryStart::Zero);
        }
        if let Budget::Converged(_) = self.method.length {
            self.method.length = Budget::Rounds(ROUNDS);
        }
        if !given("method", "weights") {
            self.method.weights = self.private_weights();
        }
        for (path, what, hint) in self.forbidden() {
            source.report_at(path, what, hint);
        }
    }

    /// Every row weighs the same, or every client.
    fn private_weights(&self) -> Weights {
        match self.privacy.unit {
            PrivacyUnit::Row => Weights::Samples,
            PrivacyUnit::Client => Weights::Equal,
        }
    }

    /// Settings that differential privacy forbids: place, reason and remedy.
    fn forbidden(&self) -> Vec<(&'static [&'static str], String, &'static str)> {
        let (method, unit) = (&self.method, self.privacy.unit);
        let (name, units) = (method.name(), method.kind.private);
        let no_unit = if units.is_empty() {
            format!("nothing bounds the influence of a row or a client on {name}")
        } else {
            format!("{name} takes several local steps, so that no bound of a row is known")
        };
        let rows = unit == PrivacyUnit::Row;
        let memory = "the server knows the memories: noise in their updates is not private, and noise \
                      beside them accumulates";
        let preset = method.channels.is_some_and(|preset| preset != Preset::Sgd);
        let prepared = self.data.preparation().is_something() || self.data.standardize();
        let all: [(bool, &[&str], &str, &str); 14] = [
            (
                !units.contains(&unit),
                &["method", "kind"],
                &no_unit,
                if units.is_empty() {
                    "use kind = \"fedem\" or \"sgd\" in [method]"
                } else {
                    "write unit = \"client\" in [privacy]"
                },
            ),
            (
                matches!(self.uplink.rule, UpRule::Memory { .. }),
                &["uplink", "rule"],
                memory,
                "write rule = \"plain\"",
            ),
            (
                preset || self.uplink.rule == UpRule::Feedback,
                &["uplink", "rule"],
                "noise follows the exact sum of plain uploads",
                "write rule = \"plain\", without `channels`",
            ),
            (
                !self.uplink.codec.is_exact() || !self.uplink.own.is_empty(),
                &["uplink", "codec"],
                "a codec's error is not bounded by the norm of a contribution",
                "take `codec` and `for` out",
            ),
            (
                self.uplink.frame == Some(FrameKind::Raw),
                &["uplink", "frame"],
                "rows are clipped in the frame of the Fisher information",
                "take `frame` out",
            ),
            (
                !self.downlink.is_exact() || self.downlink.rule != DownRule::Exact,
                &["downlink"],
                "rows are clipped at the state that the server knows",
                "take [downlink] out",
            ),
            (
                method.participation != Participation::Probability(1.0),
                &["method", "participation"],
                "the server knows the cohort: sampling clients does not add privacy, only noise",
                "take `participation` out",
            ),
            (
                rows && method.batch != Batch::Full,
                &["method", "batch"],
                "the noise is computed for all rows, and minibatches of a fixed size have no tight bound",
                "write batch = \"full\"",
            ),
            (
                matches!(method.length, Budget::Epochs(_)),
                &["method", "epochs"],
                "the noise depends on the number of rounds, which is fixed beforehand",
                "give `rounds` instead",
            ),
            (
                method.stop != Stopping::default(),
                &["method", "stop"],
                "a stopping rule looks at the rows and would spend the budget",
                "take `stop` out",
            ),
            (
                method.search != Search::default(),
                &["method", "search"],
                "each candidate of a search would spend the budget",
                "take `search` out",
            ),
            (
                method.weights != self.private_weights(),
                &["method", "weights"],
                "every unit must weigh the same",
                "take `weights` out",
            ),
            (
                prepared,
                &["data", "standardize"],
                "means and scales of columns are computed from the rows, without noise",
                "scale the columns by public constants beforehand",
            ),
            (
                self.federation.is_some(),
                &["federation"],
                "the noise is that of a simulated, trusted server",
                "take [federation] out",
            ),
        ];
        let forbidden = all.into_iter().filter(|(applies, ..)| *applies);
        forbidden.map(|(_, path, what, hint)| (path, what.to_owned(), hint)).collect()
    }
}
