//! Guarantees to operators and data-protection officers, through the command line.

use crate::federation::{
    NAMES, Process, all_end, counts, finish, free_address, invitations, join_all, same_model,
    serve, serve_to_end, served, wait, wards,
};
use crate::pki::Authority;
use crate::support::{Ran, Sandbox, one_line};
use std::fs;
use std::net::TcpStream;
use std::process::Stdio;

const SERVE: [&str; 4] = ["serve", "job.toml", "--out", "served"];

fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more].concat()
}

/// A new run, killed after it has written its status.
fn begun(sandbox: &Sandbox, args: &[&str]) {
    let _coordinator = Process::start(sandbox, "serve", args);
    invitations(sandbox);
    wait("status", || sandbox.path("served/status.json").exists());
}

/// Runs the program with a line on its standard input.
fn told(sandbox: &Sandbox, args: &[&str], line: &str) -> Ran {
    sandbox.write("answer", line);
    let answer = fs::File::open(sandbox.path("answer")).unwrap();
    let output = sandbox.command(args).stdin(Stdio::from(answer)).output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn refused(sandbox: &Sandbox, args: &[&str], why: &str) {
    sandbox.fails(args, 2, why);
}

/// Runs `join`, declines, and asserts that the consent screen contains this text.
fn declines(sandbox: &Sandbox, args: &[&str], shown: &str) {
    let ran = told(sandbox, args, "n\n");
    let said = one_line(&ran.stderr).contains(shown);
    assert!(ran.code == 5 && said, "{args:?}: {}: {}", ran.code, ran.stderr);
}

/// A run with certificates resumes with them, or with others on purpose.
#[test]
fn certificates_and_addresses_of_a_run_change_only_on_purpose() {
    let sandbox = wards(3, "");
    let folder = sandbox.path("");
    let (one, other) = (Authority::new("one"), Authority::new("other"));
    sandbox.write("ca.pem", &one.pem);
    sandbox.write("other-ca.pem", &other.pem);
    one.sign(&folder, "coordinator");
    one.sign(&folder, "renewed");
    let cert = ["--cert", "coordinator.pem", "--key", "coordinator.key"];
    let ca = ["--client-ca", "ca.pem"];
    begun(&sandbox, &with(&with(&SERVE, &cert), &ca));
    let before = sandbox.read("served/federation.json");
    let resume = with(&SERVE, &["--resume"]);
    let others = ["--client-ca", "other-ca.pem"];
    let renewed = ["--cert", "renewed.pem", "--key", "renewed.key"];
    let elsewhere = free_address().replace("127.0.0.1", "fl.example.org");
    let moved = with(&with(&resume, &cert), &with(&ca, &["--address", &elsewhere]));
    for (args, why) in [
        (with(&resume, &ca), "served with a supplied certificate"),
        (with(&resume, &cert), "only client certificates of the authorities"),
        (with(&with(&resume, &cert), &others), "other authorities than before"),
        (with(&with(&resume, &renewed), &ca), "differs from that in this run's invitations"),
        (moved.clone(), "invitations of this run contain the address 127.0.0.1:"),
    ] {
        refused(&sandbox, &args, why);
    }
    assert_eq!(sandbox.read("served/federation.json"), before);

    // On purpose, invitations change.
    let mut coordinator = Process::start(&sandbox, "again", &with(&moved, &["--rotate"]));
    let started =
        |times| sandbox.read("again.log").matches("clients use fl.example.org").count() == times;
    wait("start at that address", || started(1));
    coordinator.kill();
    // The same options again need no flag.
    let _coordinator = Process::start(&sandbox, "again", &moved);
    wait("second start", || started(2));

    // Authorities are not added by accident either.
    let sandbox = wards(3, "");
    sandbox.write("ca.pem", &one.pem);
    begun(&sandbox, &SERVE);
    refused(&sandbox, &with(&resume, &ca), "begun without --client-ca");
}

/// An unusable certificate leaves no run behind.
#[test]
fn an_unusable_certificate_is_refused_before_anything_is_written() {
    let sandbox = wards(3, "");
    let folder = sandbox.path("");
    let authority = Authority::new("institution");
    authority.sign(&folder, "coordinator");
    authority.sign_old(&folder, "old");
    let old = ["--cert", "old.pem", "--key", "old.key"];
    refused(&sandbox, &with(&SERVE, &old), "the certificate in old.pem is X.509 of version 1 or 2");
    let mixed = ["--cert", "coordinator.pem", "--key", "old.key"];
    refused(
        &sandbox,
        &with(&SERVE, &mixed),
        "the key in old.key does not belong to the certificate",
    );
    sandbox.write("ca.pem", "no certificate\n");
    for more in [&["--client-ca", "ca.pem"][..], &["--next-cert", "ca.pem"]] {
        sandbox.fails(&with(&SERVE, more), 1, "ca.pem: this file contains no certificate");
    }
    assert!(!sandbox.path("served").exists());
}

/// An invitation of another client is refused.
#[test]
fn a_folder_belongs_to_one_client() {
    let sandbox = wards(3, "");
    let _coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let [(name, own), (other, others)] = &invitations[..2] else { panic!("{invitations:?}") };
    let data = format!("{name}.csv");
    let enter = |invitation| ["join", invitation, "--data", &data, "--out", "x"];
    declines(&sandbox, &enter(own), "");
    let why = format!("x holds the state of client `{name}`, and the invitation is for `{other}`");
    refused(&sandbox, &enter(others), &why);
    let why = format!("x holds the state of client `{name}`, and --name is `{other}`");
    refused(&sandbox, &with(&enter(own), &["--name", other]), &why);
    declines(&sandbox, &with(&enter(own), &["--name", name]), "");
    // Two names may share a default folder.
    let invite = |name: &str| sandbox.ok(&["invite", "served", name]).stdout.trim().to_owned();
    let [first, second] = ["a b", "a/b"].map(invite);
    declines(&sandbox, &["join", &first, "--data", &data], "");
    let why = "a_b holds the state of client `a b`, and the invitation is for `a/b`";
    refused(&sandbox, &["join", &second, "--data", &data], why);
}

/// A client that chose its name is identified by it and by its invitation.
#[test]
fn a_client_that_chose_its_name_is_also_identified_by_its_invitation() {
    let sandbox = wards(3, "");
    let args = with(&SERVE, &["--open-enrolment", "3"]);
    let _coordinator = Process::start(&sandbox, "serve", &args);
    let invitations = invitations(&sandbox);
    let (own, other) = (&invitations[0].1, &invitations[1].1);
    let enter = |invitation| ["join", invitation, "--data", "north.csv", "--out", "x"];
    let named = |invitation| with(&enter(invitation), &["--name", "north"]);
    for args in [named(own), enter(own).to_vec(), named(own)] {
        declines(&sandbox, &args, "");
    }
    let why = "client `north`, and the invitation is for `client-2`";
    refused(&sandbox, &enter(other), why);
    refused(&sandbox, &named(other), why);
}

#[test]
fn a_supplied_certificate_is_needed_again() {
    let sandbox = wards(3, "");
    Authority::new("institution").sign(&sandbox.path(""), "east");
    let (_coordinator, _, invitation) = served(&sandbox);
    let enter = ["join", &invitation, "--data", "east.csv", "--out", "x"];
    declines(&sandbox, &with(&enter, &["--cert", "east.pem", "--key", "east.key"]), "");
    refused(&sandbox, &enter, "joined with a supplied certificate");
}

#[test]
fn a_user_who_declines_learns_what_the_coordinator_knows() {
    let sandbox = wards(3, "");
    let (_coordinator, name, invitation) = served(&sandbox);
    // From a file, not on the command line.
    sandbox.write("invitation", &invitation);
    let enter = ["join", "@invitation", "--data", "east.csv", "--out", "x"];
    let ran = told(&sandbox, &enter, "n\n");
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    assert!(ran.stderr.contains("declined: no rows, and nothing computed from them, were sent"));
    assert!(!ran.stderr.contains("nothing was sent"), "{}", ran.stderr);
    // The coordinator knows, and nobody is revoked.
    assert!(sandbox.read("served/audit.jsonl").contains("\"declined\""));
    assert!(!sandbox.read("served/members.jsonl").contains("\"revoked\""));
    // Enrolled, without a summary.
    let members = sandbox.read("served/members.jsonl");
    assert!(members.contains("\"enrolled\"") && members.contains(&name), "{members}");
    assert!(!members.contains(&invitation), "{members}");
    let ledger = sandbox.ok(&["ledger", "x"]).stdout;
    assert!(ledger.contains("no consent, and no answers"), "{ledger}");
}

#[test]
fn an_invitation_is_read_from_standard_input_and_expires() {
    let sandbox = wards(3, "");
    let (_coordinator, _, invitation) = served(&sandbox);
    let enter = ["join", "-", "--data", "east.csv", "--out", "x", "--yes", "--give-up", "0.1"];
    let mut reading = sandbox.command(&enter).stdin(Stdio::piped()).spawn().unwrap();
    let sent = std::io::Write::write_all(
        &mut reading.stdin.take().unwrap(),
        format!("{invitation}\n").as_bytes(),
    );
    sent.unwrap();
    let members = sandbox.path("served/members.jsonl");
    wait("enrolment", || fs::read_to_string(&members).is_ok_and(|text| text.contains("enrolled")));
    let _ = reading.kill();
    let _ = reading.wait();
    // An expired invitation.
    let other = sandbox.ok(&["invite", "served", "late", "--valid-days", "0"]).stdout;
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let made = now();
    wait("next second", || now() > made + 1);
    let late = ["join", other.trim(), "--data", "north.csv", "--out", "y", "--yes"];
    sandbox.fails(&late, 4, "this invitation has expired");
    let told = sandbox.read("served/audit.jsonl");
    let refused = told.lines().find(|line| line.contains("this invitation has expired")).unwrap();
    assert!(refused.contains("\"late\""), "{refused}");
}

/// The log of a service contains no secrets.
#[test]
fn logs_hold_no_tokens() {
    let sandbox = wards(3, "");
    let args = with(&SERVE, &["--json", "--log", "json", "--dashboard", "127.0.0.1:0"]);
    let coordinator = Process::start(&sandbox, "serve", &args);
    let file = sandbox.path("served/invitations");
    wait("invitations", || {
        fs::read_to_string(&file).is_ok_and(|text| text.matches('\n').count() == NAMES.len())
    });
    let text = fs::read_to_string(&file).unwrap();
    let pair = |line: &str| line.split_once('\t').map(|(n, i)| (n.to_owned(), i.to_owned()));
    let invitations: Vec<(String, String)> = text.lines().filter_map(pair).collect();
    all_end(&sandbox, coordinator, &invitations, join_all(&sandbox, &invitations));
    let token = sandbox.read("served/dashboard-token");
    let mut files = vec!["serve.log".to_owned(), "serve.out".to_owned()];
    files.extend(["audit.jsonl", "members.jsonl", "status.json"].map(|f| format!("served/{f}")));
    files.extend(NAMES.map(|name| format!("{name}.log")));
    for file in files {
        let text = sandbox.read(&file);
        assert!(!text.contains("whimbrel1-"), "{file}: {text}");
        assert!(!text.contains(&token), "{file}: {text}");
    }
    let log = sandbox.read("serve.log");
    assert!(log.contains("served/dashboard-token"), "{log}");
    // Other files are not overwritten, and void invitations are replaced.
    let elsewhere = wards(3, "");
    elsewhere.write("mine", "a file of mine\n");
    let ran = elsewhere.run(&with(&SERVE, &["--invitations", "mine"]));
    assert!(ran.code != 0 && elsewhere.read("mine") == "a file of mine\n", "{}", ran.stderr);
    elsewhere.write("old", &text);
    let args = with(&SERVE, &["--invitations", "old", "--resume"]);
    let _coordinator = Process::start(&elsewhere, "serve", &args);
    wait("new invitations", || elsewhere.read("old") != text && !elsewhere.read("old").is_empty());
}

#[cfg(unix)]
#[test]
fn files_of_coordinator_and_client_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = wards(3, "");
    serve_to_end(&sandbox);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for folder in ["served/checkpoint", "served/tls", "client-north"] {
        assert_eq!(mode(&sandbox.path(folder)), 0o700, "{folder}");
    }
    let kept = fs::read_dir(sandbox.path("served/checkpoint")).unwrap();
    let kept: Vec<_> = kept.map(|entry| entry.unwrap().path()).collect();
    assert!(kept.len() >= 2, "{kept:?}");
    for path in kept {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    let told = sandbox.read("served/audit.jsonl");
    let connected = told.lines().filter(|line| line.contains("\"connected\""));
    assert!(connected.clone().count() >= NAMES.len(), "{told}");
    for line in connected {
        assert!(line.contains("\"detail\":\"127.0.0.1:"), "{line}");
    }
    same_model(&sandbox);
}

/// A coordinator with few file descriptors, and its invitations.
fn serve_limited(sandbox: &Sandbox) -> (Process, Vec<(String, String)>) {
    let limited = ["-c", "ulimit -n 256 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_whimbrel")];
    let mut command = std::process::Command::new("sh");
    command.args(limited).args(SERVE).current_dir(sandbox.path("")).stdin(Stdio::null());
    (Process::spawn(sandbox, "serve", command), invitations(sandbox))
}

