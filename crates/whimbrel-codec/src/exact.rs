//! Uncompressed vectors: coordinates one after the other, little-endian.
//!
//! Format: `d` numbers at the vector's own width, or all as `f32`.

use whimbrel_core::{Error, Result};

use crate::scalar::{check_finite, first_nonfinite};
use crate::{Packet, Scalar};

pub(crate) fn encode<T: Scalar>(x: &[T]) -> Result<Packet> {
    check_finite(x)?;
    let mut bytes = Vec::new();
    T::put_all(x, &mut bytes);
    Ok(Packet::from_bytes(bytes))
}

pub(crate) fn decode<T: Scalar>(packet: &Packet, out: &mut [T]) -> Result<()> {
    check_length(packet, out.len(), T::WIDTH)?;
    for (v, bytes) in out.iter_mut().zip(packet.bytes().chunks_exact(T::WIDTH)) {
        *v = T::take_one(bytes);
    }
    check_received(out)
}

/// Rounds every coordinate to the nearest `f32`.
pub(crate) fn encode_f32<T: Scalar>(x: &[T]) -> Result<Packet> {
    check_finite(x)?;
    let narrow: Vec<f32> = x.iter().map(|v| v.wide() as f32).collect();
    if let Some(i) = first_nonfinite(&narrow) {
        return Err(Error::numerical(format!(
            "coordinate {i} of the vector to compress is {:e}, beyond the range of f32",
            x[i].wide()
        )));
    }
    encode(&narrow)
}

pub(crate) fn decode_f32<T: Scalar>(packet: &Packet, out: &mut [T]) -> Result<()> {
    check_length(packet, out.len(), 4)?;
    for (v, bytes) in out.iter_mut().zip(packet.bytes().chunks_exact(4)) {
        *v = T::narrow(f32::take_one(bytes).wide());
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
