//! `[method]`: how the model is fitted.

pub mod fedmiss;
pub mod length;
pub mod step;
pub mod stop;

pub use fedmiss::Copies;
pub use length::{Batch, Length};
pub use step::Step;
pub use stop::{Patience, Stop};

use crate::spec::channel::UpRuleKind;
use crate::spec::participation::{self, Participation};
use crate::spec::preset::{PRESETS, kind_of_word, read_preset, up_rule};
use length::{
    BATCH, EPOCHS, INNER, LOCAL_STEPS, REPLACEMENT, ROUNDS, read_batch, read_inner, read_length,
};
use step::{STEP, read_step};
use stop::{EVALUATE, EVERY, STOP, read_evaluate, read_stop};
use whimbrel_job::choices;
use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, inline, number, text};
use whimbrel_methods::sgd::Preset;

/// `[method]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// The algorithm.
    pub kind: MethodKind,
    /// The preset that sets both channels' rules.
    pub channels: Option<Preset>,
    /// When it ends.
    pub length: Length,
    /// The rows behind one upload.
    pub batch: Batch,
    /// Rounds of an outer loop of vr-fedem; `None`: as its theorem has it, or no loops.
    pub inner: Option<u32>,
    /// The step size.
    pub step: Step,
    /// The server's momentum.
    pub momentum: f64,
    /// Which model the gradient family delivers; `None`: what the step's theorem is about, else
    /// the last.
    pub average: Option<Average>,
    /// How many complete tables `fedmiss` imagines.
    pub copies: Copies,
    /// Who takes part in a round.
    pub participation: Participation,
    /// How much each client counts.
    pub weights: Weights,
    /// What travels down and up; `None` until the downlink is known, and where there is no choice.
    pub form: Option<Form>,
    /// A departure from the paper that its own code made.
    pub compat: Option<Compat>,
    /// How often metrics are computed, in rounds; `None`: about 100 times a run.
    pub evaluate_every: Option<u32>,
    /// What ends a run early.
    pub stop: Stop,
    /// Whether settings that are known to diverge are run all the same.
    pub allow_divergence: bool,
    /// The most bytes that the server may keep for single clients.
    pub memory_max: u64,
}

choices! {
    /// The algorithm, whatever its channels.
    pub enum MethodKind {
        Em = "em": "pooled EM: one client holds everything",
        Dem = "dem": "distributed EM without memories, the naive method",
        Fedem = "fedem": "FedEM: compressed differences to memories, partial participation",
        VrFedem = "vr-fedem": "FedEM with variance reduction: minibatches correct a full pass that each \
         client makes now and then",
        Fedmiss = "fedmiss": "FedMissEM: a low-rank table from what each client observed of it",
        Sgd = "sgd": "stochastic gradients; with `channels`, every other name below",
    }
}

choices! {
    /// How much each client counts.
    pub enum Weights {
        Samples = "samples": "by its rows: the fit is that of the pooled rows",
        Equal = "equal": "all the same",
    }
}

choices! {
    /// What travels in a round.
    pub enum Form {
        Pair = "pair": "the statistic and the parameters go down, the compressed field comes \
         up, as in the paper",
        State = "state": "the statistic goes down, and clients compute the parameters from it and \
         pooled moments sent once; the only form for degraded downlinks",
        Lean = "lean": "the parameters go down, and the server subtracts its statistic itself",
    }
}

choices! {
    /// Which model is delivered.
    pub enum Average {
        Last = "last": "the last one",
        Uniform = "uniform": "the mean of all (Polyak-Ruppert)",
        Weighted = "weighted": "their mean weighted by one over the step",
    }
}

choices! {
    /// Departures of published code from its paper.
    pub enum Compat {
        Mcm2021 = "mcm-2021": "1/L with Frobenius norms in place of spectral ones, and the step as \
         Dore's share of the error, as the code of Philippenko and Dieuleveut (2021) has it",
    }
}

impl Method {
    /// The name under which results are reported: the preset's where the gradient family has one.
    pub fn name(&self) -> &'static str {
        match (self.kind, self.channels) {
            (MethodKind::Sgd, Some(preset)) => preset.name(),
            (kind, _) => kind.name(),
        }
    }
}

const FEDERATED: &[&str] = &["dem", "fedem", "vr-fedem", "fedmiss", "sgd"];
const WEIGHTED: &[&str] = &["dem", "fedem", "vr-fedem", "sgd"];
const NOT_WEIGHTED: &str = "em has one client, and for fedmiss every observation counts the same";
const ALONE: &str = "one client holds everything";
const GRADIENT: &[&str] = &["sgd"];
const GRADIENT_ONLY: &str = "only the gradient family has it";

/// The EM methods, then every preset.
static KINDS: [Word; 18] = {
    let mut words = [PRESETS[0]; 18];
    let mut at = 0;
    while at < 18 {
        words[at] = if at < 5 { MethodKind::WORDS[at] } else { PRESETS[at - 5] };
        at += 1;
    }
    words
};

