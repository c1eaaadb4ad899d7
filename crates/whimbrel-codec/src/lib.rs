//! Compression operators with their byte encodings, and the channels built on them.
//!
//! A [`Codec`] is an operator, an encoding and a constant: [`Codec::encode`] draws the compressed
//! vector and writes it as a [`Packet`], [`Codec::decode`] reads it, and [`Codec::omega`] is the
//! constant of the variance bound `E||C(x) - x||^2 <= omega ||x||^2`. A packet is the only form of a
//! compressed vector, so reported traffic is the number of encoded bytes.
//!
//! A [`SharedGrid`] is different: its packets are terms of a sum and need the exponents that a server
//! sends, so that only an [uplink](channel::uplink::Uplink) encodes and reads them.
//!
//! Deliberately absent: randomness shared between both ends (apart from the length of the vector, a
//! packet is self-contained), and allocations whose size a packet determines.

mod block;
pub mod channel;
mod codec;
mod coding;
mod dithering;
mod exact;
pub mod grid;
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
pub use grid::{Inclusion, SharedGrid};
pub use norm::Norm;
pub use packet::Packet;
pub use scalar::Scalar;
pub use sparse::Sparse;
pub use top::TopK;
