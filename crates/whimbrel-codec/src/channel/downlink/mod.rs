//! The downlink: from the server to the clients.
//!
//! The server holds a state `w`; a client computes at `ŵ_i`. Per rule:
//!
//! | rule | message | the client computes at | the server continues with |
//! |---|---|---|---|
//! | exact | `w` | `w` | `w` |
//! | degraded | `q = C(w − w_held + c E)`, `E = v − q` with feedback | `w_held + q` | the same |
//! | detached | `q = C(w − w_previous)` | its replica `+ q` | `w` |
//! | preserved | `q = C(w − H)`, then `H += alpha q` on both ends | `H + q` | `w` |
//! | ghost | `w_previous` and `q = C(w − w_previous)` | `w_previous + q` | `w` |
//!
//! Preserved memories are common to all clients (MCM), to a group (Rand-MCM-G), or per client (Rand-MCM);
//! a single memory keeps the mean of the clients' memories on the server, with a periodic reset.
//!
//! A client that missed messages receives them, or the whole state if that is shorter; first contact is
//! the same case. A shared or group memory advances in rounds in which the upload of one of its clients
//! was accepted, a client's own memory when its own upload was: both ends always agree.

mod compress;
mod ends;
mod frames;
mod message;
mod rule;
mod track;

use crate::channel::blocks::Blocks;
pub use ends::{DownClient, DownFold, DownPeer, DownServer, Spread};
pub use frames::{Frames, Sharing};
pub use message::{DownMessage, SharedMessages};
pub use rule::{DownRule, Feedback, Memories, Reset};
pub use track::Track;

use crate::{Codec, Scalar};
use compress::{add_wide, difference};
use ends::{Single, spread};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{ClientId, Error, Key, Result, Shared, vector};

/// A downlink channel for vectors of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Downlink {
    /// The default codec, then those of individual clients.
    codecs: Vec<Codec>,
    /// The memory step of each codec.
    alphas: Vec<f64>,
    /// Codec indices of clients that do not use the default, by id.
    own: BTreeMap<u32, u8>,
    rule: DownRule,
    dimension: usize,
    blocks: Blocks,
}

impl Downlink {
    /// The uncompressed state, at native width.
    pub fn exact(dimension: usize) -> Self {
        let (codecs, alphas) = (vec![Codec::Exact], vec![1.0]);
        let blocks = Blocks::whole(dimension);
        Self { codecs, alphas, own: BTreeMap::new(), rule: DownRule::Exact, dimension, blocks }
    }

    /// Checks that rule and codec are compatible. The codec `exact` makes every rule exact; `exact-f32`
    /// does not, since it rounds the differences that the rule sends. Memory steps known to diverge need
    /// `allow_divergence`.
    pub fn new(
        codec: Codec,
        rule: DownRule,
        dimension: usize,
        allow_divergence: bool,
    ) -> Result<Self> {
        if codec == Codec::ExactF32 && rule == DownRule::Exact {
            return Err(Error::config(
                "an exact downlink sends whole states at native width, so exact-f32 would not be honoured",
            )
            .hint("use a rule that sends differences: their rounding errors vanish with them"));
        }
        if codec == Codec::Exact || rule == DownRule::Exact {
            return Ok(Self::exact(dimension));
        }
        if matches!(codec, Codec::Grid(_)) {
            return Err(Error::config("a grid is for uplinks")
                .hint("use another codec in [downlink], such as \"dithering\""));
        }
        let contracts = matches!(rule, DownRule::Degraded { feedback: Feedback::Contractive });
        if !codec.is_unbiased() && !contracts {
            return Err(Error::config(format!(
                "{} is biased, so on this downlink its error would never average out",
                codec.name()
            ))
            .hint("use an unbiased codec, or rule = \"degraded\" with feedback = true"));
        }
        if let DownRule::Preserved { alpha, .. } = rule {
            let inside = alpha > 0.0 && alpha < 1.0;
            if !inside && !(allow_divergence && (alpha == 0.0 || alpha == 1.0)) {
                return Err(Error::config(format!(
                    "a downlink memory with alpha = {alpha} does not converge: at 0 it never moves, at 1 it carries all compression noise on"
                ))
                .hint("alpha = \"auto\" is 1/(2(1 + omega)); allow_divergence = true runs 0 and 1 all the same"));
            }
        }
        if matches!(rule, DownRule::Preserved { memories: Memories::Groups(0), .. }) {
            return Err(Error::config("a downlink needs at least one group"));
        }
        let alphas = vec![alpha_of(&rule)];
        let (codecs, blocks) = (vec![codec], Blocks::whole(dimension));
        Ok(Self { codecs, alphas, own: BTreeMap::new(), rule, dimension, blocks })
    }

