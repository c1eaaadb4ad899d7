//! Coordinators and clients for tests.

use crate::toy::{self, Toy};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::{Checkpoint, Store};
use whimbrel_engine::client::Participant;
use whimbrel_engine::run::{Stage, Stopping};
use whimbrel_engine::{
    Chain, Consent, Faults, Journal, Limits as Simulated, Observer, Outcome, Participation,
};
use whimbrel_net::client::{self, Client, ClientStore, Ending};
use whimbrel_net::coordinator::{Coordinator, Rules, Setup};
use whimbrel_net::invitation::Fingerprint;
use whimbrel_net::registry::Registry;
use whimbrel_net::status::{Board, Refusal, Status};
use whimbrel_net::tls::{Identity, server_config};
use whimbrel_net::{Invitation, Limits};

pub const SEED: u64 = 11;

/// Longest wait for an expected event.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A chain of toy stages.
#[derive(Clone)]
pub struct Toys {
    pub stages: usize,
    pub rounds: u32,
    pub evaluate: Option<u32>,
    pub participation: Participation,
    pub faults: Vec<Faults>,
    pub stopping: Stopping,
}

impl Toys {
    pub fn new(stages: usize, rounds: u32) -> Self {
        let participation = Participation::Everyone;
        let stopping = Stopping::default();
        Self { stages, rounds, evaluate: Some(3), participation, faults: Vec::new(), stopping }
    }
}

impl Chain for Toys {
    fn len(&self) -> usize {
        self.stages
    }

    fn build(&self, index: usize, delivered: &[Artifact]) -> Result<Stage> {
        assert_eq!(delivered.len(), index, "a stage is built from what came before it");
        Ok(Stage {
            name: "toy",
            method: toy::erased(Toy { rounds: self.rounds, ..toy::SOUND }).into(),
            participation: self.participation.clone(),
            faults: self.faults.get(index).cloned().unwrap_or_default(),
            evaluate_every: self.evaluate.filter(|_| index + 1 == self.stages),
            stopping: self.stopping.clone(),
        })
    }
}

pub struct Quiet;
impl Observer for Quiet {}

/// Results of a run, which must not depend on the carrier.
#[derive(Debug, PartialEq)]
pub struct Left {
    pub delivered: Vec<Artifact>,
    pub server: Vec<u8>,
    pub names: Vec<String>,
    pub rounds: Vec<u32>,
    pub journal: String,
    /// Without the seconds.
    pub metrics: Vec<serde_json::Value>,
    pub ending: whimbrel_engine::Ending,
}

impl Left {
    fn new(outcome: &Outcome, folder: &Path) -> Self {
        let checkpoint = saved(folder);
        Self {
            delivered: outcome.delivered.clone(),
            server: checkpoint.runner.state.global().to_vec(),
            names: outcome.names.clone(),
            rounds: outcome.tallies.iter().map(|t| t.rounds).collect(),
            journal: std::fs::read_to_string(folder.join("journal")).unwrap(),
            metrics: metrics(folder),
            ending: outcome.ending.clone(),
        }
    }
}

fn metrics(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let row = |line| {
        let mut row: serde_json::Value = serde_json::from_str(line).unwrap();
        row.as_object_mut().unwrap().remove("seconds");
        row
    };
    text.lines().map(row).collect()
}

pub fn saved(folder: &Path) -> Checkpoint {
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("checkpoint")).unwrap();
    for file in ["checkpoint/state", "journal", "metrics.jsonl"] {
        std::fs::copy(folder.join(file), copy.path().join(file)).unwrap();
    }
    Store::resume(copy.path()).unwrap().1
}

/// Simulates the job.
pub fn simulate(toys: &Toys, count: u32) -> (Left, Outcome) {
    let folder = tempfile::tempdir().unwrap();
    let limits = Simulated {
        folder: Some(folder.path()),
        resume: false,
        checkpoint_every: Duration::from_secs(3600),
        interrupt: &AtomicBool::new(false),
    };
    let outcome =
        whimbrel_engine::run(toys, toy::clients(count), SEED, &limits, &mut Quiet).unwrap();
    (Left::new(&outcome, folder.path()), outcome)
}

/// Simulates the job with the losses of a journal.
pub fn replay(toys: &Toys, count: u32, journal: &str) -> Left {
    let stages = 0..toys.stages as u32;
    let faults = stages.map(|stage| Faults {
        replay: Some(Journal::parse(journal, stage).unwrap()),
        ..Faults::default()
    });
    simulate(&Toys { faults: faults.collect(), ..toys.clone() }, count).0
}

