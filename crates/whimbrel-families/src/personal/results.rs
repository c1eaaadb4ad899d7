//! Results of personal models: calibration, mixture weights, and distances to the true model of
//! generated data.

use super::PersonalFit;
use super::model::LOGISTIC;
use super::plan::{rate, solver};
use crate::failure::Result;
use crate::family::{Ended, FitReport, Results, RunData};
use crate::files::figure;
use crate::job::Job;
use crate::predictions::{Stated, TestRows, measures};
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_core::declare::{Exhibit, Heat, Section};
use whimbrel_core::method::{Artifact, MetricValue};
use whimbrel_core::{Key, Samples};
use whimbrel_data::LogisticTruth;
use whimbrel_engine::Outcome;
use whimbrel_engine::metrics::{Figure, number};
use whimbrel_methods::personal::{
    Adaptation, CLUSTER, Clustered, FedMix, LocalRule, Own, PARAMETERS, Shape, Work,
};
use whimbrel_models::calibration::entropy;
use whimbrel_nn::Learner;

impl FitReport for PersonalFit {
    fn model_keys(&self, data: &RunData, _: &Artifact) -> Map<String, Value> {
        self.model.keys(data)
    }

    fn results(&self, ended: &Ended<'_>) -> Result<Results> {
        let (mut summary, mut sections) = (Map::new(), Vec::new());
        summary.extend(answer(ended.outcome).map(|text| ("answer".into(), text.into())));
        let notes = unsplit(self, ended).into_iter().collect();
        let Some(tests) = &ended.data.tests else {
            return Ok(Results { summary, notes, ..Results::default() });
        };
        sections.extend(over_clients(ended));
        let clients = ended.artifacts(&tests.names);
        let fedmix = self.setting::<FedMix>();
        if let Some(map) = fedmix.and_then(|fedmix| weights(&clients, fedmix.components)) {
            match sections.first_mut() {
                Some(section) => section.exhibits.push(map),
                None => sections.push(Section { title: TITLE.into(), exhibits: vec![map] }),
            }
        }
        let names = ["bayes_accuracy", "bayes_accuracy_unseen"];
        for (name, accuracy) in names.into_iter().zip(tests.bayes) {
            summary.extend(accuracy.map(|accuracy| (name.to_owned(), number(accuracy))));
        }
        if let Some(predictors) = Predictors::read(self, ended, tests, clients)? {
            let predict = |name: &str, rows: &Samples| predictors.stated(name, rows);
            summary.extend(tests.prediction_errors(
                &|name, rows| match tests.unseen.get(name) {
                    Some(own) => predictors.stated_by(
                        &predictors.shared,
                        &predictors.adapted(self, ended.job, own)?,
                        rows,
                    ),
                    None => predictors.stated(name, rows),
                },
            )?);
            if fedmix.is_some_and(|fedmix| fedmix.components > 1) {
                let old = predictors.clients.values().map(Own::from_artifact);
                let new = tests.unseen.values();
                let new = new.filter_map(|own| predictors.adapted(self, ended.job, own));
                let names = ["weights_entropy", "unseen_weights_entropy"];
                let found = [mean_entropy(old), mean_entropy(new)];
                let known = names.into_iter().zip(found).filter_map(|(name, h)| Some((name, h?)));
                summary.extend(known.map(|(name, h)| (name.to_owned(), number(h))));
            }
            if let (Some(fedmix), Some(law)) = (fedmix, &tests.law)
                && fedmix.components == law.components.len()
                && predictors.learner.name() == LOGISTIC
            {
                let names = ["component_distance", "weights_distance"];
                let found = predictors.distances(law, &tests.names);
                summary.extend(names.map(str::to_owned).into_iter().zip(found.map(number)));
            }
            let (figures, exhibits) = tests.calibration(self.outside.as_deref(), &predict)?;
            summary.extend(figures);
            if !exhibits.is_empty() {
                sections.push(Section { title: "Uncertainty".into(), exhibits });
            }
        }
        Ok(Results { summary, measures: measures(), notes, sections, ..Results::default() })
    }
}

/// The title of the section.
const TITLE: &str = "Personal models";

/// The quality of the clients' predictions in a sentence; `None` without test rows.
fn answer(outcome: &Outcome) -> Option<String> {
    let last = |key: &str| outcome.last.as_ref().and_then(|row| row.number(key));
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let Some(right) = last("test_accuracy") else {
        let mut text =
            format!("Mean loss {} on the clients' test rows", figure(last("test_loss")?, 4));
        if let Some(unseen) = last("unseen_loss") {
            text += &format!(", {} on those of clients that took no part", figure(unseen, 4));
        }
        return Some(text);
    };
    let mut text = format!("{} of the clients' test rows are predicted correctly", percent(right));
    if let Some(low) = last("test_accuracy_p10") {
        text += &format!(" (at the bottom decile of clients {})", percent(low));
    }
    if let Some(unseen) = last("unseen_accuracy") {
        text += &format!(", {} of those of clients that took no part", percent(unseen));
    }
    Some(text)
}

