//! The states of both ends of a downlink, and their summary over a round.

use super::Track;
use crate::{Packet, Scalar};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Key, wire};

/// The server's end.
#[derive(Clone, Debug, PartialEq)]
pub struct DownServer<T = f64> {
    /// The key of the next messages.
    pub(super) key: Key,
    pub(super) tracks: Vec<Track<T>>,
    /// `E` of error feedback.
    pub(super) error: Vec<T>,
    /// The state before the last step (detached, ghost).
    pub(super) previous: Vec<T>,
    /// The last ghost's base and packet.
    pub(super) ghost: Option<(Vec<T>, Packet)>,
    /// The distance of clients from the state after that packet.
    pub(super) ghost_spread: Option<Spread>,
    pub(super) single: Option<Single<T>>,
}

/// The server's part of a single memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Single<T> {
    /// `Σ H_i` over all enrolled clients.
    pub(super) sum: Vec<f64>,
    pub(super) clients: f64,
    /// The mean at the last reset, from which absent clients start.
    pub(super) reset_to: Vec<T>,
    pub(super) resets: u32,
    pub(super) rounds: u32,
}

/// The server's record of one client.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownPeer<T = f64> {
    pub(super) id: u32,
    /// Number of messages of its track that it holds, or of resets it has received; `None` before first
    /// contact.
    pub(super) version: Option<u64>,
    /// `H_i`, for memories per client.
    pub(super) memory: Vec<T>,
    /// The state at which it computes, for memories per client with frames.
    pub(super) local: Vec<T>,
    /// The last packet, for a single memory.
    pub(super) sent: Option<Packet>,
    /// The client's distance from the server's state after the last message, if known.
    pub(super) spread: Option<Spread>,
}

impl<T> DownPeer<T> {
    /// The state at which the client computes in the current exchange, for memories per client with frames.
    pub fn local(&self) -> &[T] {
        &self.local
    }

    pub fn id(&self) -> u32 {
        self.id
    }
}

/// The client's end: its replica or memory.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DownClient<T = f64> {
    pub(super) memory: Vec<T>,
}

/// Sums over the clients whose uploads were accepted in a round.
#[derive(Clone, Debug, PartialEq)]
pub struct DownFold {
    pub(super) groups: Vec<u32>,
    pub(super) sent: ExactSum,
    pub(super) spread: ExactSum,
    pub(super) spread_count: u32,
    pub(super) memory_count: u32,
    pub(super) count: u32,
}

impl DownFold {
    /// Number of accepted uploads.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// Squared distances of a client, or means over clients, from the server's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// `||ŵ_i − w||²`.
    pub local2: f64,
    /// `||w − H_i||²`, with a memory.
    pub memory2: Option<f64>,
}

wire!(Spread { local2, memory2 });

wire!(DownServer<T: Scalar> { key, tracks, error, previous, ghost, ghost_spread, single });
wire!(Single<T: Scalar> { sum, clients, reset_to, resets, rounds });
wire!(DownPeer<T: Scalar> { id, version, memory, local, sent, spread });
wire!(DownClient<T: Scalar> { memory });
wire!(DownFold { groups, sent, spread, spread_count, memory_count, count });

impl<T: Scalar> Single<T> {
    pub(super) fn mean(&self) -> Vec<T> {
        self.sum.iter().map(|s| T::narrow(s / self.clients)).collect()
    }
}

/// The distances, from `w − H` and its decoded compression.
pub(super) fn spread<T: Scalar>(omega: &[T], value: &[T]) -> Spread {
    let gap = |(o, v): (&T, &T)| v.wide() - o.wide();
    let local2 = omega.iter().zip(value).map(gap).map(|gap| gap * gap).sum();
    Spread { local2, memory2: Some(T::norm2_squared(omega)) }
}

#[cfg(test)]
mod tests {
    //! Both ends of every downlink, under lost uploads and absent clients.

    use super::super::*;
    use crate::{Norm, Packet};

    const D: usize = 12;
    const CLIENTS: u32 = 5;

    fn codec() -> Codec {
        Codec::dithering(1, Norm::P(2), None).unwrap()
    }

    fn preserved(memories: Memories) -> DownRule {
        DownRule::Preserved { alpha: 0.2, memories }
    }

