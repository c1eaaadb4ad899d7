//! Independent work on the threads of the caller: a method has none.

use std::sync::{Mutex, PoisonError};

/// The threads of a caller.
pub trait Spread: Sync {
    /// Calls `work` once with each number below `count`, on any thread and in any order.
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync));
}

/// The caller's thread alone.
pub struct InTurn;

impl Spread for InTurn {
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(work);
    }
}

impl dyn Spread + '_ {
    /// The results of all items, in their order.
    pub fn map<T: Send, R: Send>(&self, items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        if items.len() < 2 {
            return items.into_iter().map(work).collect();
        }
        let slots: Vec<_> = items.into_iter().map(|item| Mutex::new((Some(item), None))).collect();
        self.each(slots.len(), &|i| {
            let mut slot = slots[i].lock().unwrap_or_else(PoisonError::into_inner);
            slot.1 = slot.0.take().map(&work);
        });
        let result = |slot: Mutex<(Option<T>, Option<R>)>| {
            slot.into_inner().unwrap_or_else(PoisonError::into_inner).1
        };
        slots.into_iter().filter_map(result).collect()
    }
}
