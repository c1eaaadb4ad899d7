//! The figures that sum a run up, for the top of the report and the closing table of a command.

use crate::format::{MISSING, bits, count, duration, number, scientific};
use crate::group::{Group, groups, mean_sd};
use crate::table::text_table;
use crate::view::RunView;

/// One column: its name, and the text for a group.
pub(crate) struct Column {
    /// Plain name, also for a terminal.
    pub name: &'static str,
    read: fn(&RunView) -> Option<f64>,
    show: fn(f64) -> String,
    over_seeds: OverSeeds,
}

/// How the seeds of a job become one figure.
#[derive(PartialEq)]
enum OverSeeds {
    /// The mean: for counts, whose deviation is no result.
    Mean,
    /// Mean and standard deviation.
    Spread,
    /// Mean and standard deviation of log10, as the quantity's plot shows them.
    LogSpread,
}

const COLUMNS: [Column; 10] = [
    Column {
        name: "excess loss",
        read: |run| run.result("excess_loss"),
        show: |value| scientific(value, 3),
        over_seeds: OverSeeds::LogSpread,
    },
    Column {
        name: "objective",
        read: |run| run.result("objective"),
        show: |value| number(value, 7),
        over_seeds: OverSeeds::Spread,
    },
    // May end on either side of zero, so its logarithm may not exist.
    Column {
        name: "gap to reference",
        read: RunView::gap,
        show: |value| number(value, 3),
        over_seeds: OverSeeds::Spread,
    },
    Column {
        name: "‖h‖²",
        read: |run| run.result("field_norm2"),
        show: |value| number(value, 3),
        over_seeds: OverSeeds::LogSpread,
    },
    Column {
        name: "test accuracy",
        read: |run| run.result("test_accuracy"),
        show: |value| number(value, 4),
        over_seeds: OverSeeds::Spread,
    },
    Column {
        name: "rounds",
        read: |run| run.result("rounds").or_else(|| run.last("round")),
        show: |value| count(value.max(0.0).round() as u64),
        over_seeds: OverSeeds::Mean,
    },
    counted("sent up", |run| run.result("bits_up"), bits),
    counted("sent down", |run| run.result("bits_down"), bits),
    counted("hypothetical down", |run| run.result("bits_down_ghost"), bits),
    counted("time", |run| run.result("seconds"), duration),
];

const fn counted(
    name: &'static str,
    read: fn(&RunView) -> Option<f64>,
    show: fn(f64) -> String,
) -> Column {
    Column { name, read, show, over_seeds: OverSeeds::Mean }
}

impl Column {
    /// The figure of a group, as text.
    pub fn text(&self, group: &Group) -> String {
        let values = group.values(self.read);
        if self.over_seeds == OverSeeds::LogSpread && values.len() > 1 {
            return log_spread(&values);
        }
        match mean_sd(&values) {
            None => MISSING.into(),
            Some((mean, Some(sd))) if self.over_seeds == OverSeeds::Spread => {
                format!("{} ± {}", (self.show)(mean), number(sd, 2))
            }
            Some((mean, _)) => (self.show)(mean),
        }
    }
}

/// `log10: -2.35 ± 0.04`, over the values that are positive.
fn log_spread(values: &[f64]) -> String {
    let logs: Vec<f64> = values.iter().filter(|v| **v > 0.0).map(|value| value.log10()).collect();
    let out = match values.len() - logs.len() {
        0 => String::new(),
        out => format!(" ({out} of {} not positive)", values.len()),
    };
    match mean_sd(&logs) {
        None => format!("{MISSING}{out}"),
        Some((mean, None)) => format!("log10: {mean:.2}{out}"),
        Some((mean, Some(sd))) => format!("log10: {mean:.2} ± {sd:.2}{out}"),
    }
}

/// The columns of which some group has a value.
pub(crate) fn columns(groups: &[Group]) -> Vec<&'static Column> {
    COLUMNS
        .iter()
        .filter(|column| groups.iter().any(|group| !group.values(column.read).is_empty()))
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
    fn excess_over_seeds_is_in_powers_of_ten() {
        let run = |name: &str, seed: u64, excess: f64| RunView {
            name: name.into(),
            seed,
            summary: json!({ "excess_loss": excess }).as_object().unwrap().clone(),
            ..RunView::default()
        };
        let runs = [
            run("mcm", 1, 1e-2),
            run("mcm", 2, 1e-4),
            run("sgd", 1, 1e-3),
            run("sgd", 2, -1e-18),
            run("sgd", 3, 1e-3),
            run("qsgd", 1, 0.0372),
        ];
        insta::assert_snapshot!(closing_table(&runs), @r"
        run                                 excess loss
        ----  -----------------------------------------
        mcm                         log10: -3.00 ± 1.41
        sgd   log10: -3.00 ± 0.00 (1 of 3 not positive)
        qsgd                                    3.72e-2
        ");
    }

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
