//! What a run writes about a completed table.

use super::TableFit;
use super::completed::{Completed, TableFacts};
use super::convergence::field_relative;
use super::exhibits::{self, Contender};
use super::keys::EFFECTS_WORDS;
use crate::family::Ended;
use crate::job::Step;
use serde_json::{Map, Value, json};
use whimbrel_core::Result;
use whimbrel_core::declare::Section;
use whimbrel_core::method::Artifact;
use whimbrel_engine::Outcome;
use whimbrel_engine::metrics::number;
use whimbrel_methods::fedmiss::select::{self, Selection};
use whimbrel_methods::fedmiss::{UNOBSERVED, baselines};
use whimbrel_models::lowrank::{KIND, LowRankFit, Scores};

/// A run's table: what its files say beyond those of other runs.
pub(super) struct Table {
    /// What the report shows of it.
    pub section: Section,
    /// Keys of `summary.json`.
    pub summary: Map<String, Value>,
}

/// Keys of `model.json`.
pub(super) fn model_keys(
    asked: &TableFit,
    rows: &[String],
    model: &Artifact,
) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("family_name".into(), asked.family_name().into());
    object.insert("personal".into(), asked.table.personal.into());
    object.insert("rows".into(), rows.into());
    for (name, bare) in UNOBSERVED.into_iter().zip(unobserved(model)) {
        object.insert(name.into(), bare.into());
    }
    object
}

/// Rows and columns in which the fit had no cell.
fn unobserved(model: &Artifact) -> [Vec<usize>; 2] {
    UNOBSERVED.map(|name| {
        let values = model.tensor(name).map_or(&[][..], |tensor| &tensor.values);
        values.iter().map(|at| *at as usize).collect()
    })
}

/// Looks at a finished fit; none where the run fitted something else, or nothing. What would take
/// the clients' cells is left out where nobody has seen them.
///
/// `pace` is that of the objective, see [`objective_pace`](super::convergence::objective_pace).
pub(super) fn table(
    asked: &TableFit,
    ended: &Ended<'_>,
    pace: Option<f64>,
) -> Result<Option<Table>> {
    let (outcome, facts) = (ended.outcome, ended.data);
    let remembered = facts.remembered.as_ref();
    let seen: Option<&TableFacts> = remembered.and_then(|kept| kept.downcast_ref());
    let Some(model) = outcome.delivered.last().filter(|a| a.kind == KIND) else {
        return Ok(None);
    };
    let fit = LowRankFit::from_artifact(model)?;
    let held_out = holdout(&fit, seen, outcome);
    let contenders = contenders(&outcome.delivered, held_out.deviance);
    let mut summary = Map::new();
    let mut put = |key: &str, value: Value| summary.insert(key.into(), value);
    let settings = fit.model.settings();
    put("rank", settings.rank.into());
    put("lambda", number(settings.lambda));
    put("lambda_effects", number(settings.lambda_effects));
    put("effects", EFFECTS_WORDS.name(settings.effects).into());
    if let Some(seen) = seen {
        put("observations", (seen.fitted.len() + seen.held_out.len()).into());
        put("held_out", seen.held_out.len().into());
    }
    if let Some(row) = &outcome.last
        && let Some(repairs) = row.number("repairs")
    {
        let looked_at = f64::from(row.round.max(1)) * fit.model.cells() as f64;
        put("repaired_share", number(repairs / looked_at));
        put("step", row.number("step").map_or(Value::Null, number));
    }
    let known = |value: Option<f64>| value.map_or(Value::Null, number);
    put("holdout_deviance", known(held_out.deviance));
    put("holdout_rmse", known(held_out.rmse));
    put("coverage", known(fit.calibration.as_ref().and_then(|c| c.coverage)));
    put("dispersion", known(fit.calibration.as_ref().map(|c| c.dispersion)));
    put("field_relative", known(field_relative(&fit, outcome)));
    put("objective_pace", known(pace));
    let [rows, columns] = unobserved(model);
    let labels = (facts.row_labels.clone(), facts.columns.clone());
    let table = Completed::new(fit, labels.0, labels.1, [&rows, &columns]);
    put("intervals", table.intervals_without_effects(asked.table.personal).into());
    let selection = selection(&outcome.delivered)?;
    if let Some(selection) = &selection {
        let tried = selection.tried.iter().map(|(candidate, deviance, error, rounds)| {
            json!({
                "effects": EFFECTS_WORDS.name(candidate.effects), "rank": candidate.rank,
                "lambda": number(candidate.lambda),
                "lambda_effects": number(candidate.lambda_effects),
                "deviance": number(*deviance),
                "standard_error": number(*error), "rounds": rounds,
                "chosen": *candidate == selection.chosen,
            })
        });
        put("selection", tried.collect());
    }
    if contenders.len() > 1 {
        let baselines = contenders.iter().filter(|c| !c.fitted);
        let baselines: Map<String, Value> =
            baselines.map(|c| (c.name.clone(), number(c.deviance))).collect();
        put("baselines", baselines.into());
        // Without an evaluation, which a network has only where asked, the fit was not measured.
        let measured = contenders.iter().any(|c| c.fitted);
        let best = contenders.iter().min_by(|a, b| a.deviance.total_cmp(&b.deviance));
        // Rank 0 is one of the baselines, to rounding: it does not lose to itself.
        let fitted = contenders.iter().find(|c| c.fitted);
        let same =
            |best: &Contender, own: &&Contender| own.deviance <= (1.0 + 1e-9) * best.deviance;
        let best = best.filter(|_| measured);
        let best = best.and_then(|best| fitted.filter(|own| same(best, own)).or(Some(best)));
        put("best", best.map_or(Value::Null, |c| c.name.clone().into()));
    }
    let section =
        exhibits::section(&table, seen, asked.table.personal, &contenders, selection.as_ref());
    Ok(Some(Table { section, summary }))
}

