//! Cox's partial likelihood of one stratum, with Efron's approximation for ties.
//!
//! B. Efron (1977), *The efficiency of Cox's likelihood function for censored data*. At a time with `m`
//! events, `φ_l = S_0 − (l/m) D_0` for `l = 0, ..., m − 1`, where `S_k` sums `exp(η) z^k` over the rows at
//! risk and `D_k` over those with the event.

use super::kernels::add_outer;
use super::{Model, Rows, Scaling, Sums};
use std::ops::Range;
use whimbrel_core::linalg::packed_len;
use whimbrel_core::{math, vector};

/// Sums of `exp(η)`, `exp(η) z` and `exp(η) z z^T`.
struct Risk {
    zero: f64,
    one: Vec<f64>,
    two: Vec<f64>,
}

impl Risk {
    fn new(d: usize) -> Self {
        Self { zero: 0.0, one: vec![0.0; d], two: vec![0.0; packed_len(d)] }
    }

    fn add(&mut self, z: &[f64], hazard: f64, root: &mut [f64]) {
        self.zero += hazard;
        vector::axpy(&mut self.one, hazard, z);
        let scale = hazard.sqrt();
        root.iter_mut().zip(z).for_each(|(root, z)| *root = scale * z);
        add_outer(root, &mut self.two);
    }

    fn scale(&mut self, by: f64) {
        self.zero *= by;
        vector::scale(&mut self.one, by);
        vector::scale(&mut self.two, by);
    }
}

/// The rows of a time, the largest predictor at risk, and `Σ 1/φ` and `Σ (l/m)/φ` relative to its hazard.
struct Time {
    rows: Range<usize>,
    top: f64,
    all: f64,
    own: f64,
}

/// Rows are sorted by time, latest first.
pub(super) fn evaluate(rows: &Rows, scaling: &Scaling, beta: &[f64], sums: &mut Sums) {
    let d = rows.width;
    let mut z = rows.x.clone();
    for row in z.chunks_exact_mut(d.max(1)) {
        for ((z, mean), scale) in row.iter_mut().zip(&scaling.means).zip(&scaling.scales) {
            *z = (*z - mean) / scale;
        }
    }
    let z = |row: usize| &z[row * d..][..d];
    let eta: Vec<f64> = (0..rows.len()).map(|row| vector::dot(z(row), beta)).collect();
    // Hazards are relative to the largest one at risk, so that no risk set underflows.
    let mut top = f64::NEG_INFINITY;
    let (mut at_risk, mut tied) = (Risk::new(d), Risk::new(d));
    let (mut mean, mut root) = (vec![0.0; d], vec![0.0; d]);
    let mut times = Vec::new();
    let mut from = 0;
    while from < rows.len() {
        let to = from + rows.y[from..].iter().take_while(|t| **t == rows.y[from]).count();
        tied.scale(0.0);
        let highest = eta[from..to].iter().copied().fold(top, f64::max);
        if highest > top {
            at_risk.scale(math::exp(top - highest));
            top = highest;
        }
        let mut events = 0u32;
        for (row, eta) in (from..).zip(&eta[from..to]) {
            let hazard = math::exp(eta - top);
            at_risk.add(z(row), hazard, &mut root);
            if rows.event.get(row).is_none_or(|event| *event == 1.0) {
                events += 1;
                tied.add(z(row), hazard, &mut root);
                sums.log_likelihood += eta - top;
                vector::axpy(&mut sums.score, 1.0, z(row));
            }
        }
        let (mut all, mut own) = (0.0, 0.0);
        for l in 0..events {
            let share = f64::from(l) / f64::from(events);
            let phi = at_risk.zero - share * tied.zero;
            sums.log_likelihood -= math::ln(phi);
            (all, own) = (all + 1.0 / phi, own + share / phi);
            for ((mean, s), d) in mean.iter_mut().zip(&at_risk.one).zip(&tied.one) {
                *mean = (s - share * d) / phi;
            }
            vector::axpy(&mut sums.score, -1.0, &mean);
            subtract_outer(&mean, &mut sums.information);
        }
        vector::axpy(&mut sums.information, all, &at_risk.two);
        vector::axpy(&mut sums.information, -own, &tied.two);
        times.push(Time { rows: from..to, top, all, own });
        from = to;
    }
    sums.support = support(rows, &times, &eta);
}

