//! One round of FedEM over 100,000 clients, a tenth of them taking part.

mod federation;

use criterion::{Criterion, criterion_group, criterion_main};

fn rounds(c: &mut Criterion) {
    let mut simulator = federation::open(100_000).expect("the openings succeed");
    let mut group = c.benchmark_group("fedem");
    group.sample_size(20);
    group.bench_function("round, 10 % of 100,000 clients", |b| {
        b.iter(|| simulator.step().expect("a round succeeds"));
    });
    group.finish();
}

criterion_group!(benches, rounds);
criterion_main!(benches);
