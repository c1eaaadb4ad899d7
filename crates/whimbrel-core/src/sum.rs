//! Sums over clients that do not depend on the order of the addends.
//!
//! Floating-point addition is not associative, so a plain sum depends on arrival order, threads
//! and shards. Here every addend is split into four pieces on a fixed ladder of powers of two, 28
//! bits apart, and each piece is added to its own bin. A piece is a whole number of its bin's
//! quanta, at most `2^27` of them, so for up to [`ADDENDS_MAX`] addends a bin stays below `2^52`
//! quanta and *every addition is exact*: every order, sharding and tree of merges gives the same
//! bins, hence the same bits.
//!
//! No grid must be chosen: the four bins follow the largest magnitude over all addends and
//! coordinates. Bin `k` of a sum with top `t` has the quantum `2^(28 (t - k))`. The part below the
//! fourth bin is rounded away: per addend and coordinate at most `2^-84` of the largest magnitude.
//! So a coordinate has full precision down to `2^-31` of the largest one, and the same absolute
//! error below. When the top rises, the lowest bin is dropped; an addend's piece for a bin does not
//! depend on the top, so the remaining bins equal those of a sum that started with the higher top.

use crate::{Error, Result, kernel, vector};

/// The maximum of addends: up to here all additions are exact.
pub const ADDENDS_MAX: u32 = 1 << 25;

/// Addends must be smaller than this (`2^979`, about 6e294): above, a bin's rounding constant
/// would overflow.
pub const MAGNITUDE_MAX: f64 = f64::from_bits((979 + 1023) << 52);

/// Binary digits from one bin to the next.
const STEP: i32 = 28;
/// The top bins of the largest and of the smallest addends. The fourth bin of the latter has a
/// quantum below `2^-1074`, so nothing is rounded.
const TOP_MAX: i32 = 34;
const TOP_MIN: i32 = -36;

/// Narrow numbers widened at a time.
const BLOCK: usize = 512;

/// An exact, order-independent sum of weighted vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct ExactSum {
    /// Number of vectors added.
    pub(crate) count: u32,
    /// The rung of the first bin; `None` while all addends are zero.
    pub(crate) top: Option<i32>,
    /// Four bins per coordinate, coarsest first.
    pub(crate) bins: [Vec<f64>; 4],
}

impl ExactSum {
    /// The empty sum of vectors of length `d`.
    pub fn new(d: usize) -> Self {
        Self { count: 0, top: None, bins: std::array::from_fn(|_| vector::zeros(d)) }
    }

    /// The length of the vectors.
    pub fn len(&self) -> usize {
        self.bins[0].len()
    }

    /// Whether the vectors have no coordinates.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of vectors added.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Resets to the empty sum and keeps the memory.
    pub fn clear(&mut self) {
        self.count = 0;
        self.top = None;
        self.bins.iter_mut().for_each(|bin| bin.fill(0.0));
    }

    /// Adds `weight * x`. Each product is rounded once, as in any floating-point sum; the rest is
    /// exact. On an error the sum is unchanged.
    pub fn add(&mut self, x: &[f64], weight: f64) -> Result<()> {
        self.check_len(x.len())?;
        let count = self.checked_count(1)?;
        let largest = largest_product_bits(x, weight);
        if largest >= MAGNITUDE_MAX.to_bits() {
            return Err(too_large(x, weight));
        }
        self.count = count;
        if largest > 0 {
            let top = self.raise_to(top_of(f64::from_bits(largest)));
            let [a, b, c, d] = &mut self.bins;
            add_pieces(a, b, c, d, x, weight, rounders(top));
        }
        Ok(())
    }

    /// [`add`](Self::add) for narrow numbers, which are widened block by block.
    pub fn add_f32(&mut self, x: &[f32], weight: f64) -> Result<()> {
        self.check_len(x.len())?;
        let count = self.checked_count(1)?;
        let mut room = [0.0; BLOCK];
        let largest = x.chunks(BLOCK).map(|x| largest_product_bits(widen(x, &mut room), weight));
        let largest = largest.max().unwrap_or(0);
        if largest >= MAGNITUDE_MAX.to_bits() {
            let wide: Vec<f64> = x.iter().copied().map(f64::from).collect();
            return Err(too_large(&wide, weight));
        }
        self.count = count;
        if largest > 0 {
            let rounders = rounders(self.raise_to(top_of(f64::from_bits(largest))));
            let [a, b, c, d] = &mut self.bins;
            for (n, x) in x.chunks(BLOCK).enumerate() {
                let at = n * BLOCK..n * BLOCK + x.len();
                let [a, b] = [&mut a[at.clone()], &mut b[at.clone()]];
                let [c, d] = [&mut c[at.clone()], &mut d[at]];
                add_pieces(a, b, c, d, widen(x, &mut room), weight, rounders);
            }
        }
        Ok(())
    }

