//! Asymmetric coding with the message's own histogram (range variant of Duda, 2013), with four interleaved
//! states, for long dense vectors of levels.
//!
//! If no level can exceed 127, every magnitude is a class. Otherwise magnitudes below 32 are classes,
//! larger ones fall into eight classes per octave, and their remaining digits follow raw. A level's
//! symbol is twice its class, minus one if it is negative.
//!
//! Format: the largest symbol and the frequency of every symbol up to it, in 4096ths, as numbers of
//! the range coder; four 32-bit states, then 16-bit words, all little-endian; then the last digits,
//! packed from the lowest bit up.

use whimbrel_core::{Error, Result, kernel};

use super::bits::{BitReader, BitWriter};
use super::levels::Alphabet;
use super::model::Number;
use super::range::{Decoder, Encoder};

const STATES: usize = 4;
const SYMBOLS: usize = 256;
const FREQUENCY_BITS: u32 = 12;
const TOTAL: u32 = 1 << FREQUENCY_BITS;
/// States stay in `[2^16, 2^32)` and start at the low end.
const FLOOR: u32 = 1 << 16;
/// Magnitudes below this are always classes.
const PLAIN: u16 = 32;
/// In alphabets up to this magnitude, all magnitudes are classes.
const ALL_PLAIN: u16 = 127;

type Frequency = Number<2, true>;

/// The count of each symbol.
pub(crate) struct Histogram([u32; SYMBOLS]);

impl Histogram {
    pub fn of(levels: &[i16], alphabet: Alphabet) -> Self {
        Self(if alphabet.largest <= ALL_PLAIN {
            count::<true>(levels)
        } else {
            count::<false>(levels)
        })
    }

    /// The number of levels that differ from the most frequent one.
    pub fn but_the_most_frequent(&self) -> usize {
        let most = self.0.iter().max().copied().unwrap_or(0);
        (self.0.iter().sum::<u32>() - most) as usize
    }
}

/// Appends the encoded levels, given their histogram.
pub(crate) fn write(levels: &[i16], histogram: &Histogram, alphabet: Alphabet, out: &mut Vec<u8>) {
    let frequencies = normalise(&histogram.0, levels.len());
    write_frequencies(&frequencies, out);
    if alphabet.largest <= ALL_PLAIN {
        return write_symbols::<true>(levels, &frequencies, out);
    }
    write_symbols::<false>(levels, &frequencies, out);
    let mut digits = BitWriter::new(out);
    for &level in levels.iter().filter(|level| level.unsigned_abs() >= PLAIN) {
        let count = last_digits(level.unsigned_abs().ilog2());
        digits.put(u64::from(level.unsigned_abs()) & ((1 << count) - 1), count);
    }
    digits.finish();
}

fn write_symbols<const ALL: bool>(levels: &[i16], frequencies: &[u32; SYMBOLS], out: &mut Vec<u8>) {
    let (states, words) = encode::<ALL>(levels, frequencies);
    for state in states {
        out.extend_from_slice(&state.to_le_bytes());
    }
    let start = out.len();
    out.resize(start + 2 * words.len(), 0);
    for (bytes, word) in out[start..].chunks_exact_mut(2).zip(words.iter().rev()) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Reads levels from the front of `bytes`; returns the number of bytes.
pub(crate) fn read(bytes: &[u8], alphabet: Alphabet, levels: &mut [i16]) -> Result<usize> {
    let mut rest = bytes;
    let frequencies = read_frequencies(&mut rest, alphabet)?;
    let Some((head, body)) = rest.split_first_chunk::<{ 4 * STATES }>() else {
        return Err(Error::peer("a packet of levels ends inside its states"));
    };
    let mut states = [0; STATES];
    for (state, bytes) in states.iter_mut().zip(head.chunks_exact(4)) {
        *state = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    }
    // A symbol takes at most one word.
    let words: Vec<u16> = body
        .chunks_exact(2)
        .take(levels.len())
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect();
    let used = decode(&slots(&frequencies), &mut states, &words, levels);
    if used > words.len() || states != [FLOOR; STATES] {
        return Err(Error::peer("a packet of levels does not end where its content does"));
    }
    let digits = &body[2 * used..];
    Ok(bytes.len() - digits.len() + read_levels(digits, alphabet.largest, levels)?)
}

/// The symbol of a level, with all magnitudes as classes (`ALL`) or only the small ones.
#[inline(always)]
fn symbol<const ALL: bool>(level: i16) -> u8 {
    let m = level.unsigned_abs();
    let class = if ALL || m < PLAIN {
        m
    } else {
        let e = m.ilog2();
        PLAIN + 8 * (e as u16 - 5) + (m >> (e - 3) & 7)
    };
    (2 * class).wrapping_sub(u16::from(level < 0)) as u8
}

/// The index of a level in the tables of inner loops: its low byte if that determines it.
#[inline(always)]
fn place<const ALL: bool>(level: i16) -> usize {
    usize::from(if ALL { level as u8 } else { symbol::<false>(level) })
}

/// The symbol at this index of those tables.
fn symbol_at<const ALL: bool>(place: usize) -> usize {
    if ALL { usize::from(symbol::<true>(i16::from(place as u8 as i8))) } else { place }
}

/// Number of digits of a magnitude with `e + 1` digits that its class does not determine.
fn last_digits(e: u32) -> u32 {
    e - 3
}

/// Counts symbols in four tables, so that increments of equal neighbours are independent.
fn count<const ALL: bool>(levels: &[i16]) -> [u32; SYMBOLS] {
    let mut tables = [[0u32; SYMBOLS]; 4];
    let chunks = levels.chunks_exact(4);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (table, &level) in tables.iter_mut().zip(chunk) {
            table[place::<ALL>(level)] += 1;
        }
    }
    for &level in rest {
        tables[0][place::<ALL>(level)] += 1;
    }
    let mut counts = [0; SYMBOLS];
    for place in 0..SYMBOLS {
        counts[symbol_at::<ALL>(place)] = tables.iter().map(|table| table[place]).sum();
    }
    counts
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
    // The rounding error is absorbed by the most frequent symbols, which costs least.
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
    /// The upper half of `x * inverse` is `x / frequency` for every 32-bit `x`; see [`invert`].
    inverse: u64,
    /// The largest admissible state for the symbol: `frequency * 2^20 - 1`.
    limit: u32,
    /// The cumulative frequency of all smaller symbols, plus the bias of [`invert`].
    below: u16,
    /// `4096 - frequency`.
    others: u16,
}

