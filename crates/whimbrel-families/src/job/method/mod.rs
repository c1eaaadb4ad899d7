//! `[method]`: how the model is fitted, as every method has it.

pub mod length;
pub mod search;
pub mod step;
pub mod stop;

pub use length::Batch;
pub use search::Search;
pub use step::Step;
pub use stop::{Patience, Stop};

use super::refuse_others;
use crate::family::{Fit, MethodKind};
use crate::job::participation::{PARTICIPATION, Participation};
use crate::job::preset::{Asked, PRESETS, read_preset};
use crate::registry::Registry;
use length::{BATCH, EPOCHS, LOCAL_STEPS, REPLACEMENT, ROUNDS, read_batch, read_length};
use search::SEARCH;
use step::{STEP, read_step};
use stop::{EVALUATE, EVERY, STOP, read_evaluate, read_stop};
use whimbrel_job::key::Key;
use whimbrel_job::named;
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, inline, number, text};
use whimbrel_methods::settings::{Budget, Weights};
use whimbrel_methods::sgd::Preset;

/// `[method]`, without what is the family's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// The algorithm.
    pub kind: &'static MethodKind,
    /// The preset that sets both channels' rules.
    pub channels: Option<Preset>,
    /// When it ends.
    pub length: Budget,
    /// The rows behind one upload.
    pub batch: Batch,
    /// The step size.
    pub step: Step,
    /// Who takes part in a round.
    pub participation: Participation,
    /// How much each client counts.
    pub weights: Weights,
    /// How often metrics are computed, in rounds; `None`: about 100 times a run.
    pub evaluate_every: Option<u32>,
    /// What ends a run early.
    pub stop: Stop,
    /// Whether settings that are known to diverge are run all the same.
    pub allow_divergence: bool,
    /// The most bytes that the server may keep for single clients.
    pub memory_max: u64,
    /// What is chosen by the validation rows.
    pub search: Search,
}

named! {
    /// How much each client counts.
    pub(crate) WEIGHT_WORDS: Weights {
        Weights::Samples => "samples": "by its rows: the fit is that of the pooled rows",
        Weights::Equal => "equal": "all the same",
    }
}

/// How the model is averaged over clients, and what may be kept for them: keys of methods in which
/// several clients take part.
pub static CHANNELS: Key = Key::optional(
    "channels",
    "",
    "what `kind` names; else the rules of [uplink] and [downlink]",
    "sets the rules of both channels; kind = \"mcm\" is short for kind = \"sgd\", channels = \"mcm\"",
)
.words(&PRESETS);
/// `weights`.
pub static WEIGHTS: Key = Key::optional(
    "weights",
    "",
    "\"samples\" for the EM methods, \"equal\" for the gradient family",
    "how much each client counts",
)
.words(WEIGHT_WORDS.words);
/// `allow_divergence`.
pub static ALLOW_DIVERGENCE: Key = Key::default(
    "allow_divergence",
    "true or false",
    "false",
    "whether settings that are known to diverge are run all the same",
);
/// `memory_max`.
pub static MEMORY_MAX: Key = Key::default(
    "memory_max",
    "a number of bytes, or text such as \"500MB\" or \"4GB\"",
    "\"4GB\"",
    "the most that the server may keep for single clients: memories = \"per-client\" costs 8 bytes \
     for each number and client",
);

