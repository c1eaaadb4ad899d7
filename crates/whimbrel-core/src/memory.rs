//! An allocator that keeps large blocks for their next use.
//!
//! A round allocates and frees several vectors of the model's size for each client. The system's
//! allocator returns such blocks to the kernel, which zeroes their pages again for the next client:
//! two thirds of a round on ten million numbers. Programs install [`KeepLarge`] with
//! `#[global_allocator]`; libraries do not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Smaller blocks are left to the system.
const LARGE: usize = 1 << 20;
/// Sizes of large blocks are multiples of this, so that similar vectors share blocks.
const STEP: usize = 1 << 16;
/// The most free blocks.
const BLOCKS: usize = 64;

/// The system's allocator with a list of free large blocks. The list holds at most as many bytes as
/// large blocks in use.
pub struct KeepLarge {
    list: Mutex<Free>,
    /// Bytes of large blocks in use, counted also while another thread holds the list.
    used_bytes: AtomicUsize,
}

struct Free {
    /// Address and size of each free block; the last freed is last.
    blocks: [(usize, usize); BLOCKS],
    count: usize,
    free_bytes: usize,
}

impl KeepLarge {
    #[allow(clippy::new_without_default)] // a static needs a constant
    pub const fn new() -> Self {
        let list = Free { blocks: [(0, 0); BLOCKS], count: 0, free_bytes: 0 };
        Self { list: Mutex::new(list), used_bytes: AtomicUsize::new(0) }
    }

    /// Whether the layout is served from the list, and with which layout of the system.
    #[inline]
    fn large(layout: Layout) -> Option<Layout> {
        if layout.size() < LARGE || layout.align() > 16 {
            return None;
        }
        let size = layout.size().checked_next_multiple_of(STEP)?;
        Layout::from_size_align(size, 16).ok()
    }

    /// A free block of this size; null if there is none.
    fn take(&self, size: usize) -> *mut u8 {
        self.used_bytes.fetch_add(size, Ordering::Relaxed);
        // Without waiting: a forked process may have inherited a held lock.
        let Ok(mut list) = self.list.try_lock() else { return std::ptr::null_mut() };
        let at = list.blocks[..list.count].iter().rposition(|(_, free)| *free == size);
        let address = at.map_or(0, |at| list.remove(at).0);
        std::ptr::with_exposed_provenance_mut(address)
    }

    /// Puts a block on the list and takes off those for which there is no room.
    fn put(&self, block: *mut u8, size: usize) {
        let mut surplus = [(0, 0); 2];
        let used_bytes = self.used_bytes.fetch_sub(size, Ordering::Relaxed) - size;
        match self.list.try_lock() {
            Ok(mut list) => {
                if size > used_bytes {
                    surplus[0] = (block.expose_provenance(), size);
                } else {
                    if list.count == BLOCKS {
                        surplus[0] = list.remove(0);
                    }
                    list.push(block.expose_provenance(), size);
                }
                if list.free_bytes > used_bytes {
                    surplus[1] = list.remove(0);
                }
            }
            Err(_) => surplus[0] = (block.expose_provenance(), size),
        }
        for (address, size) in surplus.into_iter().filter(|(address, _)| *address != 0) {
            let block = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the block came from `System` with this size and this alignment, and it is on no list.
            unsafe { System.dealloc(block, Layout::from_size_align_unchecked(size, 16)) };
        }
    }
}

impl Free {
    fn push(&mut self, address: usize, size: usize) {
        self.blocks[self.count] = (address, size);
        self.count += 1;
        self.free_bytes += size;
    }

    fn remove(&mut self, at: usize) -> (usize, usize) {
        let block = self.blocks[at];
        self.blocks.copy_within(at + 1..self.count, at);
        self.count -= 1;
        self.free_bytes -= block.1;
        block
    }
}

