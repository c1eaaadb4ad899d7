//! The EM methods over a mixed table with gaps.

use crate::federation::*;
use std::sync::Arc;
use whimbrel_codec::channel::{DownRule, Memories};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::{ClientData, Erased, Key, Table};
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::choice::MixtureChoice;
use whimbrel_methods::fedem::{AutoStep, Batch, DownNoise, Estimator, Form, FrameKind};
use whimbrel_methods::federated::BindRows;
use whimbrel_methods::kmeans::FederatedKmeans;
use whimbrel_methods::mixture::MixtureStart;
use whimbrel_methods::one_shot::Once;
use whimbrel_models::mixed::{ColumnKind, Mixed, MixedSettings, Numeric};
use whimbrel_models::{LatentModel, MixtureModel, Rows};
use whimbrel_testkit::method::{MethodUnderTest, laws};
use whimbrel_testkit::runners::runners_agree;

const COLUMNS: [ColumnKind; 6] = [
    ColumnKind::Number,
    ColumnKind::Count,
    ColumnKind::Levels(2),
    ColumnKind::Number,
    ColumnKind::Levels(3),
    ColumnKind::Levels(2),
];

fn model(components: usize, numeric: Numeric) -> Mixed {
    Mixed::new(MixedSettings::new(components, COLUMNS.to_vec(), numeric)).unwrap()
}

/// Clients of these sizes with shares of two groups of their own; a fifth of the cells is missing, and
/// the second client observed no count.
fn tables(sizes: &[usize]) -> Vec<Table> {
    let names: Vec<String> = (1..=6).map(|j| format!("c{j}")).collect();
    let client = |(at, rows): (usize, &usize)| {
        let mut stream = Key::root(91).child(at as u64).stream();
        let share = 0.2 + 0.6 * (at % 4) as f64 / 3.0;
        let mut values = Vec::new();
        for _ in 0..*rows {
            let k = usize::from(stream.uniform() > share);
            let row = [
                [48.0, 63.0][k] + 7.0 * stream.normal(),
                stream.poisson([1.5, 6.0][k]) as f64,
                stream.categorical(&[[0.8, 0.2], [0.3, 0.7]][k]) as f64,
                [0.0, 1.5][k] + stream.normal(),
                stream.categorical(&[[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]][k]) as f64,
                stream.categorical(&[[0.9, 0.1], [0.5, 0.5]][k]) as f64,
            ];
            for (j, x) in row.into_iter().enumerate() {
                let gap = stream.uniform() < 0.2 || (at == 1 && j == 1);
                values.push(if gap { f64::NAN } else { x });
            }
        }
        Table::new(names.clone(), values).unwrap()
    };
    sizes.iter().enumerate().map(client).collect()
}

fn clients(count: usize) -> Vec<ClientData> {
    let sizes: Vec<usize> = (0..count).map(|i| 5 + (i * 7) % 30).collect();
    tables(&sizes).into_iter().map(ClientData::Table).collect()
}

fn setups() -> Vec<(&'static str, Setup)> {
    let base = || dithered(10);
    let batch = Batch::Sample { size: 7, replacement: true, local_steps: 1 };
    let spider = || Setup { estimator: Estimator::Spider { inner: 4 }, batch, ..base() };
    let fisher = || Setup { frame: FrameKind::Fisher, ..base() };
    let preserved = |memories| Some((dither(), DownRule::Preserved { alpha: 0.2, memories }));
    vec![
        ("em", Setup { gamma: 1.0, codec: Codec::Exact, memory: false, ..base() }),
        ("dem", Setup { memory: false, batch, ..base() }),
        ("fedem", Setup { auto: Some(AUTO), ..fisher() }),
        ("fedem, lean", Setup { form: Form::Lean, ..fisher() }),
        ("vr-fedem", Setup { frame: FrameKind::Fisher, ..spider() }),
        ("vr-fedem, state", Setup { form: Form::State, ..spider() }),
        (
            "fedem over mcm",
            Setup { form: Form::State, down: preserved(Memories::Groups(1)), ..fisher() },
        ),
        ("fedem over rand-mcm", Setup { down: preserved(Memories::PerClient), ..fisher() }),
    ]
}