/// Four hundred silent connections.
fn flood((_, invitation): &(String, String)) -> Vec<TcpStream> {
    let address = whimbrel::parts::net::Invitation::decode(invitation).unwrap().address;
    (0..400).map(|_| TcpStream::connect(&address).unwrap()).collect()
}

/// More silent connections than the process has descriptors.
#[cfg(target_os = "linux")]
#[test]
fn a_job_survives_a_flood_at_a_small_limit_of_descriptors() {
    let sandbox = wards(12, "");
    let (coordinator, invitations) = serve_limited(&sandbox);
    let flood = flood(&invitations[0]);
    finish(&sandbox, coordinator);
    assert_eq!(flood.len(), 400);
    same_model(&sandbox);
    let told = sandbox.read("served/audit.jsonl");
    assert!(told.contains("too many connections"), "{told}");
    assert!(!sandbox.read("serve.log").contains("Too many open files"));
}

/// Residuals of single cells are not sums over groups.
#[test]
fn single_rows_leave_only_with_explicit_consent() {
    let sandbox = counts();
    let (_coordinator, _, invitation) = served(&sandbox);
    let enter = ["join", &invitation, "--data", "east.csv", "--out", "x"];
    refused(&sandbox, &enter, "the job's messages contain single rows, and --min-group is 5");
    declines(
        &sandbox,
        &with(&enter, &["--min-group", "1"]),
        "SINGLE ROWS: which cells of the table",
    );
}