    /// Compresses blocks of these lengths one by one, each with its own norm; they must fill the vector.
    pub fn with_blocks(mut self, blocks: &[usize]) -> Result<Self> {
        self.blocks = Blocks::new(blocks, self.dimension)?;
        Ok(self)
    }

    /// Sets the codec and the memory step of one client.
    pub fn with_own(mut self, id: ClientId, codec: Codec, alpha: f64) -> Result<Self> {
        if !matches!(self.rule, DownRule::Preserved { memories: Memories::PerClient, .. }) {
            return Err(Error::config("a downlink codec per client needs a memory per client")
                .hint("set memories = \"per-client\" in [downlink]"));
        }
        if !codec.is_unbiased() {
            return Err(Error::config(format!("{} is biased", codec.name())));
        }
        if !(alpha > 0.0 && alpha < 1.0) {
            return Err(Error::config(format!("alpha = {alpha} is not between 0 and 1")));
        }
        let same = |(c, a): (&Codec, &f64)| *c == codec && *a == alpha;
        let at = self.codecs.iter().zip(&self.alphas).position(same).unwrap_or_else(|| {
            self.codecs.push(codec.clone());
            self.alphas.push(alpha);
            self.codecs.len() - 1
        });
        let at = u8::try_from(at).map_err(|_| Error::config("more than 255 different codecs"))?;
        self.own.insert(id.0, at);
        Ok(self)
    }

    pub fn rule(&self) -> &DownRule {
        &self.rule
    }

    /// The default codec.
    pub fn codec(&self) -> &Codec {
        &self.codecs[0]
    }

    /// Whether clients compute at the server's exact state.
    pub fn is_exact(&self) -> bool {
        self.rule == DownRule::Exact
    }

    /// Whether the server replaces its state by the one that clients decode.
    pub fn replaces_state(&self) -> bool {
        matches!(self.rule, DownRule::Degraded { .. })
    }

    /// Whether the server keeps the mean of the clients' memories.
    fn has_single(&self) -> bool {
        matches!(self.rule, DownRule::Preserved { memories: Memories::Single { .. }, .. })
    }

    /// The codec's variance constant on this channel.
    pub fn omega(&self) -> Option<f64> {
        self.blocks.omega(self.codec())
    }

    /// Numbers stored on the server per client.
    pub fn numbers_per_client(&self) -> usize {
        match self.rule {
            DownRule::Preserved { memories: Memories::PerClient, .. } => self.dimension,
            _ => 0,
        }
    }

    /// Numbers stored on the server for group memories, whose recent messages take as much again; 0 for a
    /// single group, whose memory is as large as the state.
    pub fn numbers_per_group(&self) -> usize {
        match self.rule {
            DownRule::Preserved { memories: Memories::Groups(groups), .. } if groups > 1 => {
                groups as usize * self.dimension
            }
            _ => 0,
        }
    }

    /// Rounds between resets of the clients' memories; `None` without resets.
    pub fn reset_rounds(&self) -> Option<u32> {
        match self.rule {
            DownRule::Preserved { memories: Memories::Single { reset }, .. } => match reset {
                Reset::Auto => Some((4.0 * (self.dimension as f64).sqrt()).round() as u32),
                Reset::Every(rounds) => Some(rounds),
                Reset::Never => None,
            },
            _ => None,
        }
    }

    /// The server's end for an initial state.
    pub fn server<T: Scalar>(&self, state: &[T]) -> DownServer<T> {
        let tracks = match self.rule {
            DownRule::Degraded { .. } | DownRule::Detached => 1,
            DownRule::Preserved { memories: Memories::Groups(groups), .. } => groups,
            _ => 0,
        };
        let keeps_previous = matches!(self.rule, DownRule::Detached | DownRule::Ghost);
        DownServer {
            key: Key::root(0),
            tracks: (0..tracks).map(|_| Track::new(state)).collect(),
            error: Vec::new(),
            previous: if keeps_previous { state.to_vec() } else { Vec::new() },
            ghost: None,
            ghost_spread: None,
            single: self.has_single().then(|| Single {
                sum: vec![0.0; state.len()],
                clients: 0.0,
                reset_to: state.to_vec(),
                resets: 0,
                rounds: 0,
            }),
        }
    }

