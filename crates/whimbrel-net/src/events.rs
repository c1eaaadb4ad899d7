//! Between connections and the coordinator's thread: events in, orders out.
//!
//! Connections are tasks of an asynchronous runtime; rounds are run by one plain thread, which owns
//! everything that decides. What a connection knows it says in an [`Event`]; what it shall do it is
//! told in an [`Order`].

use crate::audit::Audit;
use crate::frames::Parcel;
use crate::invitation::Fingerprint;
use crate::limits::Limits;
use crate::proto::{Kind, Verdict};
use crate::registry::Registry;
use crate::status::{Board, Refusal};
use crate::upload_memory::{Room, Share};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{Notify, oneshot};
use tonic::codegen::Bytes;
use whimbrel_engine::client::StepId;

/// What a connection tells the coordinator. `session` tells an old connection of a client from its
/// new one.
pub enum Event {
    /// A client is there.
    Arrived {
        /// Who.
        name: String,
        /// Its connection.
        link: Link,
        /// Where it comes from.
        address: String,
        /// The last step it knows to be accepted.
        committed: Option<StepId>,
        /// A step whose fate it does not know.
        staged: Option<StepId>,
        /// Where the answer goes: the staged step's fate, or why it may not stay.
        reply: oneshot::Sender<Result<Verdict, Refusal>>,
    },
    /// A connection is gone.
    Left {
        /// Whose.
        name: String,
        /// Which.
        session: u64,
    },
    /// A message has gone down.
    Sent {
        /// To whom.
        name: String,
        /// On which connection.
        session: u64,
    },
    /// A whole upload has come.
    Upload {
        /// From whom.
        name: String,
        /// What for.
        kind: Kind,
        /// Of which step.
        at: StepId,
        /// The message.
        bytes: Vec<u8>,
        /// Its share of the memory for uploads, given back when the event is dropped.
        room: Share,
    },
    /// A client broke the protocol and was cut off.
    Breach {
        /// Who.
        name: String,
    },
    /// A client cannot go on.
    Failed {
        /// Who.
        name: String,
        /// Why, in its words.
        reason: String,
    },
    /// A client has what it came for.
    Finished {
        /// Who.
        name: String,
    },
}

/// What a connection shall do.
pub enum Order {
    /// Send a message and ask for the answer.
    Task {
        /// What for.
        kind: Kind,
        /// Of which step.
        at: StepId,
        /// The client's number.
        client: u32,
        /// The message.
        bytes: Parcel,
    },
    /// Say what became of an upload.
    Ack {
        /// What for.
        kind: Kind,
        /// Of which step.
        at: StepId,
        /// Accepted, or why not.
        fate: Result<(), Refusal>,
    },
    /// Say goodbye and close.
    Close {
        /// Why.
        reason: String,
        /// Whether there is nothing to come back for.
        over: bool,
    },
}

/// A client's connection, as the coordinator holds it. Dropping it closes the connection.
#[derive(Clone)]
pub struct Link {
    /// Which connection.
    pub session: u64,
    orders: mpsc::Sender<Order>,
    overrun: Arc<Notify>,
    closing: Arc<AtomicBool>,
}

impl Link {
    /// Gives an order; a connection that is gone says so in an event of its own. One that does not
    /// carry out what it was told before is cut. After an order to close there is nothing to say.
    pub fn order(&self, order: Order) {
        let closes = matches!(order, Order::Close { .. });
        if self.closing.fetch_or(closes, Ordering::Relaxed) {
            return;
        }
        if let Err(TrySendError::Full(_)) = self.orders.try_send(order) {
            self.overrun.notify_one();
        }
    }

    /// Told when more was ordered than the connection carries out.
    pub fn overrun(&self) -> Arc<Notify> {
        self.overrun.clone()
    }
}

/// What every connection shares.
pub struct SharedState {
    /// Who may take part.
    pub registry: Registry,
    /// What a stranger can cost.
    pub limits: Limits,
    /// The run, as in every client's hello.
    pub run: Vec<u8>,
    /// What an enrolled client is told.
    pub offer: Bytes,
    /// The certificate that the coordinator will show later.
    pub next_certificate: Option<Fingerprint>,
    /// For people.
    pub board: Board,
    /// For the record.
    pub audit: Audit,
    /// To the coordinator.
    pub events: mpsc::Sender<Event>,
    /// Memory for uploads.
    pub room: Arc<Room>,
    /// The bounds of the stage under way.
    pub bounds: Mutex<Bounds>,
    sessions: AtomicU64,
    /// Tokens shown in the present minute and not proved right, by host.
    wrong_tokens: Mutex<(Option<Instant>, HashMap<String, u32>)>,
    /// Sessions begun in the present minute, by client.
    begun: Mutex<(Option<Instant>, HashMap<String, u32>)>,
}

