//! Memory for uploads, taken as their bytes arrive.
//!
//! An announcement takes nothing: a client that announces much and sends little holds little. So
//! several uploads, none of them whole, can fill the room together, and each would wait for the
//! others. What resolves that is one *turn*: an upload that finds no room queues for room and for
//! the turn, and whose turn it is goes on beyond the room until its upload is whole and folded.
//!
//! No upload waits for ever. The one that holds the turn waits for no memory, only for its own
//! client, and that has a limit: once it has fallen behind `TURN_BYTES_PER_SECOND_MIN` by some
//! time, it is overdue as soon as somebody else waits. So the turn comes back, and the queue for it
//! is first come, first served. Uploads under way take no more memory than the room and one
//! message; what a method keeps of those that have come is its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// Bytes per unit of room.
const UNIT: u64 = 4096;

/// How fast an upload must come that has the turn while others wait for it.
const TURN_BYTES_PER_SECOND_MIN: f64 = 1048576.0;

/// The memory that all uploads share.
pub struct Room {
    units: Arc<Semaphore>,
    units_max: u64,
    turn: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Told when somebody begins to wait.
    crowded: Notify,
}

/// What one upload holds of it; dropped once the upload is folded.
pub struct Share {
    room: Arc<Room>,
    held: Option<OwnedSemaphorePermit>,
    turn: Option<Turn>,
}

/// The right to go on without room.
struct Turn {
    _permit: OwnedSemaphorePermit,
    due: Instant,
}

impl Room {
    /// Room for this number of bytes.
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

    /// A share that holds nothing yet.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { room: self.clone(), held: None, turn: None }
    }
}

impl Share {
    /// Waits until it may hold `bytes` in all, `arrived` of which have just come. Where it is
    /// given the turn for that, it may fall behind the turn's pace by `behind`.
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
        // What cannot fit does not queue for room, where it would keep others from it.
        let fits = units <= self.room.units_max;
        let more = (units - held).min(u64::from(u32::MAX)) as u32;
        if fits && let Ok(permit) = self.room.units.clone().try_acquire_many_owned(more) {
            return self.add(permit);
        }
        let waiting = Waiting::new(self.room.clone());
        tokio::select! {
            biased;
            Ok(permit) = self.room.units.clone().acquire_many_owned(more), if fits => {
                self.add(permit);
            }
            Ok(permit) = self.room.turn.clone().acquire_owned() => {
                self.turn = Some(Turn { _permit: permit, due: Instant::now() + behind });
            }
        }
        drop(waiting);
    }

    /// Ends when it has had the turn for too long while others wait; never, where it has not.
    pub async fn overdue(&self) {
        let Some(turn) = &self.turn else { return std::future::pending().await };
        sleep_until(turn.due).await;
        loop {
            let crowded = self.room.crowded.notified();
            if self.room.waiting.load(Ordering::SeqCst) > 0 {
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

/// Counts somebody who waits.
struct Waiting(Arc<Room>);

impl Waiting {
    fn new(room: Arc<Room>) -> Self {
        room.waiting.fetch_add(1, Ordering::SeqCst);
        room.crowded.notify_waiters();
        Self(room)
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

    /// Twenty uploads, each of half the room or more, that grow side by side.
    #[tokio::test]
    async fn uploads_that_fill_the_room_together_all_become_whole() {
        let room = Room::new(16 * UNIT);
        let uploads = (0..20).map(|i| {
            let room = room.clone();
            tokio::spawn(async move {
                let mut share = room.share();
                for unit in 1..=8 + i {
                    share.grow(unit * UNIT, 0, STALL).await;
                    tokio::task::yield_now().await;
                }
            })
        });
        for upload in uploads.collect::<Vec<_>>() {
            upload.await.unwrap();
        }
        assert_eq!(room.units.available_permits(), 16);
        assert_eq!(room.turn.available_permits(), 1);
        assert_eq!(room.waiting.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn an_announcement_holds_nothing_and_a_full_room_leaves_one_turn() {
        let room = Room::new(4 * UNIT);
        let (mut first, mut second, mut third) = (room.share(), room.share(), room.share());
        assert_eq!(room.units.available_permits(), 4);
        first.grow(1, 1, STALL).await;
        second.grow(3 * UNIT, 0, STALL).await;
        assert_eq!(room.units.available_permits(), 0);
        // The room is full: the third has the turn, and the second waits for it or for room.
        third.grow(9 * UNIT, 0, STALL).await;
        third.grow(99 * UNIT, 0, STALL).await;
        assert!(!is_ready(second.grow(4 * UNIT, 0, STALL)));
        drop(first);
        assert!(is_ready(second.grow(4 * UNIT, 0, STALL)));
    }

    #[tokio::test]
    async fn the_turn_is_taken_from_the_slow_once_somebody_waits() {
        let room = Room::new(UNIT);
        let mut full = room.share();
        full.grow(UNIT, 0, STALL).await;
        let mut slow = room.share();
        slow.grow(UNIT, 0, Duration::ZERO).await;
        assert!(!is_ready(slow.overdue()), "no other upload waits");
        assert!(!is_ready(full.overdue()), "it has no turn");
        let mut third = room.share();
        let mut waiting = Box::pin(third.grow(UNIT, 0, STALL));
        assert!(!is_ready(waiting.as_mut()));
        slow.overdue().await;
        slow.grow(UNIT + (1 << 20), 1 << 20, STALL).await;
        assert!(!is_ready(slow.overdue()), "a second's bytes give it a second");
        drop(slow);
        waiting.await;
        // With the turn it has its time again, even while others wait.
        let mut fourth = room.share();
        let waiting = Box::pin(fourth.grow(UNIT, 0, STALL));
        tokio::select! {
            biased;
            () = waiting => panic!("there is no room"),
            () = third.overdue() => panic!("it has half a minute"),
            () = std::future::ready(()) => {}
        }
    }
}
