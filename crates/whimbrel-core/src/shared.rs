//! Messages with a common end for many recipients: encoded once, decoded once per process.
//!
//! A method puts the common content into a [`Shared`] value, the last field of its message
//! (`wire!(Down { own; shared })`). The bytes on the wire are those of a plain message, and its
//! full length counts for each recipient.

use crate::wire::put_varint;
use crate::{Error, Result, Wire};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// A message as bytes: the recipient's own, then the common ones.
#[derive(Clone, Debug, Default)]
pub struct Message {
    head: Vec<u8>,
    tail: Option<Tail>,
}

/// The common end of messages, with its value once decoded.
#[derive(Clone)]
pub struct Tail(Arc<Encoded>);

struct Encoded {
    bytes: Box<[u8]>,
    decoded: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    derived: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

/// A value for many recipients.
pub struct Shared<T>(Source<T>);

enum Source<T> {
    /// Made by the sender for many, or received in the sender's process.
    Encoded(Tail),
    /// Read from a whole message, or made for one recipient.
    Decoded(Arc<T>),
}

impl Message {
    /// A message with this value.
    pub fn of(value: &impl Wire) -> Self {
        let mut head = Vec::with_capacity(64);
        let tail = value.put_parts(&mut head);
        Self { head, tail }
    }

    /// A message with this value for many recipients.
    pub fn to_many<T: Wire>(value: &T) -> Self {
        Self { head: Vec::new(), tail: Some(Tail::new(value.to_bytes())) }
    }

    /// Reads the value of the message.
    pub fn read<T: Wire>(&self) -> Result<T> {
        let mut head = &self.head[..];
        let value = T::take_parts(&mut head, self.tail.as_ref())?;
        match head.len() {
            0 => Ok(value),
            left => Err(Error::peer(format!("{left} bytes too many at the end of a message"))),
        }
    }

    /// Reads the value of a message from [`Message::to_many`] or from bytes.
    pub fn read_shared<T: Wire + Send + Sync + 'static>(&self) -> Result<Arc<T>> {
        match &self.tail {
            Some(tail) if self.head.is_empty() => tail.value(),
            _ => self.read().map(Arc::new),
        }
    }

    /// Bytes on the wire.
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.as_ref().map_or(0, |tail| tail.bytes().len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn from_parts(head: Vec<u8>, tail: Option<Tail>) -> Self {
        Self { head, tail }
    }

    /// The recipient's own bytes and the common end.
    pub fn parts(self) -> (Vec<u8>, Option<Tail>) {
        (self.head, self.tail)
    }

    /// All bytes in one piece.
    pub fn to_bytes(&self) -> Vec<u8> {
        let tail = self.tail.as_ref().map_or(&[][..], Tail::bytes);
        [&self.head[..], tail].concat()
    }
}

impl From<Vec<u8>> for Message {
    fn from(head: Vec<u8>) -> Self {
        Self { head, tail: None }
    }
}

impl From<&[u8]> for Message {
    fn from(head: &[u8]) -> Self {
        head.to_vec().into()
    }
}

impl Wire for Message {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(self.len() as u64, out);
        out.extend_from_slice(&self.head);
        out.extend_from_slice(self.tail.as_ref().map_or(&[][..], Tail::bytes));
    }

    fn take(from: &mut &[u8]) -> Result<Self> {
        Vec::<u8>::take(from).map(Self::from)
    }
}

impl Tail {
    /// The common end of messages from bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        let (decoded, derived) = (Mutex::new(None), Mutex::new(None));
        Self(Arc::new(Encoded { bytes: bytes.into(), decoded, derived }))
    }

    /// Whether both are one value in memory.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// The value, decoded at the first call.
    fn value<T: Wire + Send + Sync + 'static>(&self) -> Result<Arc<T>> {
        once(&self.0.decoded, || T::from_bytes(&self.0.bytes))
    }
}

/// The value in its place, made at the first call.
fn once<T: Send + Sync + 'static>(
    place: &Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    make: impl FnOnce() -> Result<T>,
) -> Result<Arc<T>> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    let value = match &*place {
        Some(value) => value.clone(),
        None => place.insert(Arc::new(make()?)).clone(),
    };
    value.downcast().map_err(|_| Error::internal("a message was read as two types"))
}

impl AsRef<[u8]> for Tail {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tail({} bytes)", self.bytes().len())
    }
}

impl<T: Wire + Send + Sync + 'static> Shared<T> {
    /// Encodes the value.
    pub fn new(value: &T) -> Self {
        Self(Source::Encoded(Tail::new(value.to_bytes())))
    }

    /// A value of the same kind that only one recipient gets: its bytes are the recipient's own.
    pub fn alone(value: T) -> Self {
        Self(Source::Decoded(Arc::new(value)))
    }

    /// The value; an error if its bytes are malformed.
    pub fn get(&self) -> Result<Arc<T>> {
        match &self.0 {
            Source::Encoded(tail) => tail.value(),
            Source::Decoded(value) => Ok(value.clone()),
        }
    }

    /// The result of `make` for the value, computed once for all recipients.
    pub fn derived<D: Send + Sync + 'static>(
        &self,
        make: impl FnOnce() -> Result<D>,
    ) -> Result<Arc<D>> {
        match &self.0 {
            Source::Encoded(tail) => once(&tail.0.derived, make),
            Source::Decoded(_) => make().map(Arc::new),
        }
    }

    /// The shared bytes.
    pub fn tail(&self) -> Tail {
        match &self.0 {
            Source::Encoded(tail) => tail.clone(),
            Source::Decoded(value) => Tail::new(value.to_bytes()),
        }
    }

    /// Reads the value at the end of a message in one or two parts.
    pub fn take_tail(head: &mut &[u8], tail: Option<&Tail>) -> Result<Self> {
        match tail {
            Some(tail) => Ok(Self(Source::Encoded(tail.clone()))),
            None => Self::take(head),
        }
    }
}

