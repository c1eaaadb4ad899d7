//! An inner round of VR-FedEM against a round of FedEM with as many conditional expectations: a
//! problem of the shape of MNIST's 20 principal components (70,000 rows x 20 columns, 10
//! components with one covariance, 100 clients, all of them taking part), one-level dithering.
//!
//! The two take turns, round by round, so that what else runs on the machine meets both; printed
//! are the least and the median time of a round. Arguments are minibatches `b` in place of the usual.

#[path = "crowd/federation.rs"]
mod federation;

use federation::{federation, method};
use std::sync::Arc;
use std::time::{Duration, Instant};
use whimbrel_core::{DynMethod, Result};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Simulator};
use whimbrel_methods::fedem::{Batch, Estimator};

/// Rounds that are timed, of each.
const TIMED: usize = 400;

fn main() -> Result<()> {
    println!("milliseconds a round, least (median) of {TIMED} taken in turn");
    println!("{:>5}  {:>22}  {:>22}  {:>6}", "b", "fedem, 2b rows", "vr-fedem, twice b", "ratio");
    let given: Vec<u32> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    for b in if given.is_empty() { vec![2, 20, 100] } else { given } {
        let sample = |size| Batch::Sample { size, replacement: true, local_steps: 1 };
        let fedem = method(Estimator::Minibatch, sample(2 * b), 0.001)?;
        // One full pass, then inner rounds only.
        let reduced = method(Estimator::Spider { inner: u32::MAX }, sample(b), 0.001)?;
        let data = federation(&*fedem, 100, 700, |_, row| row)?;
        let (mut fedem, mut reduced) = (open(fedem, data.clone())?, open(reduced, data)?);
        let (mut plain, mut inner) = (Vec::new(), Vec::new());
        for _ in 0..TIMED {
            plain.push(timed(&mut fedem)?);
            inner.push(timed(&mut reduced)?);
        }
        let ((least, median), (least_vr, median_vr)) = (figures(plain), figures(inner));
        println!(
            "{b:>5}  {:>22}  {:>22}  {:>6.2}",
            format!("{least:.3} ({median:.3})"),
            format!("{least_vr:.3} ({median_vr:.3})"),
            least_vr / least
        );
    }
    Ok(())
}

/// Past the first statistic, the memories and the full pass.
fn open(method: Arc<dyn DynMethod>, federation: Arc<Federation>) -> Result<Simulator> {
    let (keys, everyone) = (StageKeys::new(1, 0), Participation::Everyone);
    let mut simulator = Simulator::start(method, federation, keys, everyone, Faults::default())?;
    for _ in 0..4 {
        simulator.step()?;
    }
    Ok(simulator)
}

fn timed(simulator: &mut Simulator) -> Result<Duration> {
    let clock = Instant::now();
    simulator.step()?;
    Ok(clock.elapsed())
}

/// The least and the median, in milliseconds.
fn figures(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let millis = |time: Duration| 1e3 * time.as_secs_f64();
    (millis(times[0]), millis(times[times.len() / 2]))
}
