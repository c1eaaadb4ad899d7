//! The loop around an oracle.

use super::state::{Client, Down, Enrolment, ExchangeKind, Fold, Peer, Server, Up};
use super::{Context, Federated, Local, Member, Oracle, Received, Split};
use crate::settings::Budget;
use std::borrow::Cow;
use std::sync::Arc;
use whimbrel_codec::Scalar;
use whimbrel_codec::channel::{DownClient, DownMessage, SharedMessages, Uplink};
use whimbrel_core::method::{Allowance, Artifact, Cohort, Disclosure, Method, Next, Sender, Task};
use whimbrel_core::{ClientId, Error, Frame, Key, Result, vector};

impl<O: Oracle> Federated<O> {
    /// What does not depend on the codec is the same on every uplink.
    fn uplink(&self) -> &Uplink {
        &self.terms.uplinks[0]
    }

    pub(super) fn context(&self, server: &Server<O::Global, O::Number>) -> Context {
        let first = self.oracle.first_question(&server.global).is_some();
        Context {
            kind: server.kind,
            round: server.round,
            k: server.round.saturating_sub(u32::from(first)),
            total: server.total,
            rows: server.rows,
            clients: server.clients,
            cohort: 0.0,
            converged: server.has_converged(),
        }
    }
}

impl<O: Oracle> Federated<O> {
    /// Enrols a client with these training rows.
    pub fn enroll_rows(
        &self,
        data: &O::Data,
        key: Key,
    ) -> Result<(<Self as Method>::Client, <Self as Method>::Summary)> {
        let (own, summary) = self.oracle.enroll(data, key)?;
        let (up, down) = (self.terms.up_client(), self.terms.downlink.client());
        Ok((Client { up, down, own }, Enrolment { rows: self.oracle.rows(data), summary }))
    }
}

impl<O: Oracle> Method for Federated<O> {
    type Data = Split<O::Data>;
    type Server = Server<O::Global, O::Number>;
    type Peer = Peer<O::Record, O::Number>;
    type Client = Client<O::Own, O::Number>;
    type Summary = Enrolment<O::Summary>;
    type Down = Down<O::Note, O::Private, O::Number>;
    type Up = Up;
    type Broadcast = SharedMessages<O::Number>;
    type Fold = Fold;

