//! Short sparse vectors of marks (zero or one, with a sign or without): Golomb-Rice gaps, packed
//! from the lowest bit of each byte up.
//!
//! Gaps between random marks are geometric, for which a Rice code of the right parameter is within
//! 3 % of the entropy; and a gap takes a nanosecond or two, where adaptive models take several for
//! each coordinate. The parameter follows from the length and the count, so it is not sent.
//!
//! Bits: a one (the form), the count, then for each mark its gap and its sign.

use whimbrel_core::{Error, Result};

/// So few marks may have any signs: what they lose is less than a header.
const FEW: usize = 16;

/// Whether marks are few enough, and their signs so mixed that a bit each is no waste.
pub(crate) fn suits(levels: &[i16], marks: usize, signed: bool) -> bool {
    let negative = || levels.iter().filter(|level| **level < 0).count();
    let mixed = |negative: usize| 3 * negative.min(marks - negative) >= marks;
    few_enough(marks, levels.len()) && (!signed || marks <= FEW || mixed(negative()))
}

fn few_enough(marks: usize, length: usize) -> bool {
    3 * marks <= length
}

/// Appends marks.
pub(crate) fn write(levels: &[i16], marks: usize, signed: bool, out: &mut Vec<u8>) {
    let mut bits = BitWriter { out, held: 0, count: 0 };
    bits.put(1, 1);
    bits.put(marks as u64, count_bits(levels.len()));
    let k = parameter(marks, levels.len());
    let mut start = 0;
    for (i, &level) in levels.iter().enumerate() {
        if level != 0 {
            let gap = i - start;
            bits.ones(gap >> k);
            bits.put(((gap & ((1 << k) - 1)) << 1) as u64, k + 1);
            if signed {
                bits.put(u64::from(level < 0), 1);
            }
            start = i + 1;
        }
    }
    bits.finish();
}

/// Reads what [`write`] wrote; returns how many bytes it took. `levels` is all zero before.
pub(crate) fn read(bytes: &[u8], signed: bool, levels: &mut [i16]) -> Result<usize> {
    let mut bits = BitReader { bytes, next: 0, held: 0, count: 0 };
    bits.take(1)?;
    let marks = bits.take(count_bits(levels.len()))? as usize;
    if !few_enough(marks, levels.len()) {
        return Err(Error::peer("a packet of gaps has more marks than that form is for"));
    }
    let k = parameter(marks, levels.len());
    let mut start = 0;
    for _ in 0..marks {
        let high = bits.ones(levels.len() >> k)?;
        let gap = high << k | bits.take(k)? as usize;
        let negative = signed && bits.take(1)? == 1;
        let at = start + gap;
        let Some(level) = levels.get_mut(at) else {
            return Err(Error::peer("a packet of gaps goes on beyond the vector"));
        };
        *level = if negative { -1 } else { 1 };
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

struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    held: u64,
    count: u32,
}

impl BitWriter<'_> {
    /// Appends the lowest `count <= 32` bits of `value`, which has no others.
    fn put(&mut self, value: u64, count: u32) {
        self.held |= value << self.count;
        self.count += count;
        while self.count >= 8 {
            self.out.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    /// Appends so many ones; the zero that ends them is the caller's.
    fn ones(&mut self, mut count: usize) {
        while count > 0 {
            let now = count.min(32);
            self.put((1 << now) - 1, now as u32);
            count -= now;
        }
    }

    fn finish(self) {
        if self.count > 0 {
            self.out.push(self.held as u8);
        }
    }
}

struct BitReader<'a> {
    bytes: &'a [u8],
    next: usize,
    held: u64,
    count: u32,
}

impl BitReader<'_> {
    #[inline]
    fn refill(&mut self) {
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
    fn take(&mut self, count: u32) -> Result<u64> {
        if self.count < count {
            self.refill();
            if self.count < count {
                return Err(Error::peer("a packet of gaps ends early"));
            }
        }
        let value = self.held & ((1 << count) - 1);
        self.held >>= count;
        self.count -= count;
        Ok(value)
    }

    /// Reads ones up to a zero, and the zero; refuses more than `most` ones.
    #[inline]
    fn ones(&mut self, most: usize) -> Result<usize> {
        let mut total = 0;
        loop {
            self.refill();
            let run = self.held.trailing_ones().min(self.count);
            total += run as usize;
            if total > most {
                return Err(Error::peer("a packet of gaps goes on beyond the vector"));
            }
            if run < self.count {
                // The zero goes, too; a shift by all 64 bits is no shift.
                self.held = (self.held >> run) >> 1;
                self.count -= run + 1;
                return Ok(total);
            }
            if run == 0 {
                return Err(Error::peer("a packet of gaps ends early"));
            }
            self.held = 0;
            self.count = 0;
        }
    }

    /// Checks that zeros fill the last byte; returns how many bytes were read.
    fn finish(self) -> Result<usize> {
        let whole = self.count / 8;
        let rest = self.held & ((1u64 << (self.count % 8)) - 1);
        if rest == 0 {
            Ok(self.next - whole as usize)
        } else {
            Err(Error::peer("a packet of gaps has a bit after its last one"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Key;

    fn random(d: usize, p: f64, signed: bool, seed: u64) -> Vec<i16> {
        let mut stream = Key::root(seed).stream();
        (0..d)
            .map(|_| match stream.uniform() < p {
                false => 0,
                true if signed && stream.uniform() < 0.5 => -1,
                true => 1,
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
                write(&levels, marks, signed, &mut bytes);
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
        let marks = levels.iter().filter(|l| **l != 0).count();
        let mut bytes = Vec::new();
        write(&levels, marks, true, &mut bytes);
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
