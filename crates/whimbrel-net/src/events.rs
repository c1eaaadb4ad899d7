//! Events from connections to the coordinator's thread, and orders back.
//!
//! Connections are tasks of an asynchronous runtime. One plain thread runs the rounds and takes all
//! decisions: connections report to it with an [`Event`], and it commands them with an [`Order`].

use crate::audit::Audit;
use crate::frames::Parcel;
use crate::invitation::Fingerprint;
use crate::limits::Limits;
use crate::proto::{Kind, Verdict};
use crate::registry::Registry;
use crate::status::{Board, Refusal};
use crate::upload_memory::{Reservation, UploadMemory};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{Notify, oneshot};
use tonic::codegen::Bytes;
use whimbrel_engine::client::StepId;

/// A report from a connection. `name` is the client's name; `session` distinguishes an old
/// connection of a client from its new one.
pub enum Event {
    Arrived {
        name: String,
        link: Link,
        address: String,
        /// The last step that the client knows to be accepted.
        committed: Option<StepId>,
        /// A step whose outcome the client does not know.
        staged: Option<StepId>,
        /// Receives the staged step's outcome, or the reason for a refusal.
        reply: oneshot::Sender<Result<Verdict, Refusal>>,
    },
    /// A connection ended.
    Left { name: String, session: u64 },
    /// A message was sent completely.
    Sent { name: String, session: u64 },
    /// An upload was received completely.
    Upload {
        name: String,
        kind: Kind,
        at: StepId,
        bytes: Vec<u8>,
        /// Memory of this upload, released when the event is dropped.
        memory: Reservation,
    },
    /// A client violated the protocol and was disconnected.
    Violation { name: String },
    /// A client cannot continue, for the reason that it states.
    Failed { name: String, reason: String },
    /// A client has the model.
    Finished { name: String },
    /// A client does not take part for now: its user or its own checks declined.
    Declined { name: String },
    /// A client withdraws from the run.
    Withdrew { name: String },
}

/// A command to a connection.
pub enum Order {
    /// Send a message and request the answer.
    Task { kind: Kind, at: StepId, client: u32, bytes: Parcel },
    /// Acknowledge or refuse an upload.
    Ack { kind: Kind, at: StepId, result: Result<(), Refusal> },
    /// Send a farewell and close; `over` tells the client not to reconnect.
    Close { reason: String, over: bool },
}

/// The coordinator's handle of a client's connection. Dropping it closes the connection.
#[derive(Clone)]
pub struct Link {
    pub session: u64,
    orders: mpsc::Sender<Order>,
    overrun: Arc<Notify>,
    closing: Arc<AtomicBool>,
}

impl Link {
    /// Queues an order. A full queue disconnects the client; after an order to close, further
    /// orders are ignored. A closed connection is reported by its own event.
    pub fn order(&self, order: Order) {
        let closes = matches!(order, Order::Close { .. });
        if self.closing.fetch_or(closes, Ordering::Relaxed) {
            return;
        }
        if let Err(TrySendError::Full(_)) = self.orders.try_send(order) {
            self.overrun.notify_one();
        }
    }

    /// Notified when the queue of orders is full.
    pub fn overrun(&self) -> Arc<Notify> {
        self.overrun.clone()
    }
}

/// State that all connections share.
pub struct SharedState {
    pub registry: Registry,
    pub limits: Limits,
    /// The run's identifier, repeated in every client's hello.
    pub run: Vec<u8>,
    pub offer: Bytes,
    /// The coordinator's future certificate.
    pub next_certificate: Option<Fingerprint>,
    pub board: Board,
    pub audit: Audit,
    pub events: mpsc::Sender<Event>,
    pub upload_memory: Arc<UploadMemory>,
    /// Upload bounds of the stage under way.
    pub bounds: Mutex<UploadBounds>,
    sessions: AtomicU64,
    /// Tokens per host that have not proved right.
    tokens: PerMinute,
    /// Sessions per client.
    begun: PerMinute,
}

/// Keys that are counted at the same time.
const COUNTED_MAX: usize = 100_000;

