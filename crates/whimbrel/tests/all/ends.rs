//! The end of served jobs: files that cannot be written, changed rows, closed standard error.

use crate::federation::{Process, invitations, join_all, same_model, serve, wait, wards};
use std::fs;
use std::process::Stdio;

/// A folder in place of a file blocks its writing, as a full disk does.
#[test]
fn writes_at_the_end_are_retried_and_the_model_precedes_the_report() {
    let sandbox = wards(3, "");
    let coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let blocked = ["clients.csv", "report.html"].map(|name| sandbox.path("served").join(name));
    blocked.iter().for_each(|path| fs::create_dir_all(path).unwrap());
    let paused = |name: &str| {
        let status = fs::read_to_string(sandbox.path("served/status.json")).unwrap_or_default();
        status.contains(&format!("\"state\":\"paused, nothing is lost: served/{name}"))
    };
    let clients = join_all(&sandbox, &invitations);
    wait("a pause before the delivery", || paused("clients.csv"));
    assert!(!sandbox.path("client-east/model").exists());
    fs::remove_dir(&blocked[0]).unwrap();
    for ((name, _), client) in invitations.iter().zip(clients) {
        client.ends(&sandbox, name);
    }
    wait("a pause after it", || paused("report.html"));
    fs::remove_dir(&blocked[1]).unwrap();
    coordinator.ends(&sandbox, "serve");
    assert!(blocked[1].is_file());
    assert!(sandbox.ok(&["status", "served"]).stdout.starts_with("wards: converged: "));
    same_model(&sandbox);

    // As after a kill in between: the report is written again, and rounds keep their count.
    fs::remove_file(&blocked[1]).unwrap();
    serve(&sandbox, true).ends(&sandbox, "serve");
    assert!(blocked[1].is_file());
    let status = sandbox.ok(&["status", "served", "--json"]).json();
    assert_eq!(status["clients"]["east"]["rounds"], 3);

    // A folder keeps its rows.
    let enter = ["join", &invitations[0].1, "--data", "north.csv", "--out", "client-east"];
    let args = [&enter[..], &["--min-group", "1"]].concat();
    sandbox.fails(&args, 2, "north.csv differs from the rows");
}

#[test]
fn a_closed_standard_error_is_ignored_and_a_json_log_contains_only_json() {
    let sandbox = wards(3, "");
    let args = ["serve", "job.toml", "--out", "served", "--log", "json"];
    let mut coordinator = Process::start(&sandbox, "serve", &args);
    let (_, invitation) = invitations(&sandbox).swap_remove(0);
    let args = ["join", &invitation, "--data", "east.csv", "--out", "x", "--log", "json"];
    let asked = sandbox.run(&args);
    assert_eq!(asked.code, 5, "{}", asked.stderr);
    coordinator.kill();
    for line in sandbox.read("serve.log").lines().chain(asked.stderr.lines()) {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    assert!(asked.stderr.contains("that would leave this machine"), "{}", asked.stderr);

    let args = ["join", &invitation, "--data", "east.csv", "--out", "y", "--give-up", "0.5"];
    let mut child = sandbox.command(&args).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(4));
}
