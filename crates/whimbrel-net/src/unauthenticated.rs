//! Limits on unauthenticated connections, per host and in total.
//!
//! A connection counts from its start until its certificate proves to be a client's, since many
//! clients may share an address. Above a limit the oldest connection is closed: a handshake takes
//! milliseconds, so the oldest is the one that holds its connection open without proceeding.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// The open unauthenticated connections.
pub struct Unauthenticated {
    held: Mutex<(u64, VecDeque<Connection>)>,
    most: usize,
    most_of_host: usize,
}

struct Connection {
    number: u64,
    host: IpAddr,
    evicted: Arc<Notify>,
}

/// The permit of one unauthenticated connection; dropping it gives it back.
pub struct Permit {
    of: Arc<Unauthenticated>,
    number: u64,
    evicted: Arc<Notify>,
}

impl Unauthenticated {
    /// Half of all connections may be unauthenticated, and half of those from one host.
    pub fn new(connections: usize) -> Arc<Self> {
        let most = (connections / 2).max(2);
        Arc::new(Self { held: Mutex::default(), most, most_of_host: most / 2 })
    }

    /// Admits a connection; above a limit, the oldest of its host, or of all, is evicted.
    pub fn admit(self: &Arc<Self>, host: IpAddr) -> Permit {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, all) = &mut *held;
        *number += 1;
        let of_host = all.iter().filter(|held| held.host == host).count();
        let oldest = if of_host >= self.most_of_host {
            all.iter().position(|held| held.host == host)
        } else {
            (all.len() >= self.most).then_some(0)
        };
        if let Some(oldest) = oldest.and_then(|at| all.remove(at)) {
            oldest.evicted.notify_one();
        }
        let evicted = Arc::new(Notify::new());
        all.push_back(Connection { number: *number, host, evicted: evicted.clone() });
        Permit { of: self.clone(), number: *number, evicted }
    }
}

impl Permit {
    /// Notified when another connection takes this one's place.
    pub fn evicted(&self) -> Arc<Notify> {
        self.evicted.clone()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut held = self.of.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.1.retain(|held| held.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(permit: &Permit) -> bool {
        use std::future::Future;
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        let evicted = permit.evicted();
        std::pin::pin!(evicted.notified()).as_mut().poll(context).is_ready()
    }

    #[test]
    fn the_oldest_connection_of_a_crowded_host_is_evicted() {
        let open = Unauthenticated::new(16);
        let (near, far) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let other = open.admit(far);
        let mut permits: Vec<Permit> = (0..4).map(|_| open.admit(near)).collect();
        assert!(!is_evicted(&permits[0]) && !is_evicted(&other));
        permits.push(open.admit(near));
        assert!(is_evicted(&permits[0]) && !is_evicted(&permits[1]) && !is_evicted(&other));
        // Authenticated connections give their permits back.
        drop(permits);
        let permits: Vec<Permit> = (0..4).map(|_| open.admit(near)).collect();
        assert!(!permits.iter().any(is_evicted));
        // Many hosts reach the total limit: the oldest of all is evicted.
        let many: Vec<Permit> = (3..7).map(|n| open.admit([127, 0, 0, n].into())).collect();
        assert!(is_evicted(&other) && !many.iter().any(is_evicted));
    }
}
