//! `[uplink]`: from clients to the server.

use super::own::{self, OwnCodec, read_own, write_own};
use super::{auto, read_alpha};
use crate::job::codec::{CODEC, read_codec, write_codec};
use crate::job::preset::{Asked, up_rule};
use std::path::PathBuf;
use whimbrel_codec::Codec;
use whimbrel_job::key::{Key, Section, Word};
use whimbrel_job::path::{looks_like_path, write_path};
use whimbrel_job::reader::{Read, Reader, Value};
use whimbrel_job::writer::{Writer, number, text};
use whimbrel_job::{choices, named};
use whimbrel_methods::fedem::FrameKind;

/// `[uplink]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Uplink {
    /// How vectors are compressed.
    pub codec: Codec,
    /// What is compressed.
    pub rule: UpRule,
    /// The coordinates in which vectors are compressed; `None`: those of the vectors, for want of
    /// others.
    pub frame: Option<FrameKind>,
    /// Clients with codecs of their own.
    pub own: Vec<OwnCodec>,
}

named! {
    /// The coordinates in which vectors are compressed.
    pub(crate) FRAMES: FrameKind {
        FrameKind::Fisher => "fisher": "those of the complete-data Fisher information at the \
         parameters that a client computes at; a compressed downlink uses them too",
        FrameKind::Raw => "raw": "those of the statistic, as in the papers",
    }
}

/// What an uplink compresses.
#[derive(Clone, Debug, PartialEq)]
pub enum UpRule {
    /// The vector itself.
    Plain,
    /// Its difference to a memory kept on both ends.
    Memory {
        /// How fast memories follow; `None`: the method's.
        alpha: Option<f64>,
        /// Where memories start.
        start: MemoryStart,
    },
    /// The rule is `memory`, but the memory is turned off: the vector itself.
    MemoryOff,
    /// The vector plus what earlier messages left out.
    Feedback,
}

/// Where memories start.
#[derive(Clone, Debug, PartialEq)]
pub enum MemoryStart {
    /// At the oracle's first value, one counted exchange.
    Oracle,
    /// At zero.
    Zero,
    /// In a file.
    File(PathBuf),
}

choices! {
    /// The word in `[uplink]`'s `rule`.
    pub enum UpRuleKind {
        Plain = "plain": "clients send the compressed vector",
        Memory = "memory": "clients send the compressed difference to a memory kept on both ends",
        Feedback = "feedback": "clients add what earlier messages left out before they compress; \
         an unbiased codec is scaled to a contraction",
    }
}

choices! {
    /// The word in `[uplink]`'s `memory`.
    pub enum MemorySwitch {
        On = "on": "as the rule says",
        Off = "off": "no memory: the rule becomes \"plain\" (diana becomes qsgd)",
    }
}

static RULE: Key = Key::optional(
    "rule",
    "\"plain\", \"memory\" or \"feedback\"",
    "that of `channels`; else \"memory\" for fedem, vr-fedem and fedmiss, \"plain\" for em, dem and sgd",
    "what is compressed",
)
.words(UpRuleKind::WORDS);
static MEMORY: Key = Key::default("memory", "", "\"on\"", "whether the memory is used")
    .words(MemorySwitch::WORDS)
    .only(&["memory"], "there is no memory to turn off");
static ALPHA: Key = Key::default(
    "alpha",
    "\"auto\" or a number above 0 and at most 1",
    "\"auto\"",
    "how fast memories follow",
)
.words(&[auto(
    "with omega, the codec's variance constant: 1/(1 + omega) for the EM methods and under step = \
     \"theory\", 1/(2 (1 + omega)) for the gradient family",
)])
.only(&["memory"], "only memories follow something");
static START: Key = Key::default(
    "start",
    "\"oracle\", \"zero\" or a file name",
    "\"oracle\"",
    "where memories start; a file is for the EM methods",
)
.words(&[
    Word {
        name: "oracle",
        doc: "at the client's first field or gradient, sent in one counted exchange",
    },
    Word { name: "zero", doc: "at zero" },
])
.only(&["memory"], "only memories start somewhere");
static FRAME: Key = Key::optional(
    "frame",
    "",
    "\"fisher\" for fedem and vr-fedem; \"raw\" for dem, under step = \"theory\", and with memories \
     = \"single\" in [downlink]",
    "the coordinates in which a mixture's statistics are compressed; the exact codec uses none",
)
.words(FRAMES.words);
static FOR: Key = Key::default(
    "for",
    "a list of tables { clients, codec }",
    "[]",
    "clients with codecs of their own; a memory's \"auto\" alpha is then that of each codec",
)
.tables(&[&own::SECTION]);

/// `[uplink]`.
pub(crate) static UPLINK: Section = Section {
    name: "uplink",
    doc: "How vectors travel from clients to the server. The table may be left out. `em` sends \
          nothing, so it takes the exact codec and the plain rule only.",
    keys: &[&CODEC, &RULE, &MEMORY, &ALPHA, &START, &FRAME, &FOR],
    example: "[uplink]\ncodec = { kind = \"block-p\", p = \"inf\", size = 128 }\n\
             rule = \"memory\"\n\
              alpha = 0.25\nstart = \"zero\"\n",
};

