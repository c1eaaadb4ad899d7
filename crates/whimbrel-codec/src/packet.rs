//! The only form of a compressed vector.

/// One encoded vector: its value is what decoding gives, its cost is its length.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packet(Vec<u8>);

impl Packet {
    /// Takes bytes that came from elsewhere; decoding checks them.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Gives the bytes away.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// How many bytes it takes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it takes none (most codecs write the zero vector so).
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
