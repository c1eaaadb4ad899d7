//! The coordinator, in a process of its own so that its memory and its time are its own.

use crate::echo::Echo;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use whimbrel_engine::Observer;
use whimbrel_engine::runner::Done;
use whimbrel_net::coordinator::{Coordinator, Rules, Setup};
use whimbrel_net::registry::Draft;
use whimbrel_net::status::Board;
use whimbrel_net::tls::{Identity, server_config};
use whimbrel_net::{Invitation, Limits};

/// The argument that makes this program a coordinator.
pub const WORD: &str = "--coordinator";

/// Settings of the measured process.
#[derive(Clone, Copy)]
pub struct Load {
    pub clients: usize,
    pub numbers: usize,
    pub rounds: u32,
}

/// Measurements from the end of the first round to the end of the last.
#[derive(Default)]
pub struct Figures {
    pub rounds: u32,
    pub seconds: f64,
    /// Of this process, user and system.
    pub cpu_seconds: f64,
    /// Resident memory after the first round, at equal distances, and after the last; kB.
    pub resident_kb: Vec<u64>,
    /// The most there ever was.
    pub peak_kb: u64,
}

/// A coordinator that another process runs.
pub struct Served {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pub invitations: Vec<Invitation>,
}

impl Served {
    /// Starts it and reads its invitations.
    pub fn start(folder: &Path, load: Load) -> Self {
        let Load { clients, numbers, rounds } = load;
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .arg(WORD)
            .arg(folder)
            .args([clients.to_string(), numbers.to_string(), rounds.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a coordinator starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut line = || lines.next().expect("a line").expect("a readable line");
        let invitations =
            (0..clients).map(|_| Invitation::decode(&line()).expect("an invitation")).collect();
        Self { child, lines, invitations }
    }

    /// Its resident memory, kB.
    pub fn resident_kb(&self) -> u64 {
        memory_kb(&format!("/proc/{}/status", self.child.id()), "VmRSS:")
    }

    /// Its processor time so far.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(&self.child.id().to_string())
    }

    /// Ends it before its job is over.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its figures.
    pub fn figures(mut self) -> Figures {
        let line = self.lines.next().expect("figures").expect("a readable line");
        assert!(self.child.wait().expect("it ends").success(), "the coordinator failed");
        let mut words = line.split(' ').map(|word| word.parse::<f64>().expect("a number"));
        let mut next = || words.next().expect("another number");
        Figures {
            rounds: next() as u32,
            seconds: next(),
            cpu_seconds: next(),
            peak_kb: next() as u64,
            resident_kb: words.map(|kb| kb as u64).collect(),
        }
    }
}

/// The measured process.
pub fn serve(arguments: &[String]) {
    let [folder, clients, numbers, rounds] = arguments else { panic!("four arguments") };
    let folder = Path::new(folder);
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let (clients, numbers, rounds) = (number(clients), number(numbers), number(rounds) as u32);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let identity = Identity::keep(&folder.join("tls"), "coordinator").expect("an identity");
    let server = identity.fingerprint();
    let mut draft = Draft::new(&address, &server).expect("a registry");
    let setup = Setup {
        folder: folder.to_path_buf(),
        resume: false,
        offer: Vec::new(),
        seed: 1,
        rules: Rules::default(),
        evaluates: false,
        limits: Limits::default(),
        next_certificate: None,
        tls: server_config(&identity, None).expect("usable certificates"),
        board: Board::new("echo"),
        stop: Arc::new(AtomicBool::new(false)),
    };
    let mut lines = String::new();
    for i in 0..clients {
        let name = format!("client-{i:04}");
        let token = draft.invite(&name, false, 1).expect("an invitation");
        let address = address.clone();
        lines += &format!(
            "{}\n",
            Invitation { address, server, name, token, relays: Vec::new() }.encode()
        );
    }
    draft.create(folder).expect("a registry");
    let mut coordinator = Coordinator::start(setup, listener).expect("a coordinator");
    std::io::stdout().write_all(lines.as_bytes()).expect("somebody reads");
    let mut watch = Watch { every: (rounds / 20).max(1), ..Watch::default() };
    coordinator.run(&Echo { numbers, rounds }, &mut watch).expect("rounds");
    watch.print();
    coordinator.deliver(&[]).expect("a delivery");
}

#[derive(Default)]
struct Watch {
    every: u32,
    begun: Option<(Instant, f64)>,
    figures: Figures,
}

impl Observer for Watch {
    fn exchange(&mut self, _: &Done) {
        let Some((since, cpu)) = self.begun else {
            self.begun = Some((Instant::now(), cpu_seconds("self")));
            self.figures.resident_kb.push(memory_kb(OWN, "VmRSS:"));
            return;
        };
        self.figures.rounds += 1;
        if self.figures.rounds.is_multiple_of(self.every) {
            self.figures.seconds = since.elapsed().as_secs_f64();
            self.figures.cpu_seconds = cpu_seconds("self") - cpu;
            self.figures.resident_kb.push(memory_kb(OWN, "VmRSS:"));
        }
    }
}

impl Watch {
    fn print(&self) {
        let f = &self.figures;
        let counted = f.rounds - f.rounds % self.every;
        let peak = memory_kb(OWN, "VmHWM:");
        let mut line = format!("{counted} {} {} {peak}", f.seconds, f.cpu_seconds);
        f.resident_kb.iter().for_each(|kb| line += &format!(" {kb}"));
        println!("{line}");
    }
}

/// This process, as the system sees it.
const OWN: &str = "/proc/self/status";

/// A line of such a file; zero where there is none.
fn memory_kb(file: &str, key: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// User and system time of a process; zero where the system does not say.
fn cpu_seconds(process: &str) -> f64 {
    // In hundredths of a second; the fields before them begin after the command's bracket.
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
