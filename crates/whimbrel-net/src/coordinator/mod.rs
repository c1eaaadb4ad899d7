//! The coordinator: the engine's rounds, with clients on a network.
//!
//! [`Network`] opens a runner for each stage and holds what lasts from stage to stage: connections,
//! numbers, and the last accepted step of every client. [`Rounds`] is one stage. Both live on one
//! thread, and the commit rule is kept by order of calls: an exchange is closed, the keeper makes
//! it durable, and only then [`Rounds::acknowledge`] moves the fates and tells the clients.

mod failed_start;
mod gather;
mod rounds;
mod serve;

pub use gather::Rules;
pub use rounds::Rounds;
pub use serve::{Coordinator, Served, Setup, files_from_bytes, files_to_bytes};
pub use whimbrel_engine::Quorum;

use crate::events::{Bounds, Event, Link, Order, SharedState};
use crate::proto::Kind;
use crate::registry::{Entry, Standing};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use whimbrel_core::{ClientId, DynMethod, Error, Result};
use whimbrel_engine::Stage;
use whimbrel_engine::client::StepId;
use whimbrel_engine::runner::{Carrier, Runner, Start};

/// Bytes around a message's declared content.
const WRAPPING: u64 = 1024;

/// Everyone who takes part, from stage to stage.
pub struct Network {
    shared: Arc<SharedState>,
    events: mpsc::Receiver<Event>,
    runtime: Handle,
    stop: Arc<AtomicBool>,
    rules: Rules,
    /// Whether clients agreed to evaluations.
    evaluates: bool,
    links: HashMap<String, Link>,
    /// Names by number; a number is given once.
    names: Vec<String>,
    numbers: HashMap<String, ClientId>,
    /// The last accepted step of every client.
    fates: BTreeMap<ClientId, StepId>,
    /// Who joined before the exchange under way, by what earlier processes kept.
    joined: Vec<ClientId>,
    /// The last stage in which the run was repaired: clients that stand beyond begin it anew.
    repaired: Option<u32>,
    /// Late joiners that were asked for a summary on this connection, and which enrolment it is of.
    awaited: BTreeMap<ClientId, StepId>,
    /// Their summaries that came after the round had gone on without them.
    summaries: BTreeMap<ClientId, Vec<u8>>,
    /// Unsolicited uploads by name, less what slow clients are excused.
    strays: HashMap<String, u32>,
    /// Who was left out because it was not connected, and people were told.
    absent: BTreeSet<String>,
    /// Who has fetched the model.
    finished: BTreeSet<String>,
    /// Where everyone stood when it was last looked at.
    standings: HashMap<String, Standing>,
    /// Invitations that leave the name to the client and are not redeemed.
    nameless: usize,
    /// Bytes on their way down, by connection.
    sending: HashMap<u64, u64>,
}

impl Network {
    /// Everyone in the registry, with what earlier processes acknowledged.
    pub fn new(
        shared: Arc<SharedState>,
        events: mpsc::Receiver<Event>,
        runtime: Handle,
        stop: Arc<AtomicBool>,
        rules: Rules,
        fates: BTreeMap<ClientId, StepId>,
    ) -> Result<Self> {
        let mut network = Self {
            shared,
            events,
            runtime,
            stop,
            rules,
            evaluates: true,
            links: HashMap::new(),
            names: Vec::new(),
            numbers: HashMap::new(),
            fates,
            joined: Vec::new(),
            repaired: None,
            awaited: BTreeMap::new(),
            summaries: BTreeMap::new(),
            strays: HashMap::new(),
            absent: BTreeSet::new(),
            finished: BTreeSet::new(),
            standings: HashMap::new(),
            nameless: 0,
            sending: HashMap::new(),
        };
        network.look_at_registry();
        network.read_numbers()?;
        Ok(network)
    }

    /// The numbers that earlier processes gave.
    fn read_numbers(&mut self) -> Result<()> {
        let book = self.shared.registry.book();
        let done = book.clients.iter().filter(|c| c.finished);
        self.finished = done.map(|c| c.name.clone()).collect();
        let mut numbered: Vec<(ClientId, String)> =
            book.clients.into_iter().filter_map(|c| Some((ClientId(c.id?), c.name))).collect();
        numbered.sort_unstable();
        for (at, (id, name)) in numbered.into_iter().enumerate() {
            if id.0 as usize != at {
                let what = format!("client number {at} is missing");
                return Err(Error::storage("federation.json", what));
            }
            self.numbers.insert(name.clone(), id);
            self.names.push(name);
        }
        Ok(())
    }

