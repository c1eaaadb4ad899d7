//! The loop around an oracle.

use super::state::{Client, Down, Enrolment, ExchangeKind, Fold, Peer, Server, Up};
use super::{
    Computed, Context, End, Federated, Framed, Judge, Local, MaybeFrame, Member, Oracle, Received,
    Split, Told, aggregate, held_out,
};
use crate::measures;
use crate::settings::Budget;
use std::borrow::Cow;
use std::sync::Arc;
use whimbrel_codec::Scalar;
use whimbrel_codec::channel::{
    DownClient, DownMessage, DownRule, GridShare, SharedMessages, Uplink, Upload,
};
use whimbrel_core::erased::for_readable;
use whimbrel_core::method::{
    Allowance, Artifact, Cohort, Declaration, Done, Method, Next, Place, Sender, Status, Task,
};
use whimbrel_core::{ClientId, Error, Key, Measure, Result, Spread};

impl<O: Oracle> Federated<O> {
    /// The uplink for everything that does not depend on the codec.
    pub(super) fn uplink(&self) -> &Uplink {
        &self.terms.uplinks[0]
    }

    pub(super) fn context(&self, server: &Server<O::Global, O::Number>) -> Context {
        Context {
            kind: server.kind,
            round: server.round,
            k: server.round.saturating_sub(u32::from(self.has_first_exchange())),
            total: server.total,
            rows: server.rows,
            clients: server.clients,
            cohort: 0.0,
        }
    }
}

impl<O: Oracle> Federated<O> {
    /// Whether the first state comes from an exchange: one would have no noise.
    fn has_first_exchange(&self) -> bool {
        O::FIRST_EXCHANGE && self.terms.privacy.release.is_none()
    }

    /// Enrols a client with this number of training rows.
    pub fn enroll_rows(
        &self,
        data: &O::Data,
        rows: u64,
        key: Key,
    ) -> Result<(ClientOf<O>, Enrolment<O::Summary>)> {
        let (own, summary) = self.oracle.enroll(data, key)?;
        let (up, down) = (self.terms.up_client(), self.terms.downlink.client());
        Ok((Client { up, down, own }, Enrolment { rows, summary }))
    }
}

impl<O: Judge> Method for Federated<O> {
    type Data = Split<O::Data>;
    type Server = Server<O::Global, O::Number>;
    type Peer = Peer<O::Record, O::Number>;
    type Client = Client<O::Own, O::Number>;
    type Summary = Enrolment<O::Summary>;
    type Down = Down<O::Note, O::Private, O::Number>;
    type Up = Up;
    type Broadcast = SharedMessages<O::Number>;
    type Fold = Fold;

    fn declare(&self) -> Declaration {
        let mut declared = self.oracle.declare(&self.terms);
        let once = |count: bool, allowance| Allowance { most: Some(u32::from(count)), ..allowance };
        let ordinary = [
            once(self.has_first_exchange(), Allowance::opening("first state", 0)),
            once(self.terms.opens(), Allowance::opening("memories", 1)),
            Allowance::rounds(self.terms.rounds_max(self.has_first_exchange())),
        ];
        declared.exchanges.splice(0..0, ordinary);
        declared.disclosures.extend(self.lanes());
        declared.noise = self.terms.privacy.release.map(|release| release.releases.multiplier);
        declared.measures.insert(0, measures::epoch());
        declared.measures.extend(held_out::measures(&self.oracle.scores()));
        let has = |own: &[Measure], new: &Measure| own.iter().any(|m| m.key == new.key);
        let channels = measures::channels().into_iter();
        let channels: Vec<_> = channels.filter(|new| !has(&declared.measures, new)).collect();
        declared.measures.extend(channels);
        if self.terms.privacy.release.is_some() {
            // The noise sets the distance from the optimum, and the budget the rounds.
            declared.measures.iter_mut().for_each(|measure| measure.goal = None);
        }
        if self.terms.privacy.min_group.is_some() {
            declared.measures.push(measures::withheld());
            let parts = "each round: the number of parts left out, which too few rows determine";
            declared.disclosures.push(aggregate("up", parts, 5));
        }
        if *self.terms.downlink.rule() == DownRule::Ghost {
            declared.measures.push(measures::ghost());
        }
        declared
    }

