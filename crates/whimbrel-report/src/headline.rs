//! Summary figures of a run, for the top of the report and the closing table of a command.

use crate::declared::{self, GAP};
use crate::format::{MISSING, bytes, capital, count, duration, measure_text, number};
use crate::group::{Group, geometric, groups, mean_sd};
use crate::sections::Traffic;
use crate::table::text_table;
use crate::view::RunView;
use serde_json::Value;
use whimbrel_core::Measure;
use whimbrel_core::declare::{Better, Exhibit, OverSeeds, Role, Scale, Unit};

/// The extent of a table of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Results, counts and times.
    Results,
    /// Also figures of the optimiser, and means over the last evaluations.
    Diagnostics,
}

/// Whether a result describes the optimiser rather than the fit: a norm on a log axis that is neither
/// the distance to the optimum nor the gap to a reference.
pub(crate) fn is_diagnostic(measure: &Measure) -> bool {
    measure.scale == Scale::Log && measure.role == Role::Shown && measure.key != GAP
}

/// Reads one figure of a run.
type Read = Box<dyn Fn(&RunView) -> Option<f64>>;

/// One column: its name, and the text for a group.
pub(crate) struct Column {
    /// Plain name, also for a terminal.
    pub name: String,
    read: Read,
    show: Box<dyn Fn(f64) -> String>,
    over_seeds: OverSeeds,
    better: Better,
    /// Whether it is a declared figure, and not a count of all runs.
    pub is_result: bool,
    pub is_objective: bool,
}

impl Column {
    fn declared(measure: Measure) -> Self {
        let key = measure.key.clone();
        Self {
            name: measure.name.to_string(),
            over_seeds: measure.over_seeds,
            better: measure.better,
            is_result: true,
            is_objective: measure.role == Role::Objective,
            read: match &*key {
                GAP => Box::new(RunView::gap),
                _ => Box::new(move |run| run.result(&key)),
            },
            show: Box::new(move |value| measure_text(&measure, value)),
        }
    }

    /// The mean over the last evaluations, beside the last value.
    fn tail(measure: Measure) -> Self {
        let key = measure.key.clone();
        Self {
            name: format!("{}, tail mean", measure.name),
            over_seeds: measure.over_seeds,
            better: Better::Neither,
            is_result: true,
            is_objective: false,
            read: Box::new(move |run| run.tail(&key)),
            show: Box::new(move |value| measure_text(&measure, value)),
        }
    }

    fn counted(
        name: &str,
        read: fn(&RunView) -> Option<f64>,
        show: impl Fn(f64) -> String + 'static,
    ) -> Self {
        let (read, show) = (Box::new(read), Box::new(show));
        let (over_seeds, better) = (OverSeeds::Mean, Better::Neither);
        let (is_result, is_objective) = (false, false);
        Self { name: name.into(), read, show, over_seeds, better, is_result, is_objective }
    }

