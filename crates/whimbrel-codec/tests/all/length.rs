//! Encoded lengths against the empirical entropy of what is sent: of the magnitudes of the levels, and
//! of the signs of those that are not zero.

use whimbrel_codec::{Codec, Norm};
use whimbrel_core::Key;
use whimbrel_testkit::codec::{entropy_bits, shapes};

use crate::subject::{block, dithering};

/// Bits that the norms (four bytes each), the raw values and an ideal coder for the rest take.
fn ideal_bits(codec: &Codec, d: usize, bytes: &[u8], decoded: &[f64]) -> f64 {
    let in_blocks = |size: usize| {
        let steps = d.div_ceil(size);
        let levels = decoded.iter().enumerate().map(|(i, v)| {
            let at = 4 * (i / size);
            let step = f32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            if step == 0.0 { 0 } else { (v / f64::from(step)).round() as i64 }
        });
        32.0 * steps as f64 + levels_and_signs(levels)
    };
    match codec {
        Codec::Dithering(dithering) => in_blocks(dithering.bucket().unwrap_or(d)),
        Codec::BlockP(_) => in_blocks(100),
        Codec::Sparse(_) | Codec::TopK(_) => {
            let support = decoded.iter().map(|v| *v != 0.0);
            let kept = support.clone().filter(|&kept| kept).count();
            entropy_bits(support) + 64.0 * kept as f64
        }
        Codec::Sign => 32.0 + entropy_bits(decoded.iter().map(|v| *v < 0.0)),
        Codec::Natural => levels_and_signs(decoded.iter().map(|v| {
            if *v == 0.0 { 0 } else { v.signum() as i64 * (v.abs().log2() as i64 + 2000) }
        })),
        Codec::Exact | Codec::ExactF32 | Codec::Grid(_) => unreachable!("nothing to compress"),
    }
}

fn levels_and_signs(levels: impl Iterator<Item = i64> + Clone) -> f64 {
    let signs = levels.clone().filter(|&level| level != 0).map(|level| level < 0);
    entropy_bits(levels.map(i64::abs)) + entropy_bits(signs)
}

fn short(codec: &Codec) {
    short_from(codec, 1000);
}

fn short_from(codec: &Codec, least: usize) {
    for d in [1000, 3000, 8191, 8192, 50_000].into_iter().filter(|&d| d >= least) {
        for (shape, x) in shapes(d, false) {
            let mut decoded = vec![0.0; d];
            let packet = codec.encode_decoded(&x, Key::root(3), &mut decoded).unwrap();
            if packet.is_empty() {
                continue;
            }
            let ideal = ideal_bits(codec, d, packet.bytes(), &decoded);
            let bits = 8.0 * packet.len() as f64;
            let allowed = 1.05 * ideal + 64.0;
            assert!(bits <= allowed, "{codec:?}, {shape}, d = {d}: {bits} bits, ideal {ideal}");
        }
    }
}

#[test]
fn dithered_packets_are_short() {
    for s in [1, 2, 4, 16] {
        short(&dithering(s, Norm::P(2), None));
        short(&dithering(s, Norm::Infinity, None));
    }
    // An empirical entropy means something only where there are many more nonzeros than levels.
    short_from(&dithering(100, Norm::Infinity, Some(256)), 8191);
    short_from(&dithering(1000, Norm::P(2), None), 50_000);
    short(&dithering(16, Norm::P(2), Some(256)));
    short(&dithering(3, Norm::P(1), Some(64)));
}

#[test]
fn block_quantized_packets_are_short() {
    short(&block(100, Norm::P(2)));
    short(&block(100, Norm::Infinity));
}

#[test]
fn sparse_packets_are_short() {
    for q in [0.5, 0.1, 0.003] {
        short(&Codec::sparse(q).unwrap());
    }
    short(&Codec::sparse_exactly(30).unwrap());
    short(&Codec::top_k(100).unwrap());
}

#[test]
fn other_packets_are_short() {
    short(&Codec::Sign);
    short(&Codec::Natural);
}

/// Six coordinates with one level: the norm and at most three more bytes.
#[test]
fn small_packets_are_a_few_bytes() {
    let x = [0.3, -1.2, 0.05, 0.7, -0.1, 2.0];
    let lengths: Vec<usize> = (0..200)
        .map(|n| dithering(1, Norm::P(2), None).encode(&x, Key::root(n)).unwrap().len())
        .collect();
    assert!(lengths.iter().all(|&n| n <= 7), "{lengths:?}");
    assert!(lengths.iter().sum::<usize>() <= 200 * 6, "more than six bytes on average");
}
