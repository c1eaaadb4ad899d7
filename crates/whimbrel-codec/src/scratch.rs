//! Thread-local scratch vectors, so that compressing short vectors does not allocate.

use std::cell::Cell;
use std::thread::LocalKey;

/// Largest capacity that a thread retains.
const KEPT_MAX: usize = 1 << 15;

/// Element types with a thread-local scratch vector.
pub trait Scratch: Copy + Default + 'static {
    fn kept() -> &'static LocalKey<Cell<Vec<Self>>>;
}

thread_local! {
    static LEVELS: Cell<Vec<i16>> = const { Cell::new(Vec::new()) };
    static WORDS: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
    static NUMBERS: Cell<Vec<f64>> = const { Cell::new(Vec::new()) };
    static NARROW: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

impl Scratch for i16 {
    fn kept() -> &'static LocalKey<Cell<Vec<Self>>> {
        &LEVELS
    }
}

impl Scratch for u64 {
    fn kept() -> &'static LocalKey<Cell<Vec<Self>>> {
        &WORDS
    }
}

impl Scratch for f32 {
    fn kept() -> &'static LocalKey<Cell<Vec<Self>>> {
        &NARROW
    }
}

impl Scratch for f64 {
    fn kept() -> &'static LocalKey<Cell<Vec<Self>>> {
        &NUMBERS
    }
}

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
        assert!(NUMBERS.take().capacity() <= KEPT_MAX);
    }
}