impl Uplink {
    /// Reads `[uplink]` for what `[method]` asks.
    pub(crate) fn read(reader: &Reader<'_>, asked: Asked) -> Read<Self> {
        let codec = reader.read(&CODEC, |v| read_usable(v, asked));
        let own = reader.read(&FOR, |v| {
            if v.is_default() || !asked.is_pooled() {
                return read_own(v);
            }
            Err(v.fail(
                format!(
                    "{} sends nothing that could be compressed: one client holds everything",
                    asked.method()
                ),
                "take [[uplink.for]] out, or use kind = \"dem\" or \"fedem\" in [method]",
            ))
        });
        let frame = reader.optional(&FRAME, |v| v.named(&FRAMES));
        let kind = match reader.optional(&RULE, |v| read_rule(v, asked))? {
            Some(given) => given,
            None => asked.preset.map_or_else(|| asked.default_rule(), up_rule),
        };
        if !asked.unclear || reader.has(&RULE) {
            reader.check_meaning(kind.name());
        }
        let rule = match kind {
            UpRuleKind::Plain => Ok(UpRule::Plain),
            UpRuleKind::Feedback => Ok(UpRule::Feedback),
            UpRuleKind::Memory => read_memory(reader),
        };
        let (codec, own) = (codec?, own?);
        let feedback = kind == UpRuleKind::Feedback;
        let mut codecs = std::iter::once(&codec).chain(own.iter().map(|own| &own.codec));
        if let Some(biased) = codecs.find(|codec| !codec.is_unbiased() && !feedback) {
            let key = if !codec.is_unbiased() { &CODEC } else { &FOR };
            return reader.read(key, |v| Err(refuse_biased(&v, biased.name(), kind)));
        }
        Ok(Self { codec, rule: rule?, frame: frame?, own })
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&UPLINK);
        out.put(&CODEC, write_codec(&self.codec));
        match &self.rule {
            UpRule::Plain => out.put(&RULE, text(UpRuleKind::Plain.name())),
            UpRule::Feedback => out.put(&RULE, text(UpRuleKind::Feedback.name())),
            UpRule::MemoryOff => {
                out.put(&RULE, text(UpRuleKind::Memory.name()));
                out.put(&MEMORY, text(MemorySwitch::Off.name()));
            }
            UpRule::Memory { alpha, start } => {
                out.put(&RULE, text(UpRuleKind::Memory.name()));
                out.put(&MEMORY, text(MemorySwitch::On.name()));
                out.put(&ALPHA, alpha.map_or_else(|| text("auto"), number));
                let start = match start {
                    MemoryStart::Oracle => text("oracle"),
                    MemoryStart::Zero => text("zero"),
                    MemoryStart::File(path) => write_path(path),
                };
                out.put(&START, start);
            }
        }
        if let Some(frame) = self.frame {
            out.put(&FRAME, text(FRAMES.name(frame)));
        }
        if !self.own.is_empty() {
            out.put(&FOR, write_own(&self.own));
        }
    }
}

fn read_memory(reader: &Reader<'_>) -> Read<UpRule> {
    if reader.read(&MEMORY, |v| v.choice::<MemorySwitch>())? == MemorySwitch::Off {
        for key in [&ALPHA, &START] {
            reader.refuse_if_given(key, "has no meaning with memory = \"off\"");
        }
        return Ok(UpRule::MemoryOff);
    }
    let alpha = reader.read(&ALPHA, |v| read_alpha(&v, |x| x > 0.0 && x <= 1.0));
    let start = reader.read(&START, read_start);
    Ok(UpRule::Memory { alpha: alpha?, start: start? })
}

fn read_usable(value: Value<'_>, asked: Asked) -> Read<Codec> {
    let codec = read_codec(value.clone())?;
    if codec == Codec::Exact {
        return Ok(codec);
    }
    if asked.is_pooled() {
        return Err(value.fail(
            format!(
                "{} sends nothing that could be compressed: one client holds everything",
                asked.method()
            ),
            "write codec = \"exact\", or use kind = \"dem\" or \"fedem\" in [method]",
        ));
    }
    if asked.preset.is_some_and(|preset| !preset.compresses().0) && !codec.is_exact() {
        return Err(value.fail(
            "sgd compresses nothing: this codec would not be used",
            "take `codec` out, or compress with kind = \"qsgd\", \"diana\" or another preset",
        ));
    }
    Ok(codec)
}

fn read_rule(value: Value<'_>, asked: Asked) -> Read<UpRuleKind> {
    let rule: UpRuleKind = value.choice()?;
    if let Some(preset) = asked.preset.filter(|preset| up_rule(*preset) != rule) {
        let (name, its) = (preset.name(), up_rule(preset).name());
        return Err(value.fail(
            format!("rule = \"{}\" contradicts \"{name}\", whose uplink is \"{its}\"", rule.name()),
            "take `rule` out, or choose other channels in [method]",
        ));
    }
    if asked.is_pooled() && rule != UpRuleKind::Plain {
        return Err(value.fail(
            format!(
                "{} has no use for {}: one client holds everything",
                asked.method(),
                rule.name()
            ),
            "take `rule` out",
        ));
    }
    Ok(rule)
}

fn refuse_biased(
    value: &Value<'_>,
    codec: &str,
    rule: UpRuleKind,
) -> whimbrel_job::reader::Reported {
    value.fail(
        format!(
            "{codec} is biased: without error feedback (here rule = \"{}\") the fixed point moves",
            rule.name()
        ),
        "add rule = \"feedback\", or use an unbiased codec such as \"dithering\"",
    )
}

fn read_start(value: Value<'_>) -> Read<MemoryStart> {
    match value.text()?.as_str() {
        "oracle" => Ok(MemoryStart::Oracle),
        "zero" => Ok(MemoryStart::Zero),
        path if looks_like_path(path) => Ok(MemoryStart::File(path.into())),
        other => Err(value.unknown_word(other)),
    }
}
