//! Asking many clients one thing and gathering the answers: the loop that all exchanges share.

use super::Network;
use crate::events::{Event, Order};
use crate::frames::Parcel;
use crate::limits::message_bytes_max;
use crate::proto::{Kind, Verdict};
use crate::registry::Standing;
use crate::status::{Open, Refusal, RunState, now};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use whimbrel_core::{ClientId, Error, Result};
use whimbrel_engine::Quorum;
use whimbrel_engine::client::StepId;

/// How often waiting is interrupted to look at the clock and the registry.
const TICK: Duration = Duration::from_millis(100);
/// How long a round may take before people are told whom it waits for.
const QUIET: Duration = Duration::from_secs(3);
/// Unsolicited uploads of one client. During one exchange this number of a slow client's may come
/// too late: of the exchange before and of its evaluation. More are no accident: they have no line
/// in the audit log and count as refusals, and above the maximum the connection is closed.
const STRAY: u32 = 2;
const STRAY_MAX: u32 = 50;

/// When a round is closed: as soon as everyone who was asked has answered; where there is a deadline,
/// as soon as a quorum has and all others are not connected, and at the deadline if by then a quorum
/// has. Without a quorum it waits on.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Rules {
    /// How many accepted uploads are enough.
    pub quorum: Quorum,
    /// How long a round waits for more than a quorum; none: until everyone has answered.
    pub deadline: Option<Duration>,
}

/// One thing that clients are asked.
pub(super) trait Call {
    /// The message to one client. Asked again after a broken connection, it gives the same bytes.
    fn message(&mut self, id: ClientId) -> Result<Parcel>;
    /// Takes an answer. An error refuses it and leaves everything as it was.
    fn take(&mut self, id: ClientId, bytes: Vec<u8>) -> Result<()>;
}

/// Nothing is asked yet.
struct Nothing;

impl Call for Nothing {
    fn message(&mut self, id: ClientId) -> Result<Parcel> {
        Err(Error::internal(format!("client {id} is asked before there is something to ask")))
    }

    fn take(&mut self, _: ClientId, _: Vec<u8>) -> Result<()> {
        Err(Error::peer("nothing was asked"))
    }
}

