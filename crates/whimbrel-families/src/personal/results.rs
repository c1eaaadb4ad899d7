//! What a run's files say about personal models: the Bayes rule of generated data, what the clients'
//! predictions are worth, and their mixture weights.

use super::PersonalFit;
use super::model::LOGISTIC;
use super::plan::{rate, solver};
use crate::failure::Result;
use crate::family::{Ended, Results};
use crate::files::read_artifact;
use crate::job::Job;
use crate::load::Loaded;
use crate::predictions::{Kept, Stated, measures, read_clients};
use serde_json::Map;
use std::any::Any;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use whimbrel_core::declare::{Exhibit, Heat, HeatMap, Section};
use whimbrel_core::method::Artifact;
use whimbrel_core::{Key, Samples};
use whimbrel_data::LogisticTruth;
use whimbrel_engine::metrics::number;
use whimbrel_methods::personal::{
    Adaptation, CLUSTER, Clustered, FedMix, LocalRule, Own, PARAMETERS, Shape, Work,
};
use whimbrel_nn::Learner;

/// Maximum rows of a heat map.
const BLOCKS_MAX: usize = 200;

/// What is kept of the data.
pub(super) struct Remembered {
    /// Test rows and the truth behind drawn numbers.
    pub kept: Kept,
    /// The share of test rows that the Bayes rule predicts: over clients that train, and over others.
    bayes: [Option<f64>; 2],
    /// The law behind a drawn mixture.
    law: Option<LogisticTruth>,
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
    let law = loaded.truth.as_ref().map(|truth| truth.law.clone());
    Some(Box::new(Remembered { kept: Kept::of(loaded)?, bayes: [mean(false), mean(true)], law }))
}

pub(super) fn results(asked: &PersonalFit, ended: &Ended<'_>) -> Result<Results> {
    let (mut summary, mut sections) = (Map::new(), Vec::new());
    let notes = unsplit(asked, ended.folder)?.into_iter().collect();
    let remembered = ended.data.remembered.as_ref();
    let Some(Remembered { kept, bayes, law }) = remembered.and_then(|kept| kept.downcast_ref())
    else {
        return Ok(Results { notes, ..Results::default() });
    };
    let clients = read_clients(ended.folder, &kept.names);
    let fedmix = asked.setting::<FedMix>();
    if let Some(fedmix) = fedmix {
        sections.extend(weights_section(&clients, fedmix.components));
    }
    let names = ["bayes_accuracy", "bayes_accuracy_unseen"];
    for (name, accuracy) in names.into_iter().zip(bayes) {
        summary.extend(accuracy.map(|accuracy| (name.to_owned(), number(accuracy))));
    }
    let predictors = Predictors::read(asked, ended.folder, kept, clients)?;
    if let Some(predictors) = predictors {
        let predict = |name: &str, rows: &Samples| predictors.stated(name, rows);
        summary.extend(kept.prediction_errors(&|name, rows| match kept.unseen.get(name) {
            Some(own) => predictors.adapted(asked, ended.job, own, rows),
            None => predictors.stated(name, rows),
        })?);
        if let (Some(fedmix), Some(law)) = (fedmix, law)
            && fedmix.components == law.components.len()
            && predictors.learner.name() == LOGISTIC
        {
            let names = ["component_distance", "weights_distance"];
            let found = predictors.distances(law, &kept.names);
            summary.extend(names.map(str::to_owned).into_iter().zip(found.map(number)));
        }
        let (figures, exhibits) = kept.calibration(asked.outside.as_deref(), &predict)?;
        summary.extend(figures);
        if !exhibits.is_empty() {
            sections.push(Section { title: "Uncertainty".into(), exhibits });
        }
    }
    Ok(Results { summary, measures: measures(), notes, sections, ..Results::default() })
}

/// What is said of clusters that were never split.
fn unsplit(asked: &PersonalFit, folder: &Path) -> Result<Option<String>> {
    let Some(split) = asked.setting::<Clustered>() else { return Ok(None) };
    let model = folder.join("model/model.safetensors");
    if !model.is_file() {
        return Ok(None);
    }
    let artifact = read_artifact(&model)?;
    let clusters = artifact.tensor(CLUSTER).into_iter().flat_map(|tensor| &tensor.values);
    Ok(clusters.fold(0.0, |most: f64, c| c.max(most)).eq(&0.0).then(|| {
        format!(
            "no cluster was split, so that everyone has one model, that of fedavg: `split` asks for a mean \
             update shorter than {} while a client's is longer than {}, norms that depend on \
             the model, the step and the length of local training",
            split.stationary, split.apart
        )
    }))
}

