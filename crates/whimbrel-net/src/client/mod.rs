//! A client: enrols once, then takes part until the job ends, through crashes and lost connections.
//!
//! Its folder holds everything: the key that it made (`identity`), how it enrolled (`enrolment`),
//! what it was offered (`offer`), what earlier stages delivered (`stage-N`), its state in two
//! [`slots`], and at the end the model (`delivered`) and what the client has of its own (`own`).

pub mod link;
mod session;
pub mod slots;
mod store;

pub use store::{ClientStore, read_ledger};

use crate::PROTOCOL;
use crate::invitation::{Fingerprint, Invitation};
use crate::proto::EnrolRequest;
use crate::registry::check_name;
use crate::tls::{Identity, own_alone, random};
use link::{Connection, Target, Unreachable, connect};
use session::{End, Greeting, farewell, session};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use store::read_pins;
use tokio::time::timeout;
use whimbrel_core::text::printable;
use whimbrel_core::{Error, Result, Wire, wire};
use whimbrel_engine::lock::FolderLock;
use whimbrel_engine::versioned;

/// The first pause before another try; it doubles up to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LAST: Duration = Duration::from_secs(5);
/// How long an enrolment may take once there is a connection.
const ENROL: Duration = Duration::from_secs(60);
/// How long a client that has the model tries to say so, and the longest pause then: enough for a
/// coordinator that is started again. Unheard, it is waited for as long as the coordinator lingers.
const FAREWELL: Duration = Duration::from_secs(15);
const FAREWELL_AGAIN: Duration = Duration::from_secs(1);
const FAREWELL_PAUSE_LAST: Duration = Duration::from_secs(2);
/// How often a pause looks whether the client is to stop.
const TICK: Duration = Duration::from_millis(100);

/// What a client was told when it enrolled.
#[derive(Clone, PartialEq, Debug)]
pub struct Enrolled {
    /// The run.
    pub run: Vec<u8>,
    /// Its name there.
    pub name: String,
    /// The job without paths and its schema.
    pub offer: Vec<u8>,
}

wire!(Enrolled { run, name, offer });

/// How a client enrolled.
#[derive(Clone, PartialEq, Debug)]
struct Enrolment {
    /// The name in the invitation, which may leave another one to the client.
    invited: String,
    /// Whether it brought its certificate.
    brought: bool,
}

wire!(Enrolment { invited, brought });

/// What a client is made of.
pub struct Setup {
    /// The invitation.
    pub invitation: Invitation,
    /// The name it wants, where the invitation leaves it open.
    pub name: Option<String>,
    /// Its own folder.
    pub folder: PathBuf,
    /// Its own certificate and key, where it does not make them.
    pub identity: Option<Identity>,
    /// The certificate that it will bring later, where it changes: the coordinator is told.
    pub next_certificate: Option<Fingerprint>,
    /// Set to make it stop in order.
    pub stop: Arc<AtomicBool>,
    /// Give up when the coordinator cannot be reached for so long.
    pub give_up: Option<Duration>,
}

/// How taking part ended.
#[derive(Debug)]
pub enum Ending {
    /// The job is over; the model's files.
    Delivered(Vec<(String, Vec<u8>)>),
    /// The job is over without a model for this client.
    Over(String),
    /// It was told to stop; everything is kept.
    Stopped,
}

/// A client at work.
pub struct Client {
    setup: Setup,
    identity: Identity,
    brought: bool,
    /// Two processes with one state would each undo what the other was acknowledged.
    _lock: FolderLock,
}

impl Client {
    /// Opens the folder; makes a key there on first use.
    pub fn new(mut setup: Setup) -> Result<Self> {
        std::fs::create_dir_all(&setup.folder)
            .map_err(|e| Error::storage(setup.folder.display(), e))?;
        own_alone(&setup.folder, 0o700)?;
        let lock = FolderLock::take(&setup.folder)?;
        let brought = setup.identity.is_some();
        let identity = match setup.identity.take() {
            Some(identity) => identity,
            None => {
                check_identity(&setup.folder)?;
                Identity::keep(&setup.folder, &setup.invitation.name)?
            }
        };
        Ok(Self { setup, identity, brought, _lock: lock })
    }

