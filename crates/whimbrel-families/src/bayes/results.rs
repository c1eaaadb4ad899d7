//! What a run's files say about posteriors: how far predictors are from the truth of drawn data.

use super::SoulFit;
use super::plan::{noise, soul};
use crate::failure::Result;
use crate::family::{Ended, Results};
use crate::files::read_artifact;
use crate::load::Loaded;
use serde_json::Map;
use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Inputs, Key, Samples, Targets};
use whimbrel_data::RepresentationTruth;
use whimbrel_engine::metrics::number;
use whimbrel_methods::bayes::Soul;

/// New inputs for each client, by which the coverage of intervals is judged.
const NEW_INPUTS: usize = 500;
/// Draws of them.
const COVERAGE: u64 = 0xC0FE;

/// What is kept of the data.
pub(super) struct Kept {
    /// The lengths of an input.
    pub shape: Vec<usize>,
    /// The truth behind drawn data, and which client is which.
    truth: Option<(RepresentationTruth, Vec<String>)>,
}

impl Kept {
    /// The noise of drawn data.
    pub fn noise(&self) -> Option<f64> {
        self.truth.as_ref().map(|(truth, _)| truth.noise)
    }
}

pub(super) fn remember(loaded: &Loaded) -> Option<Box<dyn Any + Send + Sync>> {
    let shape = loaded.shape()?.to_vec();
    let names = || loaded.clients.iter().map(|(name, _)| name.clone()).collect();
    let truth = loaded.representation.clone().map(|truth| (truth, names()));
    Some(Box::new(Kept { shape, truth }))
}

pub(super) fn results(asked: &SoulFit, ended: &Ended<'_>) -> Result<Results> {
    let mut summary = Map::new();
    let kept = ended.data.remembered.as_ref().and_then(|kept| kept.downcast_ref::<Kept>());
    if let Some(Kept { shape, truth: Some((truth, names)) }) = kept {
        let learner = asked.model.learner(shape, 0)?;
        let noise = noise(asked, Some(truth.noise));
        let soul = soul(asked, ended.job, learner, noise, u32::MAX, 1.0)?;
        let tensors = read_artifact(&ended.folder.join("model/model.safetensors"))?;
        if let Some(theta) = soul.theta_of(&tensors) {
            let body = &theta[..soul.model.shared()];
            summary.insert("subspace_error".into(), number(subspace_error(body, truth)));
            let found = compare(&soul, &theta, &clients(ended.folder), names, truth)?;
            summary.extend(found.into_iter().map(|(name, x)| (name.to_owned(), number(x))));
        }
    }
    Ok(Results { summary, ..Results::default() })
}

/// What clients keep, by name. It is read where a simulation left it; on a network it stays with them.
fn clients(folder: &Path) -> BTreeMap<String, Artifact> {
    let entries = std::fs::read_dir(folder.join("clients")).into_iter().flatten();
    let read = |entry: std::fs::DirEntry| {
        let artifact = read_artifact(&entry.path().join("model.safetensors")).ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), artifact))
    };
    entries.filter_map(|entry| read(entry.ok()?)).collect()
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

/// The mean squared distance of the clients' predictors to the true ones, and the coverage of 90 %
/// intervals for new targets and for their noise-free values.
fn compare(
    soul: &Soul,
    theta: &[f32],
    clients: &BTreeMap<String, Artifact>,
    names: &[String],
    truth: &RepresentationTruth,
) -> Result<Vec<(&'static str, f64)>> {
    let raw = truth.predictors.first().map_or(1, Vec::len);
    let inputs = |values: Vec<f32>| {
        let rows = values.len() / raw;
        Samples::new(vec![raw], Inputs::Real(values), Targets::Values(vec![0.0; rows]))
    };
    // A linear predictor is known by its values at unit vectors.
    let units =
        inputs((0..raw * raw).map(|at| f32::from(u8::from(at % (raw + 1) == 0))).collect())?;
    let (mut heard, mut error, mut inside) = (0.0, 0.0, [0u64; 2]);
    for (id, (name, predictor)) in names.iter().zip(&truth.predictors).enumerate() {
        let Some(artifact) = clients.get(name) else { continue };
        let own = soul.predictive_of(theta, soul.samples_of(artifact));
        let found = own.spread(&soul.model, &units).mean;
        let distance =
            found.iter().zip(predictor).map(|(w, truth)| (f64::from(*w) - truth).powi(2));
        (heard, error) = (heard + 1.0, error + distance.sum::<f64>());
        let mut stream = Key::root(COVERAGE).fold(id as u64).stream();
        let x: Vec<f32> = (0..NEW_INPUTS * raw).map(|_| stream.normal() as f32).collect();
        let rows = inputs(x.clone())?;
        let spread = own.spread(&soul.model, &rows);
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
        return Ok(Vec::new());
    }
    let share = |count: u64| count as f64 / (heard * NEW_INPUTS as f64);
    Ok(vec![
        ("prediction_error", error / heard),
        ("coverage_90", share(inside[0])),
        ("coverage_90_mean", share(inside[1])),
    ])
}
