//! Minima of convex losses, with a cache.

use super::GradientFit;
use super::plan::Weighted;
use crate::job::method::WEIGHT_WORDS;
use crate::load::Loaded;
use crate::plan::{Common, Minima};
use crate::usage::numbers;
use serde_json::{Value, json};
use std::path::Path;
use whimbrel_core::{ClientData, Result};
use whimbrel_data::{Sha256, hash_labelled};
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_methods::sgd::Reference;
use whimbrel_models::convex::{Optimum, solve};

/// Gradient norm at which the solver stops.
const TOLERANCE: f64 = 1e-10;
/// Part of the cache key; changes when the same settings give another minimum.
const VERSION: &str = "optimum-2";

/// The minimum of a loss.
pub(super) struct Minimum {
    pub reference: Reference,
    pub gradient_norm: f64,
    pub cached: bool,
}

/// The minimum of the clients' weighted loss, from the cache or from the solver. Errors of the cache
/// are ignored.
pub(super) fn optimum(
    common: &Common,
    asked: &GradientFit,
    clients: &Weighted,
    loaded: &Loaded,
) -> Result<Minimum> {
    let dimension = clients.clients.first().map_or(0, |(_, data)| data.dimension());
    let name = || format!("{}.json", name(common, asked, loaded));
    let file = match &common.minima {
        Minima::Cached(folder) => Some(folder.join(name())),
        Minima::Solved | Minima::IfNeeded => None,
    };
    if let Some(found) = file.as_deref().and_then(|file| read(file, dimension)) {
        return Ok(found);
    }
    let parts: Vec<_> = clients.clients.iter().map(|(weight, data)| (*weight, data)).collect();
    let Optimum { w, f_star, f_zero, gradient_norm, .. } =
        solve(&clients.problem, &parts, TOLERANCE)?;
    let reference = Reference { w, f_star, f_zero };
    let found = Minimum { reference, gradient_norm, cached: false };
    if let Some(file) = file {
        keep(&file, &found);
    }
    Ok(found)
}

/// The cache key: a hash of everything that determines the minimum.
fn name(common: &Common, asked: &GradientFit, loaded: &Loaded) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(VERSION.as_bytes());
    part(asked.model().as_bytes());
    part(&asked.regression.ridge.to_bits().to_le_bytes());
    let free = asked.regression.intercept && !asked.regression.penalize_intercept;
    part(&[u8::from(asked.regression.intercept) + 2 * u8::from(free)]);
    part(WEIGHT_WORDS.name(&common.weights()).as_bytes());
    for (_, (name, data)) in loaded.training() {
        if let ClientData::Labelled(labelled) = data {
            part(hash_labelled(&[(name.clone(), labelled.clone())]).as_bytes());
        }
    }
    hash.hex()
}

/// Reads a cached minimum; `None` if the file is missing, broken or of another model.
fn read(file: &Path, dimension: usize) -> Option<Minimum> {
    let value: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let number = |key: &str| value[key].as_f64();
    let [f_star, f_zero] = [number("f_star")?, number("f_zero")?];
    let reference = Reference { w: numbers(&value["w"])?, f_star, f_zero };
    let found = Minimum { reference, gradient_norm: number("gradient_norm")?, cached: true };
    let intact = value["sha256"].as_str()? == checksum(&found);
    (intact && found.reference.w.len() == dimension).then_some(found)
}

fn keep(file: &Path, found: &Minimum) {
    let Minimum { reference, gradient_norm, .. } = found;
    let value = json!({
        "f_star": reference.f_star,
        "f_zero": reference.f_zero,
        "gradient_norm": gradient_norm,
        "tolerance": TOLERANCE,
        "w": reference.w,
        "sha256": checksum(found),
    });
    let folder = file.parent().unwrap_or(Path::new("."));
    let _ = std::fs::create_dir_all(folder)
        .is_ok()
        .then(|| write_atomically(file, format!("{value}\n").as_bytes()));
}

fn checksum(found: &Minimum) -> String {
    let Minimum { reference, gradient_norm, .. } = found;
    let mut hash = Sha256::new();
    let numbers = [reference.f_star, reference.f_zero, *gradient_norm];
    for number in numbers.iter().chain(&reference.w) {
        hash.update(&number.to_bits().to_le_bytes());
    }
    hash.hex()
}
