//! The figures that sum a run up, for the top of the report and the closing table of a command.

use crate::format::{MISSING, bits, count, duration, number};
use crate::group::{Group, groups};
use crate::table::text_table;
use crate::view::RunView;

/// One column: its name, and the text for a group.
pub(crate) struct Column {
    /// Plain name, also for a terminal.
    pub name: &'static str,
    /// Mean and deviation over seeds.
    read: fn(&RunView) -> Option<f64>,
    show: fn(f64) -> String,
    /// The deviation over seeds is a result worth showing (not so for counts).
    spread: bool,
}

const COLUMNS: [Column; 8] = [
    Column {
        name: "objective",
        read: |run| run.result("objective"),
        show: |value| number(value, 7),
        spread: true,
    },
    Column {
        name: "gap to reference",
        read: RunView::gap,
        show: |value| number(value, 3),
        spread: true,
    },
    Column {
        name: "‖h‖²",
        read: |run| run.result("field_norm2"),
        show: |value| number(value, 3),
        spread: true,
    },
    Column {
        name: "test accuracy",
        read: |run| run.result("test_accuracy"),
        show: |value| number(value, 4),
        spread: true,
    },
    Column {
        name: "rounds",
        read: |run| run.result("rounds").or_else(|| run.last("round")),
        show: |value| count(value.max(0.0).round() as u64),
        spread: false,
    },
    Column { name: "sent up", read: |run| run.result("bits_up"), show: bits, spread: false },
    Column { name: "sent down", read: |run| run.result("bits_down"), show: bits, spread: false },
    Column { name: "time", read: |run| run.result("seconds"), show: duration, spread: false },
];

impl Column {
    /// The figure of a group, as text.
    pub fn text(&self, group: &Group) -> String {
        match group.mean_sd(self.read) {
            None => MISSING.into(),
            Some((mean, Some(sd))) if self.spread => {
                format!("{} ± {}", (self.show)(mean), number(sd, 2))
            }
            Some((mean, _)) => (self.show)(mean),
        }
    }
}

/// The columns of which some group has a value.
pub(crate) fn columns(groups: &[Group]) -> Vec<&'static Column> {
    COLUMNS
        .iter()
        .filter(|column| groups.iter().any(|group| group.mean_sd(column.read).is_some()))
        .collect()
}

/// The closing table of a command: one line per run, or per job that was run with several seeds.
pub fn closing_table(runs: &[RunView]) -> String {
    let groups = groups(runs);
    let columns = columns(&groups);
    let mut headers = vec!["run"];
    headers.extend(columns.iter().map(|column| column.name));
    let rows: Vec<Vec<String>> = groups
        .iter()
        .map(|group| {
            let stopped = group.runs.iter().any(|run| run.error.is_some());
            let name = format!("{}{}", group.label, if stopped { " (stopped)" } else { "" });
            std::iter::once(name).chain(columns.iter().map(|column| column.text(group))).collect()
        })
        .collect();
    text_table(&headers, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn closing_tables_sum_up() {
        let run = |name: &str, seed: u64, objective: f64| RunView {
            name: name.into(),
            seed,
            reference_objective: Some(2.5),
            summary: json!({ "objective": objective, "rounds": 1200, "bits_up": 1312345 })
                .as_object()
                .unwrap()
                .clone(),
            ..RunView::default()
        };
        let mut stopped = run("dem", 1, 3.25);
        stopped.error = Some("diverged".into());
        let runs = [run("fedem", 1, 2.5 + 1e-9), run("fedem", 2, 2.5 + 3e-9), stopped];
        insta::assert_snapshot!(closing_table(&runs), @r"
        run               objective  gap to reference  rounds    sent up
        -------------  ------------  ----------------  ------  ---------
        fedem          2.5 ± 1.4e-9     2e-9 ± 1.4e-9   1,200  1.31 Mbit
        dem (stopped)          3.25              0.75   1,200  1.31 Mbit
        ");
    }
}
