//! `[uplink]`: from clients to the server.

use super::own::{OWN_CODECS, OwnCodec};
use super::read_rule;
use crate::job::codec::{CODEC, CODECS};
use crate::job::preset::Asked;
use std::path::PathBuf;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{Auto, UpRule};
use whimbrel_job::form;
use whimbrel_job::form::{ABOVE_ZERO, PATH};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Reader, Reported, Value};
use whimbrel_job::writer::Writer;
use whimbrel_methods::fedem::FrameKind;

/// `[uplink]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Uplink {
    /// How vectors are compressed.
    pub codec: Codec,
    /// What is compressed.
    pub rule: UpRule<Auto>,
    /// Whether `rule` is plain because the job turns its memory off.
    pub memory_off: bool,
    /// Where memories start; at zero where there are none.
    pub start: MemoryStart,
    /// The coordinates in which vectors are compressed; `None`: those of the vectors, for want of
    /// others.
    pub frame: Option<FrameKind>,
    /// Clients with codecs of their own.
    pub own: Vec<OwnCodec>,
}

form! {
    /// The coordinates in which vectors are compressed.
    pub(crate) FRAMES: FrameKind {
        FrameKind::Fisher => "fisher": "those of the complete-data Fisher information at the \
         parameters that a client computes at; a compressed downlink uses them too",
        FrameKind::Raw => "raw": "those of the statistic, as in the papers",
    }
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

form! {
    /// The word in `[uplink]`'s `rule`.
    pub(crate) UP_RULES: UpRule<Auto>, "\"plain\", \"memory\" or \"feedback\"" {
        UpRule::Plain => "plain": "clients send the compressed vector",
        UpRule::Memory { alpha: None } => any "memory": "clients send the compressed difference to a memory \
         kept on both ends",
        UpRule::Feedback => "feedback": "clients add what earlier messages left out before they compress; \
         an unbiased codec is scaled to a contraction",
    }
}

form! {
    /// Whether the memory is used.
    SWITCH: bool {
        true => "on": "as the rule says",
        false => "off": "no memory: the rule becomes \"plain\" (diana becomes qsgd)",
    }
}

pub(crate) static RULE: JobKey =
    UP_RULES.unset("rule", "that of `channels`; else the method's", "what is compressed");
static MEMORY: JobKey = SWITCH
    .default("memory", || SWITCH.write(&true), "whether the memory is used")
    .only(&["memory"], "there is no memory to turn off");
static FRAME: JobKey = FRAMES.unset(
    "frame",
    "\"fisher\" for fedem and vr-fedem; \"raw\" for dem, under step = \"theory\", and with memories \
     = \"single\" in [downlink]",
    "the coordinates in which a mixture's statistics are compressed; the exact codec uses none",
);
static FOR: JobKey = OWN_CODECS.default(
    "for",
    || OWN_CODECS.write(&Vec::new()),
    "clients with codecs of their own; a memory's \"auto\" alpha is then that of each codec",
);

static ALPHA: JobKey = ALPHAS
    .default("alpha", || ALPHAS.write(&None), "how fast memories follow")
    .only(&["memory"], "only memories follow something");
static START: JobKey = STARTS
    .default(
        "start",
        || STARTS.write(&MemoryStart::Oracle),
        "where memories start; a file is for the EM methods",
    )
    .only(&["memory"], "only memories start somewhere");

form! {
    ALPHAS: Auto, "\"auto\" or a number above 0 and at most 1" {
        None => "auto": "with omega, the codec's variance constant: 1/(1 + omega) for the EM methods and \
         under step = \"theory\", 1/(2 (1 + omega)) for the gradient family",
    }
    number ABOVE_ZERO => Some;
}

form! {
    STARTS: MemoryStart, "\"oracle\", \"zero\" or a file name" {
        MemoryStart::Oracle => "oracle": "at the client's first field or gradient, sent in one counted \
         exchange",
        MemoryStart::Zero => "zero": "at zero",
    }
    path PATH => MemoryStart::File;
}

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
                return OWN_CODECS.read(&v);
            }
            Err(v.fail(
                format!(
                    "{} sends nothing that could be compressed: one client holds everything",
                    asked.method()
                ),
                "take [[uplink.for]] out, or use kind = \"dem\" or \"fedem\" in [method]",
            ))
        });
        let frame = reader.optional_as(&FRAME, &FRAMES);
        let given = reader.optional(&RULE, |v| {
            read_rule(&v, asked, &UP_RULES, |preset| preset.uplink(), ["uplink", "plain"])
        })?;
        let rule = given.unwrap_or_else(|| asked.uplink());
        if !asked.unclear || reader.has(&RULE) {
            reader.check_meaning(UP_RULES.name(&rule));
        }
        let memory = match rule {
            UpRule::Memory { .. } => read_memory(reader),
            rule => Ok((rule, MemoryStart::Zero)),
        };
        let (codec, own) = (codec?, own?);
        let mut codecs = std::iter::once(&codec).chain(own.iter().map(|own| &own.codec));
        let biased = codecs.find(|codec| !codec.is_unbiased() && rule != UpRule::Feedback);
        if let Some(biased) = biased {
            let key = if !codec.is_unbiased() { &CODEC } else { &FOR };
            return reader.read(key, |v| Err(refuse_biased(&v, biased.name(), rule)));
        }
        let (settled, start) = memory?;
        let memory_off = settled == UpRule::Plain && rule != settled;
        Ok(Self { codec, rule: settled, memory_off, start, frame: frame?, own })
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&UPLINK);
        out.put(&CODEC, CODECS.write(&self.codec));
        let rule = if self.memory_off { UpRule::Memory { alpha: None } } else { self.rule };
        out.put(&RULE, UP_RULES.write(&rule));
        if let UpRule::Memory { alpha } = rule {
            out.put(&MEMORY, SWITCH.write(&!self.memory_off));
            if !self.memory_off {
                out.put(&ALPHA, ALPHAS.write(&alpha));
                out.put(&START, STARTS.write(&self.start));
            }
        }
        if let Some(frame) = &self.frame {
            out.put(&FRAME, FRAMES.write(frame));
        }
        if !self.own.is_empty() {
            out.put(&FOR, OWN_CODECS.write(&self.own));
        }
    }
}

/// The rule and the start of a memory that may be turned off.
fn read_memory(reader: &Reader<'_>) -> Read<(UpRule<Auto>, MemoryStart)> {
    if !reader.read_as(&MEMORY, &SWITCH)? {
        for key in [&ALPHA, &START] {
            reader.refuse_if_given(key, "has no meaning with memory = \"off\"");
        }
        return Ok((UpRule::Plain, MemoryStart::Zero));
    }
    let (alpha, start) = (reader.read_as(&ALPHA, &ALPHAS), reader.read_as(&START, &STARTS));
    Ok((UpRule::Memory { alpha: alpha? }, start?))
}

fn read_usable(value: Value<'_>, asked: Asked) -> Read<Codec> {
    let codec = CODECS.read(&value)?;
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

fn refuse_biased(value: &Value<'_>, codec: &str, rule: UpRule<Auto>) -> Reported {
    value.fail(
        format!(
            "{codec} is biased: without error feedback (here rule = \"{}\") the fixed point moves",
            UP_RULES.name(&rule)
        ),
        "add rule = \"feedback\", or use an unbiased codec such as \"dithering\"",
    )
}