/// What is asked, of whom, and how long to wait.
pub(super) struct Asking {
    /// What for.
    pub kind: Kind,
    /// Of which step.
    pub at: StepId,
    /// What to call it in messages.
    pub what: String,
    /// When to stop waiting.
    pub rules: Rules,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gathered {
    /// Enough have answered.
    Closed,
    /// The coordinator is to stop.
    Interrupted,
}

/// Who was asked.
struct Seats {
    asked: BTreeMap<String, Seat>,
    /// Not heard and not given up.
    waiting: BTreeSet<String>,
    /// Connected and not sent to.
    ready: VecDeque<String>,
    heard: usize,
}

struct Seat {
    id: ClientId,
    state: State,
    refusals: u32,
    asked: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Sent,
    Heard,
    GivenUp,
}

impl Network {
    /// Asks these clients and waits for their answers.
    pub(super) fn gather(
        &mut self,
        asking: &Asking,
        ids: &[ClientId],
        call: &mut dyn Call,
    ) -> Result<Gathered> {
        let mut seats = Seats::new(self, ids);
        // Each thing asked excuses as many as a slow client may send.
        self.strays.retain(|_, strays| {
            *strays = strays.saturating_sub(STRAY);
            *strays > 0
        });
        let begun = Instant::now();
        let mut looked = Instant::now();
        let mut open = Open {
            asked: ids.len() as u32,
            heard: 0,
            quorum: asking.rules.quorum.of(ids.len()) as u32,
            closes: asking.rules.deadline.map(|d| now() + d.as_secs_f64()),
        };
        self.shared.board.change(|status| status.open = Some(open));
        loop {
            self.hand_out(asking, &mut seats, call)?;
            if self.is_closed(asking, &seats, begun) {
                self.tell_absent(asking, &seats);
                return Ok(Gathered::Closed);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Gathered::Interrupted);
            }
            if let Some(event) = self.next() {
                self.handle(event, asking, &mut seats, call)?;
            }
            if open.heard != seats.heard as u32 {
                open.heard = seats.heard as u32;
                self.shared.board.change(|status| status.open = Some(open));
            }
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                self.look_at_registry();
                if begun.elapsed() >= QUIET {
                    self.tell_people(asking, &seats);
                }
            }
        }
    }

    /// Waits until every client that brings its own name has brought it: numbers go by names.
    pub(super) fn wait_for_names(&mut self, asking: &Asking) -> Result<Gathered> {
        let mut seats = Seats::new(self, &[]);
        loop {
            self.look_at_registry();
            if self.nameless == 0 {
                return Ok(Gathered::Closed);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Gathered::Interrupted);
            }
            let waiting = format!("waiting for {} invitations to be redeemed", self.nameless);
            self.shared.board.state(RunState::Waiting, waiting);
            if let Some(event) = self.next() {
                self.handle(event, asking, &mut seats, &mut Nothing)?;
            }
        }
    }

    fn next(&mut self) -> Option<Event> {
        if let Ok(event) = self.events.try_recv() {
            return Some(event);
        }
        let runtime = self.runtime.clone();
        runtime.block_on(async { timeout(TICK, self.events.recv()).await }).ok().flatten()
    }

    fn is_closed(&self, asking: &Asking, seats: &Seats, begun: Instant) -> bool {
        if seats.waiting.iter().all(|name| self.is_excused(name)) {
            return true;
        }
        let enough = asking.rules.quorum.of(seats.asked.len());
        let Some(deadline) = asking.rules.deadline.filter(|_| seats.heard >= enough) else {
            return false;
        };
        // An absent client may come back before the deadline: the model is kept for it.
        let waits_for_nobody = asking.kind != Kind::Deliver
            && seats.waiting.iter().all(|name| !self.links.contains_key(name));
        waits_for_nobody || begun.elapsed() >= deadline
    }

    /// Says who is left out because it is not connected, whenever that changes.
    fn tell_absent(&mut self, asking: &Asking, seats: &Seats) {
        if !matches!(asking.kind, Kind::Exchange | Kind::Evaluate) {
            return;
        }
        let away = seats.waiting.iter().filter(|name| !self.links.contains_key(*name));
        let away: BTreeSet<String> = away.cloned().collect();
        if asking.kind == Kind::Exchange {
            for name in &away {
                self.shared.board.client(name, |client| client.missed += 1);
            }
        }
        let new: Vec<String> =
            away.difference(&self.absent).take(5).map(|name| format!("`{name}`")).collect();
        if !new.is_empty() {
            let more = match away.difference(&self.absent).count() - new.len() {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            self.shared.board.warn(&format!(
                "{}: goes on without {}{more} (not connected)",
                asking.what,
                new.join(", ")
            ));
        }
        if asking.kind == Kind::Exchange {
            // Who was asked and is there again is told of anew when it is away again.
            self.absent.retain(|name| away.contains(name) || !seats.asked.contains_key(name));
        }
        self.absent.extend(away);
    }

    /// Sends to the connected clients, as long as there is room for messages on their way.
    fn hand_out(&mut self, asking: &Asking, seats: &mut Seats, call: &mut dyn Call) -> Result<()> {
        while let Some(name) = seats.ready.pop_front() {
            let busy: u64 = self.sending.values().sum();
            if busy >= self.shared.limits.download_bytes {
                seats.ready.push_front(name);
                return Ok(());
            }
            let (Some(seat), Some(link)) = (seats.asked.get_mut(&name), self.links.get(&name))
            else {
                continue;
            };
            if seat.state != State::Waiting || self.sending.contains_key(&link.session) {
                continue;
            }
            let bytes = call.message(seat.id)?;
            let most = message_bytes_max(asking.kind, self.shared.limits.message_bytes);
            check_length(&asking.what, bytes.len() as u64, most)?;
            seat.state = State::Sent;
            seat.asked = Some(Instant::now());
            self.sending.insert(link.session, bytes.len() as u64);
            let Asking { kind, at, .. } = *asking;
            link.order(Order::Task { kind, at, client: seat.id.0, bytes });
        }
        Ok(())
    }

    fn handle(
        &mut self,
        event: Event,
        asking: &Asking,
        seats: &mut Seats,
        call: &mut dyn Call,
    ) -> Result<()> {
        match event {
            Event::Arrived { name, link, address, committed, staged, reply } => {
                let verdict = self.verdict(asking, seats, &name, committed, staged);
                let stays = verdict.is_ok();
                if verdict == Err(Refusal::Ahead) {
                    self.shared.board.warn(&format!(
                        "`{name}` was acknowledged more than this folder knows of: an older copy, or a \
                         log that lost its end; see `whimbrel repair`"
                    ));
                }
                if reply.send(verdict).is_err() || !stays {
                    return Ok(());
                }
                self.shared.audit.note("connected", &name, &address, false);
                self.shared.board.client(&name, |c| (c.connected, c.address) = (true, address));
                self.links.insert(name.clone(), link);
                // It was told what became of its staged step: a summary from before is void.
                if let Some(id) = self.numbers.get(&name) {
                    self.awaited.remove(id);
                    self.summaries.remove(id);
                }
                seats.again(&name);
            }
            Event::Left { name, session } => {
                self.sending.remove(&session);
                if self.links.get(&name).is_some_and(|link| link.session == session) {
                    self.links.remove(&name);
                    self.shared.board.client(&name, |c| {
                        c.connected = false;
                        c.disconnects += 1;
                    });
                    seats.lost(&name);
                }
            }
            Event::Sent { name, session } => {
                self.sending.remove(&session);
                // A newer message may have waited for this one to be through.
                if seats.asked.get(&name).is_some_and(|seat| seat.state == State::Waiting) {
                    seats.ready.push_back(name);
                }
            }
            Event::Upload { name, kind, at, bytes, room } => {
                self.upload(asking, seats, call, (&name, kind, at), bytes)?;
                drop(room);
            }
            Event::Breach { name } => self.refused(seats, &name),
            Event::Failed { name, reason } => {
                self.shared.audit.note("failed", &name, &reason, false);
                self.shared.board.warn(&format!("`{name}` cannot go on: {reason}"));
            }
            Event::Finished { name } => {
                if asking.kind == Kind::Deliver {
                    seats.heard(&name);
                }
                if self.finished.insert(name.clone()) {
                    self.shared.audit.note("finished", &name, "", false);
                    if let Err(error) = self.shared.registry.finish(&name) {
                        // It would only be waited for once more after a restart.
                        tracing::warn!(%error, "not noted that `{name}` has the model");
                    }
                }
                if let Some(link) = self.links.get(&name) {
                    link.order(Order::Close { reason: "goodbye".into(), over: true });
                }
            }
        }
        Ok(())
    }

    /// What became of a staged step; refuses a client that does not stand where it was left.
    fn verdict(
        &self,
        asking: &Asking,
        seats: &Seats,
        name: &str,
        committed: Option<StepId>,
        staged: Option<StepId>,
    ) -> std::result::Result<Verdict, Refusal> {
        if self.standings.get(name) == Some(&Standing::Revoked) {
            return Err(Refusal::Revoked);
        }
        let id = self.numbers.get(name);
        let fate = id.and_then(|id| self.fates.get(id)).copied();
        let commits = matches!(asking.kind, Kind::Enrol | Kind::Exchange);
        let verdict = match staged {
            None => Verdict::Open,
            Some(at) if Some(at) == fate => Verdict::Accepted,
            Some(at) if commits && at == asking.at && seats.asked.contains_key(name) => {
                Verdict::Open
            }
            Some(_) => Verdict::Dropped,
        };
        // What happened in earlier stages is over: each begins with an enrolment of its own. A client
        // in a later one was acknowledged more than is known here.
        let here = |at: Option<StepId>| at.filter(|p| p.stage >= asking.at.stage);
        let stands = if verdict == Verdict::Accepted { staged } else { committed };
        match (here(stands), here(fate)) {
            (stands, fate) if stands == fate => Ok(verdict),
            (Some(_), None) if self.repaired == Some(asking.at.stage) => Ok(Verdict::Forgotten),
            (stands, fate) if stands > fate => Err(Refusal::Ahead),
            _ => Err(Refusal::Behind),
        }
    }

    fn upload(
        &mut self,
        asking: &Asking,
        seats: &mut Seats,
        call: &mut dyn Call,
        (name, kind, at): (&str, Kind, StepId),
        bytes: Vec<u8>,
    ) -> Result<()> {
        if let Some(id) = self.numbers.get(name)
            && (kind, Some(&at)) == (Kind::Enrol, self.awaited.get(id))
        {
            self.summaries.insert(*id, bytes);
            return Ok(());
        }
        let fate = match seats.asked.get(name) {
            _ if (kind, at) != (asking.kind, asking.at) => {
                let id = self.numbers.get(name);
                let accepted = id.and_then(|id| self.fates.get(id)) == Some(&at);
                match accepted && kind != Kind::Evaluate {
                    // Sent again because the acknowledgement got lost.
                    true => Ok(()),
                    false if at <= asking.at => Err(Refusal::Late),
                    false => Err(Refusal::NotAsked),
                }
            }
            None => Err(Refusal::NotAsked),
            Some(Seat { state: State::Heard, .. }) => {
                // Its acknowledgement will come with the exchange's.
                self.stray(seats, name, Refusal::Duplicate);
                return Ok(());
            }
            Some(Seat { state: State::GivenUp, .. }) => Err(Refusal::Late),
            Some(seat) => match call.take(seat.id, bytes) {
                Ok(()) => {
                    let latency = seat.asked.map(|asked| asked.elapsed().as_secs_f64());
                    self.shared.board.client(name, |c| c.latency_s = latency.or(c.latency_s));
                    seats.heard(name);
                    return Ok(());
                }
                Err(error @ (Error::Internal { .. } | Error::Storage { .. })) => return Err(error),
                Err(error) => {
                    self.shared.audit.note("invalid", name, &error.to_string(), false);
                    self.refused(seats, name);
                    Err(Refusal::Invalid)
                }
            },
        };
        match fate {
            Err(why @ Refusal::Invalid) => self.shared.refuse(why, name, false),
            Err(why) => self.stray(seats, name, why),
            Ok(()) => {}
        }
        if fate.is_err() {
            self.shared.board.client(name, |c| c.refused += 1);
        }
        if let Some(link) = self.links.get(name) {
            link.order(Order::Ack { kind, at, fate });
        }
        if fate == Err(Refusal::Invalid) {
            seats.again(name);
        }
        Ok(())
    }

    /// Counts an unsolicited upload.
    fn stray(&mut self, seats: &mut Seats, name: &str, why: Refusal) {
        let strays = self.strays.entry(name.to_owned()).or_insert(0);
        *strays += 1;
        let strays = *strays;
        if strays <= STRAY {
            return self.shared.refuse(why, name, false);
        }
        self.shared.count_refusal(why);
        self.refused(seats, name);
        if strays == STRAY_MAX
            && let Some(link) = self.links.get(name)
        {
            let reason = "too many unsolicited uploads".to_owned();
            self.shared.audit.note("closed", name, &reason, false);
            link.order(Order::Close { reason, over: false });
        }
    }

    /// Counts what a client got wrong; after too much of it, this exchange no longer waits for it.
    fn refused(&mut self, seats: &mut Seats, name: &str) {
        let Some(seat) = seats.asked.get_mut(name) else { return };
        seat.refusals += 1;
        let open = matches!(seat.state, State::Waiting | State::Sent);
        if open && seat.refusals >= self.shared.limits.refusals_per_exchange {
            seat.state = State::GivenUp;
            seats.waiting.remove(name);
            let times = self.shared.limits.refusals_per_exchange;
            let line =
                format!("`{name}` was refused {times} times: this exchange closes without it");
            self.shared.audit.note("given-up", name, &line, false);
            self.shared.board.warn(&line);
        }
    }

    fn tell_people(&self, asking: &Asking, seats: &Seats) {
        let describe = |name: &String| match self.links.contains_key(name) {
            true => format!("`{name}`"),
            false => format!("`{name}` (not connected)"),
        };
        let shown: Vec<String> = seats.waiting.iter().take(5).map(describe).collect();
        let more = match seats.waiting.len().saturating_sub(shown.len()) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let text = match shown.is_empty() {
            true => asking.what.clone(),
            false => format!("{}: waiting for {}{more}", asking.what, shown.join(", ")),
        };
        self.shared.board.state(RunState::Waiting, text);
    }
}

