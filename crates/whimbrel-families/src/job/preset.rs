//! Channel presets: the words of `channels`, and their effect on both channels.

use crate::family::{Family, MethodKind};
use crate::job::method;
use crate::registry::Registry;
use whimbrel_codec::channel::preset::{NAMES, from_name};
use whimbrel_codec::channel::{Auto, Preset, UpRule};
use whimbrel_job::form::Form;
use whimbrel_job::key::Word;
use whimbrel_job::reader::Source;
use whimbrel_job::writer::text;

/// The names of the presets.
pub(crate) const PRESETS: [Word; NAMES.len()] = {
    let mut words = [Word { name: "", doc: "" }; NAMES.len()];
    let mut at = 0;
    while at < NAMES.len() {
        let (name, _, doc) = NAMES[at];
        words[at] = Word { name, doc };
        at += 1;
    }
    words
};

/// A method, and each of its channel presets as a further method. The first name is the method with the job's
/// channels.
pub(crate) const fn with_presets(free: MethodKind) -> [MethodKind; PRESETS.len()] {
    let free = MethodKind { names_presets: true, ..free };
    let mut methods = [free; PRESETS.len()];
    let mut at = 1;
    while at < methods.len() {
        methods[at] = MethodKind { word: PRESETS[at], preset: Some(NAMES[at].1), ..free };
        at += 1;
    }
    methods
}

pub(crate) const PRESETS_FORM: Form<Preset> = Form::new(
    "",
    |v| {
        let word = v.text()?;
        from_name(&word).ok_or_else(|| v.unknown_word(&word))
    },
    |preset| text(preset.name()),
)
.words(&PRESETS);

/// Words of `[method]` on which other tables depend, read first, so that a fault elsewhere in `[method]` does
/// not change the meaning of other tables.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// `None`: unknown, and checks that depend on it are skipped.
    pub kind: Option<&'static MethodKind>,
    pub family: Option<&'static Family>,
    pub preset: Option<Preset>,
    pub allow_divergence: bool,
    /// Whether one of the words is missing or unknown.
    pub unclear: bool,
}

impl Asked {
    pub fn peek(source: &Source<'_>, registry: &'static Registry) -> Self {
        let word = |name| source.text_at(&["method", name]);
        let (kind, channels) = (word(registry.method_kind.name), word(method::CHANNELS.name));
        let model = source.text_at(&["model", registry.model_kind.name]);
        let (family, kind) = kind.and_then(|word| registry.method(word, model)).unzip();
        let preset = channels.and_then(from_name);
        let allow = source.bool_at(&["method", method::ALLOW_DIVERGENCE.name]);
        Self {
            kind,
            family,
            preset: preset.or(kind.and_then(|kind| kind.preset)),
            allow_divergence: allow.unwrap_or(false),
            unclear: kind.is_none() || (channels.is_some() && preset.is_none()),
        }
    }

    /// Whether one client holds all rows, so that no messages are sent.
    pub fn is_pooled(&self) -> bool {
        self.kind.is_some_and(|kind| kind.pooled)
    }

    /// Name of the method for messages.
    pub fn method(&self) -> &'static str {
        self.kind.map_or("the method", |kind| kind.algorithm)
    }

    /// The default rule of the uplink.
    pub fn uplink(&self) -> UpRule<Auto> {
        let of_method = || self.kind.map_or(UpRule::Plain, |kind| kind.up_rule);
        self.preset.map_or_else(of_method, |preset| preset.uplink())
    }
}