/// Counts by key, cleared every minute.
#[derive(Default)]
struct PerMinute(Mutex<(Option<Instant>, HashMap<String, u32>)>);

impl PerMinute {
    /// Counts one more; false beyond `most`, and for new keys once there are too many.
    fn allows(&self, key: &str, most: u32) -> bool {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, counts) = &mut *held;
        if since.is_none_or(|since| since.elapsed().as_secs() >= 60) {
            *since = Some(Instant::now());
            counts.clear();
        }
        if counts.len() >= COUNTED_MAX && !counts.contains_key(key) {
            return false;
        }
        let count = counts.entry(key.to_owned()).or_default();
        *count += 1;
        *count <= most
    }

    fn take_back(&self, key: &str) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.1.get_mut(key) {
            *count = count.saturating_sub(1);
        }
    }
}

/// An address without its port.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Capacity of the queue of events.
const EVENTS_AHEAD: usize = 1024;
/// Capacity of a connection's queue of orders. All queued events may be uploads of one client and
/// be acknowledged before its connection is scheduled: this alone must not disconnect it.
const ORDERS_AHEAD: usize = EVENTS_AHEAD + 64;

/// Maximal bytes of a stage's uploads, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UploadBounds {
    pub summary: u64,
    pub up: u64,
    pub answer: u64,
}

impl SharedState {
    /// The shared state and the receiving end of its events.
    pub fn new(
        registry: Registry,
        limits: Limits,
        offer: Vec<u8>,
        next_certificate: Option<Fingerprint>,
        board: Board,
        audit: Audit,
    ) -> (Arc<Self>, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(EVENTS_AHEAD);
        let shared = Self {
            run: registry.list().run.clone().into_bytes(),
            registry,
            offer: offer.into(),
            next_certificate,
            board,
            audit,
            events,
            upload_memory: UploadMemory::new(limits.upload_bytes),
            bounds: Mutex::default(),
            sessions: AtomicU64::new(0),
            tokens: PerMinute::default(),
            begun: PerMinute::default(),
            limits,
        };
        (Arc::new(shared), receiver)
    }

    /// A link for a new connection and the receiving end of its orders.
    pub fn link(&self) -> (Link, mpsc::Receiver<Order>) {
        let session = self.sessions.fetch_add(1, Ordering::Relaxed);
        let (orders, receiver) = mpsc::channel(ORDERS_AHEAD);
        let (overrun, closing) = (Arc::default(), Arc::default());
        (Link { session, orders, overrun, closing }, receiver)
    }

    /// Counts and records a refusal of a client.
    pub fn refuse(&self, why: Refusal, client: &str) {
        self.board.warn(&format!("`{client}` was refused: {why}"));
        self.board.refuse(why);
        self.audit.note("refused", client, &why.to_string());
    }

    /// Counts and records a refusal of an unauthenticated connection. It is logged at debug level,
    /// so that a flood does not fill the log of a service.
    pub fn refuse_unauthenticated(&self, why: Refusal, address: &str) {
        tracing::debug!(who = %address, "refused: {why}");
        self.board.refuse(why);
        self.audit.note_unauthenticated("refused", address, &why.to_string());
    }

    /// Whether a client may begin one more session in this minute.
    pub fn may_begin(&self, name: &str) -> bool {
        self.begun.allows(name, self.limits.sessions_per_minute)
    }

    /// Whether one more token from this host may be compared in this minute. Each attempt counts
    /// until [`SharedState::enrolled`] takes it back.
    pub fn may_enrol(&self, address: &str) -> bool {
        self.tokens.allows(host(address), self.limits.enrolments_per_minute)
    }

    /// Takes back the count of a token that was right.
    pub fn enrolled(&self, address: &str) {
        self.tokens.take_back(host(address));
    }

    /// Maximal bytes of an upload of this kind; `None` where uploads are not allowed.
    pub fn bound(&self, kind: Kind) -> Option<u64> {
        let bounds = *self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        match kind {
            Kind::Enrol => Some(bounds.summary),
            Kind::Exchange => Some(bounds.up),
            Kind::Evaluate => Some(bounds.answer),
            Kind::Deliver | Kind::Unspecified => None,
        }
    }
}