#[test]
fn methods_pass_the_battery() {
    for (name, setup) in setups() {
        let method = Erased(setup.fit(model(2, Numeric::Full), MixtureStart::Moments), BindRows);
        laws(&MethodUnderTest { name, method: &method, data: &clients(8), exchanges: 4 });
    }
}

#[test]
fn runners_give_the_same_bits() {
    for (name, setup) in setups() {
        let method = setup.fit(model(2, Numeric::Diagonal), MixtureStart::Moments);
        runners_agree(name, Erased(method, BindRows), &clients(14));
    }
}

#[test]
fn stages_before_a_fit() {
    let kmeans =
        || Erased(Once(FederatedKmeans { model: model(3, Numeric::Full), rows_min: 5 }), BindRows);
    let choice = || {
        let models = (1..=3).map(|k| model(k, Numeric::Diagonal)).collect();
        Erased(
            MixtureChoice {
                models,
                starts: 2,
                clusters: true,
                rows_min: 5,
                privacy: Default::default(),
                log_scale: 0.0,
            },
            BindRows,
        )
    };
    runners_agree("k-means", kmeans(), &clients(14));
    runners_agree("choice", choice(), &clients(14));
    let data = clients(8);
    laws(&MethodUnderTest { name: "k-means", method: &kmeans(), data: &data, exchanges: 1 });
    laws(&MethodUnderTest { name: "choice", method: &choice(), data: &data, exchanges: 12 });
}

/// The objective at the end; the start is drawn from moments with one key for all.
fn fitted<M: MixtureModel>(setup: &Setup, model: M, tables: &[Table]) -> f64 {
    let method = Arc::new(Erased(setup.fit(model, MixtureStart::Moments), BindRows));
    let mut simulator = simulator(method, tables, Participation::Everyone, Faults::default());
    while simulator.step().unwrap().is_some() {}
    figure(&mut simulator, "objective")
}

/// Federated exact EM is pooled EM, and compressed EM at the defaults ends within 0.05 nats per row of
/// it, for equal clients and for one with nine tenths of the rows.
#[test]
fn compressed_fits_end_at_exact_em() {
    let codec = Codec::dithering(4, Norm::P(2), Some(32)).unwrap();
    for sizes in [[100; 8], [720, 10, 10, 10, 10, 10, 15, 15]] {
        let tables = tables(&sizes);
        for numeric in [Numeric::Diagonal, Numeric::Full] {
            let model = model(2, numeric);
            let exact = Setup { rounds: 600, memory: false, ..Setup::default() };
            let reference = fitted(&exact, model.clone(), &tables);
            let pooled: Vec<f64> = tables.iter().flat_map(|t| t.values.clone()).collect();
            let data = model.data_from_rows(&pooled).unwrap();
            let moments = model.moments(&data).unwrap();
            let q = model.statistic_len();
            let omega = codec.omega(q).unwrap();
            let auto = AutoStep { omega, p: 1.0, downlink: DownNoise::None, ..AUTO };
            let compressed = Setup {
                codec: codec.clone(),
                frame: FrameKind::Fisher,
                auto: Some(auto),
                rounds: 1500,
                ..Setup::default()
            };
            let own = fitted(&compressed, model.clone(), &tables);
            let gap = own - reference;
            assert!(gap < 0.05, "{numeric:?}, {sizes:?}: {gap} nats above exact EM");
            // One component, fitted in closed form, is worse than both.
            let mut statistic = vec![0.0; q];
            let theta = model.initial_from_moments(&moments, Key::root(1)).unwrap();
            model.expect(&theta, &data, Rows::All, &mut statistic).unwrap();
            assert!(model.baseline(&statistic, &moments).unwrap() > reference.max(own));
        }
    }
}
