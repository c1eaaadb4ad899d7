//! Whole numbers in base 128, the last digit with its top bit clear.

use whimbrel_core::{Error, Result};

/// Appends `count`: one byte below 128, two below 16384, and so on.
pub(crate) fn put_count(mut count: usize, out: &mut Vec<u8>) {
    while count >= 0x80 {
        out.push(count as u8 | 0x80);
        count >>= 7;
    }
    out.push(count as u8);
}

/// Reads a number of at most five digits and drops its bytes from the front.
pub(crate) fn take_count(bytes: &mut &[u8]) -> Result<usize> {
    let mut count = 0;
    for shift in (0..35).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else {
            return Err(Error::peer("a packet ends inside a count"));
        };
        *bytes = rest;
        count |= usize::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            // A last byte of zero would be a second way to write the same number.
            return if *byte == 0 && shift > 0 {
                Err(Error::peer("a packet has a count with a needless byte"))
            } else {
                Ok(count)
            };
        }
    }
    Err(Error::peer("a packet has a count of more than 35 binary digits"))
}
