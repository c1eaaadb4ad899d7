//! Thread-local scratch vectors, so that compressing short vectors does not allocate.

use std::cell::Cell;
use std::thread::LocalKey;

/// Largest capacity that a thread retains.
const KEPT_MAX: usize = 1 << 15;

/// Element types with a thread-local scratch vector.
pub trait Scratch: Copy + Default + 'static {
    fn kept() -> &'static LocalKey<Cell<Vec<Self>>>;
}

macro_rules! scratch {
    ($($number:ty),+) => {$(
        impl Scratch for $number {
            fn kept() -> &'static LocalKey<Cell<Vec<Self>>> {
                thread_local!(static KEPT: Cell<Vec<$number>> = const { Cell::new(Vec::new()) });
                &KEPT
            }
        }
    )+};
}
scratch!(i16, u64, f32, f64);

/// Calls `work` with a buffer of this length and arbitrary contents. A nested call gets another buffer.
pub(crate) fn with_room<T: Scratch, R>(count: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let mut room = T::kept().take();
    if room.len() < count {
        room.resize(count, T::default());
    }
    let result = work(&mut room[..count]);
    if room.capacity() <= KEPT_MAX {
        T::kept().set(room);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_gets_as_many_numbers_as_asked_for_and_alone() {
        for count in [3, 8, 0, 5, KEPT_MAX + 1, 7] {
            with_room(count, |outer: &mut [f64]| {
                assert_eq!(outer.len(), count);
                outer.fill(1.0);
                with_room(4, |inner: &mut [f64]| {
                    assert_eq!(inner.len(), 4);
                    inner.fill(2.0);
                });
                assert!(outer.iter().all(|x| *x == 1.0));
            });
        }
        assert!(f64::kept().take().capacity() <= KEPT_MAX);
    }
}