/// The smallest group is part of the consent and its screen.
#[test]
fn few_rows_and_small_groups_are_refused_before_anything_leaves() {
    let sandbox = wards(3, "");
    let (_coordinator, _, invitation) = served(&sandbox);
    let rows: Vec<String> = sandbox.read("east.csv").lines().map(str::to_owned).collect();
    sandbox.write("few.csv", &(rows[..20].join("\n") + "\n"));
    let few = ["join", &invitation, "--data", "few.csv", "--out", "x"];
    sandbox.fails(&few, 3, "there are 19 training rows");
    let few = with(&few, &["--min-rows", "5"]);
    declines(&sandbox, &few, "clusters of at least 5 rows");
    let larger = with(&few, &["--min-group", "9"]);
    refused(&sandbox, &larger, "the job's min_group is 5, and --min-group is 9");
}

/// Three hospitals with numbers, counts and levels.
fn clinics(privacy: &str) -> Sandbox {
    Sandbox::with_job(&format!(
        "name = \"clinics\"\nseed = 7\n\n[data]\nsource = \"csv\"\n\
         columns = [\"age\", \"pressure\", \"falls\", \"housing\"]\n\n[schema]\n\
         falls = {{ type = \"count\" }}\n\
         housing = {{ type = \"category\", levels = [\"alone\", \"family\"] }}\n\n\
         [model]\nkind = \"mixture\"\ncomponents = 2\n\n\
         [method]\nkind = \"fedem\"\nrounds = 3\n\n[federation]\n\
         clients = [\"west\", \"east\", \"north\"]\nlisten = \"127.0.0.1:0\"\ndashboard = false\n{privacy}"
    ))
}

