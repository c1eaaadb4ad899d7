//! Results of a completed table.

use super::completed::{Completed, unobserved};
use super::exhibits::{self, Comparison};
use super::totals::{Total, totals};
use super::{TableFit, terms};
use crate::failure::Result;
use crate::family::{Ended, FitReport, Results, RunData};
use crate::files::figure;
use crate::job::Step;
use crate::plan::Facts;
use serde_json::{Map, Value, json};
use whimbrel_core::method::Artifact;
use whimbrel_data::Attribute;
use whimbrel_engine::metrics::number;
use whimbrel_engine::{Ending, Outcome};
use whimbrel_methods::fedmiss::select::{self, BASELINES, BASELINES_KIND, Selection};
use whimbrel_methods::fedmiss::units;
use whimbrel_models::lowrank::{Coverage, KIND, LowRankFit};

impl FitReport for TableFit {
    fn model_keys(&self, data: &RunData, model: &Artifact) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("family_name".into(), self.family_name().into());
        object.insert("personal".into(), self.table.personal.into());
        object.insert("rows".into(), data.facts.rows.clone().into());
        if !data.facts.attributes.is_empty() {
            let attributes = data.facts.attributes.iter().map(|one| {
                let Attribute { name, of, levels, values } = one;
                json!({ "name": name, "of": of, "levels": levels, "values": values })
            });
            object.insert("attributes".into(), attributes.collect());
        }
        if let Ok(fit) = LowRankFit::from_artifact(model) {
            let [rows, columns] = unobserved(&fit);
            object.insert("unobserved_rows".into(), rows.into());
            object.insert("unobserved_columns".into(), columns.into());
        }
        object
    }

    fn chosen(&self, delivered: &[Artifact]) -> Map<String, Value> {
        let model = delivered.last().filter(|model| model.kind == KIND);
        let Some(Ok(fit)) = model.map(LowRankFit::from_artifact) else { return Map::new() };
        let settings = fit.model.settings();
        let mut keys = Map::new();
        keys.insert("rank".into(), settings.rank.into());
        keys.insert("lambda".into(), number(settings.lambda));
        keys.insert("lambda_effects".into(), number(settings.lambda_effects));
        keys
    }

    /// Results that need the clients' cells are omitted if these are unknown.
    fn results(&self, ended: &Ended<'_>) -> Result<Results> {
        let model = ended.outcome.delivered.last().filter(|model| model.kind == KIND);
        let Some(model) = model else { return Ok(Results::default()) };
        if matches!(ended.outcome.ending, Ending::Failed(_)) {
            return Ok(Results::default());
        }
        let Facts { rows, columns, .. } = &ended.data.facts;
        let (rows, columns) = (rows.clone(), columns.clone());
        let table = Completed::new(model, rows, columns, self.table.personal)?;
        let deviance = last(ended.outcome, "held_out_deviance");
        let compared = compared(&ended.outcome.delivered, deviance);
        let selection = selection(&ended.outcome.delivered)?;
        let cells = ended.data.cells.as_ref();
        let totals = cells.map(|cells| totals(&table, &cells.seen));
        let mut summary = self.settings_of(&table, &term_names(self, &ended.data.facts));
        let mut put = |key: &str, value: Value| summary.insert(key.into(), value);
        if let Some(cells) = cells {
            put("observations", (cells.fitted.len() + cells.held_out.len()).into());
            put("held_out", cells.held_out.len().into());
        }
        if let Some(all) = &totals {
            put("totals", table.columns.iter().zip(all).map(total_of).collect());
        }
        summary.extend(figures(&table, ended.outcome));
        if let Some(selection) = &selection {
            let names = term_names(self, &ended.data.facts);
            summary.insert("selection".into(), tried(selection, &names));
        }
        if !compared.simpler.is_empty() {
            let simpler = compared.simpler.iter().map(|(name, it)| (name.clone(), number(*it)));
            let simpler = simpler.collect::<Map<String, Value>>();
            summary.insert("baselines".into(), simpler.into());
            summary.insert("best".into(), compared.best().into());
        }
        let verdict = compared.verdict();
        summary.insert("answer".into(), answer(&table, totals.as_deref()).into());
        let (all, said) = (totals.as_deref(), verdict.as_deref());
        let section = exhibits::section(&table, cells, all, said, selection.as_ref());
        let mut notes: Vec<String> =
            shortened(&ended.job.method.step, &summary).into_iter().collect();
        if selection.is_some() && last(ended.outcome, "step").is_some_and(|step| step < 1.0) {
            notes.push(RISES.into());
        }
        Ok(Results {
            notes,
            warnings: table.warning_of_few().into_iter().collect(),
            said: verdict.into_iter().collect(),
            sections: vec![section],
            summary,
            tiles: tiles(&table, all, deviance),
            ..Results::default()
        })
    }

    fn spread_over_seeds(&self) -> &'static [&'static str] {
        &["holdout_deviance", "holdout_rmse", "coverage"]
    }

    fn findings(&self, delivered: &[Artifact]) -> Vec<String> {
        let standardised = delivered.iter().find_map(units::note);
        let Ok(Some(selection)) = selection(delivered) else {
            return standardised.into_iter().collect();
        };
        let Selection { chosen, tried, .. } = &selection;
        let own: Vec<String> = chosen.term_ridges.iter().map(f64::to_string).collect();
        let ridges = match &own[..] {
            [] => format!("ridge {}", chosen.lambda_effects),
            own => format!("ridges {}", own.join(", ")),
        };
        let words = format!(
            "cross-validation over {} candidates chose rank {}, lambda {:.4}, effects {} with {ridges}",
            tried.len(),
            chosen.rank,
            chosen.lambda,
            self.table.effects.words(),
        );
        standardised.into_iter().chain([words]).collect()
    }
}

