//! The algorithms of the paper's Table 1 as values: what the uplink keeps, what the downlink does.

use whimbrel_codec::Codec;
use whimbrel_codec::channel::{DownRule, Feedback, Memories, UpRule, gradient_alpha};
use whimbrel_core::{Error, Result};

/// A named pair of channel rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preset {
    /// No compression.
    Sgd,
    /// Compressed gradients.
    Qsgd,
    /// Compressed gradients with error feedback.
    EcqSgd,
    /// Compressed differences to memories.
    Diana,
    /// Diana, and a compressed update that the server applies too.
    Artemis,
    /// Diana, and a compressed update that only clients apply.
    ArtemisNd,
    /// Artemis with a share of the compression error fed back.
    Dore,
    /// Error feedback both ways.
    DoubleSqueeze,
    /// Diana, and compressed differences of the exact model to a memory.
    Mcm,
    /// MCM with a memory and independent messages for each client.
    RandMcm,
    /// MCM with a memory and message for each group of clients.
    RandMcmG,
    /// Diana, and clients that compute at the previous exact model plus a compressed update.
    Ghost,
}

const ALL: [(Preset, &str); 13] = [
    (Preset::Sgd, "sgd"),
    (Preset::Qsgd, "qsgd"),
    (Preset::EcqSgd, "ecq-sgd"),
    (Preset::Diana, "diana"),
    (Preset::Artemis, "artemis"),
    (Preset::ArtemisNd, "artemis-nd"),
    (Preset::Dore, "dore"),
    (Preset::DoubleSqueeze, "double-squeeze"),
    (Preset::DoubleSqueeze, "dist-ef-sgd"),
    (Preset::Mcm, "mcm"),
    (Preset::RandMcm, "rand-mcm"),
    (Preset::RandMcmG, "rand-mcm-g"),
    (Preset::Ghost, "ghost"),
];

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

impl Preset {
    /// The preset of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        ALL.iter().find(|(_, n)| *n == name).map(|(preset, _)| *preset)
    }

    /// The preset that the name at this place of [`Preset::names`] stands for.
    pub const fn at(index: usize) -> Self {
        ALL[index].0
    }

    /// Every name, aliases included.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|(_, name)| *name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(preset, _)| *preset == self).map_or("?", |(_, name)| name)
    }

    /// What its uplink keeps.
    pub fn uplink(self) -> UpKind {
        match self {
            Self::Sgd | Self::Qsgd => UpKind::Plain,
            Self::EcqSgd | Self::DoubleSqueeze => UpKind::Feedback,
            _ => UpKind::Memory,
        }
    }

    /// Whether it compresses the way up, the way down.
    pub fn compresses(self) -> (bool, bool) {
        match self {
            Self::Sgd => (false, false),
            Self::Qsgd | Self::EcqSgd | Self::Diana => (true, false),
            _ => (true, true),
        }
    }

    /// Its downlink's rule, for a codec on vectors of length `d`; `groups` is for `rand-mcm-g`.
    pub fn downlink(
        self,
        codec: &Codec,
        d: usize,
        alpha: Option<f64>,
        groups: Option<u32>,
    ) -> Result<DownRule> {
        let omega = codec.omega(d);
        let alpha = alpha.unwrap_or_else(|| gradient_alpha(omega.unwrap_or(0.0)));
        let preserved = |memories| DownRule::Preserved { alpha, memories };
        Ok(match self {
            Self::Sgd | Self::Qsgd | Self::EcqSgd | Self::Diana => DownRule::Exact,
            Self::Artemis => DownRule::Degraded { feedback: Feedback::Off },
            Self::ArtemisNd => DownRule::Detached,
            // Liu et al.'s share of the error, 1/(1 + omega).
            Self::Dore => {
                let omega = omega.ok_or_else(|| Error::config("dore needs an unbiased codec"))?;
                DownRule::Degraded { feedback: Feedback::Share(1.0 / (1.0 + omega)) }
            }
            Self::DoubleSqueeze => DownRule::Degraded { feedback: Feedback::Contractive },
            Self::Mcm => preserved(Memories::Groups(1)),
            Self::RandMcm => preserved(Memories::PerClient),
            Self::RandMcmG => preserved(Memories::Groups(groups.ok_or_else(|| {
                Error::config("rand-mcm-g needs the number of groups")
                    .hint("set memories = 4 in [downlink]")
            })?)),
            Self::Ghost => DownRule::Ghost,
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
        for name in Preset::names().filter(|n| *n != "dist-ef-sgd") {
            assert_eq!(Preset::from_name(name).unwrap().name(), name);
        }
        assert_eq!(Preset::from_name("dist-ef-sgd"), Some(Preset::DoubleSqueeze));
        assert_eq!(Preset::from_name("adam"), None);
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