    fn rules() -> Vec<DownRule> {
        vec![
            DownRule::Degraded { feedback: Feedback::Off },
            DownRule::Degraded { feedback: Feedback::Contractive },
            DownRule::Degraded { feedback: Feedback::Share(0.3) },
            DownRule::Detached,
            preserved(Memories::Groups(1)),
            preserved(Memories::Groups(2)),
            preserved(Memories::PerClient),
            preserved(Memories::Single { reset: Reset::Every(7) }),
            preserved(Memories::Single { reset: Reset::Never }),
        ]
    }

    impl Downlink {
        /// One recipient's message alone.
        fn send<T: Scalar>(
            &self,
            end: &DownServer<T>,
            peer: &DownPeer<T>,
            state: &[T],
        ) -> Result<(DownPeer<T>, DownMessage<T>)> {
            let (alone, frames) = (SharedMessages::new(0), Frames::NONE);
            let (next, message) = self.send_shared(end, &alone, peer, state, frames)?;
            Ok((next, DownMessage::clone(&*message.get()?)))
        }
    }

    /// A server that walks towards a target, clients that come and go, uploads that get lost.
    struct Walk<T = f64> {
        channel: Downlink,
        server: DownServer<T>,
        peers: Vec<DownPeer<T>>,
        clients: Vec<DownClient<T>>,
        state: Vec<T>,
        bytes: usize,
    }

    impl<T: Scalar> Walk<T> {
        fn new(rule: DownRule) -> Self {
            let channel = Downlink::new(codec(), rule, D, false).unwrap();
            let state: Vec<T> = (0..D).map(|j| T::narrow(j as f64 - 4.0)).collect();
            let mut server = channel.server(&state);
            let peers = (0..CLIENTS).map(|i| channel.admit(&mut server, ClientId(i))).collect();
            let clients = (0..CLIENTS).map(|_| channel.client()).collect();
            Self { channel, server, peers, clients, state, bytes: 0 }
        }

        /// One round; returns the state at which each active client computed.
        fn round(
            &mut self,
            k: u64,
            active: impl Fn(u32) -> bool,
            lost: impl Fn(u32) -> bool,
        ) -> Vec<Vec<T>> {
            let mut fold = self.channel.fold();
            let mut seen = Vec::new();
            for i in (0..CLIENTS).filter(|i| active(*i)) {
                let at = i as usize;
                let (peer, message) =
                    self.channel.send(&self.server, &self.peers[at], &self.state).unwrap();
                let bytes = whimbrel_core::Wire::to_bytes(&message);
                self.bytes += bytes.len();
                let message: DownMessage<T> = whimbrel_core::Wire::from_bytes(&bytes).unwrap();
                let (client, local) =
                    self.channel.receive(&self.clients[at], &message, Frames::NONE).unwrap();
                seen.push(local.to_vec());
                if !lost(i) {
                    self.channel.absorb(&mut fold, &peer).unwrap();
                    (self.peers[at], self.clients[at]) = (peer, client);
                }
            }
            let wanted = self.state.iter().map(|w| T::narrow(0.9 * w.wide())).collect();
            let key = Key::root(5).child(k);
            self.state =
                self.channel.publish(&mut self.server, wanted, &fold, Frames::NONE, key).unwrap();
            seen
        }

        /// The server's belief about a client's end, after first contact.
        fn believed(&self, i: usize) -> Option<Vec<T>> {
            let peer = &self.peers[i];
            let version = peer.version?;
            match self.channel.rule() {
                DownRule::Preserved { memories: Memories::PerClient, .. } => {
                    Some(peer.memory.clone())
                }
                DownRule::Preserved { memories: Memories::Single { .. }, .. } => None,
                DownRule::Degraded { .. } | DownRule::Detached => None,
                _ => {
                    let track = &self.server.tracks[i % self.server.tracks.len()];
                    (track.version == version).then(|| track.current.clone())
                }
            }
        }
    }

    #[test]
    fn both_ends_agree_to_the_last_bit_whatever_is_lost() {
        both_ends_agree::<f64>();
        both_ends_agree::<f32>();
    }

