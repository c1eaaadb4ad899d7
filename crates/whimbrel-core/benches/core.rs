//! Exact sums against a plain fold in a fixed order, and the random numbers and functions that
//! kernels lean on.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use whimbrel_core::{ExactSum, Key, math, vector};

/// Vectors to be summed: enough of them that no single one stays in the first cache.
const CLIENTS: usize = 16;

fn client_vectors(d: usize) -> Vec<Vec<f64>> {
    (0..CLIENTS)
        .map(|i| {
            let mut x = vec![0.0; d];
            Key::root(1).child(i as u64).stream().fill_normal(&mut x);
            x
        })
        .collect()
}

fn sums(c: &mut Criterion) {
    let mut group = c.benchmark_group("sum over clients, per coordinate");
    for d in [210, 100_000] {
        let vectors = client_vectors(d);
        group.throughput(Throughput::Elements((d * CLIENTS) as u64));
        group.bench_function(BenchmarkId::new("exact", d), |b| {
            let mut sum = ExactSum::new(d);
            b.iter(|| {
                sum.clear();
                for x in &vectors {
                    sum.add(black_box(x), 0.7).expect("finite");
                }
            });
        });
        group.bench_function(BenchmarkId::new("plain fold", d), |b| {
            let mut sum = vec![0.0; d];
            b.iter(|| {
                sum.fill(0.0);
                for x in &vectors {
                    vector::axpy(&mut sum, 0.7, black_box(x));
                }
            });
        });
        let sum = {
            let mut sum = ExactSum::new(d);
            vectors.iter().for_each(|x| sum.add(x, 0.7).expect("finite"));
            sum
        };
        group.throughput(Throughput::Elements(d as u64));
        group.bench_function(BenchmarkId::new("merge", d), |b| {
            b.iter_batched_ref(
                || sum.clone(),
                |into| into.merge(black_box(&sum)).expect("few addends"),
                BatchSize::LargeInput,
            );
        });
        group.bench_function(BenchmarkId::new("value", d), |b| {
            b.iter(|| black_box(&sum).value());
        });
    }
    group.finish();
}

fn functions_and_numbers(c: &mut Criterion) {
    const N: usize = 4096;
    let mut group = c.benchmark_group("per element");
    group.throughput(Throughput::Elements(N as u64));
    let mut uniform = vec![0.0; N];
    let mut stream = Key::root(2).stream();
    uniform.iter_mut().for_each(|x| *x = stream.uniform_open());
    let mut work = uniform.clone();
    type Named = (&'static str, fn(&mut [f64]));
    let slices: [Named; 3] = [
        ("exp", math::exp_slice),
        ("ln", math::ln_slice),
        ("normal quantile", math::normal_quantile_slice),
    ];
    for (name, function) in slices {
        group.bench_function(name, |b| {
            b.iter(|| {
                work.copy_from_slice(&uniform);
                function(black_box(&mut work));
            });
        });
    }
    let mut words = vec![0; N];
    group.bench_function("random words", |b| b.iter(|| stream.fill(black_box(&mut words))));
    group.bench_function("normals", |b| b.iter(|| stream.fill_normal(black_box(&mut work))));
    group.bench_function("normals one by one", |b| {
        b.iter(|| work.iter_mut().for_each(|x| *x = stream.normal()));
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).measurement_time(std::time::Duration::from_secs(2));
    targets = sums, functions_and_numbers
}
criterion_main!(benches);
