//! The laws of codecs.
//!
//! [`laws`] checks the contract of codecs: decoding returns the operator's value, malformed packets
//! are refused or decode to finite numbers, non-finite vectors are refused, and the operator is
//! unbiased with the stated variance, or has the stated contraction.
//!
//! The statistical laws use fixed seeds and compare means of independent draws with a margin of
//! [`MARGIN`] standard errors: under the normal approximation a correct codec fails one comparison
//! with probability 2e-9, and a battery of a thousand comparisons with probability 2e-6.

use whimbrel_core::{Error, Key, Result, Stream, math};

/// The tolerance of means, in standard errors.
pub const MARGIN: f64 = 6.0;

type Encode<'a> = dyn Fn(&[f64], Key) -> Result<Vec<u8>> + 'a;
type EncodeDecoded<'a> = dyn Fn(&[f64], Key) -> Result<(Vec<u8>, Vec<f64>)> + 'a;
type Decode<'a> = dyn Fn(&[u8], usize) -> Result<Vec<f64>> + 'a;

/// A codec as functions on `f64` vectors and bytes.
pub struct CodecUnderTest<'a> {
    /// The name in messages.
    pub name: String,
    /// Whether vectors are `f32`: the battery then rounds its numbers.
    pub narrow: bool,
    /// The variance constant; `None` for biased codecs.
    pub omega: &'a dyn Fn(usize) -> Option<f64>,
    /// The contraction constant; `None` for unbiased codecs.
    pub contraction: &'a dyn Fn(usize) -> Option<f64>,
    pub encode: &'a Encode<'a>,
    /// The packet's bytes and the value that they decode to.
    pub encode_decoded: &'a EncodeDecoded<'a>,
    /// The vector of the given length.
    pub decode: &'a Decode<'a>,
}

/// Every law, on vectors of many lengths and shapes.
pub fn laws(codec: &CodecUnderTest) {
    for d in [0, 1, 2, 3, 6, 63, 511, 512, 513, 1000, 9001] {
        for (shape, x) in shapes(d, codec.narrow) {
            let what = format!("{}, {shape}, d = {d}", codec.name);
            let bytes = decoding_gives_what_the_operator_returned(codec, &what, &x);
            malformed_packets_are_refused_or_finite(codec, &what, &bytes, d);
        }
        zero_stays_zero(codec, d);
    }
    for d in [1, 2, 6, 100] {
        for (shape, x) in extremes(d, codec.narrow) {
            let what = format!("{}, {shape}, d = {d}", codec.name);
            decoding_gives_what_the_operator_returned(codec, &what, &x);
        }
    }
    what_is_not_finite_is_refused(codec);
    for d in [1, 2, 7, 60] {
        for (shape, x) in shapes(d, codec.narrow) {
            let what = format!("{}, {shape}, d = {d}", codec.name);
            if (codec.omega)(d).is_some() {
                mean_is_the_vector(codec, &what, &x);
                variance_is_bounded(codec, &what, &x);
            }
            contracts(codec, &what, &x);
        }
    }
}

/// A mean of independent draws with its standard error.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
}

impl Estimate {
    pub fn of(draws: &[f64]) -> Self {
        let n = draws.len() as f64;
        let mean = draws.iter().sum::<f64>() / n;
        let square = draws.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
        Self { mean, error: (square / n).sqrt() }
    }
}

/// Estimates `E||C(x) - x||^2` from `draws` draws.
pub fn mean_square_error(codec: &CodecUnderTest, x: &[f64], draws: u64) -> Estimate {
    let errors: Vec<f64> =
        (0..draws).map(|n| squared_distance(&value(codec, x, Key::root(31).child(n)), x)).collect();
    Estimate::of(&errors)
}

/// The entropy of the symbols under their own histogram, in bits.
pub fn entropy_bits<S: Ord>(symbols: impl IntoIterator<Item = S>) -> f64 {
    let mut counts = std::collections::BTreeMap::<S, f64>::new();
    for symbol in symbols {
        *counts.entry(symbol).or_default() += 1.0;
    }
    let total: f64 = counts.values().sum();
    let nats: f64 = counts.values().map(|&c| c * math::ln(total / c)).sum();
    nats / math::ln(2.0)
}

