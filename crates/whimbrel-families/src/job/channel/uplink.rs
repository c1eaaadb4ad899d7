//! `[uplink]`: messages from clients to the server.

use super::own::{OWN_CODECS, OwnCodec};
use super::read_rule;
use crate::job::codec::{CODEC, CODECS, LEVELS_USUAL};
use crate::job::preset::Asked;
use std::path::PathBuf;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{Auto, UpRule};
use whimbrel_job::form::{ABOVE_ZERO, PATH};
use whimbrel_job::key::Section;
use whimbrel_job::reader::{Read, Reader, Reported, Source, Value};
use whimbrel_job::writer::Writer;
use whimbrel_job::{define_keys, form};
use whimbrel_methods::fedem::FrameKind;

/// `[uplink]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Uplink {
    pub codec: Codec,
    pub rule: UpRule<Auto>,
    /// Whether `rule` is plain because `memory` is off.
    pub memory_off: bool,
    /// Zero without memories.
    pub start: MemoryStart,
    /// Coordinates of the compression; `None`: those of the vectors.
    pub frame: Option<FrameKind>,
    /// Codecs of single clients.
    pub own: Vec<OwnCodec>,
}

form! {
    pub(crate) FRAMES: FrameKind {
        /// those in which the complete-data Fisher information at the current parameters is the
        /// identity; a compressed downlink uses them too
        "fisher" => FrameKind::Fisher,
        /// those of the statistic, as in the papers
        "raw" => FrameKind::Raw,
    }
}

/// Initial value of memories.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum MemoryStart {
    /// The first value of the oracle, sent in a counted exchange.
    #[default]
    Oracle,
    Zero,
    File(PathBuf),
}

form! {
    pub(crate) UP_RULES: UpRule<Auto>, "\"plain\", \"memory\" or \"feedback\"" {
        /// the compressed vector
        "plain" => UpRule::Plain,
        /// the compressed difference to a memory kept on both ends
        any "memory" => UpRule::Memory { alpha: None },
        /// error feedback: compression errors are added to the next message; an unbiased codec is
        /// scaled to a contraction
        "feedback" => UpRule::Feedback,
    }
}

form! {
    SWITCH: bool {
        /// by the rule
        "on" => true,
        /// no memory: the rule becomes "plain" (diana becomes qsgd)
        "off" => false,
    }
}

define_keys! {
    /// what clients send
    pub(crate) RULE = "rule", UP_RULES, unset "that of `channels`; else the method's";
    /// whether the memory is used
    MEMORY = "memory", SWITCH, default(true), only (&["memory"], "there is no memory to turn off");
    /// coordinates in which a mixture's statistics are compressed; without effect for exact codecs
    FRAME = "frame", FRAMES,
        unset "\"fisher\" for fedem, vr-fedem and every grid; \"raw\" for dem, under step = \"theory\", and with \
         memories = \"single\" in [downlink]";
    /// codecs of single clients; "auto" for `alpha` is then by codec
    FOR = "for", OWN_CODECS, default(Vec::new());
    /// step of the memories
    ALPHA = "alpha", ALPHAS, default(None), only (&["memory"], "there is no memory");
    /// initial value of the memories; a file is for the EM methods
    START = "start", STARTS, default(MemoryStart::default()), only (&["memory"], "there is no memory");
}

form! {
    ALPHAS: Auto, "\"auto\" or a number above 0 and at most 1" {
        /// 1/(1 + omega) for the EM methods, on a grid and under step = "theory", 1/(2 (1 + omega))
        /// for regressions, with omega the codec's variance constant
        "auto" => None,
    }
    number ABOVE_ZERO => Some;
}

form! {
    STARTS: MemoryStart, "\"oracle\", \"zero\" or a file name" {
        /// the client's first field or gradient, sent in a counted exchange
        "oracle" => MemoryStart::Oracle,
        /// zero
        "zero" => MemoryStart::Zero,
    }
    path PATH => MemoryStart::File;
}

