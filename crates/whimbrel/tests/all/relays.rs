//! `whimbrel relay` as a process: kills, consent, and invitations for the wrong command.

use crate::federation::{
    Process, all_end, free_address, invitations, join, same_model, serve, wait, wards,
};
use crate::support::Sandbox;

fn invite(sandbox: &Sandbox, args: &[&str]) -> String {
    sandbox.ok(&[&["invite", "served"], args].concat()).stdout.trim().to_owned()
}

/// Relay and coordinator are killed while the job runs.
#[test]
fn a_relay_killed_and_restarted_ends_in_the_bits_of_the_simulation() {
    let sandbox = wards(60, "");
    let mut coordinator = serve(&sandbox, false);
    let mut invitations = invitations(&sandbox);
    let address = free_address();
    let own = invite(&sandbox, &["site", "--relay", &address]);
    sandbox.fails(&["invite", "served", "east", "--via", "site"], 2, "has not joined yet");
    let relay = || {
        let args = ["relay", &own, "--listen", &address, "--out", "site", "--give-up", "120"];
        Process::start(&sandbox, "site", &args)
    };
    let mut running = relay();
    wait("relay", || sandbox.run(&["invite", "served", "east", "--via", "site"]).code == 0);
    for (name, invitation) in &mut invitations {
        if name != "north" {
            *invitation = invite(&sandbox, &[name, "--via", "site"]);
        }
    }
    let mut clients: Vec<Process> =
        invitations.iter().map(|(name, invitation)| join(&sandbox, name, invitation)).collect();
    let status = || std::fs::read_to_string(sandbox.path("served/status.json")).unwrap_or_default();
    for _ in 0..5 {
        let before = status();
        wait("something new", || status() != before || coordinator.is_over());
        running.kill();
        running = relay();
    }
    if !coordinator.is_over() {
        coordinator.kill();
        wait("the outage in the log", || {
            let is_told = sandbox.read("site.log").contains("cannot be reached");
            is_told || clients.iter_mut().any(Process::is_over)
        });
        coordinator = serve(&sandbox, true);
    }
    all_end(&sandbox, coordinator, &invitations, clients);
    running.kill();
    same_model(&sandbox);
    let told = sandbox.read("east.log");
    assert!(told.contains("all messages pass through the relay `site`"), "{told}");
    assert!(!sandbox.read("north.log").contains("pass through"));
    let (east, given) = (&invitations[0].1, "the coordinator keeps the");
    let declined =
        ["join", east, "--data", "east.csv", "--out", "client-east", "--min-group", "1", "--renew"];
    sandbox.fails(&declined, 5, given);
}

#[test]
fn invitations_of_relays_and_clients_are_not_exchanged() {
    let sandbox = wards(5, "");
    let _coordinator = serve(&sandbox, false);
    let (_, of_client) = invitations(&sandbox).swap_remove(0);
    wait("the list of clients", || sandbox.path("served/federation.json").exists());
    let of_relay = invite(&sandbox, &["site", "--relay", "127.0.0.1:1"]);
    let enter = ["join", &of_relay, "--data", "east.csv", "--out", "x", "--yes"];
    sandbox.fails(&enter, 4, "an invitation of a relay is for `whimbrel relay`");
    let carry = ["relay", &of_client, "--listen", "127.0.0.1:0", "--out", "y"];
    sandbox.fails(&carry, 4, "that of a client for `whimbrel join`");
    let wrong = [
        (&["site", "--relay", "nowhere"][..], "`nowhere` is not an address"),
        (&["site", "--relay", "http://h:1"], "`http://h:1` is not an address"),
        (&["east", "--relay", "h:1"], "is invited as a client"),
        (&["late", "--via", "nobody"], "there is no relay `nobody` in this run"),
    ];
    for (args, why) in wrong {
        sandbox.fails(&[&["invite", "served"], args].concat(), 2, why);
    }
}
