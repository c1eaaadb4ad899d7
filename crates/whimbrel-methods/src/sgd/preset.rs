//! The algorithms of the paper's Table 1 as values: what the uplink keeps, what the downlink does.

use DownKind::{Degraded, Detached, Exact, Ghost, Preserved};
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{DownRule, Feedback, Memories, UpRule, gradient_alpha};
use whimbrel_core::{Error, Result};

/// Defines [`Preset`] and its rows: the variant, its name and meaning in a job, what the uplink keeps, what
/// the downlink does, and other names of the same channels.
macro_rules! presets {
    ($($preset:ident = $name:literal: $doc:literal, $up:ident, $down:expr
        $(, also $alias:literal: $alias_doc:literal)?;)+) => {
        /// A named pair of channel rules.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Preset {
            $(#[doc = $doc] $preset,)+
        }

        /// Every name with its preset and meaning, aliases included.
        pub const NAMES: &[(&str, Preset, &str)] = &[
            $(($name, Preset::$preset, $doc), $(($alias, Preset::$preset, $alias_doc),)?)+
        ];

        impl Preset {
            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$preset => $name,)+ }
            }

            /// What its uplink keeps.
            pub const fn uplink(self) -> UpKind {
                match self { $(Self::$preset => UpKind::$up,)+ }
            }

            /// What its downlink does.
            pub const fn down(self) -> DownKind {
                match self { $(Self::$preset => $down,)+ }
            }
        }
    };
}

presets! {
    Sgd = "sgd": "nothing is compressed", Plain, Exact;
    Qsgd = "qsgd": "compressed vectors up, the exact state down", Plain, Exact;
    EcqSgd = "ecq-sgd": "compressed vectors with error feedback up, the exact state down",
        Feedback, Exact;
    Diana = "diana": "compressed differences to memories up, the exact state down", Memory, Exact;
    Artemis = "artemis": "diana up; down a compressed update that the server applies too",
        Memory, Degraded(FeedbackKind::Off);
    ArtemisNd = "artemis-nd": "diana up; down a compressed update that only clients apply",
        Memory, Detached;
    Dore = "dore": "artemis with a share of the compression error fed back",
        Memory, Degraded(FeedbackKind::Dore);
    DoubleSqueeze = "double-squeeze": "error feedback both ways",
        Feedback, Degraded(FeedbackKind::On), also "dist-ef-sgd": "the same as double-squeeze";
    Mcm = "mcm": "diana up; down the compressed difference of the exact state to one memory",
        Memory, Preserved(MemoryKind::Shared);
    RandMcm = "rand-mcm": "mcm with a memory and a message for each client",
        Memory, Preserved(MemoryKind::PerClient);
    RandMcmG = "rand-mcm-g": "mcm with a memory and a message for each group of clients",
        Memory, Preserved(MemoryKind::Groups);
    Ghost = "ghost": "diana up; clients compute at the previous exact state plus a compressed update",
        Memory, Ghost;
}

/// What an uplink keeps, before its memory's step is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpKind {
    /// Nothing.
    Plain,
    /// A memory.
    Memory,
    /// The compression error.
    Feedback,
}

/// What a downlink compresses, before its constants are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DownKind {
    /// Nothing.
    Exact,
    /// The update; the server takes what clients decode for its own state.
    Degraded(FeedbackKind),
    /// The update; the server keeps its exact state.
    Detached,
    /// The state's difference to a memory; the server keeps its exact state.
    Preserved(MemoryKind),
    /// The update, to be added to the server's previous exact state.
    Ghost,
}

/// What becomes of the compression error of a degraded downlink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedbackKind {
    /// It is forgotten.
    Off,
    /// All of it is added to the next update, which a contraction compresses.
    On,
    /// A share of it is added, and the codec is used as it is, as published for Dore.
    Dore,
}

/// Whose memories a preserved downlink keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// One for all.
    Shared,
    /// One for each client.
    PerClient,
    /// One for each group of clients, as many as the job says.
    Groups,
}

/// The preset of that name.
pub fn from_name(name: &str) -> Option<Preset> {
    NAMES.iter().find(|(known, ..)| *known == name).map(|(_, preset, _)| *preset)
}

