//! Compression of a downlink's vectors, block by block.

use super::{DownRule, Downlink, Feedback};
use crate::channel::uplink::mapped;
use crate::{Codec, Packet, Scalar};
use whimbrel_core::{Error, Frame, Key, Result, Wire};

impl Downlink {
    /// The packet of `x`, compressed in the frame, and what it is worth.
    pub(super) fn compress<T: Scalar>(
        &self,
        index: usize,
        x: &[T],
        frame: Option<&dyn Frame>,
        key: Key,
    ) -> Result<(Packet, Vec<T>)> {
        if let Some(frame) = frame {
            let mut framed = x.to_vec();
            mapped(&mut framed, |x| frame.forward(x));
            let (packet, mut value) = self.compress(index, &framed, None, key)?;
            mapped(&mut value, |x| frame.inverse(x));
            return Ok((packet, value));
        }
        let mut value = T::zeros(x.len());
        let codec = &self.codecs[index];
        let packet = if self.blocks.len() == 1 {
            codec.encode_decoded(x, key, &mut value)?
        } else {
            let mut bytes = Vec::new();
            let (mut rest, mut out) = (x, &mut value[..]);
            for (b, size) in self.blocks.iter().enumerate() {
                let (part, after) = rest.split_at(*size);
                let (place, after_out) = out.split_at_mut(*size);
                codec.encode_decoded(part, key.fold(b as u64), place)?.put(&mut bytes);
                (rest, out) = (after, after_out);
            }
            Packet::from_bytes(bytes)
        };
        self.shrink(&mut value);
        Ok((packet, value))
    }

    /// What a packet is worth.
    pub(super) fn value<T: Scalar>(
        &self,
        index: usize,
        packet: &Packet,
        frame: Option<&dyn Frame>,
    ) -> Result<Vec<T>> {
        let mut value = T::zeros(self.dimension);
        let codec = &self.codecs[index];
        if self.blocks.len() == 1 {
            codec.decode(packet, &mut value)?;
        } else {
            let (mut bytes, mut out) = (packet.bytes(), &mut value[..]);
            for size in &self.blocks {
                let (place, after) = out.split_at_mut(*size);
                codec.decode(&Packet::take(&mut bytes)?, place)?;
                out = after;
            }
            if !bytes.is_empty() {
                return Err(Error::peer("a packet goes on after its last block"));
            }
        }
        self.shrink(&mut value);
        if let Some(frame) = frame {
            mapped(&mut value, |x| frame.inverse(x));
        }
        Ok(value)
    }

    /// Scales an unbiased codec to a contraction where error feedback needs one.
    fn shrink<T: Scalar>(&self, value: &mut [T]) {
        if let DownRule::Degraded { feedback: Feedback::Contractive } = self.rule
            && let Some(omega) = self.omega()
        {
            let share = 1.0 / (1.0 + omega);
            value.iter_mut().for_each(|v| *v = T::narrow(v.wide() * share));
        }
    }
}

pub(super) fn difference<T: Scalar>(a: &[T], b: &[T]) -> Vec<T> {
    let mut out = T::zeros(a.len());
    T::sub_into(&mut out, a, b);
    out
}

/// `sum += a x`: sums over clients are wide.
pub(super) fn add_wide<T: Scalar>(sum: &mut [f64], a: f64, x: &[T]) {
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum += a * x.wide();
    }
}

/// The variance constant of a codec applied to each of these parts: the largest of theirs.
pub fn blocks_omega(codec: &Codec, blocks: &[usize]) -> Option<f64> {
    let each: Option<Vec<f64>> = blocks.iter().map(|size| codec.omega(*size)).collect();
    each.map(|all| all.into_iter().fold(0.0, f64::max))
}
