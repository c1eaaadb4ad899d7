//! Entropy coding of integer levels: the body of every quantising codec.
//!
//! Four forms, chosen by the encoder from the length and the number of nonzeros:
//!
//! - *one by one*: every level through an adaptive model; best for short vectors;
//! - *gaps*: only nonzeros, each with its distance from the one before; for sparse ones;
//! - *table*: interleaved asymmetric coding with the message's own histogram; for long dense ones;
//! - *rice*: only marks, for short sparse vectors with levels of magnitude at most one.
//!
//! Vectors shorter than 4096 are written one by one, except marks of 64 or more coordinates: there the
//! lowest bit of the first byte distinguishes the rice form (one) from a zero byte followed by one by
//! one. Longer vectors start with a form byte.

use whimbrel_core::{Error, Result, kernel};

use super::model::{Bit, Number};
use super::range::{Decoder, Encoder};
use super::rice::{self, Marks};
use super::table::{self, Histogram};

/// The range of levels: magnitudes up to `largest`, signed or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alphabet {
    pub largest: u16,
    pub signed: bool,
}

/// The largest magnitude any alphabet may have.
pub(crate) const LARGEST_LEVEL: u16 = i16::MAX as u16;

/// Vectors shorter than this have no form byte.
const FORM_FROM: usize = rice::LENGTH_MAX;
/// Marks shorter than this have no form bit either.
const RICE_FROM: usize = 64;
/// From this length on, the histogram of a dense vector is a small part of the message, and coding level
/// by level is too slow.
const TABLE_FROM: usize = 8192;
/// The table form is used if at least one level in this number differs from the most frequent one.
const VARIED: usize = 64;
/// The gaps form is used if at most one level in this number is nonzero.
const SPARSE: usize = 8;

/// Gaps between random positions are geometric, hence nearly uniform within half an octave.
type Gap = Number<1, false>;
/// Magnitudes may have any distribution.
type Magnitude = Number<2, true>;

const ONE_BY_ONE: u8 = 0;
const GAPS: u8 = 1;
const TABLE: u8 = 2;

/// Appends the encoded levels to `out`.
pub(crate) fn write(levels: &[i16], alphabet: Alphabet, out: &mut Vec<u8>) {
    let d = levels.len();
    if d < FORM_FROM {
        if alphabet.largest == 1 && d >= RICE_FROM {
            let marks = Marks::of(levels);
            if marks.suit(alphabet.signed) {
                return marks.write(alphabet.signed, out);
            }
            out.push(ONE_BY_ONE);
        }
        return write_one_by_one(levels, alphabet, out);
    }
    let nonzeros = count_nonzeros(levels);
    if nonzeros <= d / SPARSE {
        out.push(GAPS);
        return write_gaps(levels, nonzeros, alphabet, out);
    }
    if d >= TABLE_FROM {
        let histogram = Histogram::of(levels, alphabet);
        if histogram.but_the_most_frequent() >= d / VARIED {
            out.push(TABLE);
            return table::write(levels, &histogram, alphabet, out);
        }
    }
    out.push(ONE_BY_ONE);
    write_one_by_one(levels, alphabet, out);
}

/// Fills `levels` from the front of `bytes` and advances past the bytes read.
pub(crate) fn read(bytes: &mut &[u8], alphabet: Alphabet, levels: &mut [i16]) -> Result<()> {
    let short = levels.len() < FORM_FROM;
    let form = if short && (alphabet.largest > 1 || levels.len() < RICE_FROM) {
        ONE_BY_ONE
    } else {
        let Some((&form, rest)) = bytes.split_first() else {
            return Err(Error::peer("a packet of levels ends before its form byte"));
        };
        if short && form & 1 == 1 {
            levels.fill(0);
            let length = rice::read(bytes, alphabet.signed, levels)?;
            *bytes = &bytes[length..];
            return Ok(());
        }
        *bytes = rest;
        form
    };
    let length = match form {
        ONE_BY_ONE => read_one_by_one(bytes, alphabet, levels),
        GAPS => read_gaps(bytes, alphabet, levels),
        TABLE => table::read(bytes, alphabet, levels),
        other => Err(Error::peer(format!("a packet of levels has unknown form {other}"))),
    }?;
    *bytes = &bytes[length..];
    Ok(())
}

/// [`read`] for a packet that ends with its levels.
pub(crate) fn read_to_end(mut bytes: &[u8], alphabet: Alphabet, levels: &mut [i16]) -> Result<()> {
    read(&mut bytes, alphabet, levels)?;
    if bytes.is_empty() {
        Ok(())
    } else {
        Err(Error::peer(format!("a packet has {} bytes after its levels", bytes.len())))
    }
}

fn write_one_by_one(levels: &[i16], alphabet: Alphabet, out: &mut Vec<u8>) {
    let mut to = Encoder::new(out);
    let mut magnitude = Magnitude::new();
    let mut sign = Bit::OPEN;
    for &level in levels {
        magnitude.encode(&mut to, u32::from(level.unsigned_abs()), u32::from(alphabet.largest));
        if alphabet.signed && level != 0 {
            sign.encode(&mut to, level < 0);
        }
    }
    to.finish();
}

fn read_one_by_one(bytes: &[u8], alphabet: Alphabet, levels: &mut [i16]) -> Result<usize> {
    let mut from = Decoder::new(bytes);
    let mut magnitude = Magnitude::new();
    let mut sign = Bit::OPEN;
    for level in levels {
        let m = magnitude.decode(&mut from, u32::from(alphabet.largest)) as i16;
        let negative = alphabet.signed && m != 0 && sign.decode(&mut from);
        *level = if negative { -m } else { m };
    }
    from.finish()
}

