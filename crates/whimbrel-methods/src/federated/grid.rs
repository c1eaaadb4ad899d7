//! Uploads on a shared grid: their part of messages, their sums, and the grid of the next round.

use super::method::DownOf;
use super::state::{Fold, Peer, Server, Up};
use super::{ExchangeKind, Federated, Judge, aggregate};
use crate::masked::Sums;
use whimbrel_codec::channel::GridNote;
use whimbrel_codec::grid::{BLOCK, pack};
use whimbrel_core::method::{Disclosure, Evaluate, Metric, Sender};
use whimbrel_core::{Error, Result, Segment, Wire, vector};

/// Uploads on a grid are words, and under a smallest group one more with the number of withheld blocks.
impl<O: Judge> Sums for Federated<O> {
    fn shape(&self, fold: &Fold) -> Result<Vec<(u32, usize)>> {
        let grid = self.uplink().grid();
        let grid = grid.ok_or_else(|| Error::config("uploads without a grid are not words"))?;
        let mut shape = grid.shape(self.uplink().dimension(), fold.kind != ExchangeKind::Round);
        shape.extend(self.terms.privacy.min_group.map(|_| (64, 1)));
        Ok(shape)
    }

    fn words(&self, up: &Up) -> Result<Vec<Segment>> {
        let mut words = self.uplink().segments(&up.packet, up.kind != ExchangeKind::Round)?;
        let withheld = || Segment { width: 64, words: vec![u64::from(up.withheld)] };
        words.extend(self.terms.privacy.min_group.map(|_| withheld()));
        Ok(words)
    }

    /// Everything but the client's own weight, which it knows.
    fn common(&self, down: &DownOf<O>) -> Result<Vec<u8>> {
        let mut common = (down.kind, down.uplink).to_bytes();
        if let Some(note) = &down.note {
            note.put(&mut common);
        }
        down.private.put(&mut common);
        down.grid.put(&mut common);
        down.state.put(&mut common);
        Ok(common)
    }

    fn absorb_sender(
        &self,
        fold: &mut Fold,
        from: Sender<'_, Peer<O::Record, O::Number>>,
    ) -> Result<()> {
        let at = from.peer.down.id() as usize % fold.up.len();
        self.uplink().absorb_sender(&mut fold.up[at], from.peer.weight)?;
        self.note_sender(fold, from.peer)
    }

    fn absorb_words(&self, fold: &mut Fold, mut sum: &[Segment]) -> Result<()> {
        if self.terms.privacy.min_group.is_some() {
            let (count, rest) = sum.split_last().ok_or_else(|| Error::peer("an empty sum"))?;
            let count = count.words.first().and_then(|count| u32::try_from(*count).ok());
            let count =
                count.ok_or_else(|| Error::peer("an impossible number of withheld blocks"))?;
            (fold.withheld, sum) = (u64::from(count), rest);
        }
        match &mut fold.up[..] {
            [all] => self.uplink().absorb_words(all, &pack(sum)),
            _ => Err(Error::internal(
                "one integer sum for several groups of clients, which need one each",
            )),
        }
    }

    fn judged_len(&self) -> usize {
        self.addends_len()
    }

    fn judge(&self, client: &Self::Client, ask: &O::Ask, data: &Self::Data) -> Result<Vec<f64>> {
        let answer = self.answer(client, ask, data)?;
        self.addends(self.terms.weights.of_rows(answer.rows), &answer)
    }

    fn judged(&self, server: &Self::Server, sums: &[f64]) -> Result<Vec<Metric>> {
        self.conclude_sums(server, sums, &[])
    }
}

impl<O: Judge> Federated<O> {
    /// Adds an upload on a grid.
    pub(super) fn absorb_on_grid(
        &self,
        fold: &mut Fold,
        from: Sender<'_, Peer<O::Record, O::Number>>,
        up: &Up,
    ) -> Result<()> {
        let at = from.peer.down.id() as usize % fold.up.len();
        self.uplink().absorb_on_grid(&mut fold.up[at], &up.packet, from.peer.weight)?;
        fold.withheld += u64::from(up.withheld);
        self.note_sender(fold, from.peer)
    }

    /// The disclosure of the lanes of a grid.
    pub(super) fn lanes(&self) -> Option<Disclosure> {
        self.uplink().grid()?;
        let meaning = match &self.terms.privacy.release {
            // The noise has a fixed scale.
            Some(_) => "each round: two zeros for every 1,024 of these numbers",
            None => {
                "each round: for every 1,024 of these numbers, the sum of their squares, and how many of \
                 them had to be cut off"
            }
        };
        Some(aggregate("up", meaning, 16 * self.uplink().dimension().div_ceil(BLOCK)))
    }

    /// The grid's part of a message to a client; `None` without a grid.
    pub(super) fn grid_note(
        &self,
        server: &Server<O::Global, O::Number>,
        peer: &Peer<O::Record, O::Number>,
    ) -> Result<Option<GridNote>> {
        let (id, opening) = (peer.down.id(), server.kind != ExchangeKind::Round);
        self.uplink().grid_note(&server.up, id, (server.total, server.clients), opening)
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