/// Histograms of the clients' results on their test rows: of those that trained, and of others.
fn over_clients(ended: &Ended<'_>) -> Option<Section> {
    let outcome = ended.outcome;
    let keys = ["test_accuracy", "test_loss"].into_iter();
    let measures = keys.filter_map(|key| outcome.measures.iter().find(|m| m.key == key));
    let measure = measures.into_iter().next()?;
    let value = |own: &Vec<Figure>| match own.iter().find(|f| f.name == measure.key)?.value {
        MetricValue::Number(value) if value.is_finite() => Some(value),
        _ => None,
    };
    let facts = &ended.data.facts;
    let is_unseen = |id: usize| facts.unseen.get(id).copied().unwrap_or_default();
    let exhibits = [(false, "of the clients"), (true, "of clients that took no part in training")]
        .into_iter()
        .filter_map(|(unseen, of)| {
            let own = outcome.own.iter().enumerate().filter(|(id, _)| is_unseen(*id) == unseen);
            let values: Vec<f64> = own.filter_map(|(_, own)| value(own)).collect();
            (values.len() > 1).then(|| Exhibit::Histogram {
                title: format!("{} {of}", measure.title),
                axis: measure.name.to_string(),
                counted: "clients".into(),
                values,
            })
        });
    let exhibits: Vec<Exhibit> = exhibits.collect();
    (!exhibits.is_empty()).then(|| Section { title: TITLE.into(), exhibits })
}

/// A note on clusters that were never split.
fn unsplit(asked: &PersonalFit, ended: &Ended<'_>) -> Option<String> {
    let (split, model) = (asked.setting::<Clustered>()?, ended.model()?);
    let clusters = model.tensor(CLUSTER).into_iter().flat_map(|tensor| &tensor.values);
    clusters.fold(0.0, |most: f64, c| c.max(most)).eq(&0.0).then(|| {
        format!(
            "no cluster was split: all clients share the model of fedavg. A split needs a mean update \
             shorter than {} and a client's update longer than {}; these norms depend on the model, \
             the step and the length of local training",
            split.stationary, split.apart
        )
    })
}

/// The clients' predictors of a finished run.
struct Predictors {
    learner: Arc<dyn Learner>,
    rule: Arc<dyn LocalRule>,
    shared: Vec<f32>,
    clients: BTreeMap<String, Artifact>,
}

impl Predictors {
    /// `None` if predictors are fine-tuned on training rows, which are gone.
    fn read(
        asked: &PersonalFit,
        ended: &Ended<'_>,
        tests: &TestRows,
        clients: BTreeMap<String, Artifact>,
    ) -> Result<Option<Self>> {
        let learner = asked.model.learner(&tests.shape, tests.classes)?;
        let rule = asked.rule.local.clone();
        let Some(shared) = ended.model().and_then(parameters) else { return Ok(None) };
        let found = Self { learner, shared: shared.to_vec(), clients, rule };
        Ok((found.rule.adaptation() != Adaptation::FineTuning).then_some(found))
    }

    fn stated(&self, name: &str, rows: &Samples) -> Option<Stated> {
        let artifact = self.clients.get(name);
        let own = artifact.map(Own::from_artifact).unwrap_or_default();
        if own.is_empty() && !self.rule.adaptation().shared_predicts() {
            return None;
        }
        // Without a server every client has its own copy of the shared parameters.
        self.stated_by(artifact.and_then(parameters).unwrap_or(&self.shared), &own, rows)
    }

    /// The personal part of a client that did not train, adapted to its rows.
    fn adapted(&self, asked: &PersonalFit, job: &Job, data: &Samples) -> Option<Own> {
        match self.rule.adaptation() {
            Adaptation::Impossible => None,
            Adaptation::Never => Some(Own::default()),
            _ => {
                let (solver, key) = (solver(asked, job), Key::root(job.seed));
                let mut work = Work::new(&*self.learner, &solver, data, rate(job), key);
                self.rule.adapt(&mut work, &self.shared).ok()
            }
        }
    }

    fn stated_by(&self, shared: &[f32], own: &Own, rows: &Samples) -> Option<Stated> {
        let mixture = self.rule.personal(&Shape::new(&*self.learner), shared, own).ok()?;
        Some(Stated { mean: mixture.predict(&*self.learner, rows), deviations: Vec::new() })
    }

    /// Cosine distances to the true mixture: the largest of a component, and the mean of the clients'
    /// weights. Components are matched greedily by distance.
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
                // Generated data have no intercept.
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

/// The mean entropy of clients' mixture weights, in nats; `None` without clients.
fn mean_entropy(clients: impl Iterator<Item = Own>) -> Option<f64> {
    let each: Vec<f64> = clients.map(|own| entropy(&own.weights)).collect();
    (!each.is_empty()).then(|| each.iter().sum::<f64>() / each.len() as f64)
}

/// One minus the cosine of the angle between two vectors.
fn cosine_distance(a: &[f64], b: &[f64]) -> f64 {
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    1.0 - product(a, b) / (product(a, a) * product(b, b)).sqrt()
}

/// The shared parameters in a model's file.
fn parameters(artifact: &Artifact) -> Option<&[f32]> {
    artifact.narrow.iter().find(|tensor| tensor.name == PARAMETERS).map(|t| &t.values[..])
}

/// The clients' mixture weights, grouped by their largest component.
fn weights(clients: &BTreeMap<String, Artifact>, components: usize) -> Option<Exhibit> {
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
    let text = [
        "Mixture weights".into(),
        format!(
            "Clients by components; clients are grouped by their largest weight (clusters of {})",
            sizes.join(", ")
        ),
    ];
    let clients: Vec<Option<Vec<f64>>> = clients.into_iter().map(Some).collect();
    Some(Exhibit::Heat(Heat::of_components(text, &[], components, &clients)))
}
