//! Frames: the coordinates in which a downlink and its clients' uplinks compress.
//!
//! A difference is compressed in the frame at the memory (or replica) that both ends held before the
//! message. The frames of uploads are those at the states where clients then compute.

use super::{DownRule, DownServer, Downlink, Memories};
use crate::Scalar;
use std::borrow::Cow;
use whimbrel_core::{Frame, Result};

/// A function from a vector that both ends hold to its frame, or no frames.
#[derive(Clone, Copy)]
pub struct Frames<'a, T>(Option<&'a MakeFrame<'a, T>>);

/// The frame at a state, if there is one.
pub type MakeFrame<'a, T> = dyn Fn(&[T]) -> Result<Option<Box<dyn Frame>>> + 'a;

impl<'a, T> Frames<'a, T> {
    /// No frames.
    pub const NONE: Self = Self(None);

    pub fn new(make: &'a MakeFrame<'a, T>) -> Self {
        Self(Some(make))
    }

    /// The frame at a vector.
    pub(super) fn at(&self, held: &[T]) -> Result<Option<Box<dyn Frame>>> {
        self.0.map_or(Ok(None), |make| make(held))
    }

    pub(super) fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

/// Groups of clients that compute at the same vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// This number of groups; client `i` belongs to group `i` modulo the number.
    Groups(u32),
    /// One vector per client, known to the server.
    Each,
    /// One vector per client, unknown to the server.
    Unknown,
}

impl Downlink {
    /// The groups of clients that compute at the same vector.
    pub fn sharing(&self) -> Sharing {
        match self.rule {
            DownRule::Preserved { memories: Memories::Groups(groups), .. } => {
                Sharing::Groups(groups)
            }
            DownRule::Preserved { memories: Memories::PerClient, .. } => Sharing::Each,
            DownRule::Preserved { memories: Memories::Single { .. }, .. } => Sharing::Unknown,
            _ => Sharing::Groups(1),
        }
    }

    /// The state at which each group's clients compute in the current exchange; empty if clients do not
    /// share it.
    pub fn decoded<'a, T: Scalar>(
        &self,
        end: &'a DownServer<T>,
        state: &'a [T],
        frames: Frames<'_, T>,
    ) -> Result<Vec<Cow<'a, [T]>>> {
        let moved = |held: &[T], packet| -> Result<Cow<'a, [T]>> {
            let mut value = self.value(0, packet, frames.at(held)?)?;
            T::axpy(&mut value, 1.0, held);
            Ok(value.into())
        };
        match self.rule {
            DownRule::Exact => Ok(vec![state.into()]),
            DownRule::Ghost => Ok(vec![match &end.ghost {
                Some((base, packet)) => moved(base, packet)?,
                None => state.into(),
            }]),
            _ => {
                let each = end.tracks.iter().map(|track| match &track.pending {
                    Some(packet) => moved(&track.current, packet),
                    None => Ok((&track.current[..]).into()),
                });
                each.collect()
            }
        }
    }
}