    fn enroll(&self, data: &Self::Data, key: Key) -> Result<(Self::Client, Self::Summary)> {
        self.enroll_rows(&data.train, data.rows[0], key)
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Self::Summary)>,
        key: Key,
    ) -> Result<Self::Server> {
        let mut members = roster.map(|(id, Enrolment { rows, summary })| {
            Ok(Member { id, weight: self.terms.weights.of(id, rows)?, rows, summary })
        });
        let global = self.oracle.start(&mut members, &self.terms, key)?;
        let (kind, down) = if self.has_first_exchange() {
            (ExchangeKind::FirstState, self.terms.downlink.server(&[]))
        } else {
            let published = self.oracle.published(&global, ExchangeKind::Round);
            (self.terms.after_first_state(), self.terms.downlink.server(&published))
        };
        Ok(Server {
            kind,
            round: 0,
            global,
            // `admit` adds each client, now and later.
            total: 0.0,
            rows: 0,
            clients: 0,
            up: self.uplink().server(),
            down,
            update_norm2: None,
            update_norm2_max: 0.0,
            small_rounds: 0,
            spread: None,
            rows_used: 0,
            ghost_bytes: 0,
            withheld: 0,
        })
    }

    fn admit(
        &self,
        server: &mut Self::Server,
        id: ClientId,
        enrolment: &Self::Summary,
    ) -> Result<Self::Peer> {
        let Enrolment { rows, ref summary } = *enrolment;
        let weight = self.terms.weights.of(id, rows)?;
        let member = Member { id, weight, rows, summary };
        self.uplink().check_enrolled(server.clients + 1)?;
        let record = self.oracle.admit(&mut server.global, &member)?;
        server.total += weight;
        server.rows += rows;
        server.clients += 1;
        if let Some(grid) = &mut server.up.grid {
            grid.squares += weight * weight;
        }
        if let Some(h_0) = self.terms.given_memory() {
            // As wide as the client holds it.
            for (sum, h) in server.up.memory_sum.iter_mut().zip(h_0) {
                *sum += weight * O::Number::narrow(*h).wide();
            }
        }
        let uplink = self.terms.own_uplinks.get(&id.0).copied().unwrap_or(0);
        let down = self.terms.downlink.admit(&mut server.down, id);
        Ok(Peer { weight, rows, uplink, record, down })
    }

    fn rows(&self, peer: &Self::Peer) -> Option<u64> {
        Some(peer.rows)
    }

    fn place(&self, client: &Self::Client, down: &Self::Down) -> Result<Place> {
        let kind = match down.kind {
            ExchangeKind::FirstState => 0,
            ExchangeKind::OpenMemories => 1,
            ExchangeKind::Round => 2 + self.round_kind(client, down)?,
        };
        Ok(kind.into())
    }

    fn status(&self, server: &Self::Server) -> Status {
        let budget = self.terms.budget;
        let converged = matches!(budget, Budget::Converged(_)) && server.has_converged();
        let released =
            self.terms.privacy.release.as_ref().is_some_and(|r| server.round >= r.rounds);
        let done = converged || released || budget.is_spent(server.round, server.epoch());
        let next = match server.kind {
            _ if converged => Next::Converged,
            _ if done => Next::Stop,
            ExchangeKind::FirstState => Next::Round(Cohort::Everyone),
            ExchangeKind::OpenMemories => Next::Uncounted,
            ExchangeKind::Round => Next::Round(Cohort::Sampled),
        };
        // Clients may diverge while the server does not.
        let local2 = server.spread.map_or(0.0, |spread| spread.local2);
        let magnitude = self.oracle.magnitude(&server.global, local2);
        Status { withheld: server.withheld, ..Status::new(next, magnitude) }
    }

    fn open(&self, server: &Self::Server, _: &[ClientId]) -> Result<(Self::Broadcast, Fold)> {
        let is_round = server.kind == ExchangeKind::Round;
        let sums = if is_round { self.sums(&server.global) } else { 1 };
        let on_grid = self.uplink().grid_fold(server.total, server.clients, !is_round)?;
        let up = vec![on_grid.unwrap_or_else(|| self.uplink().fold()); sums];
        let down = self.terms.downlink.fold();
        let moments = self.moments(&server.global).filter(|_| self.frames_each());
        let moments = moments.unwrap_or_default().to_vec();
        let kind = server.kind;
        let fold = Fold { kind, up, moments, down, rows_used: 0, weight: 0.0, withheld: 0 };
        Ok((self.terms.downlink.shared_messages(&server.down), fold))
    }

    fn downlink(
        &self,
        server: &Self::Server,
        broadcast: &Self::Broadcast,
        peer: &Self::Peer,
        _: Key,
    ) -> Result<(Self::Peer, Self::Down)> {
        let published = self.oracle.published(&server.global, server.kind);
        let (down, state) = match server.kind {
            // Channels carry states, and there is none yet.
            ExchangeKind::FirstState => {
                (peer.down.clone(), broadcast.get(0, || DownMessage::whole(&published)))
            }
            ExchangeKind::OpenMemories | ExchangeKind::Round => {
                let moments = self.moments(&server.global);
                let (end, known, downlink) = (&server.down, &peer.down, &self.terms.downlink);
                self.with_frames_down(moments, |frames| {
                    downlink.send_shared(end, broadcast, known, &published, frames)
                })?
            }
        };
        let context = self.context(server);
        let Told { record, note, private } =
            self.oracle.tell(&server.global, &peer.record, &context);
        let (kind, uplink, grid) = (server.kind, peer.uplink, self.grid_note(server, peer)?);
        Ok((Peer { down, record, ..*peer }, Down { kind, uplink, note, private, grid, state }))
    }

    fn local_step(
        &self,
        client: &Self::Client,
        down: &Self::Down,
        data: &Self::Data,
        key: Key,
    ) -> Result<Done<Self>> {
        let message = down.state.get()?;
        let Opened { received, reply } = self.open_message(client, down, &message, data.rows[0])?;
        let computed = self.oracle.local(&received, &client.own, &data.train, key)?;
        self.send(client, reply, computed, key)
    }

    fn local_steps(
        &self,
        tasks: &[Task<'_, Self>],
        threads: &dyn Spread,
    ) -> Vec<Result<Done<Self>>> {
        if let [task] = tasks {
            return vec![self.local_step(task.client, &task.down, task.data, task.key)];
        }
        let messages: Vec<_> = tasks.iter().map(|task| task.down.state.get()).collect();
        let opened = tasks.iter().zip(&messages).map(|(task, message)| {
            let message = message.as_deref().map_err(Clone::clone)?;
            let Opened { received, reply } =
                self.open_message(task.client, &task.down, message, task.data.rows[0])?;
            let (own, data) = (&task.client.own, &task.data.train);
            Ok((Local { received, own, data, key: task.key }, (task.client, reply, task.key)))
        });
        for_readable(opened, |opened| {
            let (locals, replies): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
            let computed = self.oracle.locals(&locals, threads).into_iter().zip(replies);
            threads.map(computed.collect(), |(computed, (client, reply, key))| {
                self.send(client, reply, computed?, key)
            })
        })
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Self::Peer>, up: Up) -> Result<()> {
        if up.kind != fold.kind {
            return Err(Error::peer(format!(
                "client {} answered an exchange that is over",
                from.id
            )));
        }
        if self.uplink().grid().is_some() {
            return self.absorb_on_grid(fold, from, &up);
        }
        let peer = from.peer;
        let uplink = &self.terms.uplinks[usize::from(peer.uplink)];
        let upload = Upload::whole(&up.packet, peer.weight);
        if fold.kind == ExchangeKind::Round {
            let frame = if self.frames_each() {
                self.oracle.frame(Framed::Value, peer.down.local(), &fold.moments)?
            } else {
                None
            };
            let at = peer.down.id() as usize % fold.up.len();
            let upload = Upload { frame: frame.as_deref(), ..upload };
            uplink.absorb::<O::Number>(&mut fold.up[at], &upload, from.inclusion)?;
        } else {
            uplink.absorb_opening::<O::Number>(&mut fold.up[0], &upload)?;
        }
        fold.withheld += u64::from(up.withheld);
        self.note_sender(fold, peer)
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        fold.rows_used += other.rows_used;
        fold.withheld += other.withheld;
        fold.weight += other.weight;
        self.terms.downlink.merge(&mut fold.down, &other.down)?;
        let mut pairs = fold.up.iter_mut().zip(&other.up);
        pairs.try_for_each(|(sum, other)| self.uplink().merge(sum, other))
    }

    fn server_step(&self, mut server: Self::Server, fold: Fold, key: Key) -> Result<Self::Server> {
        let context = Context { cohort: fold.weight, ..self.context(&server) };
        server.rows_used += fold.rows_used;
        server.withheld += fold.withheld;
        match server.kind {
            // w_0, from the mean over everyone; asked again where no client was heard.
            ExchangeKind::FirstState => {
                server.round += 1;
                if let Some(mean) = self.uplink().mean_opening(&fold.up[0]) {
                    self.oracle.opened(&mut server.global, mean, &context)?;
                    let published = self.oracle.published(&server.global, ExchangeKind::Round);
                    self.terms.downlink.restart(&mut server.down, &published);
                    server.kind = self.terms.after_first_state();
                }
            }
            // h_{0,i} = g_i(w_0)
            ExchangeKind::OpenMemories => {
                self.uplink().collect_opening(&mut server.up, &fold.up[0]);
                if let Some(mean) = self.uplink().mean_opening(&fold.up[0]) {
                    self.oracle.opened(&mut server.global, mean, &context)?;
                }
                server.kind = ExchangeKind::Round;
            }
            ExchangeKind::Round => {
                // ĝ = Σ (n_i/N) h_i + Σ_A (n_i/N) C_up(Δ_i)/p_i
                let frames = self.frames_of_sums(&server)?;
                let frames = frames.iter().map(Option::as_deref);
                let sums: Vec<_> = fold.up.iter().zip(frames).collect();
                let mut estimate = self.uplink().collect(&mut server.up, &sums, server.total);
                self.add_noise(&server, &mut estimate)?;
                let state2 = self.oracle.magnitude(&server.global, 0.0).powi(2);
                server.spread = self.terms.downlink.spread(&fold.down);
                // Bytes of this round's messages, to each client in the fold.
                let ghost_bytes = self.terms.downlink.ghost_bytes(&server.down).unwrap_or(0);
                server.ghost_bytes += ghost_bytes * u64::from(fold.down.count());
                // C_dwn: a degraded downlink changes the server's state, too.
                let moments = self.moments(&server.global).map(<[f64]>::to_vec);
                let (downlink, end) = (&self.terms.downlink, &mut server.down);
                let publish = &mut |wanted| {
                    self.with_frames_down(moments.as_deref(), |frames| {
                        downlink.publish(end, wanted, &fold.down, frames, key)
                    })
                };
                let before = self.uplink().grid().map(|_| server.global.clone());
                let norm2 = self.oracle.step(&mut server.global, estimate, &context, publish)?;
                server.note_update(norm2, state2);
                server.round += 1;
                if let Some(before) = before {
                    self.follow(&mut server, &before, &fold)?;
                }
            }
        }
        Ok(server)
    }

    fn without_clients(&self, mut server: Self::Server) -> Result<Self::Server> {
        self.oracle.without_clients(&mut server.global);
        (server.total, server.rows, server.clients) = (0.0, 0, 0);
        server.up = self.uplink().server();
        if server.kind != ExchangeKind::FirstState {
            let published = self.oracle.published(&server.global, ExchangeKind::Round);
            server.down = self.terms.downlink.server(&published);
            server.kind = self.terms.after_first_state();
        }
        Ok(server)
    }

    fn artifact(&self, server: &Self::Server) -> Result<Artifact> {
        self.oracle.artifact(&server.global)
    }

    fn client_artifact(&self, client: &Self::Client, _: &Self::Data) -> Result<Option<Artifact>> {
        Ok(self.oracle.client_artifact(&client.own))
    }
}