/// What cross-validation chose, where the job left it a choice.
fn selection(delivered: &[Artifact]) -> Result<Option<Selection>> {
    let found = delivered.iter().find(|artifact| artifact.kind == select::KIND);
    found.map(Selection::from_artifact).transpose()
}

/// What was found on the way to a fit, in words for whoever waits.
pub(super) fn findings(delivered: &[Artifact]) -> Vec<String> {
    let Ok(Some(selection)) = selection(delivered) else { return Vec::new() };
    let Selection { chosen, tried, .. } = &selection;
    vec![format!(
        "cross-validation over {} candidates chose rank {}, lambda {:.4}, effects {} with ridge {}",
        tried.len(),
        chosen.rank,
        chosen.lambda,
        EFFECTS_WORDS.name(chosen.effects),
        chosen.lambda_effects
    )]
}

/// Whether the job's step was too long for its minibatches, in words.
pub(super) fn shortened(step: &Step, summary: &Map<String, Value>) -> Option<String> {
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

/// Whether a simpler model does better on the cells that were kept out, in words.
pub(super) fn verdict(summary: &Map<String, Value>) -> Option<String> {
    let deviance = summary.get("holdout_deviance")?.as_f64()?;
    let fitted = Contender { name: KIND.into(), deviance, fitted: true };
    let simpler = summary.get("baselines")?.as_object()?.iter().filter_map(|(name, value)| {
        Some(Contender { name: name.clone(), deviance: value.as_f64()?, fitted: false })
    });
    exhibits::verdict(&simpler.chain([fitted]).collect::<Vec<_>>())
}

/// Mean errors on the cells that were kept out.
struct Holdout {
    deviance: Option<f64>,
    rmse: Option<f64>,
}

/// As the clients answered at the last evaluation, their own effects included.
fn holdout(fit: &LowRankFit, seen: Option<&TableFacts>, outcome: &Outcome) -> Holdout {
    let last = |name: &str| outcome.last.as_ref().and_then(|row| row.number(name));
    if let (Some(deviance), Some(rmse)) = (last("held_out_deviance"), last("held_out_rmse")) {
        return Holdout { deviance: Some(deviance), rmse: Some(rmse) };
    }
    let mut tally = Scores::default().held_out;
    for cell in seen.map_or(&[][..], |seen| &seen.held_out) {
        let mean = fit.mean(cell.row as usize, cell.column as usize);
        tally.add(fit.model.family(), cell.value, mean);
    }
    let rmse = tally.mean_of(tally.squared).map(f64::sqrt);
    Holdout { deviance: tally.mean_of(tally.deviance), rmse }
}

/// The fit among the simpler models that an earlier stage tried on the same cells.
fn contenders(delivered: &[Artifact], fitted: Option<f64>) -> Vec<Contender> {
    let fitted = fitted.map(|deviance| Contender { name: KIND.into(), deviance, fitted: true });
    let simpler = delivered.iter().find(|artifact| artifact.kind == baselines::KIND);
    let numbers = simpler.into_iter().flat_map(Artifact::numbers);
    let simpler = numbers.filter(|(name, _)| baselines::NAMES.contains(name));
    let simpler =
        simpler.map(|(name, deviance)| Contender { name: name.into(), deviance, fitted: false });
    fitted.into_iter().chain(simpler).collect()
}