fn write_gaps(levels: &[i16], nonzeros: usize, alphabet: Alphabet, out: &mut Vec<u8>) {
    let mut to = Encoder::new(out);
    Gap::new().encode(&mut to, nonzeros as u32, levels.len() as u32);
    let mut gap = Gap::new();
    let mut magnitude = Magnitude::new();
    let mut sign = Bit::OPEN;
    let mut start = 0;
    let mut left = nonzeros;
    for_each_nonzero(levels, |i, level| {
        gap.encode(&mut to, (i - start) as u32, (levels.len() - start - left) as u32);
        let m = u32::from(level.unsigned_abs());
        magnitude.encode(&mut to, m - 1, u32::from(alphabet.largest) - 1);
        if alphabet.signed {
            sign.encode(&mut to, level < 0);
        }
        start = i + 1;
        left -= 1;
    });
    to.finish();
}

fn read_gaps(bytes: &[u8], alphabet: Alphabet, levels: &mut [i16]) -> Result<usize> {
    let mut from = Decoder::new(bytes);
    levels.fill(0);
    let nonzeros = Gap::new().decode(&mut from, levels.len() as u32) as usize;
    let mut gap = Gap::new();
    let mut magnitude = Magnitude::new();
    let mut sign = Bit::OPEN;
    let mut start = 0;
    for left in (1..=nonzeros).rev() {
        let i = start + gap.decode(&mut from, (levels.len() - start - left) as u32) as usize;
        let m = 1 + magnitude.decode(&mut from, u32::from(alphabet.largest) - 1) as i16;
        let negative = alphabet.signed && sign.decode(&mut from);
        levels[i] = if negative { -m } else { m };
        start = i + 1;
    }
    from.finish()
}

kernel! {
    fn count_nonzeros(levels: &[i16]) -> usize {
        let mut count = 0;
        // Blocks short enough for 16-bit counts, so that vector registers hold more of them.
        for chunk in levels.chunks(4096) {
            let mut part = 0u16;
            for &level in chunk {
                part += u16::from(level != 0);
            }
            count += usize::from(part);
        }
        count
    }
}

/// Calls `see` for every nonzero level; skips blocks of zeros quickly.
fn for_each_nonzero(levels: &[i16], mut see: impl FnMut(usize, i16)) {
    const STRIDE: usize = 32;
    for (n, chunk) in levels.chunks(STRIDE).enumerate() {
        if chunk.iter().fold(0, |any, &l| any | l) != 0 {
            for (i, &level) in chunk.iter().enumerate() {
                if level != 0 {
                    see(n * STRIDE + i, level);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_core::Key;

    use super::*;

    fn random(d: usize, density: f64, alphabet: Alphabet, key: Key) -> Vec<i16> {
        let mut stream = key.stream();
        (0..d)
            .map(|_| {
                if stream.uniform() >= density {
                    return 0;
                }
                let m = 1 + stream.below(u64::from(alphabet.largest)) as i16;
                if alphabet.signed && stream.uniform() < 0.5 { -m } else { m }
            })
            .collect()
    }

    #[test]
    fn levels_come_back_in_every_form() {
        for d in [0, 1, 5, 300, 4095, 4096, 8191, 8192, 10_001] {
            for density in [0.0, 0.001, 0.1, 0.126, 0.9, 1.0] {
                for largest in [1, 2, 16, 31, 32, 127, 128, 1000, LARGEST_LEVEL] {
                    for signed in [true, false] {
                        let alphabet = Alphabet { largest, signed };
                        let key = Key::root(d as u64).child(u64::from(largest));
                        let levels = random(d, density, alphabet, key);
                        let mut bytes = Vec::new();
                        write(&levels, alphabet, &mut bytes);
                        let mut again = vec![0; d];
                        read_to_end(&bytes, alphabet, &mut again).unwrap();
                        assert!(levels == again, "d = {d}, {density}, {alphabet:?}");
                        bytes.extend([9, 8, 7]);
                        let mut rest = bytes.as_slice();
                        read(&mut rest, alphabet, &mut again).unwrap();
                        assert_eq!(rest, [9, 8, 7], "d = {d}, {density}, {alphabet:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn nonsense_never_leaves_the_alphabet() {
        let mut stream = Key::root(4).stream();
        let mut read_some = 0;
        for n in 0..3000u64 {
            let d = [40, 4096, 9000][n as usize % 3];
            let alphabet = Alphabet {
                largest: [1, 5, 100, 400, LARGEST_LEVEL][n as usize % 5],
                signed: n % 2 == 0,
            };
            let mut bytes: Vec<u8> =
                (0..stream.below(60)).map(|_| stream.next_u64() as u8).collect();
            if let Some(form) = bytes.first_mut() {
                *form %= 4;
            }
            let mut levels = vec![0; d];
            if read(&mut bytes.as_slice(), alphabet, &mut levels).is_ok() {
                read_some += 1;
                let least = if alphabet.signed { -(alphabet.largest as i16) } else { 0 };
                let fine = levels.iter().all(|&l| l >= least && l <= alphabet.largest as i16);
                assert!(fine, "message {n}");
            }
        }
        assert!(read_some > 0, "no nonsense was readable at all");
    }
}
