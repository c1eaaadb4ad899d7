//! Limits on unauthenticated connections, per host and in total; the oldest is closed first.
//!
//! Many clients may share an address, so that only connections count whose certificate belongs to no
//! client, and everyone's until its handshake is over. Where there is no room the oldest is closed: a
//! handshake takes milliseconds, and who holds a connection open and says nothing is the oldest.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Who is connected and not known.
pub struct Strangers {
    held: Mutex<(u64, VecDeque<Held>)>,
    most: usize,
    most_of_host: usize,
}

struct Held {
    number: u64,
    host: IpAddr,
    leave: Arc<Notify>,
}

/// A stranger's place; given back when it is dropped.
pub struct Place {
    of: Arc<Strangers>,
    number: u64,
    leave: Arc<Notify>,
}

impl Strangers {
    /// Half of all connections may be unauthenticated, and half of those from one host.
    pub fn new(connections: usize) -> Arc<Self> {
        let most = (connections / 2).max(2);
        Arc::new(Self { held: Mutex::default(), most, most_of_host: most / 2 })
    }

    /// Admits a connection; above a limit, the oldest of its host, or of all, is closed.
    pub fn enter(self: &Arc<Self>, host: IpAddr) -> Place {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, all) = &mut *held;
        *number += 1;
        let of_host = all.iter().filter(|held| held.host == host).count();
        let oldest = match of_host >= self.most_of_host {
            true => all.iter().position(|held| held.host == host),
            false => (all.len() >= self.most).then_some(0),
        };
        if let Some(oldest) = oldest.and_then(|at| all.remove(at)) {
            oldest.leave.notify_one();
        }
        let leave = Arc::new(Notify::new());
        all.push_back(Held { number: *number, host, leave: leave.clone() });
        Place { of: self.clone(), number: *number, leave }
    }
}

impl Place {
    /// Notified when the place is needed for another.
    pub fn leave(&self) -> Arc<Notify> {
        self.leave.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.of.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.1.retain(|held| held.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_to_leave(place: &Place) -> bool {
        use std::future::Future;
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        let leave = place.leave();
        std::pin::pin!(leave.notified()).as_mut().poll(context).is_ready()
    }

    #[test]
    fn the_oldest_of_a_crowded_host_gives_way_and_nobody_elses() {
        let strangers = Strangers::new(16);
        let (near, far) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let other = strangers.enter(far);
        let mut places: Vec<Place> = (0..4).map(|_| strangers.enter(near)).collect();
        assert!(!has_to_leave(&places[0]) && !has_to_leave(&other));
        places.push(strangers.enter(near));
        assert!(has_to_leave(&places[0]) && !has_to_leave(&places[1]) && !has_to_leave(&other));
        // Who is known gives its place back.
        drop(places);
        let places: Vec<Place> = (0..4).map(|_| strangers.enter(near)).collect();
        assert!(!places.iter().any(has_to_leave));
        // From many hosts there are as many as from all: the oldest of all gives way.
        let many: Vec<Place> = (3..7).map(|n| strangers.enter([127, 0, 0, n].into())).collect();
        assert!(has_to_leave(&other) && !many.iter().any(has_to_leave));
    }
}