impl Model {
    /// Breslow's estimate of the cumulative hazard of a client's stratum at covariates of zero: pairs of a
    /// time and the hazard up to it, `Σ d_t / Σ_{at risk} exp(x β)`. A step joins the events of successive
    /// times until there are `least` of them, and `1/most` of all, at their mean time; fewer events have none.
    pub fn baseline(
        &self,
        rows: &Rows,
        scaling: &Scaling,
        theta: &[f64],
        least: usize,
        most: usize,
    ) -> Vec<f64> {
        let moved = scaling.means.iter().zip(&scaling.scales).zip(theta);
        let shift: f64 = moved.map(|((mean, scale), theta)| mean / scale * theta).sum();
        let eta = self.predict(rows, scaling, theta).swap_remove(0);
        let (mut top, mut at_risk) = (f64::NEG_INFINITY, 0.0);
        let (mut times, mut total, mut from) = (Vec::new(), 0.0, 0);
        while from < rows.len() {
            let to = from + rows.y[from..].iter().take_while(|t| **t == rows.y[from]).count();
            let highest = eta[from..to].iter().copied().fold(top, f64::max);
            at_risk = at_risk * math::exp(top - highest)
                + eta[from..to].iter().map(|eta| math::exp(eta - highest)).sum::<f64>();
            top = highest;
            let is_event = |row: &usize| rows.event.get(*row).is_none_or(|event| *event == 1.0);
            let events = (from..to).filter(is_event).count() as f64;
            if events > 0.0 {
                times.push((rows.y[from], events, events / at_risk * math::exp(-top - shift)));
                total += events;
            }
            from = to;
        }
        let group = (least as f64).max((total / most as f64).ceil());
        let (mut steps, mut left) = (Vec::new(), total);
        let (mut count, mut sum, mut hazard) = (0.0, 0.0, 0.0);
        for (time, events, increment) in times.into_iter().rev() {
            (count, sum, hazard) = (count + events, sum + events * time, hazard + increment);
            left -= events;
            // The last step takes the events that are too few for one of their own.
            if count >= group && (left >= group || left == 0.0) {
                steps.extend([sum / count, hazard]);
                (count, sum) = (0.0, 0.0);
            }
        }
        steps
    }
}

/// The number of rows behind the sums: of events, and of the rows at risk by their weights
/// `r_i = sum over events of exp(η_i) / φ`, whichever is less. Far from the estimate few rows at risk
/// carry the sums.
fn support(rows: &Rows, times: &[Time], eta: &[f64]) -> f64 {
    let (mut events, mut total, mut largest) = (0.0, 0.0, 0.0_f64);
    let (mut later, mut before) = (0.0, f64::INFINITY);
    for Time { rows: tied, top, all, own } in times.iter().rev() {
        if *top < before {
            later *= math::exp(top - before);
            before = *top;
        }
        later += all;
        for row in tied.clone() {
            let is_event = rows.event.get(row).is_none_or(|event| *event == 1.0);
            let weight = math::exp(eta[row] - top) * if is_event { later - own } else { later };
            events += f64::from(u8::from(is_event));
            (total, largest) = (total + weight, largest.max(weight));
        }
    }
    if largest > 0.0 { events.min(total / largest) } else { 0.0 }
}

fn subtract_outer(s: &[f64], out: &mut [f64]) {
    let mut at = 0;
    for (i, own) in s.iter().enumerate() {
        vector::axpy(&mut out[at..=at + i], -own, &s[..=i]);
        at += i + 1;
    }
}
