//! One request to many clients and the collection of their answers: the loop of all exchanges.

use super::{Network, TICK};
use crate::events::{Event, Link, Order};
use crate::frames::Parcel;
use crate::limits::message_bytes_max;
use crate::proto::{Kind, Verdict};
use crate::registry::Standing;
use crate::status::{Open, Refusal, RunState, now};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use whimbrel_core::{ClientId, Error, Result};
use whimbrel_engine::Quorum;
use whimbrel_engine::client::StepId;

/// Time after which the status names the clients that a round waits for.
const QUIET: Duration = Duration::from_secs(3);
/// Number of clients named in a status line.
const NAMED_MAX: usize = 5;
/// Unsolicited uploads of one client that are allowed per exchange: a slow client may be late with
/// the previous exchange and with its evaluation. Further ones count as refusals without a line in
/// the audit log, and at the maximum the connection is closed.
const UNSOLICITED: u32 = 2;
const UNSOLICITED_MAX: u32 = 50;

/// Closing rule of a round. A round closes when all respondents have answered. With a deadline it
/// also closes at quorum once all others are disconnected, and at the deadline if there is a
/// quorum. Without a quorum it keeps waiting.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Rules {
    /// Number of accepted uploads that suffice.
    pub quorum: Quorum,
    /// Longest wait beyond a quorum; `None` waits for all respondents.
    pub deadline: Option<Duration>,
}

/// Makes the messages of a request and collects the answers.
pub(super) trait Collector {
    /// The message to one client. A repeated call, after a broken connection, gives the same bytes.
    fn message(&mut self, id: ClientId) -> Result<Parcel>;
    /// Takes an answer. An error refuses it and leaves the state unchanged.
    fn accept(&mut self, id: ClientId, bytes: Vec<u8>) -> Result<()>;
}

/// A request to many clients.
pub(super) struct Request {
    pub kind: Kind,
    pub at: StepId,
    pub what: String,
    pub rules: Rules,
}

