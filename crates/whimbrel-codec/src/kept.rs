//! Some coordinates as they are, the others zero: what sparsification and top-k share.
//!
//! Format: nothing at all where every kept coordinate is zero; else the number of values as a
//! base-128 number (only where the other end does not know it), the values at native width, then
//! the marks of the kept coordinates as levels 0 and 1 (left out where all are kept).

use whimbrel_core::{Error, Result};

use crate::coding::count::{put_count, take_count};
use crate::coding::levels::{self, Alphabet};
use crate::{Packet, Scalar};

const MARKS: Alphabet = Alphabet { largest: 1, signed: false };

/// The kept coordinates of a vector, in order.
pub(crate) struct Kept<T> {
    pub marks: Vec<i16>,
    pub values: Vec<T>,
}

impl<T: Scalar> Kept<T> {
    /// The coordinates of `x` whose mark is 1.
    pub fn of(x: &[T], marks: Vec<i16>) -> Self {
        let values = x.iter().zip(&marks).filter(|(_, m)| **m == 1).map(|(v, _)| *v).collect();
        Self { marks, values }
    }

    /// The packet; `counted` says whether the other end knows the number of values.
    pub fn write(&self, counted: bool) -> Packet {
        if self.values.iter().all(|v| v.wide() == 0.0) {
            return Packet::default();
        }
        let mut bytes = Vec::with_capacity(self.values.len() * T::WIDTH + 16);
        if !counted {
            put_count(self.values.len(), &mut bytes);
        }
        for v in &self.values {
            v.put(&mut bytes);
        }
        if self.values.len() < self.marks.len() {
            levels::write(&self.marks, MARKS, &mut bytes);
        }
        Packet::from_bytes(bytes)
    }

    /// Reads a packet of a vector of `d` coordinates, `count` of them kept where that is known.
    pub fn read(packet: &Packet, d: usize, count: Option<usize>) -> Result<Self> {
        if packet.is_empty() {
            return Ok(Self { marks: vec![0; d], values: Vec::new() });
        }
        let mut bytes = packet.bytes();
        let count = match count {
            Some(count) => count,
            None => take_count(&mut bytes)?,
        };
        let length = count.checked_mul(T::WIDTH).filter(|&n| count <= d && n <= bytes.len());
        let Some(length) = length else {
            return Err(Error::peer(format!(
                "a packet of {} bytes cannot hold {count} of {d} coordinates",
                packet.len()
            )));
        };
        let (head, rest) = bytes.split_at(length);
        let values: Vec<T> = head.chunks_exact(T::WIDTH).map(T::take).collect();
        let mut marks = vec![1; d];
        if count < d {
            levels::read(rest, MARKS, &mut marks)?;
        } else if !rest.is_empty() {
            return Err(Error::peer("a packet goes on after its last value"));
        }
        let marked = marks.iter().filter(|m| **m == 1).count();
        if marked != count {
            return Err(Error::peer(format!("a packet has {count} values and marks {marked}")));
        }
        Ok(Self { marks, values })
    }

    /// The vector, every kept coordinate times `scale`; false where one is not finite.
    pub fn value(&self, scale: f64, out: &mut [T]) -> bool {
        let mut values = self.values.iter();
        let mut finite = true;
        for (v, &mark) in out.iter_mut().zip(&self.marks) {
            *v = T::default();
            if mark == 1
                && let Some(kept) = values.next()
            {
                *v = T::narrow(kept.wide() * scale);
                finite &= v.wide().is_finite();
            }
        }
        finite
    }
}
