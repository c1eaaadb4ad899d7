//! Construction and assembly of a session's frames.

use crate::limits::CHUNK_BYTES;
use crate::proto::{self, Kind, client_frame, server_frame};
use tonic::codegen::Bytes;
use whimbrel_core::Message;
use whimbrel_engine::client::StepId;

/// A frame to a client.
pub fn to_client(frame: server_frame::Frame) -> proto::ServerFrame {
    proto::ServerFrame { frame: Some(frame) }
}

/// A frame to the coordinator.
pub fn to_server(frame: client_frame::Frame) -> proto::ClientFrame {
    proto::ClientFrame { frame: Some(frame) }
}

impl From<proto::StepId> for StepId {
    fn from(step: proto::StepId) -> Self {
        Self { stage: step.stage, step: step.step }
    }
}

impl From<StepId> for proto::StepId {
    fn from(step: StepId) -> Self {
        Self { stage: step.stage, step: step.step }
    }
}

/// A message to send: the recipient's own bytes, then bytes shared with other messages.
#[derive(Clone, Debug, Default)]
pub struct Parcel {
    head: Bytes,
    tail: Bytes,
}

impl Parcel {
    /// Bytes of both parts.
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A range of bytes, copied only if it spans both parts.
    fn slice(&self, start: usize, end: usize) -> Bytes {
        let middle = self.head.len();
        if end <= middle {
            self.head.slice(start..end)
        } else if start >= middle {
            self.tail.slice(start - middle..end - middle)
        } else {
            [&self.head[start..], &self.tail[..end - middle]].concat().into()
        }
    }
}

impl From<Bytes> for Parcel {
    fn from(head: Bytes) -> Self {
        Self { head, tail: Bytes::new() }
    }
}

impl From<Message> for Parcel {
    fn from(message: Message) -> Self {
        let (head, tail) = message.parts();
        let tail = tail.map_or_else(Bytes::new, Bytes::from_owner);
        Self { head: head.into(), tail }
    }
}

/// The chunks of a message, without copies.
pub fn chunks(message: &Parcel) -> impl Iterator<Item = proto::Chunk> + use<> {
    let message = message.clone();
    (0..message.len()).step_by(CHUNK_BYTES).map(move |start| {
        let end = (start + CHUNK_BYTES).min(message.len());
        proto::Chunk { data: message.slice(start, end) }
    })
}

/// A message assembled from its chunks. Memory grows with the received bytes, not with the announced
/// ones.
#[derive(Debug)]
pub struct Assembly {
    pub kind: Kind,
    pub at: StepId,
    announced: u64,
    bytes: Vec<u8>,
}

impl Assembly {
    /// An empty message of an announced length.
    pub fn new(kind: Kind, at: StepId, announced: u64) -> Self {
        Self { kind, at, announced, bytes: Vec::new() }
    }

    /// Bytes of memory including this chunk: twice the previous capacity, so that chunks are rarely
    /// moved, and at most the announced length. Fails for an empty chunk or bytes beyond that length.
    pub fn capacity_with(&self, chunk: &[u8]) -> Result<usize, &'static str> {
        if chunk.is_empty() {
            return Err("an empty chunk");
        }
        let needed = self.bytes.len() + chunk.len();
        if needed as u64 > self.announced {
            return Err("more bytes than announced");
        }
        let held = self.bytes.capacity();
        let doubled = (2 * held as u64).min(self.announced) as usize;
        Ok(if needed <= held { held } else { needed.max(doubled) })
    }

    /// Adds a chunk; fails as [`Assembly::capacity_with`] does.
    pub fn add(&mut self, chunk: &[u8]) -> Result<(), &'static str> {
        let capacity = self.capacity_with(chunk)?;
        self.bytes.reserve_exact(capacity - self.bytes.len());
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }

    /// Whether all announced bytes have arrived.
    pub fn is_whole(&self) -> bool {
        self.bytes.len() as u64 == self.announced
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_reassembled_and_an_announcement_takes_no_memory() {
        let message = Bytes::from((0..CHUNK_BYTES + 7).map(|i| i as u8).collect::<Vec<_>>());
        let at = StepId::enrolment(0);
        let mut whole = Assembly::new(Kind::Enrol, at, message.len() as u64);
        for chunk in chunks(&message.clone().into()) {
            assert!(!whole.is_whole());
            whole.add(&chunk.data).unwrap();
        }
        assert!(whole.is_whole());
        assert_eq!(whole.add(b"x"), Err("more bytes than announced"));
        assert_eq!(whole.into_bytes(), message);

        let huge = Assembly::new(Kind::Enrol, at, u64::MAX);
        assert_eq!(huge.bytes.capacity(), 0);
        assert_eq!(huge.capacity_with(b"xyz"), Ok(3));
        assert!(Assembly::new(Kind::Enrol, at, 0).is_whole());
        assert_eq!(chunks(&Parcel::default()).count(), 0);
    }

    #[test]
    fn a_message_in_two_parts_has_the_frames_of_one_piece() {
        let bytes: Bytes = (0..2 * CHUNK_BYTES + 9).map(|i| i as u8).collect::<Vec<_>>().into();
        let frames = |parcel| chunks(&parcel).map(|chunk| chunk.data).collect::<Vec<_>>();
        let whole = frames(bytes.clone().into());
        for middle in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, bytes.len()] {
            let parcel = Parcel { head: bytes.slice(..middle), tail: bytes.slice(middle..) };
            assert_eq!(parcel.len(), bytes.len());
            assert_eq!(frames(parcel), whole, "{middle} bytes in the first part");
        }
    }
}
