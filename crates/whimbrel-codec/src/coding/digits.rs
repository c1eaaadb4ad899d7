//! Raw binary digits, packed from the lowest bit of each byte up.

use whimbrel_core::{Error, Result};

/// Appends digits to bytes.
pub(crate) struct DigitWriter<'a> {
    out: &'a mut Vec<u8>,
    held: u32,
    count: u32,
}

impl<'a> DigitWriter<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, held: 0, count: 0 }
    }

    /// Appends the lowest `count <= 16` digits of `value`, which has no others.
    pub fn put(&mut self, value: u32, count: u32) {
        self.held |= value << self.count;
        self.count += count;
        while self.count >= 8 {
            self.out.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    /// Fills the last byte with zeros.
    pub fn finish(self) {
        if self.count > 0 {
            self.out.push(self.held as u8);
        }
    }
}

/// Reads the output of [`DigitWriter`].
pub(crate) struct DigitReader<'a> {
    bytes: &'a [u8],
    next: usize,
    held: u32,
    count: u32,
}

impl<'a> DigitReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, next: 0, held: 0, count: 0 }
    }

    /// Reads `count <= 16` digits.
    pub fn take(&mut self, count: u32) -> Result<u32> {
        while self.count < count {
            let Some(&byte) = self.bytes.get(self.next) else {
                return Err(Error::peer("a packet of levels ends inside its digits"));
            };
            self.next += 1;
            self.held |= u32::from(byte) << self.count;
            self.count += 8;
        }
        let value = self.held & ((1 << count) - 1);
        self.held >>= count;
        self.count -= count;
        Ok(value)
    }

    /// Checks that zeros fill the last byte; returns the number of bytes read.
    pub fn finish(self) -> Result<usize> {
        if self.held == 0 {
            Ok(self.next)
        } else {
            Err(Error::peer("a packet of levels has a bit after its last digit"))
        }
    }
}
