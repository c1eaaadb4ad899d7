//! Kills at random times: coordinator and clients are killed and restarted, and the job ends in the
//! bits of `whimbrel run`.
//!
//! `WHIMBREL_CHAOS_KILLS` (10, 8, and 6 under masks) and `WHIMBREL_CHAOS_SEED` (1) set their number and seed.

use crate::federation::{
    NAMES, Process, all_end, invitations, join_all, join_with, masked_wards, same_model, serve,
    wait, wards,
};
use crate::pki::Authority;
use crate::support::Sandbox;
use std::time::Duration;
use whimbrel::parts::core::Key;
use whimbrel::parts::core::wire::hex;
use whimbrel::parts::net::tls::fingerprint_of_file;

/// Longest pause between two kills.
const PAUSE_MAX_MS: f64 = 600.0;
/// Rounds per kill, so that the job outlasts them.
const ROUNDS_PER_KILL: u32 = 400;

#[test]
fn a_job_survives_kills_of_all_processes_at_random_times() {
    let kills = setting("WHIMBREL_CHAOS_KILLS", 10);
    survives(&wards(kills * ROUNDS_PER_KILL, ""), kills);
}

/// A masked round takes three exchanges.
#[test]
fn a_masked_job_survives_kills_of_all_processes_at_random_times() {
    let kills = setting("WHIMBREL_CHAOS_KILLS", 6);
    survives(&masked_wards(kills * ROUNDS_PER_KILL / 3, true), kills);
}

fn survives(sandbox: &Sandbox, kills: u32) {
    let seed = setting("WHIMBREL_CHAOS_SEED", 1);
    let mut coordinator = serve(sandbox, false);
    let invitations = invitations(sandbox);
    let mut clients = join_all(sandbox, &invitations);
    let mut chance = Key::root(u64::from(seed)).stream();
    for kill in 0..kills {
        let pause = PAUSE_MAX_MS * chance.uniform();
        std::thread::sleep(Duration::from_millis(pause as u64));
        assert!(!coordinator.is_over(), "over before kill {kill}; seed {seed}");
        // The coordinator twice as often as each client.
        match (5.0 * chance.uniform()) as usize {
            at if at < NAMES.len() => {
                clients[at].kill();
                clients[at] = join_all(sandbox, &invitations[at..=at]).remove(0);
            }
            _ => {
                drop(coordinator);
                coordinator = serve(sandbox, true);
            }
        }
    }
    all_end(sandbox, coordinator, &invitations, clients);
    same_model(sandbox);
}

/// Certificates of both ends change between kills, each after the other end knows the next one; both
/// are valid in between.
#[test]
fn a_job_survives_kills_and_changes_of_certificates() {
    let (kills, seed) = (setting("WHIMBREL_CHAOS_KILLS", 8), setting("WHIMBREL_CHAOS_SEED", 1));
    let sandbox = wards(kills * ROUNDS_PER_KILL, "");
    let certificates = Certificates::new(&sandbox);
    let mut own = 0;
    let mut coordinator = certificates.serve(own, &[]);
    let invitations = invitations(&sandbox);
    let mut shown = [0; NAMES.len()];
    let start = |at: usize, shown: u32| certificates.join(&invitations[at], shown);
    let mut clients: Vec<Process> = (0..NAMES.len()).map(|at| start(at, 0)).collect();
    let mut chance = Key::root(u64::from(seed)).stream();
    for kill in 0..kills {
        let pause = PAUSE_MAX_MS * chance.uniform();
        std::thread::sleep(Duration::from_millis(pause as u64));
        assert!(!coordinator.is_over(), "over before kill {kill}; seed {seed}");
        let at = (NAMES.len() as f64 * chance.uniform()) as usize;
        match kill % 4 {
            0 => {
                let next = certificates.fingerprint("coordinator", own + 1);
                let heard = |name: &str| sandbox.read(&format!("{name}.log")).contains(&next);
                wait("announcement to clients", || NAMES.iter().all(|name| heard(name)));
                own += 1;
                drop(coordinator);
                coordinator = certificates.serve(own, &["--resume", "--rotate"]);
            }
            1 => {
                let next = certificates.fingerprint(&invitations[at].0, shown[at] + 1);
                wait("announcement to the coordinator", || {
                    sandbox.read("served/federation.json").contains(&next)
                });
                shown[at] += 1;
                clients[at].kill();
                clients[at] = start(at, shown[at]);
            }
            2 => {
                drop(coordinator);
                coordinator = certificates.serve(own, &["--resume"]);
            }
            _ => {
                clients[at].kill();
                clients[at] = start(at, shown[at]);
            }
        }
    }
    all_end(&sandbox, coordinator, &invitations, clients);
    assert_eq!((own, shown.iter().sum::<u32>()), (kills.div_ceil(4), (kills + 2) / 4));
    same_model(&sandbox);
}

/// Certificates of one authority, signed on demand; `NAME-N` follows `NAME-(N - 1)`.
struct Certificates<'a> {
    sandbox: &'a Sandbox,
    authority: Authority,
}

impl<'a> Certificates<'a> {
    fn new(sandbox: &'a Sandbox) -> Self {
        let authority = Authority::new("institution");
        sandbox.write("ca.pem", &authority.pem);
        Self { sandbox, authority }
    }

    /// The files of a certificate and its key.
    fn files(&self, name: &str, number: u32) -> (String, String) {
        let name = format!("{name}-{number}");
        if !self.sandbox.path(&format!("{name}.pem")).exists() {
            self.authority.sign(&self.sandbox.path(""), &name);
        }
        (format!("{name}.pem"), format!("{name}.key"))
    }

    fn fingerprint(&self, name: &str, number: u32) -> String {
        let file = self.sandbox.path(&self.files(name, number).0);
        hex(&fingerprint_of_file(&file).unwrap())
    }

    /// Options for a certificate and the announcement of the next one.
    fn options(&self, name: &str, number: u32) -> [String; 6] {
        let ((cert, key), (next, _)) = (self.files(name, number), self.files(name, number + 1));
        ["--cert".into(), cert, "--key".into(), key, "--next-cert".into(), next]
    }

    fn serve(&self, number: u32, how: &[&str]) -> Process {
        let args = ["serve", "job.toml", "--out", "served", "--client-ca", "ca.pem"];
        let options = self.options("coordinator", number);
        let options = options.each_ref().map(|option| &option[..]);
        Process::start(self.sandbox, "serve", &[&args[..], how, &options].concat())
    }

    fn join(&self, (name, invitation): &(String, String), number: u32) -> Process {
        let options = self.options(name, number);
        let options = options.each_ref().map(|option| &option[..]);
        join_with(self.sandbox, name, invitation, &options)
    }
}

fn setting(name: &str, usual: u32) -> u32 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => usual,
    }
}
