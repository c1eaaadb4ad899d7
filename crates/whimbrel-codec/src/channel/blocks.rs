//! Vectors of several blocks, one per tensor: each is compressed by itself, so that they share no norm.

use crate::{Codec, Packet, Scalar};
use whimbrel_core::{Error, Key, Result, Wire};

/// The parts of a vector that are compressed one by one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Blocks {
    sizes: Vec<usize>,
    /// Whether the last one travels exactly.
    exact_last: bool,
}

impl Blocks {
    /// One, the whole vector.
    pub fn whole(dimension: usize) -> Self {
        Self { sizes: vec![dimension], exact_last: false }
    }

    /// Parts of these lengths, which fill the vector.
    pub fn new(sizes: &[usize], dimension: usize) -> Result<Self> {
        if sizes.iter().sum::<usize>() != dimension {
            let what = format!("the blocks {sizes:?} do not fill {dimension} coordinates");
            return Err(Error::config(what));
        }
        Ok(Self { sizes: sizes.to_vec(), exact_last: false })
    }

    /// The same, with the last one sent exactly.
    pub fn exact_last(self) -> Self {
        Self { exact_last: true, ..self }
    }

    /// Whether there is one block, which is compressed.
    pub fn is_whole(&self) -> bool {
        self.sizes.len() <= 1 && !self.exact_last
    }

    /// The variance constant of a codec applied to each of them: the largest of theirs.
    pub fn omega(&self, codec: &Codec) -> Option<f64> {
        let compressed = self.sizes.len() - usize::from(self.exact_last);
        blocks_omega(codec, &self.sizes[..compressed])
    }

    /// The packet of `x`, and what it is worth. One block is written as if there were none; among
    /// several, one of zeros is empty, whatever the codec.
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
            match part.iter().all(|x| *x == T::default()) {
                true => {
                    place.fill(T::default());
                    Packet::default().put(&mut bytes);
                }
                false => {
                    let packet =
                        self.codec(b, codec).encode_decoded(part, key.child(b as u64), place)?;
                    packet.put(&mut bytes);
                }
            }
            (rest, out) = (after, after_out);
        }
        Ok(Packet::from_bytes(bytes))
    }

    /// What a packet is worth.
    pub fn decode<T: Scalar>(&self, codec: &Codec, packet: &Packet, value: &mut [T]) -> Result<()> {
        if self.sizes.len() <= 1 {
            return self.codec(0, codec).decode(packet, value);
        }
        let (mut bytes, mut out) = (packet.bytes(), value);
        for (b, size) in self.sizes.iter().enumerate() {
            let (place, after) = out.split_at_mut(*size);
            let packet = Packet::take(&mut bytes)?;
            match packet.is_empty() {
                true => place.fill(T::default()),
                false => self.codec(b, codec).decode(&packet, place)?,
            }
            out = after;
        }
        if !bytes.is_empty() {
            return Err(Error::peer("a packet goes on after its last block"));
        }
        Ok(())
    }

    /// That of one block, where `codec` is that of the others.
    fn codec<'a>(&self, block: usize, codec: &'a Codec) -> &'a Codec {
        match self.exact_last && block + 1 == self.sizes.len() {
            true => &Codec::Exact,
            false => codec,
        }
    }
}

/// The variance constant of a codec applied to each of these parts: the largest of theirs.
pub fn blocks_omega(codec: &Codec, blocks: &[usize]) -> Option<f64> {
    let each: Option<Vec<f64>> = blocks.iter().map(|size| codec.omega(*size)).collect();
    each.map(|all| all.into_iter().fold(0.0, f64::max))
}
