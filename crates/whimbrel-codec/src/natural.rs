//! Natural compression: every coordinate rounded at random to one of the two powers of two around
//! it (Horváth et al., 2019). `omega = 1/8`, at `|x_i| = 4/3 * 2^n`.
//!
//! Format: empty for the zero vector; otherwise two bytes with the largest exponent present
//! (little-endian, counted from 1 for the smallest power of two of the vector's type), then signed
//! levels: 0 for a zero, otherwise 1 plus the distance of the exponent from the largest.

use whimbrel_core::{Error, Key, Result, kernel};

use crate::coding::levels::{self, Alphabet};
use crate::norm::exp2;
use crate::scalar::{BLOCK, check_finite};
use crate::{Packet, Scalar};

/// The variance constant: the largest value of `(y - 1)(2 - y)/y^2` on [1, 2].
pub(crate) const OMEGA: f64 = 0.125;

pub(crate) fn encode<T: Scalar>(x: &[T], key: Key, decoded: Option<&mut [T]>) -> Result<Packet> {
    check_finite(x)?;
    let mut powers = draw(x, key);
    let top = powers.iter().map(|p| p.unsigned_abs()).max().unwrap_or(0);
    if i32::from(top) > count::<T>() {
        return Err(Error::numerical(
            "a coordinate of the vector to compress exceeds the largest power of two of its type",
        ));
    }
    if let Some(out) = decoded {
        value(&powers, out);
    }
    if top == 0 {
        return Ok(Packet::default());
    }
    let mut bytes = top.to_le_bytes().to_vec();
    flip(&mut powers, top);
    levels::write(&powers, Alphabet { largest: top, signed: true }, &mut bytes);
    Ok(Packet::from_bytes(bytes))
}

pub(crate) fn decode<T: Scalar>(packet: &Packet, out: &mut [T]) -> Result<()> {
    let mut powers = vec![0; out.len()];
    if !packet.is_empty() {
        let Some((head, body)) = packet.bytes().split_first_chunk::<2>() else {
            return Err(Error::peer("a packet ends inside its largest exponent"));
        };
        let top = u16::from_le_bytes(*head);
        if top == 0 || i32::from(top) > count::<T>() {
            return Err(Error::peer(format!("a packet has largest exponent {top}")));
        }
        levels::read_to_end(body, Alphabet { largest: top, signed: true }, &mut powers)?;
        flip(&mut powers, top);
    }
    value(&powers, out);
    Ok(())
}

/// Number of powers of two of the type.
fn count<T: Scalar>() -> i32 {
    T::EXPONENTS.1 - T::EXPONENTS.0 + 1
}

/// `±(1 + n)` for a coordinate rounded to `±2^(n + EXPONENTS.0)`, 0 for zero.
fn draw<T: Scalar>(x: &[T], key: Key) -> Vec<i16> {
    let mut stream = key.stream();
    let mut words = [0; BLOCK];
    let mut room = [0.0; BLOCK];
    let mut powers = vec![0; x.len()];
    for (part, powers) in x.chunks(BLOCK).zip(powers.chunks_mut(BLOCK)) {
        let words = &mut words[..part.len()];
        stream.fill(words);
        round(T::widen(part, &mut room), words, i64::from(1 - T::EXPONENTS.0), powers);
    }
    powers
}

kernel! {
    /// Rounds `|x| = 2^e (1 + m)` up with probability `m`, both taken from the binary representation.
    fn round(x: &[f64], words: &[u64], shift: i64, powers: &mut [i16]) {
        const LIFT: f64 = 1.844_674_407_370_955_2e19; // 2^64, to make subnormals normal
        for ((&v, &word), power) in x.iter().zip(words).zip(powers) {
            let tiny = v.abs() < f64::MIN_POSITIVE;
            let bits = (if tiny { v.abs() * LIFT } else { v.abs() }).to_bits();
            let exponent = (bits >> 52) as i64 - 1023 - if tiny { 64 } else { 0 };
            let up = i64::from(word >> 12 < bits & ((1 << 52) - 1));
            let n = if v == 0.0 { 0 } else { exponent + up + shift };
            *power = (if v < 0.0 { -n } else { n }) as i16;
        }
    }
}

/// Converts between magnitudes counted from 1 up and from `top` down.
fn flip(powers: &mut [i16], top: u16) {
    let turn = top as i16 + 1;
    for power in powers {
        *power = power.signum() * turn - *power;
    }
}

fn value<T: Scalar>(powers: &[i16], out: &mut [T]) {
    for (v, &power) in out.iter_mut().zip(powers) {
        // 2^e as a product of two halves: exact, normal factors even where 2^e is not, no branch.
        let e = i32::from(power.unsigned_abs()) - 1 + T::EXPONENTS.0;
        let half = e >> 1;
        let magnitude = exp2(half) * exp2(e - half);
        *v = T::narrow(magnitude * f64::from(power.signum()));
    }
}
