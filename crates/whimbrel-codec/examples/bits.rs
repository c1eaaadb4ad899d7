//! Prints the table of encoded bits per coordinate beside the empirical entropy, in Markdown.
//!
//! Vectors are standard normal. The entropy is that of the magnitudes of the levels and of the signs
//! of the nonzero ones, plus 32 bits per norm, plus the values that are sent as they are.

use whimbrel_codec::{Codec, Norm};
use whimbrel_core::{Key, Result};
use whimbrel_testkit::codec::entropy_bits;

const LENGTHS: [usize; 5] = [100, 1000, 10_000, 100_000, 1_000_000];

fn main() -> Result<()> {
    let header: Vec<String> = LENGTHS.iter().map(|d| format!("d = {d}")).collect();
    println!("| codec | {} |", header.join(" | "));
    println!("|---|{}", "---|".repeat(LENGTHS.len()));
    for (name, codec) in [
        ("dithering, s = 1", Codec::dithering(1, Norm::P(2), None)?),
        ("dithering, s = 4", Codec::dithering(4, Norm::P(2), None)?),
        ("dithering, s = 16, buckets of 256", Codec::dithering(16, Norm::P(2), Some(256))?),
        ("dithering, s = 4, norm infinity", Codec::dithering(4, Norm::Infinity, None)?),
        ("block-p, p = 2, blocks of 64", Codec::block_p(64, Norm::P(2))?),
        ("sparse, q = 0.05", Codec::sparse(0.05)?),
        ("natural", Codec::Natural),
        ("top-k, k = 10", Codec::top_k(10)?),
        ("sign", Codec::Sign),
    ] {
        let cells: Result<Vec<String>> = LENGTHS.iter().map(|&d| cell(&codec, d)).collect();
        println!("| {name} | {} |", cells?.join(" | "));
    }
    Ok(())
}

/// Encoded and ideal bits per coordinate, averaged over messages where they are short.
fn cell(codec: &Codec, d: usize) -> Result<String> {
    let messages = (10_000 / d).max(1);
    let (mut bits, mut ideal) = (0.0, 0.0);
    for n in 0..messages as u64 {
        let key = Key::root(1).child(d as u64).child(n);
        let mut x = vec![0.0; d];
        key.child(0).stream().fill_normal(&mut x);
        let mut decoded = vec![0.0; d];
        let packet = codec.encode_decoded(&x, key.child(1), &mut decoded)?;
        bits += 8.0 * packet.len() as f64;
        ideal += ideal_bits(codec, packet.bytes(), &decoded);
    }
    let per = (messages * d) as f64;
    Ok(format!("{} ({})", digits(bits / per), digits(ideal / per)))
}

fn digits(bits: f64) -> String {
    if bits < 0.1 { format!("{bits:.5}") } else { format!("{bits:.3}") }
}

fn ideal_bits(codec: &Codec, bytes: &[u8], decoded: &[f64]) -> f64 {
    let d = decoded.len();
    match codec {
        Codec::Dithering(dithering) => in_blocks(dithering.bucket().unwrap_or(d), bytes, decoded),
        Codec::BlockP(_) => in_blocks(64, bytes, decoded),
        Codec::Natural => {
            levels_and_signs(decoded.iter().map(|&v| match v.to_bits() >> 52 & 2047 {
                0 => 0,
                exponent if v < 0.0 => -(exponent as i64),
                exponent => exponent as i64,
            }))
        }
        Codec::Sign => 32.0 + entropy_bits(decoded.iter().map(|v| *v < 0.0)),
        _ => {
            let sent = decoded.iter().filter(|v| **v != 0.0).count();
            64.0 * sent as f64 + entropy_bits(decoded.iter().map(|v| *v != 0.0))
        }
    }
}

/// Levels are decoded values over the steps at the head of the packet.
fn in_blocks(size: usize, bytes: &[u8], decoded: &[f64]) -> f64 {
    let levels = decoded.iter().enumerate().map(|(i, v)| {
        let at = 4 * (i / size);
        let step = f32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        (v / f64::from(step)).round() as i64
    });
    32.0 * decoded.len().div_ceil(size) as f64 + levels_and_signs(levels)
}

fn levels_and_signs(levels: impl Iterator<Item = i64> + Clone) -> f64 {
    let signs = levels.clone().filter(|&level| level != 0).map(|level| level < 0);
    entropy_bits(levels.map(i64::abs)) + entropy_bits(signs)
}
