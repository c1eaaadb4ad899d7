//! What whoever runs a federation relies on: one process per folder, `status`, files that others
//! cannot read, certificates of an institution, and a journal that is replayed.

use crate::federation::{
    NAMES, Process, finish, invitations, join, same_model, serve, wait, wards,
};
use crate::pki::Authority;
use crate::support::Sandbox;
use serde_json::Value;
use std::fs;

fn shows(sandbox: &Sandbox, what: &str) {
    let path = sandbox.path("served/status.json");
    wait(what, || fs::read_to_string(&path).is_ok_and(|text| text.contains(what)));
}

#[test]
fn a_second_coordinator_is_refused_until_the_first_is_gone() {
    let sandbox = wards(3, "");
    let mut coordinator = serve(&sandbox, false);
    invitations(&sandbox);
    shows(&sandbox, "\"state\":\"federated k-means, enrolment: waiting for");
    for how in ["--resume", "--force"] {
        let ran = sandbox.run(&["serve", "job.toml", "--out", "served", how]);
        assert_eq!(ran.code, 2, "{how}: {}", ran.stderr);
        assert!(ran.stderr.contains("another process works in served"), "{how}: {}", ran.stderr);
    }
    let status = sandbox.ok(&["status", "served"]);
    assert!(!status.stderr.contains("no coordinator is at work"), "{}", status.stderr);
    coordinator.kill();
    let status = sandbox.ok(&["status", "served"]);
    assert!(status.stderr.contains("no coordinator is at work"), "{}", status.stderr);
    let coordinator = serve(&sandbox, true);
    finish(&sandbox, coordinator);
    same_model(&sandbox);
    let told = sandbox.read("serve.log");
    assert!(told.contains("invitations not used so far: east, north, west"), "{told}");
}

#[test]
fn status_tells_of_runs_that_go_on_are_over_or_never_were() {
    let sandbox = wards(3, "");
    let ran = sandbox.run(&["status", "served"]);
    assert!(ran.code == 2 && ran.stderr.contains("is no run that is served"), "{}", ran.stderr);
    let coordinator = serve(&sandbox, false);
    invitations(&sandbox);
    shows(&sandbox, "\"state\":\"federated k-means, enrolment: waiting for");
    let running = sandbox.ok(&["status", "served"]);
    assert!(running.stdout.contains("waiting for"), "{}", running.stdout);
    for name in NAMES {
        let line = running.stdout.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains("away"), "{line}");
    }
    finish(&sandbox, coordinator);
    let over = sandbox.ok(&["status", "served"]);
    assert!(over.stdout.starts_with("wards: finished\n"), "{}", over.stdout);
    assert!(!over.stderr.contains("no coordinator"), "{}", over.stderr);
    let json = sandbox.ok(&["status", "served", "--json"]).json();
    assert_eq!(json["finished"], true);
    // Nobody can join what is over; whoever took part can still fetch the model.
    let ran = sandbox.run(&["invite", "served", "south"]);
    assert!(ran.code == 2 && ran.stderr.contains("is over: finished"), "{}", ran.stderr);
    assert!(!sandbox.read("served/federation.json").contains("south"));
}