impl<T: Wire + Send + Sync + 'static> Wire for Shared<T> {
    fn put(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Source::Encoded(tail) => out.extend_from_slice(tail.bytes()),
            Source::Decoded(value) => value.put(out),
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self> {
        Ok(Self(Source::Decoded(Arc::new(T::take(from)?))))
    }

    fn put_parts(&self, head: &mut Vec<u8>) -> Option<Tail> {
        match &self.0 {
            Source::Encoded(tail) => Some(tail.clone()),
            Source::Decoded(value) => {
                value.put(head);
                None
            }
        }
    }

    fn take_parts(head: &mut &[u8], tail: Option<&Tail>) -> Result<Self> {
        Self::take_tail(head, tail)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Source::Encoded(tail) => Source::Encoded(tail.clone()),
            Source::Decoded(value) => Source::Decoded(value.clone()),
        })
    }
}

impl<T: Wire + Send + Sync + 'static> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes() == other.to_bytes()
    }
}

impl<T> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;
    use std::sync::atomic::{AtomicU32, Ordering};

    static READ: AtomicU32 = AtomicU32::new(0);

    #[derive(Clone, PartialEq, Debug)]
    struct Counted(u64);

    impl Wire for Counted {
        fn put(&self, out: &mut Vec<u8>) {
            self.0.put(out);
        }
        fn take(from: &mut &[u8]) -> Result<Self> {
            READ.fetch_add(1, Ordering::Relaxed);
            u64::take(from).map(Self)
        }
    }

    #[derive(Clone, PartialEq, Debug)]
    struct Down {
        own: u32,
        state: Shared<Counted>,
    }

    wire!(Down { own; state });

    #[test]
    fn a_message_in_two_parts_is_the_same_bytes_and_its_end_is_decoded_once() {
        let state = Shared::new(&Counted(9));
        let downs = [1u32, 2, 3].map(|own| Down { own, state: state.clone() });
        let messages = downs.each_ref().map(Message::of);
        for (down, message) in downs.iter().zip(&messages) {
            assert_eq!(message.len(), 12);
            assert_eq!(message.to_bytes(), down.to_bytes());
            let read: Down = message.read().unwrap();
            assert_eq!((read.own, &*read.state.get().unwrap()), (down.own, &Counted(9)));
        }
        assert_eq!(READ.load(Ordering::Relaxed), 1);
        let whole: Down = Message::from(downs[0].to_bytes()).read().unwrap();
        assert_eq!(whole, downs[0]);
        assert_eq!(whole.state.tail().bytes(), state.tail().bytes());
    }

    #[test]
    fn a_value_for_one_recipient_is_part_of_its_own_bytes() {
        let down = Down { own: 1, state: Shared::alone(Counted(9)) };
        let mut head = Vec::new();
        assert!(down.state.put_parts(&mut head).is_none());
        assert_eq!(head, Counted(9).to_bytes());
        assert_eq!(*down.state.get().unwrap(), Counted(9));
    }

    #[test]
    fn what_follows_from_a_value_is_made_once_for_many() {
        let made = AtomicU32::new(0);
        let double = |value: &Shared<u32>| -> u32 {
            let make = || {
                made.fetch_add(1, Ordering::Relaxed);
                Ok(2 * *value.get()?)
            };
            *value.derived(make).unwrap()
        };
        let (many, one) = (Shared::new(&7), Shared::alone(7));
        let found = [&many, &many.clone(), &one, &one].map(double);
        assert_eq!((found, made.into_inner()), ([14; 4], 3));
    }

    #[test]
    fn ends_that_are_no_such_value_are_refused() {
        let down = |bytes: &[u8]| Message { head: vec![0; 4], tail: Some(Tail::new(bytes.into())) };
        for wrong in [&[0u8; 7][..], &[0; 9]] {
            let read: Down = down(wrong).read().unwrap();
            assert!(matches!(read.state.get(), Err(Error::Peer { .. })));
        }
        assert!(matches!(down(&[0; 8]).read::<(u32, u64)>(), Err(Error::Internal { .. })));
        assert!(Message::from(vec![0; 13]).read::<Down>().is_err());
        let question = Message::to_many(&7u32);
        assert_eq!(*question.read_shared::<u32>().unwrap(), 7);
        assert_eq!(*Message::from(question.to_bytes()).read_shared::<u32>().unwrap(), 7);
    }
}
