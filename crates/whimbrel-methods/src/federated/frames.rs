//! Frames of the channels' vectors, on both ends.
//!
//! Uploads are compressed in the frame at what their client computed at. Where clients share that, the
//! server sums in the frame and inverts once; groups have a sum each; else each upload is inverted when
//! it is absorbed. Exact channels take no frame, so no bit of an exact run depends on them.

use super::{Federated, Oracle, Peer, Server};
use std::borrow::Cow;
use whimbrel_codec::channel::{Frames, Sharing};
use whimbrel_core::{Frame, Result};

impl<O: Oracle> Federated<O> {
    /// Whether uploads are compressed in frames.
    pub(super) fn frames_up(&self) -> bool {
        self.oracle.framed().is_some()
            && self.terms.compresses_up()
            && self.terms.downlink.sharing() != Sharing::Unknown
    }

    /// Whether the server inverts each upload on its own.
    pub(super) fn frames_each(&self) -> bool {
        self.frames_up() && self.terms.downlink.sharing() == Sharing::Each
    }

    /// How many sums the uploads of a round need.
    pub(super) fn sums(&self) -> usize {
        match self.terms.downlink.sharing() {
            Sharing::Groups(groups) if self.frames_up() => groups as usize,
            _ => 1,
        }
    }

    /// The sum that a client's upload belongs to.
    pub(super) fn sum_of(&self, peer: &Peer<O::Record, O::Number>) -> usize {
        peer.down.id() as usize % self.sums()
    }

    /// Calls `work` with the frames of what goes down.
    pub(super) fn with_frames_down<R>(
        &self,
        moments: &[f64],
        work: impl FnOnce(Frames<'_, O::Number>) -> R,
    ) -> R {
        let downlink = &self.terms.downlink;
        match self.oracle.framed() {
            Some(framed) if !downlink.is_exact() && downlink.sharing() != Sharing::Unknown => {
                work(Frames::new(&|held| framed.published_frame(held, moments)))
            }
            _ => work(Frames::NONE),
        }
    }

    /// The frame of clients' values at a vector, where there are frames.
    pub(super) fn frame(
        &self,
        at: &[O::Number],
        moments: &[f64],
    ) -> Result<Option<Box<dyn Frame>>> {
        self.oracle.framed().map_or(Ok(None), |framed| framed.frame(at, moments))
    }

    /// What frames need beside the vector, on the server.
    pub(super) fn moments<'a>(&self, global: &'a O::Global) -> &'a [f64] {
        self.oracle.framed().map_or(&[], |framed| framed.server_moments(global))
    }

    /// The frame of each sum of the exchange under way.
    pub(super) fn frames_of_sums(
        &self,
        server: &Server<O::Global, O::Number>,
    ) -> Result<Vec<Option<Box<dyn Frame>>>> {
        if !self.frames_up() || self.frames_each() {
            return Ok(vec![None]);
        }
        let published = self.oracle.published(&server.global);
        let moments = self.moments(&server.global);
        let at: Vec<Cow<'_, [O::Number]>> = self.with_frames_down(moments, |frames| {
            self.terms.downlink.decoded(&server.down, &published, frames)
        })?;
        at.iter().map(|at| self.frame(at, moments)).collect()
    }
}