/// A federation with a folder for the coordinator and one for each client.
pub struct Town {
    pub folder: tempfile::TempDir,
    pub toys: Toys,
    pub rules: Rules,
    /// Whether the coordinator asks for evaluations, and whether clients agreed to them.
    pub evaluates: bool,
    pub agrees: bool,
    /// Whether clients that join from now on renew their consent.
    pub renews: bool,
    pub limits: Limits,
    /// A supplied certificate and key of the coordinator, and the clients' authority.
    pub brought: Option<(PathBuf, PathBuf)>,
    pub client_ca: Option<PathBuf>,
    /// Announced certificates of both ends.
    pub next_certificate: Option<Fingerprint>,
    pub next_of_clients: Option<Fingerprint>,
    /// Whether clients that join from now on replace their keys.
    pub new_keys: bool,
    pub address: String,
    pub invitations: Vec<Invitation>,
    listener: Option<TcpListener>,
    /// The result of a job whose model is not delivered yet.
    done: Arc<Mutex<Option<(Left, Outcome)>>>,
}

impl Town {
    pub fn new(toys: Toys, count: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        std::fs::create_dir(&run).unwrap();
        let listener = TcpListener::bind((host(), 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let identity = Identity::keep(&run.join("tls"), "coordinator").unwrap();
        let registry = Registry::create(&run, &address, &identity.fingerprint()).unwrap();
        let invite = |i: u32| {
            let name = format!("c{i:02}");
            let token = registry.invite(&name, 1).unwrap();
            let (address, server) = (address.clone(), identity.fingerprint());
            Invitation { address, server, name, token, relays: Vec::new() }
        };
        let invitations = (0..count).map(invite).collect();
        // Limits that a test does not set never apply, even on a slow machine.
        let limits = Limits {
            heartbeat: Duration::from_secs(5),
            handshake: PATIENCE,
            first_frame: PATIENCE,
            stall: PATIENCE,
            late_summary: PATIENCE,
            linger: PATIENCE / 2,
            ..Limits::default()
        };
        let rules = Rules::default();
        let (evaluates, agrees, listener) = (true, true, Some(listener));
        let done = Arc::new(Mutex::new(None));
        Self {
            folder,
            toys,
            rules,
            evaluates,
            agrees,
            renews: false,
            limits,
            brought: None,
            client_ca: None,
            next_certificate: None,
            next_of_clients: None,
            new_keys: false,
            address,
            invitations,
            listener,
            done,
        }
    }

    pub fn run_folder(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub fn registry(&self) -> Registry {
        Registry::open(&self.run_folder()).unwrap()
    }

    /// Starts or restarts the coordinator on the same address.
    pub fn serve(&mut self, resume: bool) -> Serving {
        let listener = self.listener.take().unwrap_or_else(|| bind(&self.address));
        let stop = Arc::new(AtomicBool::new(false));
        let board = Board::new("toys");
        let identity = match &self.brought {
            Some((chain, key)) => Identity::bring(chain, key).unwrap(),
            None => Identity::keep(&self.run_folder().join("tls"), "coordinator").unwrap(),
        };
        let setup = Setup {
            folder: self.run_folder(),
            resume,
            offer: b"the offer".to_vec(),
            seed: SEED,
            rules: self.rules,
            evaluates: self.evaluates,
            limits: self.limits.clone(),
            next_certificate: self.next_certificate,
            tls: server_config(&identity, self.client_ca.as_deref()).unwrap(),
            board: board.clone(),
            stop: stop.clone(),
        };
        let (toys, folder, done) = (self.toys.clone(), self.run_folder(), self.done.clone());
        let thread = std::thread::spawn(move || {
            let mut coordinator = Coordinator::start(setup, listener)?;
            let before = done.lock().unwrap().take();
            let end = match before {
                Some(end) => end,
                None => {
                    let outcome = coordinator.run(&toys, &mut Quiet)?;
                    if outcome.ending == whimbrel_engine::Ending::Interrupted {
                        return Ok(None);
                    }
                    (Left::new(&outcome, &folder), outcome)
                }
            };
            if coordinator.deliver(&[("model.txt".into(), b"the model".to_vec())])? {
                return Ok(Some(end));
            }
            *done.lock().unwrap() = Some(end);
            Ok(None)
        });
        Serving { thread, stop, board }
    }

    /// Starts client `i` with its rows.
    pub fn join(&self, i: u32) -> Joined {
        self.join_as(i, None)
    }

    /// Starts all clients.
    pub fn join_all(&self) -> Vec<Joined> {
        (0..self.invitations.len() as u32).map(|i| self.join(i)).collect()
    }

    /// Starts client `i` with a supplied certificate.
    pub fn join_as(&self, i: u32, identity: Option<Identity>) -> Joined {
        self.start(i, self.invitations[i as usize].clone(), identity)
    }

    /// Starts client `i` with another invitation.
    pub fn join_with(&self, i: u32, invitation: Invitation) -> Joined {
        self.start(i, invitation, None)
    }

    /// Invites one more client.
    pub fn invite(&self, name: &str) -> Invitation {
        let token = self.registry().invite(name, 1).unwrap();
        Invitation { name: name.into(), token, ..self.invitations[0].clone() }
    }

    fn start(&self, i: u32, invitation: Invitation, identity: Option<Identity>) -> Joined {
        let stop = Arc::new(AtomicBool::new(false));
        let setup = client::Setup {
            folder: self.folder.path().join(&invitation.name),
            invitation,
            name: None,
            identity,
            next_certificate: self.next_of_clients,
            new_key: self.new_keys,
            stop: stop.clone(),
            give_up: Some(PATIENCE),
            proxy: None,
            is_relay: false,
        };
        let data = toy::clients(i + 1).pop().unwrap().1;
        let consent = Consent { evaluates: self.agrees, ..Consent::default() };
        let chain = Box::new(self.toys.clone());
        let participant = Participant { chain, data, seed: SEED, consent };
        let (message_bytes, renews) = (self.limits.message_bytes, self.renews);
        let thread = std::thread::spawn(move || join(setup, participant, message_bytes, renews));
        Joined { thread, stop }
    }
}

fn join(
    setup: client::Setup,
    participant: Participant,
    message_bytes: u64,
    renews: bool,
) -> Result<Ending> {
    let folder = setup.folder.clone();
    let client = Client::new(setup)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let Some(enrolled) = client.enrol().await? else { return Ok(Ending::Stopped) };
        assert_eq!(enrolled.offer, b"the offer");
        let mut store = ClientStore::open(participant, message_bytes, &folder)?;
        if renews {
            store.renew()?;
        }
        client.take_part(&enrolled, store).await
    })
}

/// A loopback address per town, if the system has many: while a coordinator is away, no other test
/// may take its port.
fn host() -> Ipv4Addr {
    static TOWNS: AtomicU8 = AtomicU8::new(2);
    if cfg!(target_os = "linux") {
        Ipv4Addr::new(127, 77, 0, TOWNS.fetch_add(1, Ordering::Relaxed))
    } else {
        Ipv4Addr::LOCALHOST
    }
}

/// Retries until the address is free again.
pub fn bind(address: &str) -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(e) => assert!(begun.elapsed() < PATIENCE, "{address}: {e}"),
        }
        std::thread::yield_now();
    }
}

