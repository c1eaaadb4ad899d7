//! A sequence of messages that several clients follow: one replica or memory, and the recent
//! packets that bring a client up to date.

use super::DownMessage;
use super::ends::Spread;
use crate::{Packet, Scalar};
use whimbrel_core::wire;

/// What the server keeps of one such sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Track<T = f64> {
    /// The replica or memory, after all committed messages.
    current: Vec<T>,
    /// How many messages were committed.
    version: u64,
    /// The last of them, in order; together never longer than one whole state.
    log: Vec<Packet>,
    /// The message of the round under way, where it is not committed yet.
    pending: Option<Packet>,
    spread: Option<Spread>,
}

wire!(Track<T: Scalar> { current, version, log, pending, spread });

impl<T: Scalar> Track<T> {
    pub(super) fn new(state: &[T]) -> Self {
        Self { current: state.to_vec(), version: 0, log: Vec::new(), pending: None, spread: None }
    }

    pub(super) fn current(&self) -> &[T] {
        &self.current
    }

    pub(super) fn spread(&self) -> Option<Spread> {
        self.spread
    }

    pub(super) fn pending(&self) -> Option<&Packet> {
        self.pending.as_ref()
    }

    pub(super) fn take_pending(&mut self) -> Option<Packet> {
        self.pending.take()
    }

    /// Applies a message for good; its value is added `alpha` times.
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

    /// The message of the next round, and how far it leaves clients from the state.
    pub(super) fn set_pending(&mut self, packet: Packet, spread: Spread) {
        self.spread = Some(spread);
        self.pending = Some(packet);
    }

    /// How far the replica is from `state`.
    pub(super) fn note_spread(&mut self, state: &[T]) {
        let mut gap = state.to_vec();
        T::axpy(&mut gap, -1.0, &self.current);
        self.spread = Some(Spread { local2: T::norm2_squared(&gap), memory2: None });
    }

    /// How many messages a client that holds `version` of them missed; none where it needs the
    /// whole state.
    pub(super) fn missed(&self, version: Option<u64>) -> Option<usize> {
        let missed = usize::try_from(self.version.checked_sub(version?)?).ok()?;
        (missed <= self.log.len()).then_some(missed)
    }

    /// How many messages a client holds once it has the next one.
    pub(super) fn next_version(&self) -> u64 {
        self.version + u64::from(self.pending.is_some())
    }

    /// What a client needs that missed this number of messages.
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

/// What a packet takes in a message, its length included.
fn framed(packet: &Packet) -> usize {
    let digits = u64::BITS - (packet.len() as u64 | 1).leading_zeros();
    packet.len() + digits.div_ceil(7) as usize
}

#[cfg(test)]
impl<T: Scalar> Track<T> {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn log_bytes(&self) -> usize {
        self.log.iter().map(framed).sum()
    }
}
