//! The coefficients of a regression by gradient descent, in the units of the data.

use super::GradientFit;
use crate::failure::Result;
use crate::family::{Ended, FitReport, Results, RunData};
use crate::files::figure;
use serde_json::{Map, Value, json};
use whimbrel_core::declare::{Exhibit, Rows, Section};
use whimbrel_core::method::Artifact;
use whimbrel_engine::metrics::number;

/// Most coefficients in the table.
const COEFFICIENTS_MAX: usize = 100;

impl FitReport for GradientFit {
    fn model_keys(&self, _: &RunData, _: &Artifact) -> Map<String, Value> {
        Map::from_iter([("intercept".into(), self.regression.intercept.into())])
    }

    fn results(&self, ended: &Ended<'_>) -> Result<Results> {
        let Some(model) = ended.outcome.delivered.last() else { return Ok(Results::default()) };
        let all = self.coefficients(ended.data, model);
        if all.is_empty() {
            return Ok(Results::default());
        }
        let mut text = String::from("Without standard errors; `glm` by `newton` has them.");
        if ended.data.standardization.is_some() {
            text.insert_str(0, "In the units of the data, which the fit standardised. ");
        }
        let shown = &all[..all.len().min(COEFFICIENTS_MAX)];
        let title = match all.len() - shown.len() {
            0 => String::new(),
            more => format!("The first {COEFFICIENTS_MAX}; {more} more are in model.json"),
        };
        let rows = shown.iter().map(|(term, value)| vec![term.clone(), figure(*value, 5)]);
        let heads = ["term", "estimate"].map(String::from).to_vec();
        let table = Rows { title, heads, rows: rows.collect(), ..Rows::default() };
        let exhibits = vec![Exhibit::Text { text }, Exhibit::Table(table)];
        let sections = vec![Section { title: "Coefficients".into(), exhibits }];
        let each = shown.iter().map(|(term, b)| json!({ "term": term, "estimate": number(*b) }));
        let summary = Map::from_iter([("coefficients".into(), each.collect())]);
        let objective = ended.outcome.last.as_ref().and_then(|row| row.number("objective"));
        let tile = objective.map(|value| ("Objective".to_owned(), figure(value, 7)));
        Ok(Results { sections, summary, tiles: tile.into_iter().collect(), ..Results::default() })
    }
}

impl GradientFit {
    /// The coefficients in the units of the data, the intercept first; empty if the columns are not
    /// known.
    fn coefficients(&self, data: &RunData, model: &Artifact) -> Vec<(String, f64)> {
        let columns = &data.facts.columns;
        let weights = model.tensor("weights").map_or(&[][..], |weights| &weights.values);
        if weights.len() != columns.len() + usize::from(self.regression.intercept) {
            return Vec::new();
        }
        let (slopes, intercept) = weights.split_at(columns.len());
        let mut intercept = intercept.first().copied();
        let mut slopes = slopes.to_vec();
        if let Some(standardization) = &data.standardization {
            for (slope, scale) in slopes.iter_mut().zip(&standardization.scales) {
                *slope /= scale;
            }
            let shift: f64 = slopes.iter().zip(&standardization.means).map(|(b, m)| b * m).sum();
            intercept = Some(intercept.unwrap_or(0.0) - shift);
        }
        let first = intercept.map(|value| ("Intercept".to_owned(), value));
        first.into_iter().chain(columns.iter().cloned().zip(slopes)).collect()
    }
}
