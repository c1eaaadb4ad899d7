//! What a run's files say about posteriors: what their intervals and probabilities are worth, how chains
//! have mixed, and how far predictors are from the truth of drawn data.

use super::SoulFit;
use super::plan::{noise, soul};
use crate::failure::Result;
use crate::family::{Ended, Results, counted};
use crate::files::read_artifact;
use crate::predictions::{Kept, Stated, measures, read_clients};
use crate::uncertainty;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use whimbrel_core::declare::{Exhibit, Section};
use whimbrel_core::method::Artifact;
use whimbrel_core::{Inputs, Key, Samples, Targets};
use whimbrel_data::RepresentationTruth;
use whimbrel_engine::metrics::number;
use whimbrel_methods::bayes::{Own, Predictive, Soul};
use whimbrel_models::sampler::{Kernel, effective_sample_size, split_r_hat};

/// New inputs for each client, by which the coverage of intervals is judged.
const NEW_INPUTS: usize = 500;
/// Coordinates of a chain that are looked at, and clients whose traces are shown.
const COORDINATES_MAX: usize = 50;
const TRACES: usize = 3;
/// The R-hat above which chains have not mixed.
const MIXED: f64 = 1.2;
/// Draws of them.
const COVERAGE: u64 = 0xC0FE;

pub(super) fn results(asked: &SoulFit, ended: &Ended<'_>) -> Result<Results> {
    let kept = ended.data.remembered.as_ref().and_then(|kept| kept.downcast_ref::<Kept>());
    let Some(kept) = kept else { return Ok(Results::default()) };
    let learner = asked.model.learner(&kept.shape, kept.classes)?;
    let noise = noise(asked, kept.noise());
    let soul = soul(asked, ended.job, learner, noise, 1.0)?;
    let tensors = read_artifact(&ended.folder.join("model/model.safetensors"))?;
    let Some(theta) = soul.theta_of(&tensors) else { return Ok(Results::default()) };
    let clients = read_clients(ended.folder, &kept.names);
    let mut found = Found { soul, theta, clients, summary: Map::new(), warnings: Vec::new() };
    if let Some(truth) = &kept.truth {
        found.put("subspace_error", subspace_error(found.shared(), truth));
        let errors = kept.prediction_errors(&|name, rows| match kept.unseen.get(name) {
            Some(own) => found.stated_by(found.adapted(own)?, rows),
            None => found.stated(name, rows),
        })?;
        found.summary.extend(errors);
        found.cover(&kept.names, truth)?;
    }
    let outside = asked.settings.outside.as_deref();
    let (figures, mut exhibits) =
        kept.calibration(outside, &|name, rows| found.stated(name, rows))?;
    found.summary.extend(figures);
    exhibits.extend(found.chains(&kept.names));
    let sections = match exhibits.is_empty() {
        true => Vec::new(),
        false => vec![Section { title: "Uncertainty".into(), exhibits }],
    };
    let Found { summary, warnings, .. } = found;
    Ok(Results { summary, measures: measures(), warnings, sections, ..Results::default() })
}

/// A finished run: the method, its parameters, and what clients keep, by name.
struct Found {
    soul: Soul,
    theta: Vec<f32>,
    clients: BTreeMap<String, Artifact>,
    summary: Map<String, Value>,
    warnings: Vec<String>,
}

impl Found {
    fn shared(&self) -> &[f32] {
        &self.theta[..self.soul.model.shared()]
    }

    fn put(&mut self, name: &str, value: f64) {
        self.summary.insert(name.to_owned(), number(value));
    }

    /// A client's predictions, where it left samples.
    fn predictive(&self, name: &str) -> Option<Predictive> {
        let samples = self.soul.samples_of(self.clients.get(name)?);
        (!samples.is_empty()).then(|| self.soul.predictive_of(&self.theta, samples))
    }

    /// The predictions of a client that took no part in training, from its rows.
    fn adapted(&self, rows: &Samples) -> Option<Predictive> {
        self.soul.predictive(&self.theta, &Own::default(), rows).ok()
    }