impl TableFit {
    /// The fitted model's settings, for the summary.
    fn settings_of(&self, table: &Completed, terms: &[String]) -> Map<String, Value> {
        let settings = table.fit.model.settings();
        let mut summary = Map::new();
        let mut put = |key: &str, value: Value| summary.insert(key.into(), value);
        put("effects", self.table.effects.words().into());
        if !self.table.covariates.is_empty() {
            put("covariates", self.table.covariates.clone().into());
        }
        if !settings.term_ridges.is_empty() {
            put("ridges", ridges_of(terms, &settings.term_ridges));
        }
        summary
    }
}

/// Explains the objective of the first rounds after a chosen start.
const RISES: &str = "the fit starts at the minimum of the chosen model, and its completed table at the \
                     fitted means: the objective rises while the table takes in the observations, and returns";

/// A figure of the last evaluation, in which clients include their personal effects.
fn last(outcome: &Outcome, name: &str) -> Option<f64> {
    outcome.last.as_ref().and_then(|row| row.number(name))
}

/// The completed table in a sentence.
fn answer(table: &Completed, totals: Option<&[Total]>) -> String {
    let (rows, columns) = (table.rows.len(), table.columns.len());
    let rank = table.fit.model.settings().rank;
    let mut said = vec![format!("A table of {rows} rows and {columns} columns, rank {rank}")];
    if let Some(totals) = totals {
        let missing: u64 = totals.iter().map(|total| total.missing).sum();
        said.push(format!("{missing} of {} cells were missing and are estimated", rows * columns));
    }
    if let Some(Coverage { share, cells }) = coverage(table) {
        // Two standard errors of the share of covered cells.
        let verdict = match (share - 0.9) / (0.9 * 0.1 / cells as f64).sqrt() {
            _ if cells == 0 => ", without a verdict: their number is not recorded",
            z if z > 2.0 => ": they are too wide",
            z if z < -2.0 => ": they are too narrow",
            _ => "",
        };
        let share = 100.0 * share;
        said.push(format!("90 % intervals cover {share:.1} % of the held-out cells{verdict}"));
    }
    said.join("; ")
}

fn coverage(table: &Completed) -> Option<Coverage> {
    table.fit.calibration.as_ref()?.coverage
}

/// The main figures: estimated cells, and the fit on held-out cells.
fn tiles(
    table: &Completed,
    totals: Option<&[Total]>,
    deviance: Option<f64>,
) -> Vec<(String, String)> {
    let missing = totals.map(|all| all.iter().map(|total| total.missing).sum::<u64>());
    [
        ("Estimated cells", missing.map(|cells| cells.to_string())),
        ("Held-out deviance", deviance.map(|deviance| figure(deviance, 4))),
        (
            "Coverage of 90 % intervals",
            coverage(table).map(|it| format!("{:.1} %", 100.0 * it.share)),
        ),
    ]
    .into_iter()
    .filter_map(|(name, shown)| Some((name.to_owned(), shown?)))
    .collect()
}

