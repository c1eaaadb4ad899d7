//! Channel presets: the words of `channels`, and what `[method]` says about both channels.

use crate::family::{Family, MethodKind};
use crate::job::channel::UpRuleKind;
use crate::job::method;
use crate::registry::Registry;
use whimbrel_job::form::Form;
use whimbrel_job::key::Word;
use whimbrel_job::reader::Source;
use whimbrel_job::writer::text;
use whimbrel_methods::sgd::Preset;
use whimbrel_methods::sgd::preset::UpKind;

const fn word(name: &'static str, doc: &'static str) -> Word {
    Word { name, doc }
}

/// The names of the presets.
pub(crate) const PRESETS: [Word; 13] = [
    word("sgd", "nothing is compressed"),
    word("qsgd", "compressed vectors up, the exact state down"),
    word("ecq-sgd", "compressed vectors with error feedback up, the exact state down"),
    word("diana", "compressed differences to memories up, the exact state down"),
    word("artemis", "diana up; down a compressed update that the server applies too"),
    word("artemis-nd", "diana up; down a compressed update that only clients apply"),
    word("dore", "artemis with a share of the compression error fed back"),
    word("double-squeeze", "error feedback both ways"),
    word("dist-ef-sgd", "the same as double-squeeze"),
    word("mcm", "diana up; down the compressed difference of the exact state to one memory"),
    word("rand-mcm", "mcm with a memory and a message for each client"),
    word("rand-mcm-g", "mcm with a memory and a message for each group of clients"),
    word("ghost", "diana up; clients compute at the previous exact state plus a compressed update"),
];

/// How a preset stands in a job file.
pub(crate) const PRESETS_FORM: Form<Preset> = Form::new(
    "",
    |v| {
        let word = v.text()?;
        Preset::from_name(&word).ok_or_else(|| v.unknown_word(&word))
    },
    |preset| text(preset.name()),
)
.words(&PRESETS);

/// What `[method]` says about the channels, read before the tables are: a fault elsewhere in
/// `[method]` does not change what the other tables mean.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// The method; `None`: not known, so what only it would settle is not checked.
    pub kind: Option<&'static MethodKind>,
    /// Its family.
    pub family: Option<&'static dyn Family>,
    pub preset: Option<Preset>,
    pub allow_divergence: bool,
    /// Whether one of the words is in doubt.
    pub unclear: bool,
}

impl Asked {
    pub fn peek(source: &Source<'_>, registry: &'static Registry) -> Self {
        let word = |name| source.text_at(&["method", name]);
        let (kind, channels) = (word(registry.method_kind.name), word(method::CHANNELS.name));
        let model = source.text_at(&["model", registry.model_kind.name]);
        let (family, kind) = kind.and_then(|word| registry.method(word, model)).unzip();
        let preset = channels.and_then(Preset::from_name);
        let allow = source.bool_at(&["method", method::ALLOW_DIVERGENCE.name]);
        Self {
            kind,
            family,
            preset: preset.or(kind.and_then(|kind| kind.preset)),
            allow_divergence: allow.unwrap_or(false),
            unclear: kind.is_none() || (channels.is_some() && preset.is_none()),
        }
    }
}

impl Asked {
    /// Whether nothing travels.
    pub fn is_pooled(&self) -> bool {
        self.kind.is_some_and(|kind| kind.pooled)
    }

    /// What the job calls the method, for messages.
    pub fn method(&self) -> &'static str {
        self.kind.map_or("the method", |kind| kind.algorithm)
    }

    /// The uplink's rule where neither a preset nor the job says.
    pub fn default_rule(&self) -> UpRuleKind {
        self.kind.map_or(UpRuleKind::Plain, |kind| kind.up_rule)
    }
}

/// What a preset's uplink keeps.
pub(crate) fn up_rule(preset: Preset) -> UpRuleKind {
    match preset.uplink() {
        UpKind::Plain => UpRuleKind::Plain,
        UpKind::Memory => UpRuleKind::Memory,
        UpKind::Feedback => UpRuleKind::Feedback,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_has_a_word() {
        let words: Vec<&str> = PRESETS.iter().map(|word| word.name).collect();
        assert_eq!(words, Preset::names().collect::<Vec<_>>());
    }
}
