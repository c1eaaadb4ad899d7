//! Frames of the channels' vectors, on both ends.
//!
//! Uploads are compressed in the frame at the vector that their client received. If clients share
//! that vector, the server sums in the frame and inverts once; groups of clients have one sum each;
//! otherwise each upload is inverted when it is absorbed. Exact channels have no frame, so no bit of
//! an exact run depends on frames.

use super::oracle::{End, Framed, MaybeFrame};
use super::{ExchangeKind, Federated, Oracle, Server};
use std::borrow::Cow;
use whimbrel_codec::channel::{Frames, Sharing};
use whimbrel_core::Result;

impl<O: Oracle> Federated<O> {
    /// Whether uploads are compressed in frames, if the oracle has frames.
    pub(super) fn frames_up(&self) -> bool {
        self.terms.compresses_up() && self.terms.downlink.sharing() != Sharing::Unknown
    }

    /// Whether the server inverts each upload on its own.
    pub(super) fn frames_each(&self) -> bool {
        self.frames_up() && self.terms.downlink.sharing() == Sharing::Each
    }

    /// The number of sums of a round's uploads.
    pub(super) fn sums(&self, global: &O::Global) -> usize {
        match self.terms.downlink.sharing() {
            Sharing::Groups(groups) if self.frames_up() && self.moments(global).is_some() => {
                groups as usize
            }
            _ => 1,
        }
    }

    /// Calls `work` with the frames of the published vector.
    pub(super) fn with_frames_down<R>(
        &self,
        moments: Option<&[f64]>,
        work: impl FnOnce(Frames<'_, O::Number>) -> R,
    ) -> R {
        let downlink = &self.terms.downlink;
        match moments {
            Some(moments) if !downlink.is_exact() && downlink.sharing() != Sharing::Unknown => {
                work(Frames::new(&|at| self.oracle.frame(Framed::Published, at, moments)))
            }
            _ => work(Frames::NONE),
        }
    }

    /// The server's data for frames.
    pub(super) fn moments<'a>(&self, global: &'a O::Global) -> Option<&'a [f64]> {
        self.oracle.frame_moments(End::Server(global))
    }

    /// The frame of each sum of the current exchange.
    pub(super) fn frames_of_sums(
        &self,
        server: &Server<O::Global, O::Number>,
    ) -> Result<Vec<MaybeFrame>> {
        let moments = match self.moments(&server.global) {
            Some(moments) if self.frames_up() && !self.frames_each() => moments,
            _ => return Ok(vec![None]),
        };
        let published = self.oracle.published(&server.global, ExchangeKind::Round);
        let at: Vec<Cow<'_, [O::Number]>> = self.with_frames_down(Some(moments), |frames| {
            self.terms.downlink.decoded(&server.down, &published, frames)
        })?;
        at.iter().map(|at| self.oracle.frame(Framed::Value, at, moments)).collect()
    }
}
