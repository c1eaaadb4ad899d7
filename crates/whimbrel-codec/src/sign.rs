//! Signs, scaled by the mean magnitude: `C(x) = (||x||_1 / d) sign(x)`, with `sign(0) = 1`.
//!
//! Biased: `||C(x) - x||^2 = ||x||^2 - ||x||_1^2 / d <= (1 - 1/d) ||x||^2`.
//!
//! Format: empty for the zero vector; otherwise the scale (see [`crate::norm::put_scale`]),
//! then one level per coordinate, 1 where it is negative.

use whimbrel_core::{Error, Result};

use crate::coding::levels::{self, Alphabet};
use crate::norm::{put_scale, sent_scale, take_scale};
use crate::scalar::BLOCK;
use crate::{Norm, Packet, Scalar};

const NEGATIVE: Alphabet = Alphabet { largest: 1, signed: false };

pub(crate) fn encode<T: Scalar>(x: &[T], decoded: Option<&mut [T]>) -> Result<Packet> {
    let norm = Norm::P(1).of(x, &mut [0.0; BLOCK])?;
    let scale = sent_scale::<T>(norm / x.len().max(1) as f64);
    let mut marks = vec![0; x.len()];
    let mut bytes = Vec::new();
    // The mean of subnormal magnitudes may round to zero, which is sent as the zero vector.
    if scale > 0.0 {
        for (mark, v) in marks.iter_mut().zip(x) {
            *mark = i16::from(v.wide() < 0.0);
        }
        put_scale(scale, &mut bytes);
        levels::write(&marks, NEGATIVE, &mut bytes);
    }
    if let Some(out) = decoded {
        value(scale, &marks, out);
    }
    Ok(Packet::from_bytes(bytes))
}

pub(crate) fn decode<T: Scalar>(packet: &Packet, out: &mut [T]) -> Result<()> {
    let mut marks = vec![0; out.len()];
    let mut scale = 0.0;
    if !packet.is_empty() {
        let mut bytes = packet.bytes();
        scale = take_scale(&mut bytes)?;
        if scale > T::LARGEST {
            return Err(Error::peer(format!("a packet has scale {scale:e}, too large")));
        }
        levels::read_to_end(bytes, NEGATIVE, &mut marks)?;
    }
    value(scale, &marks, out);
    Ok(())
}

fn value<T: Scalar>(scale: f64, marks: &[i16], out: &mut [T]) {
    let (plus, minus) = (T::narrow(scale), T::narrow(-scale));
    for (v, &mark) in out.iter_mut().zip(marks) {
        *v = if mark == 0 { plus } else { minus };
    }
}
