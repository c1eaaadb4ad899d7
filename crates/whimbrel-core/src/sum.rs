//! Sums over clients that do not depend on the order of the addends.
//!
//! Floating-point addition is not associative, so a plain sum depends on arrival order, threads
//! and shards. Here every addend is cut into four pieces on a fixed ladder of powers of two, 28
//! bits apart, and each piece is added to its own bin. A piece is a whole number of its bin's
//! quanta, at most `2^27` of them, so for up to [`ADDENDS_MAX`] addends a bin stays below `2^52`
//! quanta and *every addition is exact*: any order, any sharding and any tree of merges ends in
//! the same bins, hence the same bits.
//!
//! There is no grid to choose: the four bins follow the largest magnitude seen, over all addends
//! and coordinates. Bin `k` of a sum with top `t` has the quantum `2^(28 (t - k))`. What lies below
//! the fourth bin is rounded away: per addend and coordinate at most `2^-84` of that largest
//! magnitude. So a coordinate has full precision down to `2^-31` of the largest one, and that same
//! absolute error below. Where the top rises, the lowest bin is dropped; an addend's piece for a
//! bin does not depend on the top, so the bins left are what they would have been had the top been
//! there from the start.

use crate::{Error, Result, kernel, vector};

/// The most addends one sum takes: up to here exactness is certain.
pub const ADDENDS_MAX: u32 = 1 << 25;

/// Addends must be smaller than this (`2^979`, about 6e294): above, a bin's rounding constant
/// would overflow.
pub const MAGNITUDE_MAX: f64 = f64::from_bits((979 + 1023) << 52);

/// Binary digits from one bin to the next.
const STEP: i32 = 28;
/// Top bins of the largest addends, and of the smallest: its fourth bin has a quantum below
/// `2^-1074`, so from there on down nothing is rounded at all.
const TOP_MAX: i32 = 34;
const TOP_MIN: i32 = -36;

/// Narrow numbers widened at a time.
const BLOCK: usize = 512;

/// An exact, order-independent sum of weighted vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct ExactSum {
    /// How many vectors have been added.
    pub(crate) count: u32,
    /// The rung of the first bin; none while every addend was zero.
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

    /// How many vectors have been added.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Back to the empty sum, keeping the memory.
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

    /// Adds `weight * x` at the given coordinates, which may repeat; the others stay as they are. It
    /// counts as many addends as its most frequent coordinate has. On an error the sum is unchanged.
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

    /// Adds all that `other` has added. On an error the sum is unchanged.
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

    /// The sum. The four bins of a coordinate are added with a relative error of about `2^-52` at
    /// most, whatever cancels between them.
    pub fn value(&self) -> Vec<f64> {
        let mut out = vector::zeros(self.len());
        self.fill(&mut out);
        out
    }

    /// The sum, written to a slice of length [`len`](Self::len).
    pub fn value_into(&self, out: &mut [f64]) -> Result<()> {
        self.check_len(out.len())?;
        self.fill(out);
        Ok(())
    }

    /// What the sum consists of, for storing it: count, top and bins.
    pub fn parts(&self) -> (u32, Option<i32>, &[Vec<f64>; 4]) {
        (self.count, self.top, &self.bins)
    }

    /// A sum from its parts, which may come from a peer: refuses what no sum can be.
    pub fn from_parts(count: u32, top: Option<i32>, bins: [Vec<f64>; 4]) -> Result<Self> {
        let refuse = |what: &str| Err(Error::peer(format!("a sum over clients cannot be: {what}")));
        if count > ADDENDS_MAX {
            return refuse("too many addends");
        }
        if bins.iter().any(|bin| bin.len() != bins[0].len()) {
            return refuse("its bins differ in length");
        }
        let Some(rung) = top else {
            if bins.iter().flatten().any(|v| v.to_bits() != 0) {
                return refuse("it has no top but a value that is not zero");
            }
            return Ok(Self { count, top, bins });
        };
        if !(TOP_MIN..=TOP_MAX).contains(&rung) {
            return refuse("its top is outside the range of numbers");
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
                return refuse("a bin holds what no addends leave there");
            }
        }
        Ok(Self { count, top, bins })
    }

    fn fill(&self, out: &mut [f64]) {
        match self.top {
            None => out.fill(0.0),
            Some(top) => {
                let [a, b, c, d] = &self.bins;
                add_up(out, a, b, c, d, rounders(top));
            }
        }
    }

    /// Moves the bins so that the first is at least at `top`; returns where it is.
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