/// Rows of which these have a pressure and falls, and one a level.
fn write_clinic(sandbox: &Sandbox, pressures: usize, counts: usize) {
    let mut text = String::from("age,pressure,falls,housing\n");
    for i in 0..40 {
        let pressure = if i < pressures { "157.3" } else { "" };
        let falls = if i < counts { "2" } else { "" };
        let housing = if i == 0 { "family" } else { "alone" };
        text.push_str(&format!("{},{pressure},{falls},{housing}\n", 40 + i));
    }
    sandbox.write("east.csv", &text);
}

/// The sum over one observed value is that value.
#[test]
fn columns_with_few_observed_values_are_refused_before_anything_leaves() {
    let sandbox = clinics("[privacy]\nmin_group = 1\n");
    let _coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let (_, invitation) = invitations.iter().find(|(name, _)| name == "east").unwrap();
    let enter = ["join", invitation, "--data", "east.csv", "--out", "x", "--yes"];
    for (pressures, counts, why) in [
        (1, 40, "column \"pressure\" has 1 observed value in the training rows"),
        (40, 4, "column \"falls\" has 4 observed values in the training rows"),
    ] {
        write_clinic(&sandbox, pressures, counts);
        sandbox.fails(&enter, 3, why);
        sandbox.fails(&enter, 3, "--min-group 1");
        assert!(!sandbox.path("x/consent").exists(), "consent without a question");
    }
    let ledger = sandbox.ok(&["ledger", "x"]).stdout;
    assert!(ledger.contains("no consent, and no answers"), "{ledger}");
    let enter = &enter[..6];
    declines(&sandbox, &with(enter, &["--min-group", "1"]), "");
    // A column without values reveals none.
    write_clinic(&sandbox, 0, 5);
    declines(&sandbox, enter, "");
}

