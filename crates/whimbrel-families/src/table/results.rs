//! What a run writes about a completed table.

use super::completed::{Completed, unobserved};
use super::exhibits::{self, Comparison};
use super::observed::ObservedTable;
use super::totals::{Total, totals};
use super::{TableFit, terms};
use crate::family::{Ended, Results, RunData};
use crate::job::Step;
use serde_json::{Map, Value, json};
use whimbrel_core::Result;
use whimbrel_core::method::Artifact;
use whimbrel_data::Attribute;
use whimbrel_engine::Outcome;
use whimbrel_engine::metrics::number;
use whimbrel_methods::fedmiss::select::{self, BASELINES, BASELINES_KIND, Selection};
use whimbrel_models::lowrank::{KIND, LowRankFit};

/// A field that is longer than this share of the completed table is still moving it.
const FIELD_MAX: f64 = 1e-4;

/// Keys of `model.json`.
pub(super) fn model_keys(asked: &TableFit, data: &RunData, model: &Artifact) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("family_name".into(), asked.family_name().into());
    object.insert("personal".into(), asked.table.personal.into());
    object.insert("rows".into(), data.row_labels.clone().into());
    let attribute = |one: &Attribute| json!({ "name": one.name, "of": one.of, "levels": one.levels, "values": one.values });
    if !data.attributes.is_empty() {
        object.insert("attributes".into(), data.attributes.iter().map(attribute).collect());
    }
    if let Ok(fit) = LowRankFit::from_artifact(model) {
        let [rows, columns] = unobserved(&fit);
        object.insert("unobserved_rows".into(), rows.into());
        object.insert("unobserved_columns".into(), columns.into());
    }
    object
}

/// Looks at a finished fit; none where the run fitted something else, or nothing. What would take
/// the clients' cells is left out where they are unknown.
pub(super) fn results(asked: &TableFit, ended: &Ended<'_>) -> Result<Option<Results>> {
    let (outcome, facts) = (ended.outcome, ended.data);
    let remembered = facts.remembered.as_ref();
    let seen: Option<&ObservedTable> = remembered.and_then(|kept| kept.downcast_ref());
    let Some(model) = outcome.delivered.last().filter(|a| a.kind == KIND) else {
        return Ok(None);
    };
    let labels = (facts.row_labels.clone(), facts.columns.clone());
    let table = Completed::new(model, labels.0, labels.1, asked.table.personal)?;
    let fit = &table.fit;
    // As the clients answered at the last evaluation, their own effects included.
    let last = |name: &str| outcome.last.as_ref().and_then(|row| row.number(name));
    let compared = compared(&outcome.delivered, last("held_out_deviance"));
    let names = term_names(asked, facts);
    let mut summary = Map::new();
    let mut put = |key: &str, value: Value| summary.insert(key.into(), value);
    let settings = fit.model.settings();
    put("rank", settings.rank.into());
    put("lambda", number(settings.lambda));
    put("lambda_effects", number(settings.lambda_effects));
    put("effects", asked.table.effects.words().into());
    if !asked.table.covariates.is_empty() {
        put("covariates", asked.table.covariates.clone().into());
    }
    if !settings.term_ridges.is_empty() {
        put("ridges", ridges_of(&names, &settings.term_ridges));
    }
    if let Some(seen) = seen {
        put("observations", (seen.fitted.len() + seen.held_out.len()).into());
        put("held_out", seen.held_out.len().into());
    }
    let column_totals = seen.map(|seen| totals(&table, &seen.seen));
    if let Some(all) = &column_totals {
        put("totals", table.columns.iter().zip(all).map(total_of).collect());
    }
    if let Some(row) = &outcome.last
        && let Some(repairs) = row.number("repairs")
    {
        let looked_at = f64::from(row.round.max(1)) * fit.model.cells() as f64;
        put("repaired_share", number(repairs / looked_at));
        put("step", row.number("step").map_or(Value::Null, number));
    }
    let known = |value: Option<f64>| value.map_or(Value::Null, number);
    put("holdout_deviance", known(last("held_out_deviance")));
    put("holdout_rmse", known(last("held_out_rmse")));
    put("coverage", known(fit.calibration.as_ref().and_then(|c| c.coverage)));
    put("dispersion", known(fit.calibration.as_ref().map(|c| c.dispersion)));
    let field_relative = field_relative(fit, outcome);
    put("field_relative", known(field_relative));
    put("intervals", table.intervals_without_effects().into());
    put("hardly_observed_rows", table.hardly_observed().into());
    let selection = selection(&outcome.delivered)?;
    if let Some(selection) = &selection {
        let tried = selection.tried.iter().map(|(candidate, deviance, error, rounds)| {
            let mut row = json!({
                "rank": candidate.rank,
                "lambda": number(candidate.lambda),
                "lambda_effects": number(candidate.lambda_effects),
                "deviance": number(*deviance),
                "standard_error": number(*error), "rounds": rounds,
                "chosen": *candidate == selection.chosen,
            });
            if !candidate.term_ridges.is_empty() {
                row["ridges"] = ridges_of(&names, &candidate.term_ridges);
            }
            row
        });
        put("selection", tried.collect());
    }
    if !compared.simpler.is_empty() {
        let simpler = compared.simpler.iter().map(|(name, it)| (name.clone(), number(*it)));
        put("baselines", simpler.collect::<Map<String, Value>>().into());
        put("best", compared.best().into());
    }
    let verdict = compared.verdict();
    let (all, said) = (column_totals.as_deref(), verdict.as_deref());
    let section = exhibits::section(&table, seen, all, said, selection.as_ref());
    let unconverged = unconverged(field_relative);
    let notes = [unconverged, shortened(&ended.job.method.step, &summary)];
    Ok(Some(Results {
        notes: notes.into_iter().flatten().collect(),
        warnings: table.warning_of_few().into_iter().collect(),
        said: verdict.into_iter().collect(),
        sections: vec![section],
        summary,
        ..Results::default()
    }))
}