    /// Restarts from a state: clients stay enrolled and receive the whole state next.
    pub fn restart<T: Scalar>(&self, end: &mut DownServer<T>, state: &[T]) {
        let clients = end.single.as_ref().map_or(0.0, |single| single.clients);
        *end = self.server(state);
        if let Some(single) = &mut end.single {
            single.clients = clients;
            add_wide(&mut single.sum, clients, state);
        }
    }

    /// Admits a client: updates the server's end and returns the client's record.
    pub fn admit<T: Scalar>(&self, end: &mut DownServer<T>, id: ClientId) -> DownPeer<T> {
        if let Some(single) = &mut end.single {
            // A new client starts from the last reset.
            single.clients += 1.0;
            add_wide(&mut single.sum, 1.0, &single.reset_to);
        }
        DownPeer { id: id.0, ..DownPeer::default() }
    }

    pub fn client<T: Scalar>(&self) -> DownClient<T> {
        DownClient::default()
    }

    /// An empty fold.
    pub fn fold(&self) -> DownFold {
        DownFold {
            groups: Vec::new(),
            sent: ExactSum::new(if self.has_single() { self.dimension } else { 0 }),
            spread: ExactSum::new(2),
            spread_count: 0,
            memory_count: 0,
            count: 0,
        }
    }

    /// Records that a client's upload was accepted; `peer` is the record staged for it.
    pub fn absorb<T: Scalar>(&self, fold: &mut DownFold, peer: &DownPeer<T>) -> Result<()> {
        if self.is_exact() {
            return Ok(());
        }
        if let DownRule::Preserved { memories: Memories::Groups(groups), .. } = self.rule {
            let group = peer.id % groups;
            if let Err(at) = fold.groups.binary_search(&group) {
                fold.groups.insert(at, group);
            }
        }
        if let (Some(packet), true) = (&peer.sent, !fold.sent.is_empty()) {
            let value = self.value(self.index(peer.id), packet, None)?;
            T::add_to(&mut fold.sent, &value, 1.0)?;
        }
        if let Some(Spread { local2, memory2 }) = peer.spread {
            fold.spread.add(&[local2, memory2.unwrap_or(0.0)], 1.0)?;
            fold.spread_count += 1;
            fold.memory_count += u32::from(memory2.is_some());
        }
        fold.count += 1;
        Ok(())
    }

    /// Adds another fold.
    pub fn merge(&self, fold: &mut DownFold, other: &DownFold) -> Result<()> {
        if fold.groups != other.groups {
            let union: BTreeSet<u32> = fold.groups.iter().chain(&other.groups).copied().collect();
            fold.groups = union.into_iter().collect();
        }
        fold.sent.merge(&other.sent)?;
        fold.spread.merge(&other.spread)?;
        fold.spread_count += other.spread_count;
        fold.memory_count += other.memory_count;
        fold.count += other.count;
        Ok(())
    }

    /// The mean distances of the round's clients from the server's state, if known.
    pub fn spread(&self, fold: &DownFold) -> Option<Spread> {
        let sums = fold.spread.value();
        let mean = |sum: f64, n: u32| (n > 0).then(|| sum / f64::from(n));
        let local2 = mean(sums[0], fold.spread_count)?;
        Some(Spread { local2, memory2: mean(sums[1], fold.memory_count) })
    }

