//! `[method]`: the keys that methods of several families share.

pub mod length;
pub mod search;
pub mod step;
pub mod stop;

pub use search::Search;
pub use step::Step;

use super::refuse_others;
use crate::family::{Fit, MethodKind};
use crate::job::participation::{PARTICIPATION, PARTICIPATIONS, Participation};
use crate::job::preset::{Asked, PRESETS_FORM};
use crate::registry::Registry;
use length::{read_batch, read_length};
use search::{SEARCH, SEARCHES};
use step::{STEP, STEPS};
use stop::{EVALUATE, EVALUATES, STOP, STOPS};
use whimbrel_codec::channel::Preset;
use whimbrel_engine::Stopping;
use whimbrel_job::form::{BOOLEAN, Form};
use whimbrel_job::key::JobKey;
use whimbrel_job::reader::{Read, Reader, Shape, Value};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{define_keys, form};
use whimbrel_methods::settings::{Batch, Budget, Weights};

/// `[method]` without the keys of a single family.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    pub kind: &'static MethodKind,
    /// Preset of both channels' rules.
    pub channels: Option<Preset>,
    pub length: Budget,
    /// Rows behind one upload.
    pub batch: Batch<Option<u32>>,
    pub step: Step,
    pub participation: Participation,
    pub weights: Weights,
    /// Rounds between evaluations; `None`: about 100 evaluations per run.
    pub evaluate_every: Option<u32>,
    pub stop: Stopping,
    /// Whether settings that are known to diverge are allowed.
    pub allow_divergence: bool,
    /// Most bytes that the server keeps for single clients.
    pub memory_max: u64,
    pub search: Search,
}

form! {
    pub(crate) WEIGHT_WORDS: Weights {
        /// proportional to its rows, as in a fit of the pooled rows
        "samples" => Weights::Samples,
        /// the same for all
        "equal" => Weights::Equal,
    }
}

define_keys! {
    /// preset of both channels' rules; kind = "mcm" is short for kind = "sgd", channels = "mcm"
    pub CHANNELS = "channels", PRESETS_FORM,
        unset "that of `kind`; else the rules of [uplink] and [downlink]";
    /// weight of each client
    pub WEIGHTS = "weights", WEIGHT_WORDS, unset "the method's";
    /// whether settings that are known to diverge are allowed
    pub ALLOW_DIVERGENCE = "allow_divergence", BOOLEAN, default(false);
}
/// `memory_max`.
pub static MEMORY_MAX: JobKey = BYTES.default(
    "memory_max",
    || text("4GB"),
    "most memory that the server keeps for single clients: memories = \"per-client\" costs 8 bytes per \
     number and client",
);

/// A number of bytes, or a number with a unit.
const BYTES: Form<u64> =
    Form::new("a number of bytes, or text such as \"500MB\" or \"4GB\"", read_bytes, |bytes| {
        bytes.to_string()
    });

impl Method {
    /// The name in reports: the preset's, if it names the method.
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
        let channels = reader.optional(&CHANNELS, |v| read_channels(&v, named));
        let length = read_length(reader, known);
        let batch = read_batch(reader, known, registry);
        let step = reader.read_as(&STEP, &STEPS);
        let participation = reader.read_as(&PARTICIPATION, &PARTICIPATIONS);
        let weights = reader.optional_as(&WEIGHTS, &WEIGHT_WORDS);
        let evaluate_every = reader.read_as(&EVALUATE, &EVALUATES);
        let stop = reader.read_as(&STOP, &STOPS);
        let allow_divergence = reader.read_as(&ALLOW_DIVERGENCE, &BOOLEAN);
        let memory_max = reader.read_as(&MEMORY_MAX, &BYTES);
        let search = reader.read_as(&SEARCH, &SEARCHES);
        let (family, kind) = word?;
        let algorithm = family.methods.iter().find(|known| known.word.name == kind.algorithm);
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
        out.table(&registry.method);
        out.put(registry.method_kind, text(self.kind.algorithm));
        out.only(self.kind.keys);
        if let Some(preset) = &self.channels {
            out.put(&CHANNELS, PRESETS_FORM.write(preset));
        }
        length::write(self.length, self.batch, out);
        out.put(&STEP, STEPS.write(&self.step));
        fit.write_method(out);
        out.put(&PARTICIPATION, PARTICIPATIONS.write(&self.participation));
        out.put(&WEIGHTS, WEIGHT_WORDS.write(&self.weights));
        out.put(&EVALUATE, EVALUATES.write(&self.evaluate_every));
        out.put(&STOP, STOPS.write(&self.stop));
        out.put(&ALLOW_DIVERGENCE, BOOLEAN.write(&self.allow_divergence));
        out.put(&MEMORY_MAX, BYTES.write(&self.memory_max));
        out.put(&SEARCH, SEARCHES.write(&self.search));
    }
}

fn read_channels(value: &Value<'_>, named: Option<Preset>) -> Read<Preset> {
    let preset = PRESETS_FORM.read(value)?;
    if let Some(named) = named.filter(|named| *named != preset) {
        let (kind, channels) = (named.name(), preset.name());
        return Err(value.fail(
            format!("kind = \"{kind}\" and channels = \"{channels}\" contradict each other"),
            format!("keep one of the two, or write kind = \"sgd\", channels = \"{channels}\""),
        ));
    }
    Ok(preset)
}

fn read_bytes(value: &Value<'_>) -> Read<u64> {
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
