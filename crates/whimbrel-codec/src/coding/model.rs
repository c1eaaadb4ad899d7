//! Adaptive models: the probability of the next bit given the previous ones. Models are not sent.

use super::range::{Decoder, Encoder, PROBABILITY_BITS};

/// The probability that a bit is 0, estimated from the `n` bits before it as
/// `(zeros + a)/(n + 2 a)`, with older bits down-weighted beyond [`MEMORY`].
#[derive(Clone, Copy)]
pub(crate) struct Bit {
    /// In units of `2^-32`.
    zero: u32,
    /// `4 (n + 1 + 2 a)`: four over the step by which the next bit moves the estimate.
    weight: u32,
}

const MEMORY: u32 = 4096;

impl Bit {
    /// `a = 1/2` (Krichevsky and Trofimov, 1981): no prior knowledge.
    pub const OPEN: Self = Self { zero: 1 << 31, weight: 8 };
    /// `a = 1/4`: for bits that are mostly equal.
    const SETTLED: Self = Self { zero: 1 << 31, weight: 6 };

    #[inline]
    pub fn encode(&mut self, to: &mut Encoder, bit: bool) {
        to.bit(bit, self.probability());
        self.learn(bit);
    }

    #[inline]
    pub fn decode(&mut self, from: &mut Decoder) -> bool {
        let bit = from.bit(self.probability());
        self.learn(bit);
        bit
    }

    #[inline]
    fn probability(self) -> u32 {
        (self.zero >> (32 - PROBABILITY_BITS)).max(1)
    }

    #[inline]
    fn learn(&mut self, bit: bool) {
        if bit {
            self.zero -= self.zero / self.weight * 4;
        } else {
            self.zero += (u32::MAX - self.zero) / self.weight * 4;
        }
        self.weight += if self.weight < 4 * MEMORY { 4 } else { 0 };
    }
}

/// A code for numbers in `0..=limit` that favours small ones: the length of `v + 1` in unary and its next
/// `PREFIX` digits, with adaptive probabilities given the digits before; then the remaining digits, with
/// probabilities by position (`REST`) or raw. Digits determined by the limit are not written, so no
/// number beyond it can be read.
pub(crate) struct Number<const PREFIX: u32, const REST: bool> {
    longer: [Bit; LENGTHS],
    prefix: [[Bit; 1 << MOST_PREFIX]; LENGTHS],
    rest: [[Bit; MOST_REST]; LENGTHS],
}

const LENGTHS: usize = 33;
const MOST_PREFIX: u32 = 2;
/// Digits from this position on are written raw.
const MOST_REST: usize = 12;

impl<const PREFIX: u32, const REST: bool> Number<PREFIX, REST> {
    pub fn new() -> Self {
        const { assert!(PREFIX <= MOST_PREFIX) };
        let mut longer = [Bit::SETTLED; LENGTHS];
        longer[0] = Bit::OPEN;
        Self {
            longer,
            prefix: [[Bit::SETTLED; 1 << MOST_PREFIX]; LENGTHS],
            rest: [[Bit::SETTLED; MOST_REST]; LENGTHS],
        }
    }

    #[inline]
    pub fn encode(&mut self, to: &mut Encoder, value: u32, limit: u32) {
        debug_assert!(value <= limit);
        let (value, limit) = (u64::from(value) + 1, u64::from(limit) + 1);
        let length = value.ilog2();
        for i in 0..length {
            self.longer[i as usize].encode(to, true);
        }
        if length < limit.ilog2() {
            self.longer[length as usize].encode(to, false);
        }
        for left in (0..length).rev() {
            let bit = value >> left & 1;
            let before = value >> (left + 1);
            if forced(before, left, limit) {
                continue;
            }
            match self.context(length, left, before) {
                Some(model) => model.encode(to, bit == 1),
                None => to.raw(bit, 1),
            }
        }
    }

    #[inline]
    pub fn decode(&mut self, from: &mut Decoder, limit: u32) -> u32 {
        let limit = u64::from(limit) + 1;
        let longest = limit.ilog2();
        let mut length = 0;
        while length < longest && self.longer[length as usize].decode(from) {
            length += 1;
        }
        let mut value = 1u64;
        for left in (0..length).rev() {
            let bit = if forced(value, left, limit) {
                false
            } else {
                match self.context(length, left, value) {
                    Some(model) => model.decode(from),
                    None => from.raw(1) == 1,
                }
            };
            value = value << 1 | u64::from(bit);
        }
        (value - 1) as u32
    }

    /// The model of the digit with `left` digits after it; `None` for raw digits.
    #[inline]
    fn context(&mut self, length: u32, left: u32, before: u64) -> Option<&mut Bit> {
        let (digit, length) = (length - 1 - left, length as usize);
        if digit < PREFIX {
            // `before` is a leading one and `digit` digits: an index below 4.
            Some(&mut self.prefix[length][before as usize])
        } else if REST {
            self.rest[length].get_mut(left as usize)
        } else {
            None
        }
    }
}

/// Whether a one after the digits `before` would exceed the limit.
#[inline]
fn forced(before: u64, left: u32, limit: u64) -> bool {
    (before << 1 | 1) << left > limit
}