    /// Adds `weight * x` at the given coordinates, which may repeat. The number of addends grows by
    /// the frequency of the most frequent coordinate. On an error the sum is unchanged.
    pub fn add_at(&mut self, coordinates: &[u32], x: &[f64], weight: f64) -> Result<()> {
        let mut sorted = coordinates.to_vec();
        sorted.sort_unstable();
        if x.len() != sorted.len() || sorted.last().is_some_and(|c| *c as usize >= self.len()) {
            return Err(Error::peer("a vector of other coordinates than those of the sum"));
        }
        let repeats = sorted.chunk_by(|a, b| a == b).map(<[u32]>::len).max().unwrap_or(0);
        let count = self.checked_count(repeats as u32)?;
        let largest = largest_product_bits(x, weight);
        if largest >= MAGNITUDE_MAX.to_bits() {
            return Err(too_large(x, weight));
        }
        self.count = count;
        if largest > 0 {
            let rounders = rounders(self.raise_to(top_of(f64::from_bits(largest))));
            for (c, x) in coordinates.iter().zip(x) {
                let pieces = pieces(x * weight, rounders);
                self.bins.iter_mut().zip(pieces).for_each(|(bin, piece)| bin[*c as usize] += piece);
            }
        }
        Ok(())
    }

    /// Adds another sum. On an error the sum is unchanged.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.check_len(other.len())?;
        self.count = self.checked_count(other.count)?;
        let Some(other_top) = other.top else { return Ok(()) };
        let top = self.raise_to(other_top);
        // `other`'s bins that are still on the ladder, against ours of the same rung.
        let lower = (top - other_top).min(4) as usize;
        for (mine, theirs) in self.bins[lower..].iter_mut().zip(&other.bins) {
            vector::axpy(mine, 1.0, theirs);
        }
        Ok(())
    }

    /// The sum. The four bins of a coordinate are added with a relative error of at most about
    /// `2^-52`, even under cancellation.
    pub fn value(&self) -> Vec<f64> {
        let mut out = vector::zeros(self.len());
        if let Some(top) = self.top {
            let [a, b, c, d] = &self.bins;
            add_up(&mut out, a, b, c, d, rounders(top));
        }
        out
    }

    /// Count, top and bins, for storage.
    pub fn parts(&self) -> (u32, Option<i32>, &[Vec<f64>; 4]) {
        (self.count, self.top, &self.bins)
    }

    /// A sum from stored parts, which may come from a peer; refuses impossible parts.
    pub fn from_parts(count: u32, top: Option<i32>, bins: [Vec<f64>; 4]) -> Result<Self> {
        let refuse =
            |what: &str| Err(Error::peer(format!("the sum over clients is impossible: {what}")));
        if count > ADDENDS_MAX {
            return refuse("too many addends");
        }
        if bins.iter().any(|bin| bin.len() != bins[0].len()) {
            return refuse("its bins differ in length");
        }
        let Some(rung) = top else {
            if bins.iter().flatten().any(|v| v.to_bits() != 0) {
                return refuse("it has a value other than zero, and no top exponent");
            }
            return Ok(Self { count, top, bins });
        };
        if !(TOP_MIN..=TOP_MAX).contains(&rung) {
            return refuse("its top exponent is out of range");
        }
        for (bin, rung) in bins.iter().zip((rung - 3..=rung).rev()) {
            // Whole quanta, at most 2^27 per addend, and never a negative zero.
            let quantum = power_of_two((STEP * rung).max(-1074));
            let largest = f64::from(count) * f64::from(1 << 27);
            let possible = |v: f64| {
                let quanta = v / quantum;
                quanta.abs() <= largest && quanta.fract() == 0.0 && (v != 0.0 || v.to_bits() == 0)
            };
            if !bin.iter().all(|v| possible(*v)) {
                return refuse("a bin of an exact sum is out of range");
            }
        }
        Ok(Self { count, top, bins })
    }

    /// Shifts the bins so that the first is at least at `top`; returns its rung.
    fn raise_to(&mut self, top: i32) -> i32 {
        let old = *self.top.get_or_insert(top);
        if top <= old {
            return old;
        }
        let dropped = (top - old).min(4) as usize;
        self.bins.rotate_right(dropped);
        self.bins[..dropped].iter_mut().for_each(|bin| bin.fill(0.0));
        self.top = Some(top);
        top
    }

    fn check_len(&self, len: usize) -> Result<()> {
        if len == self.len() {
            return Ok(());
        }
        let right = self.len();
        Err(Error::peer(format!("a vector of {len} numbers in a sum of vectors of {right}")))
    }

    fn checked_count(&self, more: u32) -> Result<u32> {
        match self.count.checked_add(more) {
            Some(count) if count <= ADDENDS_MAX => Ok(count),
            _ => Err(Error::numerical(format!(
                "a sum over more than {ADDENDS_MAX} clients would no longer be exact"
            ))),
        }
    }
}