pub(crate) static KIND: Key = Key::required("kind", "", "the algorithm").words(&KINDS);
pub(crate) static CHANNELS: Key = Key::optional(
    "channels",
    "",
    "what `kind` names; else the rules of [uplink] and [downlink]",
    "sets the rules of both channels; kind = \"mcm\" is short for kind = \"sgd\", channels = \"mcm\"",
)
.words(&PRESETS)
.only(FEDERATED, ALONE);
static MOMENTUM: Key = Key::default(
    "momentum",
    "a number from 0 to below 1",
    "0.0",
    "heavy-ball momentum on the server",
)
.only(GRADIENT, GRADIENT_ONLY);
static AVERAGE: Key = Key::default(
    "average",
    "\"auto\", \"last\", \"uniform\" or \"weighted\"",
    "\"auto\"",
    "which model is evaluated and delivered",
)
.words(&AVERAGES)
.only(GRADIENT, GRADIENT_ONLY);
static AVERAGES: [Word; 4] = [
    Word {
        name: "auto",
        doc: "\"last\"; under step = \"theory\" what the theorem is about: \"weighted\" for noisy \
              gradients of a strongly convex loss, \"uniform\" where it is not strongly convex",
    },
    Average::WORDS[0],
    Average::WORDS[1],
    Average::WORDS[2],
];
static WEIGHTS: Key = Key::optional(
    "weights",
    "",
    "\"samples\" for the EM methods, \"equal\" for the gradient family",
    "how much each client counts",
)
.words(Weights::WORDS)
.only(WEIGHTED, NOT_WEIGHTED);
static FORM: Key = Key::optional(
    "form",
    "",
    "\"pair\" over an exact downlink, \"state\" over others",
    "what travels in a round",
)
.words(Form::WORDS)
.only(&["dem", "fedem", "vr-fedem"], "only the federated EM methods have forms");
static COMPAT: Key = Key::optional(
    "compat",
    "",
    "as the paper has it",
    "a departure of published code from its paper",
)
.words(Compat::WORDS)
.only(GRADIENT, GRADIENT_ONLY);
pub(crate) static ALLOW_DIVERGENCE: Key = Key::default(
    "allow_divergence",
    "true or false",
    "false",
    "whether settings that are known to diverge are run all the same",
)
.only(FEDERATED, ALONE);
static MEMORY_MAX: Key = Key::default(
    "memory_max",
    "a number of bytes, or text such as \"500MB\" or \"4GB\"",
    "\"4GB\"",
    "the most that the server may keep for single clients: memories = \"per-client\" costs 8 bytes \
     for each number and client",
)
.only(FEDERATED, ALONE);

/// `[method]`.
pub(crate) static SECTION: Section = Section {
    name: "method",
    doc: "How the model is fitted: mixtures by the EM methods, low-rank tables by `fedmiss`, \
          regressions by `sgd` and its presets (what is for `sgd` is for each of them).",
    keys: &[
        &KIND,
        &CHANNELS,
        &ROUNDS,
        &EPOCHS,
        &BATCH,
        &REPLACEMENT,
        &LOCAL_STEPS,
        &INNER,
        &STEP,
        &fedmiss::COPIES,
        &MOMENTUM,
        &AVERAGE,
        &participation::PARTICIPATION,
        &WEIGHTS,
        &FORM,
        &COMPAT,
        &EVALUATE,
        &STOP,
        &ALLOW_DIVERGENCE,
        &MEMORY_MAX,
    ],
    example: "[method]\nkind = \"fedem\"\nrounds = 500\nbatch = 20\nlocal_steps = 4\n\
              step = { initial = 0.5, power = 0.6, delay = 100 }\nparticipation = 0.75\n\
              evaluate = { every = 10 }\nstop = { field_norm2 = 1e-12, patience = 20 }\n",
};

