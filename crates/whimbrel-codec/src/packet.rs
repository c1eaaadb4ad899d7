//! The only form of a compressed vector.

/// An encoded vector. Its value is the decoded vector, and its cost its length.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packet(Vec<u8>);

impl Packet {
    /// Wraps received bytes; decoding checks them.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the packet is empty, as most codecs write the zero vector.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
