//! Compression operators with their byte encodings, and the channels built on them.
//!
//! A [`Codec`] is an operator, an encoding and a constant: [`Codec::encode`] draws the compressed
//! vector and writes it as a [`Packet`], [`Codec::decode`] reads it back, and [`Codec::omega`] is
//! the constant of the variance bound `E||C(x) - x||^2 <= omega ||x||^2`. A packet is the only
//! form of a compressed vector, so counted bits are always the bytes that would travel.
//!
//! Absent on purpose: randomness shared between the two ends (a packet says everything that the
//! decoder needs but the length of the vector), and any allocation whose size a packet chooses.

mod block;
pub mod channel;
mod codec;
mod coding;
mod dithering;
mod exact;
mod kept;
mod natural;
mod norm;
mod packet;
mod quantise;
mod scalar;
mod scratch;
mod sign;
mod sparse;
mod top;

pub use block::BlockP;
pub use codec::Codec;
pub use dithering::Dithering;
pub use norm::Norm;
pub use packet::Packet;
pub use scalar::Scalar;
pub use sparse::Sparse;
pub use top::TopK;