/// A message that a client has decoded, and the ends of its channels.
struct Opened<'a, O: Oracle> {
    received: Received<'a, O>,
    reply: Reply<'a, O::Number>,
}

/// The channels of a client's answer.
#[derive(Clone)]
struct Reply<'a, N: Scalar> {
    kind: ExchangeKind,
    /// The client's end of the downlink.
    down: DownClient<N>,
    frame: SharedFrame,
    uplink: &'a Uplink,
    grid: Option<GridShare<'a>>,
}

/// The frame of an upload, if there is one; clients that received the same vector share it.
type SharedFrame = Arc<MaybeFrame>;
pub(super) type DownOf<O> =
    Down<<O as Oracle>::Note, <O as Oracle>::Private, <O as Oracle>::Number>;
type ClientOf<O> = Client<<O as Oracle>::Own, <O as Oracle>::Number>;

impl<O: Judge> Federated<O> {
    fn round_kind(&self, client: &ClientOf<O>, down: &DownOf<O>) -> Result<usize> {
        self.oracle.round_kind(&client.own, down.kind, down.note.as_ref(), &down.private)
    }

    /// Decodes the message to a client.
    fn open_message<'a>(
        &'a self,
        client: &ClientOf<O>,
        down: &'a DownOf<O>,
        message: &'a DownMessage<O::Number>,
        rows: u64,
    ) -> Result<Opened<'a, O>> {
        let kind = down.kind;
        self.round_kind(client, down)?;
        let moments = self.oracle.frame_moments(End::Client(&client.own, &down.private));
        // ŵ_i = H_i + C_dwn(w − H_i), H_i += α_dwn C_dwn(.)
        let (end, state) = match kind {
            ExchangeKind::FirstState => {
                let (Some(whole), []) = (message.state(), message.steps()) else {
                    return Err(Error::peer("the first question is one whole vector"));
                };
                (client.down.clone(), Cow::Borrowed(whole))
            }
            _ => self.with_frames_down(moments, |frames| {
                self.terms.downlink.receive(&client.down, message, frames)
            })?,
        };
        let uplink = self.terms.uplinks.get(usize::from(down.uplink));
        let uplink = uplink
            .ok_or_else(|| Error::peer("a message names an uplink that the job does not have"))?;
        // Without its grid a value would leave exactly.
        if down.grid.is_some() != uplink.grid().is_some() {
            return Err(Error::peer("a message lacks the grid of the job, or the job has none"));
        }
        let make = |moments| self.oracle.frame(Framed::Value, &state, moments);
        let frame = match moments {
            Some(moments)
                if kind == ExchangeKind::Round && (self.frames_up() || self.clips_clients()) =>
            {
                // A frame of broadcast data alone is made once for all clients.
                let is_shared = moments.is_empty() && matches!(state, Cow::Borrowed(_));
                if is_shared {
                    down.state.derived(|| make(moments))?
                } else {
                    Arc::new(make(moments)?)
                }
            }
            _ => Arc::new(None),
        };
        let (note, private) = (down.note.as_ref(), &down.private);
        let min_group = self.terms.privacy.min_group;
        let received = Received { kind, state, note, private, min_group };
        let opening = kind != ExchangeKind::Round;
        let share = |note| uplink.grid_share(note, self.terms.weights.of_rows(rows), opening);
        let grid = down.grid.as_ref().map(share).transpose()?;
        Ok(Opened { received, reply: Reply { kind, down: end, frame, uplink, grid } })
    }

    /// Counts a client whose upload is in the fold.
    pub(super) fn note_sender(
        &self,
        fold: &mut Fold,
        peer: &Peer<O::Record, O::Number>,
    ) -> Result<()> {
        if fold.kind == ExchangeKind::Round {
            self.terms.downlink.absorb(&mut fold.down, &peer.down)?;
        }
        // Weights are whole numbers: their sum does not depend on the order.
        fold.weight += peer.weight;
        fold.rows_used += self.oracle.rows_used(peer.rows, &peer.record, fold.kind);
        Ok(())
    }

    /// Δ_i = g_i − h_i; send C_up(Δ_i); h_i += α_up C_up(Δ_i)
    fn send(
        &self,
        client: &ClientOf<O>,
        reply: Reply<'_, O::Number>,
        computed: Computed<O>,
        key: Key,
    ) -> Result<Done<Self>> {
        let Reply { kind, down, frame, uplink, grid } = reply;
        let Computed { own, mut value, supports, left_out } = computed;
        // Blocks that too few rows determine enter as zero, before the difference to the memory.
        let mut withheld = left_out;
        let least = f64::from(self.terms.privacy.min_group.unwrap_or(1));
        for (block, _) in supports.into_iter().filter(|(_, rows)| *rows < least) {
            value[block].fill(O::Number::narrow(0.0));
            withheld += 1;
        }
        self.clip(&mut value, &frame);
        let frame = if self.frames_up() { (*frame).as_deref() } else { None };
        let (up, packet) = match (kind, grid) {
            (ExchangeKind::Round, None) => uplink.send(&client.up, &value, frame, key)?,
            (ExchangeKind::Round, Some(grid)) => {
                let (up, packet) = uplink.send_on_grid(&client.up, &value, frame, &grid, key)?;
                (up, self.add_share(packet, key)?)
            }
            (_, None) => uplink.open(&value)?,
            (_, Some(grid)) => uplink.open_on_grid(&value, &grid)?,
        };
        // Memories open at the first state, not before it.
        let up = if kind == ExchangeKind::FirstState { client.up.clone() } else { up };
        let client = Client { up, down, own };
        Ok(Done { client, up: Up { kind, packet, withheld }, withheld })
    }
}