    /// The places of the best groups; values that read the same are equal. Empty if no direction is
    /// better or all are equal.
    pub fn best(&self, groups: &[Group]) -> Vec<usize> {
        // As shown: over seeds possibly the mean of logarithms.
        let mean = |group: &Group| {
            let values = group.values(&self.read);
            let mean = match self.over_seeds {
                OverSeeds::LogSpread if values.iter().all(|value| *value > 0.0) => {
                    geometric(&values)
                }
                _ => mean_sd(&values),
            };
            mean.map(|(mean, _)| mean)
        };
        let means: Vec<Option<f64>> = groups.iter().map(mean).collect();
        let known = || means.iter().flatten().copied();
        let (low, high) =
            (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
        let best = match self.better {
            Better::Down => low,
            Better::Up => high,
            Better::Neither => return Vec::new(),
        };
        let texts: Vec<String> = groups.iter().map(|group| self.text(group)).collect();
        let Some(first) = means.iter().position(|mean| *mean == Some(best)) else {
            return Vec::new();
        };
        let all_equal =
            means.iter().zip(&texts).all(|(m, text)| m.is_none() || *text == texts[first]);
        let is_best = |place: &usize| !all_equal && texts[*place] == texts[first];
        (0..means.len()).filter(is_best).collect()
    }
}

/// The declared results, then the counts of all runs.
fn all_columns(groups: &[Group], detail: Detail) -> Vec<Column> {
    let more = detail == Detail::Diagnostics;
    let results = declared::measures(groups).into_iter();
    let results = results.filter(|measure| measure.headline && (more || !is_diagnostic(measure)));
    let (bits_declared, results): (Vec<_>, Vec<_>) =
        results.partition(|measure| measure.unit == Unit::Bits);
    let mut columns = Vec::new();
    for measure in results {
        let has_tail =
            more && measure.curve && measure.key != GAP && measure.better != Better::Neither;
        let tail = has_tail.then(|| Column::tail(measure.clone()));
        let last = Column::declared(measure);
        // The tail is shown if it differs from the last value.
        let tail = tail.filter(|tail| {
            groups.iter().any(|group| {
                !group.values(&tail.read).is_empty() && tail.text(group) != last.text(group)
            })
        });
        columns.push(last);
        columns.extend(tail);
    }
    let traffic = Traffic::of(groups);
    columns.extend([
        Column::counted(
            "rounds",
            |run| run.result("rounds").or_else(|| run.last("round")),
            |value| count(value.max(0.0).round() as u64),
        ),
        Column::counted("sent up", |run| run.result("bits_up"), move |v| traffic.text(v)),
        Column::counted("sent down", |run| run.result("bits_down"), move |v| traffic.text(v)),
    ]);
    columns.extend(bits_declared.into_iter().map(Column::declared));
    columns.push(Column::counted("time", |run| run.result("seconds"), duration));
    columns
}

impl Column {
    /// The figure of a group, as text.
    pub fn text(&self, group: &Group) -> String {
        let values = group.values(&self.read);
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

/// `log10: -2.35 ± 0.04`, over the positive values.
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

/// The columns with a value in some group.
pub(crate) fn columns(groups: &[Group], detail: Detail) -> Vec<Column> {
    let mut columns = all_columns(groups, detail);
    columns.retain(|column| groups.iter().any(|group| !group.values(&column.read).is_empty()));
    columns
}

/// The closing table of a command: one line per run, or per job with several seeds.
pub fn closing_table(runs: &[RunView], detail: Detail) -> String {
    let groups = groups(runs);
    let columns = columns(&groups, detail);
    let is_over = groups.iter().any(|group| !group.ending().is_empty());
    let mut headers = vec!["run"];
    headers.extend(is_over.then_some("ending"));
    headers.extend(columns.iter().map(|column| column.name.as_str()));
    let rows: Vec<Vec<String>> = groups
        .iter()
        .map(|group| {
            let first = [group.label.clone()].into_iter();
            let first = first.chain(is_over.then(|| group.ending().to_owned()));
            first.chain(columns.iter().map(|column| column.text(group))).collect()
        })
        .collect();
    text_table(&headers, &rows)
}

/// Sentences and open tables of a run's sections, for runs without measures.
pub fn section_tables(run: &RunView) -> String {
    let mut text = String::new();
    for exhibit in run.sections.iter().flat_map(|section| &section.exhibits) {
        match exhibit {
            Exhibit::Text { text: words } => text += &format!("{words}\n\n"),
            Exhibit::Table(rows) if !rows.collapsed => {
                let heads: Vec<&str> = rows.heads.iter().map(String::as_str).collect();
                text += &format!("{}\n", text_table(&heads, &rows.rows));
            }
            _ => {}
        }
    }
    text
}

/// A count of a run with its noun.
fn counted(n: f64, noun: &str) -> String {
    let n = n.max(0.0).round() as u64;
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Rows and clients of the training.
fn trained_on(run: &RunView) -> String {
    let unseen = run.summary.get("unseen").and_then(Value::as_array).map_or(0, Vec::len);
    let rows = run.result("rows").map(|rows| rows - run.result("rows_unseen").unwrap_or(0.0));
    // Regressions leave rows with missing cells out.
    let rows = run.result("rows_used").or(rows).map(|n| counted(n, "row"));
    let clients = run.result("clients").map(|n| counted(n - unseen as f64, "client"));
    [rows, clients].into_iter().flatten().collect::<Vec<_>>().join(" of ")
}

/// The outcome in sentences: rows, clients and model; the verdict; the family's `answer`, else the
/// results; the traffic. Several jobs are compared. Empty for unfinished runs.
pub fn answer(runs: &[RunView]) -> String {
    let groups = groups(runs);
    let [group] = &groups[..] else { return comparison(&groups) };
    let run = group.shown();
    if run.ending.is_empty() {
        return String::new();
    }
    let what = [trained_on(run), run.model.clone()];
    let what: Vec<String> = what.into_iter().filter(|text| !text.is_empty()).collect();
    let seeds = match group.runs.len() {
        1 => String::new(),
        n => format!(" ({n} seeds)"),
    };
    let verdict = match run.result("rounds") {
        // Sums alone, without a fit.
        Some(0.0) if group.ending() == "converged" => String::new(),
        rounds => {
            let rounds =
                rounds.map_or(String::new(), |n| format!(" after {}", counted(n, "round")));
            format!(": {}{rounds}", group.ending())
        }
    };
    let mut sentences = vec![format!("{}{verdict}{seeds}", what.join("; "))];
    match run.summary.get("answer").and_then(Value::as_str) {
        Some(answer) => sentences.push(answer.into()),
        None => {
            let shown = columns(&groups, Detail::Results);
            let results = shown.iter().take_while(|column| column.is_result);
            // The objective is the answer if nothing else is.
            let others = results.clone().filter(|column| !column.is_objective).count();
            let results = results.filter(|c| others == 0 || !c.is_objective).take(4);
            let texts: Vec<String> =
                results.map(|column| format!("{} {}", column.name, column.text(group))).collect();
            sentences.extend((!texts.is_empty()).then(|| capital(&texts.join(", "))));
        }
    }
    if let Some((up, down)) = run.result("bits_up").zip(run.result("bits_down")) {
        let evaluations = match run.result("bits_eval") {
            Some(both) if both > 0.0 => format!(", and exchanged {} in evaluations", bytes(both)),
            _ => String::new(),
        };
        let (up, down) = (bytes(up), bytes(down));
        sentences.push(format!("The clients sent {up} and received {down}{evaluations}"));
    }
    sentences.join(". ") + "."
}

/// The best jobs of a comparison in sentences.
fn comparison(groups: &[Group]) -> String {
    // Pooled runs have one client.
    let federated = groups.iter().map(Group::shown).filter(|run| !run.pooled);
    let mut data: Vec<String> = federated.map(trained_on).collect();
    data.dedup();
    let data = match &data[..] {
        [one] if !one.is_empty() => format!(" on {one}"),
        _ => String::new(),
    };
    if groups.is_empty() {
        return String::new();
    }
    let mut sentences = vec![format!("{} jobs{data}", groups.len())];
    let shown = columns(groups, Detail::Results);
    let results = || shown.iter().filter(|column| column.is_result);
    // The objective of training does not rank jobs that were tested.
    let is_test = |column: &&Column| !column.is_objective && column.better != Better::Neither;
    let is_tested = results().filter(is_test).count() > 1;
    for column in results().filter(|column| !is_tested || is_test(column)).take(2) {
        let best = column.best(groups);
        let names: Vec<&str> = best.iter().map(|place| groups[*place].label.as_str()).collect();
        let texts: Vec<String> = groups.iter().map(|group| column.text(group)).collect();
        if let Some(place) = best.first() {
            let (name, value) = (&column.name, &texts[*place]);
            sentences.push(format!("Best {name}: {value}, {}", names.join(" and ")));
        } else if texts.iter().all(|text| *text == texts[0]) {
            sentences.push(format!("{}: {} in all", capital(&column.name), texts[0]));
        }
    }
    sentences.join(". ") + "."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declared::tests::some;
    use serde_json::json;

    #[test]
    fn excess_over_seeds_is_in_powers_of_ten() {
        let run = |name: &str, seed: u64, excess: f64| RunView {
            name: name.into(),
            seed,
            summary: json!({ "excess_loss": excess }).as_object().unwrap().clone(),
            measures: some(),
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
        insta::assert_snapshot!(closing_table(&runs, Detail::Results), @r"
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
            measures: some(),
            ..RunView::default()
        };
        let mut stopped = run("dem", 1, 3.25);
        stopped.ending = "diverged".into();
        let runs = [run("fedem", 1, 2.5 + 1e-9), run("fedem", 2, 2.5 + 3e-9), stopped];
        insta::assert_snapshot!(closing_table(&runs, Detail::Results), @r"
        run    ending       objective  gap to reference  rounds    sent up
        -----  --------  ------------  ----------------  ------  ---------
        fedem            2.5 ± 1.4e-9     2e-9 ± 1.4e-9   1,200  1.31 Mbit
        dem    diverged          3.25              0.75   1,200  1.31 Mbit
        ");
    }

    fn wards(name: &str, objective: f64) -> RunView {
        let summary = json!({ "objective": objective, "field_norm2": 1e-9, "rounds": 1200, "rows": 792,
                              "clients": 12, "bits_up": 1312345, "bits_down": 16000 });
        RunView {
            name: name.into(),
            method: "fedem".into(),
            model: "Gaussian mixture, 3 components".into(),
            ending: "converged".into(),
            summary: summary.as_object().unwrap().clone(),
            measures: some(),
            ..RunView::default()
        }
    }

    #[test]
    fn norms_are_diagnostics() {
        let runs = [wards("wards", 2.5)];
        assert!(!closing_table(&runs, Detail::Results).contains("‖h‖²"));
        assert!(closing_table(&runs, Detail::Diagnostics).contains("‖h‖²"));
    }

    #[test]
    fn the_answer_names_rows_verdict_result_and_traffic() {
        let mut run = wards("wards", 2.5);
        let begins = "792 rows of 12 clients; Gaussian mixture, 3 components: converged after 1,200 rounds. ";
        let ends = "The clients sent 164 kB and received 2 kB.";
        let expected = format!("{begins}Objective 2.5. {ends}");
        assert_eq!(answer(std::slice::from_ref(&run)), expected);
        run.summary.insert("answer".into(), "Two groups".into());
        assert_eq!(answer(std::slice::from_ref(&run)), format!("{begins}Two groups. {ends}"));
        let both = [run.clone(), wards("other", 2.0)];
        let said = "2 jobs on 792 rows of 12 clients. Best objective: 2, other.";
        assert_eq!(answer(&both), said);
        let tested = both.map(|mut run| {
            for (key, better) in [("test loss", Better::Down), ("test accuracy", Better::Up)] {
                run.measures.push(Measure::new(key, "", key, "").better(better).result(3));
                run.summary.insert(key.into(), json!(run.summary["objective"]));
            }
            run
        });
        let said = "2 jobs on 792 rows of 12 clients. Best test loss: 2, other. Best test accuracy: 2.5, wards.";
        assert_eq!(answer(&tested), said);
        run.summary
            .extend([("rows_unseen".into(), json!(92)), ("unseen".into(), json!(["a", "b"]))]);
        run.summary.insert("bits_eval".into(), json!(8000));
        let said = answer(std::slice::from_ref(&run));
        assert!(said.starts_with("700 rows of 10 clients; "), "{said}");
        assert!(said.ends_with("received 2 kB, and exchanged 1 kB in evaluations."), "{said}");
        run.summary.insert("rounds".into(), 0.into());
        assert!(answer(&[run.clone()]).contains("3 components. Two groups."));
        run.ending.clear();
        assert_eq!(answer(&[run]), "");
    }

    #[test]
    fn values_that_read_the_same_are_ties() {
        let runs = [wards("a", 2.5), wards("b", 2.5 + 1e-12), wards("c", 3.0)];
        let groups = groups(&runs);
        let columns = columns(&groups, Detail::Results);
        let objective = columns.iter().find(|column| column.name == "objective").unwrap();
        assert_eq!(objective.best(&groups), [0, 1]);
        assert_eq!(objective.best(&groups[..2]), [0usize; 0]);
    }
}
