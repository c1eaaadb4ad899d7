//! Asymmetric coding with the message's own histogram (range variant of Duda, 2013), four
//! interleaved states, for long dense vectors of levels.
//!
//! A level's magnitude `m` belongs to class `m` below 32, else to one of eight classes per octave
//! whose last digits follow as they are; its symbol is twice the class, less one where the level is
//! negative. Format: the largest symbol (one byte); the frequency of every symbol up to it, in
//! 4096ths (base 128); four 32-bit states, then 16-bit words, all little end first; then the last
//! digits, packed from the lowest bit up.

use whimbrel_core::{Error, Result, kernel};

use super::count::{put_count, take_count};
use super::digits::{DigitReader, DigitWriter};

const STATES: usize = 4;
const SYMBOLS: usize = 256;
const FREQUENCY_BITS: u32 = 12;
const TOTAL: u32 = 1 << FREQUENCY_BITS;
/// States stay in `[2^16, 2^32)` and start at the low end.
const FLOOR: u32 = 1 << 16;
/// Magnitudes below this are classes of their own.
const PLAIN: u16 = 32;

/// Appends the encoded levels.
pub(crate) fn write(levels: &[i16], out: &mut Vec<u8>) {
    let symbols: Vec<u8> = levels.iter().map(|&level| symbol(level)).collect();
    let frequencies = normalise(&histogram(&symbols), symbols.len());
    let last = frequencies.iter().rposition(|&f| f > 0).unwrap_or(0);
    out.push(last as u8);
    for &f in &frequencies[..=last] {
        put_count(f as usize, out);
    }
    let (states, words) = encode(&symbols, &frequencies);
    for state in states {
        out.extend_from_slice(&state.to_le_bytes());
    }
    for word in words.iter().rev() {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let mut digits = DigitWriter::new(out);
    for &level in levels.iter().filter(|level| level.unsigned_abs() >= PLAIN) {
        let count = last_digits(level.unsigned_abs().ilog2());
        digits.put(u32::from(level.unsigned_abs()) & ((1 << count) - 1), count);
    }
    digits.finish();
}

/// Reads levels of magnitude at most `largest`, signed or not, from all of `bytes`.
pub(crate) fn read(mut bytes: &[u8], largest: u16, signed: bool, levels: &mut [i16]) -> Result<()> {
    let frequencies = read_frequencies(&mut bytes, largest, signed)?;
    let Some((head, body)) = bytes.split_first_chunk::<{ 4 * STATES }>() else {
        return Err(Error::peer("a packet of levels ends inside its states"));
    };
    let mut states = [0; STATES];
    for (state, bytes) in states.iter_mut().zip(head.chunks_exact(4)) {
        *state = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    }
    let words: Vec<u16> =
        body.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    let used = decode(&slots(&frequencies), &mut states, &words, levels);
    if used > words.len() || states != [FLOOR; STATES] {
        return Err(Error::peer("a packet of levels does not end where its content does"));
    }
    read_levels(&body[2 * used..], largest, levels)
}

fn symbol(level: i16) -> u8 {
    let m = level.unsigned_abs();
    let class = if m < PLAIN {
        m
    } else {
        let e = m.ilog2();
        PLAIN + 8 * (e as u16 - 5) + (m >> (e - 3) & 7)
    };
    (2 * class - u16::from(level < 0)) as u8
}

/// Digits of a magnitude with `e + 1` digits that its class does not tell.
fn last_digits(e: u32) -> u32 {
    e - 3
}

/// Counts symbols, in four tables so that equal neighbours do not wait for each other.
fn histogram(symbols: &[u8]) -> [u32; SYMBOLS] {
    let mut tables = [[0u32; SYMBOLS]; 4];
    let chunks = symbols.chunks_exact(4);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (table, &symbol) in tables.iter_mut().zip(chunk) {
            table[usize::from(symbol)] += 1;
        }
    }
    for &symbol in rest {
        tables[0][usize::from(symbol)] += 1;
    }
    std::array::from_fn(|s| tables.iter().map(|table| table[s]).sum())
}