impl Method {
    pub(crate) fn read(reader: &Reader<'_>) -> Read<Self> {
        let kind = reader.read(&KIND, |v| {
            let word = v.text()?;
            kind_of_word(&word).ok_or_else(|| v.unknown_word(&word))
        });
        let (known, named) = kind.ok().unzip();
        if let Some(kind) = known {
            reader.check_meaning(kind.name());
        }
        let channels = reader.optional(&CHANNELS, |v| read_channels(v, known, named.flatten()));
        let length = read_length(reader);
        let batch = read_batch(reader, known);
        let inner = reader.read(&INNER, read_inner);
        let step = reader.read(&STEP, |v| read_step(v, known));
        let copies = reader.read(&fedmiss::COPIES, fedmiss::read_copies);
        let momentum = reader.read(&MOMENTUM, |v| v.number(|x| (0.0..1.0).contains(&x)));
        let average = reader.read(&AVERAGE, |v| match v.text()?.as_str() {
            "auto" => Ok(None),
            _ => v.choice().map(Some),
        });
        let participation = reader.read(&participation::PARTICIPATION, Participation::read);
        let weights = reader.optional(&WEIGHTS, |v| v.choice());
        let form = reader.optional(&FORM, |v| v.choice());
        let compat = reader.optional(&COMPAT, |v| v.choice());
        let evaluate_every = reader.read(&EVALUATE, read_evaluate);
        let stop = reader.read(&STOP, |v| read_stop(v, known));
        let allow_divergence = reader.read(&ALLOW_DIVERGENCE, |v| v.boolean());
        let memory_max = reader.read(&MEMORY_MAX, read_bytes);
        let (kind, named) = kind?;
        let by_default = match kind {
            MethodKind::Fedmiss | MethodKind::Sgd => Weights::Equal,
            MethodKind::Em | MethodKind::Dem | MethodKind::Fedem | MethodKind::VrFedem => {
                Weights::Samples
            }
        };
        let (step, compat) = (step?, compat?);
        if compat.is_some() && step == Step::OverLRoot {
            reader.refuse_if_given(&COMPAT, "is about constant steps: 1/L, or a number for Dore");
        }
        Ok(Self {
            kind,
            channels: channels?.or(named),
            length: length?,
            batch: batch?,
            inner: inner?,
            step,
            copies: copies?,
            momentum: momentum?,
            average: average?,
            participation: participation?,
            weights: weights?.unwrap_or(by_default),
            form: form?,
            compat,
            evaluate_every: evaluate_every?,
            stop: stop?,
            allow_divergence: allow_divergence?,
            memory_max: memory_max?,
        })
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&SECTION);
        out.put(&KIND, text(self.kind.name()));
        if let Some(preset) = self.channels {
            out.put(&CHANNELS, text(preset.name()));
        }
        match self.length {
            Length::Rounds(rounds) => out.put(&ROUNDS, rounds.to_string()),
            Length::Epochs(epochs) => out.put(&EPOCHS, number(epochs)),
        }
        match self.batch {
            Batch::Full => out.put(&BATCH, text("full")),
            Batch::Auto { replacement, local_steps } => {
                out.put(&BATCH, text("auto"));
                out.put(&REPLACEMENT, replacement.to_string());
                out.put(&LOCAL_STEPS, local_steps.to_string());
            }
            Batch::Mini { rows, replacement, local_steps } => {
                out.put(&BATCH, rows.to_string());
                if self.kind != MethodKind::Fedmiss {
                    out.put(&REPLACEMENT, replacement.to_string());
                    out.put(&LOCAL_STEPS, local_steps.to_string());
                }
            }
        }
        if self.kind == MethodKind::VrFedem {
            out.put(&INNER, self.inner.map_or_else(|| text("auto"), |inner| inner.to_string()));
        }
        out.put(&STEP, self.step.write());
        if self.kind == MethodKind::Fedmiss {
            out.put(&fedmiss::COPIES, fedmiss::write_copies(self.copies));
        }
        if self.kind == MethodKind::Sgd {
            out.put(&MOMENTUM, number(self.momentum));
            out.put(&AVERAGE, text(self.average.map_or("auto", Average::name)));
        }
        if self.kind != MethodKind::Em {
            out.put(&participation::PARTICIPATION, self.participation.write());
        }
        if !matches!(self.kind, MethodKind::Em | MethodKind::Fedmiss) {
            out.put(&WEIGHTS, text(self.weights.name()));
        }
        if let Some(form) = self.form {
            out.put(&FORM, text(form.name()));
        }
        if let Some(compat) = self.compat {
            out.put(&COMPAT, text(compat.name()));
        }
        let every = self.evaluate_every.map_or_else(|| text("auto"), |every| every.to_string());
        out.put(&EVALUATE, inline([(EVERY.name, every)]));
        out.put(&STOP, self.stop.write());
        if self.kind != MethodKind::Em {
            out.put(&ALLOW_DIVERGENCE, self.allow_divergence.to_string());
            out.put(&MEMORY_MAX, self.memory_max.to_string());
        }
    }
}

fn read_channels(
    value: Value<'_>,
    kind: Option<MethodKind>,
    named: Option<Preset>,
) -> Read<Preset> {
    let preset = read_preset(&value)?;
    if let Some(named) = named.filter(|named| *named != preset) {
        let (kind, channels) = (named.name(), preset.name());
        return Err(value.fail(
            format!("kind = \"{kind}\" and channels = \"{channels}\" contradict each other"),
            format!("keep one of the two, or write kind = \"sgd\", channels = \"{channels}\""),
        ));
    }
    if kind == Some(MethodKind::Dem) && up_rule(preset) == UpRuleKind::Memory {
        return Err(value.fail(
            format!(
                "dem is the naive method without memories, and {}'s uplink has one",
                preset.name()
            ),
            "use kind = \"fedem\"",
        ));
    }
    Ok(preset)
}

/// A number of bytes, or a number with a unit.
fn read_bytes(value: Value<'_>) -> Read<u64> {
    if !matches!(value.shape(), Shape::Text) {
        return value.integer(1..=u64::MAX);
    }
    let written = value.text()?;
    let digits = written.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let scale = match written[digits.len()..].trim() {
        "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => return Err(value.refuse()),
    };
    let number = digits.parse::<f64>().ok().filter(|x| *x > 0.0 && x.is_finite());
    let bytes = number.map(|x| x * scale).filter(|bytes| (1.0..9e18).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or_else(|| value.refuse())
}
