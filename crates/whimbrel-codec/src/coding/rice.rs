//! Short sparse vectors of marks (zero or one, with a sign or without): Golomb-Rice gaps, packed
//! from the lowest bit of each byte up.
//!
//! Gaps between random marks are geometric, for which a Rice code with the right parameter is within 3 %
//! of the entropy. A gap takes one or two nanoseconds, where adaptive models take several per coordinate.
//! The parameter follows from the length and the count, so it is not sent.
//!
//! Bits: a one (the form), the count, then for each mark its gap and its sign.

use super::bits::{BitReader, BitWriter};
use whimbrel_core::{Error, Result, kernel};

/// Up to this number of marks, unbalanced signs cost less than a header.
const FEW: usize = 16;
/// With this number of ones a gap fits into 32 bits: its parameter is below 12, since there are at most
/// `2^12` levels.
const ONES_AT_ONCE: usize = 16;
/// Levels per word of marks.
const WORD: usize = u64::BITS as usize;
/// The largest number of levels of this form.
pub(crate) const LENGTH_MAX: usize = 64 * WORD;

/// The positions of marks as a bit set, so that zeros are visited only once.
pub(crate) struct Marks<'a> {
    levels: &'a [i16],
    words: [u64; LENGTH_MAX / WORD],
    count: usize,
}

impl<'a> Marks<'a> {
    /// The marks of at most [`LENGTH_MAX`] levels.
    pub fn of(levels: &'a [i16]) -> Self {
        let mut words = [0; LENGTH_MAX / WORD];
        let words_used = &mut words[..levels.len().div_ceil(WORD)];
        nonzeros(levels, words_used);
        let count = words_used.iter().map(|word| word.count_ones() as usize).sum();
        Self { levels, words, count }
    }

    /// Whether there are few enough marks, and their signs are balanced enough for one bit each.
    pub fn suit(&self, signed: bool) -> bool {
        let negative = || self.levels.iter().filter(|level| **level < 0).count();
        let mixed = |negative: usize| 3 * negative.min(self.count - negative) >= self.count;
        few_enough(self.count, self.levels.len())
            && (!signed || self.count <= FEW || mixed(negative()))
    }

    /// Appends the marks.
    pub fn write(&self, signed: bool, out: &mut Vec<u8>) {
        let length = self.levels.len();
        let k = parameter(self.count, length);
        let mut bits = BitWriter::new(out);
        bits.put(1 | (self.count as u64) << 1, 1 + count_bits(length));
        let mut start = 0;
        for (n, &word) in self.words[..length.div_ceil(WORD)].iter().enumerate() {
            let mut left = word;
            while left != 0 {
                let i = n * WORD + left.trailing_zeros() as usize;
                left &= left - 1;
                let gap = i - start;
                // The high bits in unary, a zero, the low bits, the sign.
                let (mut ones, low) = (gap >> k, (gap & ((1 << k) - 1)) as u64);
                while ones > ONES_AT_ONCE {
                    bits.put((1 << ONES_AT_ONCE) - 1, ONES_AT_ONCE as u32);
                    ones -= ONES_AT_ONCE;
                }
                let sign = u64::from(signed && self.levels[i] < 0);
                let tail = low << 1 | sign << (k + 1);
                let count = ones as u32 + 1 + k + u32::from(signed);
                bits.put(tail << ones | ((1 << ones) - 1), count);
                start = i + 1;
            }
        }
        bits.finish();
    }
}

fn few_enough(marks: usize, length: usize) -> bool {
    3 * marks <= length
}

kernel! {
    /// One bit per level, set where it is not zero.
    fn nonzeros(levels: &[i16], words: &mut [u64]) {
        let (whole, rest) = levels.as_chunks::<WORD>();
        for (levels, word) in whole.iter().zip(words.iter_mut()) {
            *word = nonzeros_of(levels);
        }
        if let (Some(word), false) = (words.get_mut(whole.len()), rest.is_empty()) {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            *word = nonzeros_of(&last);
        }
    }
}

