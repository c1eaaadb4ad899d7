//! The algorithms of Table 1 of the MCM paper as pairs of channel rules.

use super::{Auto, DownRule, Feedback, Memories, UpRule};

/// Defines [`Preset`] and its rows: the variant, its name and meaning in a job, the rules of uplink and
/// downlink, and aliases.
macro_rules! presets {
    ($($preset:ident = $name:literal: $doc:literal, $up:expr, $down:expr
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

            /// The rule of its uplink.
            pub const fn uplink(self) -> UpRule<Auto> {
                match self { $(Self::$preset => $up,)+ }
            }

            /// The rule of its downlink; the job gives the number of groups.
            pub const fn downlink(self) -> DownRule<Auto> {
                match self { $(Self::$preset => $down,)+ }
            }
        }
    };
}

presets! {
    Sgd = "sgd": "nothing is compressed", UpRule::Plain, DownRule::Exact;
    Qsgd = "qsgd": "compressed vectors up, the exact state down", UpRule::Plain, DownRule::Exact;
    EcqSgd = "ecq-sgd": "compressed vectors with error feedback up, the exact state down",
        UpRule::Feedback, DownRule::Exact;
    Diana = "diana": "compressed differences to memories up, the exact state down",
        MEMORY, DownRule::Exact;
    Artemis = "artemis": "diana up; down a compressed update that the server applies too",
        MEMORY, degraded(Feedback::Off);
    ArtemisNd = "artemis-nd": "diana up; down a compressed update that only clients apply",
        MEMORY, DownRule::Detached;
    Dore = "dore": "artemis with a share of the compression error fed back",
        MEMORY, degraded(Feedback::Share(None));
    DoubleSqueeze = "double-squeeze": "error feedback both ways",
        UpRule::Feedback, degraded(Feedback::Contractive),
        also "dist-ef-sgd": "the same as double-squeeze";
    Mcm = "mcm": "diana up; down the compressed difference of the exact state to one memory",
        MEMORY, preserved(Memories::Groups(1));
    RandMcm = "rand-mcm": "mcm with a memory and a message for each client",
        MEMORY, preserved(Memories::PerClient);
    RandMcmG = "rand-mcm-g": "mcm with a memory and a message for each group of clients",
        MEMORY, preserved(Memories::Groups(0));
    Ghost = "ghost": "diana up; clients compute at the previous exact state plus a compressed update",
        MEMORY, DownRule::Ghost;
}

const MEMORY: UpRule<Auto> = UpRule::Memory { alpha: None };

const fn degraded(feedback: Feedback<Auto>) -> DownRule<Auto> {
    DownRule::Degraded { feedback }
}

const fn preserved(memories: Memories) -> DownRule<Auto> {
    DownRule::Preserved { alpha: None, memories }
}

/// The preset of that name.
pub fn from_name(name: &str) -> Option<Preset> {
    NAMES.iter().find(|(known, ..)| *known == name).map(|(_, preset, _)| *preset)
}

impl Preset {
    /// Whether it compresses the uplink and the downlink.
    pub fn compresses(self) -> (bool, bool) {
        (self != Self::Sgd, self.downlink() != DownRule::Exact)
    }
}

/// A row of the paper's Table 1, derived from the channels of a run.
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
