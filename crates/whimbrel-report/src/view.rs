//! What a caller fills in: the content of a run's directory as plain values.

use crate::imputation::ImputationView;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One run, as a report shows it. Every field may be empty: what is missing is not drawn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunView {
    /// The job's name; runs that share name, method and model and differ in `seed` are drawn as one
    /// line (mean) with a band (standard deviation), on a log axis of log10.
    pub name: String,
    /// The method's kind, such as `fedem`.
    pub method: String,
    /// The model, in words, such as `gmm, 3 components, tied`.
    pub model: String,
    /// The seed of the run.
    pub seed: u64,
    /// The version of the program that made the run.
    pub version: String,
    /// The instruction-set level the run was computed with.
    pub isa: String,
    /// The hash of the data.
    pub data_hash: String,
    /// The lines of `metrics.jsonl`, in order.
    pub rows: Vec<Map<String, Value>>,
    /// The clients, in order of id.
    pub clients: Vec<ClientView>,
    /// The fitted mixture and some of the points, when the data have two columns.
    pub mixture: Option<MixtureView>,
    /// The completed table, where the run imputed one.
    pub imputation: Option<ImputationView>,
    /// The content of `summary.json`.
    pub summary: Map<String, Value>,
    /// The resolved job.
    pub job_toml: String,
    /// The command that runs it again.
    pub command: String,
    /// The objective that the gap is measured from, such as that of pooled EM.
    pub reference_objective: Option<f64>,
    /// What a reader should know, such as which row of a paper's table the run realises or that it
    /// ended early; shown quietly above the figures.
    pub notes: Vec<String>,
    /// Why the run stopped before its end, if it did.
    pub error: Option<String>,
}

/// One client of a run: a line of `clients.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientView {
    /// The client's name.
    pub name: String,
    /// Rows it holds.
    pub rows: u64,
    /// Rounds it took part in.
    pub rounds: u64,
    /// Bits it sent.
    pub bits_up: u64,
    /// Bits it received.
    pub bits_down: u64,
    /// The objective or loss on its own rows, where it was evaluated.
    pub loss: Option<f64>,
}

/// A fitted mixture in two dimensions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MixtureView {
    /// The names of the two columns.
    pub columns: [String; 2],
    /// Points to show behind the mixture (a subsample; at most 2,000 are drawn).
    pub points: Vec<[f64; 2]>,
    /// One weight per component.
    pub weights: Vec<f64>,
    /// One mean per component.
    pub means: Vec<[f64; 2]>,
    /// One covariance per component (a tied covariance is repeated).
    pub covariances: Vec<[[f64; 2]; 2]>,
}

impl RunView {
    /// The last finite value of `key` in the metrics.
    pub fn last(&self, key: &str) -> Option<f64> {
        self.rows.iter().rev().find_map(|row| number(row, key))
    }

    /// The value of `key` in the summary (the mean where it is over seeds), else in the metrics.
    pub fn result(&self, key: &str) -> Option<f64> {
        let mean = || self.summary.get(key)?.get("mean")?.as_f64();
        number(&self.summary, key).or_else(mean).or_else(|| self.last(key))
    }

    /// How far the objective ended from the reference.
    pub fn gap(&self) -> Option<f64> {
        let (objective, reference) = (self.result("objective")?, self.reference_objective?);
        // Equal to rounding is equal.
        let gap = objective - reference;
        Some(if gap.abs() <= 4.0 * f64::EPSILON * reference.abs() { 0.0 } else { gap })
    }
}

impl MixtureView {
    /// The components in the order in which they are shown: by the first, then the second
    /// coordinate of their means, so that runs which number them differently can be compared. As
    /// they are, where a component lacks a weight, a mean or a covariance.
    pub(crate) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.means.len()).collect();
        if self.weights.len() == order.len() && self.covariances.len() == order.len() {
            order.sort_by(|&a, &b| {
                let ([x, y], [u, v]) = (self.means[a], self.means[b]);
                x.total_cmp(&u).then(y.total_cmp(&v))
            });
        }
        order
    }

    /// The same mixture with its components in another order.
    pub(crate) fn reordered(&self, order: &[usize]) -> Self {
        if order.is_sorted() {
            return self.clone();
        }
        Self {
            weights: order.iter().map(|&place| self.weights[place]).collect(),
            means: order.iter().map(|&place| self.means[place]).collect(),
            covariances: order.iter().map(|&place| self.covariances[place]).collect(),
            ..self.clone()
        }
    }
}

/// A finite number under `key`.
pub(crate) fn number(row: &Map<String, Value>, key: &str) -> Option<f64> {
    row.get(key)?.as_f64().filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_ordered_by_their_means() {
        let covariance = |variance: f64| [[variance, 0.0], [0.0, 1.0]];
        let mixture = MixtureView {
            weights: vec![0.5, 0.2, 0.3],
            means: vec![[2.0, 0.0], [-1.0, 7.0], [-1.0, 4.0]],
            covariances: vec![covariance(5.0), covariance(2.0), covariance(3.0)],
            ..MixtureView::default()
        };
        let order = mixture.order();
        assert_eq!(order, [2, 1, 0]);
        let shown = mixture.reordered(&order);
        assert_eq!(shown.weights, [0.3, 0.2, 0.5]);
        assert_eq!(shown.means, [[-1.0, 4.0], [-1.0, 7.0], [2.0, 0.0]]);
        assert_eq!(shown.covariances[2], covariance(5.0));
        let partial = MixtureView { weights: vec![1.0], ..mixture };
        assert_eq!(partial.order(), [0, 1, 2]);
    }
}
