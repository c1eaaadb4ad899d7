//! Channels: a codec, a memory and a rule, in one direction.
//!
//! A channel is a plain value that any vector-valued method can use. It defines the state of both ends
//! and the messages between them.

mod blocks;
pub mod downlink;
pub mod grid;
pub mod preset;
pub mod uplink;

pub use blocks::blocks_omega;
pub use downlink::{
    DownClient, DownFold, DownMessage, DownPeer, DownRule, DownServer, Downlink, Feedback, Frames,
    Memories, Reset, SharedMessages, Sharing, Spread,
};
pub use grid::{GridNote, GridServer, GridShare};
pub use preset::Preset;
pub use uplink::{
    Auto, UpClient, UpFold, UpRule, UpServer, Uplink, Upload, em_alpha, gradient_alpha,
};

use crate::Packet;
use whimbrel_core::{Result, Wire};

impl Wire for Packet {
    fn put(&self, out: &mut Vec<u8>) {
        whimbrel_core::wire::put_varint(self.len() as u64, out);
        out.extend_from_slice(self.bytes());
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Vec::take(from).map(Self::from_bytes)
    }
}