    /// Shows the rounds that earlier processes made.
    fn show_rounds(&self, rounds: &BTreeMap<ClientId, u64>) {
        for (id, made) in rounds {
            self.shared.board.client(self.name(*id), |c| c.rounds = *made);
        }
    }

    /// Gives the first numbers: to those whom the job names, then to the others invited.
    fn give_first_numbers(&mut self) -> Result<()> {
        let book = self.shared.registry.book();
        let listed: BTreeSet<&str> =
            book.clients.iter().filter(|c| c.listed).map(|c| &c.name[..]).collect();
        let everyone = self.unnumbered().into_iter();
        let (listed, others) = everyone.partition(|name| listed.contains(&name[..]));
        self.give_numbers(listed)?;
        self.give_numbers(others)?;
        Ok(())
    }

    /// Gives numbers to these clients, by rank of their names, after those that have one.
    fn give_numbers(&mut self, mut names: Vec<String>) -> Result<Vec<ClientId>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        names.sort_unstable();
        let first = self.names.len() as u32;
        let given: Vec<(String, ClientId)> =
            names.into_iter().zip((first..).map(ClientId)).collect();
        self.shared.registry.number(&given)?;
        for (name, id) in &given {
            self.shared.board.client(name, |c| c.id = Some(id.0));
            self.numbers.insert(name.clone(), *id);
            self.names.push(name.clone());
        }
        Ok(given.into_iter().map(|(_, id)| id).collect())
    }

    fn name(&self, id: ClientId) -> &str {
        self.names.get(id.0 as usize).map_or("?", |name| name)
    }

    /// Everyone invited and not revoked, who has no number yet.
    fn unnumbered(&self) -> Vec<String> {
        let expected = self.standings.iter().filter(|(_, s)| **s == Standing::Expected);
        let names = expected.map(|(name, _)| name);
        names.filter(|name| !self.numbers.contains_key(*name)).cloned().collect()
    }

    /// Notices who was invited, revoked or declared dead since the last look.
    fn look_at_registry(&mut self) {
        let book = self.shared.registry.book();
        let is_nameless = |c: &&Entry| c.open && c.certificate.is_none();
        let expected = book.clients.iter().filter(|c| c.standing == Standing::Expected);
        self.nameless = expected.filter(is_nameless).count();
        // A client that brought a name of its own is no longer known by the old one.
        let known: BTreeSet<&str> = book.clients.iter().map(|c| &c.name[..]).collect();
        self.standings.retain(|name, _| known.contains(&name[..]));
        self.shared.board.forget(&known);
        for entry in book.clients {
            if self.standings.get(&entry.name) == Some(&entry.standing) {
                continue;
            }
            let word = entry.standing.word();
            self.shared.board.client(&entry.name, |c| {
                c.standing = word.into();
                c.id = entry.id;
            });
            // What was so when this process began, an earlier one has told.
            if self.standings.insert(entry.name.clone(), entry.standing).is_some() {
                self.shared.audit.note(word, &entry.name, "", false);
                self.shared.board.line(&format!("`{}` is {word}", entry.name));
            }
            if entry.standing == Standing::Revoked
                && let Some(link) = self.links.remove(&entry.name)
            {
                // Its connection's end will be that of an unknown client.
                self.shared.board.client(&entry.name, |c| c.connected = false);
                link.order(Order::Close { reason: "this client was revoked".into(), over: true });
            }
        }
    }

    /// Whether this client is not waited for: it is dead or revoked, and not connected.
    fn is_excused(&self, name: &str) -> bool {
        self.standings.get(name).is_some_and(|s| *s != Standing::Expected)
            && !self.links.contains_key(name)
    }

    /// Moves a client's fate and tells it.
    fn accept(&mut self, id: ClientId, kind: Kind, at: StepId) {
        self.fates.insert(id, at);
        let name = self.name(id).to_owned();
        if let Some(link) = self.links.get(&name) {
            link.order(Order::Ack { kind, at, fate: Ok(()) });
        }
    }

    /// Bounds what may come up in a stage, by what its method declares; a stage whose messages
    /// would never be let through is refused before anybody computes one.
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
                // A declared bound is of the content; lengths and tags around it are few.
                bytes => Ok(bytes + WRAPPING),
            }
        };
        let (summary, up, answer) = (bound("summary")?, bound("up")?, bound("answer")?);
        let bounds = Bounds { summary, up, answer };
        *self.shared.bounds.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = bounds;
        Ok(())
    }
}

impl Carrier for Network {
    fn open<'a>(&'a mut self, stage: &Stage, start: &Start<'_>) -> Result<Box<dyn Runner + 'a>> {
        self.set_bounds(&**stage.method.server()?)?;
        Ok(Box::new(Rounds::open(self, stage, start)?))
    }
}
