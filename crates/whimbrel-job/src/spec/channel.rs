//! `[uplink]` and `[downlink]`: how vectors travel.

use crate::key::{Key, Section, Word, choices};
use crate::reader::{Read, Reader, Shape, Value};
use crate::resolve::{Writer, number, text};
use crate::spec::codec::{CODEC, Codec};
use crate::spec::method::MethodKind;
use crate::spec::path::{looks_like_path, write_path};
use std::path::PathBuf;

/// `[uplink]`: from clients to the server.
#[derive(Clone, Debug, PartialEq)]
pub struct Uplink {
    /// How vectors are compressed.
    pub codec: Codec,
    /// What is compressed.
    pub rule: UpRule,
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

/// `[downlink]`: from the server to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downlink {
    /// The state is sent in full.
    Exact,
}

choices! {
    /// The word in `[uplink]`'s `rule`.
    pub enum UpRuleKind {
        Plain = "plain": "clients send the compressed vector",
        Memory = "memory": "clients send the compressed difference to a memory kept on both ends",
        Feedback = "feedback": "clients add what earlier messages left out before they compress",
    }
}

static RULE: Key = Key::optional(
    "rule",
    "\"plain\", \"memory\" or \"feedback\"",
    "\"memory\" for fedem, \"plain\" for em and dem",
    "what is compressed",
)
.words(UpRuleKind::WORDS);
static ALPHA: Key = Key::default(
    "alpha",
    "\"auto\" or a number above 0 and at most 1",
    "\"auto\"",
    "how fast memories follow",
)
.words(&[Word { name: "auto", doc: "1 / (1 + omega), omega being the codec's variance constant" }])
.only(&["memory"], "only memories follow something");
static START: Key = Key::default(
    "start",
    "\"oracle\", \"zero\" or a file name",
    "\"oracle\"",
    "where memories start",
)
.words(&[
    Word { name: "oracle", doc: "at the client's first field, sent in one counted exchange" },
    Word { name: "zero", doc: "at zero" },
])
.only(&["memory"], "only memories start somewhere");

/// `[uplink]`.
pub(crate) static UPLINK: Section = Section {
    name: "uplink",
    doc: "How vectors travel from clients to the server. The table may be left out. `em` sends \
          nothing, so it takes the exact codec and the plain rule only.",
    keys: &[&CODEC, &RULE, &ALPHA, &START],
    example: "[uplink]\ncodec = { kind = \"block-p\", p = \"inf\", size = 128 }\n\
             rule = \"memory\"\n\
              alpha = 0.25\nstart = \"zero\"\n",
};

const SENT_EXACTLY: &str = "this version sends the state to clients exactly";

static DOWN_CODEC: Key =
    Key::default("codec", "", "\"exact\"", "how the state that clients receive is compressed")
        .words(&[Word { name: "exact", doc: "every number in full" }]);
static DOWN_RULE: Key = Key::default("rule", "", "\"exact\"", "what clients receive")
    .words(&[Word { name: "exact", doc: "the state itself" }]);

/// `[downlink]`.
pub(crate) static DOWNLINK: Section = Section {
    name: "downlink",
    doc: "How the state travels from the server to clients: exactly, in this version. The table \
          may be left out.",
    keys: &[&DOWN_CODEC, &DOWN_RULE],
    example: "[downlink]\ncodec = \"exact\"\nrule = \"exact\"\n",
};

