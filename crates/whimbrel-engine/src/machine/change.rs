//! What one exchange changed of a machine: for a store that keeps every exchange and does not
//! want to write every client's record each time.

use super::{Machine, Saved};
use whimbrel_core::{ClientId, Error, Part, Result, wire};

/// The server's state after an exchange, and the records that moved.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    exchange: u32,
    round: u32,
    start_magnitude: f64,
    server: Vec<u8>,
    peers: Vec<(ClientId, Vec<u8>)>,
}

wire!(Change { exchange, round, start_magnitude, server, peers });

impl Machine<'_> {
    /// What the last exchange changed, where these are the clients that joined before it or whose
    /// upload it accepted.
    pub fn change(&self, moved: impl IntoIterator<Item = ClientId>) -> Result<Change> {
        let peers = moved.into_iter().map(|id| {
            let peer = self.peer(id).ok_or_else(|| {
                Error::internal(format!("client {id} moved and was never admitted"))
            })?;
            Ok((id, self.method.save(Part::Peer, peer)?))
        });
        Ok(Change {
            exchange: self.exchange,
            round: self.round,
            start_magnitude: self.start_magnitude,
            server: self.method.save(Part::Server, &self.server)?,
            peers: peers.collect::<Result<_>>()?,
        })
    }
}

impl Saved {
    /// The machine one exchange later.
    pub fn apply(&mut self, change: Change) -> Result<()> {
        if change.exchange != self.exchange + 1 {
            return Err(Error::storage(
                "journal",
                format!("exchange {} is followed by {}", self.exchange, change.exchange),
            ));
        }
        for (id, peer) in change.peers {
            let at = id.0 as usize;
            // A client joins with the next id, or with one that was kept for it.
            if at > self.peers.len() + IDS_AHEAD_MAX {
                return Err(Error::storage("journal", format!("{id} is no client's id")));
            }
            if self.peers.len() <= at {
                self.peers.resize(at + 1, None);
            }
            self.peers[at] = Some(peer);
        }
        self.exchange = change.exchange;
        self.round = change.round;
        self.start_magnitude = change.start_magnitude;
        self.server = change.server;
        Ok(())
    }
}

/// No federation keeps more ids free than this: a damaged record must not take all memory.
const IDS_AHEAD_MAX: usize = 10_000_000;
