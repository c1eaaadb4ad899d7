//! A binary range coder (Martin, 1979): the message narrows an interval of 56-bit numbers, and the
//! bytes name one number inside it.
//!
//! A message ends with the fewest bytes such that every continuation names a number in its last interval.
//! The decoder therefore needs no length, no message is a prefix of another, and the decoder, which
//! repeats that choice, refuses any other bytes for the same symbols.

use whimbrel_core::{Error, Result};

/// Binary digits of a probability.
pub(crate) const PROBABILITY_BITS: u32 = 24;
const WINDOW_BITS: u32 = 56;
const WINDOW_BYTES: usize = 7;
const MASK: u64 = (1 << WINDOW_BITS) - 1;
/// Below this the interval is widened by a byte.
const LOW_WATER: u64 = 1 << (WINDOW_BITS - 8);

/// Writes bits with given probabilities.
pub(crate) struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    /// The start of this message in `out`.
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

    /// Writes one bit; `zero` is the probability of 0 in units of `2^-24`, neither 0 nor 1.
    #[inline]
    pub fn bit(&mut self, bit: bool, zero: u32) {
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

    /// Adds one to the number written so far; it cannot overflow, since the message names a number below
    /// one.
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
        let (value, bytes) = closing(self.low, self.range);
        self.low = value;
        for _ in 0..bytes {
            self.shift();
        }
    }
}

/// The fewest leading bytes all of whose continuations lie in `[low, low + range)`: the smallest
/// continuation, and the number of bytes.
fn closing(low: u64, range: u64) -> (u64, usize) {
    for bytes in 0..WINDOW_BYTES {
        let unit = unit(bytes);
        let value = low.div_ceil(unit) * unit;
        if value + unit <= low + range {
            return (value, bytes);
        }
    }
    (low, WINDOW_BYTES)
}

/// The number of window values with the same first `bytes` bytes.
fn unit(bytes: usize) -> u64 {
    1 << (WINDOW_BITS - 8 * bytes as u32)
}

/// Reads the output of [`Encoder`]. Any bytes decode to some bits; [`Decoder::finish`] checks that they
/// were a message.
pub(crate) struct Decoder<'a> {
    bytes: &'a [u8],
    next: usize,
    /// The window's bytes as a number, and its distance from the interval's low end.
    window: u64,
    offset: u64,
    range: u64,
}

impl<'a> Decoder<'a> {
    /// Starts at the first byte; others may follow the message.
    pub fn new(bytes: &'a [u8]) -> Self {
        let mut decoder = Self { bytes, next: 0, window: 0, offset: 0, range: 1 << WINDOW_BITS };
        for _ in 0..WINDOW_BYTES {
            decoder.shift();
        }
        decoder
    }

    /// Reads one bit; `zero` as in [`Encoder::bit`].
    #[inline]
    pub fn bit(&mut self, zero: u32) -> bool {
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

    /// Checks that the bytes are the encoder's, and returns their number.
    pub fn finish(self) -> Result<usize> {
        // The low end modulo 2^56 suffices to repeat the encoder's choice.
        let low = self.window.wrapping_sub(self.offset) & MASK;
        let (value, bytes) = closing(low, self.range);
        let length = self.next - WINDOW_BYTES + bytes;
        let same = self.window & !(unit(bytes) - 1) & MASK == value & MASK;
        if same && length <= self.bytes.len() {
            Ok(length)
        } else {
            Err(Error::peer("a packet of levels does not end where its content does"))
        }
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_core::Key;

    use super::*;

    /// Bits with probabilities from certain to even, so that carries run through many bytes.
    fn message(n: u64) -> Vec<(bool, u32)> {
        let mut stream = Key::root(n).stream();
        (0..stream.below(400))
            .map(|_| {
                let zero = 1 + (((1u32 << 24) - 2) >> stream.below(24));
                let zero = if stream.uniform() < 0.5 { zero } else { (1 << 24) - zero };
                (stream.uniform() < 0.5, zero)
            })
            .collect()
    }

    fn write(message: &[(bool, u32)], out: &mut Vec<u8>) {
        let mut to = Encoder::new(out);
        for (i, &(bit, zero)) in message.iter().enumerate() {
            to.bit(bit, zero);
            to.raw(i as u64, 3);
        }
        to.finish();
    }

    fn read(bytes: &[u8], message: &[(bool, u32)]) -> Result<usize> {
        let mut from = Decoder::new(bytes);
        for (i, &(bit, zero)) in message.iter().enumerate() {
            if from.bit(zero) != bit || from.raw(3) != i as u64 % 8 {
                return Err(Error::peer("another message"));
            }
        }
        from.finish()
    }

    #[test]
    fn messages_come_back_whatever_follows_them() {
        for n in 0..500 {
            let message = message(n);
            let mut bytes = vec![7, 255, 255];
            write(&message, &mut bytes);
            let length = bytes.len() - 3;
            for tail in [vec![], vec![0], vec![255; 9], vec![128, 1]] {
                let followed = [&bytes[3..], &tail].concat();
                assert_eq!(read(&followed, &message), Ok(length), "message {n}");
            }
            assert_eq!(bytes[..3], [7, 255, 255], "a carry left its message");
        }
    }

    #[test]
    fn a_message_has_one_encoding() {
        for n in 0..200 {
            let message = message(n);
            let mut bytes = Vec::new();
            write(&message, &mut bytes);
            for at in 0..bytes.len() {
                assert!(read(&bytes[..at], &message).is_err(), "message {n} cut at {at}");
                for bit in 0..8 {
                    let mut other = bytes.clone();
                    other[at] ^= 1 << bit;
                    assert!(read(&other, &message).is_err(), "message {n}, byte {at}");
                }
            }
        }
    }

    #[test]
    fn length_is_the_information_and_at_most_nine_bits_more() {
        for n in 0..200 {
            let message = message(n);
            let mut bytes = Vec::new();
            write(&message, &mut bytes);
            let bits: f64 = message
                .iter()
                .map(|&(bit, zero)| {
                    let p = f64::from(if bit { (1 << 24) - zero } else { zero });
                    3.0 + 24.0 - p.log2()
                })
                .sum();
            assert!(8.0 * bytes.len() as f64 <= bits + 9.0 + 1e-6 * bits, "message {n}");
        }
    }
}
