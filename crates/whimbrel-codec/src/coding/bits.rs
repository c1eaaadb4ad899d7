//! Raw bits, packed from the lowest bit of each byte up.

use whimbrel_core::{Error, Result};

/// Appends bits to bytes; holds fewer than 32 bits between calls.
pub(crate) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    held: u64,
    count: u32,
}

impl<'a> BitWriter<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, held: 0, count: 0 }
    }

    /// Appends the lowest `count <= 32` bits of `value`, which has no others.
    #[inline]
    pub fn put(&mut self, value: u64, count: u32) {
        self.held |= value << self.count;
        self.count += count;
        if self.count >= 32 {
            self.out.extend_from_slice(&(self.held as u32).to_le_bytes());
            self.held >>= 32;
            self.count -= 32;
        }
    }

    /// Fills the last byte with zeros.
    pub fn finish(self) {
        let bytes = self.held.to_le_bytes();
        self.out.extend_from_slice(&bytes[..self.count.div_ceil(8) as usize]);
    }
}

/// Reads the output of [`BitWriter`].
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    next: usize,
    held: u64,
    count: u32,
}

impl<'a> BitReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, next: 0, held: 0, count: 0 }
    }

    #[inline]
    fn refill(&mut self) {
        if let Some((eight, _)) = self.bytes[self.next..].split_first_chunk::<8>() {
            // Bits beyond the counted whole bytes are read again by the next refill.
            self.held |= u64::from_le_bytes(*eight) << self.count;
            let whole = (63 - self.count) / 8;
            self.next += whole as usize;
            self.count += 8 * whole;
            return;
        }
        while self.count <= 56
            && let Some(&byte) = self.bytes.get(self.next)
        {
            self.held |= u64::from(byte) << self.count;
            self.count += 8;
            self.next += 1;
        }
    }

    /// Reads `count <= 32` bits.
    #[inline]
    pub fn take(&mut self, count: u32) -> Result<u64> {
        if self.count < count {
            self.refill();
            if self.count < count {
                return Err(Error::peer("a packet ends inside its digits"));
            }
        }
        let value = self.held & ((1 << count) - 1);
        self.held >>= count;
        self.count -= count;
        Ok(value)
    }

    /// Reads ones up to a zero, and the zero; refuses more than `most` ones.
    #[inline]
    pub fn ones(&mut self, most: usize) -> Result<usize> {
        let mut total = 0;
        loop {
            self.refill();
            let run = self.held.trailing_ones().min(self.count);
            total += run as usize;
            if total > most {
                return Err(Error::peer("a packet has gaps beyond the end of the vector"));
            }
            if run < self.count {
                // Drop the zero as well, in two shifts, since a shift by 64 bits is not allowed.
                self.held = (self.held >> run) >> 1;
                self.count -= run + 1;
                return Ok(total);
            }
            if run == 0 {
                return Err(Error::peer("a packet ends inside its digits"));
            }
            self.held = 0;
            self.count = 0;
        }
    }

    /// Checks that zeros fill the last byte; returns the number of bytes read.
    pub fn finish(self) -> Result<usize> {
        let whole = self.count / 8;
        let rest = self.held & ((1u64 << (self.count % 8)) - 1);
        if rest == 0 {
            Ok(self.next - whole as usize)
        } else {
            Err(Error::peer("a packet has a bit after its last digit"))
        }
    }
}
