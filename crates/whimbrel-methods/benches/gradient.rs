//! Rounds of the gradient family: a problem of a9a's shape (20 clients, 1,628 rows each, 124
//! columns, minibatches of 50), one-level dithering, encoding included; `sgd` in the same run.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use whimbrel_codec::channel::{Downlink, Preset, Uplink, gradient_alpha};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::{ClientData, DynMethod, Erased, FeatureRows, Key, Labelled};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Simulator};
use whimbrel_methods::federated::{BindRows, FirstMemories, Terms};
use whimbrel_methods::settings::{Batch, Budget, Weights};
use whimbrel_methods::sgd::{Gradient, Sgd};
use whimbrel_models::convex::Problem;

const CLIENTS: usize = 20;
const ROWS: usize = 1628;
const COLUMNS: usize = 123;

fn data() -> Vec<ClientData> {
    (0..CLIENTS)
        .map(|i| {
            let mut stream = Key::root(1).child(i as u64).stream();
            let mut values = vec![0.0; ROWS * COLUMNS];
            stream.fill_normal(&mut values);
            let targets = (0..ROWS).map(|_| if stream.uniform() < 0.3 { 1.0 } else { -1.0 });
            let columns = (0..COLUMNS).map(|j| j.to_string()).collect();
            let rows = FeatureRows::Dense(values);
            ClientData::Labelled(Labelled::new(columns, rows, targets.collect()).unwrap())
        })
        .collect()
}

fn method(preset: Preset) -> Arc<Erased<Sgd, BindRows>> {
    let problem = Problem::logistic(0.0, true).unwrap();
    let d = COLUMNS + 1;
    let codec = Codec::dithering(1, Norm::P(2), None).unwrap();
    let (up, down) = preset.compresses();
    let pick = |yes| if yes { codec.clone() } else { Codec::Exact };
    let omega = codec.omega(d).unwrap();
    let rule = preset.uplink().settled(gradient_alpha(omega));
    let down_rule = preset.downlink().settled(gradient_alpha(omega), 1.0 / (1.0 + omega));
    let method = Sgd {
        oracle: Gradient {
            batch: Batch::Sample { size: 50, replacement: true, local_steps: 1 },
            ..Gradient::new(problem, d)
        },
        terms: Terms {
            weights: Weights::Equal,
            memories: FirstMemories::Oracle,
            uplinks: vec![Uplink::new(pick(up), rule, d).unwrap()],
            downlink: Downlink::new(pick(down), down_rule, d, false).unwrap(),
            ..Terms::over(Codec::Exact, d, Budget::Rounds(u32::MAX)).unwrap()
        },
    };
    Arc::new(Erased(method, BindRows))
}

/// The data as every preset reads them: the binding depends on the problem alone.
fn federation() -> Arc<Federation> {
    let method = method(Preset::Sgd);
    let data = data().iter().map(|d| method.bind(d).unwrap()).collect();
    Arc::new(Federation::new(vec![String::new(); CLIENTS], data))
}

fn start(method: Arc<dyn DynMethod>, to: Arc<Federation>, seed: u64) -> Simulator {
    let (keys, faults) = (StageKeys::new(seed, 0), Faults::default());
    Simulator::start(method, to, keys, Participation::Everyone, faults).unwrap()
}

fn time(simulator: &mut Simulator, rounds: u64) -> Duration {
    let clock = Instant::now();
    for _ in 0..rounds {
        black_box(simulator.step().unwrap());
    }
    clock.elapsed()
}

fn rounds(criterion: &mut Criterion) {
    let federation = federation();
    let mut group = criterion.benchmark_group("gradient rounds");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3));
    for preset in [Preset::Sgd, Preset::Diana, Preset::Artemis, Preset::Mcm, Preset::RandMcm] {
        let method = method(preset);
        let mut simulator = start(method, federation.clone(), 1);
        group.bench_function(preset.name(), |b| b.iter_custom(|n| time(&mut simulator, n)));
    }
    group.finish();
}

/// `sgd` and others in turn, ten rounds each: whatever else the machine does meets both alike, and
/// the fastest blocks are those it left alone. Other seeds, so that none finds in the cache the
/// rows that another has just drawn.
fn in_turn(_: &mut Criterion) {
    const BLOCK: u64 = 10;
    const BLOCKS: usize = 1500;
    let federation = federation();
    let presets = [Preset::Sgd, Preset::Diana, Preset::Mcm, Preset::RandMcm];
    let methods = presets.map(method);
    let mut simulators: Vec<_> = methods
        .iter()
        .zip(1..)
        .map(|(m, seed)| start(m.clone(), federation.clone(), seed))
        .collect();
    let mut blocks = vec![Vec::new(); presets.len()];
    for _ in 0..BLOCKS {
        for (simulator, times) in simulators.iter_mut().zip(&mut blocks) {
            times.push(time(simulator, BLOCK).as_secs_f64() * 1e6 / BLOCK as f64);
        }
    }
    blocks.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    println!("in turn, microseconds per round: fastest block, 10 % quantile, median");
    for (preset, times) in presets.iter().zip(&blocks) {
        let at = [0, BLOCKS / 10, BLOCKS / 2];
        let [fastest, tenth, median] = at.map(|i| times[i]);
        let [a, b, c] = at.map(|i| times[i] / blocks[0][i]);
        let name = preset.name();
        println!("{name:10}{fastest:8.1}{tenth:8.1}{median:8.1}   over sgd {a:.2} {b:.2} {c:.2}");
    }
}

criterion_group!(benches, rounds, in_turn);
criterion_main!(benches);
