//! Gradients of logistic regression: a batch of 50 rows out of one of 20 clients of 1,628 rows x 124
//! columns (dense, and sparse with 14 entries), a full pass over 32,561 x 124, and the optimum.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use whimbrel_core::{ClientData, FeatureRows, Key, Labelled};
use whimbrel_models::Rows;
use whimbrel_models::convex::{Examples, Problem, solve};

const COLUMNS: usize = 123;

fn names() -> Vec<String> {
    (0..COLUMNS).map(|j| j.to_string()).collect()
}

fn targets(rows: usize) -> Vec<f64> {
    let mut stream = Key::root(1).stream();
    (0..rows).map(|_| if stream.uniform() < 0.25 { 1.0 } else { -1.0 }).collect()
}

fn dense(problem: &Problem, rows: usize, tag: u64) -> Examples {
    let mut values = vec![0.0; rows * COLUMNS];
    Key::root(2).child(tag).stream().fill_normal(&mut values);
    let rows = Labelled::new(names(), FeatureRows::Dense(values), targets(rows)).unwrap();
    problem.bind(&ClientData::Labelled(rows)).unwrap()
}

fn sparse(problem: &Problem, rows: usize, tag: u64) -> Examples {
    let mut stream = Key::root(3).child(tag).stream();
    let mut columns = Vec::new();
    for _ in 0..rows {
        columns.extend((0..14).map(|k| k * 8 + (stream.uniform() * 8.0) as u32));
    }
    let features = FeatureRows::Sparse {
        starts: (0..=rows).map(|i| 14 * i).collect(),
        values: vec![1.0; columns.len()],
        columns,
    };
    let rows = Labelled::new(names(), features, targets(rows)).unwrap();
    problem.bind(&ClientData::Labelled(rows)).unwrap()
}

fn gradients(criterion: &mut Criterion) {
    let problems =
        [Problem::logistic(0.0, true).unwrap(), Problem::least_squares(0.0, true).unwrap()];
    for problem in &problems {
        let w: Vec<f64> = (0..=COLUMNS).map(|j| 0.01 * (j % 7) as f64 - 0.03).collect();
        let mut out = vec![0.0; COLUMNS + 1];
        let mut group = criterion.benchmark_group(problem.name());
        type Make = fn(&Problem, usize, u64) -> Examples;
        for (layout, make) in [("dense", dense as Make), ("sparse", sparse as Make)] {
            // Clients in turn, so that rows come from where they come from in a run.
            let clients: Vec<Examples> = (0..20).map(|c| make(problem, 1628, c)).collect();
            let mut stream = Key::root(4).stream();
            let mut batches = Vec::new();
            for _ in 0..200 {
                let batch: Vec<u32> = (0..50).map(|_| (stream.uniform() * 1628.0) as u32).collect();
                batches.push(batch);
            }
            let mut turn = 0;
            group.bench_function(format!("batch_50x124/{layout}"), |b| {
                b.iter(|| {
                    turn += 1;
                    let rows = Rows::These(&batches[turn % 200]);
                    let data = &clients[turn % 20];
                    black_box(problem.gradient(black_box(&w), data, rows, &mut out).unwrap())
                })
            });
            let one = Rows::These(&batches[0]);
            group.bench_function(format!("batch_50x124_cached/{layout}"), |b| {
                b.iter(|| problem.gradient(black_box(&w), &clients[0], one, &mut out).unwrap())
            });
            let all = make(problem, 32_561, 99);
            group.bench_function(format!("full_32561x124/{layout}"), |b| {
                b.iter(|| problem.gradient(black_box(&w), &all, Rows::All, &mut out).unwrap())
            });
        }
    }
}

fn optima(criterion: &mut Criterion) {
    let problem = Problem::logistic(0.0, true).unwrap();
    let clients: Vec<Examples> = (0..20).map(|c| dense(&problem, 1628, c)).collect();
    let weighted: Vec<(f64, &Examples)> = clients.iter().map(|c| (0.05, c)).collect();
    let mut group = criterion.benchmark_group("optimum");
    group.sample_size(10);
    group.bench_function("logistic_20x1628x124", |b| {
        b.iter(|| solve(&problem, &weighted, 1e-10).unwrap())
    });
    group.bench_function("smoothness_1628x124", |b| b.iter(|| problem.smoothness(&clients[0])));
}

criterion_group!(benches, gradients, optima);
criterion_main!(benches);
