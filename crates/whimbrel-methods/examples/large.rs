//! Memory and time of a Rand-MCM round in a million dimensions: 20 clients with sparse rows,
//! one-level dithering both ways. Prints seconds per round and the peak of resident memory, beside
//! what the stored vectors alone take.
//!
//! `cargo run --release -p whimbrel-methods --example large`

use std::sync::Arc;
use std::time::Instant;
use whimbrel_codec::channel::{DownRule, Downlink, Memories, gradient_alpha};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::{ClientData, DynMethod, Erased, FeatureRows, Key, Labelled};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Simulator};
use whimbrel_methods::federated::{BindRows, FirstMemories, Terms};
use whimbrel_methods::settings::{Budget, Weights};
use whimbrel_methods::sgd::{Gradient, Sgd, StepRule};
use whimbrel_methods::step::Schedule;
use whimbrel_models::convex::Problem;
use whimbrel_testkit::resident_mb;

const CLIENTS: usize = 20;
const D: usize = 1_000_000;
const ROWS: usize = 100;
const NONZEROS: usize = 50;
const ROUNDS: u32 = 10;

fn main() -> whimbrel_core::Result<()> {
    let codec = Codec::dithering(1, Norm::P(2), None)?;
    let alpha = gradient_alpha(codec.omega(D).unwrap_or(0.0));
    let rule = DownRule::Preserved { alpha, memories: Memories::PerClient };
    let sgd = Sgd {
        oracle: Gradient {
            step: StepRule::Given(Schedule::constant(0.1)?),
            ..Gradient::new(Problem::logistic(0.0, false)?, D)
        },
        terms: Terms {
            weights: Weights::Equal,
            memories: FirstMemories::Oracle,
            downlink: Downlink::new(codec.clone(), rule, D, false)?,
            ..Terms::over(codec, D, Budget::Rounds(ROUNDS))?
        },
    };
    let method = Arc::new(Erased(sgd, BindRows));
    let columns: Vec<String> = (0..D).map(|j| j.to_string()).collect();
    let mut data = Vec::new();
    for i in 0..CLIENTS {
        data.push(method.bind(&examples(i, &columns)?)?);
    }
    drop(columns);
    let federation = Arc::new(Federation::new(vec![String::new(); CLIENTS], data));
    let before = resident_mb("VmRSS");
    let everyone = Participation::Everyone;
    let mut simulator = Simulator::start(
        method.clone(),
        federation.clone(),
        StageKeys::new(1, 0),
        everyone,
        Faults::default(),
    )?;
    let mut clock = Instant::now();
    while let Some(done) = simulator.step()? {
        let seconds = clock.elapsed().as_secs_f64();
        println!("round {:?}: {seconds:.3} s, peak {:.0} MB", done.round, resident_mb("VmHWM"));
        clock = Instant::now();
    }
    let vector = 8.0 * D as f64 / 1e6;
    println!("before the run {before:.0} MB; one vector {vector:.0} MB");
    println!("h_i, H_i and H_i of {CLIENTS} clients: {:.0} MB", 3.0 * CLIENTS as f64 * vector);
    Ok(())
}

fn examples(i: usize, columns: &[String]) -> whimbrel_core::Result<ClientData> {
    let mut stream = Key::root(3).child(i as u64).stream();
    let (mut starts, mut at, mut values) = (vec![0], Vec::new(), Vec::new());
    for _ in 0..ROWS {
        let mut row: Vec<u32> = stream.choose(D, NONZEROS).into_iter().map(|j| j as u32).collect();
        row.sort_unstable();
        values.extend((0..NONZEROS).map(|_| stream.normal()));
        at.extend(row);
        starts.push(values.len());
    }
    let targets = (0..ROWS).map(|_| if stream.uniform() < 0.5 { 1.0 } else { -1.0 }).collect();
    let rows = FeatureRows::Sparse { starts, columns: at, values };
    Ok(ClientData::Labelled(Labelled::new(columns.to_vec(), rows, targets)?))
}