impl Request {
    /// The request for summaries of a stage.
    pub fn enrolment(stage: u32, what: String, rules: Rules) -> Self {
        Self { kind: Kind::Enrol, at: StepId::enrolment(stage), what, rules }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gathered {
    Closed,
    /// The coordinator was told to stop.
    Interrupted,
}

/// The clients of a request.
struct Respondents {
    all: BTreeMap<String, Respondent>,
    /// Clients that have neither answered nor been given up.
    pending: BTreeSet<String>,
    /// Connected clients that still need the message.
    ready: VecDeque<String>,
    answered: usize,
}

struct Respondent {
    id: ClientId,
    state: State,
    refusals: u32,
    sent: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unsent,
    Sent,
    Answered,
    GivenUp,
}

impl Network {
    /// Sends a request to these clients and waits for their answers.
    pub(super) fn gather(
        &mut self,
        request: &Request,
        ids: &[ClientId],
        collector: &mut dyn Collector,
    ) -> Result<Gathered> {
        let mut respondents = Respondents::new(self, ids);
        self.unsolicited.retain(|_, uploads| {
            *uploads = uploads.saturating_sub(UNSOLICITED);
            *uploads > 0
        });
        let begun = Instant::now();
        let mut refreshed = begun;
        let mut open = Open {
            asked: ids.len() as u32,
            heard: 0,
            quorum: request.rules.quorum.of(ids.len()) as u32,
            closes: request.rules.deadline.map(|d| now() + d.as_secs_f64()),
        };
        self.shared.board.change(|status| status.open = Some(open));
        loop {
            self.send_requests(request, &mut respondents, collector)?;
            let is_closed = self.is_closed(request, &respondents, begun);
            if is_closed || self.inbox.is_empty() {
                self.record_finished();
                self.record_told();
            }
            if is_closed {
                self.report_absent(request, &respondents);
                return Ok(Gathered::Closed);
            }
            if self.inbox.is_stopped() {
                return Ok(Gathered::Interrupted);
            }
            self.check_failed(request, &respondents)?;
            if let Some(event) = self.inbox.next() {
                self.handle(event, request, &mut respondents, collector)?;
            }
            if open.heard != respondents.answered as u32 {
                open.heard = respondents.answered as u32;
                self.shared.board.change(|status| status.open = Some(open));
            }
            if refreshed.elapsed() >= TICK {
                refreshed = Instant::now();
                self.refresh_registry();
                if begun.elapsed() >= QUIET {
                    self.report_pending(request, &respondents);
                }
            }
        }
    }

    /// Waits until every client that chooses its name has done so, since ids follow names.
    pub(super) fn wait_for_names(
        &mut self,
        request: &Request,
        collector: &mut dyn Collector,
    ) -> Result<Gathered> {
        let mut nobody = Respondents::new(self, &[]);
        loop {
            self.refresh_registry();
            if self.roster.unnamed == 0 {
                return Ok(Gathered::Closed);
            }
            if self.inbox.is_stopped() {
                return Ok(Gathered::Interrupted);
            }
            let waiting = format!("waiting for {} invitations to be redeemed", self.roster.unnamed);
            self.shared.board.state(RunState::Waiting, waiting);
            if let Some(event) = self.inbox.next() {
                self.handle(event, request, &mut nobody, collector)?;
            }
            self.record_finished();
        }
    }

    fn is_closed(&self, request: &Request, respondents: &Respondents, begun: Instant) -> bool {
        if respondents.pending.iter().all(|name| self.is_excused(name)) {
            return true;
        }
        let enough = request.rules.quorum.of(respondents.all.len());
        let Some(deadline) = request.rules.deadline.filter(|_| respondents.answered >= enough)
        else {
            return false;
        };
        // The model stays available until the deadline: a disconnected client may still fetch it.
        let all_disconnected = request.kind != Kind::Deliver
            && respondents.pending.iter().all(|name| !self.connections.has(name));
        all_disconnected || begun.elapsed() >= deadline
    }

    /// An error if all clients of an exchange failed: they end for good, and nobody would answer.
    fn check_failed(&self, request: &Request, respondents: &Respondents) -> Result<()> {
        let awaits = request.kind == Kind::Exchange && respondents.answered == 0;
        let pending = respondents.pending.iter().filter(|name| !self.is_excused(name));
        let mut reasons = pending.map(|name| self.failed.get_key_value(name));
        match reasons.next().flatten() {
            Some((name, reason)) if awaits && reasons.all(|reason| reason.is_some()) => {
                let what = &request.what;
                Err(Error::peer(format!("{what}: no client can continue; `{name}`: {reason}")))
            }
            _ => Ok(()),
        }
    }

    /// Counts the clients that the round leaves out, and reports disconnected ones, once per absence.
    fn report_absent(&mut self, request: &Request, respondents: &Respondents) {
        if !matches!(request.kind, Kind::Exchange | Kind::Evaluate) {
            return;
        }
        // A client that has left is not missed.
        let is_missed = |name: &&String| self.roster.standing(name) != Some(Standing::Revoked);
        let missed: Vec<&String> = respondents.pending.iter().filter(is_missed).collect();
        if request.kind == Kind::Exchange {
            for name in &missed {
                self.shared.board.client(name, |client| client.missed += 1);
            }
        }
        let away = missed.into_iter().filter(|name| !self.connections.has(name));
        let away: BTreeSet<String> = away.cloned().collect();
        let new: Vec<String> =
            away.difference(&self.absent).map(|name| format!("`{name}`")).collect();
        if !new.is_empty() {
            let new = shortened(&new);
            self.shared
                .board
                .warn(&format!("{}: continues without {new} (not connected)", request.what));
        }
        if request.kind == Kind::Exchange {
            self.absent.retain(|name| away.contains(name) || !respondents.all.contains_key(name));
        }
        self.absent.extend(away);
    }

    /// Names the clients that the request waits for on the status board.
    fn report_pending(&self, request: &Request, respondents: &Respondents) {
        let describe = |name: &String| {
            let note = if self.connections.has(name) {
                ""
            } else if self.is_undecided(name) {
                " (asked for consent)"
            } else {
                " (not connected)"
            };
            format!("`{name}`{note}")
        };
        let pending: Vec<String> = respondents.pending.iter().map(describe).collect();
        let text = if pending.is_empty() {
            request.what.clone()
        } else {
            format!("{}: waiting for {}", request.what, shortened(&pending))
        };
        self.shared.board.state(RunState::Waiting, text);
    }

    /// Sends the message to connected clients, up to the limit of bytes being sent.
    fn send_requests(
        &mut self,
        request: &Request,
        respondents: &mut Respondents,
        collector: &mut dyn Collector,
    ) -> Result<()> {
        while let Some(name) = respondents.ready.pop_front() {
            let sending = &mut self.connections.sending;
            if sending.total >= self.shared.limits.download_bytes {
                respondents.ready.push_front(name);
                return Ok(());
            }
            let (Some(respondent), Some(link)) =
                (respondents.all.get_mut(&name), self.connections.links.get(&name))
            else {
                continue;
            };
            if respondent.state != State::Unsent || sending.bytes.contains_key(&link.session) {
                continue;
            }
            let bytes = collector.message(respondent.id)?;
            let most = message_bytes_max(request.kind, self.shared.limits.message_bytes);
            check_length(&request.what, bytes.len() as u64, most)?;
            respondent.state = State::Sent;
            respondent.sent = Some(Instant::now());
            sending.begin(link.session, bytes.len() as u64);
            let Request { kind, at, .. } = *request;
            link.order(Order::Task { kind, at, client: respondent.id.0, bytes });
        }
        Ok(())
    }

    fn handle(
        &mut self,
        event: Event,
        request: &Request,
        respondents: &mut Respondents,
        collector: &mut dyn Collector,
    ) -> Result<()> {
        match event {
            Event::Arrived { name, link, address, committed, staged, reply } => {
                let verdict = self.verdict(request, respondents, &name, committed, staged);
                let stays = verdict.is_ok();
                if verdict == Err(Refusal::Fixed) {
                    self.shared.board.warn(&format!("`{name}` cannot join: {}", Refusal::Fixed));
                }
                if verdict == Err(Refusal::Ahead) {
                    self.shared.board.warn(&format!(
                        "`{name}` holds acknowledgements that this folder lacks: the folder is an \
                         older copy, or its log lost its end; see `whimbrel repair`"
                    ));
                }
                if reply.send(verdict).is_ok() && stays {
                    self.arrived(name, link, address, respondents);
                }
            }
            Event::Left { name, session } => {
                self.connections.sending.end(session);
                let links = &mut self.connections.links;
                if links.get(&name).is_some_and(|link| link.session == session) {
                    links.remove(&name);
                    self.shared.board.disconnected(&name, request.kind == Kind::Deliver);
                    respondents.lost(&name);
                }
            }
            Event::Sent { name, session } => {
                self.connections.sending.end(session);
                // A newer message may have waited for this one.
                if respondents.all.get(&name).is_some_and(|r| r.state == State::Unsent) {
                    respondents.ready.push_back(name);
                }
            }
            Event::Upload { name, kind, at, bytes, memory } => {
                self.note_told(&name);
                self.upload(request, respondents, collector, (&name, kind, at), bytes)?;
                drop(memory);
            }
            Event::Violation { name } => self.count_refusal(respondents, &name),
            Event::Failed { name, reason } => {
                self.shared.audit.note("failed", &name, &reason);
                self.shared.board.warn(&format!("`{name}` cannot continue: {reason}"));
                self.failed.insert(name, reason);
            }
            Event::Finished { name } => {
                if request.kind == Kind::Deliver {
                    respondents.answered(&name);
                }
                self.finished(name);
            }
            Event::Declined { name } => self.declined(&name),
            Event::Withdrew { name } => self.withdrew(&name),
        }
        Ok(())
    }

    fn arrived(
        &mut self,
        name: String,
        link: Link,
        address: String,
        respondents: &mut Respondents,
    ) {
        self.failed.remove(&name);
        self.shared.audit.note("connected", &name, &address);
        self.shared.board.connected(&name, &address);
        // The client knows the outcome of its staged step: an earlier summary is void.
        if let Some(id) = self.roster.id(&name) {
            self.late.forget(id);
        }
        respondents.resend(&name);
        self.connections.links.insert(name, link);
    }

    fn finished(&mut self, name: String) {
        if self.roster.finished.insert(name.clone()) {
            self.shared.audit.note("finished", &name, "");
            self.shared.board.client(&name, |c| c.finished = true);
            self.finishing.push(name);
        } else {
            self.close_finished(&name);
        }
    }

    /// Records the clients that have the model once no further event waits, and closes their
    /// connections: many clients that finish together cost one change of the list.
    fn record_finished(&mut self) {
        if self.finishing.is_empty() {
            return;
        }
        let names = std::mem::take(&mut self.finishing);
        if let Err(error) = self.shared.registry.finish(&names) {
            // At worst a restarted coordinator waits for them once more.
            tracing::warn!(%error, "not recorded that {} clients have the model", names.len());
        }
        names.iter().for_each(|name| self.close_finished(name));
    }

    fn close_finished(&self, name: &str) {
        let close = Order::Close { reason: "goodbye".into(), over: true };
        self.connections.order(name, close);
    }

    /// The outcome of a staged step. A client whose state differs from its last acknowledgement is
    /// refused.
    fn verdict(
        &self,
        request: &Request,
        respondents: &Respondents,
        name: &str,
        committed: Option<StepId>,
        staged: Option<StepId>,
    ) -> std::result::Result<Verdict, Refusal> {
        if let Some(why) = self.barred(name) {
            return Err(why);
        }
        // Ids are assigned when the first stage begins.
        if self.masked && self.roster.len() > 0 && self.roster.id(name).is_none() {
            return Err(Refusal::Fixed);
        }
        let accepted = self.last_accepted(name);
        let commits = matches!(request.kind, Kind::Enrol | Kind::Exchange);
        let verdict = match staged {
            None => Verdict::Open,
            Some(at) if Some(at) == accepted => Verdict::Accepted,
            Some(at) if commits && at == request.at && respondents.all.contains_key(name) => {
                Verdict::Open
            }
            Some(_) => Verdict::Dropped,
        };
        // Each stage begins with its own enrolment, so earlier stages do not matter. A client in a
        // later stage holds an acknowledgement that was lost here.
        let here = |at: Option<StepId>| at.filter(|p| p.stage >= request.at.stage);
        let stands = if verdict == Verdict::Accepted { staged } else { committed };
        match (here(stands), here(accepted)) {
            (stands, accepted) if stands == accepted => Ok(verdict),
            (Some(_), None) if self.history.repaired == Some(request.at.stage) => {
                Ok(Verdict::Forgotten)
            }
            (stands, accepted) if stands > accepted => Err(Refusal::Ahead),
            _ => Err(Refusal::Behind),
        }
    }

    fn upload(
        &mut self,
        request: &Request,
        respondents: &mut Respondents,
        collector: &mut dyn Collector,
        (name, kind, at): (&str, Kind, StepId),
        bytes: Vec<u8>,
    ) -> Result<()> {
        if let Some(id) = self.roster.id(name)
            && (kind, Some(&at)) == (Kind::Enrol, self.late.awaited.get(&id))
        {
            self.late.summaries.insert(id, bytes);
            return Ok(());
        }
        let result = match respondents.all.get(name) {
            _ if (kind, at) != (request.kind, request.at) => {
                if kind != Kind::Evaluate && self.last_accepted(name) == Some(at) {
                    // Repeated because the acknowledgement was lost.
                    Ok(())
                } else if at <= request.at {
                    Err(Refusal::Late)
                } else {
                    Err(Refusal::NotAsked)
                }
            }
            None => Err(Refusal::NotAsked),
            Some(Respondent { state: State::Answered, .. }) => {
                // The exchange's acknowledgement answers it.
                self.count_unsolicited(respondents, name, Refusal::Duplicate);
                return Ok(());
            }
            Some(Respondent { state: State::GivenUp, .. }) => Err(Refusal::Late),
            Some(respondent) => match collector.accept(respondent.id, bytes) {
                Ok(()) => {
                    let latency = respondent.sent.map(|sent| sent.elapsed().as_secs_f64());
                    self.shared.board.client(name, |c| c.latency_s = latency.or(c.latency_s));
                    respondents.answered(name);
                    return Ok(());
                }
                Err(error @ (Error::Internal { .. } | Error::Storage { .. })) => return Err(error),
                Err(error) => {
                    self.shared.audit.note("invalid", name, &error.to_string());
                    self.count_refusal(respondents, name);
                    Err(Refusal::Invalid)
                }
            },
        };
        if let Err(why) = result {
            self.shared.board.client(name, |c| c.refused += 1);
            if why == Refusal::Invalid {
                self.shared.refuse(why, name);
            } else {
                self.count_unsolicited(respondents, name, why);
            }
        }
        self.connections.order(name, Order::Ack { kind, at, result });
        if result == Err(Refusal::Invalid) {
            respondents.resend(name);
        }
        Ok(())
    }

    fn count_unsolicited(&mut self, respondents: &mut Respondents, name: &str, why: Refusal) {
        let uploads = self.unsolicited.entry(name.to_owned()).or_insert(0);
        *uploads += 1;
        let uploads = *uploads;
        if uploads <= UNSOLICITED {
            return self.shared.refuse(why, name);
        }
        self.shared.board.refuse(why);
        self.count_refusal(respondents, name);
        if uploads == UNSOLICITED_MAX && self.connections.has(name) {
            let reason = "too many unsolicited uploads".to_owned();
            self.shared.audit.note("closed", name, &reason);
            self.connections.order(name, Order::Close { reason, over: false });
        }
    }

    /// Counts a refusal of a client; after too many, the request no longer waits for it.
    fn count_refusal(&mut self, respondents: &mut Respondents, name: &str) {
        let Some(respondent) = respondents.all.get_mut(name) else { return };
        respondent.refusals += 1;
        let open = matches!(respondent.state, State::Unsent | State::Sent);
        let most = self.shared.limits.refusals_per_exchange;
        if open && respondent.refusals >= most {
            respondent.state = State::GivenUp;
            respondents.pending.remove(name);
            let line =
                format!("`{name}` was refused {most} times: this exchange closes without it");
            self.shared.audit.note("given-up", name, &line);
            self.shared.board.warn(&line);
        }
    }
}

/// The first names of a list and the number of the others.
fn shortened(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMED_MAX)].join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Refuses a message that clients would refuse for its length.
fn check_length(what: &str, bytes: u64, most: u64) -> Result<()> {
    if bytes <= most {
        return Ok(());
    }
    let what = format!("{what}: a message has {bytes} bytes, and clients accept {most} at most");
    Err(Error::config(what).hint("begin a new run with a larger message_max in [federation]"))
}

impl Respondents {
    fn new(network: &Network, ids: &[ClientId]) -> Self {
        let respondent = |id: &ClientId| {
            let respondent = Respondent { id: *id, state: State::Unsent, refusals: 0, sent: None };
            (network.roster.name(*id).to_owned(), respondent)
        };
        let all: BTreeMap<String, Respondent> = ids.iter().map(respondent).collect();
        let pending: BTreeSet<String> = all.keys().cloned().collect();
        let connected = pending.iter().filter(|name| network.connections.has(name));
        Self { ready: connected.cloned().collect(), all, pending, answered: 0 }
    }