    /// Publishes a state, once per server step; `fold` holds the accepted uploads of the last messages.
    /// Returns the state that the server must continue with.
    pub fn publish<T: Scalar>(
        &self,
        end: &mut DownServer<T>,
        state: Vec<T>,
        fold: &DownFold,
        frames: Frames<'_, T>,
        key: Key,
    ) -> Result<Vec<T>> {
        end.key = key;
        match self.rule {
            DownRule::Exact => Ok(state),
            DownRule::Degraded { feedback } => self.degrade(end, &state, feedback, frames, key),
            DownRule::Detached => {
                let update = difference(&state, &end.previous);
                let track = &mut end.tracks[0];
                let (packet, value) =
                    self.compress(0, &update, frames.at(&track.current)?, key.child(0))?;
                track.commit(packet, 1.0, &value);
                track.note_spread(&state);
                end.previous.clone_from(&state);
                Ok(state)
            }
            DownRule::Ghost => {
                let update = difference(&state, &end.previous);
                let frame = frames.at(&end.previous)?;
                let (packet, value) = self.compress(0, &update, frame, key.child(0))?;
                let local2 = spread(&update, &value).local2;
                end.ghost_spread = Some(Spread { local2, memory2: None });
                let base = std::mem::replace(&mut end.previous, state.clone());
                end.ghost = Some((base, packet));
                Ok(state)
            }
            DownRule::Preserved { memories: Memories::PerClient, .. } => Ok(state),
            DownRule::Preserved { alpha, memories: Memories::Groups(_) } => {
                for (group, track) in end.tracks.iter_mut().enumerate() {
                    // H += alpha C(.) once a client has answered; otherwise the message was never used,
                    // and the next one starts from the same memory.
                    if let Some(packet) = track.pending.take()
                        && fold.groups.binary_search(&(group as u32)).is_ok()
                    {
                        let value = self.value(0, &packet, frames.at(&track.current)?)?;
                        track.commit(packet, alpha, &value);
                    }
                    // C(w − H)
                    let omega = difference(&state, &track.current);
                    let (frame, key) = (frames.at(&track.current)?, key.child(group as u64));
                    let (packet, value) = self.compress(0, &omega, frame, key)?;
                    track.set_pending(packet, spread(&omega, &value));
                }
                Ok(state)
            }
            DownRule::Preserved { alpha, memories: Memories::Single { .. } } => {
                let single = end.single.as_mut().ok_or_else(broken)?;
                vector::axpy(&mut single.sum, alpha, &fold.sent.value());
                single.rounds += 1;
                if self
                    .reset_rounds()
                    .is_some_and(|every| single.rounds.is_multiple_of(every.max(1)))
                {
                    single.resets += 1;
                    single.reset_to = single.mean();
                    single.sum = single.reset_to.iter().map(|h| h.wide()).collect();
                    vector::scale(&mut single.sum, single.clients);
                }
                Ok(state)
            }
        }
    }

    /// The cache of one exchange's messages that go to several clients.
    pub fn shared_messages<T: Scalar>(&self, end: &DownServer<T>) -> SharedMessages<T> {
        SharedMessages::new(3 * end.tracks.len().max(1))
    }

    /// One recipient's message, and its record once its upload is accepted. Messages to several clients
    /// are built once.
    pub fn send_shared<T: Scalar>(
        &self,
        end: &DownServer<T>,
        shared: &SharedMessages<T>,
        peer: &DownPeer<T>,
        state: &[T],
        frames: Frames<'_, T>,
    ) -> Result<(DownPeer<T>, Shared<DownMessage<T>>)> {
        let index = self.index(peer.id);
        let mut next = peer.clone();
        let alone = |message: DownMessage<T>| Shared::alone(message.with_codec(index as u8));
        let message = match self.rule {
            DownRule::Exact => shared.get(0, || DownMessage::whole(state)),
            DownRule::Ghost => match &end.ghost {
                Some((base, packet)) => {
                    next.spread = end.ghost_spread;
                    shared.get(0, || DownMessage::whole(base).then(packet.clone()))
                }
                None => shared.get(0, || DownMessage::whole(state)),
            },
            DownRule::Degraded { .. }
            | DownRule::Detached
            | DownRule::Preserved { memories: Memories::Groups(_), .. } => {
                let at = peer.id as usize % end.tracks.len().max(1);
                let track = &end.tracks[at];
                next.spread = track.spread;
                next.version = Some(track.next_version());
                let missed = track.missed(peer.version);
                let make = || track.message(missed);
                // Most clients missed no message, or the last one only.
                match missed {
                    None => shared.get(3 * at, make),
                    Some(0 | 1) => shared.get(3 * at + 1 + missed.unwrap_or(0), make),
                    Some(_) => Shared::alone(make()),
                }
            }
            DownRule::Preserved { memories: Memories::PerClient, .. } => match peer.version {
                None => {
                    next.version = Some(0);
                    next.memory = state.to_vec();
                    if !frames.is_none() {
                        next.local = state.to_vec();
                    }
                    next.spread = Some(Spread { local2: 0.0, memory2: Some(0.0) });
                    match index {
                        0 => shared.get(0, || DownMessage::whole(state)),
                        _ => alone(DownMessage::whole(state)),
                    }
                }
                Some(_) => {
                    let omega = difference(state, &peer.memory);
                    let key = end.key.child(u64::from(peer.id));
                    let frame = frames.at(&peer.memory)?;
                    let (packet, mut value) = self.compress(index, &omega, frame, key)?;
                    next.spread = Some(spread(&omega, &value));
                    T::apply(&mut next.memory, &mut value, self.alphas[index]);
                    if !frames.is_none() {
                        next.local = value;
                    }
                    alone(DownMessage::step(packet))
                }
            },
            DownRule::Preserved { memories: Memories::Single { .. }, .. } => {
                let single = end.single.as_ref().ok_or_else(broken)?;
                let omega = difference(state, &single.mean());
                let key = end.key.child(u64::from(peer.id));
                // The distance of the client from w depends on its memory, unknown to the server.
                let (packet, _) = self.compress(index, &omega, None, key)?;
                next.sent = Some(packet.clone());
                next.version = Some(u64::from(single.resets));
                alone(if peer.version == next.version {
                    DownMessage::step(packet)
                } else {
                    DownMessage::whole(&single.reset_to).then(packet)
                })
            }
        };
        Ok((next, message))
    }

