//! Downlink messages.

use crate::{Packet, Scalar};
use std::sync::OnceLock;
use whimbrel_core::wire::{put_varint, take_varint};
use whimbrel_core::{Error, Result, Shared, Wire};

/// A message to one client: a whole state (first contact, catch-up, exact channels), then packets.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownMessage<T = f64> {
    whole: Option<Vec<T>>,
    steps: Vec<Packet>,
    codec: u8,
}

impl<T: Scalar> DownMessage<T> {
    /// A whole state.
    pub fn whole(state: &[T]) -> Self {
        Self { whole: Some(state.to_vec()), ..Self::default() }
    }

    /// One packet.
    pub fn step(packet: Packet) -> Self {
        Self { steps: vec![packet], ..Self::default() }
    }

    /// Appends a packet.
    #[must_use]
    pub fn then(mut self, packet: Packet) -> Self {
        self.steps.push(packet);
        self
    }

    /// Several packets.
    pub(super) fn of_steps(steps: Vec<Packet>) -> Self {
        Self { steps, ..Self::default() }
    }

    /// Sets the index of the codec.
    #[must_use]
    pub(super) fn with_codec(mut self, codec: u8) -> Self {
        self.codec = codec;
        self
    }

    /// The whole state, if there is one.
    pub fn state(&self) -> Option<&[T]> {
        self.whole.as_deref()
    }

    pub fn steps(&self) -> &[Packet] {
        &self.steps
    }

    pub(super) fn codec(&self) -> u8 {
        self.codec
    }
}

/// The messages of one exchange that go to several clients, each built and encoded on first use.
pub struct SharedMessages<T: Scalar = f64>(Vec<OnceLock<Shared<DownMessage<T>>>>);

impl<T: Scalar> SharedMessages<T> {
    /// A cache of this number of messages.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// The message with this index; an uncached one if the index is out of range.
    pub fn get(
        &self,
        number: usize,
        make: impl FnOnce() -> DownMessage<T>,
    ) -> Shared<DownMessage<T>> {
        match self.0.get(number) {
            Some(message) => message.get_or_init(|| Shared::new(&make())).clone(),
            None => Shared::alone(make()),
        }
    }
}

/// The first number encodes the number of packets, whether a whole state comes first, and whether a codec
/// index follows: one byte in most messages.
impl<T: Scalar> Wire for DownMessage<T> {
    fn put(&self, out: &mut Vec<u8>) {
        let flags = u64::from(self.whole.is_some()) | u64::from(self.codec > 0) << 1;
        put_varint((self.steps.len() as u64) << 2 | flags, out);
        if self.codec > 0 {
            self.codec.put(out);
        }
        if let Some(whole) = &self.whole {
            whole.put(out);
        }
        Packet::put_all(&self.steps, out);
    }

    fn take(from: &mut &[u8]) -> Result<Self> {
        let head = take_varint(from)?;
        let codec = if head & 2 > 0 { u8::take(from)? } else { 0 };
        if head & 2 > 0 && codec == 0 {
            return Err(Error::peer("a message is not in its shortest form"));
        }
        let whole = if head & 1 > 0 { Some(Vec::take(from)?) } else { None };
        let count = usize::try_from(head >> 2).map_err(|_| Error::peer("a list is too long"))?;
        Ok(Self { whole, steps: Packet::take_all(count, from)?, codec })
    }
}