// SAFETY: every block comes from `System`. A large one has its size rounded up by `large`, a function
// of the caller's layout, so `dealloc` and `realloc` find the layout that `System` has of it. A block
// is either with its owner or on the list, once.
unsafe impl GlobalAlloc for KeepLarge {
    // SAFETY: as required by `GlobalAlloc`.
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(large) = Self::large(layout) else {
            // SAFETY: the caller's layout.
            return unsafe { System.alloc(layout) };
        };
        let kept = self.take(large.size());
        // SAFETY: a layout of at least `LARGE` bytes.
        if kept.is_null() { unsafe { System.alloc(large) } } else { kept }
    }

    // SAFETY: as required by `GlobalAlloc`.
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(large) = Self::large(layout) else {
            // SAFETY: the caller's layout.
            return unsafe { System.alloc_zeroed(layout) };
        };
        let kept = self.take(large.size());
        if kept.is_null() {
            // SAFETY: a layout of at least `LARGE` bytes.
            return unsafe { System.alloc_zeroed(large) };
        }
        // SAFETY: a kept block has the size of its layout, which is at least the caller's.
        unsafe { kept.write_bytes(0, layout.size()) };
        kept
    }

    // SAFETY: as required by `GlobalAlloc`.
    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match Self::large(layout) {
            Some(large) => self.put(block, large.size()),
            // SAFETY: the caller's block and layout.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    // SAFETY: as required by `GlobalAlloc`.
    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(new_size, layout.align()) else {
            return std::ptr::null_mut();
        };
        match (Self::large(layout), Self::large(wanted)) {
            // SAFETY: the caller's block and layout.
            (None, None) => unsafe { System.realloc(block, layout, new_size) },
            (Some(old), Some(new)) if old == new => block,
            _ => {
                // SAFETY: a layout of the caller's alignment and a size that is not zero.
                let moved = unsafe { self.alloc(wanted) };
                if !moved.is_null() {
                    let length = layout.size().min(new_size);
                    // SAFETY: two blocks of at least this length; the old one is the caller's.
                    unsafe {
                        moved.copy_from_nonoverlapping(block, length);
                        self.dealloc(block, layout);
                    }
                }
                moved
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    #[test]
    fn a_freed_block_is_used_again_while_as_much_is_in_use() {
        let memory = KeepLarge::new();
        let (size, similar) = (5 * LARGE, 5 * LARGE - 100);
        // SAFETY: blocks are written within their sizes and freed once, with their own layouts.
        unsafe {
            let held = memory.alloc(layout(size));
            let first = memory.alloc(layout(size));
            first.write_bytes(7, size);
            memory.dealloc(first, layout(size));
            let again = memory.alloc_zeroed(layout(similar));
            assert_eq!(first, again);
            assert!(std::slice::from_raw_parts(again, similar).iter().all(|byte| *byte == 0));
            memory.dealloc(again, layout(similar));
            assert_eq!(memory.list.lock().unwrap().count, 1);
            // Nothing is in use any more, so nothing is kept.
            memory.dealloc(held, layout(size));
            let list = memory.list.lock().unwrap();
            assert_eq!((list.count, list.free_bytes), (0, 0));
            assert_eq!(memory.used_bytes.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn blocks_are_counted_while_another_thread_holds_the_list() {
        let memory = KeepLarge::new();
        let used = || memory.used_bytes.load(Ordering::Relaxed);
        // SAFETY: the block is freed once, with its own layout.
        unsafe {
            let held = memory.list.lock().unwrap();
            let block = memory.alloc(layout(LARGE));
            assert_eq!(used(), LARGE);
            memory.dealloc(block, layout(LARGE));
            assert_eq!((used(), held.count), (0, 0));
        }
    }

    #[test]
    fn a_block_keeps_its_bytes_as_it_grows_and_shrinks() {
        let memory = KeepLarge::new();
        // SAFETY: the block is read and written within its size and freed once.
        unsafe {
            let mut size = 1000;
            let mut block = memory.alloc(layout(size));
            (0..size).for_each(|i| block.add(i).write(i as u8));
            for next in [3 * LARGE, 3 * LARGE + 5, 9 * LARGE, 2 * LARGE, 1000] {
                block = memory.realloc(block, layout(size), next);
                assert!((0..1000).all(|i| block.add(i).read() == i as u8));
                size = next;
            }
            memory.dealloc(block, layout(size));
        }
        assert_eq!(memory.list.lock().unwrap().count, 0);
    }
}
