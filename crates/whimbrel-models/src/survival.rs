//! Kaplan-Meier curves and log-rank tests from numbers of events and censored times in bins of time.
//!
//! A bin ends with its edge, events come before censored times: this is the curve of times that are
//! rounded up to the edges. Several events in a bin cost nothing, since the factors telescope; censored
//! times within a bin make the curve of the exact times lower, by at most the factors `1 - d/(n - c)` in place of
//! `1 - d/n`.

use crate::glm::inference::{Factored, Test};
use whimbrel_core::linalg::packed_len;
use whimbrel_core::math::{exp, ln};

/// 97.5 % quantile of the normal distribution.
const NORMAL: f64 = 1.959_963_984_540_054;

/// Numbers of events and of censored times in each bin, and all rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exits {
    pub rows: f64,
    pub events: Vec<f64>,
    pub censored: Vec<f64>,
}

/// A curve at the end of a bin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Rows under observation when the bin begins.
    pub at_risk: f64,
    pub events: f64,
    pub censored: f64,
    pub survival: f64,
    /// 95 % band by Greenwood's variance on the scale of `ln(-ln S)`; NaN once nobody survives.
    pub low: f64,
    pub high: f64,
    /// The smallest survival of exact times with these numbers.
    pub least: f64,
}

/// The Kaplan-Meier curve, up to the last bin with rows at risk.
pub fn kaplan_meier(exits: &Exits) -> Vec<Point> {
    let (mut at_risk, mut survival, mut least, mut variance) = (exits.rows, 1.0, 1.0, 0.0);
    let mut points = Vec::new();
    for (events, censored) in exits.events.iter().copied().zip(exits.censored.iter().copied()) {
        if at_risk <= 0.0 {
            break;
        }
        let left = at_risk - events;
        survival *= left / at_risk;
        let exposed = at_risk - censored;
        least *= if events == 0.0 { 1.0 } else { ((exposed - events) / exposed).max(0.0) };
        variance += events / (at_risk * left);
        let [low, high] = band(survival, variance);
        points.push(Point { at_risk, events, censored, survival, low, high, least });
        at_risk = left - censored;
    }
    points
}

fn band(survival: f64, variance: f64) -> [f64; 2] {
    if survival >= 1.0 {
        return [1.0; 2];
    }
    let log = ln(survival);
    let width = NORMAL * variance.sqrt() / log;
    let at = |width: f64| exp(log * exp(width));
    if survival > 0.0 { [at(-width), at(width)] } else { [f64::NAN; 2] }
}

/// The first edge at which a curve is one half or less.
pub fn median(edges: &[f64], curve: impl Iterator<Item = f64>) -> Option<f64> {
    edges.iter().zip(curve).find(|(_, survival)| *survival <= 0.5).map(|(edge, _)| *edge)
}

/// The log-rank test of equal curves; `None` if fewer than two groups have rows and events.
pub fn log_rank(groups: &[Exits]) -> Option<Test> {
    let groups: Vec<&Exits> = groups.iter().filter(|group| group.rows > 0.0).collect();
    let free = groups.len().checked_sub(1).filter(|free| *free > 0)?;
    let mut at_risk: Vec<f64> = groups.iter().map(|group| group.rows).collect();
    let (mut excess, mut variance) = (vec![0.0; free], vec![0.0; packed_len(free)]);
    for bin in 0..groups[0].events.len() {
        let events: f64 = groups.iter().map(|group| group.events[bin]).sum();
        let all: f64 = at_risk.iter().sum();
        let spread = if all > 1.5 { events * (all - events) / (all - 1.0) } else { 0.0 };
        let share = |group: usize| at_risk[group] / all;
        let mut place = 0;
        for one in 0..free {
            if events > 0.0 {
                excess[one] += groups[one].events[bin] - events * share(one);
            }
            for other in 0..=one {
                let equal = f64::from(u8::from(one == other));
                if events > 0.0 {
                    variance[place] += spread * share(one) * (equal - share(other));
                }
                place += 1;
            }
        }
        for (n, group) in at_risk.iter_mut().zip(&groups) {
            *n = (*n - group.events[bin] - group.censored[bin]).max(0.0);
        }
    }
    let solved = Factored::new(&variance, free).ok()?.solve(&excess);
    let statistic = solved.iter().zip(&excess).map(|(a, b)| a * b).sum();
    Some(Test::chi2("log-rank".into(), statistic, free as f64))
}
