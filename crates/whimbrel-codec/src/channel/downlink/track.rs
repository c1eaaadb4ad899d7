//! A sequence of messages common to several clients: a replica or memory, and the recent packets for
//! clients that missed some.

use super::DownMessage;
use super::ends::Spread;
use crate::{Packet, Scalar};
use whimbrel_core::wire;

/// The server's record of such a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Track<T = f64> {
    /// The replica or memory, after all committed messages.
    pub(super) current: Vec<T>,
    /// Number of committed messages.
    pub(super) version: u64,
    /// The most recent ones in order, in total at most as long as a whole state.
    log: Vec<Packet>,
    /// The message of the current round, until it is committed.
    pub(super) pending: Option<Packet>,
    pub(super) spread: Option<Spread>,
}

wire!(Track<T: Scalar> { current, version, log, pending, spread });

impl<T: Scalar> Track<T> {
    pub(super) fn new(state: &[T]) -> Self {
        Self { current: state.to_vec(), version: 0, log: Vec::new(), pending: None, spread: None }
    }

    /// Commits a message: adds `alpha` times its value.
    pub(super) fn commit(&mut self, packet: Packet, alpha: f64, value: &[T]) {
        T::axpy(&mut self.current, alpha, value);
        self.version += 1;
        self.log.push(packet);
        let mut bytes: usize = self.log.iter().map(framed).sum();
        let mut dropped = 0;
        while bytes > T::WIDTH * self.current.len() && dropped < self.log.len() {
            bytes -= framed(&self.log[dropped]);
            dropped += 1;
        }
        self.log.drain(..dropped);
    }

    /// Sets the message of the next round, and the distance of clients from the state after it.
    pub(super) fn set_pending(&mut self, packet: Packet, spread: Spread) {
        self.spread = Some(spread);
        self.pending = Some(packet);
    }

    /// Records the distance of the replica from `state`.
    pub(super) fn note_spread(&mut self, state: &[T]) {
        let mut gap = state.to_vec();
        T::axpy(&mut gap, -1.0, &self.current);
        self.spread = Some(Spread { local2: T::norm2_squared(&gap), memory2: None });
    }

    /// Number of messages missed by a client at `version`; `None` if it needs the whole state.
    pub(super) fn missed(&self, version: Option<u64>) -> Option<usize> {
        let missed = usize::try_from(self.version.checked_sub(version?)?).ok()?;
        (missed <= self.log.len()).then_some(missed)
    }

    /// The version of a client after the next message.
    pub(super) fn next_version(&self) -> u64 {
        self.version + u64::from(self.pending.is_some())
    }

    /// The message to a client that missed this number of messages.
    pub(super) fn message(&self, missed: Option<usize>) -> DownMessage<T> {
        let caught_up = match missed {
            Some(missed) => DownMessage::of_steps(self.log[self.log.len() - missed..].to_vec()),
            None => DownMessage::whole(&self.current),
        };
        match &self.pending {
            Some(packet) => caught_up.then(packet.clone()),
            None => caught_up,
        }
    }
}

/// Encoded size of a packet in a message, its length prefix included.
fn framed(packet: &Packet) -> usize {
    let digits = u64::BITS - (packet.len() as u64 | 1).leading_zeros();
    packet.len() + digits.div_ceil(7) as usize
}

#[cfg(test)]
impl<T: Scalar> Track<T> {
    pub(super) fn log_bytes(&self) -> usize {
        self.log.iter().map(framed).sum()
    }
}