impl Uplink {
    /// Reads `[uplink]` for a method; `None`: the method is not known, so its rules are not
    /// checked.
    pub(crate) fn read(reader: &Reader<'_>, method: Option<MethodKind>) -> Read<Self> {
        let codec = reader.read(&CODEC, |v| read_codec(v, method));
        let kind = reader.optional(&RULE, |v| read_rule(v, method))?.unwrap_or(match method {
            Some(MethodKind::Fedem) => UpRuleKind::Memory,
            Some(MethodKind::Em | MethodKind::Dem) | None => UpRuleKind::Plain,
        });
        if method.is_some() || reader.has(&RULE) {
            reader.check_meaning(kind.name());
        }
        let rule = match kind {
            UpRuleKind::Plain => Ok(UpRule::Plain),
            UpRuleKind::Feedback => Ok(UpRule::Feedback),
            UpRuleKind::Memory => {
                let alpha = reader.read(&ALPHA, read_alpha);
                let start = reader.read(&START, read_start);
                alpha.and_then(|alpha| Ok(UpRule::Memory { alpha, start: start? }))
            }
        };
        let codec = codec?;
        if codec.is_biased() && kind != UpRuleKind::Feedback {
            return reader.read(&CODEC, |v| Err(refuse_biased(&v, codec.kind().name(), kind)));
        }
        Ok(Self { codec, rule: rule? })
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&UPLINK);
        out.put(&CODEC, self.codec.write());
        match &self.rule {
            UpRule::Plain => out.put(&RULE, text(UpRuleKind::Plain.name())),
            UpRule::Feedback => out.put(&RULE, text(UpRuleKind::Feedback.name())),
            UpRule::Memory { alpha, start } => {
                out.put(&RULE, text(UpRuleKind::Memory.name()));
                out.put(&ALPHA, alpha.map_or_else(|| text("auto"), number));
                let start = match start {
                    MemoryStart::Oracle => text("oracle"),
                    MemoryStart::Zero => text("zero"),
                    MemoryStart::File(path) => write_path(path),
                };
                out.put(&START, start);
            }
        }
    }
}

impl Downlink {
    pub(crate) fn read(reader: &Reader<'_>) -> Read<Self> {
        let exact = |v: Value<'_>| match v.shape() {
            Shape::Text if v.text()? == "exact" => Ok(()),
            _ => Err(v.fail(SENT_EXACTLY, "write \"exact\", or leave [downlink] out")),
        };
        let codec = reader.read(&DOWN_CODEC, exact);
        let rule = reader.read(&DOWN_RULE, exact);
        codec.and(rule)?;
        Ok(Self::Exact)
    }

    pub(crate) fn write(self, out: &mut Writer) {
        match self {
            Self::Exact => {
                out.table(&DOWNLINK);
                out.put(&DOWN_CODEC, text("exact"));
                out.put(&DOWN_RULE, text("exact"));
            }
        }
    }
}

fn read_codec(value: Value<'_>, method: Option<MethodKind>) -> Read<Codec> {
    let codec = Codec::read(value.clone())?;
    if method == Some(MethodKind::Em) && codec != Codec::Exact {
        return Err(value.fail(
            "em sends nothing that could be compressed: one client holds everything",
            "write codec = \"exact\", or use kind = \"dem\" or \"fedem\" in [method]",
        ));
    }
    Ok(codec)
}

fn read_rule(value: Value<'_>, method: Option<MethodKind>) -> Read<UpRuleKind> {
    let rule: UpRuleKind = value.choice()?;
    match (method, rule) {
        (Some(MethodKind::Dem), UpRuleKind::Memory) => Err(value.fail(
            "dem is the naive method without memories",
            "use kind = \"fedem\" in [method] for memories, or take `rule` out",
        )),
        (Some(MethodKind::Em), UpRuleKind::Memory | UpRuleKind::Feedback) => Err(value.fail(
            format!("em has no use for {}: one client holds everything", rule.name()),
            "take `rule` out",
        )),
        _ => Ok(rule),
    }
}

fn refuse_biased(value: &Value<'_>, codec: &str, rule: UpRuleKind) -> crate::reader::Reported {
    value.fail(
        format!(
            "{codec} is biased: without error feedback (here rule = \"{}\") the fixed point moves",
            rule.name()
        ),
        "add rule = \"feedback\", or use an unbiased codec such as \"dithering\"",
    )
}

fn read_alpha(value: Value<'_>) -> Read<Option<f64>> {
    match value.shape() {
        Shape::Text => match value.text()?.as_str() {
            "auto" => Ok(None),
            other => Err(value.unknown_word(other)),
        },
        _ => value.number(|x| x > 0.0 && x <= 1.0).map(Some),
    }
}

fn read_start(value: Value<'_>) -> Read<MemoryStart> {
    match value.text()?.as_str() {
        "oracle" => Ok(MemoryStart::Oracle),
        "zero" => Ok(MemoryStart::Zero),
        path if looks_like_path(path) => Ok(MemoryStart::File(path.into())),
        other => Err(value.unknown_word(other)),
    }
}