/// Under a smallest group such columns, and a level of one row, take part without these cells, and the user
/// is told.
#[test]
fn cells_of_few_rows_are_withheld_and_said() {
    let sandbox = clinics("");
    let _coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let (_, invitation) = invitations.iter().find(|(name, _)| name == "east").unwrap();
    let enter = ["join", invitation, "--data", "east.csv", "--out", "x"];
    write_clinic(&sandbox, 1, 4);
    declines(
        &sandbox,
        &enter,
        "withheld: 6 cells are read as the most frequent value of the column",
    );
    write_clinic(&sandbox, 40, 40);
    declines(&sandbox, &enter, "withheld: 1 cell is read as the most frequent value");
}

/// The gradient of a minibatch of one row reveals it.
#[test]
fn minibatches_below_the_smallest_group_are_refused() {
    let sandbox = wards(3, "batch = 2\n");
    let job = sandbox.read("job.toml");
    sandbox.write("job.toml", &job.replace("min_group = 5", "min_group = 1"));
    let (coordinator, name, invitation) = served(&sandbox);
    let data = format!("{name}.csv");
    let enter = ["join", &invitation, "--data", &data, "--out", "x", "--yes"];
    refused(&sandbox, &enter, "the job's minibatches have 2 rows, fewer than --min-group 5");
    assert!(!sandbox.path("x/consent").exists(), "consent without a question");
    refused(&sandbox, &with(&enter, &["--min-group", "3"]), "the job has no min_group");
    let mut client = Process::start(&sandbox, "x", &with(&enter, &["--min-group", "1"]));
    wait("consent", || sandbox.path("x/data.sha256").exists());
    let said = one_line(&sandbox.read("x.log"));
    assert!(said.contains("is computed from 2 of your rows, drawn at random"), "{said}");
    client.kill();
    // Consent and hash of the rows have a version, as all files of the folder.
    for file in ["consent", "data.sha256"] {
        let path = sandbox.path("x").join(file);
        let whole = fs::read(&path).unwrap();
        let mut other = whole.clone();
        other[8] = 9;
        fs::write(&path, other).unwrap();
        let why = format!("{file}: it has version 9");
        sandbox.fails(&with(&enter, &["--min-group", "1"]), 1, &why);
        fs::write(&path, whole).unwrap();
    }
    drop(coordinator);
    let status = sandbox.read("served/status.json");
    sandbox.write("served/status.json", &status.replacen("\"version\":1", "\"version\":9", 1));
    sandbox.fails(&["status", "served"], 1, "it has version 9");
}

/// Unauthenticated connections evict each other, never clients of the same host.
#[test]
fn unauthenticated_connections_evict_no_client() {
    let sandbox = wards(100_000, "");
    let (_coordinator, invitations) = serve_limited(&sandbox);
    let _clients = join_all(&sandbox, &invitations);
    let status = || sandbox.ok(&["status", "served", "--json"]).json();
    let round = || status()["round"].as_u64().unwrap();
    wait("rounds", || sandbox.path("served/status.json").exists() && round() > 0);
    let _flood = flood(&invitations[0]);
    let crowded = |status: &serde_json::Map<String, serde_json::Value>| {
        status["refused"]["too-many-connections"].as_u64().unwrap_or(0)
    };
    wait("evictions", || crowded(&status()) > 200);
    let before = round();
    wait("more rounds", || round() > before);
    let clients_now = status()["clients"].clone();
    for name in NAMES {
        assert_eq!(clients_now[name]["disconnects"], 0, "{name}: {clients_now}");
        assert_eq!(clients_now[name]["connected"], true, "{name}: {clients_now}");
    }
}