    /// Redeems the invitation, once; afterwards the folder knows what was offered. A folder of another
    /// client than the invitation's is refused.
    pub async fn enrol(&self) -> Result<Option<Enrolled>> {
        if let Some(enrolled) = read_offer(&self.setup.folder)? {
            self.check_client(&enrolled)?;
            return Ok(Some(enrolled));
        }
        let mut pause = Pause::new(self.setup.give_up);
        loop {
            match self.try_enrol().await {
                Ok(enrolled) => {
                    let invited = self.setup.invitation.name.clone();
                    let enrolment = Enrolment { invited, brought: self.brought };
                    let path = enrolment_path(&self.setup.folder);
                    versioned::write(&path, &enrolment.to_bytes())?;
                    versioned::write(&offer_path(&self.setup.folder), &enrolled.to_bytes())?;
                    return Ok(Some(enrolled));
                }
                Err(Unreachable::Never(error)) => return Err(error),
                Err(Unreachable::Impostor(what)) => return Err(Error::peer(what)),
                Err(Unreachable::Later(what)) => {
                    if !pause.wait(&what, &self.setup.stop).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Refuses an invitation, or a name, of another client than the one whose state the folder holds.
    fn check_client(&self, enrolled: &Enrolled) -> Result<()> {
        let Setup { invitation, name: wanted, folder, .. } = &self.setup;
        let own = &enrolled.name;
        let is_invited = match read_enrolment(folder)? {
            _ if invitation.name == *own => true,
            Some(enrolment) => enrolment.invited == invitation.name,
            None => wanted.as_ref() == Some(own),
        };
        let other = match wanted {
            Some(wanted) if wanted != own => format!("--name is `{wanted}`"),
            _ if is_invited => return Ok(()),
            _ => format!("the invitation is for `{}`", printable(&invitation.name)),
        };
        let what = format!("{} holds the state of client `{own}`, and {other}", folder.display());
        let hint = format!("give the invitation of `{own}`, or another folder with --out");
        Err(Error::config(what).hint(hint))
    }

    async fn try_enrol(&self) -> Result<Enrolled, Unreachable> {
        let mut connection = self.connect().await?;
        let token = self.setup.invitation.token.to_vec().into();
        let name = self.setup.name.clone().unwrap_or_default();
        let request = EnrolRequest { version: PROTOCOL, token, name };
        let reply = timeout(ENROL, connection.client.enrol(request)).await;
        let reply = reply.map_err(|_| Unreachable::Later("the coordinator does not answer".into()));
        let refused = |status| connection.refusal.or(session::unreachable(status));
        let reply = reply?.map_err(refused)?.into_inner();
        let wrong = |_| Unreachable::Never(Error::peer("the coordinator gives no name"));
        check_name(&reply.name).map_err(wrong)?;
        Ok(Enrolled { run: reply.run.into(), name: reply.name, offer: reply.offer.into() })
    }

    /// Takes part until the job ends, or until it is told to stop.
    pub async fn take_part(&self, enrolled: &Enrolled, store: ClientStore) -> Result<Ending> {
        let mut pause = Pause::new(self.setup.give_up);
        let mut store = store;
        // Started again, it said so before: once more is enough.
        let farewell = if store.is_done() { FAREWELL_AGAIN } else { FAREWELL };
        loop {
            if store.is_done() {
                // Unheard, it would be waited for; but a client that has the model need not stay.
                let _ = timeout(farewell, self.farewell(enrolled, &store)).await;
                return Ok(delivered(store));
            }
            if self.setup.stop.load(Ordering::Relaxed) {
                return Ok(Ending::Stopped);
            }
            let what = match self.connect().await {
                Ok(connection) => {
                    let (run, refusal) = (enrolled.run.clone(), connection.refusal.clone());
                    let hello = Greeting { run, next_certificate: self.setup.next_certificate };
                    let (back, end) = session(connection, hello, store, &self.setup.stop).await?;
                    store = back;
                    match end {
                        End::Delivered { known: false } => continue,
                        End::Delivered { known: true } => return Ok(delivered(store)),
                        // The word came while the model was being written.
                        End::Over(_) if store.is_done() => return Ok(delivered(store)),
                        End::Over(reason) => return Ok(Ending::Over(reason)),
                        End::Stopped => return Ok(Ending::Stopped),
                        End::Lost(what) => match refusal.or(Unreachable::Later(what)) {
                            Unreachable::Never(error) => return Err(error),
                            Unreachable::Later(what) | Unreachable::Impostor(what) => what,
                        },
                        End::Welcomed(what) => {
                            pause = Pause::new(self.setup.give_up);
                            what
                        }
                    }
                }
                Err(Unreachable::Never(error)) => return Err(error),
                // Nothing is told to it; but a temporary obstacle must not be
                // able to end a client for good.
                Err(Unreachable::Impostor(what) | Unreachable::Later(what)) => what,
            };
            if !pause.wait(&what, &self.setup.stop).await? {
                return Ok(Ending::Stopped);
            }
        }
    }

    /// Says that the model is here until it is heard.
    async fn farewell(&self, enrolled: &Enrolled, store: &ClientStore) -> Result<()> {
        let mut pause = Pause { last: FAREWELL_PAUSE_LAST, ..Pause::new(None) };
        loop {
            if let Ok(mut connection) = self.connect().await
                && farewell(&mut connection, Greeting::plain(&enrolled.run), store).await
            {
                return Ok(());
            }
            if !pause
                .wait("the coordinator has not heard that the model is here", &self.setup.stop)
                .await?
            {
                return Ok(());
            }
        }
    }

    async fn connect(&self) -> Result<Connection, Unreachable> {
        let Invitation { address, server, .. } = &self.setup.invitation;
        let announced = read_pins(&self.setup.folder).map_err(Unreachable::Never)?;
        let pins = [*server].into_iter().chain(announced).collect();
        connect(&Target { address: address.clone(), pins }, &self.identity).await
    }
}

fn delivered(store: ClientStore) -> Ending {
    Ending::Delivered(store.into_files().unwrap_or_default())
}

/// Exponential back-off with jitter: clients that lost one coordinator do not come back as one.
struct Pause {
    next: Duration,
    last: Duration,
    since: Instant,
    give_up: Option<Duration>,
}

impl Pause {
    fn new(give_up: Option<Duration>) -> Self {
        Self { next: PAUSE_FIRST, last: PAUSE_LAST, since: Instant::now(), give_up }
    }

    /// Waits; false where the client is to stop.
    async fn wait(&mut self, what: &str, stop: &AtomicBool) -> Result<bool> {
        if let Some(limit) = self.give_up
            && self.since.elapsed() >= limit
        {
            return Err(Error::peer(format!(
                "the coordinator could not be reached for {} s; last: {what}",
                limit.as_secs()
            )));
        }
        let [byte] = random::<1>()?;
        let share = 0.5 + f64::from(byte) / 512.0;
        let pause = self.next.mul_f64(share);
        tracing::info!("{what}; trying again in {:.1} s", pause.as_secs_f64());
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            tokio::time::sleep(TICK.min(until.saturating_duration_since(Instant::now()))).await;
        }
        self.next = (2 * self.next).min(self.last);
        Ok(true)
    }
}

/// Refuses a folder that has joined and lost the key that it joined with, unless that was brought.
fn check_identity(folder: &Path) -> Result<()> {
    if read_offer(folder)?.is_none() || Identity::kept(folder)?.is_some() {
        return Ok(());
    }
    let brought = read_enrolment(folder)?.map(|enrolment| enrolment.brought);
    if brought == Some(true) {
        let error = Error::config("this client joined with a certificate that it brought");
        return Err(error.hint("give --cert and --key again"));
    }
    let or_brought = match brought {
        Some(_) => "",
        None => ", or give --cert and --key if this client brought its certificate",
    };
    let what = format!(
        "it is gone, and the coordinator knows this client by the key in it\n\
         hint: restore it from a copy{or_brought}; without it the coordinator must revoke this client \
         and invite it under another name, for another folder"
    );
    Err(Error::storage(Identity::path(folder).display(), what))
}

fn enrolment_path(folder: &Path) -> PathBuf {
    folder.join("enrolment")
}

/// How the client of a folder enrolled; none where an older program did that.
fn read_enrolment(folder: &Path) -> Result<Option<Enrolment>> {
    let bytes = versioned::read(&enrolment_path(folder))?;
    bytes.map(|bytes| Enrolment::from_bytes(&bytes)).transpose()
}

fn offer_path(folder: &Path) -> PathBuf {
    folder.join("offer")
}

/// What the client of a folder was told when it enrolled; none before that.
pub fn read_offer(folder: &Path) -> Result<Option<Enrolled>> {
    versioned::read(&offer_path(folder))?.map(|bytes| Enrolled::from_bytes(&bytes)).transpose()
}
