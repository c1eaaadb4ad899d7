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
    Chain, Consent, Faults, Journal, Limits as Simulated, Outcome, Participation,
};
use whimbrel_net::client::{self, Client, ClientStore, Ending};
use whimbrel_net::coordinator::{Coordinator, Rules, Setup};
use whimbrel_net::invitation::Fingerprint;
use whimbrel_net::registry::Registry;
use whimbrel_net::status::{Board, Status};
use whimbrel_net::tls::{Identity, server_config};
use whimbrel_net::{Invitation, Limits};

pub const SEED: u64 = 11;

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Toys in a row.
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

/// What a run leaves that must not depend on who carried it.
#[derive(Debug, PartialEq)]
pub struct Left {
    pub delivered: Vec<Artifact>,
    pub server: Vec<u8>,
    pub names: Vec<String>,
    pub rounds: Vec<u32>,
    pub journal: String,
    /// But for the seconds.
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

/// The same job on this machine.
pub fn simulate(toys: &Toys, count: u32) -> (Left, Outcome) {
    let folder = tempfile::tempdir().unwrap();
    let limits = Simulated {
        folder: Some(folder.path()),
        resume: false,
        checkpoint_every: Duration::from_secs(3600),
        interrupt: &AtomicBool::new(false),
    };
    let outcome = whimbrel_engine::run(toys, toy::clients(count), SEED, &limits, &mut ()).unwrap();
    (Left::new(&outcome, folder.path()), outcome)
}

/// The same job on this machine, with uploads lost as a journal says.
pub fn replay(toys: &Toys, count: u32, journal: &str) -> Left {
    let stages = 0..toys.stages as u32;
    let faults = stages.map(|stage| Faults {
        replay: Some(Journal::parse(journal, stage).unwrap()),
        ..Faults::default()
    });
    simulate(&Toys { faults: faults.collect(), ..toys.clone() }, count).0
}

/// A federation: one folder for the coordinator, one for each client.
pub struct Town {
    pub folder: tempfile::TempDir,
    pub toys: Toys,
    pub rules: Rules,
    /// Whether the coordinator asks for evaluations, and whether clients agreed to them.
    pub evaluates: bool,
    pub agrees: bool,
    /// Whether clients that join from now on agree again to what they agreed to.
    pub renews: bool,
    pub limits: Limits,
    /// The coordinator's certificate and key, where it brings them, and the clients' authority.
    pub brought: Option<(PathBuf, PathBuf)>,
    pub client_ca: Option<PathBuf>,
    /// Certificates that both ends announce.
    pub next_certificate: Option<Fingerprint>,
    pub next_of_clients: Option<Fingerprint>,
    pub address: String,
    pub invitations: Vec<Invitation>,
    listener: Option<TcpListener>,
    /// A job that is over, where not everyone has the model: as a run's summary says it.
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
            Invitation { address: address.clone(), server: identity.fingerprint(), name, token }
        };
        let invitations = (0..count).map(invite).collect();
        // What must not expire does not, on a slow machine either.
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

    /// Starts the coordinator, or starts it again on the same address.
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
                    let outcome = coordinator.run(&toys, &mut ())?;
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
        let toys = self.toys.clone();
        self.join_with(i, Box::new(toys), self.invitations[i as usize].clone())
    }

    pub fn join_with(
        &self,
        i: u32,
        chain: Box<dyn Chain + Send>,
        invitation: Invitation,
    ) -> Joined {
        self.enter(i, chain, invitation, None, PATIENCE)
    }

    /// The same with a certificate that the client brings, and as long as it is patient.
    pub fn join_as(&self, i: u32, identity: Option<Identity>, patience: Duration) -> Joined {
        let invitation = self.invitations[i as usize].clone();
        self.enter(i, Box::new(self.toys.clone()), invitation, identity, patience)
    }

    fn enter(
        &self,
        i: u32,
        chain: Box<dyn Chain + Send>,
        invitation: Invitation,
        identity: Option<Identity>,
        patience: Duration,
    ) -> Joined {
        let stop = Arc::new(AtomicBool::new(false));
        let setup = client::Setup {
            folder: self.folder.path().join(&invitation.name),
            invitation,
            name: None,
            identity,
            next_certificate: self.next_of_clients,
            stop: stop.clone(),
            give_up: Some(patience),
        };
        let folder = setup.folder.clone();
        let data = toy::clients(i + 1).pop().unwrap().1;
        let consent = Consent { evaluates: self.agrees, ..Consent::default() };
        let message_bytes = self.limits.message_bytes;
        let participant = Participant { chain, data, seed: SEED, consent };
        let renews = self.renews;
        let thread =
            std::thread::spawn(move || join(setup, &folder, participant, message_bytes, renews));
        Joined { thread, stop }
    }
}

fn join(
    setup: client::Setup,
    folder: &Path,
    participant: Participant,
    message_bytes: u64,
    renews: bool,
) -> Result<Ending> {
    let client = Client::new(setup)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let Some(enrolled) = client.enrol().await? else { return Ok(Ending::Stopped) };
        assert_eq!(enrolled.offer, b"the offer");
        let mut store = ClientStore::open(participant, message_bytes, folder)?;
        if renews {
            store.renew()?;
        }
        client.take_part(&enrolled, store).await
    })
}

/// A loopback address for one town alone, where the system has many: while its coordinator is away,
/// its port must not become another town's.
fn host() -> Ipv4Addr {
    static TOWNS: AtomicU8 = AtomicU8::new(2);
    match cfg!(target_os = "linux") {
        true => Ipv4Addr::new(127, 77, 0, TOWNS.fetch_add(1, Ordering::Relaxed)),
        false => Ipv4Addr::LOCALHOST,
    }
}

/// The address may take a moment to be free again.
fn bind(address: &str) -> TcpListener {
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
    /// The end of a job that was not interrupted.
    pub fn end(self) -> (Left, Outcome) {
        self.result().unwrap().expect("the job was interrupted")
    }

    pub fn result(self) -> Result<Option<(Left, Outcome)>> {
        wait(|| self.thread.is_finished(), "the coordinator ends", &self.board);
        self.thread.join().unwrap()
    }

    /// Waits until the board shows something, or the coordinator has ended.
    pub fn shows(&self, what: &str, condition: impl Fn(&Status) -> bool) {
        let ended = || self.thread.is_finished();
        wait(|| condition(&self.board.watch().borrow()) || ended(), what, &self.board);
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

    /// The model it was handed.
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

    /// Stops it as a crash would: whatever it was doing, the next one starts from its folder.
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
            panic!("waited in vain: {what}; the board says {status:#?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