    fn answered(&mut self, name: &str) {
        if let Some(respondent) = self.all.get_mut(name)
            && respondent.state != State::Answered
        {
            respondent.state = State::Answered;
            self.pending.remove(name);
            self.answered += 1;
        }
    }

    /// Queues the message again, since it may not have arrived.
    fn resend(&mut self, name: &str) {
        if let Some(respondent) = self.all.get_mut(name)
            && matches!(respondent.state, State::Unsent | State::Sent)
        {
            respondent.state = State::Unsent;
            self.ready.push_back(name.to_owned());
        }
    }

    /// The connection ended; the message is sent again when the client is back.
    fn lost(&mut self, name: &str) {
        if let Some(respondent) = self.all.get_mut(name)
            && respondent.state == State::Sent
        {
            respondent.state = State::Unsent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_from_its_decimal_value() {
        let of = |share, asked| Quorum::Share(share).of(asked);
        // As floating-point products these slightly exceed the whole number.
        assert_eq!((of(0.55, 100), of(0.07, 100), of(0.14, 50)), (55, 7, 7));
        assert_eq!((of(0.5, 3), of(0.01, 3), of(1.0, 7), of(0.999, 1000)), (2, 1, 7, 999));
        assert_eq!((Quorum::Number(5).of(3), Quorum::All.of(4)), (3, 4));
    }
}
