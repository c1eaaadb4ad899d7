//! `[downlink]`: messages from the server to clients.

use super::own::{OWN_CODECS, OwnCodec};
use super::read_rule;
use crate::job::codec::{CODEC, CODECS, LEVELS_USUAL};
use crate::job::preset::Asked;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{Auto, DownRule, Feedback, Memories, Preset, Reset};
use whimbrel_job::form::{COUNT_U32, Form, SHARE};
use whimbrel_job::key::Section;
use whimbrel_job::reader::{Read, Reader, Reported, Value};
use whimbrel_job::writer::Writer;
use whimbrel_job::{define_keys, form};

/// `[downlink]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Downlink {
    pub codec: Codec,
    pub rule: DownRule<Auto>,
    /// Codecs of single clients.
    pub own: Vec<OwnCodec>,
}

form! {
    RULES: DownRule<Auto> {
        /// the state itself
        "exact" => DownRule::Exact,
        /// the compressed update; the server continues from the decoded state
        any "degraded" => DownRule::Degraded { feedback: Feedback::Off },
        /// the compressed update; the server continues from its exact state
        "detached" => DownRule::Detached,
        /// the compressed difference to a memory kept on both ends; the server continues from its
        /// exact state
        any "preserved" => DownRule::Preserved { alpha: None, memories: Memories::Groups(1) },
        /// the compressed update of the server's previous exact state, which must be sent as well:
        /// for comparison only
        "ghost" => DownRule::Ghost,
    }
}

define_keys! {
    /// what the server sends
    RULE = "rule", RULES, unset "that of `channels` in [method]; else \"exact\"";
    /// number of memories
    MEMORIES = "memories", MEMORY_WORDS, unset "that of `channels`; else \"shared\"", only (&["preserved"], "only a preserved downlink has memories");
    /// step of the memories
    ALPHA = "alpha", ALPHAS, default(None), only (&["preserved"], "there is no memory");
    /// error feedback: whether compression errors are added to the next update; an unbiased codec
    /// is scaled to a contraction
    FEEDBACK = "feedback", FEEDBACKS, unset "that of `channels`; else false", only (&["degraded"], "only a degraded downlink has error feedback");
    /// rounds between resets of the clients' memories, with memories = "single"
    RESET = "reset", RESETS, default(Reset::default()),
        only (&["preserved"], "only memories can be reset");
    /// codecs of single clients, with memories = "per-client"
    FOR = "for", OWN_CODECS, default(Vec::new()),
        only (&["preserved"], "other rules send one message to several clients");
}

form! {
    MEMORY_WORDS: Memories, "\"shared\", \"per-client\", \"single\" or a number of groups" {
        /// one for all clients
        "shared" => Memories::Groups(1),
        /// one per client, on both ends
        "per-client" => Memories::PerClient,
        /// one per client on its end, their mean on the server
        any "single" => Memories::Single { reset: Reset::Auto },
    }
    number COUNT_U32 => Memories::Groups;
}

form! {
    ALPHAS: Auto,
        "\"auto\" or a number above 0 and below 1 (0 and 1 with allow_divergence = true)"
    {
        /// 1/(2 (1 + omega)), under step = "theory" min(1/(8 omega), 1/2), with omega the codec's
        /// variance constant
        "auto" => None,
    }
    number SHARE => Some;
}

form! {
    FEEDBACKS: Feedback<Auto>, "true, false or \"dore\"" {
        /// 1/(1 + omega) of the error with the codec unscaled, as published
        "dore" => Feedback::Share(None),
    }
    flag Form::new(
        "",
        |v| Ok(if v.boolean()? { Feedback::Contractive } else { Feedback::Off }),
        |feedback| (*feedback == Feedback::Contractive).to_string(),
    );
}

form! {
    RESETS: Reset, "\"auto\", \"never\" or an integer of at least 1" {
        /// 4 sqrt(d) for vectors of d numbers, rounded
        "auto" => Reset::Auto,
        /// no resets
        "never" => Reset::Never,
    }
    number COUNT_U32 => Reset::Every;
}