/// The final states, and the words from last to first.
fn encode<const ALL: bool>(
    levels: &[i16],
    frequencies: &[u32; SYMBOLS],
) -> ([u32; STATES], Vec<u16>) {
    let mut codes = [Code::default(); SYMBOLS];
    let mut below = 0;
    for (code, &frequency) in codes.iter_mut().zip(frequencies) {
        if frequency > 0 {
            let (inverse, more) = invert(frequency);
            *code = Code {
                inverse,
                limit: ((u64::from(frequency) << (32 - FREQUENCY_BITS)) - 1) as u32,
                below: (below + more) as u16,
                others: (TOTAL - frequency) as u16,
            };
            below += frequency;
        }
    }
    let codes: [Code; SYMBOLS] = std::array::from_fn(|place| codes[symbol_at::<ALL>(place)]);
    let mut states = [FLOOR; STATES];
    let mut words = vec![0u16; levels.len() + 1];
    let mut used = 0;
    let mut push = |level: i16, state: &mut u32| {
        let code = &codes[place::<ALL>(level)];
        let mut x = *state;
        // Written always, but kept only if the state would overflow: no branch to mispredict.
        words[used] = x as u16;
        let full = x > code.limit;
        used += usize::from(full);
        x = if full { x >> 16 } else { x };
        let quotient = upper_half(x, code.inverse);
        // 4096 (x / frequency) + x mod frequency + below
        *state = x + u32::from(code.below) + quotient * u32::from(code.others);
    };
    let chunks = levels.chunks_exact(STATES);
    for (lane, &level) in chunks.remainder().iter().enumerate().rev() {
        push(level, &mut states[lane]);
    }
    for chunk in chunks.rev() {
        for lane in (0..STATES).rev() {
            push(chunk[lane], &mut states[lane]);
        }
    }
    words.truncate(used);
    (states, words)
}

/// `ceil(2^64 / frequency)` and 0. For frequency 1 that overflows: `2^64 - 1` gives the quotient `x - 1`,
/// corrected by a bias of 4095.
fn invert(frequency: u32) -> (u64, u32) {
    if frequency == 1 { (u64::MAX, TOTAL - 1) } else { ((u64::MAX / u64::from(frequency)) + 1, 0) }
}

#[inline(always)]
fn upper_half(x: u32, inverse: u64) -> u32 {
    ((u128::from(x) * u128::from(inverse)) >> 64) as u32
}

fn write_frequencies(frequencies: &[u32; SYMBOLS], out: &mut Vec<u8>) {
    let mut to = Encoder::new(out);
    let last = frequencies.iter().rposition(|&f| f > 0).unwrap_or(0);
    Frequency::new().encode(&mut to, last as u32, SYMBOLS as u32 - 1);
    let mut number = Frequency::new();
    for &f in &frequencies[..=last] {
        number.encode(&mut to, f, TOTAL);
    }
    to.finish();
}