/// `[uplink]`.
pub(crate) static UPLINK: Section = Section {
    name: "uplink",
    doc: "Compression of messages from clients to the server. The table is optional. `em` sends nothing, \
          so it accepts the exact codec and the plain rule only.",
    keys: &[&CODEC, &RULE, &MEMORY, &ALPHA, &START, &FRAME, &FOR],
    example: "[uplink]\ncodec = { kind = \"block-p\", p = \"inf\", size = 128 }\n\
             rule = \"memory\"\n\
              alpha = 0.25\nstart = \"zero\"\n",
};

impl Uplink {
    /// Reads `[uplink]` for a method.
    pub(crate) fn read(reader: &Reader<'_>, asked: Asked) -> Read<Self> {
        let codec = reader.read(&CODEC, |v| read_usable(v, asked));
        let own = reader.read(&FOR, |v| {
            if v.is_default() || !asked.is_pooled() {
                return OWN_CODECS.read(&v);
            }
            Err(v.fail(
                format!("{} sends no messages: one client holds all rows", asked.method()),
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
        let (mut codec, mut own) = (codec?, own?);
        if !asked.kind.is_some_and(|kind| kind.auto_levels) {
            codec = codec.settled(LEVELS_USUAL);
            own.iter_mut().for_each(|own| own.codec = own.codec.settled(LEVELS_USUAL));
        }
        check_grid(reader, &codec, &own, rule)?;
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

    /// Whether uploads are integers on a shared grid.
    pub fn is_on_grid(&self) -> bool {
        matches!(self.codec, Codec::Grid(_))
    }

    /// Reports a grid that the method cannot use.
    pub(crate) fn refuse_grid(&self, source: &Source<'_>, what: &str) {
        if self.is_on_grid() {
            let hint = "use another codec, such as \"dithering\"";
            source.report_at(&["uplink", "codec"], what, hint);
        }
    }

    /// Reports a `frame` of methods without frames.
    pub(crate) fn refuse_frame(&mut self, source: &Source<'_>) {
        if self.frame.take().is_some() {
            source.report_at(
                &["uplink", "frame"],
                "frames apply to compressed statistics of mixtures only",
                "take `frame` out",
            );
        }
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

/// Rule and initial value of a memory, which may be off.
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
            format!("{} sends no messages: one client holds all rows", asked.method()),
            "write codec = \"exact\", or use kind = \"dem\" or \"fedem\" in [method]",
        ));
    }
    if asked.preset.is_some_and(|preset| !preset.compresses().0) && !codec.is_exact() {
        return Err(value.fail(
            "sgd does not compress: this codec would not be used",
            "take `codec` out, or compress with kind = \"qsgd\", \"diana\" or another preset",
        ));
    }
    Ok(codec)
}

/// Refuses a grid where clients do not send terms of one sum.
fn check_grid(
    reader: &Reader<'_>,
    codec: &Codec,
    own: &[OwnCodec],
    rule: UpRule<Auto>,
) -> Read<()> {
    let is_grid = |codec: &Codec| matches!(codec, Codec::Grid(_));
    if own.iter().any(|own| is_grid(&own.codec)) || is_grid(codec) && !own.is_empty() {
        return reader.read(&FOR, |v| {
            Err(v.fail(
                "uploads on a grid are terms of one sum, so all clients share the codec",
                "take [[uplink.for]] out, or use another codec",
            ))
        });
    }
    if is_grid(codec) && rule == UpRule::Feedback {
        return reader.read(&CODEC, |v| {
            Err(v.fail(
                "a grid has no error feedback: its steps follow the sum of all clients",
                "write rule = \"memory\" or \"plain\", or use another codec",
            ))
        });
    }
    Ok(())
}

fn refuse_biased(value: &Value<'_>, codec: &str, rule: UpRule<Auto>) -> Reported {
    value.fail(
        format!(
            "{codec} is biased: without error feedback (here rule = \"{}\") the fixed point moves",
            UP_RULES.name(&rule)
        ),
        "add rule = \"feedback\" in [uplink], or use an unbiased codec such as \"dithering\"",
    )
}
