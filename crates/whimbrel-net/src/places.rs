//! Limits on connections: of unauthenticated ones in total and per host, of known ones per certificate.
//!
//! A connection counts as unauthenticated from its start until its certificate proves to be a
//! client's, since many clients may share an address. Above a limit the oldest connection is closed: a
//! handshake takes milliseconds, so the oldest is the one that holds its connection open without
//! proceeding, and a client that connects again has lost its older connection.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Open connections, by host or certificate.
pub struct Places<K> {
    held: Mutex<(u64, VecDeque<Connection<K>>)>,
    most: usize,
    most_of_key: usize,
}

struct Connection<K> {
    number: u64,
    key: K,
    evicted: Arc<Notify>,
}

/// The permit of one connection; dropping it gives it back.
pub struct Permit<K: PartialEq> {
    of: Arc<Places<K>>,
    number: u64,
    evicted: Arc<Notify>,
}

impl<K: PartialEq> Places<K> {
    pub fn new(most: usize, most_of_key: usize) -> Arc<Self> {
        Arc::new(Self { held: Mutex::new((0, VecDeque::new())), most, most_of_key })
    }

    /// Admits a connection; above a limit, the oldest of its key, or of all, is evicted.
    pub fn admit(self: &Arc<Self>, key: K) -> Permit<K> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, all) = &mut *held;
        *number += 1;
        let of_key = all.iter().filter(|held| held.key == key).count();
        let oldest = if of_key >= self.most_of_key {
            all.iter().position(|held| held.key == key)
        } else {
            (all.len() >= self.most).then_some(0)
        };
        if let Some(oldest) = oldest.and_then(|at| all.remove(at)) {
            oldest.evicted.notify_one();
        }
        let evicted = Arc::new(Notify::new());
        all.push_back(Connection { number: *number, key, evicted: evicted.clone() });
        Permit { of: self.clone(), number: *number, evicted }
    }
}

impl<K: PartialEq> Permit<K> {
    /// Notified when another connection takes this one's place.
    pub fn evicted(&self) -> Arc<Notify> {
        self.evicted.clone()
    }
}

impl<K: PartialEq> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut held = self.of.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.1.retain(|held| held.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    type Permit = super::Permit<IpAddr>;

    fn is_evicted(permit: &Permit) -> bool {
        use std::future::Future;
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        let evicted = permit.evicted();
        std::pin::pin!(evicted.notified()).as_mut().poll(context).is_ready()
    }

    #[test]
    fn the_oldest_connection_of_a_crowded_host_is_evicted() {
        let open = Places::new(8, 4);
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
