//! Vectors of several blocks, one per tensor, each compressed with its own norm.

use crate::{Codec, Packet, Scalar};
use whimbrel_core::{Error, Key, Result, Wire};

/// The blocks of a vector, which are compressed one by one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Blocks {
    sizes: Vec<usize>,
    /// Whether the last block is sent exactly.
    exact_last: bool,
}

impl Blocks {
    /// A single block.
    pub fn whole(dimension: usize) -> Self {
        Self { sizes: vec![dimension], exact_last: false }
    }

    /// Blocks of these lengths; refuses lengths that do not fill the vector.
    pub fn new(sizes: &[usize], dimension: usize) -> Result<Self> {
        if sizes.iter().sum::<usize>() != dimension {
            let what = format!("the blocks {sizes:?} do not fill {dimension} coordinates");
            return Err(Error::config(what));
        }
        Ok(Self { sizes: sizes.to_vec(), exact_last: false })
    }

    /// Sends the last block exactly.
    pub fn exact_last(self) -> Self {
        Self { exact_last: true, ..self }
    }

    /// Whether there is a single, compressed block.
    pub fn is_whole(&self) -> bool {
        self.sizes.len() <= 1 && !self.exact_last
    }

    /// The variance constant of a codec applied to each compressed block: the largest over blocks.
    pub fn omega(&self, codec: &Codec) -> Option<f64> {
        let compressed = self.sizes.len() - usize::from(self.exact_last);
        blocks_omega(codec, &self.sizes[..compressed])
    }

    /// Encodes `x` and writes the decoded value. A single block is written like a plain vector; among
    /// several, a block of zeros is empty for any codec.
    pub fn encode_decoded<T: Scalar>(
        &self,
        codec: &Codec,
        x: &[T],
        key: Key,
        value: &mut [T],
    ) -> Result<Packet> {
        if self.sizes.len() <= 1 {
            return self.codec(0, codec).encode_decoded(x, key, value);
        }
        let mut bytes = Vec::new();
        let (mut rest, mut out) = (x, value);
        for (b, size) in self.sizes.iter().enumerate() {
            let (part, after) = rest.split_at(*size);
            let (place, after_out) = out.split_at_mut(*size);
            let packet = if part.iter().all(|x| *x == T::default()) {
                place.fill(T::default());
                Packet::default()
            } else {
                self.codec(b, codec).encode_decoded(part, key.child(b as u64), place)?
            };
            packet.put(&mut bytes);
            (rest, out) = (after, after_out);
        }
        Ok(Packet::from_bytes(bytes))
    }

    /// Decodes a packet.
    pub fn decode<T: Scalar>(&self, codec: &Codec, packet: &Packet, value: &mut [T]) -> Result<()> {
        if self.sizes.len() <= 1 {
            return self.codec(0, codec).decode(packet, value);
        }
        let (mut bytes, mut out) = (packet.bytes(), value);
        for (b, size) in self.sizes.iter().enumerate() {
            let (place, after) = out.split_at_mut(*size);
            let packet = Packet::take(&mut bytes)?;
            if packet.is_empty() {
                place.fill(T::default());
            } else {
                self.codec(b, codec).decode(&packet, place)?;
            }
            out = after;
        }
        if !bytes.is_empty() {
            return Err(Error::peer("a packet has bytes after its last block"));
        }
        Ok(())
    }

    /// The codec of one block: exact for an exact last block, otherwise `codec`.
    fn codec<'a>(&self, block: usize, codec: &'a Codec) -> &'a Codec {
        let is_exact = self.exact_last && block + 1 == self.sizes.len();
        if is_exact { &Codec::Exact } else { codec }
    }
}

/// The variance constant of a codec applied to each of these blocks: the largest over blocks.
pub fn blocks_omega(codec: &Codec, blocks: &[usize]) -> Option<f64> {
    let each: Option<Vec<f64>> = blocks.iter().map(|size| codec.omega(*size)).collect();
    each.map(|all| all.into_iter().fold(0.0, f64::max))
}
