//! Operation of a federation: one process per folder, `status`, private files, certificates of an
//! institution, and replay of the journal.

use crate::federation::{
    NAMES, Process, all_end, finish, invitations, join, join_all, join_with, masked_wards,
    same_model, serve, wait, wards,
};
use crate::pki::Authority;
use crate::support::Sandbox;
use serde_json::Value;
use std::fs;
use std::process::Command;

fn shows(sandbox: &Sandbox, what: &str) {
    let path = sandbox.path("served/status.json");
    wait(what, || fs::read_to_string(&path).is_ok_and(|text| text.contains(what)));
}

/// The port of the dashboard is bound before invitations are made.
#[test]
fn a_dashboard_on_a_used_port_is_refused_before_anything_is_written() {
    let sandbox = wards(3, "");
    let used = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = used.local_addr().unwrap().to_string();
    let args = ["serve", "job.toml", "--out", "served", "--dashboard", &address];
    sandbox.fails(&args, 2, "another program uses this port: name another one with --dashboard");
    assert!(!sandbox.path("served").exists());
}

/// Arguments that no clock or invitation can hold.
#[test]
fn impossible_times_and_addresses_are_refused_before_anything_is_written() {
    let sandbox = wards(3, "");
    let args = ["serve", "job.toml", "--out", "served", "--address", "http://h:1"];
    sandbox.fails(&args, 2, "--address: `http://h:1` is not an address");
    assert!(!sandbox.path("served").exists());
    for seconds in ["-1", "nan", "1e30"] {
        let give_up = format!("--give-up={seconds}");
        let why = "a number of seconds that is not negative is required";
        sandbox.fails(&["join", "x", "--data", "east.csv", &give_up], 2, why);
        sandbox.fails(&["relay", "x", &give_up], 2, why);
    }
}