/// Frequencies that sum to 4096, positive where the count is.
fn normalise(counts: &[u32; SYMBOLS], total: usize) -> [u32; SYMBOLS] {
    let mut frequencies = [0u32; SYMBOLS];
    for (f, &count) in frequencies.iter_mut().zip(counts) {
        if count > 0 {
            let share = (u64::from(count) * u64::from(TOTAL) + total as u64 / 2) / total as u64;
            *f = (share as u32).max(1);
        }
    }
    // What rounding left over or took too much is settled with the most frequent symbols, where
    // it costs least.
    loop {
        let sum: u32 = frequencies.iter().sum();
        let most = (0..SYMBOLS).max_by_key(|&s| frequencies[s]).unwrap_or(0);
        match sum.cmp(&TOTAL) {
            std::cmp::Ordering::Equal => return frequencies,
            std::cmp::Ordering::Less => frequencies[most] += TOTAL - sum,
            std::cmp::Ordering::Greater => frequencies[most] -= 1,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Code {
    frequency: u32,
    /// The frequencies of all smaller symbols together.
    below: u32,
    /// `ceil(2^63 / frequency)`: `x / frequency` is `x * inverse / 2^63`, exact for 32-bit `x`.
    inverse: u64,
}

/// The final states, and the words from last to first.
fn encode(symbols: &[u8], frequencies: &[u32; SYMBOLS]) -> ([u32; STATES], Vec<u16>) {
    let mut codes = [Code::default(); SYMBOLS];
    let mut below = 0;
    for (code, &frequency) in codes.iter_mut().zip(frequencies) {
        if frequency > 0 {
            let inverse = (1u64 << 63).div_ceil(u64::from(frequency));
            *code = Code { frequency, below, inverse };
            below += frequency;
        }
    }
    let mut states = [FLOOR; STATES];
    let mut words = vec![0u16; symbols.len() + 1];
    let mut used = 0;
    let chunks = symbols.chunks_exact(STATES);
    for (lane, &symbol) in chunks.remainder().iter().enumerate().rev() {
        push(&codes[usize::from(symbol)], &mut states[lane], &mut words, &mut used);
    }
    for chunk in chunks.rev() {
        for lane in (0..STATES).rev() {
            push(&codes[usize::from(chunk[lane])], &mut states[lane], &mut words, &mut used);
        }
    }
    words.truncate(used);
    (states, words)
}

#[inline(always)]
fn push(code: &Code, state: &mut u32, words: &mut [u16], used: &mut usize) {
    let mut x = *state;
    // Written always, kept where the state would grow too large: no branch to mispredict.
    words[*used] = x as u16;
    let full = u64::from(x) >= u64::from(code.frequency) << (32 - FREQUENCY_BITS);
    *used += usize::from(full);
    x = if full { x >> 16 } else { x };
    let quotient = ((u128::from(x) * u128::from(code.inverse)) >> 63) as u32;
    *state = x + code.below + quotient * (TOTAL - code.frequency);
}

fn read_frequencies(bytes: &mut &[u8], largest: u16, signed: bool) -> Result<[u32; SYMBOLS]> {
    let Some((&last, rest)) = bytes.split_first() else {
        return Err(Error::peer("a packet of levels ends before its frequencies"));
    };
    *bytes = rest;
    if last > symbol(largest as i16) {
        return Err(Error::peer(format!("a packet has symbol {last}, beyond the largest level")));
    }
    let mut frequencies = [0; SYMBOLS];
    let mut sum = 0;
    for (s, f) in frequencies[..=usize::from(last)].iter_mut().enumerate() {
        *f = take_count(bytes)?.min(2 * TOTAL as usize) as u32;
        sum += *f;
        if !signed && s % 2 == 1 && *f > 0 {
            return Err(Error::peer("a packet has a negative level where none can be"));
        }
    }
    if sum != TOTAL || frequencies[usize::from(last)] == 0 {
        return Err(Error::peer(format!("a packet's frequencies sum to {sum}, not {TOTAL}")));
    }
    Ok(frequencies)
}

/// For every residue of a state: symbol (8 bits), frequency less one (12), and the residue's rank
/// within its symbol (12).
fn slots(frequencies: &[u32; SYMBOLS]) -> Vec<u32> {
    let mut slots = Vec::with_capacity(TOTAL as usize);
    for (symbol, &f) in frequencies.iter().enumerate() {
        slots.extend((0..f).map(|rank| symbol as u32 | (f - 1) << 8 | rank << 20));
    }
    slots
}

/// Decodes one symbol per level; returns how many words that took, more than there are where the
/// packet is short.
fn decode(slots: &[u32], states: &mut [u32; STATES], words: &[u16], symbols: &mut [i16]) -> usize {
    let slots: &[u32; TOTAL as usize] = slots.try_into().expect("frequencies sum to 4096");
    let mut next = 0;
    let mut chunks = symbols.chunks_exact_mut(STATES);
    let mut x = *states;
    for chunk in &mut chunks {
        for lane in 0..STATES {
            chunk[lane] = pull(slots, &mut x[lane], words, &mut next);
        }
    }
    for (lane, symbol) in chunks.into_remainder().iter_mut().enumerate() {
        *symbol = pull(slots, &mut x[lane], words, &mut next);
    }
    *states = x;
    next
}

#[inline(always)]
fn pull(slots: &[u32; TOTAL as usize], state: &mut u32, words: &[u16], next: &mut usize) -> i16 {
    let slot = slots[(*state & (TOTAL - 1)) as usize];
    let frequency = (slot >> 8 & (TOTAL - 1)) + 1;
    let x = frequency * (*state >> FREQUENCY_BITS) + (slot >> 20);
    let word = words.get(*next).copied().unwrap_or(0);
    let low = x < FLOOR;
    *next += usize::from(low);
    *state = if low { x << 16 | u32::from(word) } else { x };
    (slot & 0xFF) as i16
}

/// Turns symbols into levels in place, with the last digits in `bytes`.
fn read_levels(bytes: &[u8], largest: u16, levels: &mut [i16]) -> Result<()> {
    let mut digits = DigitReader::new(bytes);
    if largest < PLAIN {
        plain_levels(levels);
        return digits.finish();
    }
    for level in levels {
        let class = (*level as u16).div_ceil(2);
        let mut m = class;
        if class >= PLAIN {
            let e = u32::from((class - PLAIN) / 8) + 5;
            let count = last_digits(e);
            m = (8 + (class - PLAIN) % 8) << count | digits.take(count)? as u16;
        }
        if m > largest {
            return Err(Error::peer(format!("a packet has level {m}, above {largest}")));
        }
        *level = if *level % 2 == 1 { -(m as i16) } else { m as i16 };
    }
    digits.finish()
}

kernel! {
    /// Symbol to level where every class is a magnitude.
    fn plain_levels(levels: &mut [i16]) {
        for level in levels {
            let m = (*level + 1) >> 1;
            let negative = *level & 1;
            *level = (m ^ -negative) + negative;
        }
    }
}
