//! What a run's files say about personal models: the Bayes rule of generated data, and the clients'
//! mixture weights.

use super::PersonalFit;
use super::keys::Rule;
use super::plan::rule;
use crate::failure::Result;
use crate::family::{Ended, Results};
use crate::files::read_artifact;
use crate::load::Loaded;
use serde_json::Map;
use std::any::Any;
use std::cmp::Ordering;
use std::path::Path;
use whimbrel_core::declare::{Exhibit, Heat, HeatMap, Section};
use whimbrel_core::{Inputs, Samples, Targets};
use whimbrel_engine::metrics::number;
use whimbrel_methods::personal::{Own, PARAMETERS, Shape};

/// A heat map has at most so many rows.
const BLOCKS_MAX: usize = 200;

/// What is kept of the data.
pub(super) struct Kept {
    /// The lengths of an input.
    pub shape: Vec<usize>,
    /// The share of test rows that the Bayes rule predicts: over clients that train, and over others.
    bayes: [Option<f64>; 2],
    /// The predictors behind drawn numbers, by client's name.
    predictors: Vec<(String, Vec<f64>)>,
}

pub(super) fn remember(loaded: &Loaded) -> Option<Box<dyn Any + Send + Sync>> {
    let shape = loaded.shape()?.to_vec();
    let mean = |unseen: bool| {
        let truth = loaded.truth.as_ref()?;
        let (mut total, mut sum) = (0.0, 0.0);
        for (id, accuracy) in truth.bayes_accuracy.iter().enumerate() {
            let is_unseen = loaded.unseen.get(id).copied().unwrap_or_default();
            let rows = loaded.rows.get(id).copied().flatten();
            if let (Some(accuracy), Some(rows), true) = (accuracy, rows, is_unseen == unseen) {
                total += rows as f64;
                sum += rows as f64 * accuracy;
            }
        }
        (total > 0.0).then(|| sum / total)
    };
    let truth = loaded.representation.iter().flat_map(|truth| truth.predictors.iter().cloned());
    let names = loaded.clients.iter().map(|(name, _)| name.clone());
    let predictors = names.zip(truth).collect();
    Some(Box::new(Kept { shape, bayes: [mean(false), mean(true)], predictors }))
}

pub(super) fn results(asked: &PersonalFit, ended: &Ended<'_>) -> Result<Results> {
    let mut summary = Map::new();
    let kept = ended.data.remembered.as_ref().and_then(|kept| kept.downcast_ref::<Kept>());
    if let Some(kept) = kept {
        let names = ["bayes_accuracy", "bayes_accuracy_unseen"];
        for (name, accuracy) in names.into_iter().zip(kept.bayes) {
            summary.extend(accuracy.map(|accuracy| (name.to_owned(), number(accuracy))));
        }
        if let Some(error) = prediction_error(asked, ended, kept)? {
            summary.insert("prediction_error".into(), number(error));
        }
    }
    let sections = match &asked.rule {
        Rule::FedMix(fedmix) => weights_section(ended.folder, fedmix.components),
        _ => None,
    };
    Ok(Results { summary, sections: sections.into_iter().collect(), ..Results::default() })
}

/// The mean squared distance of the clients' predictors to the linear ones that drawn numbers come from.
fn prediction_error(asked: &PersonalFit, ended: &Ended<'_>, kept: &Kept) -> Result<Option<f64>> {
    let tensors = read_artifact(&ended.folder.join("model/model.safetensors"))?;
    let shared = tensors.narrow.iter().find(|tensor| tensor.name == PARAMETERS);
    let (Some(shared), false) = (shared, kept.predictors.is_empty()) else { return Ok(None) };
    let learner = asked.model.learner(&kept.shape, 0)?;
    let rule = rule(asked, &*learner)?;
    // A linear predictor is known by its intercept and its values at unit vectors.
    let width: usize = kept.shape.iter().product();
    let inputs = (0..(width + 1) * width).map(|at| f32::from(u8::from(at % (width + 1) == width)));
    let targets = Targets::Values(vec![0.0; width + 1]);
    let units = Samples::new(vec![width], Inputs::Real(inputs.collect()), targets)?;
    let mut sum = 0.0;
    for (name, truth) in &kept.predictors {
        let path = ended.folder.join("clients").join(name).join("model.safetensors");
        let own = read_artifact(&path).map(|artifact| Own::from_artifact(&artifact));
        let shape = Shape::new(&*learner);
        let mixture = rule.personal(&shape, &shared.values, &own.unwrap_or_default())?;
        let found = mixture.predict(&*learner, &units);
        let at_zero = f64::from(found[0]);
        let distance =
            found[1..].iter().zip(truth).map(|(w, u)| (f64::from(*w) - at_zero - u).powi(2));
        sum += distance.sum::<f64>() + at_zero * at_zero;
    }
    Ok(Some(sum / kept.predictors.len() as f64))
}

/// The clients' mixture weights, those of one cluster together. They are read where a simulation
/// left them; on a network they stay with the clients.
fn weights_section(folder: &Path, components: usize) -> Option<Section> {
    let mut clients: Vec<Vec<f64>> = std::fs::read_dir(folder.join("clients"))
        .ok()?
        .filter_map(|entry| read_artifact(&entry.ok()?.path().join("model.safetensors")).ok())
        .map(|artifact| Own::from_artifact(&artifact).weights)
        .filter(|weights| weights.len() == components)
        .collect();
    if clients.is_empty() || components < 2 {
        return None;
    }
    let cluster = |weights: &[f64]| {
        (0..weights.len()).fold(0, |best, m| if weights[m] > weights[best] { m } else { best })
    };
    clients.sort_by(|a, b| {
        let (m, n) = (cluster(a), cluster(b));
        m.cmp(&n)
            .then(b[n].total_cmp(&a[m]))
            .then_with(|| b.partial_cmp(a).unwrap_or(Ordering::Equal))
    });
    let sizes: Vec<String> = (0..components)
        .map(|m| clients.iter().filter(|weights| cluster(weights) == m).count().to_string())
        .collect();
    let blocks = clients.len().min(BLOCKS_MAX);
    let span = |block: usize| block * clients.len() / blocks..(block + 1) * clients.len() / blocks;
    let mean = |block: usize, m: usize| {
        let of = &clients[span(block)];
        Some(of.iter().map(|weights| weights[m]).sum::<f64>() / of.len() as f64)
    };
    let values = (0..blocks).flat_map(|block| (0..components).map(move |m| (block, m)));
    let map = HeatMap {
        title: "Mixture weights".into(),
        caption: format!(
            "A row for each client, a column for each component; clients with the same largest \
             weight stand together (clusters of {})",
            sizes.join(", ")
        ),
        values: values.map(|(block, m)| mean(block, m)).collect(),
    };
    let heat = Heat {
        rows: blocks,
        columns: components,
        shape: [clients.len(), components],
        names: [Vec::new(), (1..=components).map(|m| m.to_string()).collect()],
        maps: vec![map],
    };
    Some(Section { title: "Personal models".into(), exhibits: vec![Exhibit::Heat(heat)] })
}