impl Preset {
    /// Whether it compresses the way up, the way down.
    pub fn compresses(self) -> (bool, bool) {
        (self != Self::Sgd, self.down() != Exact)
    }

    /// Its downlink's rule, for a codec on vectors of length `d`; `groups` is how many groups of clients
    /// there are, where memories are kept by group.
    pub fn downlink(
        self,
        codec: &Codec,
        d: usize,
        alpha: Option<f64>,
        groups: Option<u32>,
    ) -> Result<DownRule> {
        let (name, omega) = (self.name(), codec.omega(d));
        let degraded = |feedback| DownRule::Degraded { feedback };
        let alpha = alpha.unwrap_or_else(|| gradient_alpha(omega.unwrap_or(0.0)));
        let preserved = |memories| DownRule::Preserved { alpha, memories };
        Ok(match self.down() {
            Exact => DownRule::Exact,
            Detached => DownRule::Detached,
            Ghost => DownRule::Ghost,
            Degraded(FeedbackKind::Off) => degraded(Feedback::Off),
            Degraded(FeedbackKind::On) => degraded(Feedback::Contractive),
            // Liu et al.'s share of the error, 1/(1 + omega).
            Degraded(FeedbackKind::Dore) => {
                let biased = || Error::config(format!("{name} needs an unbiased codec"));
                degraded(Feedback::Share(1.0 / (1.0 + omega.ok_or_else(biased)?)))
            }
            Preserved(MemoryKind::Shared) => preserved(Memories::Groups(1)),
            Preserved(MemoryKind::PerClient) => preserved(Memories::PerClient),
            Preserved(MemoryKind::Groups) => {
                preserved(Memories::Groups(groups.ok_or_else(|| {
                    Error::config(format!("{name} needs the number of groups"))
                        .hint("set memories = 4 in [downlink]")
                })?))
            }
        })
    }
}

/// One row of the paper's Table 1, read off the channels that a run really uses.
pub fn table_row(up: &UpRule, up_exact: bool, down: &DownRule) -> String {
    let tick = |yes: bool| if yes { "yes" } else { "no" };
    let compression = match (up_exact, *down == DownRule::Exact) {
        (true, true) => "none",
        (false, true) => "one-way, up",
        (true, false) => "one-way, down",
        (false, false) => "two-way",
    };
    let feedback_down =
        matches!(down, DownRule::Degraded { feedback: Feedback::Contractive | Feedback::Share(_) });
    let random = matches!(
        down,
        DownRule::Preserved { memories: Memories::PerClient | Memories::Single { .. }, .. }
    ) || matches!(down, DownRule::Preserved { memories: Memories::Groups(g), .. } if *g > 1);
    let point = match down {
        DownRule::Degraded { .. } => "degraded",
        _ => "non-degraded",
    };
    format!(
        "compression {compression}; e_i {}; h_i {}; E {}; H {}; randomised {}; update point {point}",
        tick(matches!(up, UpRule::Feedback) && !up_exact),
        tick(matches!(up, UpRule::Memory { .. }) && !up_exact),
        tick(feedback_down),
        tick(matches!(down, DownRule::Preserved { .. })),
        tick(random),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_come_back() {
        for (name, preset, _) in NAMES {
            assert_eq!(from_name(name), Some(*preset));
            assert_eq!(from_name(preset.name()), Some(*preset));
        }
        assert_eq!(from_name("adam"), None);
    }

    #[test]
    fn rows_are_those_of_table_1() {
        let memory = UpRule::Memory { alpha: 0.1 };
        let dore = DownRule::Degraded { feedback: Feedback::Share(0.2) };
        assert_eq!(
            table_row(&memory, false, &dore),
            "compression two-way; e_i no; h_i yes; E yes; H no; randomised no; update point degraded"
        );
        let rand = DownRule::Preserved { alpha: 0.1, memories: Memories::PerClient };
        assert_eq!(
            table_row(&memory, false, &rand),
            "compression two-way; e_i no; h_i yes; E no; H yes; randomised yes; update point non-degraded"
        );
        assert_eq!(
            table_row(&UpRule::Feedback, false, &DownRule::Exact),
            "compression one-way, up; e_i yes; h_i no; E no; H no; randomised no; update point non-degraded"
        );
    }
}