    /// The client's end once its upload is accepted, and the state at which it computes.
    pub fn receive<'a, T: Scalar>(
        &self,
        end: &DownClient<T>,
        message: &'a DownMessage<T>,
        frames: Frames<'_, T>,
    ) -> Result<(DownClient<T>, Cow<'a, [T]>)> {
        let index = usize::from(message.codec());
        if index >= self.codecs.len() {
            return Err(Error::peer("a message names a codec that the job does not have"));
        }
        let kept = message.state().unwrap_or(&end.memory);
        if message.state().is_some_and(|s| !T::norm_inf(s).is_finite()) {
            return Err(Error::peer("the server's state holds a value that is not finite"));
        }
        if self.is_exact() {
            let (Some(state), []) = (message.state(), message.steps()) else {
                return Err(Error::peer("an exact downlink carries one whole state, nothing else"));
            };
            self.check_length(state.len())?;
            return Ok((end.clone(), state.into()));
        }
        self.check_length(kept.len())?;
        let alpha = self.alphas[index];
        let mut memory = kept.to_vec();
        let mut local = None;
        for packet in message.steps() {
            let mut value = self.value(index, packet, frames.at(&memory)?)?;
            T::apply(&mut memory, &mut value, alpha);
            local = Some(value);
        }
        let local = local.unwrap_or_else(|| memory.clone());
        if !T::norm_inf(&local).is_finite() {
            return Err(Error::peer("the server's changes lead to a value that is not finite"));
        }
        if self.rule == DownRule::Ghost {
            memory = Vec::new();
        }
        Ok((DownClient { memory }, local.into()))
    }

    fn check_length(&self, found: usize) -> Result<()> {
        if found == self.dimension {
            return Ok(());
        }
        let length = self.dimension;
        Err(Error::peer(format!("a message holds {found} numbers where the job has {length}")))
    }

    /// Length of the packet that a ghost would send if clients knew the server's previous state.
    pub fn ghost_bytes<T: Scalar>(&self, end: &DownServer<T>) -> Option<u64> {
        (self.rule == DownRule::Ghost)
            .then(|| end.ghost.as_ref().map_or(0, |(_, packet)| packet.len() as u64))
    }

    fn degrade<T: Scalar>(
        &self,
        end: &mut DownServer<T>,
        wanted: &[T],
        feedback: Feedback,
        frames: Frames<'_, T>,
        key: Key,
    ) -> Result<Vec<T>> {
        let track = &mut end.tracks[0];
        // v = update + c E; q = C(v); E = v − q
        let mut v = difference(wanted, &track.current);
        let share = match feedback {
            Feedback::Off => None,
            Feedback::Contractive => Some(1.0),
            Feedback::Share(c) => Some(c),
        };
        if let Some(c) = share
            && !end.error.is_empty()
        {
            T::axpy(&mut v, c, &end.error);
        }
        let frame = frames.at(&track.current)?;
        let (packet, value) = self.compress(0, &v, frame, key.child(0))?;
        track.commit(packet, 1.0, &value);
        if share.is_some() {
            T::axpy(&mut v, -1.0, &value);
            end.error = v;
        }
        Ok(track.current.clone())
    }

    fn index(&self, id: u32) -> usize {
        self.own.get(&id).map_or(0, |at| usize::from(*at))
    }
}

/// The step of the replica or memory on both ends.
fn alpha_of(rule: &DownRule) -> f64 {
    match rule {
        DownRule::Preserved { alpha, .. } => *alpha,
        _ => 1.0,
    }
}

fn broken() -> Error {
    Error::internal("a downlink's state belongs to another rule")
}
