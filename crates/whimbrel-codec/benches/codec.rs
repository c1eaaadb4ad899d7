//! Coordinates per second of quantise + encode and of decode, beside a copy of the same vector.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::Key;

const D: usize = 1_000_000;

fn codecs() -> Vec<(&'static str, Codec)> {
    let made = [
        ("dithering s=1", Codec::dithering(1, Norm::P(2), None)),
        ("dithering s=16 bucket=256", Codec::dithering(16, Norm::P(2), Some(256))),
        ("block-p p=2 size=256", Codec::block_p(256, Norm::P(2))),
        ("sparse q=0.01", Codec::sparse(0.01)),
        ("top-k k=10000", Codec::top_k(10_000)),
    ];
    let mut codecs: Vec<_> =
        made.into_iter().map(|(name, codec)| (name, codec.expect("valid parameters"))).collect();
    codecs.extend([
        ("exact", Codec::Exact),
        ("exact-f32", Codec::ExactF32),
        ("natural", Codec::Natural),
        ("sign", Codec::Sign),
    ]);
    codecs
}

/// Sums of twelve uniforms: close to normal.
fn vector() -> Vec<f64> {
    let mut stream = Key::root(1).stream();
    (0..D).map(|_| (0..12).map(|_| stream.uniform()).sum::<f64>() - 6.0).collect()
}

fn throughput(c: &mut Criterion) {
    let x = vector();
    let mut out = vec![0.0; D];
    let mut group = c.benchmark_group("codec");
    group.throughput(Throughput::Elements(D as u64)).sample_size(20);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.bench_function("memcpy", |b| b.iter(|| out.copy_from_slice(black_box(&x))));
    for (name, codec) in codecs() {
        let key = Key::root(2);
        group.bench_function(format!("{name}/encode"), |b| b.iter(|| codec.encode(&x, key)));
        let packet = codec.encode(&x, key).expect("a finite vector");
        group.bench_function(format!("{name}/decode"), |b| {
            b.iter(|| codec.decode(black_box(&packet), &mut out))
        });
    }
    group.finish();
}

/// Short messages, where what a message costs besides its coordinates shows.
fn short(c: &mut Criterion) {
    let x = vector();
    let mut group = c.benchmark_group("codec-short");
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for d in [6, 210, 1000] {
        let x = &x[..d];
        let mut out = vec![0.0; d];
        group.throughput(Throughput::Elements(d as u64));
        for (name, codec) in codecs() {
            let key = Key::root(2);
            group.bench_function(format!("{name}/d={d}/both"), |b| {
                b.iter(|| {
                    let packet = codec.encode(x, key).expect("a finite vector");
                    codec.decode(&packet, &mut out)
                })
            });
        }
    }
    group.finish();
}

criterion_group!(benches, throughput, short);
criterion_main!(benches);
