//! Vectors of small integers to bytes: the body of every codec that quantises.
//!
//! Three forms, chosen by the encoder from the length and the number of nonzeros:
//!
//! - *one by one*: every level through an adaptive model; best for short vectors;
//! - *gaps*: only nonzeros, each with its distance from the one before; for sparse ones;
//! - *table*: interleaved asymmetric coding with the message's own histogram; for long dense ones.
//!
//! A vector shorter than 512 is always written one by one; longer ones start with a byte that
//! names the form.

use whimbrel_core::{Error, Result};

use super::model::Number;
use super::range::{Decoder, Encoder};
use super::table;

/// What levels may be: magnitudes up to `largest`, with a sign or without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alphabet {
    pub largest: u16,
    pub signed: bool,
}

/// The largest magnitude any alphabet may have.
pub(crate) const LARGEST_LEVEL: u16 = i16::MAX as u16;

/// Vectors shorter than this have no form byte.
const FORM_FROM: usize = 512;
/// From here on the histogram of a dense vector is a small part of the message, and coding level by
/// level takes too long.
const TABLE_FROM: usize = 8192;
/// Gaps pay where at most one level in this many is nonzero.
const SPARSE: usize = 8;

const ONE_BY_ONE: u8 = 0;
const GAPS: u8 = 1;
const TABLE: u8 = 2;

/// Appends the encoded levels to `out`.
pub(crate) fn write(levels: &[i16], alphabet: Alphabet, out: &mut Vec<u8>) {
    let d = levels.len();
    if d < FORM_FROM {
        return write_one_by_one(levels, alphabet, out);
    }
    let nonzeros = levels.iter().filter(|&&l| l != 0).count();
    if nonzeros <= d / SPARSE {
        out.push(GAPS);
        write_gaps(levels, nonzeros, alphabet, out);
    } else if d >= TABLE_FROM {
        out.push(TABLE);
        table::write(levels, out);
    } else {
        out.push(ONE_BY_ONE);
        write_one_by_one(levels, alphabet, out);
    }
}

/// Reads levels that fill `levels`, from all of `bytes`.
pub(crate) fn read(bytes: &[u8], alphabet: Alphabet, levels: &mut [i16]) -> Result<()> {
    if levels.len() < FORM_FROM {
        return read_one_by_one(bytes, alphabet, levels);
    }
    let Some((form, body)) = bytes.split_first() else {
        return Err(Error::peer("a packet of levels ends before its form byte"));
    };
    match *form {
        ONE_BY_ONE => read_one_by_one(body, alphabet, levels),
        GAPS => read_gaps(body, alphabet, levels),
        TABLE => table::read(body, alphabet.largest, alphabet.signed, levels),
        other => Err(Error::peer(format!("a packet of levels has unknown form {other}"))),
    }
}

fn write_one_by_one(levels: &[i16], alphabet: Alphabet, out: &mut Vec<u8>) {
    let mut to = Encoder::new(out);
    let mut magnitude = Number::new();
    for &level in levels {
        magnitude.encode(&mut to, u32::from(level.unsigned_abs()), u32::from(alphabet.largest));
        if alphabet.signed && level != 0 {
            to.raw(u64::from(level < 0), 1);
        }
    }
    to.finish();
}

fn read_one_by_one(bytes: &[u8], alphabet: Alphabet, levels: &mut [i16]) -> Result<()> {
    let mut from = Decoder::new(bytes);
    let mut magnitude = Number::new();
    for level in levels {
        let m = magnitude.decode(&mut from, u32::from(alphabet.largest)) as i16;
        let negative = alphabet.signed && m != 0 && from.raw(1) == 1;
        *level = if negative { -m } else { m };
    }
    from.finish()
}

fn write_gaps(levels: &[i16], nonzeros: usize, alphabet: Alphabet, out: &mut Vec<u8>) {
    let mut to = Encoder::new(out);
    Number::new().encode(&mut to, nonzeros as u32, levels.len() as u32);
    let mut gap = Number::new();
    let mut magnitude = Number::new();
    let mut start = 0;
    let mut left = nonzeros;
    for_each_nonzero(levels, |i, level| {
        gap.encode(&mut to, (i - start) as u32, (levels.len() - start - left) as u32);
        let m = u32::from(level.unsigned_abs());
        magnitude.encode(&mut to, m - 1, u32::from(alphabet.largest) - 1);
        if alphabet.signed {
            to.raw(u64::from(level < 0), 1);
        }
        start = i + 1;
        left -= 1;
    });
    to.finish();
}

fn read_gaps(bytes: &[u8], alphabet: Alphabet, levels: &mut [i16]) -> Result<()> {
    let mut from = Decoder::new(bytes);
    levels.fill(0);
    let nonzeros = Number::new().decode(&mut from, levels.len() as u32) as usize;
    let mut gap = Number::new();
    let mut magnitude = Number::new();
    let mut start = 0;
    for left in (1..=nonzeros).rev() {
        let i = start + gap.decode(&mut from, (levels.len() - start - left) as u32) as usize;
        let m = 1 + magnitude.decode(&mut from, u32::from(alphabet.largest) - 1) as i16;
        let negative = alphabet.signed && from.raw(1) == 1;
        levels[i] = if negative { -m } else { m };
        start = i + 1;
    }
    from.finish()
}

/// Calls `see` for every nonzero level, passing over blocks of zeros quickly.
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