pub struct Serving {
    thread: JoinHandle<Result<Option<(Left, Outcome)>>>,
    pub stop: Arc<AtomicBool>,
    pub board: Board,
}

impl Serving {
    /// The end of a job that was not interrupted, after which these clients have the model.
    pub fn end_with(self, clients: impl IntoIterator<Item = Joined>) -> (Left, Outcome) {
        let end = self.result().unwrap().expect("the job was interrupted");
        clients.into_iter().for_each(Joined::model);
        end
    }

    /// Asserts that the job ends as its simulation with the same clients.
    pub fn ends_as_simulated(self, clients: Vec<Joined>, toys: &Toys) -> Outcome {
        let count = clients.len() as u32;
        let (left, outcome) = self.end_with(clients);
        assert_eq!(left, simulate(toys, count).0);
        outcome
    }

    pub fn result(self) -> Result<Option<(Left, Outcome)>> {
        wait(|| self.thread.is_finished(), "the coordinator ends", &self.board);
        self.thread.join().unwrap()
    }

    /// Waits until the status satisfies a condition, or the coordinator has ended.
    pub fn shows(&self, what: &str, condition: impl Fn(&Status) -> bool) {
        let ended = || self.thread.is_finished();
        let reached = || condition(&self.board.watch().borrow()) || ended();
        tokio::task::block_in_place(|| wait(reached, what, &self.board));
    }

    pub fn status(&self) -> Status {
        self.board.watch().borrow().clone()
    }

    pub fn shows_connected(&self, client: &str) {
        self.shows(client, |s| s.clients.get(client).is_some_and(|c| c.connected));
    }

    /// Waits until connections or messages were refused for this reason so many times.
    pub fn shows_refused(&self, why: Refusal, times: u64) {
        let text = format!("{why:?} {times} times");
        self.shows(&text, |s| s.refused.get(&why).copied().unwrap_or(0) >= times);
    }

    /// Stops in order.
    pub fn halt(self) -> Result<Option<(Left, Outcome)>> {
        self.stop.store(true, Ordering::Relaxed);
        self.result()
    }
}

pub struct Joined {
    thread: JoinHandle<Result<Ending>>,
    pub stop: Arc<AtomicBool>,
}

impl Joined {
    pub fn result(self) -> Result<Ending> {
        let begun = Instant::now();
        while !self.thread.is_finished() {
            assert!(begun.elapsed() < PATIENCE, "a client does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.thread.join().unwrap()
    }

    /// Asserts that the client ends with the model.
    pub fn model(self) {
        match self.result() {
            Ok(Ending::Delivered(files)) => {
                assert_eq!(files, [("model.txt".into(), b"the model".to_vec())]);
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn error(self) -> Error {
        self.result().expect_err("the client was let in")
    }

    /// Stops the client at an arbitrary point; the next one starts from its folder.
    pub fn halt(self) {
        self.stop.store(true, Ordering::Relaxed);
        match self.result() {
            Ok(Ending::Stopped | Ending::Delivered(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

pub fn wait(condition: impl Fn() -> bool, what: &str, board: &Board) {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() >= PATIENCE {
            let status = board.watch().borrow().clone();
            panic!("no {what}; status {status:#?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
