//! A binary range coder (Martin, 1979): the message narrows an interval of 56-bit numbers, and the
//! bytes name one number inside it.
//!
//! The last interval is closed with the fewest bytes that name a number in it, and trailing zero
//! bytes are left out, so a short message costs its information and less than a byte more. The
//! decoder repeats that choice at the end, so one message has one encoding: trailing or changed
//! bytes that decode to the same symbols are refused.

use whimbrel_core::{Error, Result};

/// Binary digits of a probability.
pub(crate) const PROBABILITY_BITS: u32 = 16;
const WINDOW_BITS: u32 = 56;
const WINDOW_BYTES: usize = 7;
const MASK: u64 = (1 << WINDOW_BITS) - 1;
/// Below this the interval is widened by a byte.
const LOW_WATER: u64 = 1 << (WINDOW_BITS - 8);

/// Writes bits, each with the probability the model gives it.
pub(crate) struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    low: u64,
    range: u64,
}

impl<'a> Encoder<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        Self { out, start, low: 0, range: 1 << WINDOW_BITS }
    }

    /// Writes one bit; `zero` is the probability of 0 in units of `2^-16`, neither 0 nor 1.
    #[inline]
    pub fn bit(&mut self, bit: bool, zero: u16) {
        let bound = (self.range >> PROBABILITY_BITS) * u64::from(zero);
        if bit {
            self.low += bound;
            self.range -= bound;
        } else {
            self.range = bound;
        }
        self.widen();
    }

    /// Writes the lowest `count` bits of `value` (at most 32), each equally likely.
    #[inline]
    pub fn raw(&mut self, value: u64, count: u32) {
        for i in (0..count).rev() {
            self.range >>= 1;
            if value >> i & 1 == 1 {
                self.low += self.range;
            }
            self.widen();
        }
    }

    #[inline]
    fn widen(&mut self) {
        while self.range < LOW_WATER {
            self.shift();
            self.range <<= 8;
        }
    }

    fn shift(&mut self) {
        if self.low > MASK {
            self.carry();
        }
        self.out.push((self.low >> (WINDOW_BITS - 8)) as u8);
        self.low = self.low << 8 & MASK;
    }

    /// Adds one to the number written so far; it never overflows, for the whole message names a
    /// number below one.
    fn carry(&mut self) {
        self.low &= MASK;
        for byte in self.out[self.start..].iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                return;
            }
        }
    }

    /// Closes the message.
    pub fn finish(mut self) {
        let (value, bytes) = shortest(self.low, self.range);
        self.low = value;
        if bytes == 0 && self.low > MASK {
            self.carry();
        }
        for _ in 0..bytes {
            self.shift();
        }
        while self.out.len() > self.start && self.out.last() == Some(&0) {
            self.out.pop();
        }
    }
}

/// The number in `[low, low + range)` with the fewest leading bytes, and how many those are.
fn shortest(low: u64, range: u64) -> (u64, usize) {
    for bytes in 0..WINDOW_BYTES {
        let unit = 1u64 << (WINDOW_BITS - 8 * bytes as u32);
        let value = low.div_ceil(unit) * unit;
        if value < low + range {
            return (value, bytes);
        }
    }
    (low, WINDOW_BYTES)
}

/// Reads what [`Encoder`] wrote. Any bytes decode to some bits; [`Decoder::finish`] tells whether
/// they were a message.
pub(crate) struct Decoder<'a> {
    bytes: &'a [u8],
    next: usize,
    /// The window's bytes as a number, and its distance from the interval's low end.
    window: u64,
    offset: u64,
    range: u64,
}

impl<'a> Decoder<'a> {
    /// Starts at the first byte; the message is all of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        let mut decoder = Self { bytes, next: 0, window: 0, offset: 0, range: 1 << WINDOW_BITS };
        for _ in 0..WINDOW_BYTES {
            decoder.shift();
        }
        decoder
    }

    /// Reads one bit; `zero` as in [`Encoder::bit`].
    #[inline]
    pub fn bit(&mut self, zero: u16) -> bool {
        let bound = (self.range >> PROBABILITY_BITS) * u64::from(zero);
        let bit = self.offset >= bound;
        if bit {
            self.offset -= bound;
            self.range -= bound;
        } else {
            self.range = bound;
        }
        self.widen();
        bit
    }

    /// Reads `count` equally likely bits.
    #[inline]
    pub fn raw(&mut self, count: u32) -> u64 {
        let mut value = 0;
        for _ in 0..count {
            self.range >>= 1;
            let bit = self.offset >= self.range;
            if bit {
                self.offset -= self.range;
            }
            value = value << 1 | u64::from(bit);
            self.widen();
        }
        value
    }

    #[inline]
    fn widen(&mut self) {
        while self.range < LOW_WATER {
            self.shift();
            self.range <<= 8;
        }
    }

    #[inline]
    fn shift(&mut self) {
        let byte = u64::from(self.bytes.get(self.next).copied().unwrap_or(0));
        self.next += 1;
        self.window = (self.window << 8 | byte) & MASK;
        self.offset = self.offset << 8 | byte;
    }

    /// Checks that the bytes are what the encoder would have written.
    pub fn finish(self) -> Result<()> {
        // Modulo 2^56 the low end is known, and that is enough to see what the encoder chose.
        let low = self.window.wrapping_sub(self.offset) & MASK;
        let (value, _) = shortest(low, self.range);
        let trimmed = self.bytes.last().is_none_or(|&byte| byte != 0);
        if trimmed && self.bytes.len() <= self.next && value & MASK == self.window {
            Ok(())
        } else {
            Err(Error::peer("a packet does not end where its content does"))
        }
    }
}
