//! Time, memory and bytes of FedMissEM at the shape of the paper's eBird study: 9,721 sites, 525
//! months, 12,185 observations on 10 clients, rank 2, minibatches of 100 cells, 150 epochs.
//!
//! `cargo run --release -p whimbrel-methods --example impute [FAMILY [EPOCHS]]`, with a family of
//! `gaussian`, `poisson` or `bernoulli`.

use std::sync::Arc;
use std::time::Instant;
use whimbrel_codec::channel::UpRule;
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::{Cell, Cells, ClientData, DynMethod, Erased, Error, Key, Result};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Simulator};
use whimbrel_methods::fedmiss::{BindCells, Copies, FedMiss};
use whimbrel_methods::settings::{Batch, Budget};
use whimbrel_models::lowrank::{Effects, Family, LowRank, Settings};
use whimbrel_testkit::resident_mb;

const ROWS: usize = 9_721;
const COLUMNS: usize = 525;
const OBSERVATIONS: usize = 12_185;
const CLIENTS: usize = 10;

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "gaussian".into());
    let family = Family::ALL.into_iter().find(|family| family.name() == name);
    let family = family.ok_or_else(|| Error::config(format!("`{name}` is no family")))?;
    let epochs = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(150.0);
    let effects = if family == Family::Gaussian { Effects::none() } else { Effects::row_column() };
    let settings = Settings { effects, lambda: 0.1, ..Settings::new(ROWS, COLUMNS, family) };
    let method = FedMiss {
        budget: Budget::Epochs(epochs),
        batch: Batch::Sample { size: 100, replacement: false, local_steps: 1 },
        copies: Copies::Auto,
        codecs: vec![Codec::dithering(4, Norm::P(2), None)?],
        rule: UpRule::Memory { alpha: None },
        open_memories: true,
        ..FedMiss::exact(LowRank::new(settings)?, 1)
    };
    let method = Arc::new(Erased(method, BindCells));
    let data = observations(family)?.iter().map(|d| method.bind(d)).collect::<Result<_>>()?;
    let federation = Arc::new(Federation::new(vec![String::new(); CLIENTS], data));
    let everyone = Participation::Everyone;
    let clock = Instant::now();
    let mut simulator = Simulator::start(
        method.clone(),
        federation.clone(),
        StageKeys::new(1, 0),
        everyone,
        Faults::default(),
    )?;
    println!("enrolment: {} bytes up, positions and sums", simulator.traffic().up);
    let mut rounds = 0u32;
    let mut opened = simulator.traffic();
    while let Some(done) = simulator.step()? {
        rounds = done.round.unwrap_or(rounds);
        if rounds == 0 {
            opened = simulator.traffic();
        }
        if done.round.is_some_and(|round| round % 200 == 0) {
            report(&mut simulator, rounds, &clock)?;
        }
    }
    let now = simulator.traffic();
    let per_round = |bytes: u64| bytes / u64::from(rounds.max(1));
    let dense = 8 * ROWS * COLUMNS * CLIENTS;
    println!(
        "a round: {} bytes up, {} down, over {rounds} rounds",
        per_round(now.up - opened.up),
        per_round(now.down - opened.down)
    );
    println!("dense: {dense} bytes up (S of each client), {} down (S and theta)", 2 * dense);
    report(&mut simulator, rounds, &clock)?;
    println!("peak memory {:.0} MB", resident_mb("VmHWM"));
    Ok(())
}

fn report(simulator: &mut Simulator, round: u32, clock: &Instant) -> Result<()> {
    let seconds = clock.elapsed().as_secs_f64();
    let (metrics, _) = simulator.evaluate()?;
    print!("round {round}, {seconds:.1} s");
    for metric in metrics {
        let wanted = ["epoch", "objective", "field_norm2", "train_rmse", "held_out_rmse", "sweeps"];
        if let (true, whimbrel_core::method::MetricValue::Number(value)) =
            (wanted.contains(&&*metric.name), metric.value)
        {
            print!(", {} {value:.4e}", metric.name);
        }
    }
    println!();
    Ok(())
}

/// A rank-2 table with noise, seen at random cells by clients of 400 to 2,000 observations.
fn observations(family: Family) -> Result<Vec<ClientData>> {
    let mut stream = Key::root(5).stream();
    let mut normal = |n: usize| (0..n).map(|_| stream.normal()).collect::<Vec<f64>>();
    let (u, v) = (normal(2 * ROWS), normal(2 * COLUMNS));
    let labels = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>().into();
    let (rows, columns): (std::sync::Arc<[String]>, std::sync::Arc<[String]>) =
        (labels(ROWS), labels(COLUMNS));
    let mut stream = Key::root(6).stream();
    let chosen = stream.choose(ROWS * COLUMNS, OBSERVATIONS);
    let mut clients = vec![Vec::new(); CLIENTS];
    for at in chosen {
        let (row, column) = (at / COLUMNS, at % COLUMNS);
        let product = u[2 * row] * v[2 * column] + u[2 * row + 1] * v[2 * column + 1];
        let value = family.draw(family.mean(0.5 * product), 1.0, &mut stream);
        // Client c is as likely as c + 3 others.
        let share = stream.below(75);
        let client = (0..CLIENTS as u64).scan(0, |sum, c| {
            *sum += c + 3;
            Some(*sum)
        });
        let client = client.take_while(|sum| *sum <= share).count();
        clients[client.min(CLIENTS - 1)].push(Cell {
            row: row as u32,
            column: column as u32,
            value,
        });
    }
    let cells = clients.into_iter().map(|observed| {
        Cells::new(rows.clone(), columns.clone(), observed, Vec::new()).map(ClientData::Cells)
    });
    cells.collect()
}
