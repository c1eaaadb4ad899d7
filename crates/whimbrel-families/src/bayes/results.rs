//! Results of posteriors: calibration, mixing of the chains, and distances to the true model of
//! generated data.

use super::SoulFit;
use super::plan::{noise, soul};
use crate::failure::Result;
use crate::family::{Ended, FitReport, Results, RunData};
use crate::predictions::{LEVELS, Stated, TestRows, measures};
use crate::uncertainty;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use whimbrel_core::declare::{Exhibit, Section, Series, SeriesPoint};
use whimbrel_core::method::Artifact;
use whimbrel_core::text::counted;
use whimbrel_core::{Inputs, Key, Samples, Targets, math};
use whimbrel_data::RepresentationTruth;
use whimbrel_engine::Ending;
use whimbrel_engine::metrics::number;
use whimbrel_methods::bayes::{Own, Predictive, Soul};
use whimbrel_models::sampler::{Kernel, effective_sample_size, split_r_hat};

/// New inputs for each client, on which the coverage of intervals is estimated.
const NEW_INPUTS: usize = 500;
/// Most coordinates of a chain that are examined, and clients with traces.
const COORDINATES_MAX: usize = 50;
const TRACES: usize = 3;
/// Most coordinates of a client for which intervals are shown, and most clients shown.
const INTERVALS_MAX: usize = 10;
const SHOWN: usize = 30;
/// R-hat above which chains have not mixed.
const MIXED: f64 = 1.2;
/// Random stream of new inputs.
const COVERAGE: u64 = 0xC0FE;

impl FitReport for SoulFit {
    fn model_keys(&self, data: &RunData, _: &Artifact) -> Map<String, Value> {
        let mut keys = self.model.keys(data);
        if let Some(noise) = data.tests.as_ref().and_then(TestRows::noise) {
            keys.insert("noise".into(), noise.into());
        }
        keys
    }

    fn results(&self, ended: &Ended<'_>) -> Result<Results> {
        let Some(tests) = &ended.data.tests else { return Ok(Results::default()) };
        let learner = self.model.learner(&tests.shape, tests.classes)?;
        let soul = soul(self, ended.job, learner, noise(self, tests.noise()), 1.0)?;
        let theta = ended.model().and_then(|model| soul.theta_of(model));
        let Some(theta) = theta else { return Ok(Results::default()) };
        let clients = ended.artifacts(&tests.names);
        let mut exhibits = Vec::new();
        let mut fitted =
            Posteriors { soul, theta, clients, summary: Map::new(), warnings: Vec::new() };
        if let Some(truth) = &tests.truth {
            fitted.put("subspace_error", subspace_error(fitted.shared(), truth));
            let errors = tests.prediction_errors(&|name, rows| match tests.unseen.get(name) {
                Some(own) => fitted.stated_by(fitted.adapted(own)?, rows),
                None => fitted.stated(name, rows),
            })?;
            fitted.summary.extend(errors);
            exhibits.extend(fitted.cover(&tests.names, truth)?);
        }
        let outside = self.settings.outside.as_deref();
        let (figures, calibration) =
            tests.calibration(outside, &|name, rows| fitted.stated(name, rows))?;
        fitted.summary.extend(figures);
        exhibits.extend(calibration);
        exhibits.extend(fitted.chains(&tests.names));
        let answer = fitted.answer(ended);
        fitted.summary.extend(answer.map(|text| ("answer".to_owned(), text.into())));
        let title = "Uncertainty".to_owned();
        let sections =
            if exhibits.is_empty() { Vec::new() } else { vec![Section { title, exhibits }] };
        if let Ending::Stopped(after) = &ended.outcome.ending {
            let text =
                fitted.mixed().unwrap_or_else(|| "too few samples are kept for R-hat".into());
            let detail = format!(
                "{after}, as many as the job asks for: {text}; run more if the objective still falls"
            );
            fitted.summary.insert("ending_detail".into(), detail.into());
        }
        let Posteriors { summary, warnings, .. } = fitted;
        Ok(Results { summary, measures: measures(), warnings, sections, ..Results::default() })
    }
}

/// A finished run: the method, its parameters, and the clients' artifacts by name.
struct Posteriors {
    soul: Soul,
    theta: Vec<f32>,
    clients: BTreeMap<String, Artifact>,
    summary: Map<String, Value>,
    warnings: Vec<String>,
}

impl Posteriors {
    fn shared(&self) -> &[f32] {
        &self.theta[..self.soul.model.shared()]
    }

    fn put(&mut self, name: &str, value: f64) {
        self.summary.insert(name.to_owned(), number(value));
    }