/// Hosts whose wrong tokens are counted at the same time.
const HOSTS_MAX: usize = 10_000;

/// An address without its port.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Events that the coordinator has not looked at.
const EVENTS_AHEAD: usize = 1024;
/// Orders that a connection has not carried out: one task, and acknowledgements. All events may be
/// one client's uploads and be answered before its connection is scheduled again: that alone does
/// not make it one that takes nothing.
const ORDERS_AHEAD: usize = EVENTS_AHEAD + 64;

/// The longest messages of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// A summary.
    pub summary: u64,
    /// An upload.
    pub up: u64,
    /// An answer to an evaluation.
    pub answer: u64,
}

impl Bounds {
    /// The bound of a kind of upload; none where nothing may come up.
    pub fn of(&self, kind: Kind) -> Option<u64> {
        match kind {
            Kind::Enrol => Some(self.summary),
            Kind::Exchange => Some(self.up),
            Kind::Evaluate => Some(self.answer),
            Kind::Deliver | Kind::Unspecified => None,
        }
    }
}

/// What a [`SharedState`] is made of.
pub struct Parts {
    /// Who may take part.
    pub registry: Registry,
    /// What a stranger can cost.
    pub limits: Limits,
    /// What an enrolled client is told.
    pub offer: Vec<u8>,
    /// The certificate that the coordinator will show later.
    pub next_certificate: Option<Fingerprint>,
    /// For people.
    pub board: Board,
    /// For the record.
    pub audit: Audit,
}

impl SharedState {
    /// The shared, and where its events come out.
    pub fn new(parts: Parts) -> (Arc<Self>, mpsc::Receiver<Event>) {
        let Parts { registry, limits, offer, next_certificate, board, audit } = parts;
        let (events, receiver) = mpsc::channel(EVENTS_AHEAD);
        let shared = Self {
            run: registry.book().run.into_bytes(),
            registry,
            offer: offer.into(),
            next_certificate,
            board,
            audit,
            events,
            room: Room::new(limits.upload_bytes),
            bounds: Mutex::new(Bounds { summary: 0, up: 0, answer: 0 }),
            sessions: AtomicU64::new(0),
            wrong_tokens: Mutex::new((None, HashMap::new())),
            begun: Mutex::new((None, HashMap::new())),
            limits,
        };
        (Arc::new(shared), receiver)
    }

    /// A new connection's ends.
    pub fn link(&self) -> (Link, mpsc::Receiver<Order>) {
        let session = self.sessions.fetch_add(1, Ordering::Relaxed);
        let (orders, receiver) = mpsc::channel(ORDERS_AHEAD);
        let (overrun, closing) = (Arc::default(), Arc::default());
        (Link { session, orders, overrun, closing }, receiver)
    }

    /// Counts a refusal without a line of its own.
    pub fn count_refusal(&self, why: Refusal) {
        self.board.refuse(why);
    }

    /// Counts and records a refusal of a client, or of a stranger at an address.
    pub fn refuse(&self, why: Refusal, who: &str, stranger: bool) {
        // A flood of strangers fills no log of a service: they are counted, and audited up to a share.
        match stranger {
            true => tracing::debug!(%who, "refused: {why}"),
            false => tracing::warn!(%who, "refused: {why}"),
        }
        self.board.refuse(why);
        self.audit.note("refused", who, &why.to_string(), stranger);
    }

    /// Whether a client may begin one more session.
    pub fn may_begin(&self, name: &str) -> bool {
        let mut held = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, begun) = &mut *held;
        if since.is_none_or(|since| since.elapsed().as_secs() >= 60) {
            *since = Some(Instant::now());
            begun.clear();
        }
        let count = begun.entry(name.to_owned()).or_default();
        *count += 1;
        *count <= self.limits.sessions_per_minute
    }

    /// Whether one more token from this address may be looked at; each look counts until it proves
    /// right. A stranger who guesses does not shut out others.
    pub fn may_enrol(&self, address: &str) -> bool {
        let mut held = self.wrong_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, shown) = &mut *held;
        if since.is_none_or(|since| since.elapsed().as_secs() >= 60) {
            *since = Some(Instant::now());
            shown.clear();
        }
        if shown.len() >= HOSTS_MAX && !shown.contains_key(host(address)) {
            return false;
        }
        let count = shown.entry(host(address).to_owned()).or_default();
        *count += 1;
        *count <= self.limits.enrolments_per_minute
    }

    /// The token was right: it does not count.
    pub fn enrolled(&self, address: &str) {
        let mut held = self.wrong_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.1.get_mut(host(address)) {
            *count = count.saturating_sub(1);
        }
    }

    /// The bound of a kind of upload in this stage.
    pub fn bound(&self, kind: Kind) -> Option<u64> {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner).of(kind)
    }
}