#[cfg(unix)]
#[test]
fn keys_and_tokens_are_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = wards(3, "");
    let args = ["serve", "job.toml", "--out", "served", "--dashboard", "127.0.0.1:0"];
    let mut coordinator = Process::start(&sandbox, "serve", &args);
    invitations(&sandbox);
    let told = |times: usize| {
        wait("the dashboard", || {
            sandbox.read("serve.log").matches("dashboard: http").count() == times
        });
    };
    told(1);
    let token = sandbox.read("served/dashboard-token");
    // The link stays good when the coordinator is started again.
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
    // What others could read holds no secret.
    let registry = sandbox.read("served/federation.json");
    for (_, invitation) in invitations(&sandbox) {
        assert!(!registry.contains(&invitation));
    }
    // A delivery is these files and no others.
    let mut files: Vec<String> = fs::read_dir(sandbox.path("client-north/model"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort_unstable();
    assert_eq!(files, ["model.json", "model.safetensors"]);
}

#[test]
fn both_ends_bring_certificates_and_a_client_of_another_authority_is_refused() {
    let sandbox = wards(3, "");
    let folder = sandbox.path("");
    let (institution, elsewhere) = (Authority::new("institution"), Authority::new("elsewhere"));
    sandbox.write("ca.pem", &institution.pem);
    institution.sign(&folder, "coordinator");
    NAMES.iter().for_each(|name| drop(institution.sign(&folder, name)));
    elsewhere.sign(&folder, "stranger");
    let args = ["serve", "job.toml", "--out", "served", "--client-ca", "ca.pem"];
    let brought = ["--cert", "coordinator.pem", "--key", "coordinator.key"];
    let coordinator = Process::start(&sandbox, "serve", &[&args[..], &brought[..]].concat());
    let invitations = invitations(&sandbox);

    let (_, invitation) = &invitations[0];
    let enter = ["join", invitation, "--data", "east.csv", "--yes"];
    let of_stranger = ["--out", "x", "--cert", "stranger.pem", "--key", "stranger.key"];
    let own = ["--out", "y"];
    for with in [&of_stranger[..], &own[..]] {
        let ran = sandbox.run(&[&enter[..], with].concat());
        assert_eq!(ran.code, 4, "{with:?}: {}", ran.stderr);
        let why = "refuses this client's certificate: it is of an authority that the coordinator";
        assert!(ran.stderr.contains(why), "{with:?}: {}", ran.stderr);
    }
    let told = sandbox.read("served/audit.jsonl");
    assert!(told.contains("a certificate of an unknown authority"), "{told}");
    let book = sandbox.object("served/federation.json");
    let clients = book["clients"].as_array().unwrap();
    assert!(clients.iter().all(|client| client["certificate"].is_null()), "{clients:?}");

    let start = |(name, invitation): &(String, String)| {
        let (data, out) = (format!("{name}.csv"), format!("client-{name}"));
        let (cert, key) = (format!("{name}.pem"), format!("{name}.key"));
        let args = ["join", invitation, "--data", &data, "--out", &out, "--yes"];
        let brought = ["--cert", &cert, "--key", &key, "--give-up", "120"];
        Process::start(&sandbox, name, &[&args[..], &brought[..]].concat())
    };
    let clients: Vec<Process> = invitations.iter().map(start).collect();
    coordinator.ends(&sandbox, "serve");
    for ((name, _), client) in invitations.iter().zip(clients) {
        client.ends(&sandbox, name);
    }
    same_model(&sandbox);
    assert!(
        !sandbox.path("served/tls/identity").exists(),
        "a key was made although one was brought"
    );
}

/// Rounds close at a deadline, clients and the coordinator are killed, and a stopping rule asks who
/// answered: what came of it is what the journal tells.
///
/// Whoever is away costs each round its deadline, twice with the evaluation. Somebody is until the
/// last kill, so that the rule, which needs hundreds of rounds, leaves time for all of them however
/// slow the machine; then the rounds go as fast as they can.
#[test]
fn with_a_deadline_kills_and_a_stopping_rule_the_replay_of_the_journal_is_the_run() {
    let sandbox = wards(100_000, "stop = { patience = 200, tolerance = 0.0 }\n");
    let job = sandbox.read("job.toml").replace("every = 5", "every = 1");
    // One stage: each begins with an enrolment, which waits for everyone.
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

    // The first one enrols and is away when the rounds begin.
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
    coordinator.ends(&sandbox, "serve");
    for ((name, _), client) in invitations.iter().zip([first, second, third]) {
        client.ends(&sandbox, name);
    }
    same_when_replayed(&sandbox);
    let journal = sandbox.read("served/journal");
    let evaluation = journal.lines().find(|line| line.contains("\"evaluated\":1,")).unwrap();
    assert!(!evaluation.contains("\"answered\":\"0"), "the first client was away: {evaluation}");
    let ending = sandbox.object("served/summary.json")["ending"].clone();
    assert!(ending.as_str().unwrap().starts_with("stopped early"), "{ending}");
}

/// Whoever is invited while a job runs takes part although the job does not list it, with the next
/// number, wherever its name sorts: the journal says whose that is.
#[test]
fn a_client_that_the_job_does_not_list_is_invited_late_and_the_replay_is_the_run() {
    let each = "participation = { default = 1.0, clients = { north = 0.5 } }\n";
    let sandbox = wards(1500, each);
    let mut coordinator = serve(&sandbox, false);
    let mut invitations = invitations(&sandbox);
    let start = |(name, invitation): &(String, String)| join(&sandbox, name, invitation);
    let mut clients: Vec<Process> = invitations.iter().map(start).collect();
    let status = || -> Value {
        let text = fs::read_to_string(sandbox.path("served/status.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    };
    wait("the first rounds", || status()["round"].as_u64() > Some(0));
    // Without `west` no round closes, so that the run cannot be over too soon.
    let west = invitations.iter().position(|(name, _)| name == "west").unwrap();
    clients[west].kill();
    assert!(!coordinator.is_over(), "the job was over before anybody could join late");
    let invitation = sandbox.ok(&["invite", "served", "aspen"]).stdout.trim().to_owned();
    let rows = sandbox.read("north.csv");
    sandbox.write("aspen.csv", &rows);
    invitations.push(("aspen".into(), invitation));
    clients.push(start(&invitations[3]));
    wait("aspen", || status()["clients"]["aspen"]["connected"] == true);
    clients[west] = start(&invitations[west]);
    wait("its rounds", || status()["clients"]["aspen"]["rounds"].as_u64() > Some(0));
    // The journal goes on from what it has named so far.
    coordinator.kill();
    serve(&sandbox, true).ends(&sandbox, "serve");
    for ((name, _), client) in invitations.iter().zip(clients) {
        client.ends(&sandbox, name);
    }
    let journal = sandbox.read("served/journal");
    let named: Vec<&str> = journal.lines().filter(|line| line.contains("names")).collect();
    assert_eq!(named.len(), 2, "{named:?}");
    assert!(named[0].contains("\"names\":[\"east\",\"north\",\"west\"]"), "{named:?}");
    assert!(named[1].contains("\"joined\":\"3\",\"names\":[\"aspen\"]"), "{named:?}");

    let replay = ["run", "job.toml", "--out", "again", "--replay", "served/journal"];
    let refused = sandbox.run(&replay);
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    assert!(refused.stderr.contains("the journal has a client `aspen`, and the data do not"));
    let columns = |row: &str| row.split_once(',').map(|(b, a)| format!("{a},{b},aspen\n"));
    let own: String = rows.lines().skip(1).filter_map(columns).collect();
    // Who is in the data and took no part changes nothing.
    sandbox.write("all.csv", &(sandbox.read("all.csv") + &own + "9,9,aaron\n9,8,aaron\n"));
    same_when_replayed(&sandbox);
}

/// The journal of the run, replayed, gives the run.
fn same_when_replayed(sandbox: &Sandbox) {
    sandbox.ok(&["run", "job.toml", "--out", "again", "--replay", "served/journal"]);
    for file in ["model/model.safetensors", "journal"] {
        let bytes = |run: &str| fs::read(sandbox.path(&format!("{run}/{file}"))).unwrap();
        assert!(bytes("served") == bytes("again"), "{file} differs");
    }
    let metrics = |run: &str| {
        let mut rows = sandbox.metrics(run);
        rows.iter_mut().for_each(|row| drop(row.remove("seconds")));
        rows
    };
    assert_eq!(metrics("served"), metrics("again"));
    let summary =
        |run: &str, key: &str| sandbox.object(&format!("{run}/summary.json"))[key].clone();
    for key in ["rounds", "objective", "ending", "bits_up", "bits_down", "bits_eval"] {
        assert_eq!(summary("served", key), summary("again", key), "{key}");
    }
}