    /// The same as the shared figures take them.
    fn stated(&self, name: &str, rows: &Samples) -> Option<Stated> {
        self.stated_by(self.predictive(name)?, rows)
    }

    fn stated_by(&self, own: Predictive, rows: &Samples) -> Option<Stated> {
        let spread = own.spread(&self.soul.model, rows);
        let square = own.noise * own.noise;
        let deviations = match self.soul.model.learner.classifies() {
            true => Vec::new(),
            false => spread.total.iter().map(|variance| (variance + square).sqrt()).collect(),
        };
        Some(Stated { mean: spread.mean, deviations })
    }

    /// How well chains have mixed, some of their traces, and the clients' means over the prior.
    fn chains(&mut self, names: &[String]) -> Vec<Exhibit> {
        let d = self.soul.model.personal();
        let (_, beta) = self.theta.split_at(self.soul.model.shared());
        let beta: Vec<f64> = beta.iter().map(|b| f64::from(*b)).collect();
        let Ok(prior) = self.soul.prior.at(&beta) else { return Vec::new() };
        let (mut sizes, mut ratios) = (Vec::new(), Vec::new());
        let (mut means, mut traces) = (Vec::new(), Vec::new());
        for name in names {
            let Some(artifact) = self.clients.get(name) else { continue };
            let samples = self.soul.samples_of(artifact);
            let per_chain = samples.len() / self.soul.chains.count.max(1) as usize;
            if per_chain < 4 {
                continue;
            }
            let of = |at: usize| -> Vec<Vec<f64>> {
                let chain = |all: &[Vec<f32>]| all.iter().map(|z| f64::from(z[at])).collect();
                samples.chunks_exact(per_chain).map(chain).collect()
            };
            // Few coordinates stand for all of a long vector.
            let looked_at = (0..d).step_by(d.div_ceil(COORDINATES_MAX));
            let found: Vec<(f64, f64)> = looked_at
                .map(|at| (effective_sample_size(&of(at)), split_r_hat(&of(at))))
                .collect();
            sizes.push(found.iter().fold(f64::INFINITY, |least, (size, _)| size.min(least)));
            // Of fewer than eight draws it does not exist.
            ratios.push(found.iter().fold(f64::NAN, |most, (_, ratio)| ratio.max(most)));
            let mean = |at: usize| {
                samples.iter().map(|z| f64::from(z[at])).sum::<f64>() / samples.len() as f64
            };
            means.push((0..d).map(mean).collect::<Vec<f64>>());
            if traces.len() < TRACES {
                let values = of(0).remove(0);
                let points = values.iter().enumerate().map(|(i, z)| [i as f64 + 1.0, *z]);
                let points: Vec<[f64; 2]> = points.collect();
                traces.extend(uncertainty::trace(name, 0, &points, prior.mean()[0]));
            }
        }
        if sizes.is_empty() {
            return Vec::new();
        }
        sizes.sort_by(f64::total_cmp);
        ratios.sort_by(f64::total_cmp);
        let (median, most) = (ratios[ratios.len() / 2], ratios[ratios.len() - 1]);
        self.put("ess_median", sizes[sizes.len() / 2]);
        self.put("r_hat_median", median);
        self.put("r_hat_max", most);
        let text = format!(
            "Of each client's slowest coordinate: effective samples {:.0} in the median (least {:.0}), \
             R-hat {} in the median (largest {}).",
            sizes[sizes.len() / 2],
            sizes[0],
            shown(median),
            shown(most)
        );
        if median > MIXED {
            let warning = self.unmixed(&ratios, median);
            self.warnings.push(warning);
        }
        let mut exhibits = vec![Exhibit::Text { text }];
        exhibits.extend(uncertainty::prior_and_means(&prior, &means));
        exhibits.extend(traces);
        exhibits
    }
}