/// `[downlink]`.
pub(crate) static DOWNLINK: Section = Section {
    name: "downlink",
    doc: "Compression of messages from the server to clients, by default none. The codec \"exact\" makes \
          every rule exact; \"exact-f32\" rounds the differences that a rule sends.",
    keys: &[&CODEC, &RULE, &MEMORIES, &ALPHA, &FEEDBACK, &RESET, &FOR],
    example: "[method]\nkind = \"fedem\"\nrounds = 500\nchannels = \"mcm\"\nstep = 0.1\n\n\
              [uplink]\ncodec = { kind = \"dithering\", levels = 1 }\n\n\
              [downlink]\ncodec = { kind = \"dithering\", levels = 1 }\n\
              rule = \"preserved\"\nmemories = \"shared\"\nalpha = 0.05\n",
};

impl Downlink {
    /// Reads `[downlink]` for a method.
    pub(crate) fn read(reader: &Reader<'_>, asked: Asked) -> Read<Self> {
        let codec = reader.read_as(&CODEC, &CODECS).map(|codec| codec.settled(LEVELS_USUAL));
        let given = reader.optional(&RULE, |v| {
            read_rule(&v, asked, &RULES, |preset| preset.downlink(), ["downlink", "exact"])
        })?;
        let rule =
            asked.preset.map(|preset| preset.downlink()).or(given).unwrap_or(DownRule::Exact);
        if !asked.unclear || reader.has(&RULE) {
            reader.check_meaning(RULES.name(&rule));
        }
        let rule = match rule {
            DownRule::Degraded { feedback } => {
                let feedback = read_feedback(reader, asked.preset, feedback);
                feedback.map(|feedback| DownRule::Degraded { feedback })
            }
            DownRule::Preserved { memories, .. } => {
                let alpha = reader.read(&ALPHA, |v| read_alpha(v, asked.allow_divergence));
                let memories = read_memories(reader, asked.preset, memories);
                alpha.and_then(|alpha| Ok(DownRule::Preserved { alpha, memories: memories? }))
            }
            rule => Ok(rule),
        };
        let per_client =
            matches!(rule, Ok(DownRule::Preserved { memories: Memories::PerClient, .. }));
        let own = reader.read(&FOR, |v| {
            if v.is_default() || per_client {
                return OWN_CODECS.read(&v);
            }
            Err(v.fail(
                "downlink codecs of single clients need memories of single clients",
                "set memories = \"per-client\", or take [[downlink.for]] out",
            ))
        });
        let mut own = own?;
        own.iter_mut().for_each(|own| own.codec = own.codec.settled(LEVELS_USUAL));
        let down = Self { codec: codec?, rule: rule?, own };
        if !asked.unclear || reader.has(&RULE) {
            down.check(reader, asked)?;
        }
        Ok(down)
    }

    /// Whether clients receive the server's exact state.
    pub fn is_exact(&self) -> bool {
        self.rule == DownRule::Exact || self.codec == Codec::Exact
    }

    /// Refuses codecs that do not suit the rule.
    fn check(&self, reader: &Reader<'_>, asked: Asked) -> Read<()> {
        let name = self.codec.name();
        let mut codecs = std::iter::once(&self.codec).chain(self.own.iter().map(|own| &own.codec));
        if codecs.any(|codec| matches!(codec, Codec::Grid(_))) {
            let key = if self.own.is_empty() { &CODEC } else { &FOR };
            return reader.read(key, |v| {
                Err(v.fail(
                    "a grid is for sums of uploads: a downlink cannot have one",
                    "use another codec, such as \"dithering\"",
                ))
            });
        }
        if self.rule == DownRule::Exact && self.codec != Codec::Exact {
            return reader.read(&CODEC, |v| Err(refuse_unused(&v, name, asked)));
        }
        let contracts = self.rule == DownRule::Degraded { feedback: Feedback::Contractive };
        let mut codecs = std::iter::once(&self.codec).chain(self.own.iter().map(|own| &own.codec));
        match codecs.find(|codec| !codec.is_unbiased() && !contracts) {
            None => Ok(()),
            Some(biased) => {
                let key = if !self.codec.is_unbiased() { &CODEC } else { &FOR };
                reader.read(key, |v| {
                    Err(v.fail(
                        format!(
                            "{} is biased: on a {} downlink its error would never average out",
                            biased.name(),
                            RULES.name(&self.rule)
                        ),
                        "use an unbiased codec such as \"dithering\", or rule = \"degraded\" with \
                         feedback = true",
                    ))
                })
            }
        }
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&DOWNLINK);
        out.put(&CODEC, CODECS.write(&self.codec));
        out.put(&RULE, RULES.write(&self.rule));
        match &self.rule {
            DownRule::Exact | DownRule::Detached | DownRule::Ghost => {}
            DownRule::Degraded { feedback } => out.put(&FEEDBACK, FEEDBACKS.write(feedback)),
            DownRule::Preserved { alpha, memories } => {
                out.put(&MEMORIES, MEMORY_WORDS.write(memories));
                out.put(&ALPHA, ALPHAS.write(alpha));
                if let Memories::Single { reset } = memories {
                    out.put(&RESET, RESETS.write(reset));
                }
            }
        }
        if !self.own.is_empty() {
            out.put(&FOR, OWN_CODECS.write(&self.own));
        }
    }
}

