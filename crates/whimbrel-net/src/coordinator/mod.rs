//! The coordinator: the engine's rounds with clients on a network.
//!
//! `Network` opens a runner for each stage and holds the state that outlives stages: connections,
//! ids, and the last accepted step of every client. `Rounds` runs one stage. Both live on one
//! thread, and the order of calls keeps the commit rule: an exchange is closed, the keeper makes it
//! durable, and only then `Rounds::acknowledge` tells the clients.

mod failed_start;
mod gather;
mod roster;
mod rounds;
mod serve;

pub use gather::Rules;
pub use serve::{Coordinator, Setup, files_from_bytes, files_to_bytes};
pub use whimbrel_engine::Quorum;

use crate::DECLINED;
use crate::durable_run::History;
use crate::events::{Event, Link, Order, SharedState, UploadBounds};
use crate::proto::Kind;
use crate::registry::{ClientEntry, ClientList, Standing};
use roster::Roster;
use rounds::Rounds;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use whimbrel_core::wire::hex;
use whimbrel_core::{ClientId, DynMethod, Error, Result};
use whimbrel_engine::Stage;
use whimbrel_engine::client::StepId;
use whimbrel_engine::runner::{Carrier, Runner, Start};

/// Bytes around a message's declared content.
const WRAPPING: u64 = 1024;
/// Period of looking at the clock, the registry and the request to stop.
const TICK: Duration = Duration::from_millis(100);

/// The clients of a run and their connections, from stage to stage.
pub(crate) struct Network {
    shared: Arc<SharedState>,
    inbox: Inbox,
    rules: Rules,
    /// Whether clients agreed to evaluations.
    evaluates: bool,
    roster: Roster,
    connections: Connections,
    history: History,
    late: LateJoiners,
    /// Clients that reported a failure and have not connected since, with their reasons.
    failed: BTreeMap<String, String>,
    /// Whether the stage has masks: nobody joins after the first one has begun.
    masked: bool,
    /// Unsolicited uploads by name, less the allowance for slow clients.
    unsolicited: HashMap<String, u32>,
    /// Disconnected clients that were reported as left out.
    absent: BTreeSet<String>,
    /// The list of clients as last taken over.
    list: Option<Arc<ClientList>>,
    /// Clients that have the model, to be recorded together.
    finishing: Vec<String>,
    /// Clients that have received the announced certificate, and those to be recorded.
    told: BTreeSet<String>,
    telling: Vec<String>,
}

/// Events from connections, and the request to stop.
struct Inbox {
    events: mpsc::Receiver<Event>,
    runtime: Handle,
    stop: Arc<AtomicBool>,
}

impl Inbox {
    /// The next event, waiting for a tick at most.
    fn next(&mut self) -> Option<Event> {
        if let Ok(event) = self.events.try_recv() {
            return Some(event);
        }
        self.runtime.block_on(async { timeout(TICK, self.events.recv()).await }).ok().flatten()
    }

    fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Open connections by client name.
#[derive(Default)]
struct Connections {
    links: HashMap<String, Link>,
    sending: Sending,
}

/// Messages being sent.
#[derive(Default)]
struct Sending {
    /// Bytes by session.
    bytes: HashMap<u64, u64>,
    total: u64,
}

impl Sending {
    fn begin(&mut self, session: u64, bytes: u64) {
        self.end(session);
        self.bytes.insert(session, bytes);
        self.total += bytes;
    }

    fn end(&mut self, session: u64) {
        self.total -= self.bytes.remove(&session).unwrap_or(0);
    }
}

impl Connections {
    fn has(&self, name: &str) -> bool {
        self.links.contains_key(name)
    }

    fn order(&self, name: &str, order: Order) {
        if let Some(link) = self.links.get(name) {
            link.order(order);
        }
    }
}

/// Clients that joined after the start and did not answer in time.
#[derive(Default)]
struct LateJoiners {
    /// The enrolment that each was asked for on its present connection.
    awaited: BTreeMap<ClientId, StepId>,
    /// Summaries that arrived after the round had continued without them.
    summaries: BTreeMap<ClientId, Vec<u8>>,
}

impl LateJoiners {
    fn forget(&mut self, id: ClientId) {
        self.awaited.remove(&id);
        self.summaries.remove(&id);
    }
}

impl Network {
    /// The clients of the registry, with the acknowledgements of earlier processes.
    fn new(
        shared: Arc<SharedState>,
        inbox: Inbox,
        rules: Rules,
        evaluates: bool,
        history: History,
    ) -> Result<Self> {
        let mut network = Self {
            roster: Roster::read(&shared.registry.list())?,
            shared,
            inbox,
            rules,
            evaluates,
            connections: Connections::default(),
            history,
            late: LateJoiners::default(),
            failed: BTreeMap::new(),
            masked: false,
            unsolicited: HashMap::new(),
            absent: BTreeSet::new(),
            list: None,
            finishing: Vec::new(),
            told: BTreeSet::new(),
            telling: Vec::new(),
        };
        network.read_told();
        network.refresh_registry();
        for (id, rounds) in &network.history.rounds {
            network.shared.board.client(network.roster.name(*id), |c| c.rounds = *rounds);
        }
        Ok(network)
    }

