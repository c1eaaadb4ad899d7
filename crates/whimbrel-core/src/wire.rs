//! The byte form of messages and stored states.
//!
//! Numbers are little-endian; lengths are LEB128 so that short vectors stay short. Reading
//! allocates at most a few times the message's size, and refuses trailing bytes.

use crate::shared::Tail;
use crate::{ClientId, Error, ExactSum, Key, Result};

/// A value with a byte form.
pub trait Wire: Sized {
    /// Appends the byte form.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads one value from the front and moves past it.
    fn take(from: &mut &[u8]) -> Result<Self>;

    /// Appends many values without their count.
    fn put_all(items: &[Self], out: &mut Vec<u8>) {
        for item in items {
            item.put(out);
        }
    }

    /// Reads `count` values.
    fn take_all(count: usize, from: &mut &[u8]) -> Result<Vec<Self>> {
        // Every value but `()` takes a byte at least; so a claimed count beyond the message is a lie.
        if count > from.len() {
            return Err(Error::peer(format!(
                "a list of {count} values cannot fit the {} bytes left",
                from.len()
            )));
        }
        (0..count).map(|_| Self::take(from)).collect()
    }

    /// The byte form.
    fn to_bytes(&self) -> Vec<u8> {
        // Most messages are short: room for them is made once.
        let mut out = Vec::with_capacity(64);
        self.put(&mut out);
        out
    }

    /// Appends the byte form without its shared end, and returns that end; `None` if nothing is
    /// shared.
    fn put_parts(&self, head: &mut Vec<u8>) -> Option<Tail> {
        self.put(head);
        None
    }

    /// Reads a value whose shared end, if any, is separate.
    fn take_parts(head: &mut &[u8], tail: Option<&Tail>) -> Result<Self> {
        match tail {
            None => Self::take(head),
            Some(_) => Err(Error::internal("a message without shared parts was decoded with one")),
        }
    }

    /// Reads a value that fills `bytes` exactly.
    fn from_bytes(mut bytes: &[u8]) -> Result<Self> {
        let value = Self::take(&mut bytes)?;
        if bytes.is_empty() {
            Ok(value)
        } else {
            Err(Error::peer(format!("{} bytes too many at the end of a message", bytes.len())))
        }
    }
}

/// A state that the engine stores, copies and moves between threads.
pub trait State: Wire + Clone + Send + Sync + 'static {}
impl<T: Wire + Clone + Send + Sync + 'static> State for T {}

/// Cuts `count` bytes off the front.
pub fn cut<'a>(from: &mut &'a [u8], count: usize) -> Result<&'a [u8]> {
    let (head, tail) = from.split_at_checked(count).ok_or_else(|| {
        Error::peer(format!("a message ends early: {count} bytes wanted, {} left", from.len()))
    })?;
    *from = tail;
    Ok(head)
}

/// Appends an unsigned number in LEB128.
pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads an unsigned LEB128 number; refuses encodings longer than needed.
pub fn take_varint(from: &mut &[u8]) -> Result<u64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = cut(from, 1)?[0];
        let bits = u64::from(byte & 127);
        if shift > 63 || (shift == 63 && bits > 1) || (byte == 0 && shift > 0) {
            return Err(Error::peer("a number is not in its shortest form"));
        }
        value |= bits << shift;
        if byte < 128 {
            return Ok(value);
        }
        shift += 7;
    }
}

macro_rules! number {
    ($($number:ty),*) => { $(
        impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(from: &mut &[u8]) -> Result<Self> {
                let bytes = cut(from, size_of::<$number>())?;
                Ok(<$number>::from_le_bytes(bytes.try_into().expect("cut to size")))
            }
            fn put_all(items: &[Self], out: &mut Vec<u8>) {
                // Grown once and then filled: a copy, where pushing would check for room each time.
                let start = out.len();
                out.resize(start + size_of_val(items), 0);
                let places = out[start..].chunks_exact_mut(size_of::<$number>());
                for (place, item) in places.zip(items) {
                    place.copy_from_slice(&item.to_le_bytes());
                }
            }
            fn take_all(count: usize, from: &mut &[u8]) -> Result<Vec<Self>> {
                let size = size_of::<$number>();
                let wanted = count.checked_mul(size).ok_or_else(|| Error::peer("a list is too long"))?;
                let bytes = cut(from, wanted)?;
                let each = bytes.chunks_exact(size);
                Ok(each.map(|b| <$number>::from_le_bytes(b.try_into().expect("cut to size"))).collect())
            }
        }
    )* };
}
number!(u16, u32, u64, i32, f32, f64);

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Ok(cut(from, 1)?[0])
    }
    fn put_all(items: &[Self], out: &mut Vec<u8>) {
        out.extend_from_slice(items);
    }
    fn take_all(count: usize, from: &mut &[u8]) -> Result<Vec<Self>> {
        Ok(cut(from, count)?.to_vec())
    }
}