impl Method {
    /// The name under which results are reported: the preset's where it names the method.
    pub fn name(&self) -> &'static str {
        match self.channels {
            Some(preset) if self.kind.names_presets => preset.name(),
            _ => self.kind.algorithm,
        }
    }

    pub(crate) fn read(
        reader: &Reader<'_>,
        asked: Asked,
        registry: &'static Registry,
    ) -> Read<Self> {
        let word = reader.read(registry.method_kind, |v| {
            let word = v.text()?;
            asked.family.zip(asked.kind).ok_or_else(|| v.unknown_word(&word))
        });
        let known = word.as_ref().ok().map(|(_, kind)| *kind);
        if let Some(kind) = known {
            refuse_others(reader, kind.keys, kind.algorithm, registry, false);
        }
        let named = known.and_then(|kind| kind.preset);
        let channels = reader.optional(&CHANNELS, |v| read_channels(v, named));
        let length = read_length(reader, known);
        let batch = read_batch(reader, known);
        let step = reader.read(&STEP, read_step);
        let participation = reader.read(&PARTICIPATION, Participation::read);
        let weights = reader.optional(&WEIGHTS, |v| v.named(&WEIGHT_WORDS));
        let evaluate_every = reader.read(&EVALUATE, read_evaluate);
        let stop = reader.read(&STOP, read_stop);
        let allow_divergence = reader.read(&ALLOW_DIVERGENCE, |v| v.boolean());
        let memory_max = reader.read(&MEMORY_MAX, read_bytes);
        let search = reader.read(&SEARCH, Search::read);
        let (family, kind) = word?;
        let algorithm = family.methods().iter().find(|known| known.word.name == kind.algorithm);
        let algorithm = algorithm.unwrap_or(kind);
        Ok(Self {
            kind: algorithm,
            channels: channels?.or(named),
            length: length?,
            batch: batch?,
            step: step?,
            participation: participation?,
            weights: weights?.unwrap_or(kind.weights),
            evaluate_every: evaluate_every?,
            stop: stop?,
            allow_divergence: allow_divergence?,
            memory_max: memory_max?,
            search: search?,
        })
    }

    pub(crate) fn write(&self, out: &mut Writer, fit: &dyn Fit, registry: &Registry) {
        let takes = |key: &Key| self.kind.keys.iter().any(|known| known.name == key.name);
        out.table(&registry.method);
        out.put(registry.method_kind, text(self.kind.algorithm));
        if let Some(preset) = self.channels {
            out.put(&CHANNELS, text(preset.name()));
        }
        match self.length {
            Budget::Rounds(rounds) => out.put(&ROUNDS, rounds.to_string()),
            Budget::Epochs(epochs) => out.put(&EPOCHS, number(epochs)),
            Budget::Converged(_) => {}
        }
        let (rows, drawn) = match self.batch {
            Batch::Full => (text("full"), None),
            Batch::Auto { replacement, local_steps } => {
                (text("auto"), Some((replacement, local_steps)))
            }
            Batch::Mini { rows, replacement, local_steps } => {
                (rows.to_string(), Some((replacement, local_steps)))
            }
        };
        if takes(&BATCH) {
            out.put(&BATCH, rows);
        }
        if let Some((replacement, local_steps)) = drawn.filter(|_| takes(&REPLACEMENT)) {
            out.put(&REPLACEMENT, replacement.to_string());
            out.put(&LOCAL_STEPS, local_steps.to_string());
        }
        if takes(&STEP) {
            out.put(&STEP, self.step.write());
        }
        fit.write_method(out);
        if takes(&PARTICIPATION) {
            out.put(&PARTICIPATION, self.participation.write());
        }
        if takes(&WEIGHTS) {
            out.put(&WEIGHTS, text(WEIGHT_WORDS.name(self.weights)));
        }
        let every = self.evaluate_every.map_or_else(|| text("auto"), |every| every.to_string());
        for (key, value) in [
            (&EVALUATE, inline([(EVERY.name, every)])),
            (&STOP, self.stop.write()),
            (&ALLOW_DIVERGENCE, self.allow_divergence.to_string()),
            (&MEMORY_MAX, self.memory_max.to_string()),
            (&SEARCH, self.search.write()),
        ] {
            if takes(key) {
                out.put(key, value);
            }
        }
    }
}

fn read_channels(value: Value<'_>, named: Option<Preset>) -> Read<Preset> {
    let preset = read_preset(&value)?;
    if let Some(named) = named.filter(|named| *named != preset) {
        let (kind, channels) = (named.name(), preset.name());
        return Err(value.fail(
            format!("kind = \"{kind}\" and channels = \"{channels}\" contradict each other"),
            format!("keep one of the two, or write kind = \"sgd\", channels = \"{channels}\""),
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
