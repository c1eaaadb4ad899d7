//! One EM iteration on 70,000 rows x 20 columns with 10 components on 1, 2, 4, ... threads: the
//! least wall time of thirty, what the M-step takes of it, and the speed-up over one thread.
//!
//! `cargo run --release -p whimbrel-models --example iteration [THREADS_MAX]`

use std::time::Instant;
use whimbrel_core::{Error, Key, Result, isa};
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};
use whimbrel_models::{LatentModel, MixtureModel, Rows};

const ROWS: usize = 70_000;
const COLUMNS: usize = 20;
const COMPONENTS: usize = 10;
const TURNS: usize = 30;

fn main() -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let most = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(cores);
    println!("{ROWS} x {COLUMNS}, {COMPONENTS} components, {}, {cores} cores", isa::level().name());
    println!("covariance  threads  iteration ms  processor ms  M-step ms  speed-up");
    let kinds = [
        ("full", Covariance::Full),
        ("tied", Covariance::Tied),
        ("diagonal", Covariance::Diagonal),
    ];
    let rows = rows()?;
    for (name, covariance) in kinds {
        let mut settings = GmmSettings::new(COMPONENTS, COLUMNS, covariance);
        settings.want_moments = true;
        let model = Gmm::new(settings)?;
        let data = model.data_from_rows(&rows)?;
        let moments = model.moments(&data)?;
        let theta = model.initial_from_moments(&moments, Key::root(5).child(3))?;
        let mut alone = f64::NAN;
        let counts = std::iter::successors(Some(1), |n| Some(n * 2));
        for threads in counts.take_while(|n| *n <= most) {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.map_err(|e| Error::internal(e.to_string()))?;
            let [wall, processor, m_step] = pool.install(|| -> Result<[f64; 3]> {
                let mut least = [f64::INFINITY; 3];
                let mut statistic = vec![0.0; model.statistic_len()];
                for _ in 0..TURNS {
                    let (clock, before) = (Instant::now(), processor_ms());
                    model.expect(&theta, &data, Rows::All, &mut statistic)?;
                    let last = Instant::now();
                    model.maximize(&statistic, &moments)?;
                    let ms = |from: Instant| from.elapsed().as_secs_f64() * 1e3;
                    let found = [ms(clock), processor_ms() - before, ms(last)];
                    for (least, found) in least.iter_mut().zip(found) {
                        *least = least.min(found);
                    }
                }
                Ok(least)
            })?;
            if threads == 1 {
                alone = wall;
            }
            // The clock is the calling thread's: with others beside it, it says nothing of them.
            let processor = if threads == 1 { format!("{processor:.2}") } else { "-".into() };
            let speed_up = alone / wall;
            println!(
                "{name:10}  {threads:7}  {wall:12.2}  {processor:>12}  {m_step:9.3}  {speed_up:8.2}"
            );
        }
    }
    Ok(())
}

/// Unit normal clusters around means of deviation 3.
fn rows() -> Result<Vec<f64>> {
    let (key, n) = (Key::root(5), COMPONENTS * COLUMNS);
    let spread = Gmm::new(GmmSettings::new(1, n, Covariance::Diagonal))?;
    let prior = spread.parameters(&[1.0], &vec![0.0; n], &vec![9.0; n])?;
    let means = spread.sample(&prior, 1, key.child(1))?.rows;
    let truth = Gmm::new(GmmSettings::new(COMPONENTS, COLUMNS, Covariance::Diagonal))?;
    let theta = truth.parameters(&[0.1; COMPONENTS], &means, &vec![1.0; n])?;
    Ok(truth.sample(&theta, ROWS, key.child(2))?.rows)
}

/// Milliseconds that this thread has run, where the system says so.
fn processor_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    nanoseconds.map_or(f64::NAN, |ns| ns / 1e6)
}
