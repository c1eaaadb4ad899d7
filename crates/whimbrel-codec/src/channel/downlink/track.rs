//! A sequence of messages that several clients follow: one replica or memory, and the recent
//! packets that bring a client up to date.

use super::DownMessage;
use super::ends::Spread;
use crate::Packet;
use whimbrel_core::{vector, wire};

/// What the server keeps of one such sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// The replica or memory, after all committed messages.
    current: Vec<f64>,
    /// How many messages were committed.
    version: u64,
    /// The last of them, in order; together never longer than one whole state.
    log: Vec<Packet>,
    /// The message of the round under way, where it is not committed yet.
    pending: Option<Packet>,
    spread: Option<Spread>,
}

wire!(Track { current, version, log, pending, spread });

impl Track {
    pub(super) fn new(state: &[f64]) -> Self {
        Self { current: state.to_vec(), version: 0, log: Vec::new(), pending: None, spread: None }
    }

    pub(super) fn current(&self) -> &[f64] {
        &self.current
    }

    pub(super) fn spread(&self) -> Option<Spread> {
        self.spread
    }

    pub(super) fn take_pending(&mut self) -> Option<Packet> {
        self.pending.take()
    }

    /// Applies a message for good; its value is added `alpha` times.
    pub(super) fn commit(&mut self, packet: Packet, alpha: f64, value: &[f64]) {
        vector::axpy(&mut self.current, alpha, value);
        self.version += 1;
        self.log.push(packet);
        let mut bytes: usize = self.log.iter().map(framed).sum();
        let mut dropped = 0;
        while bytes > 8 * self.current.len() && dropped < self.log.len() {
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
    pub(super) fn note_spread(&mut self, state: &[f64]) {
        let mut gap = state.to_vec();
        vector::axpy(&mut gap, -1.0, &self.current);
        self.spread = Some(Spread { local2: vector::norm2_squared(&gap), memory2: None });
    }

    /// What a client that holds `version` messages needs, and how many it holds afterwards.
    pub(super) fn message(&self, version: Option<u64>) -> (u64, DownMessage) {
        let missed = version.and_then(|v| usize::try_from(self.version.checked_sub(v)?).ok());
        let caught_up = match missed {
            Some(missed) if missed <= self.log.len() => {
                DownMessage::of_steps(self.log[self.log.len() - missed..].to_vec())
            }
            _ => DownMessage::whole(&self.current),
        };
        match &self.pending {
            Some(packet) => (self.version + 1, caught_up.then(packet.clone())),
            None => (self.version, caught_up),
        }
    }
}

/// What a packet takes in a message, its length included.
fn framed(packet: &Packet) -> usize {
    let digits = u64::BITS - (packet.len() as u64 | 1).leading_zeros();
    packet.len() + digits.div_ceil(7) as usize
}

#[cfg(test)]
impl Track {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn log_bytes(&self) -> usize {
        self.log.iter().map(framed).sum()
    }
}
