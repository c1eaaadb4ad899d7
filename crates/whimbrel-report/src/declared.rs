//! The declared figures of all runs of a report, as one list.

use crate::group::Group;
use whimbrel_core::Measure;
use whimbrel_core::declare::{Better, OverSeeds, Role};

/// The key of the objective's distance to the reference, a figure of the report.
pub(crate) const GAP: &str = "gap";

/// The figures of all runs in order of first appearance, each once; the gap to the reference follows
/// the objective.
pub(crate) fn measures(groups: &[Group]) -> Vec<Measure> {
    let mut all: Vec<Measure> = Vec::new();
    for run in groups.iter().flat_map(|group| &group.runs) {
        for measure in &run.measures {
            if all.iter().any(|known| known.key == measure.key) {
                continue;
            }
            all.push(measure.clone());
            if measure.role == Role::Objective {
                all.push(gap());
            }
        }
    }
    all
}

fn gap() -> Measure {
    let caption = "Objective minus the reference's";
    let gap = Measure::new(GAP, "Objective gap", "gap to reference", caption).log().result(3);
    // The gap may be negative, without a logarithm.
    Measure { over_seeds: OverSeeds::Spread, ..gap.better(Better::Down) }
}

/// Figures as methods declare them.
#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An objective, an excess loss and a norm.
    pub fn some() -> Vec<Measure> {
        let lower = |key: &'static str, title: &'static str, name: &'static str| {
            Measure::new(key, title, name, "").log().better(Better::Down).result(3)
        };
        vec![
            lower("excess_loss", "Excess loss", "excess loss").role(Role::Excess),
            Measure::objective(""),
            lower("field_norm2", "‖h‖²", "‖h‖²"),
        ]
    }

    #[test]
    fn a_key_is_listed_once_and_the_gap_follows_the_objective() {
        let run = |measures| crate::view::RunView { measures, ..Default::default() };
        let mut other = some();
        other.insert(0, Measure::new("repairs", "Repairs", "repairs", ""));
        let (first, second) = (run(some()), run(other));
        let group = Group { label: String::new(), runs: vec![&first, &second] };
        let all = measures(&[group]);
        let keys: Vec<&str> = all.iter().map(|measure| &*measure.key).collect();
        assert_eq!(keys, ["excess_loss", "objective", GAP, "field_norm2", "repairs"]);
    }
}