    fn both_ends_agree<T: Scalar>() {
        for rule in rules() {
            let mut walk = Walk::<T>::new(rule);
            let mut compared = 0;
            for k in 0..60u64 {
                let draw = |i: u32, salt| Key::root(salt).child(k).child(u64::from(i)).uniform();
                let replica = walk.server.tracks.first().map(|t| t.current.clone());
                let seen = walk.round(k, |i| draw(i, 1) < 0.6, |i| draw(i, 2) < 0.3);
                if matches!(rule, DownRule::Degraded { .. } | DownRule::Detached) {
                    for local in seen {
                        assert_eq!(Some(local), replica, "{rule:?}, round {k}");
                        compared += 1;
                    }
                }
                for i in 0..CLIENTS as usize {
                    if let Some(believed) = walk.believed(i) {
                        assert_eq!(
                            believed, walk.clients[i].memory,
                            "{rule:?}, round {k}, client {i}"
                        );
                        compared += 1;
                    }
                }
            }
            let single =
                matches!(rule, DownRule::Preserved { memories: Memories::Single { .. }, .. });
            assert!(single || compared > 30, "{rule:?}: only {compared} comparisons");
        }
    }

    #[test]
    fn a_single_memory_is_the_mean_of_the_clients() {
        for reset in [Reset::Never, Reset::Every(7)] {
            let mut walk = Walk::<f64>::new(preserved(Memories::Single { reset }));
            let first = walk.state.clone();
            for k in 0..40u64 {
                let draw = |i: u32, salt| Key::root(salt).child(k).child(u64::from(i)).uniform();
                walk.round(k, |i| draw(i, 1) < 0.6, |i| draw(i, 2) < 0.3);
                let single = walk.server.single.as_ref().unwrap();
                let resets = u64::from(single.resets);
                // A client that has not heard of the last reset stands where the reset put it.
                let mean: Vec<f64> = (0..D)
                    .map(|j| {
                        let own = |i: usize| match walk.peers[i].version {
                            Some(v) if v == resets => walk.clients[i].memory[j],
                            None if resets == 0 => first[j],
                            _ => single.reset_to[j],
                        };
                        (0..CLIENTS as usize).map(own).sum::<f64>() / f64::from(CLIENTS)
                    })
                    .collect();
                assert_eq!(single.mean().len(), mean.len());
                for (a, b) in single.mean().iter().zip(&mean) {
                    assert!((a - b).abs() < 1e-12, "round {k}: {a} {b}");
                }
            }
        }
    }

    #[test]
    fn with_everyone_clients_of_a_degraded_downlink_compute_at_the_servers_state() {
        let mut walk = Walk::<f64>::new(DownRule::Degraded { feedback: Feedback::Off });
        for k in 0..20 {
            let before = walk.state.clone();
            for local in walk.round(k, |_| true, |_| false) {
                assert_eq!(local, before);
            }
        }
    }

    #[test]
    fn an_absent_client_gets_what_it_missed_or_the_whole_state_if_shorter() {
        let mut walk = Walk::<f64>::new(preserved(Memories::Groups(1)));
        walk.round(0, |_| true, |_| false);
        for k in 1..4 {
            walk.round(k, |i| i > 0, |_| false);
        }
        let (_, few) = walk.channel.send(&walk.server, &walk.peers[0], &walk.state).unwrap();
        assert!(few.state().is_none());
        assert_eq!(few.steps().len(), 4, "three missed and the current one");
        for k in 4..60 {
            walk.round(k, |i| i > 0, |_| false);
        }
        let (_, many) = walk.channel.send(&walk.server, &walk.peers[0], &walk.state).unwrap();
        assert_eq!(many.state().map(<[f64]>::len), Some(D));
        assert_eq!(many.steps().len(), 1);
        let log: usize = walk.server.tracks[0].log_bytes();
        assert!(log <= 8 * D, "the log holds {log} bytes");
    }

