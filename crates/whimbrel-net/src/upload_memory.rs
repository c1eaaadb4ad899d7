//! Memory for uploads, reserved as their bytes arrive.
//!
//! An announcement reserves nothing, so several incomplete uploads can fill the memory together and
//! would wait for each other. One *turn* resolves this: an upload that finds no memory queues for
//! memory and for the turn, and the holder of the turn proceeds beyond the limit until its upload
//! is complete and folded.
//!
//! No upload waits forever. The holder of the turn waits only for its own client: once it is behind
//! `TURN_BYTES_PER_SECOND_MIN` by the allowed time, it is overdue as soon as another upload waits.
//! The queue for the turn is first come, first served. Uploads under way take at most the limit
//! and one message; memory that a method keeps afterwards is not counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// Bytes per unit of memory.
const UNIT: u64 = 4096;

/// Minimal rate of the upload with the turn while others wait.
const TURN_BYTES_PER_SECOND_MIN: f64 = 1048576.0;

/// The memory that all uploads share.
pub struct UploadMemory {
    units: Arc<Semaphore>,
    units_max: u64,
    turn: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Notified when an upload begins to wait.
    crowded: Notify,
}

/// The memory of one upload; dropped once the upload is folded.
pub struct Reservation {
    memory: Arc<UploadMemory>,
    held: Option<OwnedSemaphorePermit>,
    turn: Option<Turn>,
}

/// The right to exceed the limit.
struct Turn {
    _permit: OwnedSemaphorePermit,
    due: Instant,
}

impl UploadMemory {
    /// Memory for this number of bytes.
    pub fn new(bytes: u64) -> Arc<Self> {
        let units_max = (bytes / UNIT).clamp(1, u64::from(u32::MAX));
        Arc::new(Self {
            units: Arc::new(Semaphore::new(units_max as usize)),
            units_max,
            turn: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
            crowded: Notify::new(),
        })
    }

    /// An empty reservation.
    pub fn reserve(self: &Arc<Self>) -> Reservation {
        Reservation { memory: self.clone(), held: None, turn: None }
    }
}

impl Reservation {
    /// Waits until the reservation may hold `bytes` in total, `arrived` of which have just arrived.
    /// With the turn, it may fall behind the minimal rate by `behind`.
    pub async fn grow(&mut self, bytes: u64, arrived: u64, behind: Duration) {
        if let Some(turn) = &mut self.turn {
            turn.due += Duration::from_secs(1).mul_f64(arrived as f64 / TURN_BYTES_PER_SECOND_MIN);
            return;
        }
        let held = self.held.as_ref().map_or(0, |held| held.num_permits() as u64);
        let units = bytes.div_ceil(UNIT);
        if units <= held {
            return;
        }
        // An upload above the limit does not queue for memory, where it would block others.
        let fits = units <= self.memory.units_max;
        let more = (units - held).min(u64::from(u32::MAX)) as u32;
        if fits && let Ok(permit) = self.memory.units.clone().try_acquire_many_owned(more) {
            return self.add(permit);
        }
        let waiting = Waiting::new(self.memory.clone());
        tokio::select! {
            biased;
            Ok(permit) = self.memory.units.clone().acquire_many_owned(more), if fits => {
                self.add(permit);
            }
            Ok(permit) = self.memory.turn.clone().acquire_owned() => {
                self.turn = Some(Turn { _permit: permit, due: Instant::now() + behind });
            }
        }
        drop(waiting);
    }

    /// Completes when this upload has held the turn for too long while others wait.
    pub async fn overdue(&self) {
        let Some(turn) = &self.turn else { return std::future::pending().await };
        sleep_until(turn.due).await;
        loop {
            let crowded = self.memory.crowded.notified();
            if self.memory.waiting.load(Ordering::SeqCst) > 0 {
                return;
            }
            crowded.await;
        }
    }

    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.held {
            None => self.held = Some(permit),
            Some(held) => held.merge(permit),
        }
    }
}

/// Counts a waiting upload.
struct Waiting(Arc<UploadMemory>);

impl Waiting {
    fn new(memory: Arc<UploadMemory>) -> Self {
        memory.waiting.fetch_add(1, Ordering::SeqCst);
        memory.crowded.notify_waiters();
        Self(memory)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const STALL: Duration = Duration::from_secs(30);

    fn is_ready(future: impl Future<Output = ()>) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    /// Twenty concurrent uploads, each of at least half the memory.
    #[tokio::test]
    async fn uploads_that_fill_the_memory_together_all_complete() {
        let memory = UploadMemory::new(16 * UNIT);
        let uploads = (0..20).map(|i| {
            let memory = memory.clone();
            tokio::spawn(async move {
                let mut share = memory.reserve();
                for unit in 1..=8 + i {
                    share.grow(unit * UNIT, 0, STALL).await;
                    tokio::task::yield_now().await;
                }
            })
        });
        for upload in uploads.collect::<Vec<_>>() {
            upload.await.unwrap();
        }
        assert_eq!(memory.units.available_permits(), 16);
        assert_eq!(memory.turn.available_permits(), 1);
        assert_eq!(memory.waiting.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn announcements_reserve_nothing_and_full_memory_leaves_one_turn() {
        let memory = UploadMemory::new(4 * UNIT);
        let (mut first, mut second, mut third) =
            (memory.reserve(), memory.reserve(), memory.reserve());
        assert_eq!(memory.units.available_permits(), 4);
        first.grow(1, 1, STALL).await;
        second.grow(3 * UNIT, 0, STALL).await;
        assert_eq!(memory.units.available_permits(), 0);
        // The memory is full: the third has the turn, the second waits.
        third.grow(9 * UNIT, 0, STALL).await;
        third.grow(99 * UNIT, 0, STALL).await;
        assert!(!is_ready(second.grow(4 * UNIT, 0, STALL)));
        drop(first);
        assert!(is_ready(second.grow(4 * UNIT, 0, STALL)));
    }

    #[tokio::test]
    async fn a_slow_upload_loses_the_turn_once_another_waits() {
        let memory = UploadMemory::new(UNIT);
        let mut full = memory.reserve();
        full.grow(UNIT, 0, STALL).await;
        let mut slow = memory.reserve();
        slow.grow(UNIT, 0, Duration::ZERO).await;
        assert!(!is_ready(slow.overdue()), "no other upload waits");
        assert!(!is_ready(full.overdue()), "without the turn");
        let mut third = memory.reserve();
        let mut waiting = Box::pin(third.grow(UNIT, 0, STALL));
        assert!(!is_ready(waiting.as_mut()));
        slow.overdue().await;
        slow.grow(UNIT + (1 << 20), 1 << 20, STALL).await;
        assert!(!is_ready(slow.overdue()), "bytes of a second add a second");
        drop(slow);
        waiting.await;
        // A new turn has its full time, even while others wait.
        let mut fourth = memory.reserve();
        let waiting = Box::pin(fourth.grow(UNIT, 0, STALL));
        tokio::select! {
            biased;
            () = waiting => panic!("the memory is full"),
            () = third.overdue() => panic!("it has half a minute"),
            () = std::future::ready(()) => {}
        }
    }
}