    /// Shows which clients have received the announced certificate.
    fn read_told(&mut self) {
        let Some(next) = self.shared.next_certificate.map(|next| hex(&next)) else { return };
        for entry in self.shared.registry.list().clients.iter().filter(|c| c.certificate.is_some())
        {
            let is_told = entry.told.as_ref() == Some(&next);
            if is_told {
                self.told.insert(entry.name.clone());
            }
            self.shared.board.client(&entry.name, |c| c.told = Some(is_told));
        }
    }

    /// Notes that a client has received the announced certificate: its session stores the welcome
    /// before it answers a task.
    fn note_told(&mut self, name: &str) {
        if self.shared.next_certificate.is_some() && self.told.insert(name.to_owned()) {
            self.telling.push(name.to_owned());
            self.shared.board.client(name, |c| c.told = Some(true));
        }
    }

    /// Records the clients that [`Network::note_told`] has noted.
    fn record_told(&mut self) {
        let Some(next) = self.shared.next_certificate.filter(|_| !self.telling.is_empty()) else {
            return;
        };
        let names = std::mem::take(&mut self.telling);
        if let Err(error) = self.shared.registry.tell(&names, &next) {
            tracing::warn!(%error, "not recorded who knows the announced certificate");
        }
    }

    /// Assigns the first ids: to the clients named by the job, then to the others invited.
    fn assign_first_ids(&mut self) -> Result<()> {
        let list = self.shared.registry.list();
        let listed: BTreeSet<&str> =
            list.clients.iter().filter(|c| c.listed).map(|c| &c.name[..]).collect();
        let expected = self.roster.without_id().into_iter();
        let (listed, others) = expected.partition(|name| listed.contains(&name[..]));
        self.assign_ids(listed)?;
        self.assign_ids(others)
    }

    /// Assigns the next ids to these clients, in order of their names.
    fn assign_ids(&mut self, mut names: Vec<String>) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        names.sort_unstable();
        let first = self.roster.len() as u32;
        let assigned: Vec<(String, ClientId)> =
            names.into_iter().zip((first..).map(ClientId)).collect();
        self.shared.registry.number(&assigned)?;
        for (name, id) in assigned {
            self.shared.board.client(&name, |c| c.id = Some(id.0));
            self.roster.add(name, id);
        }
        Ok(())
    }