/// On a disk of two pages not even the job can be written.
#[test]
fn a_full_disk_at_the_start_is_named_with_its_remedy() {
    let sandbox = wards(3, "");
    let served = sandbox.path("served");
    fs::create_dir(&served).unwrap();
    let options = ["-t", "tmpfs", "-o", "size=8k", "small"];
    let mounted = Command::new("mount").args(options).arg(&served).output();
    if !mounted.is_ok_and(|ran| ran.status.success()) {
        return whimbrel_testkit::skipped("this user cannot mount a small file system");
    }
    let ran = sandbox.run(&["serve", "job.toml", "--out", "served"]);
    let _ = Command::new("umount").arg("-l").arg(&served).status();
    assert!(ran.code != 0 && ran.stderr.contains("No space left on device"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: free space on this disk"), "{}", ran.stderr);
}

#[test]
fn a_second_coordinator_is_refused_while_the_first_runs() {
    let sandbox = wards(3, "");
    let mut coordinator = serve(&sandbox, false);
    invitations(&sandbox);
    shows(&sandbox, "\"state\":\"federated k-means, enrolment: waiting for");
    for how in ["--resume", "--force"] {
        let args = ["serve", "job.toml", "--out", "served", how];
        sandbox.fails(&args, 2, "another process works in served");
    }
    let status = sandbox.ok(&["status", "served"]);
    assert!(!status.stderr.contains("no coordinator is running"), "{}", status.stderr);
    coordinator.kill();
    let status = sandbox.ok(&["status", "served"]);
    assert!(status.stderr.contains("no coordinator is running"), "{}", status.stderr);
    finish(&sandbox, serve(&sandbox, true));
    same_model(&sandbox);
    let told = sandbox.read("serve.log");
    assert!(told.contains("unused invitations: east, north, west"), "{told}");
}

/// Columns that overflow the grid end all clients, and then the run, with the reason.
#[test]
fn a_run_ends_when_no_client_can_continue() {
    let sandbox = masked_wards(8, false);
    let job = sandbox.read("job.toml").replace("= 2\ninit", "= 2\ncovariance = \"full\"\ninit");
    sandbox.write("job.toml", &job);
    for name in NAMES {
        let rows = sandbox.read(&format!("{name}.csv"));
        sandbox.write(&format!("{name}.csv"), &rows.replace("\n", "e9\n").replace("a,be9", "a,b"));
    }
    let mut coordinator = serve(&sandbox, false);
    let _clients = join_all(&sandbox, &invitations(&sandbox));
    let mut code = None;
    wait("end", || {
        code = coordinator.code();
        code.is_some()
    });
    let log = sandbox.read("serve.log");
    assert!(code == Some(4) && log.contains("no client can continue; `"), "{code:?} {log}");
}

#[test]
fn status_reports_running_finished_and_missing_runs() {
    let sandbox = wards(3, "");
    sandbox.fails(&["status", "served"], 2, "is not a served run");
    let coordinator = serve(&sandbox, false);
    invitations(&sandbox);
    shows(&sandbox, "\"state\":\"federated k-means, enrolment: waiting for");
    let running = sandbox.ok(&["status", "served"]);
    assert!(running.stdout.contains("waiting for"), "{}", running.stdout);
    for name in NAMES {
        let line = running.stdout.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains("invited"), "{line}");
    }
    finish(&sandbox, coordinator);
    let over = sandbox.ok(&["status", "served"]);
    assert!(over.stdout.starts_with("wards: converged: "), "{}", over.stdout);
    assert!(!over.stderr.contains("no coordinator"), "{}", over.stderr);
    let json = sandbox.ok(&["status", "served", "--json"]).json();
    assert_eq!(json["finished"], true);
    // No client can join a finished run.
    sandbox.fails(&["invite", "served", "south"], 2, "is over: converged");
    assert!(!sandbox.read("served/federation.json").contains("south"));
}

#[cfg(unix)]
#[test]
fn keys_and_tokens_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = wards(3, "");
    let args = ["serve", "job.toml", "--out", "served", "--dashboard", "127.0.0.1:0"];
    let mut coordinator = Process::start(&sandbox, "serve", &args);
    invitations(&sandbox);
    let told = |times: usize| {
        wait("dashboard", || sandbox.read("serve.log").matches("dashboard: http").count() == times);
    };
    told(1);
    let token = sandbox.read("served/dashboard-token");
    // The link survives a restart of the coordinator.
    coordinator.kill();
    let coordinator = Process::start(&sandbox, "serve", &[&args[..], &["--resume"]].concat());
    told(2);
    assert_eq!(sandbox.read("served/dashboard-token"), token);
    finish(&sandbox, coordinator);

    let mode = |name: &str| fs::metadata(sandbox.path(name)).unwrap().permissions().mode() & 0o777;
    for (name, wanted) in [
        ("served/tls", 0o700),
        ("served/tls/identity", 0o600),
        ("served/dashboard-token", 0o600),
        ("client-north", 0o700),
        ("client-north/identity", 0o600),
    ] {
        assert_eq!(mode(name), wanted, "{name} is {:o}", mode(name));
    }
    // The list of clients contains no secrets.
    let registry = sandbox.read("served/federation.json");
    for (_, invitation) in invitations(&sandbox) {
        assert!(!registry.contains(&invitation));
    }
    // A delivery consists of these files.
    let mut files: Vec<String> = fs::read_dir(sandbox.path("client-north/model"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort_unstable();
    assert_eq!(files, ["model.json", "model.safetensors"]);
}

#[test]
fn clients_of_another_authority_are_refused() {
    let sandbox = wards(3, "");
    let folder = sandbox.path("");
    let (institution, elsewhere) = (Authority::new("institution"), Authority::new("elsewhere"));
    sandbox.write("ca.pem", &institution.pem);
    institution.sign(&folder, "coordinator");
    NAMES.iter().for_each(|name| drop(institution.sign(&folder, name)));
    elsewhere.sign(&folder, "other");
    let args = ["serve", "job.toml", "--out", "served", "--client-ca", "ca.pem"];
    let brought = ["--cert", "coordinator.pem", "--key", "coordinator.key"];
    let coordinator = Process::start(&sandbox, "serve", &[&args[..], &brought[..]].concat());
    let invitations = invitations(&sandbox);

    let (_, invitation) = &invitations[0];
    let enter = ["join", invitation, "--data", "east.csv", "--yes"];
    let other = ["--out", "x", "--cert", "other.pem", "--key", "other.key"];
    for with in [&other[..], &["--out", "y"]] {
        let why = "refuses this client's certificate: the coordinator does not know its authority";
        sandbox.fails(&[&enter[..], with].concat(), 4, why);
    }
    let told = sandbox.read("served/audit.jsonl");
    assert!(told.contains("the certificate's authority is unknown"), "{told}");
    let list = sandbox.object("served/federation.json");
    let clients = list["clients"].as_array().unwrap();
    assert!(clients.iter().all(|client| client["certificate"].is_null()), "{clients:?}");

    let start = |(name, invitation): &(String, String)| {
        let (cert, key) = (format!("{name}.pem"), format!("{name}.key"));
        join_with(&sandbox, name, invitation, &["--cert", &cert, "--key", &key])
    };
    let clients = invitations.iter().map(start).collect();
    all_end(&sandbox, coordinator, &invitations, clients);
    same_model(&sandbox);
    assert!(!sandbox.path("served/tls/identity").exists(), "a key was made without need");
}

/// Rounds close at a deadline, all processes are killed, and a stopping rule depends on respondents:
/// the journal replays all of it.
///
/// One client is absent until the last kill, which costs each round its deadline, so that the
/// stopping rule, which needs hundreds of rounds, leaves time for the kills on any machine.
#[test]
fn a_run_with_a_deadline_kills_and_a_stopping_rule_is_replayed() {
    let sandbox = wards(100_000, "stop = { patience = 200, tolerance = 0.0 }\n");
    let job = sandbox.read("job.toml").replace("every = 5", "every = 1");
    // One stage, since each begins with an enrolment of all clients.
    let job = job.replace("components = 2", "components = 2\ninit = \"moments\"");
    sandbox.write("job.toml", &format!("{job}quorum = 1\ndeadline_s = 0.05\n"));
    let mut coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let start = |at: usize| join(&sandbox, &invitations[at].0, &invitations[at].1);
    let reaches = |round: u64| {
        wait(&format!("round {round}"), || {
            let status = fs::read(sandbox.path("served/status.json")).unwrap_or_default();
            let status = serde_json::from_slice(&status).unwrap_or(serde_json::Value::Null);
            status["round"].as_u64().is_some_and(|at| at >= round)
        });
    };

    // The first client enrols and is absent when the rounds begin.
    let mut first = start(0);
    let mut second = start(1);
    shows(&sandbox, "\"heard\":2");
    first.kill();
    let mut third = start(2);
    let mut round = 0;
    for kill in 0..4 {
        round += 3;
        reaches(round);
        assert!(!coordinator.is_over(), "the job was over before kill {kill}");
        let (client, at) = match kill {
            0 => (&mut second, 1),
            2 => (&mut third, 2),
            _ => {
                coordinator.kill();
                coordinator = serve(&sandbox, true);
                continue;
            }
        };
        client.kill();
        round += 3;
        reaches(round);
        *client = start(at);
    }
    first = start(0);
    all_end(&sandbox, coordinator, &invitations, vec![first, second, third]);
    same_when_replayed(&sandbox);
    let journal = sandbox.read("served/journal");
    let evaluation = journal.lines().find(|line| line.contains("\"evaluated\":1,")).unwrap();
    assert!(!evaluation.contains("\"answered\":\"0"), "the first client was absent: {evaluation}");
    assert_eq!(sandbox.object("served/summary.json")["ending"], "converged");
}

/// A client invited during the job gets the next id, whatever its name; the journal records the name.
#[test]
fn a_run_with_a_late_unlisted_client_is_replayed() {
    let each = "participation = { default = 1.0, clients = { north = 0.5 } }\n";
    let sandbox = wards(1500, each);
    let mut coordinator = serve(&sandbox, false);
    let mut invitations = invitations(&sandbox);
    let start = |(name, invitation): &(String, String)| join(&sandbox, name, invitation);
    let mut clients = join_all(&sandbox, &invitations);
    let status = || -> Value {
        let text = fs::read_to_string(sandbox.path("served/status.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    };
    wait("first round", || status()["round"].as_u64() > Some(0));
    // Without `west` no round closes, so the run cannot end too soon.
    let west = invitations.iter().position(|(name, _)| name == "west").unwrap();
    clients[west].kill();
    assert!(!coordinator.is_over(), "the job was over before the late client");
    let invitation = sandbox.ok(&["invite", "served", "aspen"]).stdout.trim().to_owned();
    let rows = sandbox.read("north.csv");
    sandbox.write("aspen.csv", &rows);
    invitations.push(("aspen".into(), invitation));
    clients.push(start(&invitations[3]));
    wait("aspen", || status()["clients"]["aspen"]["connected"] == true);
    clients[west] = start(&invitations[west]);
    wait("its rounds", || status()["clients"]["aspen"]["rounds"].as_u64() > Some(0));
    // The resumed journal does not repeat names.
    coordinator.kill();
    all_end(&sandbox, serve(&sandbox, true), &invitations, clients);
    let ledger = sandbox.ok(&["ledger", "client-aspen"]).stdout;
    assert!(ledger.contains("federated k-means: over before this client joined"), "{ledger}");
    let journal = sandbox.read("served/journal");
    let named: Vec<&str> = journal.lines().filter(|line| line.contains("names")).collect();
    assert_eq!(named.len(), 2, "{named:?}");
    assert!(named[0].contains("\"names\":[\"east\",\"north\",\"west\"]"), "{named:?}");
    assert!(named[1].contains("\"joined\":\"3\",\"names\":[\"aspen\"]"), "{named:?}");

    let replay = ["run", "job.toml", "--out", "again", "--replay", "served/journal"];
    sandbox.fails(&replay, 3, "the journal names client `aspen`, which the data do not have");
    let own: String = rows.lines().skip(1).map(|row| format!("{row},aspen\n")).collect();
    // A client of the data without part in the run changes nothing.
    sandbox.write("all.csv", &(sandbox.read("all.csv") + &own + "9,9,aaron\n9,8,aaron\n"));
    same_when_replayed(&sandbox);
}

/// Compares the run with the replay of its journal.
fn same_when_replayed(sandbox: &Sandbox) {
    sandbox.ok(&["run", "job.toml", "--out", "again", "--replay", "served/journal"]);
    for file in ["model/model.safetensors", "journal"] {
        let bytes = |run: &str| fs::read(sandbox.path(&format!("{run}/{file}"))).unwrap();
        assert!(bytes("served") == bytes("again"), "{file} differs");
    }
    assert_eq!(sandbox.timeless_metrics("served"), sandbox.timeless_metrics("again"));
    let summary =
        |run: &str, key: &str| sandbox.object(&format!("{run}/summary.json"))[key].clone();
    for key in ["rounds", "objective", "ending", "bits_up", "bits_down", "bits_eval"] {
        assert_eq!(summary("served", key), summary("again", key), "{key}");
    }
}