/// What a number adds to each bin.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, math};
    use proptest::prelude::*;

    #[test]
    fn addends_at_some_coordinates_are_those_of_the_scattered_vector() {
        let mut stream = Key::root(3).stream();
        let (mut sparse, mut dense) = (ExactSum::new(40), ExactSum::new(40));
        for weight in [0.3, 2.0, 1e-9] {
            let at: Vec<u32> = stream.choose(40, 12).into_iter().map(|i| i as u32).collect();
            let x: Vec<f64> = at.iter().map(|_| stream.normal()).collect();
            let mut scattered = vec![0.0; 40];
            at.iter().zip(&x).for_each(|(i, x)| scattered[*i as usize] = *x);
            sparse.add_at(&at, &x, weight).unwrap();
            dense.add(&scattered, weight).unwrap();
        }
        assert_eq!(sparse, dense);
        sparse.add_at(&[7, 2, 7, 7], &[1.0, 2.0, 3.0, 4.0], 1.0).unwrap();
        assert_eq!(sparse.count(), dense.count() + 3, "one coordinate was named three times");
        let whole = [dense.value()[7] + 8.0, dense.value()[2] + 2.0];
        assert!((sparse.value()[7] - whole[0]).abs() < 1e-15 * 8.0 * 4.0);
        assert!((sparse.value()[2] - whole[1]).abs() < 1e-15 * 8.0);
        let before = sparse.clone();
        assert!(sparse.add_at(&[40], &[1.0], 1.0).is_err());
        assert!(sparse.add_at(&[1], &[1.0, 2.0], 1.0).is_err());
        assert!(sparse.add_at(&[1], &[f64::NAN], 1.0).is_err());
        assert_eq!(sparse, before);
    }

    #[test]
    fn narrow_addends_are_those_of_the_widened_vector() {
        let mut stream = Key::root(4).stream();
        let (mut narrow, mut wide) = (ExactSum::new(1300), ExactSum::new(1300));
        for weight in [0.3, 2.0, 1e-9] {
            let x: Vec<f32> = (0..1300).map(|_| stream.normal() as f32).collect();
            narrow.add_f32(&x, weight).unwrap();
            wide.add(&x.iter().copied().map(f64::from).collect::<Vec<_>>(), weight).unwrap();
        }
        assert_eq!(narrow, wide);
        let before = narrow.clone();
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = vec![1.0f32; 1300];
            x[700] = bad;
            assert!(narrow.add_f32(&x, 1.0).is_err());
        }
        assert!(narrow.add_f32(&[1.0], 1.0).is_err());
        assert_eq!(narrow, before);
    }

    /// A fixed-point number wide enough for any sum of `f64`: whole multiples of `2^-1074` in
    /// two's complement, lowest limb first.
    #[derive(Clone)]
    struct Big([u64; 36]);

    impl Big {
        fn add(&mut self, x: f64) {
            let biased = (x.to_bits() >> 52) & 0x7FF;
            let fraction = x.to_bits() & ((1 << 52) - 1);
            let mantissa = if biased == 0 { fraction } else { fraction | 1 << 52 };
            let shift = biased.max(1) as usize - 1;
            let mut term = [0u64; 36];
            let wide = u128::from(mantissa) << (shift % 64);
            term[shift / 64] = wide as u64;
            term[shift / 64 + 1] = (wide >> 64) as u64;
            if x < 0.0 {
                negate(&mut term);
            }
            let mut carry = 0u128;
            for (limb, term) in self.0.iter_mut().zip(term) {
                carry += u128::from(*limb) + u128::from(term);
                *limb = carry as u64;
                carry >>= 64;
            }
        }

        /// The magnitude, to about `2^-52` relative.
        fn magnitude(&self) -> f64 {
            let mut limbs = self.0;
            if limbs[35] >> 63 == 1 {
                negate(&mut limbs);
            }
            let smallest = f64::from_bits(1);
            // Three limbs at most carry digits of the result; 2^64 at a time avoids overflow.
            let highest = limbs.iter().rposition(|l| *l != 0).unwrap_or(0);
            let mut sum = 0.0;
            for i in (highest.saturating_sub(2)..=highest).rev() {
                let mut term = limbs[i] as f64 * smallest;
                for _ in 0..i {
                    term *= 18_446_744_073_709_551_616.0;
                }
                sum += term;
            }
            sum
        }
    }

    fn negate(limbs: &mut [u64; 36]) {
        let mut carry = true;
        for limb in limbs {
            let (value, overflow) = (!*limb).overflowing_add(u64::from(carry));
            (*limb, carry) = (value, overflow);
        }
    }

    /// Exact sums per coordinate of the rounded products.
    fn reference(vectors: &[(Vec<f64>, f64)], d: usize) -> Vec<Big> {
        let mut sums = vec![Big([0; 36]); d];
        for (x, weight) in vectors {
            sums.iter_mut().zip(x).for_each(|(sum, x)| sum.add(x * weight));
        }
        sums
    }

    fn sum_of(vectors: &[(Vec<f64>, f64)], d: usize) -> ExactSum {
        let mut sum = ExactSum::new(d);
        for (x, weight) in vectors {
            sum.add(x, *weight).unwrap();
        }
        sum
    }

    fn bits(sum: &ExactSum) -> Vec<u64> {
        sum.value().into_iter().map(f64::to_bits).collect()
    }

    /// Checks the two error bounds that the documentation states.
    fn assert_accurate(vectors: &[(Vec<f64>, f64)], d: usize) {
        let value = sum_of(vectors, d).value();
        let products = vectors.iter().flat_map(|(x, w)| x.iter().map(move |x| (x * w).abs()));
        let largest = products.fold(0.0, f64::max);
        let dropped = vectors.len() as f64 * largest * 2f64.powi(-84);
        for (value, mut exact) in value.into_iter().zip(reference(vectors, d)) {
            let size = exact.magnitude();
            exact.add(-value);
            let error = exact.magnitude();
            assert!(
                error <= 1.000_001 * (2f64.powi(-52) * size + dropped),
                "error {error:e} in {value:e}, largest addend {largest:e}"
            );
        }
    }

    fn number() -> impl Strategy<Value = f64> {
        let scaled = |low: i32, high: i32| {
            (-1.0..1.0f64, low..high).prop_map(|(m, e)| m * 2f64.powi(e / 2) * 2f64.powi(e - e / 2))
        };
        prop_oneof![
            6 => scaled(-4, 4),
            3 => scaled(-60, 60),
            2 => scaled(-1060, 830),
            1 => prop_oneof![Just(0.0), Just(-0.0), Just(5e-324), Just(-5e-324), Just(1e-310)],
            1 => prop_oneof![Just(1.0), Just(-1.0), Just(1e250), Just(-1e250), Just(1e-300)],
        ]
    }

    fn vectors(d: usize) -> impl Strategy<Value = Vec<(Vec<f64>, f64)>> {
        let weight = prop_oneof![Just(1.0), 0.0..100.0f64];
        prop::collection::vec((prop::collection::vec(number(), d), weight), 0..40)
    }

    proptest! {
        #[test]
        fn any_order_shards_and_merges_give_the_same_bits(v in vectors(3), seed in any::<u64>()) {
            let right = sum_of(&v, 3);
            let mut stream = Key::root(seed).stream();
            let mut shuffled = v.clone();
            stream.shuffle(&mut shuffled);
            prop_assert_eq!(bits(&sum_of(&shuffled, 3)), bits(&right));

            let mut shards = vec![ExactSum::new(3); 1 + stream.below(6) as usize];
            for (x, weight) in &shuffled {
                let at = stream.below(shards.len() as u64) as usize;
                shards[at].add(x, *weight).unwrap();
            }
            // A random tree: merge any one into any other until one is left.
            while shards.len() > 1 {
                let one = shards.swap_remove(stream.below(shards.len() as u64) as usize);
                let into = stream.below(shards.len() as u64) as usize;
                shards[into].merge(&one).unwrap();
            }
            prop_assert_eq!(&shards[0], &right);
            prop_assert_eq!(bits(&shards[0]), bits(&right));

            let (count, top, bins) = right.parts();
            prop_assert_eq!(ExactSum::from_parts(count, top, bins.clone()).unwrap(), right);
        }

        #[test]
        fn values_are_as_close_as_promised(v in vectors(2)) {
            assert_accurate(&v, 2);
        }
    }

    #[test]
    fn cancellation_leaves_what_is_left() {
        let mut sum = ExactSum::new(2);
        for x in [[1e16, 1e250], [1.0, 1e240], [-1e16, -1e250], [0.0, 5e-324]] {
            sum.add(&x, 1.0).unwrap();
        }
        // The first coordinate shares the second's scale, on which 1 is nothing.
        assert_eq!(sum.value()[0], 0.0);
        assert!((sum.value()[1] / 1e240 - 1.0).abs() < 1e-15);
        let mut alone = ExactSum::new(1);
        for x in [1e16, 1.0, -1e16, 1e-9] {
            alone.add(&[x], 1.0).unwrap();
        }
        assert_eq!(alone.value(), [1.0 + 1e-9]);
        // 1 is in the first bin, the halves in the second: what is left is in the fourth.
        let mut across = ExactSum::new(1);
        for x in [1.0, -0.5, 3.0 * 2f64.powi(-80), -0.5] {
            across.add(&[x], 1.0).unwrap();
        }
        assert_eq!(across.value(), [3.0 * 2f64.powi(-80)]);
    }

    #[test]
    fn many_addends_on_scales_from_1e_minus_300_to_1e250() {
        for scale in [1e-300, 1e-160, 1e-9, 1.0, 1e12, 1e250] {
            let mut stream = Key::root(2).stream();
            let v: Vec<(Vec<f64>, f64)> = (0..2000)
                .map(|_| {
                    let spread = math::exp(30.0 * stream.uniform() - 15.0);
                    (vec![(stream.uniform() - 0.5) * spread * scale], 1.0 + stream.uniform())
                })
                .collect();
            assert_accurate(&v, 1);
        }
    }

    #[test]
    fn sums_of_subnormal_numbers_are_exact_to_the_last_bit() {
        let v: Vec<_> = (0..100).map(|i| (vec![f64::from(i) * 5e-324], 1.0)).collect();
        assert_eq!(sum_of(&v, 1).value(), [4950.0 * 5e-324]);
    }

    #[test]
    fn zeros_have_one_sign_and_no_top() {
        let v = vec![(vec![0.0, -0.0], 1.0), (vec![-0.0, -0.0], -2.0)];
        let sum = sum_of(&v, 2);
        assert_eq!((bits(&sum), sum.count(), sum.parts().1), (vec![0, 0], 2, None));
        let cancelled = sum_of(&[(vec![3.0], -1.0), (vec![-3.0], -1.0)], 1);
        assert_eq!(bits(&cancelled), [0]);
    }

    #[test]
    fn what_cannot_be_summed_is_refused_and_changes_nothing() {
        let mut sum = sum_of(&[(vec![1.0, 2.0], 0.5)], 2);
        let before = sum.clone();
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, MAGNITUDE_MAX, -1e300] {
            let e = sum.add(&[1.0, bad], 1.0).unwrap_err();
            assert!(matches!(&e, Error::Numerical { what, .. } if what.contains("coordinate 1")));
        }
        assert!(matches!(sum.add(&[1.0, 2.0], f64::NAN), Err(Error::Numerical { .. })));
        assert!(matches!(sum.add(&[1.0], 1.0), Err(Error::Peer { .. })));
        assert!(matches!(sum.merge(&ExactSum::new(3)), Err(Error::Peer { .. })));
        assert!(matches!(sum.value_into(&mut [0.0]), Err(Error::Peer { .. })));
        assert_eq!(sum, before);

        let largest = f64::from_bits(MAGNITUDE_MAX.to_bits() - 1);
        sum.add(&[largest, -largest], 1.0).unwrap();
        assert_eq!(sum.value(), [largest, -largest]);
        sum.clear();
        assert_eq!(sum, ExactSum::new(2));
    }

    #[test]
    fn the_number_of_addends_is_capped() {
        let mut full = sum_of(&[(vec![1.0], 1.0)], 1);
        full.count = ADDENDS_MAX;
        assert!(matches!(full.add(&[1.0], 1.0), Err(Error::Numerical { .. })));
        let one = sum_of(&[(vec![1.0], 1.0)], 1);
        assert!(matches!(full.merge(&one), Err(Error::Numerical { .. })));
        full.count = ADDENDS_MAX - 1;
        full.merge(&one).unwrap();
        assert_eq!((full.count(), full.value()), (ADDENDS_MAX, vec![2.0]));
    }

    #[test]
    fn bins_at_their_limit_still_add_exactly() {
        // As many addends as allowed, each of the largest size a top permits, by doubling.
        let x = 2f64.powi(27) - 0.5;
        let mut sum = sum_of(&[(vec![x, -x], 1.0)], 2);
        while sum.count() < ADDENDS_MAX {
            let same = sum.clone();
            sum.merge(&same).unwrap();
        }
        let right = x * f64::from(ADDENDS_MAX);
        assert_eq!(sum.value(), [right, -right]);
        let (count, top, bins) = sum.parts();
        assert!(ExactSum::from_parts(count, top, bins.clone()).is_ok());
    }

    #[test]
    fn parts_that_no_sum_has_are_refused() {
        let zeros = || std::array::from_fn(|_| vec![0.0; 2]);
        let with = |k: usize, v: f64| {
            let mut bins: [Vec<f64>; 4] = zeros();
            bins[k][1] = v;
            bins
        };
        let cases = [
            (ADDENDS_MAX + 1, None, zeros()),
            (1, None, with(0, 1.0)),
            (1, None, with(3, -0.0)),
            (1, Some(TOP_MAX + 1), zeros()),
            (1, Some(TOP_MIN - 1), zeros()),
            (1, Some(i32::MIN), zeros()),
            (1, Some(0), with(0, 0.5)),
            (1, Some(0), with(0, 2f64.powi(28))),
            (0, Some(0), with(0, 1.0)),
            (1, Some(0), with(2, f64::NAN)),
            (1, Some(0), with(3, f64::INFINITY)),
            (1, Some(0), [vec![0.0; 2], vec![0.0; 1], vec![0.0; 2], vec![0.0; 2]]),
        ];
        for (n, (count, top, bins)) in cases.into_iter().enumerate() {
            let refused = ExactSum::from_parts(count, top, bins);
            assert!(matches!(refused, Err(Error::Peer { .. })), "case {n}");
        }
    }
}