/// A codec on a downlink that compresses nothing.
fn refuse_unused(value: &Value<'_>, codec: &str, asked: Asked) -> Reported {
    let who = match (asked.preset, asked.kind) {
        (Some(preset), _) => preset.name(),
        (None, Some(kind)) => kind.algorithm,
        (None, None) => "the method",
    };
    let hint = if asked.is_pooled() {
        "take `codec` out: one client holds all rows"
    } else if asked.preset.is_some() {
        "take `codec` out, or choose channels that compress both ways, such as \"mcm\""
    } else {
        "give a preset in [method], such as channels = \"mcm\", or a `rule` here, such as \"preserved\""
    };
    value.fail(format!("{who} sends the state exactly: {codec} would not be used"), hint)
}

fn read_alpha(value: Value<'_>, allow_divergence: bool) -> Read<Auto> {
    match ALPHAS.read(&value)? {
        Some(end) if (end == 0.0 || end == 1.0) && !allow_divergence => Err(value.fail(
            format!(
                "a downlink memory with alpha = {end} does not converge: at 0 it never moves, at 1 \
                 it carries all compression noise on"
            ),
            "write alpha = \"auto\", or allow_divergence = true in [method] to see it diverge",
        )),
        alpha => Ok(alpha),
    }
}

/// Reads `feedback`, by default `usual`.
fn read_feedback(
    reader: &Reader<'_>,
    preset: Option<Preset>,
    usual: Feedback<Auto>,
) -> Read<Feedback<Auto>> {
    let given = reader.optional(&FEEDBACK, |value| {
        let feedback = FEEDBACKS.read(&value)?;
        // Dore with a contraction is a documented variant of Dore.
        let contractive_dore =
            usual == Feedback::Share(None) && feedback == Feedback::Contractive;
        match preset {
            Some(preset) if feedback != usual && !contractive_dore => Err(value.fail(
                format!("this contradicts \"{}\"", preset.name()),
                "take `feedback` out: \"artemis\" has none, \"dore\" and \"double-squeeze\" have it",
            )),
            _ => Ok(feedback),
        }
    })?;
    Ok(given.unwrap_or(usual))
}

/// Reads `memories`, by default `usual`.
fn read_memories(reader: &Reader<'_>, preset: Option<Preset>, usual: Memories) -> Read<Memories> {
    let reset = reader.read_as(&RESET, &RESETS)?;
    let given = reader.optional(&MEMORIES, |value| {
        let (memories, agrees) = match MEMORY_WORDS.read(&value)? {
            Memories::Single { .. } => (Memories::Single { reset }, usual != Memories::Groups(0)),
            Memories::Groups(n) if usual == Memories::Groups(0) => (Memories::Groups(n), true),
            others => (others, others == usual),
        };
        match preset {
            Some(preset) if !agrees => Err(value.fail(
                format!("this contradicts \"{}\"", preset.name()),
                "\"mcm\" has one memory for all, \"rand-mcm\" one per client, \"rand-mcm-g\" a \
                 number of groups; mcm and rand-mcm can also have a \"single\" one",
            )),
            _ => Ok(memories),
        }
    })?;
    let memories = given.unwrap_or(usual);
    if let (Some(preset), Memories::Groups(0)) = (preset, memories) {
        return Err(reader.lacking(
            &MEMORIES,
            format!("{} needs the number of groups", preset.name()),
            "add memories = 4, or another number of groups, to [downlink]",
        ));
    }
    if !matches!(memories, Memories::Single { .. }) {
        reader.refuse_if_given(&RESET, "has no meaning without memories = \"single\"");
    }
    Ok(memories)
}
