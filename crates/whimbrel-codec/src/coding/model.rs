//! Adaptive models: what the bits so far say about the next one. Nothing about them is sent.

use super::range::{Decoder, Encoder};

/// The probability that a bit is 0, estimated from the bits before it: `(zeros + 1/2)/(n + 1)`
/// (Krichevsky and Trofimov, 1981), with a window of 256 bits from there on.
#[derive(Clone, Copy)]
pub(crate) struct Bit {
    zero: u16,
    seen: u8,
}

const WINDOW: u8 = 254;

impl Bit {
    pub const NEW: Self = Self { zero: 1 << 15, seen: 0 };

    #[inline]
    pub fn encode(&mut self, to: &mut Encoder, bit: bool) {
        to.bit(bit, self.zero);
        self.learn(bit);
    }

    #[inline]
    pub fn decode(&mut self, from: &mut Decoder) -> bool {
        let bit = from.bit(self.zero);
        self.learn(bit);
        bit
    }

    #[inline]
    fn learn(&mut self, bit: bool) {
        let target = if bit { 0 } else { 65535 };
        let now = i32::from(self.zero);
        let next = now + (target - now) / (i32::from(self.seen) + 2);
        self.zero = next.clamp(24, 65535 - 24) as u16;
        self.seen += u8::from(self.seen < WINDOW);
    }
}

/// Numbers in `0..=limit`, small ones thought likelier: the length of `v + 1` in unary, its next
/// three digits, both learned; further digits as they are. Digits that the limit forces are not
/// written, so no other number can be read.
pub(crate) struct Number {
    longer: [Bit; LENGTHS],
    digits: [[Bit; 1 << LEARNED_DIGITS]; LENGTHS],
}

const LENGTHS: usize = 33;
const LEARNED_DIGITS: u32 = 3;

impl Number {
    pub fn new() -> Self {
        Self { longer: [Bit::NEW; LENGTHS], digits: [[Bit::NEW; 8]; LENGTHS] }
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

    /// The model of the digit with `left` digits after it, or none where digits go raw.
    #[inline]
    fn context(&mut self, length: u32, left: u32, before: u64) -> Option<&mut Bit> {
        let digit = length - 1 - left;
        // `before` has a leading one and `digit` digits: a distinct number below 8 for each node.
        (digit < LEARNED_DIGITS).then(|| &mut self.digits[length as usize][before as usize])
    }
}

/// Whether a one after the digits `before` would exceed the limit.
#[inline]
fn forced(before: u64, left: u32, limit: u64) -> bool {
    (before << 1 | 1) << left > limit
}