#[inline(always)]
fn nonzeros_of(levels: &[i16; WORD]) -> u64 {
    let mut word = 0;
    for (i, level) in levels.iter().enumerate() {
        word |= u64::from(*level != 0) << i;
    }
    word
}

/// Reads the output of [`Marks::write`] into `levels`, which must be zero; returns the number of bytes.
pub(crate) fn read(bytes: &[u8], signed: bool, levels: &mut [i16]) -> Result<usize> {
    let mut bits = BitReader::new(bytes);
    bits.take(1)?;
    let marks = bits.take(count_bits(levels.len()))? as usize;
    if !few_enough(marks, levels.len()) {
        return Err(Error::peer("a packet of gaps has more marks than that form is for"));
    }
    let k = parameter(marks, levels.len());
    let most = levels.len() >> k;
    let mut start = 0;
    for _ in 0..marks {
        let high = bits.ones(most)?;
        let rest = bits.take(k + u32::from(signed))? as usize;
        let at = start + (high << k | rest & ((1 << k) - 1));
        let Some(level) = levels.get_mut(at) else {
            return Err(Error::peer("a packet has gaps beyond the end of the vector"));
        };
        *level = if rest >> k == 1 { -1 } else { 1 };
        start = at + 1;
    }
    bits.finish()
}

/// Binary digits of a count up to `length`.
fn count_bits(length: usize) -> u32 {
    usize::BITS - length.leading_zeros()
}

/// The least `k` with `2^k >= ln(golden ratio) d / n`, best for gaps of mean `d / n`.
fn parameter(marks: usize, length: usize) -> u32 {
    let (n, d) = (marks.max(1) as u64 * 1000, length as u64 * 481);
    let ratio = d.div_ceil(n).max(1);
    ratio.next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Key;

    fn random(d: usize, p: f64, signed: bool, seed: u64) -> Vec<i16> {
        let mut stream = Key::root(seed).stream();
        (0..d)
            .map(|_| {
                if stream.uniform() >= p {
                    return 0;
                }
                if signed && stream.uniform() < 0.5 { -1 } else { 1 }
            })
            .collect()
    }

    #[test]
    fn marks_come_back_and_take_little_more_than_their_entropy() {
        for (n, (d, p)) in
            [(64, 0.1), (124, 0.09), (1000, 0.03), (4000, 0.016), (4000, 0.3), (200, 0.0)]
                .into_iter()
                .enumerate()
        {
            for signed in [false, true] {
                let levels = random(d, p, signed, n as u64);
                let marks = levels.iter().filter(|l| **l != 0).count();
                let mut bytes = Vec::new();
                Marks::of(&levels).write(signed, &mut bytes);
                let mut back = vec![0; d];
                let tail = [&bytes[..], &[7, 7]].concat();
                assert_eq!(read(&tail, signed, &mut back).unwrap(), bytes.len());
                assert_eq!(back, levels);
                let share = marks as f64 / d as f64;
                let h = |q: f64| if q > 0.0 { -q * q.log2() } else { 0.0 };
                let entropy = d as f64 * (h(share) + h(1.0 - share))
                    + if signed { marks as f64 } else { 0.0 };
                assert!(8.0 * bytes.len() as f64 <= 1.05 * entropy + 32.0, "{d} {p} {signed}");
            }
        }
    }

    #[test]
    fn damaged_packets_are_refused_or_read_as_something_else_but_never_panic() {
        let levels = random(124, 0.09, true, 3);
        let mut bytes = Vec::new();
        Marks::of(&levels).write(true, &mut bytes);
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut], true, &mut [0; 124]).is_err());
        }
        for bit in 0..8 * bytes.len() {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            if let Ok(length) = read(&other, true, &mut [0; 124]) {
                assert!(length <= other.len());
            }
        }
        assert!(read(&[0xff; 40], true, &mut [0; 124]).is_err());
    }
}
