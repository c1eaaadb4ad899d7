//! Compression of a downlink's vectors.

use super::{DownRule, Downlink, Feedback};
use crate::channel::uplink::mapped;
use crate::{Packet, Scalar};
use whimbrel_core::{Frame, Key, Result};

impl Downlink {
    /// Compresses `x` in the frame; returns the packet and its decoded value.
    pub(super) fn compress<T: Scalar>(
        &self,
        index: usize,
        x: &[T],
        frame: Option<Box<dyn Frame>>,
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
        let packet = self.blocks.encode_decoded(codec, x, key, &mut value)?;
        self.shrink(&mut value);
        Ok((packet, value))
    }

    /// Decodes a packet.
    pub(super) fn value<T: Scalar>(
        &self,
        index: usize,
        packet: &Packet,
        frame: Option<Box<dyn Frame>>,
    ) -> Result<Vec<T>> {
        let mut value = T::zeros(self.dimension);
        let codec = &self.codecs[index];
        self.blocks.decode(codec, packet, &mut value)?;
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

/// `sum += a x`; sums over clients are in `f64`.
pub(super) fn add_wide<T: Scalar>(sum: &mut [f64], a: f64, x: &[T]) {
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum += a * x.wide();
    }
}