impl Wire for () {
    fn put(&self, _: &mut Vec<u8>) {}
    fn take(_: &mut &[u8]) -> Result<Self> {
        Ok(())
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::peer(format!("{other} is neither yes nor no"))),
        }
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(self.len() as u64, out);
        out.extend_from_slice(self.as_bytes());
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let bytes = take_length(from).and_then(|n| cut(from, n))?;
        String::from_utf8(bytes.to_vec()).map_err(|_| Error::peer("a text is not UTF-8"))
    }
}

impl Wire for ClientId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        u32::take(from).map(Self)
    }
}

impl Wire for Key {
    fn put(&self, out: &mut Vec<u8>) {
        u64::put_all(&self.words(), out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Ok(Self::from_words([u64::take(from)?, u64::take(from)?]))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(self.len() as u64, out);
        T::put_all(self, out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        take_length(from).and_then(|n| T::take_all(n, from))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        bool::take(from)?.then(|| T::take(from)).transpose()
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Ok(cut(from, N)?.try_into().expect("cut to size"))
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

impl Wire for ExactSum {
    fn put(&self, out: &mut Vec<u8>) {
        let (count, top, bins) = self.parts();
        count.put(out);
        top.put(out);
        for bin in bins {
            bin.put(out);
        }
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let (count, top) = (u32::take(from)?, <Option<i32> as Wire>::take(from)?);
        let bins = [Vec::take(from)?, Vec::take(from)?, Vec::take(from)?, Vec::take(from)?];
        Self::from_parts(count, top, bins)
    }
}

/// Bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn take_length(from: &mut &[u8]) -> Result<usize> {
    usize::try_from(take_varint(from)?).map_err(|_| Error::peer("a list is too long"))
}

/// Writes the byte form of a struct: its fields in order. A field after `;` is a
/// [`Shared`](crate::Shared) value.
#[macro_export]
macro_rules! wire {
    ($name:ident { $($field:ident),* ; $shared:ident }) => {
        impl $crate::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::Wire::put(&self.$field, out);)*
                $crate::Wire::put(&self.$shared, out);
            }
            fn take(from: &mut &[u8]) -> $crate::Result<Self> {
                Self::take_parts(from, None)
            }
            fn put_parts(&self, head: &mut Vec<u8>) -> Option<$crate::shared::Tail> {
                $($crate::Wire::put(&self.$field, head);)*
                Some(self.$shared.tail())
            }
            fn take_parts(
                head: &mut &[u8],
                tail: Option<&$crate::shared::Tail>,
            ) -> $crate::Result<Self> {
                Ok(Self {
                    $($field: $crate::Wire::take(head)?,)*
                    $shared: $crate::Shared::take_tail(head, tail)?,
                })
            }
        }
    };
    ($name:ident<$($type:ident: $bound:path),+> { $($field:ident),* $(,)? }) => {
        impl<$($type: $bound),+> $crate::Wire for $name<$($type),+> {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::Wire::put(&self.$field, out);)*
            }
            fn take(from: &mut &[u8]) -> $crate::Result<Self> {
                Ok(Self { $($field: $crate::Wire::take(from)?),* })
            }
        }
    };
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::Wire::put(&self.$field, out);)*
                let _ = out;
            }
            fn take(from: &mut &[u8]) -> $crate::Result<Self> {
                let _ = &from;
                Ok(Self { $($field: $crate::Wire::take(from)?),* })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Wire + PartialEq + std::fmt::Debug>(value: T, bytes: usize) {
        let encoded = value.to_bytes();
        assert_eq!(encoded.len(), bytes);
        assert_eq!(T::from_bytes(&encoded).unwrap(), value);
        for cut in 0..encoded.len() {
            assert!(matches!(T::from_bytes(&encoded[..cut]), Err(Error::Peer { .. })));
        }
        assert!(T::from_bytes(&[encoded, vec![0]].concat()).is_err());
    }

    #[test]
    fn values_come_back_and_truncated_ones_are_refused() {
        round_trip(7u32, 4);
        round_trip(-1.5f64, 8);
        round_trip(vec![1.0f64, f64::MIN_POSITIVE, -0.0], 25);
        round_trip(Some(vec![3u8; 200]), 203);
        round_trip((String::from("ward 7"), vec![Some(1u16), None]), 12);
        round_trip(ClientId(9), 4);
        round_trip([7u8; 32], 32);
    }

    #[test]
    fn hostile_lengths_allocate_nothing() {
        let mut long = Vec::new();
        put_varint(u64::MAX, &mut long);
        assert!(Vec::<f64>::from_bytes(&long).is_err());
        assert!(Vec::<Vec<u8>>::from_bytes(&long).is_err());
        assert!(String::from_bytes(&long).is_err());
        assert!(take_varint(&mut &[0x80, 0x00][..]).is_err());
        assert!(take_varint(&mut &[0xff; 11][..]).is_err());
    }
}
