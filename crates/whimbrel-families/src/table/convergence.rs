//! Whether a low-rank fit would still have moved.

use serde_json::{Map, Value};
use std::path::Path;
use whimbrel_engine::Outcome;
use whimbrel_models::lowrank::LowRankFit;

/// A field that is longer than this share of the completed table is still moving it.
const FIELD_MAX: f64 = 1e-4;
/// An objective that falls by more than this share of the deviance, in as many rounds again, has
/// not reached its end.
const PACE_MAX: f64 = 1e-4;

/// Rounds between the last two evaluations, as a share of all: more say nothing about the end.
const PART_MAX: f64 = 0.1;

/// `||h|| / ||psi'(theta)||` at the last evaluation.
pub(super) fn field_relative(fit: &LowRankFit, outcome: &Outcome) -> Option<f64> {
    let field = outcome.last.as_ref()?.number("field_norm2")?;
    let (rows, columns) = (fit.model.rows(), fit.model.columns());
    let row = |row| (0..columns).map(move |column| fit.mean(row, column).powi(2)).sum::<f64>();
    let table: f64 = (0..rows).map(row).sum();
    (table > 0.0).then(|| (field / table).sqrt())
}

/// By how much `n F` would fall in as many rounds again at the pace of the last two evaluations,
/// over half the deviance of the observed cells. The field does not see all of that: where every
/// cell is observed and full batches are sent exactly, it is zero from the first round on.
pub(super) fn objective_pace(folder: &Path) -> Option<f64> {
    let metrics = std::fs::read_to_string(folder.join("metrics.jsonl")).ok()?;
    pace_of(&metrics)
}

fn pace_of(metrics: &str) -> Option<f64> {
    let rows = metrics.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let numbers = |row: Value| {
        let number = |key: &str| row.get(key).and_then(Value::as_f64);
        Some((number("round")?, number("objective_per_cell")?, number("train_deviance")?))
    };
    let mut rows = rows.filter_map(numbers);
    let (round, objective, deviance) = rows.next()?;
    let (before, higher, _) = rows.find(|(before, ..)| *before < round)?;
    let is_late = round - before <= PART_MAX * round;
    let pace = || (higher - objective) * round / (round - before) / (0.5 * deviance);
    (deviance > 0.0 && is_late).then(pace)
}

/// Whether the fit would still have moved, in words.
pub(super) fn unconverged(summary: &Map<String, Value>) -> Option<String> {
    let number = |key: &str| summary.get(key).and_then(Value::as_f64);
    let remedy = "more rounds or a larger lambda (or larger batches, or a finer codec) would bring \
                  it down";
    if let Some(relative) = number("field_relative").filter(|relative| *relative > FIELD_MAX) {
        return Some(format!(
            "not converged: at the last evaluation the field is {relative:.1e} of the completed \
             table, above {FIELD_MAX:.0e}; {remedy}"
        ));
    }
    let pace = number("objective_pace").filter(|pace| *pace > PACE_MAX)?;
    Some(format!(
        "not converged: at the pace of the last rounds the objective would fall by {pace:.1e} of \
         the deviance in as many again, above {PACE_MAX:.0e}; {remedy}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(round: u32, objective: f64) -> String {
        format!("{{\"round\":{round},\"objective_per_cell\":{objective},\"train_deviance\":4.0}}\n")
    }

    #[test]
    fn the_pace_is_that_of_the_last_two_evaluations() {
        // 0.5 in 4 of 40 rounds, over a half of 4.
        let text = row(0, 9.0) + &row(36, 1.0) + &row(40, 0.5);
        assert_eq!(pace_of(&text), Some(2.5));
        // A long way back tells nothing of the end.
        assert_eq!(pace_of(&(row(0, 9.0) + &row(35, 1.0) + &row(40, 0.5))), None);
        // A round that was evaluated twice counts once, and broken lines not at all.
        assert_eq!(pace_of(&(text.clone() + &row(40, 0.5) + "{\"round\"")), Some(2.5));
        assert_eq!(pace_of(&(text + &row(44, 0.75))), Some(-1.375));
        assert_eq!(pace_of(&row(40, 0.5)), None);
    }

    #[test]
    fn either_measure_tells() {
        let told = |field: f64, pace: f64| {
            let summary = serde_json::json!({ "field_relative": field, "objective_pace": pace });
            unconverged(summary.as_object().unwrap())
        };
        assert_eq!(told(1e-5, 1e-5), None);
        assert_eq!(told(1e-5, -1.0), None, "noise may raise it");
        assert!(told(1e-3, 0.0).unwrap().contains("field"));
        assert!(told(0.0, 1e-3).unwrap().contains("pace"));
        assert_eq!(unconverged(&Map::new()), None);
    }
}
