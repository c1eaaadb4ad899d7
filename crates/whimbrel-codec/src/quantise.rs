//! Random rounding to multiples of a step per block: what dithering and block-p-quantization share.
//!
//! Format: nothing at all for the zero vector; else one step per block (four bytes, see
//! [`crate::norm::put_scale`]), then the levels (see [`crate::coding::levels`]).

use whimbrel_core::key::unit;
use whimbrel_core::{Error, Key, Result, kernel};

use crate::coding::levels::{self, Alphabet};
use crate::norm::{exp2, put_scale, sent_scale, take_scale};
use crate::scalar::BLOCK;
use crate::{Norm, Packet, Scalar};

/// A quantised vector: coordinate `i` of block `b` is `levels[i] * steps[b]`.
pub(crate) struct Quantised {
    sizes: Vec<usize>,
    steps: Vec<f64>,
    levels: Vec<i16>,
}

/// Sizes of the blocks when all but the last have `size` coordinates.
pub(crate) fn equal_blocks(d: usize, size: usize) -> Vec<usize> {
    let mut sizes = vec![size; d / size];
    if !d.is_multiple_of(size) {
        sizes.push(d % size);
    }
    sizes
}

impl Quantised {
    /// Draws the levels of `x`, one uniform number per coordinate in order.
    pub fn draw<T: Scalar>(
        x: &[T],
        sizes: Vec<usize>,
        norm: Norm,
        largest: u16,
        key: Key,
    ) -> Result<Self> {
        let mut stream = key.stream();
        let mut words = [0; BLOCK];
        let mut room = [0.0; BLOCK];
        let mut levels = vec![0; x.len()];
        let mut steps = Vec::with_capacity(sizes.len());
        let mut start = 0;
        for &size in &sizes {
            let block = &x[start..start + size];
            let step = sent_step::<T>(norm.of(block, &mut room)?, largest)?;
            let scale = Scale::of(step);
            let levels = &mut levels[start..start + size];
            for (part, levels) in block.chunks(BLOCK).zip(levels.chunks_mut(BLOCK)) {
                let words = &mut words[..part.len()];
                stream.fill(words);
                let part = T::widen(part, &mut room);
                round(part, words, scale.lift, scale.inverse, i32::from(largest), levels);
            }
            steps.push(step);
            start += size;
        }
        Ok(Self { sizes, steps, levels })
    }

    /// The packet.
    pub fn write(&self, largest: u16) -> Packet {
        if self.steps.iter().all(|&step| step == 0.0) {
            return Packet::default();
        }
        let mut bytes = Vec::new();
        for &step in &self.steps {
            put_scale(step, &mut bytes);
        }
        levels::write(&self.levels, Alphabet { largest, signed: true }, &mut bytes);
        Packet::from_bytes(bytes)
    }

    /// Reads a packet of a vector with blocks of `sizes`.
    pub fn read<T: Scalar>(packet: &Packet, sizes: Vec<usize>, largest: u16) -> Result<Self> {
        let mut levels = vec![0; sizes.iter().sum()];
        let mut steps = vec![0.0; sizes.len()];
        if !packet.is_empty() {
            let mut bytes = packet.bytes();
            for step in &mut steps {
                *step = take_scale(&mut bytes)?;
                if *step * f64::from(largest) > T::LARGEST {
                    return Err(Error::peer(format!("a packet has step {step:e}, too large")));
                }
            }
            levels::read_to_end(bytes, Alphabet { largest, signed: true }, &mut levels)?;
        }
        Ok(Self { sizes, steps, levels })
    }

    /// The vector.
    pub fn value<T: Scalar>(&self, out: &mut [T]) {
        let mut start = 0;
        for (&size, &step) in self.sizes.iter().zip(&self.steps) {
            let out = &mut out[start..start + size];
            for (v, &level) in out.iter_mut().zip(&self.levels[start..start + size]) {
                *v = T::narrow(f64::from(level) * step);
            }
            start += size;
        }
    }
}

/// `norm / largest`, rounded up to what can be sent.
fn sent_step<T: Scalar>(norm: f64, largest: u16) -> Result<f64> {
    let s = f64::from(largest);
    let mut step = norm / s;
    // The quotient of a subnormal norm may have been rounded far down, even to zero.
    if step * s < norm {
        step = step.next_up();
    }
    let step = sent_scale::<T>(step);
    if step * s <= T::LARGEST {
        Ok(step)
    } else {
        Err(Error::numerical(format!("the norm of the vector to compress is {norm:e}, too large")))
    }
}

/// `x / step` as `x * lift * inverse`: two factors, for the inverse of a tiny step overflows.
struct Scale {
    lift: f64,
    inverse: f64,
}

impl Scale {
    fn of(step: f64) -> Self {
        if step == 0.0 {
            Self { lift: 0.0, inverse: 0.0 }
        } else if step < 1e-290 {
            Self { lift: exp2(600), inverse: 1.0 / (step * exp2(600)) }
        } else {
            Self { lift: 1.0, inverse: 1.0 / step }
        }
    }
}

kernel! {
    /// `levels = sign(x) floor(|x| / step + u)`.
    ///
    /// With `y = |x| / step`, `r` the integer nearest to it and `f = y - r`, exact: the level is
    /// `r + 1` where `u < f`, `r - 1` where `u >= 1 + f`, else `r`. That is the integer part of
    /// `y` plus one where `u` is below its fractional part: the same law as the formula, without
    /// the rounding of its sum, and without a conversion between number types.
    fn round(
        x: &[f64], words: &[u64], lift: f64, inverse: f64, largest: i32, levels: &mut [i16],
    ) {
        const ONES: f64 = (1u64 << 52) as f64; // the last digit of a sum with this is worth 1
        for ((&v, &word), level) in x.iter().zip(words).zip(levels) {
            let y = v.abs() * lift * inverse;
            let sum = y + ONES;
            let f = y - (sum - ONES);
            let u = unit(word);
            let r = sum.to_bits() as i32;
            let magnitude = (r + i32::from(u < f) - i32::from(u >= 1.0 + f)).min(largest);
            *level = (if v < 0.0 { -magnitude } else { magnitude }) as i16;
        }
    }
}