/// Figures of the fit, for the summary.
fn figures(table: &Completed, outcome: &Outcome) -> Map<String, Value> {
    let known = |value: Option<f64>| value.map_or(Value::Null, number);
    let mut summary = Map::new();
    let mut put = |key: &str, value: Value| summary.insert(key.into(), value);
    if let Some(row) = &outcome.last
        && let Some(repairs) = row.number("repairs")
    {
        let cells = f64::from(row.round.max(1)) * table.fit.model.cells() as f64;
        put("repaired_share", number(repairs / cells));
        put("step", known(row.number("step")));
    }
    let calibration = table.fit.calibration.as_ref();
    put("holdout_deviance", known(last(outcome, "held_out_deviance")));
    put("holdout_rmse", known(last(outcome, "held_out_rmse")));
    put("coverage", known(coverage(table).map(|known| known.share)));
    put("dispersion", known(calibration.map(|c| c.dispersion)));
    put("intervals", table.intervals_without_effects().into());
    put("hardly_observed_rows", table.hardly_observed().into());
    summary
}

/// The candidates of cross-validation.
fn tried(selection: &Selection, terms: &[String]) -> Value {
    let rows = selection.tried.iter().map(|(candidate, deviance, error, rounds)| {
        let mut row = json!({
            "rank": candidate.rank,
            "lambda": number(candidate.lambda),
            "lambda_effects": number(candidate.lambda_effects),
            "deviance": number(*deviance),
            "standard_error": number(*error), "rounds": rounds,
            "chosen": *candidate == selection.chosen,
        });
        if !candidate.term_ridges.is_empty() {
            row["ridges"] = ridges_of(terms, &candidate.term_ridges);
        }
        row
    });
    rows.collect()
}

/// The total of a column, with its interval.
fn total_of((label, own): (&String, &Total)) -> Value {
    let [lower, upper] = own.interval.map(number);
    json!({
        "column": label, "observed": number(own.observed), "missing": own.missing,
        "total": number(own.total), "lower": lower, "upper": upper,
    })
}

/// Names of the terms, in the order of the model.
fn term_names(asked: &TableFit, facts: &Facts) -> Vec<String> {
    let lines = [facts.rows.len(), facts.columns.len()];
    let effects = terms::effects(&asked.table, lines, &facts.attributes);
    effects.map_or(Vec::new(), |all| all.0.iter().map(|term| term.name.clone()).collect())
}

fn ridges_of(names: &[String], ridges: &[f64]) -> Value {
    let ridges = names.iter().zip(ridges).map(|(name, ridge)| (name.clone(), number(*ridge)));
    ridges.collect::<Map<String, Value>>().into()
}

/// The selection by cross-validation, if the job leaves a choice.
fn selection(delivered: &[Artifact]) -> Result<Option<Selection>> {
    let found = delivered.iter().find(|artifact| artifact.kind == select::KIND);
    let found = found.map(Selection::from_artifact).transpose()?;
    // Several starts of a given model are not a choice.
    Ok(found.filter(|selection| !selection.tried.is_empty()))
}

/// The note on a step that was shortened.
fn shortened(step: &Step, summary: &Map<String, Value>) -> Option<String> {
    let Step::Constant(given) = step else { return None };
    let used = summary.get("step")?.as_f64()?;
    (used < *given).then(|| {
        format!(
            "step = {given} is too large for these minibatches, this codec and this participation: \
             the fit would diverge. {used:.2e} was used with the fewest copies, as by step = \"auto\""
        )
    })
}

/// The fit compared with simpler models on the same cells.
fn compared(delivered: &[Artifact], fitted: Option<f64>) -> Comparison {
    let simpler = delivered.iter().find(|artifact| artifact.kind == BASELINES_KIND);
    let numbers = simpler.into_iter().flat_map(Artifact::numbers);
    let simpler = numbers.filter(|(name, _)| BASELINES.contains(name));
    Comparison { fitted, simpler: simpler.map(|(name, it)| (name.into(), it)).collect() }
}