/// Test vectors: normal, heavy-tailed (Student with two degrees of freedom), one in twenty nonzero,
/// constant, one nonzero coordinate, geometric magnitudes.
pub fn shapes(d: usize, narrow: bool) -> Vec<(&'static str, Vec<f64>)> {
    let mut stream = Key::root(17).child(d as u64).stream();
    let normal: Vec<f64> = (0..d).map(|_| stream.normal()).collect();
    let heavy: Vec<f64> = (0..d).map(|_| student(&mut stream)).collect();
    let sparse: Vec<f64> =
        normal.iter().map(|&v| if stream.uniform() < 0.05 { v } else { 0.0 }).collect();
    let mut single = vec![0.0; d];
    if let Some(v) = single.last_mut() {
        *v = -0.3;
    }
    let geometric = (0..d).map(|i| math::exp(-(i as f64) * 20.0 / d.max(60) as f64)).collect();
    let mut shapes = vec![
        ("normal", normal),
        ("heavy-tailed", heavy),
        ("sparse", sparse),
        ("constant", vec![-1.7; d]),
        ("single", single),
        ("geometric", geometric),
    ];
    if narrow {
        for (_, x) in &mut shapes {
            round_to_f32(x);
        }
    }
    shapes
}

/// Student's t with two degrees of freedom: a normal over the root of an exponential.
fn student(stream: &mut Stream) -> f64 {
    let exponential = -math::ln(stream.uniform_open());
    stream.normal() / exponential.sqrt()
}

/// Vectors near the ends of the number range.
fn extremes(d: usize, narrow: bool) -> Vec<(&'static str, Vec<f64>)> {
    let (large, tiny, smallest) =
        if narrow { (1e35, 1e-40, 1.4e-45) } else { (1e300, 1e-310, 5e-324) };
    let wave = |scale: f64| -> Vec<f64> {
        (0..d).map(|i| scale * if i % 3 == 0 { -1.0 } else { 0.1 + i as f64 / d as f64 }).collect()
    };
    let mut mixed = wave(tiny);
    mixed[0] = large;
    let mut extremes = vec![
        ("large", wave(large)),
        ("subnormal", wave(tiny)),
        ("smallest", vec![smallest; d]),
        ("mixed", mixed),
    ];
    if narrow {
        for (_, x) in &mut extremes {
            round_to_f32(x);
        }
    }
    extremes
}

fn round_to_f32(x: &mut [f64]) {
    for v in x {
        *v = f64::from(*v as f32);
    }
}

fn decoding_gives_what_the_operator_returned(
    codec: &CodecUnderTest,
    what: &str,
    x: &[f64],
) -> Vec<u8> {
    let key = Key::root(5).child(x.len() as u64);
    let bytes = (codec.encode)(x, key).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (again, drawn) = (codec.encode_decoded)(x, key).unwrap();
    assert_eq!(bytes, again, "{what}: encode and encode_decoded write different bytes");
    let decoded = (codec.decode)(&bytes, x.len()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(
        bits(&decoded) == bits(&drawn),
        "{what}: decoding gives another vector than the operator"
    );
    assert!(decoded.iter().all(|v| v.is_finite()), "{what}: decoded to something not finite");
    bytes
}

fn malformed_packets_are_refused_or_finite(
    codec: &CodecUnderTest,
    what: &str,
    bytes: &[u8],
    d: usize,
) {
    let check = |bytes: &[u8], how: &str| match (codec.decode)(bytes, d) {
        Ok(v) => assert!(v.iter().all(|v| v.is_finite()), "{what}, {how}: not finite"),
        Err(Error::Peer { .. }) => {}
        Err(other) => panic!("{what}, {how}: not the peer's fault but: {other}"),
    };
    // Everything on short packets, a sample on long ones.
    let mut stream = Key::root(23).child(bytes.len() as u64).stream();
    let mut positions: Vec<usize> = (0..bytes.len()).collect();
    if bytes.len() > 40 {
        stream.shuffle(&mut positions[40..]);
        positions.truncate(60);
    }
    for at in positions {
        check(&bytes[..at], &format!("truncated to {at} bytes"));
        for bit in 0..8 {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            check(&flipped, &format!("bit {bit} of byte {at} flipped"));
        }
    }
    for extra in [0u8, 1, 0x80, 0xA5, 0xFF] {
        let mut longer = bytes.to_vec();
        longer.push(extra);
        let refused = matches!((codec.decode)(&longer, d), Err(Error::Peer { .. }));
        assert!(refused, "{what}: a trailing byte {extra:#x} is not refused");
    }
    for length in [1, 2, 5, 9, 40, 300] {
        let noise: Vec<u8> = (0..length).map(|_| stream.next_u64() as u8).collect();
        check(&noise, "noise");
    }
}

fn zero_stays_zero(codec: &CodecUnderTest, d: usize) {
    let bytes = (codec.encode)(&vec![0.0; d], Key::root(1)).unwrap();
    let decoded = (codec.decode)(&bytes, d).unwrap();
    assert!(decoded.iter().all(|&v| v == 0.0), "{}: zero becomes something", codec.name);
}

fn what_is_not_finite_is_refused(codec: &CodecUnderTest) {
    for d in [1, 5, 700] {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for at in [0, d / 2, d - 1] {
                let mut x = vec![1.0; d];
                x[at] = bad;
                let refused =
                    matches!((codec.encode)(&x, Key::root(1)), Err(Error::Numerical { .. }));
                assert!(refused, "{}: {bad} at {at} of {d} is not refused", codec.name);
            }
        }
    }
}