impl Found {
    /// What is said of chains with these R-hats.
    fn unmixed(&self, ratios: &[f64], median: f64) -> String {
        let apart = ratios.iter().filter(|ratio| **ratio > MIXED).count();
        let clients = counted(ratios.len(), "client");
        let still = ratios.iter().filter(|ratio| ratio.is_infinite()).count();
        let (still, gamma) = match still {
            0 => (String::new(), ""),
            n => (format!(", the chains of {} did not move", counted(n, "client")), " or `gamma`"),
        };
        let kernel = match self.soul.chains.kernel {
            Some(Kernel::Underdamped { .. }) => "",
            _ => " `kernel = \"underdamped\"`,",
        };
        format!(
            "chains have not mixed: R-hat is {} in the median, and above {MIXED} for {apart} of {clients}{still}; \
             take more `steps`,{kernel} or a smaller `prior_scale`{gamma}",
            shown(median)
        )
    }
}

/// R-hat in words.
fn shown(ratio: f64) -> String {
    match ratio {
        ratio if ratio.is_nan() => "unknown".into(),
        ratio if ratio.is_infinite() => "infinite".into(),
        ratio => format!("{ratio:.3}"),
    }
}

/// The part of the true representation that lies outside the span of the fitted one: the Frobenius norm
/// of what a projection leaves.
fn subspace_error(body: &[f32], truth: &RepresentationTruth) -> f64 {
    let raw = truth.predictors.first().map_or(1, Vec::len);
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for row in body.chunks_exact(raw) {
        let row = row.iter().map(|x| f64::from(*x)).collect();
        let (rest, length) = outside(row, &basis);
        if length > 0.0 {
            basis.push(rest.iter().map(|x| x / length).collect());
        }
    }
    let rows = truth.representation.chunks_exact(raw);
    rows.map(|row| outside(row.to_vec(), &basis).1.powi(2)).sum::<f64>().sqrt()
}

/// What is left of a vector once its part in the span of an orthonormal basis is taken out, and its
/// length.
fn outside(mut x: Vec<f64>, basis: &[Vec<f64>]) -> (Vec<f64>, f64) {
    use whimbrel_core::vector::{axpy, dot, norm2_squared};
    for _ in 0..2 {
        for b in basis {
            let along = dot(&x, b);
            axpy(&mut x, -along, b);
        }
    }
    let length = norm2_squared(&x).sqrt();
    (x, length)
}

impl Found {
    /// The coverage of 90 % intervals for new targets and for their noise-free values.
    fn cover(&mut self, names: &[String], truth: &RepresentationTruth) -> Result<()> {
        let raw = truth.predictors.first().map_or(1, Vec::len);
        let (mut heard, mut inside) = (0.0, [0u64; 2]);
        for (id, (name, predictor)) in names.iter().zip(&truth.predictors).enumerate() {
            let Some(own) = self.predictive(name) else { continue };
            heard += 1.0;
            let mut stream = Key::root(COVERAGE).child(id as u64).stream();
            let x: Vec<f32> = (0..NEW_INPUTS * raw).map(|_| stream.normal() as f32).collect();
            let none = Targets::Values(vec![0.0; NEW_INPUTS]);
            let rows = Samples::new(vec![raw], Inputs::Real(x.clone()), none)?;
            let spread = own.spread(&self.soul.model, &rows);
            for ((x, m), v) in x.chunks_exact(raw).zip(&spread.mean).zip(&spread.total) {
                let value: f64 = x.iter().zip(predictor).map(|(x, w)| f64::from(*x) * w).sum();
                let target = value + truth.noise * stream.normal();
                let [wide, narrow] = own.half_widths(*v);
                let mean = f64::from(*m);
                inside[0] += u64::from((target - mean).abs() <= wide);
                inside[1] += u64::from((value - mean).abs() <= narrow);
            }
        }
        if heard == 0.0 {
            return Ok(());
        }
        let share = |count: u64| count as f64 / (heard * NEW_INPUTS as f64);
        self.put("coverage_90", share(inside[0]));
        self.put("coverage_90_mean", share(inside[1]));
        Ok(())
    }
}
