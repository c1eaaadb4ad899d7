//! Vectors of several blocks, one per tensor: each is compressed by itself, so that they share no norm.

use crate::{Codec, Packet, Scalar};
use whimbrel_core::{Error, Key, Result, Wire};

/// The packet of `x`, and what it is worth. One block is written as if there were none.
pub(super) fn encode_decoded<T: Scalar>(
    codec: &Codec,
    blocks: &[usize],
    x: &[T],
    key: Key,
    value: &mut [T],
) -> Result<Packet> {
    if blocks.len() <= 1 {
        return codec.encode_decoded(x, key, value);
    }
    let mut bytes = Vec::new();
    let (mut rest, mut out) = (x, value);
    for (b, size) in blocks.iter().enumerate() {
        let (part, after) = rest.split_at(*size);
        let (place, after_out) = out.split_at_mut(*size);
        codec.encode_decoded(part, key.fold(b as u64), place)?.put(&mut bytes);
        (rest, out) = (after, after_out);
    }
    Ok(Packet::from_bytes(bytes))
}

/// What a packet is worth.
pub(super) fn decode<T: Scalar>(
    codec: &Codec,
    blocks: &[usize],
    packet: &Packet,
    value: &mut [T],
) -> Result<()> {
    if blocks.len() <= 1 {
        return codec.decode(packet, value);
    }
    let (mut bytes, mut out) = (packet.bytes(), value);
    for size in blocks {
        let (place, after) = out.split_at_mut(*size);
        codec.decode(&Packet::take(&mut bytes)?, place)?;
        out = after;
    }
    if !bytes.is_empty() {
        return Err(Error::peer("a packet goes on after its last block"));
    }
    Ok(())
}

/// Refuses blocks that do not fill a vector.
pub(super) fn check(blocks: &[usize], dimension: usize) -> Result<()> {
    if blocks.iter().sum::<usize>() == dimension {
        return Ok(());
    }
    Err(Error::config(format!("the blocks {blocks:?} do not fill {dimension} coordinates")))
}

/// The variance constant of a codec applied to each of these parts: the largest of theirs.
pub fn blocks_omega(codec: &Codec, blocks: &[usize]) -> Option<f64> {
    let each: Option<Vec<f64>> = blocks.iter().map(|size| codec.omega(*size)).collect();
    each.map(|all| all.into_iter().fold(0.0, f64::max))
}
