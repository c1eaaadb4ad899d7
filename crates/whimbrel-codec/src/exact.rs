//! The codec that changes nothing: coordinates one after the other, little end first.
//!
//! Format: `d` numbers at the vector's own width, or all as `f32`.

use whimbrel_core::{Error, Result};

use crate::scalar::{check_finite, first_nonfinite};
use crate::{Packet, Scalar};

pub(crate) fn encode<T: Scalar>(x: &[T]) -> Result<Packet> {
    check_finite(x)?;
    let mut bytes = Vec::with_capacity(x.len() * T::WIDTH);
    for v in x {
        v.put(&mut bytes);
    }
    Ok(Packet::from_bytes(bytes))
}

pub(crate) fn decode<T: Scalar>(packet: &Packet, out: &mut [T]) -> Result<()> {
    check_length(packet, out.len(), T::WIDTH)?;
    for (v, bytes) in out.iter_mut().zip(packet.bytes().chunks_exact(T::WIDTH)) {
        *v = T::take(bytes);
    }
    check_received(out)
}

/// Rounds every coordinate to the nearest `f32`.
pub(crate) fn encode_f32<T: Scalar>(x: &[T]) -> Result<Packet> {
    check_finite(x)?;
    let mut bytes = Vec::with_capacity(x.len() * 4);
    for (i, v) in x.iter().enumerate() {
        let narrow = v.wide() as f32;
        if !narrow.is_finite() {
            return Err(Error::numerical(format!(
                "coordinate {i} of the vector to compress is {}, beyond the range of f32",
                v.wide()
            )));
        }
        narrow.put(&mut bytes);
    }
    Ok(Packet::from_bytes(bytes))
}

pub(crate) fn decode_f32<T: Scalar>(packet: &Packet, out: &mut [T]) -> Result<()> {
    check_length(packet, out.len(), 4)?;
    for (v, bytes) in out.iter_mut().zip(packet.bytes().chunks_exact(4)) {
        *v = T::narrow(f32::take(bytes).wide());
    }
    check_received(out)
}

fn check_length(packet: &Packet, d: usize, width: usize) -> Result<()> {
    if d.checked_mul(width) == Some(packet.len()) {
        Ok(())
    } else {
        Err(Error::peer(format!(
            "an exact packet of {} bytes arrived where {d} numbers of {width} bytes were due",
            packet.len()
        )))
    }
}

fn check_received<T: Scalar>(out: &[T]) -> Result<()> {
    match first_nonfinite(out) {
        None => Ok(()),
        Some(i) => Err(Error::peer(format!("coordinate {i} of an exact packet is not finite"))),
    }
}
