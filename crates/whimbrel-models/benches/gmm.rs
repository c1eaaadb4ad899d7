//! One EM iteration on 70,000 rows x 20 columns with 10 components, on one thread and on two, and
//! the E-step of a small client: 20 rows, parameters as they come off the wire.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use whimbrel_core::Key;
use whimbrel_models::gmm::{Covariance, Gmm, GmmData, GmmParameters, GmmSettings};
use whimbrel_models::{LatentModel, MixtureModel, Rows};

const COMPONENTS: usize = 10;
const COLUMNS: usize = 20;

fn model(covariance: Covariance) -> Gmm {
    let mut settings = GmmSettings::new(COMPONENTS, COLUMNS, covariance);
    settings.want_moments = true;
    Gmm::new(settings).unwrap()
}

/// Unit normal clusters around means of deviation 3, and a start from their pooled moments.
fn problem(model: &Gmm, rows: usize) -> (GmmData, Vec<f64>, GmmParameters) {
    let (key, n) = (Key::root(5), COMPONENTS * COLUMNS);
    let truth = Gmm::new(GmmSettings::new(COMPONENTS, COLUMNS, Covariance::Diagonal)).unwrap();
    let spread = Gmm::new(GmmSettings::new(1, n, Covariance::Diagonal)).unwrap();
    let prior = spread.parameters(&[1.0], &vec![0.0; n], &vec![9.0; n]).unwrap();
    let means = spread.sample(&prior, 1, key.child(1)).unwrap().rows;
    let theta = truth.parameters(&[0.1; COMPONENTS], &means, &vec![1.0; n]).unwrap();
    let values = truth.sample(&theta, rows, key.child(2)).unwrap().rows;
    let data = model.data_from_rows(&values).unwrap();
    let moments = model.moments(&data).unwrap();
    let start = model.initial_from_moments(&moments, key.child(3)).unwrap();
    (data, moments, start)
}

fn iteration(criterion: &mut Criterion) {
    let kinds = [
        ("tied", Covariance::Tied),
        ("diagonal", Covariance::Diagonal),
        ("full", Covariance::Full),
    ];
    for (name, covariance) in kinds {
        let model = model(covariance);
        let (data, moments, theta) = problem(&model, 70_000);
        let mut statistic = vec![0.0; model.statistic_len()];
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut group = criterion.benchmark_group("em_70000x20x10");
            group.sample_size(20);
            group.bench_function(format!("{name}/{threads}"), |b| {
                pool.install(|| {
                    b.iter(|| {
                        model.expect(&theta, &data, Rows::All, &mut statistic).unwrap();
                        black_box(model.maximize(&statistic, &moments).unwrap())
                    })
                })
            });
        }
    }
}

fn small_client(criterion: &mut Criterion) {
    for (name, covariance) in [("tied", Covariance::Tied), ("full", Covariance::Full)] {
        let model = model(covariance);
        let (_, _, theta) = problem(&model, 2000);
        let (data, _, _) = problem(&model, 20);
        let vector = model.to_vector(&theta);
        let mut statistic = vec![0.0; model.statistic_len()];
        let mut group = criterion.benchmark_group("client_20x20x10");
        group.bench_function(format!("{name}/from_vector"), |b| {
            b.iter(|| model.from_vector(black_box(&vector)).unwrap())
        });
        group.bench_function(format!("{name}/from_vector_and_expect"), |b| {
            b.iter(|| {
                let theta = model.from_vector(black_box(&vector)).unwrap();
                model.expect(&theta, &data, Rows::All, &mut statistic).unwrap()
            })
        });
        let batch: Vec<u32> = (0..10).map(|i| (i * 7) % 20).collect();
        group.bench_function(format!("{name}/expect_10_of_20"), |b| {
            b.iter(|| model.expect(&theta, &data, Rows::These(&batch), &mut statistic).unwrap())
        });
    }
}

criterion_group!(benches, iteration, small_client);
criterion_main!(benches);
