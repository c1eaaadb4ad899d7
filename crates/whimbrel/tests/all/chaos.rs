//! Kills at random moments: coordinator and clients are ended as a power cut would, started again,
//! and the job ends in the bits of `whimbrel run`.
//!
//! `WHIMBREL_CHAOS_KILLS` (10 and 8) and `WHIMBREL_CHAOS_SEED` (1) choose how many and which.

use crate::federation::{NAMES, Process, invitations, join, same_model, serve, wait, wards};
use crate::pki::Authority;
use crate::support::Sandbox;
use std::time::Duration;
use whimbrel::parts::core::Key;
use whimbrel::parts::core::wire::hex;
use whimbrel::parts::net::tls::fingerprint_of_file;

/// The longest time between two kills.
const PAUSE_MAX_MS: f64 = 600.0;
/// Rounds for each kill, so that the job outlasts them all.
const ROUNDS_PER_KILL: u32 = 400;

#[test]
fn a_job_outlives_kills_of_everyone_at_random_moments() {
    let (kills, seed) = (setting("WHIMBREL_CHAOS_KILLS", 10), setting("WHIMBREL_CHAOS_SEED", 1));
    let sandbox = wards(kills * ROUNDS_PER_KILL, "");
    let mut coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let start = |at: usize| join(&sandbox, &invitations[at].0, &invitations[at].1);
    let mut clients: Vec<Process> = (0..NAMES.len()).map(start).collect();
    let mut chance = Key::root(u64::from(seed)).stream();
    for kill in 0..kills {
        let pause = PAUSE_MAX_MS * chance.uniform();
        std::thread::sleep(Duration::from_millis(pause as u64));
        assert!(!coordinator.is_over(), "over before kill {kill}; seed {seed}");
        // The coordinator twice as often as each client.
        match (5.0 * chance.uniform()) as usize {
            at if at < NAMES.len() => {
                clients[at].kill();
                clients[at] = start(at);
            }
            _ => {
                drop(coordinator);
                coordinator = serve(&sandbox, true);
            }
        }
    }
    coordinator.ends(&sandbox, "serve");
    for ((name, _), client) in invitations.iter().zip(clients) {
        client.ends(&sandbox, name);
    }
    same_model(&sandbox);
}

/// Certificates of both ends change between kills, each after the other end has heard of the next one;
/// the old and the new one are good in between, whoever is killed meanwhile.
#[test]
fn a_job_outlives_kills_with_certificates_that_change_in_between() {
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
                wait("everyone to hear of it", || NAMES.iter().all(|name| heard(name)));
                own += 1;
                drop(coordinator);
                coordinator = certificates.serve(own, &["--resume", "--rotate"]);
            }
            1 => {
                let next = certificates.fingerprint(&invitations[at].0, shown[at] + 1);
                wait("the coordinator to hear of it", || {
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
    coordinator.ends(&sandbox, "serve");
    for ((name, _), client) in invitations.iter().zip(clients) {
        client.ends(&sandbox, name);
    }
    assert_eq!((own, shown.iter().sum::<u32>()), (kills.div_ceil(4), (kills + 2) / 4));
    same_model(&sandbox);
}

/// Certificates of one authority, made as they are needed: `NAME-N` is the one after `NAME-(N - 1)`.
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

    /// Starts a command with a certificate, and announces the next one.
    fn start(&self, log: &str, args: &[&str], name: &str, number: u32) -> Process {
        let ((cert, key), (next, _)) = (self.files(name, number), self.files(name, number + 1));
        let brought = ["--cert", &cert, "--key", &key, "--next-cert", &next];
        Process::start(self.sandbox, log, &[args, &brought[..]].concat())
    }

    fn serve(&self, number: u32, how: &[&str]) -> Process {
        let args = ["serve", "job.toml", "--out", "served", "--client-ca", "ca.pem"];
        self.start("serve", &[&args[..], how].concat(), "coordinator", number)
    }

    fn join(&self, (name, invitation): &(String, String), number: u32) -> Process {
        let (data, out) = (format!("{name}.csv"), format!("client-{name}"));
        let args = ["join", invitation, "--data", &data, "--out", &out, "--yes"];
        self.start(name, &[&args[..], &["--give-up", "120"]].concat(), name, number)
    }
}

fn setting(name: &str, usual: u32) -> u32 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => usual,
    }
}