    /// The predictive distribution of a client with samples.
    fn predictive(&self, name: &str) -> Option<Predictive> {
        let samples = self.soul.samples_of(self.clients.get(name)?);
        (!samples.is_empty()).then(|| self.soul.predictive_of(&self.theta, samples))
    }

    /// The predictive distribution of a client that did not train, from its rows.
    fn adapted(&self, rows: &Samples) -> Option<Predictive> {
        self.soul.predictive(&self.theta, &Own::default(), rows).ok()
    }

    fn stated(&self, name: &str, rows: &Samples) -> Option<Stated> {
        self.stated_by(self.predictive(name)?, rows)
    }

    fn stated_by(&self, own: Predictive, rows: &Samples) -> Option<Stated> {
        let spread = own.spread(&self.soul.model, rows);
        let square = own.noise * own.noise;
        let deviations = if self.soul.model.learner.classifies() {
            Vec::new()
        } else {
            spread.total.iter().map(|variance| (variance + square).sqrt()).collect()
        };
        Some(Stated { mean: spread.mean, deviations })
    }

    /// Mixing of the chains, some traces, and the clients' posterior means over the prior.
    fn chains(&mut self, names: &[String]) -> Vec<Exhibit> {
        let (_, beta) = self.theta.split_at(self.soul.model.shared());
        let beta: Vec<f64> = beta.iter().map(|b| f64::from(*b)).collect();
        let Ok(prior) = self.soul.prior.at(&beta) else { return Vec::new() };
        let (mut sizes, mut ratios) = (Vec::new(), Vec::new());
        let (mut means, mut traces, mut posteriors) = (Vec::new(), Vec::new(), Vec::new());
        for name in names {
            let Some(chains) = self.clients.get(name).and_then(|own| self.chains_of(own)) else {
                continue;
            };
            let (size, ratio) = chains.mixing();
            sizes.push(size);
            ratios.push(ratio);
            means.push(chains.means());
            posteriors.push(chains.interval(name));
            if traces.len() < TRACES {
                let values = chains.coordinate(0).remove(0);
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
            "Slowest coordinate of each client: median effective sample size {:.0} (minimum {:.0}), \
             median R-hat {} (maximum {}).",
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
        exhibits.extend((means[0].len() <= INTERVALS_MAX).then(|| intervals(posteriors)));
        exhibits
    }

    /// The posteriors in a sentence.
    fn answer(&self, ended: &Ended<'_>) -> Option<String> {
        let known = |key: &str| self.summary.get(key).and_then(Value::as_f64);
        let last = |key: &str| ended.outcome.last.as_ref().and_then(|row| row.number(key));
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let mut said = Vec::new();
        if let Some(right) = last("test_accuracy") {
            said.push(format!(
                "{} of the clients' test rows are predicted correctly",
                percent(right)
            ));
        }
        if let Some(error) = known("test_ece") {
            said.push(format!("stated probabilities are off by {} on average", percent(error)));
        }
        if let Some(covered) = known("coverage_90").or_else(|| last("test_coverage_90")) {
            said.push(format!("90 % intervals cover {} of new targets", percent(covered)));
        }
        said.extend(self.mixed());
        let personal = counted(self.soul.model.personal(), "number");
        (!said.is_empty()).then(|| {
            format!(
                "Each client has a posterior of {personal} under a shared prior; {}",
                said.join("; ")
            )
        })
    }

    /// Whether the chains have mixed, in words.
    fn mixed(&self) -> Option<String> {
        let median = self.summary.get("r_hat_median").and_then(Value::as_f64)?;
        let mixed = if median > MIXED { "have not mixed" } else { "have mixed" };
        Some(format!("the clients' chains {mixed} (median R-hat {median:.3})"))
    }

    /// A client's chains, if each has at least four samples.
    fn chains_of(&self, own: &Artifact) -> Option<ClientChains> {
        let samples = self.soul.samples_of(own);
        let per_chain = samples.len() / self.soul.chains.count.max(1) as usize;
        (per_chain >= 4).then_some(ClientChains { samples, per_chain })
    }

    /// The warning about chains with these R-hats.
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
            "chains have not mixed: median R-hat {}, above {MIXED} for {apart} of {clients}{still}; \
             use more `steps`,{kernel} or a smaller `prior_scale`{gamma}",
            shown(median)
        )
    }
}

/// The samples of a client, chain after chain.
struct ClientChains {
    samples: Vec<Vec<f32>>,
    per_chain: usize,
}

