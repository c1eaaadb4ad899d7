//! Uploads on a shared grid: their part of messages, their sums, and the grid of the next round.

use super::method::DownOf;
use super::state::{Fold, Peer, Server, Up};
use super::{ExchangeKind, Federated, Oracle, aggregate};
use whimbrel_codec::channel::{GridMember, GridNote};
use whimbrel_codec::grid::BLOCK;
use whimbrel_core::method::{Disclosure, Sender};
use whimbrel_core::{Error, Result, Wire, vector};

impl<O: Oracle> Federated<O> {
    /// Adds the sum of the uploads of all senders, one upload on a grid.
    pub(super) fn absorb_on_grid(
        &self,
        fold: &mut Fold,
        senders: &[Sender<'_, Peer<O::Record, O::Number>>],
        up: &Up,
    ) -> Result<()> {
        let Some(first) = senders.first() else { return Ok(()) };
        let groups = fold.up.len();
        let group =
            |from: &Sender<'_, Peer<O::Record, O::Number>>| from.peer.down.id() as usize % groups;
        let at = group(first);
        if up.kind != fold.kind || senders.iter().any(|from| group(from) != at) {
            return Err(Error::peer(format!(
                "client {} is part of a sum of another exchange or group",
                first.id
            )));
        }
        let weight = senders.iter().map(|from| from.peer.weight).sum();
        let count = senders.len() as u32;
        self.uplink().absorb_sum(&mut fold.up[at], &up.packet, count, weight)?;
        senders.iter().try_for_each(|from| self.note_sender(fold, from.peer))
    }

    /// Kind, note, grid and state of a message. Weights and frames differ between clients.
    pub(super) fn common_part(&self, down: &DownOf<O>) -> Result<Vec<u8>> {
        let mut common = (down.kind, down.uplink).to_bytes();
        if let Some(note) = &down.note {
            note.put(&mut common);
        }
        if let Some(grid) = &down.grid {
            (grid.cap, grid.exponents.clone()).put(&mut common);
        }
        down.state.get()?.put(&mut common);
        Ok(common)
    }

    /// The disclosure of the lanes of a grid.
    pub(super) fn lanes(&self) -> Option<Disclosure> {
        self.uplink().grid()?;
        let meaning = "each round: the sum of squares of its upload and its number of clips, for every \
                       1,024 coordinates";
        Some(aggregate("up", meaning, 16 * self.uplink().dimension().div_ceil(BLOCK)))
    }

    /// The grid's part of a message to a client; `None` without a grid.
    pub(super) fn grid_note(
        &self,
        server: &Server<O::Global, O::Number>,
        peer: &Peer<O::Record, O::Number>,
    ) -> Result<Option<GridNote>> {
        let (id, weight) = (peer.down.id(), peer.weight);
        let member = GridMember { id, weight, total: server.total, enrolled: server.clients };
        self.uplink().grid_note(&server.up, &member, server.kind != ExchangeKind::Round)
    }

    /// Moves the grid after a step from `before`.
    pub(super) fn follow(
        &self,
        server: &mut Server<O::Global, O::Number>,
        before: &O::Global,
        fold: &Fold,
    ) -> Result<()> {
        let mut moved = self.oracle.moved(before, &server.global);
        let mut memory = server.up.memory_sum.clone();
        vector::scale(&mut memory, 1.0 / server.total);
        if let Some(Some(frame)) = self.frames_of_sums(server)?.first() {
            frame.forward(&mut moved);
            if !memory.is_empty() {
                frame.forward(&mut memory);
            }
        }
        self.uplink().follow(&mut server.up, &fold.up, server.clients, moved, &memory);
        Ok(())
    }
}
