//! What a run's files say about personal models: the Bayes rule of generated data, and the clients'
//! mixture weights.

use super::PersonalFit;
use super::keys::Rule;
use crate::failure::Result;
use crate::family::{Ended, Results};
use crate::files::read_artifact;
use crate::load::Loaded;
use serde_json::Map;
use std::any::Any;
use std::cmp::Ordering;
use std::path::Path;
use whimbrel_core::declare::{Exhibit, Heat, HeatMap, Section};
use whimbrel_engine::metrics::number;
use whimbrel_methods::personal::Own;

/// A heat map has at most so many rows.
const BLOCKS_MAX: usize = 200;

/// What is kept of the data.
pub(super) struct Kept {
    /// The lengths of an input.
    pub shape: Vec<usize>,
    /// The share of test rows that the Bayes rule predicts: over clients that train, and over others.
    bayes: [Option<f64>; 2],
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
    Some(Box::new(Kept { shape, bayes: [mean(false), mean(true)] }))
}

pub(super) fn results(asked: &PersonalFit, ended: &Ended<'_>) -> Result<Results> {
    let mut summary = Map::new();
    let kept = ended.data.remembered.as_ref().and_then(|kept| kept.downcast_ref::<Kept>());
    if let Some(kept) = kept {
        let names = ["bayes_accuracy", "bayes_accuracy_unseen"];
        for (name, accuracy) in names.into_iter().zip(kept.bayes) {
            summary.extend(accuracy.map(|accuracy| (name.to_owned(), number(accuracy))));
        }
    }
    let sections = match &asked.rule {
        Rule::FedMix(fedmix) => weights_section(ended.folder, fedmix.components),
        _ => None,
    };
    Ok(Results { summary, sections: sections.into_iter().collect(), ..Results::default() })
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
        maps: vec![map],
    };
    Some(Section { title: "Personal models".into(), exhibits: vec![Exhibit::Heat(heat)] })
}