fn widen<'a>(x: &[f32], room: &'a mut [f64; BLOCK]) -> &'a [f64] {
    for (wide, narrow) in room.iter_mut().zip(x) {
        *wide = f64::from(*narrow);
    }
    &room[..x.len()]
}

/// The rung of the first bin for addends up to `largest`: the lowest one with
/// `2 largest < 2^(28 (top + 1))`, so that nothing is left for a bin above.
fn top_of(largest: f64) -> i32 {
    // largest < 2^(exponent + 1), for subnormal numbers too
    let exponent = (largest.to_bits() >> 52) as i32 - 1023;
    // the lowest top with exponent + 2 <= 28 (top + 1)
    (exponent + 1).div_euclid(STEP).max(TOP_MIN)
}

/// Adding and subtracting `1.5 * 2^52` quanta rounds to whole quanta.
fn rounders(top: i32) -> [f64; 4] {
    std::array::from_fn(|k| 1.5 * power_of_two(52 + STEP * (top - k as i32)))
}

fn power_of_two(exponent: i32) -> f64 {
    if exponent >= -1022 {
        f64::from_bits(((exponent + 1023) as u64) << 52)
    } else {
        f64::from_bits(1 << (exponent + 1074))
    }
}

#[cold]
fn too_large(x: &[f64], weight: f64) -> Error {
    let is_large = |x: &f64| (x * weight).abs().to_bits() >= MAGNITUDE_MAX.to_bits();
    let at = x.iter().position(is_large).unwrap_or(0);
    Error::numerical(format!(
        "coordinate {at} of a vector to be summed is {:e} with weight {weight:e}; it must be finite \
         and below {MAGNITUDE_MAX:.0e}",
        x[at]
    ))
}

kernel! {
    /// Bits of the largest `|weight * x|`; without their sign, floating-point numbers are ordered
    /// like integers, NaN last.
    fn largest_product_bits(x: &[f64], weight: f64) -> u64 {
        x.iter().fold(0, |largest, x| (x * weight).abs().to_bits().max(largest))
    }
}

kernel! {
    fn add_pieces(
        a: &mut [f64],
        b: &mut [f64],
        c: &mut [f64],
        d: &mut [f64],
        x: &[f64],
        weight: f64,
        rounders: [f64; 4],
    ) {
        for ((((a, b), c), d), x) in a.iter_mut().zip(b).zip(c).zip(d).zip(x) {
            let pieces = pieces(x * weight, rounders);
            *a += pieces[0];
            *b += pieces[1];
            *c += pieces[2];
            *d += pieces[3];
        }
    }
}

/// The pieces of a number.
#[inline(always)]
fn pieces(rest: f64, rounders: [f64; 4]) -> [f64; 4] {
    let a = (rest + rounders[0]) - rounders[0];
    let rest = rest - a;
    let b = (rest + rounders[1]) - rounders[1];
    let rest = rest - b;
    let c = (rest + rounders[2]) - rounders[2];
    let rest = rest - c;
    [a, b, c, (rest + rounders[3]) - rounders[3]]
}

kernel! {
    /// Carries whole quanta upwards first: then each bin is at most half a quantum of the one
    /// above, nothing large is left to cancel, and adding from below loses only the last bit.
    fn add_up(out: &mut [f64], a: &[f64], b: &[f64], c: &[f64], d: &[f64], rounders: [f64; 4]) {
        for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            let carry = (d + rounders[2]) - rounders[2];
            let (d, c) = (d - carry, c + carry);
            let carry = (c + rounders[1]) - rounders[1];
            let (c, b) = (c - carry, b + carry);
            let carry = (b + rounders[0]) - rounders[0];
            let (b, a) = (b - carry, a + carry);
            *out = a + (b + (c + d));
        }
    }
}
