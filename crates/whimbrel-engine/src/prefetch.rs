//! Work in chunks on all threads, one chunk ahead of the consumer.

use std::ops::Range;
use std::sync::mpsc::sync_channel;

/// Clients of a chunk: results of a million clients do not fit into memory at once.
pub(crate) const CHUNK: usize = 8192;

/// Calls `take` with the results of `make` for the chunks of `0..count`, in order. While `take`
/// runs on the calling thread, the pool makes the next chunk. With one thread, or on a thread of
/// the pool, chunks are made on demand.
pub(crate) fn prefetch<T: Send, R>(
    count: usize,
    make: impl Fn(Range<usize>) -> T + Sync,
    take: impl FnOnce(&mut dyn Iterator<Item = T>) -> R,
) -> R {
    let chunks = (0..count).step_by(CHUNK).map(|first| first..count.min(first + CHUNK));
    if count <= CHUNK
        || rayon::current_num_threads() == 1
        || rayon::current_thread_index().is_some()
    {
        return take(&mut chunks.map(make));
    }
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel(0);
        let make = &make;
        scope.spawn(move || {
            for chunk in chunks {
                // The receiver is dropped once the taker has seen enough.
                if sender.send(make(chunk)).is_err() {
                    break;
                }
            }
        });
        take(&mut receiver.into_iter())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_in_order_and_may_be_left() {
        let count = 3 * CHUNK + 5;
        let all: Vec<usize> = prefetch(count, |chunk| chunk, |made| made.flatten().collect());
        assert!(all.into_iter().eq(0..count));
        let first = prefetch(count, |chunk| chunk.start, |made| made.next());
        assert_eq!(
            (first, prefetch(0, |chunk| chunk.len(), |made| made.sum::<usize>())),
            (Some(0), 0)
        );
    }
}