    /// Takes over invitations, revocations and declarations of death since the last call.
    fn refresh_registry(&mut self) {
        let list = self.shared.registry.list();
        if self.list.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &list)) {
            return;
        }
        let is_unnamed = |c: &&ClientEntry| c.open && c.certificate.is_none();
        let expected = list.clients.iter().filter(|c| c.standing == Standing::Expected);
        self.roster.unnamed = expected.filter(is_unnamed).count();
        // A client that chose a name is no longer known by the placeholder.
        let known: BTreeSet<&str> = list.clients.iter().map(|c| &c.name[..]).collect();
        self.roster.standings.retain(|name, _| known.contains(&name[..]));
        self.shared.board.forget(&known);
        self.close_revoked_relays(&list);
        for entry in &list.clients {
            if self.roster.standing(&entry.name) == Some(entry.standing) {
                continue;
            }
            let word = entry.standing.word();
            self.shared.board.client(&entry.name, |c| {
                c.standing = word.into();
                c.id = entry.id;
                c.enrolled = entry.certificate.is_some();
            });
            // The first standing that this process sees was recorded by an earlier one.
            if self.roster.standings.insert(entry.name.clone(), entry.standing).is_some() {
                self.shared.audit.note(word, &entry.name, "");
                self.shared.board.line(&format!("`{}` is {word}", entry.name));
            }
            if entry.standing == Standing::Revoked
                && let Some(link) = self.connections.links.remove(&entry.name)
            {
                self.shared.board.client(&entry.name, |c| c.connected = false);
                link.order(Order::Close { reason: "this client was revoked".into(), over: true });
            }
        }
        self.list = Some(list);
    }

    /// Revokes a client at its own request.
    fn withdrew(&mut self, name: &str) {
        if let Err(error) = self.shared.registry.stand(name, Standing::Revoked) {
            // The client repeats its withdrawal.
            tracing::warn!(%error, "not recorded that `{name}` left");
            return;
        }
        self.shared.audit.note("left", name, "");
        self.shared.board.warn(&format!(
            "`{name}` left: its uploads so far stay in the model, and its memory in the sums until \
             memories are opened again; refit without it: whimbrel serve JOB --without {name}"
        ));
        self.refresh_registry();
    }

    /// Closes the connections of clients behind revoked relays.
    fn close_revoked_relays(&mut self, list: &ClientList) {
        let revoked = list.relays.iter().filter(|relay| relay.standing == Standing::Revoked);
        let mut closed: BTreeSet<&str> = revoked.map(|relay| &relay.name[..]).collect();
        let is_behind = |entry: &ClientEntry, closed: &BTreeSet<&str>| {
            entry.via.as_deref().is_some_and(|relay| closed.contains(relay))
        };
        // A relay is invited after the one that it connects to.
        for relay in &list.relays {
            if is_behind(relay, &closed) {
                closed.insert(&relay.name);
            }
        }
        for client in list.clients.iter().filter(|client| is_behind(client, &closed)) {
            if let Some(link) = self.connections.links.remove(&client.name) {
                self.shared.board.client(&client.name, |c| c.connected = false);
                link.order(Order::Close { reason: "its relay was revoked".into(), over: false });
            }
        }
    }

    /// Notes that a client does not take part for now; it is asked again when it joins again.
    fn declined(&mut self, name: &str) {
        self.shared.audit.note("declined", name, "");
        self.shared.board.warn(&format!("`{name}` declined to take part; it may join again"));
        let reason = DECLINED.into();
        self.connections.order(name, Order::Close { reason, over: true });
    }

    /// Whether a client has enrolled and not yet taken part: its user reads the offer.
    fn is_undecided(&self, name: &str) -> bool {
        let answered = |id| self.history.accepted.contains_key(&id);
        if self.roster.id(name).is_some_and(answered) {
            return false;
        }
        let status = self.shared.board.watch();
        let status = status.borrow();
        status.clients.get(name).is_some_and(|c| c.enrolled && c.last_seen.is_none())
    }

    /// Whether rounds do not wait for this client: it is dead or revoked, and not connected.
    fn is_excused(&self, name: &str) -> bool {
        self.roster.standing(name).is_some_and(|s| s != Standing::Expected)
            && !self.connections.has(name)
    }

    /// Ids of the clients that rounds wait for.
    fn expected(&self) -> Vec<ClientId> {
        self.roster.ids().filter(|id| !self.is_excused(self.roster.name(*id))).collect()
    }

    /// Records a client's accepted step and acknowledges it.
    fn acknowledge(&mut self, id: ClientId, kind: Kind, at: StepId) {
        self.history.accepted.insert(id, at);
        self.connections.order(self.roster.name(id), Order::Ack { kind, at, result: Ok(()) });
    }

    /// Bounds the uploads of a stage by the sizes that its method declares. A stage whose messages
    /// would exceed the limit is refused before any client computes one.
    fn set_bounds(&self, method: &dyn DynMethod) -> Result<()> {
        let declared = method.declare().disclosures;
        let most = self.shared.limits.message_bytes;
        let bound = |message| {
            let each = declared.iter().filter(|d| d.message == message).map(|d| d.bytes_max as u64);
            match each.sum::<u64>() {
                0 => Ok(most),
                bytes if bytes > most => Err(Error::config(format!(
                    "a message \"{message}\" may have {bytes} bytes, and message_max is {most}"
                ))
                .hint("raise message_max in [federation]")),
                bytes => Ok(bytes + WRAPPING),
            }
        };
        let (summary, up, answer) = (bound("summary")?, bound("up")?, bound("answer")?);
        *self.shared.bounds.lock().unwrap_or_else(PoisonError::into_inner) =
            UploadBounds { summary, up, answer };
        Ok(())
    }
}

impl Carrier for Network {
    fn open<'a>(&'a mut self, stage: &Stage, start: &Start<'_>) -> Result<Box<dyn Runner + 'a>> {
        let method = stage.method.server()?;
        self.set_bounds(&**method)?;
        self.masked = method.declare().cohort_min > 0;
        Ok(Box::new(Rounds::open(self, stage, start)?))
    }
}
