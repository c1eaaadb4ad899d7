//! Sparse vectors: the common encoding of sparsification and top-k.
//!
//! Format: empty if every kept coordinate is zero; otherwise a level 1 for every coordinate that is sent
//! and 0 for the others (see [`crate::coding::levels`]), then those coordinates at native width. Zeros
//! are never sent.

use whimbrel_core::{Error, Result};

use crate::coding::levels::{self, Alphabet};
use crate::{Packet, Scalar};

const MARKS: Alphabet = Alphabet { largest: 1, signed: false };

/// The kept coordinates of a vector, in order.
pub(crate) struct Kept<T> {
    pub marks: Vec<i16>,
    pub values: Vec<T>,
}

impl<T: Scalar> Kept<T> {
    /// The nonzero coordinates of `x` whose mark is 1; clears the marks of zeros.
    pub fn of(x: &[T], mut marks: Vec<i16>) -> Self {
        let mut values = Vec::new();
        for (v, mark) in x.iter().zip(&mut marks) {
            *mark &= i16::from(v.wide() != 0.0);
            if *mark == 1 {
                values.push(*v);
            }
        }
        Self { marks, values }
    }

    pub fn write(&self) -> Packet {
        let mut bytes = Vec::with_capacity(self.values.len() * T::WIDTH + 16);
        if !self.values.is_empty() {
            levels::write(&self.marks, MARKS, &mut bytes);
            T::put_all(&self.values, &mut bytes);
        }
        Packet::from_bytes(bytes)
    }

    /// Reads a packet of a vector of `d` coordinates with at most `most` kept; refuses values that `scale`
    /// makes infinite.
    pub fn read(packet: &Packet, d: usize, most: usize, scale: f64) -> Result<Self> {
        let mut marks = vec![0; d];
        let mut bytes = packet.bytes();
        if !packet.is_empty() {
            levels::read(&mut bytes, MARKS, &mut marks)?;
        }
        let marked = marks.iter().filter(|mark| **mark == 1).count();
        let right = bytes.len() == marked * T::WIDTH && marked <= most;
        if !right || (marked == 0 && !packet.is_empty()) {
            return Err(Error::peer(format!(
                "a packet marks {marked} of {d} coordinates and has {} bytes of values",
                bytes.len()
            )));
        }
        let kept = Self { marks, values: bytes.chunks_exact(T::WIDTH).map(T::take_one).collect() };
        if kept.fits(scale) {
            Ok(kept)
        } else {
            Err(Error::peer("a packet has a coordinate that is not finite"))
        }
    }

    /// Whether every kept coordinate times `scale` is finite.
    pub fn fits(&self, scale: f64) -> bool {
        self.values.iter().all(|v| T::narrow(v.wide() * scale).wide().is_finite())
    }

    /// The vector, every kept coordinate times `scale`.
    pub fn value(&self, scale: f64, out: &mut [T]) {
        let mut values = self.values.iter();
        for (v, &mark) in out.iter_mut().zip(&self.marks) {
            *v = match mark {
                1 => values.next().map_or(T::default(), |kept| T::narrow(kept.wide() * scale)),
                _ => T::default(),
            };
        }
    }
}