/// The clients' predictors, as a finished run left them.
struct Predictors {
    learner: Arc<dyn Learner>,
    rule: Arc<dyn LocalRule>,
    shared: Vec<f32>,
    clients: BTreeMap<String, Artifact>,
}

impl Predictors {
    /// None where they are made from training rows, which are no longer here.
    fn read(
        asked: &PersonalFit,
        folder: &Path,
        kept: &Kept,
        clients: BTreeMap<String, Artifact>,
    ) -> Result<Option<Self>> {
        let learner = asked.model.learner(&kept.shape, kept.classes)?;
        let rule = asked.rule.local.clone();
        let artifact = read_artifact(&folder.join("model/model.safetensors"))?;
        let Some(shared) = parameters(&artifact) else { return Ok(None) };
        let found = Self { learner, shared: shared.to_vec(), clients, rule };
        Ok((found.rule.adaptation() != Adaptation::FineTuning).then_some(found))
    }

    fn stated(&self, name: &str, rows: &Samples) -> Option<Stated> {
        let artifact = self.clients.get(name);
        let own = artifact.map(Own::from_artifact).unwrap_or_default();
        if own.is_empty() && !self.rule.adaptation().shared_predicts() {
            return None;
        }
        // Without a server every client has its own copy of what is shared.
        self.stated_by(artifact.and_then(parameters).unwrap_or(&self.shared), &own, rows)
    }

    /// The same of a client that took no part in training and has these rows.
    fn adapted(
        &self,
        asked: &PersonalFit,
        job: &Job,
        data: &Samples,
        rows: &Samples,
    ) -> Option<Stated> {
        let own = match self.rule.adaptation() {
            Adaptation::Impossible => return None,
            Adaptation::Never => Own::default(),
            _ => {
                let (solver, key) = (solver(asked, job), Key::root(job.seed));
                let mut work = Work::new(&*self.learner, &solver, data, rate(job), key);
                self.rule.adapt(&mut work, &self.shared).ok()?
            }
        };
        self.stated_by(&self.shared, &own, rows)
    }

    fn stated_by(&self, shared: &[f32], own: &Own, rows: &Samples) -> Option<Stated> {
        let mixture = self.rule.personal(&Shape::new(&*self.learner), shared, own).ok()?;
        Some(Stated { mean: mixture.predict(&*self.learner, rows), deviations: Vec::new() })
    }

    /// The largest cosine distance of a component, and the clients' mean of that of their weights, to the
    /// law behind drawn data. Components are matched in the order of their distances.
    fn distances(&self, law: &LogisticTruth, names: &[String]) -> [f64; 2] {
        let learned: Vec<Vec<f64>> = self
            .shared
            .chunks_exact(Shape::new(&*self.learner).len)
            .map(|w| w.iter().map(|x| f64::from(*x)).collect())
            .collect();
        let mut pairs: Vec<(f64, usize, usize)> = law
            .components
            .iter()
            .enumerate()
            .flat_map(|(m, truth)| {
                // Without the intercept, which drawn data do not have.
                learned
                    .iter()
                    .enumerate()
                    .map(move |(n, w)| (cosine_distance(truth, &w[..truth.len()]), m, n))
            })
            .collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut component_of, mut farthest) = (vec![None; law.components.len()], 0.0);
        for (distance, m, n) in pairs {
            if component_of[m].is_none() && !component_of.contains(&Some(n)) {
                component_of[m] = Some(n);
                farthest = distance;
            }
        }
        let of_client = |(name, truth): (&String, &Vec<f64>)| {
            let own = Own::from_artifact(self.clients.get(name)?).weights;
            let matched: Option<Vec<f64>> =
                component_of.iter().map(|n| n.and_then(|n| own.get(n).copied())).collect();
            Some(cosine_distance(truth, &matched?))
        };
        let each: Vec<f64> = names.iter().zip(&law.weights).filter_map(of_client).collect();
        [farthest, each.iter().sum::<f64>() / each.len().max(1) as f64]
    }
}

/// One less the cosine of the angle between two vectors.
fn cosine_distance(a: &[f64], b: &[f64]) -> f64 {
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    1.0 - product(a, b) / (product(a, a) * product(b, b)).sqrt()
}

/// What is shared, in a model's file.
fn parameters(artifact: &Artifact) -> Option<&[f32]> {
    artifact.narrow.iter().find(|tensor| tensor.name == PARAMETERS).map(|t| &t.values[..])
}

/// The clients' mixture weights, those of one cluster together.
fn weights_section(clients: &BTreeMap<String, Artifact>, components: usize) -> Option<Section> {
    let mut clients: Vec<Vec<f64>> = clients
        .values()
        .map(|artifact| Own::from_artifact(artifact).weights)
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
