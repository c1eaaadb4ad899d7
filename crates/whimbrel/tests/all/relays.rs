//! `whimbrel relay` as a process: invitations for the wrong command.

use crate::federation::{invitations, serve, wards};
use crate::support::Sandbox;

fn invite(sandbox: &Sandbox, args: &[&str]) -> String {
    sandbox.ok(&[&["invite", "served"], args].concat()).stdout.trim().to_owned()
}

#[test]
fn invitations_of_relays_and_clients_are_not_exchanged() {
    let sandbox = wards(5, "");
    let _coordinator = serve(&sandbox, false);
    let (_, of_client) = invitations(&sandbox).swap_remove(0);
    let of_relay = invite(&sandbox, &["site", "--relay", "127.0.0.1:1"]);
    let enter = ["join", &of_relay, "--data", "east.csv", "--out", "x", "--yes"];
    sandbox.fails(&enter, 4, "an invitation of a relay is for `whimbrel relay`");
    let carry = ["relay", &of_client, "--listen", "127.0.0.1:0", "--out", "y"];
    sandbox.fails(&carry, 4, "that of a client for `whimbrel join`");
    let wrong = [
        (&["site", "--relay", "nowhere"][..], "`nowhere` is not an address"),
        (&["east", "--relay", "h:1"], "is invited as a client"),
        (&["late", "--via", "nobody"], "there is no relay `nobody` in this run"),
    ];
    for (args, why) in wrong {
        sandbox.fails(&[&["invite", "served"], args].concat(), 2, why);
    }
}
