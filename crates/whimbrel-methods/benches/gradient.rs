//! Rounds of the gradient family: a problem of a9a's shape (20 clients, 1,628 rows each, 124
//! columns, minibatches of 50), one-level dithering, encoding included; `sgd` in the same run.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use whimbrel_codec::channel::{Downlink, UpRule, Uplink, gradient_alpha};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::{ClientData, DynMethod, Erased, FeatureRows, Key, Labelled};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Simulator};
use whimbrel_methods::settings::{Batch, Budget, Weights};
use whimbrel_methods::sgd::preset::UpKind;
use whimbrel_methods::sgd::{Average, BindExamples, Preset, Sgd, StepRule};
use whimbrel_models::convex::{Logistic, Problem};

const CLIENTS: usize = 20;
const ROWS: usize = 1628;
const COLUMNS: usize = 123;

fn data() -> Vec<ClientData> {
    (0..CLIENTS)
        .map(|i| {
            let mut stream = Key::root(1).fold(i as u64).stream();
            let mut values = vec![0.0; ROWS * COLUMNS];
            stream.fill_normal(&mut values);
            let targets = (0..ROWS).map(|_| if stream.uniform() < 0.3 { 1.0 } else { -1.0 });
            let columns = (0..COLUMNS).map(|j| j.to_string()).collect();
            let rows = FeatureRows::Dense(values);
            ClientData::Labelled(Labelled::new(columns, rows, targets.collect()).unwrap())
        })
        .collect()
}

fn method(preset: Preset) -> Erased<Sgd, BindExamples> {
    let problem: Arc<dyn Problem> = Arc::new(Logistic::new(0.0, true).unwrap());
    let d = COLUMNS + 1;
    let codec = Codec::dithering(1, Norm::P(2), None).unwrap();
    let (up, down) = preset.compresses();
    let pick = |yes| if yes { codec.clone() } else { Codec::Exact };
    let rule = match preset.uplink() {
        UpKind::Memory => UpRule::Memory { alpha: gradient_alpha(codec.omega(d).unwrap()) },
        UpKind::Feedback => UpRule::Feedback,
        UpKind::Plain => UpRule::Plain,
    };
    let down_rule = preset.downlink(&pick(down), d, None, Some(4)).unwrap();
    let method = Sgd {
        problem,
        dimension: d,
        batch: Batch::Sample { size: 50, replacement: true, local_steps: 1 },
        budget: Budget::Rounds(u32::MAX),
        step: StepRule::OverSmoothness { factor: 1.0, frobenius: false },
        momentum: 0.0,
        average: Average::Last,
        weights: Weights::Equal,
        participation: 1.0,
        open_memories: true,
        uplinks: vec![Uplink::new(pick(up), rule, d).unwrap()],
        own_uplinks: BTreeMap::new(),
        downlink: Downlink::new(pick(down), down_rule, d, false).unwrap(),
        reference: None,
    };
    Erased(method, BindExamples)
}

fn rounds(criterion: &mut Criterion) {
    let data = data();
    let mut group = criterion.benchmark_group("gradient rounds");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3));
    for preset in [Preset::Sgd, Preset::Diana, Preset::Artemis, Preset::Mcm, Preset::RandMcm] {
        let method = method(preset);
        let bound = data.iter().map(|d| method.bind(d).unwrap()).collect();
        let federation = Federation { names: vec![String::new(); CLIENTS], data: bound };
        let mut simulator = Simulator::start(
            &method,
            &federation,
            StageKeys::new(1, 0),
            Participation::Everyone,
            Faults::default(),
        )
        .unwrap();
        group.bench_function(preset.name(), |b| {
            b.iter_custom(|n| {
                let clock = Instant::now();
                for _ in 0..n {
                    black_box(simulator.step().unwrap());
                }
                clock.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, rounds);
criterion_main!(benches);
