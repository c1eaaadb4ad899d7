//! A round of a method that computes nothing on ten million `f32`: its time per number and client,
//! beside that of as many `memcpy` into warm memory, and the peak of resident memory beside three vectors per client and eleven per thread.
//!
//! `RAYON_NUM_THREADS=1 cargo bench -p whimbrel-methods --bench widths`

use mimalloc::MiMalloc;
use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use whimbrel_codec::Codec;
use whimbrel_core::method::{Artifact, Declaration, Metric};
use whimbrel_core::{ClientData, Erased, Key, Result, vector};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Simulator};
use whimbrel_methods::federated::{
    Answered, BindRows, Computed, Context, ExchangeKind, Federated, Figures, Judge, Member, Oracle,
    Publish, Received, Scores, Split, Terms,
};
use whimbrel_methods::settings::{Budget, Weights};
use whimbrel_testkit::resident_mb;

#[global_allocator]
static MEMORY: MiMalloc = MiMalloc;

const CLIENTS: usize = 20;
const D: usize = 10_000_000;
const ROUNDS: u32 = 6;
/// What one client's round moves at least: its value (1), the packet (1), the upload as bytes (1)
/// and an exact sum of four `f64` per number (8).
const COPIES_PER_CLIENT: usize = 11;

fn main() -> Result<()> {
    let threads = rayon::current_num_threads();
    let before = resident_mb("VmRSS");
    let method = Arc::new(Erased(
        Federated {
            oracle: Still,
            terms: Terms {
                weights: Weights::Equal,
                ..Terms::over(Codec::Exact, D, Budget::Rounds(ROUNDS))?
            },
        },
        BindRows,
    ));
    let no_rows =
        || Split { train: (), validation: None, test: None, asked: false, rows: [1, 0, 0] };
    let data = (0..CLIENTS).map(|_| Box::new(no_rows()) as _).collect();
    let names = vec![String::new(); CLIENTS];
    let federation = Arc::new(Federation { names, data, duties: Vec::new() });
    let (keys, everyone) = (StageKeys::new(1, 0), Participation::Everyone);
    let mut simulator = Simulator::start(method, federation, keys, everyone, Faults::default())?;
    let (mut rounds, mut clock) = (Vec::new(), Instant::now());
    while simulator.step()?.is_some() {
        rounds.push(clock.elapsed().as_secs_f64());
        clock = Instant::now();
    }
    let vector = 4.0 * D as f64 / 1e6;
    let peak = (resident_mb("VmHWM") - before) / vector;
    let copy = memcpy_seconds();
    let round = median(&mut rounds);
    let copies = (COPIES_PER_CLIENT * CLIENTS) as f64 * copy / threads as f64;
    println!("{threads} threads, {CLIENTS} clients, {D} numbers of {vector:.0} MB");
    let each = round / (CLIENTS * D) as f64 * 1e9;
    println!("a round: {round:.2} s, {each:.2} ns per number and client (aim on one thread: 5)");
    println!("{COPIES_PER_CLIENT} memcpy per client: {copies:.2} s; ratio: {:.2}", round / copies);
    println!("peak: {peak:.1} vectors (aim: {})", 3 * CLIENTS + 11 * threads);
    Ok(())
}

/// Sends back what it receives.
struct Still;

impl Oracle for Still {
    type Number = f32;
    type Data = ();
    type Own = ();
    type Global = Vec<f32>;
    type Summary = ();
    type Record = ();
    type Note = ();
    type Private = ();

    fn declare(&self, _: &Terms) -> Declaration {
        Declaration::default()
    }
    fn bind(&self, _: &ClientData) -> Result<((), u64)> {
        Ok(((), 1))
    }
    fn enroll(&self, (): &(), _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }
    fn start(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<()>>>,
        _: &Terms,
        _: Key,
    ) -> Result<Vec<f32>> {
        for member in roster {
            member?;
        }
        Ok((0..D).map(|i| i as f32 * 1e-7).collect())
    }
    fn published<'a>(&self, w: &'a Vec<f32>, _: ExchangeKind) -> Cow<'a, [f32]> {
        w.into()
    }
    fn local(
        &self,
        received: &Received<'_, Self>,
        (): &(),
        (): &(),
        _: Key,
    ) -> Result<Computed<Self>> {
        Ok(Computed::new((), received.state.to_vec()))
    }
    fn step(
        &self,
        w: &mut Vec<f32>,
        mean: Vec<f64>,
        _: &Context,
        publish: Publish<'_, f32>,
    ) -> Result<f64> {
        w.iter_mut().zip(&mean).for_each(|(w, mean)| *w = *mean as f32);
        *w = publish(std::mem::take(w))?;
        Ok(vector::norm2_squared(&mean))
    }
    fn magnitude(&self, _: &Vec<f32>, _: f64) -> f64 {
        1.0
    }
    fn artifact(&self, _: &Vec<f32>) -> Result<Artifact> {
        Ok(Artifact::default())
    }
}

impl Judge for Still {
    type Ask = ();
    type Answer = ();

    fn ask(&self, _: &Vec<f32>, _: &Terms) -> Result<()> {
        Ok(())
    }
    fn answer(&self, (): &(), (): &(), _: &Split<()>, _: &Terms) -> Result<Answered<Self>> {
        Ok(Answered { answer: (), memory_limit: None, parts: Vec::new() })
    }
    fn scores(&self) -> Scores {
        Scores { addends: 0, ..Scores::default() }
    }
    fn figures(&self, (): &(), _: f64) -> Figures {
        Figures { own: Vec::new(), addends: Vec::new() }
    }
    fn conclude(&self, _: &Vec<f32>, _: &[f64], _: f64, _: &Context) -> Result<Vec<Metric>> {
        Ok(Vec::new())
    }
}

/// The median time of copying one vector to memory that is already mapped.
fn memcpy_seconds() -> f64 {
    let (from, mut to) = (vec![1.0f32; D], vec![2.0f32; D]);
    let mut seconds: Vec<f64> = (0..15)
        .map(|_| {
            let clock = Instant::now();
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
            clock.elapsed().as_secs_f64()
        })
        .collect();
    median(&mut seconds)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
