//! Random rounding to multiples of a step per block: the common part of dithering and
//! block-p-quantization.
//!
//! Format: empty for the zero vector; otherwise one step per block (four bytes, see
//! [`crate::norm::put_scale`]), then the levels (see [`crate::coding::levels`]).

use std::borrow::Cow;
use std::ops::Range;
use whimbrel_core::key::unit;
use whimbrel_core::{Error, Key, Result, kernel};

use crate::coding::levels::{self, Alphabet};
use crate::norm::{exp2, put_scale, sent_scale, take_scale};
use crate::scalar::BLOCK;
use crate::scratch::with_room;
use crate::{Norm, Packet, Scalar};

/// The grid that coordinates are rounded to: coordinate `i` of block `b` becomes
/// `levels[i] * steps[b]`, with levels up to `largest` either way.
pub(crate) struct Grid<'a> {
    pub blocks: Cow<'a, Blocks>,
    pub norm: Norm,
    pub largest: u16,
}

/// The blocks of a vector.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Blocks {
    /// Blocks of this size; the last one may be shorter.
    Every(usize),
    /// Blocks of these sizes, which sum to the length of the vector.
    Listed(Vec<usize>),
}

/// Initial capacity, enough for most short packets.
const SHORT_PACKET: usize = 32;

impl Blocks {
    /// The ranges of the blocks of a vector of `d` coordinates, in order.
    fn of(&self, d: usize) -> impl Iterator<Item = Range<usize>> {
        let (mut start, mut count) = (0, 0);
        std::iter::from_fn(move || {
            let size = match self {
                Self::Every(size) => (*size).min(d - start),
                Self::Listed(sizes) => *sizes.get(count)?,
            };
            let here = start..start + size;
            (start, count) = (here.end, count + 1);
            (size > 0).then_some(here)
        })
    }
}

impl Grid<'_> {
    /// Draws the levels of `x`, one uniform number per coordinate in order, and writes them; their values
    /// go to `decoded`.
    pub fn encode<T: Scalar>(
        &self,
        x: &[T],
        key: Key,
        decoded: Option<&mut [T]>,
    ) -> Result<Packet> {
        with_room(x.len(), |levels| {
            let mut bytes = Vec::with_capacity(SHORT_PACKET);
            if !self.draw(x, key, levels, &mut bytes, decoded)? {
                return Ok(Packet::default());
            }
            levels::write(levels, self.alphabet(), &mut bytes);
            Ok(Packet::from_bytes(bytes))
        })
    }

    /// Draws the levels and appends each block's step; false if all steps are zero.
    fn draw<T: Scalar>(
        &self,
        x: &[T],
        key: Key,
        levels: &mut [i16],
        steps: &mut Vec<u8>,
        mut decoded: Option<&mut [T]>,
    ) -> Result<bool> {
        let mut stream = key.stream();
        let mut room = [0.0; BLOCK];
        let mut any = false;
        for here in self.blocks.of(x.len()) {
            let (block, levels) = (&x[here.clone()], &mut levels[here.clone()]);
            let step = sent_step::<T>(self.norm.of(block, &mut room)?, self.largest)?;
            let scale = Scale::of(step);
            for (part, levels) in block.chunks(BLOCK).zip(levels.chunks_mut(BLOCK)) {
                with_room(part.len(), |words| {
                    stream.fill(words);
                    let part = T::widen(part, &mut room);
                    let largest = i32::from(self.largest);
                    round(part, words, scale.lift, scale.inverse, largest, levels);
                });
            }
            if let Some(out) = &mut decoded {
                T::scale_levels(levels, step, &mut out[here]);
            }
            put_scale(step, steps);
            any |= step != 0.0;
        }
        Ok(any)
    }

    /// Reads a packet into `out`.
    pub fn decode<T: Scalar>(&self, packet: &Packet, out: &mut [T]) -> Result<()> {
        if packet.is_empty() {
            out.fill(T::narrow(0.0));
            return Ok(());
        }
        let mut steps = packet.bytes();
        let mut bytes = steps;
        for _ in self.blocks.of(out.len()) {
            let step = take_scale(&mut bytes)?;
            if step * f64::from(self.largest) > T::LARGEST {
                return Err(Error::peer(format!("a packet has step {step:e}, too large")));
            }
        }
        with_room(out.len(), |levels| {
            levels::read_to_end(bytes, self.alphabet(), levels)?;
            for here in self.blocks.of(out.len()) {
                T::scale_levels(&levels[here.clone()], take_scale(&mut steps)?, &mut out[here]);
            }
            Ok(())
        })
    }

    fn alphabet(&self) -> Alphabet {
        Alphabet { largest: self.largest, signed: true }
    }
}

/// `norm / largest`, rounded up to a representable scale.
fn sent_step<T: Scalar>(norm: f64, largest: u16) -> Result<f64> {
    let s = f64::from(largest);
    let mut step = norm / s;
    // The quotient of a subnormal norm may be rounded down considerably, even to zero.
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

/// `x / step` as `x * lift * inverse`: two factors, since the inverse of a tiny step overflows.
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