/// `E C(x) = x`, along `x` itself, the ones, three random signs and the first coordinates.
fn mean_is_the_vector(codec: &CodecUnderTest, what: &str, x: &[f64]) {
    const DRAWS: u64 = 3000;
    let d = x.len();
    let mut stream = Key::root(41).stream();
    let mut directions = vec![x.to_vec(), vec![1.0; d]];
    for _ in 0..3 {
        directions.push((0..d).map(|_| if stream.uniform() < 0.5 { -1.0 } else { 1.0 }).collect());
    }
    for i in 0..d.min(3) {
        directions.push((0..d).map(|j| f64::from(i == j)).collect());
    }
    let mut projections = vec![Vec::new(); directions.len()];
    for n in 0..DRAWS {
        let value = value(codec, x, Key::root(43).child(n));
        for (seen, direction) in projections.iter_mut().zip(&directions) {
            seen.push(value.iter().zip(x).zip(direction).map(|((c, x), v)| (c - x) * v).sum());
        }
    }
    for (seen, direction) in projections.iter().zip(&directions) {
        let estimate = Estimate::of(seen);
        // Norms are sent with 24 digits, and what then goes wrong once in 2^24 draws is not seen.
        let rounding = f64::from(f32::EPSILON)
            * x.iter().zip(direction).map(|(x, v)| (x * v).abs()).sum::<f64>();
        // A coordinate that is drawn less than once in these draws says nothing: add what a
        // single draw would move the mean by.
        let largest = seen.iter().fold(0.0, |a: f64, v| a.max(v.abs()));
        let margin = MARGIN * (estimate.error + largest / DRAWS as f64) + rounding;
        assert!(estimate.mean.abs() <= margin, "{what}: biased, {estimate:?}, margin {margin}");
    }
}

fn variance_is_bounded(codec: &CodecUnderTest, what: &str, x: &[f64]) {
    let omega = (codec.omega)(x.len()).expect("an unbiased codec");
    let estimate = mean_square_error(codec, x, 3000);
    let square: f64 = x.iter().map(|v| v * v).sum();
    // Norms are rounded up to 24 digits, which moves the variance by as much of sqrt(d) ||x||^2.
    let slack = (x.len() as f64).sqrt() * square * 1e-6;
    let bound = omega * square + MARGIN * estimate.error + slack;
    assert!(estimate.mean <= bound, "{what}: variance {estimate:?} above {bound}");
}

fn contracts(codec: &CodecUnderTest, what: &str, x: &[f64]) {
    let Some(delta) = (codec.contraction)(x.len()) else { return };
    let square: f64 = x.iter().map(|v| v * v).sum();
    let error = squared_distance(&value(codec, x, Key::root(2)), x);
    assert!(error <= (1.0 - delta) * square + 1e-6 * square, "{what}: {error} of {square}");
}

fn value(codec: &CodecUnderTest, x: &[f64], key: Key) -> Vec<f64> {
    let bytes = (codec.encode)(x, key).expect("a finite vector");
    (codec.decode)(&bytes, x.len()).expect("an encoded packet")
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}