    fn enroll(&self, data: &Self::Data, key: Key) -> Result<(Self::Client, Self::Summary)> {
        self.enroll_rows(&data.train, key)
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
        if self.oracle.first_question(&global).is_some() != O::FIRST_EXCHANGE {
            return Err(Error::internal("an oracle's first question is not its FIRST_EXCHANGE"));
        }
        let (kind, down) = match self.oracle.first_question(&global) {
            Some(_) => (ExchangeKind::FirstState, self.terms.downlink.server(&[])),
            None => {
                let published = self.oracle.published(&global);
                (self.terms.after_first_state(), self.terms.downlink.server(&published))
            }
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
        self.oracle.admit(&mut server.global, &member)?;
        server.total += weight;
        server.rows += rows;
        server.clients += 1;
        if let Some(h_0) = self.terms.given_memory() {
            // As wide as the client holds it.
            for (sum, h) in server.up.memory_sum.iter_mut().zip(h_0) {
                *sum += weight * O::Number::narrow(*h).wide();
            }
        }
        let uplink = self.terms.own_uplinks.get(&id.0).copied().unwrap_or(0);
        let down = self.terms.downlink.admit(&mut server.down, id);
        Ok(Peer { weight, rows, uplink, record: self.oracle.record(id), down })
    }

    fn rows(&self, peer: &Self::Peer) -> Option<u64> {
        Some(peer.rows)
    }

    fn allowances(&self) -> Vec<Allowance> {
        // The first exchange is one of the rounds.
        let first = u32::from(O::FIRST_EXCHANGE);
        let rounds = self.terms.budget.rounds_max().map(|rounds| rounds.saturating_sub(first));
        let passes = self.oracle.full_passes().map_or(Some(0), |passes| passes.most(rounds));
        let openings = [
            Allowance { most: Some(first), ..Allowance::opening("first state", 0) },
            Allowance {
                most: Some(u32::from(self.terms.opens())),
                ..Allowance::opening("memories", 1)
            },
        ];
        let passes = Allowance { name: "full passes", ..Allowance::rounds(passes) };
        openings.into_iter().chain([Allowance::rounds(rounds), passes]).collect()
    }

    fn allowance(&self, client: &Self::Client, down: &Self::Down) -> usize {
        match down.kind {
            ExchangeKind::FirstState => 0,
            ExchangeKind::OpenMemories => 1,
            ExchangeKind::Round => {
                let passes = self.oracle.full_passes();
                let note = down.note.as_ref();
                2 + usize::from(passes.is_some_and(|p| p.is_full_pass(&client.own, note)))
            }
        }
    }

    fn next(&self, server: &Self::Server) -> Next {
        let done = match self.terms.budget {
            Budget::Rounds(rounds) => server.round >= rounds,
            Budget::Epochs(epochs) => server.epoch() >= epochs,
            Budget::Converged(rounds) => server.round >= rounds || server.has_converged(),
        };
        match server.kind {
            _ if done => Next::Stop,
            ExchangeKind::FirstState => Next::Round(Cohort::Everyone),
            ExchangeKind::OpenMemories => Next::Uncounted,
            ExchangeKind::Round => Next::Round(Cohort::Sampled),
        }
    }

    fn broadcast(&self, server: &Self::Server) -> Result<Self::Broadcast> {
        Ok(self.terms.downlink.shared_messages(&server.down))
    }

    fn downlink(
        &self,
        server: &Self::Server,
        broadcast: &Self::Broadcast,
        peer: &Self::Peer,
        _: Key,
    ) -> Result<(Self::Peer, Self::Down)> {
        let context = self.context(server);
        let (record, private) = self.oracle.private(&server.global, &peer.record, &context);
        let (down, state) = match server.kind {
            // There is no state yet that a channel could carry.
            ExchangeKind::FirstState => {
                let question = self.oracle.first_question(&server.global);
                let question = question.ok_or_else(no_first_exchange)?;
                (peer.down.clone(), broadcast.get(0, || DownMessage::whole(&question)))
            }
            ExchangeKind::OpenMemories | ExchangeKind::Round => {
                let published = self.oracle.published(&server.global);
                let moments = self.moments(&server.global);
                let (end, known, downlink) = (&server.down, &peer.down, &self.terms.downlink);
                self.with_frames_down(moments, |frames| {
                    downlink.send_shared(end, broadcast, known, &published, frames)
                })?
            }
        };
        let note = self.oracle.note(&server.global, &context);
        let (kind, uplink) = (server.kind, peer.uplink);
        Ok((Peer { down, record, ..*peer }, Down { kind, uplink, note, state, private }))
    }

    fn local_step(
        &self,
        client: &Self::Client,
        down: &Self::Down,
        data: &Self::Data,
        key: Key,
    ) -> Result<(Self::Client, Up)> {
        let message = down.state.get()?;
        let Opened { end, state, frame, uplink } = self.open(client, down, &message)?;
        let received = received(down, state);
        let (own, value) = self.oracle.local(received, &client.own, &data.train, key)?;
        self.send(client, Answer { end, frame, uplink, own, value }, down.kind, key)
    }

    fn local_steps(&self, tasks: &mut [Task<'_, Self>]) {
        let messages: Vec<_> = tasks.iter().map(|task| task.down.state.get()).collect();
        let (mut group, mut ends) = (Vec::new(), Vec::new());
        let mut done: Vec<_> = tasks.iter().map(|_| None).collect();
        for (at, (task, message)) in tasks.iter().zip(&messages).enumerate() {
            let message = message.as_deref().map_err(Clone::clone);
            match message.and_then(|message| self.open(task.client, &task.down, message)) {
                Err(error) => done[at] = Some(Err(error)),
                Ok(Opened { end, state, frame, uplink }) => {
                    let received = received(&task.down, state);
                    let (own, data) = (&task.client.own, &task.data.train);
                    group.push(Local { received, own, data, key: task.key, done: None });
                    ends.push((at, end, frame, uplink));
                }
            }
        }
        self.oracle.locals(&mut group);
        for ((at, end, frame, uplink), local) in ends.into_iter().zip(group) {
            let (task, found) = (&tasks[at], local.done);
            done[at] = found.map(|found| {
                let (own, value) = found?;
                let answer = Answer { end, frame, uplink, own, value };
                self.send(task.client, answer, task.down.kind, task.key)
            });
        }
        tasks.iter_mut().zip(done).for_each(|(task, done)| task.done = done);
    }

    fn batch(&self) -> usize {
        self.oracle.clients_at_once()
    }

    fn fold(&self, server: &Self::Server) -> Fold {
        let sums = if server.kind == ExchangeKind::Round { self.sums() } else { 1 };
        let (up, down) = (vec![self.uplink().fold(); sums], self.terms.downlink.fold());
        let moments = match self.frames_each() {
            true => self.moments(&server.global).to_vec(),
            false => Vec::new(),
        };
        Fold { kind: server.kind, up, moments, down, rows_used: 0, weight: 0.0 }
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Self::Peer>, up: Up) -> Result<()> {
        if up.kind != fold.kind {
            return Err(Error::peer(format!(
                "client {} answered an exchange that is over",
                from.id
            )));
        }
        let peer = from.peer;
        let uplink = &self.terms.uplinks[usize::from(peer.uplink)];
        if fold.kind == ExchangeKind::Round {
            let frame = match self.frames_each() {
                true => self.frame(peer.down.local(), &fold.moments)?,
                false => None,
            };
            let (sum, weight) = (&mut fold.up[self.sum_of(peer)], peer.weight);
            let (packet, frame) = (&up.packet, frame.as_deref());
            uplink.absorb_in::<O::Number>(sum, weight, from.inclusion, packet, frame)?;
            self.terms.downlink.absorb(&mut fold.down, &peer.down)?;
        } else {
            uplink.absorb_opening::<O::Number>(&mut fold.up[0], peer.weight, &up.packet)?;
        }
        // Weights are whole numbers: their sum does not depend on the order.
        fold.weight += peer.weight;
        fold.rows_used += self.oracle.rows_used(peer.rows, &peer.record, fold.kind);
        Ok(())
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        fold.rows_used += other.rows_used;
        fold.weight += other.weight;
        self.terms.downlink.merge(&mut fold.down, &other.down)?;
        let mut pairs = fold.up.iter_mut().zip(&other.up);
        pairs.try_for_each(|(sum, other)| self.uplink().merge(sum, other))
    }

    fn server_step(&self, mut server: Self::Server, fold: Fold, key: Key) -> Result<Self::Server> {
        let context = Context { cohort: fold.weight, ..self.context(&server) };
        server.rows_used += fold.rows_used;
        match server.kind {
            // w_0, from the mean over everyone; asked again where no client was heard.
            ExchangeKind::FirstState => {
                server.round += 1;
                if let Some(mean) = self.uplink().mean_opening(&fold.up[0]) {
                    self.oracle.first_state(&mut server.global, mean, &context)?;
                    let published = self.oracle.published(&server.global);
                    self.terms.downlink.restart(&mut server.down, &published);
                    server.kind = self.terms.after_first_state();
                }
            }
            // h_{0,i} = g_i(w_0)
            ExchangeKind::OpenMemories => {
                self.uplink().collect_opening(&mut server.up, &fold.up[0]);
                if let Some(mean) = self.uplink().mean_opening(&fold.up[0]) {
                    self.oracle.memories_opened(&mut server.global, &mean);
                }
                server.kind = ExchangeKind::Round;
            }
            ExchangeKind::Round => {
                // ĝ = Σ (n_i/N) h_i + Σ_A (n_i/N) C_up(Δ_i)/p_i
                let frames = self.frames_of_sums(&server)?;
                let frames = frames.iter().map(Option::as_deref);
                let sums: Vec<_> = fold.up.iter().zip(frames).collect();
                let estimate = self.uplink().collect_in(&mut server.up, &sums, server.total);
                let field = self.oracle.field(&server.global, estimate);
                let state2 = self.oracle.magnitude(&server.global, 0.0).powi(2);
                server.note_update(vector::norm2_squared(&field), state2);
                server.spread = self.terms.downlink.spread(&fold.down);
                self.oracle.step(&mut server.global, field, &context)?;
                // What went down for this round, to each client heard.
                let ghost_bytes = self.terms.downlink.ghost_bytes(&server.down).unwrap_or(0);
                server.ghost_bytes += ghost_bytes * u64::from(fold.down.count());
                // C_dwn: a degraded downlink changes the server's state, too.
                let wanted = self.oracle.published(&server.global).into_owned();
                let (downlink, end) = (&self.terms.downlink, &mut server.down);
                let moments = self.moments(&server.global);
                let published = self.with_frames_down(moments, |frames| {
                    downlink.publish(end, wanted, &fold.down, frames, key)
                })?;
                self.oracle.after_publish(&mut server.global, published, &context)?;
                server.round += 1;
            }
        }
        Ok(server)
    }

    fn without_clients(&self, mut server: Self::Server) -> Result<Self::Server> {
        self.oracle.without_clients(&mut server.global);
        (server.total, server.rows, server.clients) = (0.0, 0, 0);
        server.up = self.uplink().server();
        if server.kind != ExchangeKind::FirstState {
            let published = self.oracle.published(&server.global);
            server.down = self.terms.downlink.server(&published);
            server.kind = self.terms.after_first_state();
        }
        Ok(server)
    }

    fn magnitude(&self, server: &Self::Server) -> f64 {
        // Clients may diverge while the server does not.
        self.oracle.magnitude(&server.global, server.spread.map_or(0.0, |spread| spread.local2))
    }

    fn artifact(&self, server: &Self::Server) -> Result<Artifact> {
        self.oracle.artifact(&server.global)
    }

    fn client_artifact(&self, client: &Self::Client, _: &Self::Data) -> Result<Option<Artifact>> {
        Ok(self.oracle.client_artifact(&client.own))
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        self.oracle.disclosures(&self.terms)
    }
}

/// What a client made of a message.
struct Opened<'a, N: Scalar> {
    /// Its end of the downlink.
    end: DownClient<N>,
    state: Cow<'a, [N]>,
    frame: SharedFrame,
    uplink: &'a Uplink,
}

/// What goes up.
struct Answer<'a, O: Oracle> {
    end: DownClient<O::Number>,
    frame: SharedFrame,
    uplink: &'a Uplink,
    own: O::Own,
    value: Vec<O::Number>,
}