    #[test]
    fn a_shared_memory_stands_still_while_nobody_answers() {
        let mut walk = Walk::<f64>::new(preserved(Memories::Groups(1)));
        walk.round(0, |_| true, |_| false);
        walk.round(1, |_| true, |_| false);
        let before = walk.server.tracks[0].current.clone();
        walk.round(2, |_| true, |_| true);
        walk.round(3, |_| false, |_| false);
        assert_eq!(walk.server.tracks[0].current, before);
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_reason() {
        let refused = |codec: Codec, rule: DownRule, allow: bool| {
            matches!(Downlink::new(codec, rule, D, allow), Err(Error::Config { .. }))
        };
        let top = || Codec::top_k(3).unwrap();
        assert!(refused(top(), preserved(Memories::PerClient), false));
        assert!(refused(top(), DownRule::Degraded { feedback: Feedback::Off }, false));
        assert!(!refused(top(), DownRule::Degraded { feedback: Feedback::Contractive }, false));
        let with = |alpha| DownRule::Preserved { alpha, memories: Memories::Groups(1) };
        for alpha in [0.0, 1.0] {
            assert!(refused(codec(), with(alpha), false));
            assert!(!refused(codec(), with(alpha), true));
        }
        for alpha in [-0.1, 1.5, f64::NAN] {
            assert!(refused(codec(), with(alpha), true));
        }
        assert!(refused(codec(), preserved(Memories::Groups(0)), false));
        assert!(refused(Codec::ExactF32, DownRule::Exact, false));
        assert!(!refused(Codec::ExactF32, preserved(Memories::PerClient), false));
        let exact = Downlink::new(Codec::Exact, preserved(Memories::PerClient), D, false).unwrap();
        assert!(exact.is_exact());
        assert!(exact.with_own(ClientId(0), codec(), 0.2).is_err());
    }

    #[test]
    fn clients_may_have_codecs_of_their_own() {
        let fine = Codec::dithering(64, Norm::P(2), None).unwrap();
        let channel = Downlink::new(codec(), preserved(Memories::PerClient), D, false)
            .unwrap()
            .with_own(ClientId(1), fine, 0.3)
            .unwrap();
        let state: Vec<f64> = (0..D).map(|j| j as f64).collect();
        let mut server = channel.server(&state);
        let mut spread = Vec::new();
        for id in 0..2 {
            let peer = channel.admit(&mut server, ClientId(id));
            let (peer, first) = channel.send(&server, &peer, &state).unwrap();
            let (client, _) = channel.receive(&channel.client(), &first, Frames::NONE).unwrap();
            let moved: Vec<f64> = state.iter().map(|w| w + 1.0).collect();
            let (peer, message) = channel.send(&server, &peer, &moved).unwrap();
            let (client, _) = channel.receive(&client, &message, Frames::NONE).unwrap();
            assert_eq!(client.memory, peer.memory);
            spread.push(peer.spread.unwrap().local2);
        }
        assert!(spread[1] < 0.1 * spread[0], "{spread:?}");
    }

    #[test]
    fn blocks_do_not_share_a_norm() {
        let channel = Downlink::new(codec(), preserved(Memories::PerClient), D, false).unwrap();
        let blocks = channel.clone().with_blocks(&[4, 8]).unwrap();
        assert!(channel.clone().with_blocks(&[4, 4]).is_err());
        assert_eq!(blocks.omega(), codec().omega(8));
        // A tiny block beside a huge one: its error is measured by its own size.
        let state = vec![0.0; D];
        let moved: Vec<f64> = (0..D).map(|j| if j < 4 { 1e-6 } else { 1e6 }).collect();
        let mut server = blocks.server(&state);
        let peer = blocks.admit(&mut server, ClientId(0));
        let (peer, first) = blocks.send(&server, &peer, &state).unwrap();
        let (client, _) = blocks.receive(&blocks.client(), &first, Frames::NONE).unwrap();
        let (peer, message) = blocks.send(&server, &peer, &moved).unwrap();
        let (client, local) = blocks.receive(&client, &message, Frames::NONE).unwrap();
        assert_eq!(client.memory, peer.memory);
        assert!(local[..4].iter().all(|x| x.abs() < 1e-5), "{local:?}");
        let mut bytes = message.steps()[0].bytes().to_vec();
        bytes.push(0);
        let longer = DownMessage::step(Packet::from_bytes(bytes));
        assert!(matches!(blocks.receive(&client, &longer, Frames::NONE), Err(Error::Peer { .. })));
    }

    #[test]
    fn hostile_messages_are_refused() {
        let channel = Downlink::new(codec(), preserved(Memories::PerClient), D, false).unwrap();
        let messages = [
            DownMessage::whole(&[1.0; 3]),
            DownMessage::default(),
            DownMessage::whole(&[f64::INFINITY; D]),
            DownMessage::whole(&[0.0; D]).with_codec(9),
        ];
        for (n, message) in messages.iter().enumerate() {
            let refused = channel.receive(&channel.client(), message, Frames::NONE);
            assert!(matches!(refused, Err(Error::Peer { .. })), "message {n}");
        }
    }
}