/// Clients refuse what is longer than they were told.
fn check_length(what: &str, bytes: u64, most: u64) -> Result<()> {
    match bytes > most {
        true => Err(Error::config(format!(
            "{what}: a message has {bytes} bytes, and clients take {most} at most"
        ))
        .hint("start anew with a larger message_max in [federation]")),
        false => Ok(()),
    }
}

impl Seats {
    fn new(network: &Network, ids: &[ClientId]) -> Self {
        let seat = |id: &ClientId| {
            let seat = Seat { id: *id, state: State::Waiting, refusals: 0, asked: None };
            (network.name(*id).to_owned(), seat)
        };
        let asked: BTreeMap<String, Seat> = ids.iter().map(seat).collect();
        let waiting: BTreeSet<String> = asked.keys().cloned().collect();
        let there = waiting.iter().filter(|name| network.links.contains_key(*name));
        Self { ready: there.cloned().collect(), asked, waiting, heard: 0 }
    }

    fn heard(&mut self, name: &str) {
        if let Some(seat) = self.asked.get_mut(name)
            && seat.state != State::Heard
        {
            seat.state = State::Heard;
            self.waiting.remove(name);
            self.heard += 1;
        }
    }

    /// What was sent may not have come through: it is sent again.
    fn again(&mut self, name: &str) {
        if let Some(seat) = self.asked.get_mut(name)
            && matches!(seat.state, State::Waiting | State::Sent)
        {
            seat.state = State::Waiting;
            self.ready.push_back(name.to_owned());
        }
    }

    /// The connection is gone; nothing can be sent until the client is back.
    fn lost(&mut self, name: &str) {
        if let Some(seat) = self.asked.get_mut(name)
            && seat.state == State::Sent
        {
            seat.state = State::Waiting;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_from_what_it_says() {
        let of = |share, asked| Quorum::Share(share).of(asked);
        // As floating-point products these are a little more than the whole number.
        assert_eq!((of(0.55, 100), of(0.07, 100), of(0.14, 50)), (55, 7, 7));
        assert_eq!((of(0.5, 3), of(0.01, 3), of(1.0, 7), of(0.999, 1000)), (2, 1, 7, 999));
        assert_eq!((Quorum::Number(5).of(3), Quorum::All.of(4)), (3, 4));
    }
}
