//! Kills at random moments: coordinator and clients are ended as a power cut would, started again,
//! and the job ends in the bits of `whimbrel run`.
//!
//! `WHIMBREL_CHAOS_KILLS` (10) and `WHIMBREL_CHAOS_SEED` (1) choose how many and which.

use crate::federation::{NAMES, Process, invitations, join, same_model, serve, wards};
use std::time::Duration;
use whimbrel::core::Key;

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

fn setting(name: &str, usual: u32) -> u32 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => usual,
    }
}