/// The frame of an upload, where there is one; clients that were sent the same share it.
type SharedFrame = Arc<Option<Box<dyn Frame>>>;
type DownOf<O> = Down<<O as Oracle>::Note, <O as Oracle>::Private, <O as Oracle>::Number>;
type ClientOf<O> = Client<<O as Oracle>::Own, <O as Oracle>::Number>;

fn received<'a, O: Oracle>(down: &'a DownOf<O>, state: Cow<'a, [O::Number]>) -> Received<'a, O> {
    Received { kind: down.kind, state, note: down.note.as_ref(), private: &down.private }
}

impl<O: Oracle> Federated<O> {
    /// What a message holds for this client.
    fn open<'a>(
        &'a self,
        client: &ClientOf<O>,
        down: &DownOf<O>,
        message: &'a DownMessage<O::Number>,
    ) -> Result<Opened<'a, O::Number>> {
        let moments = match self.oracle.framed() {
            Some(framed) => framed.client_moments(&client.own, &down.private),
            None => &[],
        };
        // ŵ_i = H_i + C_dwn(w − H_i), H_i += α_dwn C_dwn(.)
        let (end, state) = match down.kind {
            ExchangeKind::FirstState => {
                let whole = message.state();
                let whole = whole.ok_or_else(|| Error::peer("the first question is missing"))?;
                (client.down.clone(), Cow::Borrowed(whole))
            }
            _ => self.with_frames_down(moments, |frames| {
                self.terms.downlink.receive(&client.down, message, frames)
            })?,
        };
        let uplink = self.terms.uplinks.get(usize::from(down.uplink));
        let uplink = uplink
            .ok_or_else(|| Error::peer("a message names an uplink that the job does not have"))?;
        let frame = match down.kind == ExchangeKind::Round && self.frames_up() {
            // What everyone was sent is all that the frame is made from.
            true if moments.is_empty() && matches!(state, Cow::Borrowed(_)) => {
                down.state.derived(|| self.frame(&state, moments))?
            }
            true => Arc::new(self.frame(&state, moments)?),
            false => Arc::new(None),
        };
        Ok(Opened { end, state, frame, uplink })
    }

    /// Δ_i = g_i − h_i; send C_up(Δ_i); h_i += α_up C_up(Δ_i)
    fn send(
        &self,
        client: &ClientOf<O>,
        answer: Answer<'_, O>,
        kind: ExchangeKind,
        key: Key,
    ) -> Result<(ClientOf<O>, Up)> {
        let Answer { end, frame, uplink, own, value } = answer;
        let (up, packet) = match kind {
            ExchangeKind::FirstState => (client.up.clone(), uplink.open(&value)?.1),
            ExchangeKind::OpenMemories => uplink.open(&value)?,
            ExchangeKind::Round => uplink.send_in(&client.up, &value, (*frame).as_deref(), key)?,
        };
        Ok((Client { up, down: end, own }, Up { kind, packet }))
    }
}

fn no_first_exchange() -> Error {
    Error::internal("a first exchange without a question")
}
