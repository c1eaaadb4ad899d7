//! The report of a mixture over a mixed table: means, rates and probabilities by component.

use super::super::tables::{gaussians, parameters, shares};
use crate::family::Ended;
use crate::plan::Facts;
use whimbrel_core::declare::Section;
use whimbrel_core::method::Artifact;
use whimbrel_models::mixed::ColumnKind;

pub(super) fn section(
    model: &Artifact,
    kinds: &[ColumnKind],
    facts: &Facts,
    ended: &Ended<'_>,
) -> Option<Section> {
    let weights = &model.tensor("weights")?.values;
    let order: Vec<usize> = (0..weights.len()).collect();
    let names = |wanted: ColumnKind| -> Vec<String> {
        let all = facts.columns.iter().zip(kinds).filter(|(_, kind)| **kind == wanted);
        all.map(|(name, _)| name.clone()).collect()
    };
    let mut exhibits = Vec::new();
    if model.tensor("means").is_some() {
        let names = names(ColumnKind::Number);
        exhibits.extend(gaussians("Means of numbers", model, &order, &names)?);
    }
    if let Some(rates) = model.tensor("rates") {
        let names = names(ColumnKind::Count);
        exhibits.push(parameters("Rates of counts", &order, weights, &rates.values, &names, None));
    }
    if let Some(levels) = model.tensor("levels") {
        let width = levels.values.len() / weights.len().max(1);
        let (mut shown, mut names, mut from) = (Vec::new(), Vec::new(), 0);
        for (column, own) in facts.columns.iter().zip(&facts.levels) {
            // The second level of a binary column suffices.
            let first = usize::from(own.len() == 2);
            for (l, level) in own.iter().enumerate().skip(first) {
                shown.push(from + l);
                names.push(format!("{column} = {level}"));
            }
            from += own.len();
        }
        let value = |k: usize| shown.iter().map(move |at| (k, *at));
        let values: Vec<f64> = order
            .iter()
            .flat_map(|k| value(*k))
            .map(|(k, at)| levels.values[k * width + at])
            .collect();
        exhibits.push(parameters(
            "Probabilities of levels",
            &order,
            weights,
            &values,
            &names,
            None,
        ));
    }
    exhibits.extend(shares(&order, &ended.outcome.names, &ended.outcome.own));
    Some(Section { title: "Mixture".into(), exhibits })
}