impl ClientChains {
    /// One coordinate of every chain.
    fn coordinate(&self, at: usize) -> Vec<Vec<f64>> {
        let chain = |all: &[Vec<f32>]| all.iter().map(|z| f64::from(z[at])).collect();
        self.samples.chunks_exact(self.per_chain).map(chain).collect()
    }

    /// Smallest effective sample size and largest R-hat over some coordinates. R-hat is NaN with
    /// fewer than eight draws.
    fn mixing(&self) -> (f64, f64) {
        let d = self.samples[0].len();
        let coordinates = (0..d).step_by(d.div_ceil(COORDINATES_MAX).max(1));
        let found: Vec<(f64, f64)> = coordinates
            .map(|at| self.coordinate(at))
            .map(|chains| (effective_sample_size(&chains), split_r_hat(&chains)))
            .collect();
        let size = found.iter().fold(f64::INFINITY, |least, (size, _)| size.min(least));
        (size, found.iter().fold(f64::NAN, |most, (_, ratio)| ratio.max(most)))
    }

    /// The mean of the first coordinate and the interval of nine in ten samples.
    fn interval(&self, name: &str) -> SeriesPoint {
        let mut values: Vec<f64> = self.samples.iter().map(|z| f64::from(z[0])).collect();
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[(share * (values.len() - 1) as f64).round() as usize];
        SeriesPoint {
            label: name.into(),
            value: self.means()[0],
            interval: Some([at(0.05), at(0.95)]),
            ..SeriesPoint::default()
        }
    }

    fn means(&self) -> Vec<f64> {
        let count = self.samples.len() as f64;
        let mean = |at: usize| self.samples.iter().map(|z| f64::from(z[at])).sum::<f64>() / count;
        (0..self.samples[0].len()).map(mean).collect()
    }
}

/// The clients' posteriors of the first coordinate by mean, at most [`SHOWN`] evenly spaced ones.
fn intervals(mut posteriors: Vec<SeriesPoint>) -> Exhibit {
    posteriors.sort_by(|a, b| a.value.total_cmp(&b.value));
    let (all, shown) = (posteriors.len(), posteriors.len().min(SHOWN));
    let places = (0..shown).map(|i| i * (all - 1) / (shown - 1).max(1));
    let points = places.map(|at| posteriors[at].clone()).collect();
    let some = if shown < all { format!("; {shown} of {all} clients") } else { String::new() };
    Exhibit::Series(Series {
        title: "Posteriors of the clients, coordinate 1".into(),
        caption: format!("Mean and 90 % interval of the samples{some}"),
        counted: String::new(),
        points,
    })
}

/// R-hat in words.
fn shown(ratio: f64) -> String {
    match ratio {
        ratio if ratio.is_nan() => "unknown".into(),
        ratio if ratio.is_infinite() => "infinite".into(),
        ratio => format!("{ratio:.3}"),
    }
}

/// Frobenius norm of the true representation's part outside the span of the fitted one.
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

/// The component of a vector orthogonal to an orthonormal basis, and its length.
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

impl Posteriors {
    /// Coverage of 90 % intervals for new targets and for their noise-free values; the curve is the
    /// coverage of new targets by level.
    fn cover(&mut self, names: &[String], truth: &RepresentationTruth) -> Result<Option<Exhibit>> {
        let raw = truth.predictors.first().map_or(1, Vec::len);
        let (mut clients, mut inside) = (0.0, [0u64; 2]);
        // Half-widths relative to those of 90 %.
        let quantile = |level: f64| math::normal_quantile(0.5 + 0.5 * level);
        let relative = LEVELS.map(|level| quantile(level) / quantile(0.9));
        let mut by_level = [0u64; LEVELS.len()];
        for (id, (name, predictor)) in names.iter().zip(&truth.predictors).enumerate() {
            let Some(own) = self.predictive(name) else { continue };
            clients += 1.0;
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
                for (count, width) in by_level.iter_mut().zip(relative) {
                    *count += u64::from((target - mean).abs() <= width * wide);
                }
                inside[1] += u64::from((value - mean).abs() <= narrow);
            }
        }
        if clients == 0.0 {
            return Ok(None);
        }
        let share = |count: u64| count as f64 / (clients * NEW_INPUTS as f64);
        self.put("coverage_90", share(inside[0]));
        self.put("coverage_90_mean", share(inside[1]));
        let points = LEVELS.into_iter().zip(by_level).map(|(level, count)| [level, share(count)]);
        let points: Vec<[f64; 2]> = points.collect();
        Ok(uncertainty::coverage(&points, "New targets, drawn from the true model of every client"))
    }
}