fn read_frequencies(bytes: &mut &[u8], alphabet: Alphabet) -> Result<[u32; SYMBOLS]> {
    let mut from = Decoder::new(bytes);
    let last = Frequency::new().decode(&mut from, SYMBOLS as u32 - 1) as usize;
    let mut number = Frequency::new();
    let mut frequencies = [0; SYMBOLS];
    for f in &mut frequencies[..=last] {
        *f = number.decode(&mut from, TOTAL);
    }
    *bytes = &bytes[from.finish()?..];
    let sum: u32 = frequencies.iter().sum();
    if sum != TOTAL || frequencies[last] == 0 {
        return Err(Error::peer(format!("a packet's frequencies sum to {sum}, not {TOTAL}")));
    }
    let negative = frequencies.iter().skip(1).step_by(2).any(|&f| f > 0);
    if last > usize::from(largest_symbol(alphabet)) || (negative && !alphabet.signed) {
        return Err(Error::peer("a packet has a level outside its alphabet"));
    }
    Ok(frequencies)
}

fn largest_symbol(alphabet: Alphabet) -> u8 {
    if alphabet.largest <= ALL_PLAIN {
        2 * alphabet.largest as u8
    } else {
        symbol::<false>(alphabet.largest as i16)
    }
}

/// For every residue of a state: symbol (8 bits), frequency minus one (12), and the residue's rank within
/// its symbol (12).
fn slots(frequencies: &[u32; SYMBOLS]) -> Vec<u32> {
    let mut slots = Vec::with_capacity(TOTAL as usize);
    for (symbol, &f) in frequencies.iter().enumerate() {
        slots.extend((0..f).map(|rank| symbol as u32 | (f - 1) << 8 | rank << 20));
    }
    slots
}

/// Decodes one symbol per level; returns the number of words used, more than available for a truncated
/// packet.
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

/// Replaces symbols by levels, with the last digits from `bytes`; returns the number of bytes read.
fn read_levels(bytes: &[u8], largest: u16, levels: &mut [i16]) -> Result<usize> {
    if largest <= ALL_PLAIN {
        plain_levels(levels);
        return Ok(0);
    }
    let mut digits = BitReader::new(bytes);
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
    /// Symbols to levels if every magnitude is a class.
    fn plain_levels(levels: &mut [i16]) {
        for level in levels {
            let m = (*level + 1) >> 1;
            let negative = *level & 1;
            *level = (m ^ -negative) + negative;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplication_by_the_inverse_is_division() {
        let mut stream = whimbrel_core::Key::root(1).stream();
        for frequency in 1..=TOTAL {
            let (inverse, more) = invert(frequency);
            let edges = [1, frequency, frequency + 1, u32::MAX];
            let drawn = (0..50).map(|_| 1 + (stream.next_u64() >> 33) as u32);
            let multiples = (0..50).map(|n| (u32::MAX >> (n % 20)) / frequency * frequency);
            for x in edges.into_iter().chain(drawn).chain(multiples) {
                for x in [x, x - 1].into_iter().filter(|&x| x > 0) {
                    let wanted = (x / frequency).wrapping_mul(TOTAL - frequency);
                    let found = upper_half(x, inverse).wrapping_mul(TOTAL - frequency);
                    assert_eq!(found.wrapping_add(more), wanted, "{x} / {frequency}");
                }
            }
        }
    }

    #[test]
    fn frequencies_sum_to_the_total_and_forget_no_symbol() {
        let mut counts = [0u32; SYMBOLS];
        for (s, count) in counts.iter_mut().enumerate() {
            *count = if s % 3 == 0 { 0 } else { 1 + (1 << (s % 20)) };
        }
        let frequencies = normalise(&counts, counts.iter().sum::<u32>() as usize);
        assert_eq!(frequencies.iter().sum::<u32>(), TOTAL);
        assert!(frequencies.iter().zip(&counts).all(|(f, c)| (*f > 0) == (*c > 0)));
    }

    #[test]
    fn every_level_has_a_class_and_comes_back() {
        let levels: Vec<i16> = (-i16::MAX..=i16::MAX).collect();
        let alphabet = Alphabet { largest: i16::MAX as u16, signed: true };
        let mut bytes = Vec::new();
        write(&levels, &Histogram::of(&levels, alphabet), alphabet, &mut bytes);
        let mut again = vec![0; levels.len()];
        assert_eq!(read(&bytes, alphabet, &mut again), Ok(bytes.len()));
        assert!(levels == again);
    }
}