/// The total of a column, with its band.
fn total_of((label, own): (&String, &Total)) -> Value {
    let [lower, upper] = own.interval.map(number);
    json!({
        "column": label, "observed": number(own.observed), "missing": own.missing,
        "total": number(own.total), "lower": lower, "upper": upper,
    })
}

/// The names of the terms, in the order of the model.
fn term_names(asked: &TableFit, data: &RunData) -> Vec<String> {
    let lines = [data.row_labels.len(), data.columns.len()];
    let effects = terms::effects(&asked.table, lines, &data.attributes);
    effects.map_or(Vec::new(), |all| all.0.iter().map(|term| term.name.clone()).collect())
}

fn ridges_of(names: &[String], ridges: &[f64]) -> Value {
    let ridges = names.iter().zip(ridges).map(|(name, ridge)| (name.clone(), number(*ridge)));
    ridges.collect::<Map<String, Value>>().into()
}

/// `||h|| / ||psi'(theta)||` at the last evaluation.
fn field_relative(fit: &LowRankFit, outcome: &Outcome) -> Option<f64> {
    let field = outcome.last.as_ref()?.number("field_norm2")?;
    let (rows, columns) = (fit.model.rows(), fit.model.columns());
    let row = |row| (0..columns).map(move |column| fit.mean(row, column).powi(2)).sum::<f64>();
    let table: f64 = (0..rows).map(row).sum();
    (table > 0.0).then(|| (field / table).sqrt())
}

/// Whether the fit would still have moved, in words.
fn unconverged(field_relative: Option<f64>) -> Option<String> {
    let relative = field_relative.filter(|relative| *relative > FIELD_MAX)?;
    Some(format!(
        "not converged: at the last evaluation the field is {relative:.1e} of the completed table, \
         above {FIELD_MAX:.0e}; more rounds or a larger lambda (or larger batches, or a finer codec) \
         would bring it down"
    ))
}

/// What cross-validation chose, where the job left it a choice.
fn selection(delivered: &[Artifact]) -> Result<Option<Selection>> {
    let found = delivered.iter().find(|artifact| artifact.kind == select::KIND);
    let found = found.map(Selection::from_artifact).transpose()?;
    // Several starts of a given model choose nothing.
    Ok(found.filter(|selection| !selection.tried.is_empty()))
}

/// What was found on the way to a fit, in words.
pub(super) fn findings(asked: &TableFit, delivered: &[Artifact]) -> Vec<String> {
    let Ok(Some(selection)) = selection(delivered) else { return Vec::new() };
    let Selection { chosen, tried, .. } = &selection;
    let ridges = match &chosen.term_ridges[..] {
        [] => format!("ridge {}", chosen.lambda_effects),
        own => format!("ridges {}", own.iter().map(f64::to_string).collect::<Vec<_>>().join(", ")),
    };
    vec![format!(
        "cross-validation over {} candidates chose rank {}, lambda {:.4}, effects {} with {ridges}",
        tried.len(),
        chosen.rank,
        chosen.lambda,
        asked.table.effects.words(),
    )]
}

/// Whether the job's step was too long for its minibatches, in words.
fn shortened(step: &Step, summary: &Map<String, Value>) -> Option<String> {
    let Step::Constant(given) = step else { return None };
    let used = summary.get("step")?.as_f64()?;
    (used < *given).then(|| {
        format!(
            "step = {given} is too long for these minibatches, codec and participation: the \
             memories would not keep up, and the fit would diverge; {used:.2e} was used, with the \
             fewest copies, as step = \"auto\" does"
        )
    })
}

/// The fit beside the simpler models that an earlier stage tried on the same cells.
fn compared(delivered: &[Artifact], fitted: Option<f64>) -> Comparison {
    let simpler = delivered.iter().find(|artifact| artifact.kind == BASELINES_KIND);
    let numbers = simpler.into_iter().flat_map(Artifact::numbers);
    let simpler = numbers.filter(|(name, _)| BASELINES.contains(name));
    Comparison { fitted, simpler: simpler.map(|(name, it)| (name.into(), it)).collect() }
}
