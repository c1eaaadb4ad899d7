//! What a hospital's operators and its data-protection officer rely on, through the command line.

use crate::federation::{
    NAMES, Process, counts, finish, free_address, invitations, join, same_model, serve, wait, wards,
};
use crate::pki::Authority;
use crate::support::{Ran, Sandbox};
use std::fs;
use std::process::Stdio;

const SERVE: [&str; 4] = ["serve", "job.toml", "--out", "served"];

fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more].concat()
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
    let ran = sandbox.run(args);
    assert!(ran.code == 2 && ran.stderr.contains(why), "{args:?}: {}: {}", ran.code, ran.stderr);
}

/// A run that was begun with certificates goes on with them, or with others on purpose.
#[test]
fn what_a_run_was_begun_with_is_not_lost_in_silence() {
    let sandbox = wards(3, "");
    let folder = sandbox.path("");
    let (one, other) = (Authority::new("one"), Authority::new("other"));
    sandbox.write("ca.pem", &one.pem);
    sandbox.write("other-ca.pem", &other.pem);
    one.sign(&folder, "coordinator");
    one.sign(&folder, "renewed");
    let cert = ["--cert", "coordinator.pem", "--key", "coordinator.key"];
    let ca = ["--client-ca", "ca.pem"];
    let mut coordinator = Process::start(&sandbox, "serve", &with(&with(&SERVE, &cert), &ca));
    invitations(&sandbox);
    wait("the registry", || sandbox.path("served/status.json").exists());
    coordinator.kill();
    let before = sandbox.read("served/federation.json");
    let resume = with(&SERVE, &["--resume"]);
    refused(&sandbox, &with(&resume, &ca), "served with a certificate of its own");
    refused(&sandbox, &with(&resume, &cert), "only clients with certificates of the authorities");
    let others = ["--client-ca", "other-ca.pem"];
    refused(&sandbox, &with(&with(&resume, &cert), &others), "other authorities than before");
    let renewed = ["--cert", "renewed.pem", "--key", "renewed.key"];
    refused(&sandbox, &with(&with(&resume, &renewed), &ca), "another one than this run's");
    // Where there is no other word, a coordinator listens where its invitations lead.
    let elsewhere = free_address().replace("127.0.0.1", "fl.example.org");
    let moved = with(&with(&resume, &cert), &with(&ca, &["--address", &elsewhere]));
    refused(&sandbox, &moved, "invitations of this run name the address 127.0.0.1:");
    assert_eq!(sandbox.read("served/federation.json"), before);

    // On purpose: what is asked for is what invitations name from then on.
    let mut coordinator = Process::start(&sandbox, "again", &with(&moved, &["--rotate"]));
    let started = |times| {
        sandbox.read("again.log").matches("clients reach at fl.example.org").count() == times
    };
    wait("a start at that address", || started(1));
    coordinator.kill();
    // An operator who forgets nothing needs no flag; nor does one who says the same again.
    let mut coordinator = Process::start(&sandbox, "again", &moved);
    wait("a second start", || started(2));
    coordinator.kill();

    // A run without authorities does not get them by accident either.
    let sandbox = wards(3, "");
    sandbox.write("ca.pem", &one.pem);
    let mut coordinator = serve(&sandbox, false);
    invitations(&sandbox);
    wait("the registry", || sandbox.path("served/status.json").exists());
    coordinator.kill();
    refused(&sandbox, &with(&resume, &ca), "begun without --client-ca");
}

/// A certificate that TLS cannot use leaves no run behind.
#[test]
fn a_certificate_that_cannot_be_used_is_refused_before_anything_is_written() {
    let sandbox = wards(3, "");
    let folder = sandbox.path("");
    let authority = Authority::new("institution");
    authority.sign(&folder, "coordinator");
    authority.sign_old(&folder, "old");
    let old = ["--cert", "old.pem", "--key", "old.key"];
    refused(&sandbox, &with(&SERVE, &old), "the certificate in old.pem is X.509 of version 1 or 2");
    let mixed = ["--cert", "coordinator.pem", "--key", "old.key"];
    refused(&sandbox, &with(&SERVE, &mixed), "the key in old.key is not that of the certificate");
    sandbox.write("ca.pem", "no certificate\n");
    for more in [&["--client-ca", "ca.pem"][..], &["--next-cert", "ca.pem"]] {
        let ran = sandbox.run(&with(&SERVE, more));
        let said = ran.stderr.contains("ca.pem: there is no certificate in this file");
        assert!(ran.code == 1 && said, "{}: {}", ran.code, ran.stderr);
    }
    assert!(!sandbox.path("served").exists());
}

/// An invitation of another client is not answered with the state of this one.
#[test]
fn a_folder_is_one_clients_alone() {
    let sandbox = wards(3, "");
    let mut coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let [(name, own), (other, others)] = &invitations[..2] else { panic!("{invitations:?}") };
    let data = format!("{name}.csv");
    let enter = |invitation| ["join", invitation, "--data", &data, "--out", "x"];
    assert_eq!(told(&sandbox, &enter(own), "n\n").code, 5);
    let why = format!("x holds the state of client `{name}`, and the invitation is for `{other}`");
    refused(&sandbox, &enter(others), &why);
    let why = format!("x holds the state of client `{name}`, and --name is `{other}`");
    refused(&sandbox, &with(&enter(own), &["--name", other]), &why);
    assert_eq!(told(&sandbox, &with(&enter(own), &["--name", name]), "n\n").code, 5);
    // Where no folder is given, two names may share one.
    let invite = |name: &str| sandbox.ok(&["invite", "served", name]).stdout.trim().to_owned();
    let [first, second] = ["a b", "a/b"].map(invite);
    assert_eq!(told(&sandbox, &["join", &first, "--data", &data], "n\n").code, 5);
    let why = "a_b holds the state of client `a b`, and the invitation is for `a/b`";
    refused(&sandbox, &["join", &second, "--data", &data], why);
    coordinator.kill();
}

/// Whoever brought a name is known by it, and by the invitation that left it open.
#[test]
fn a_client_that_brought_its_name_is_known_by_its_invitation_too() {
    let sandbox = wards(3, "");
    let args = with(&SERVE, &["--open-enrolment", "3"]);
    let mut coordinator = Process::start(&sandbox, "serve", &args);
    let invitations = invitations(&sandbox);
    let (own, other) = (&invitations[0].1, &invitations[1].1);
    let enter = |invitation| ["join", invitation, "--data", "north.csv", "--out", "x"];
    let named = |invitation| with(&enter(invitation), &["--name", "north"]);
    for args in [named(own), enter(own).to_vec(), named(own)] {
        let ran = told(&sandbox, &args, "n\n");
        assert_eq!(ran.code, 5, "{args:?}: {}", ran.stderr);
    }
    let why = "client `north`, and the invitation is for `client-2`";
    refused(&sandbox, &enter(other), why);
    refused(&sandbox, &named(other), why);
    coordinator.kill();
}

#[test]
fn a_client_that_brought_its_certificate_is_told_to_bring_it_again() {
    let sandbox = wards(3, "");
    let folder = sandbox.path("");
    Authority::new("institution").sign(&folder, "east");
    let mut coordinator = serve(&sandbox, false);
    let (_, invitation) = invitations(&sandbox).swap_remove(0);
    let enter = ["join", &invitation, "--data", "east.csv", "--out", "x"];
    let ran = told(&sandbox, &with(&enter, &["--cert", "east.pem", "--key", "east.key"]), "n\n");
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    refused(&sandbox, &enter, "joined with a certificate that it brought");
    coordinator.kill();
}

#[test]
fn whoever_answers_no_is_told_what_the_coordinator_knows() {
    let sandbox = wards(3, "");
    let mut coordinator = serve(&sandbox, false);
    let (name, invitation) = invitations(&sandbox).swap_remove(0);
    // From a file, not on the command line.
    sandbox.write("invitation", &invitation);
    let enter = ["join", "@invitation", "--data", "east.csv", "--out", "x"];
    let ran = told(&sandbox, &enter, "n\n");
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    assert!(ran.stderr.contains("the coordinator knows that this client enrolled"));
    assert!(!ran.stderr.contains("nothing was sent"), "{}", ran.stderr);
    // What it says is what happened: enrolled, and not a byte of a summary.
    let members = sandbox.read("served/members.jsonl");
    assert!(members.contains("\"enrolled\"") && members.contains(&name), "{members}");
    assert!(!members.contains(&invitation), "{members}");
    let ledger = sandbox.ok(&["ledger", "x"]).stdout;
    assert!(ledger.contains("nothing was agreed to, and nothing was answered"), "{ledger}");
    coordinator.kill();
}

#[test]
fn an_invitation_is_read_from_standard_input_and_expires() {
    let sandbox = wards(3, "");
    let mut coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let (_, invitation) = &invitations[0];
    let enter = ["join", "-", "--data", "east.csv", "--out", "x", "--yes", "--give-up", "0.1"];
    let mut reading = sandbox.command(&enter).stdin(Stdio::piped()).spawn().unwrap();
    let sent = std::io::Write::write_all(
        &mut reading.stdin.take().unwrap(),
        format!("{invitation}\n").as_bytes(),
    );
    sent.unwrap();
    wait("the client", || {
        fs::read_to_string(sandbox.path("served/members.jsonl"))
            .is_ok_and(|text| text.contains("enrolled"))
    });
    let _ = reading.kill();
    let _ = reading.wait();
    // Another one is not redeemed in time.
    let other = sandbox.ok(&["invite", "served", "late", "--valid-days", "0"]).stdout;
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let made = now();
    wait("the next second", || now() > made + 1);
    let other = other.trim();
    let ran = sandbox.run(&["join", other, "--data", "north.csv", "--out", "y", "--yes"]);
    assert!(ran.code == 4 && ran.stderr.contains("this invitation has expired"), "{}", ran.stderr);
    coordinator.kill();
}

/// Whoever reads the log of a service learns no secret from it.
#[test]
fn logs_hold_no_tokens() {
    let sandbox = wards(3, "");
    // As a process leaves it that was killed before its invitations were good.
    let args = with(&SERVE, &["--json", "--log", "json", "--dashboard", "127.0.0.1:0"]);
    let coordinator = Process::start(&sandbox, "serve", &args);
    let file = sandbox.path("served/invitations");
    wait("the invitations", || {
        fs::read_to_string(&file).is_ok_and(|text| text.matches('\n').count() == NAMES.len())
    });
    let text = fs::read_to_string(&file).unwrap();
    let clients: Vec<(&str, Process)> = text
        .lines()
        .map(|line| line.split_once('\t').unwrap())
        .map(|(name, invitation)| (name, join(&sandbox, name, invitation)))
        .collect();
    coordinator.ends(&sandbox, "serve");
    clients.into_iter().for_each(|(name, client)| client.ends(&sandbox, name));
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
    // Somebody else's file is left alone, and void invitations are replaced.
    let elsewhere = wards(3, "");
    elsewhere.write("mine", "a file of mine\n");
    let ran = elsewhere.run(&with(&SERVE, &["--invitations", "mine"]));
    assert!(ran.code != 0 && elsewhere.read("mine") == "a file of mine\n", "{}", ran.stderr);
    elsewhere.write("old", &text);
    let args = with(&SERVE, &["--invitations", "old", "--resume"]);
    let mut coordinator = Process::start(&elsewhere, "serve", &args);
    wait("new invitations", || elsewhere.read("old") != text && !elsewhere.read("old").is_empty());
    coordinator.kill();
}

#[cfg(unix)]
#[test]
fn what_a_coordinator_and_a_client_keep_is_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = wards(3, "");
    let coordinator = serve(&sandbox, false);
    finish(&sandbox, coordinator);
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

/// More connections than the process has descriptors, none of which says a word.
#[cfg(target_os = "linux")]
#[test]
fn a_flood_at_a_small_limit_of_descriptors_ends_nothing() {
    let sandbox = wards(12, "");
    let limited = ["-c", "ulimit -n 256 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_whimbrel")];
    let mut command = std::process::Command::new("sh");
    command.args(limited).args(SERVE).current_dir(sandbox.path("")).stdin(Stdio::null());
    let coordinator = Process::spawn(&sandbox, "serve", command);
    let invitations = invitations(&sandbox);
    let address = whimbrel::parts::net::Invitation::decode(&invitations[0].1).unwrap().address;
    let flood: Vec<std::net::TcpStream> =
        (0..400).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    finish(&sandbox, coordinator);
    assert_eq!(flood.len(), 400);
    same_model(&sandbox);
    let told = sandbox.read("served/audit.jsonl");
    assert!(told.contains("too many connections"), "{told}");
    assert!(!sandbox.read("serve.log").contains("Too many open files"));
}

/// Residuals of single cells are no figures over groups.
#[test]
fn single_rows_leave_only_where_the_user_says_so() {
    let sandbox = counts();
    let mut coordinator = serve(&sandbox, false);
    let (_, invitation) = invitations(&sandbox).swap_remove(0);
    let enter = ["join", &invitation, "--data", "east.csv", "--out", "x"];
    refused(&sandbox, &enter, "the job's messages hold single rows, and --min-group is 5");
    let ran = told(&sandbox, &with(&enter, &["--min-group", "1"]), "n\n");
    assert!(ran.code == 5 && ran.stderr.contains("holds rows as they are"), "{}", ran.stderr);
    coordinator.kill();
}

/// A larger smallest group is part of what is agreed to, and of what is shown.
#[test]
fn few_rows_and_small_groups_are_refused_before_anything_leaves() {
    let sandbox = wards(3, "");
    let mut coordinator = serve(&sandbox, false);
    let (_, invitation) = invitations(&sandbox).swap_remove(0);
    let rows: Vec<String> = sandbox.read("east.csv").lines().map(str::to_owned).collect();
    sandbox.write("few.csv", &(rows[..20].join("\n") + "\n"));
    let few = ["join", &invitation, "--data", "few.csv", "--out", "x"];
    let ran = sandbox.run(&few);
    assert!(ran.code == 3 && ran.stderr.contains("there are 19 rows"), "{}", ran.stderr);
    let ran = told(&sandbox, &with(&few, &["--min-rows", "5"]), "n\n");
    assert!(ran.code == 5 && ran.stderr.contains("clusters of at least 5 rows"), "{}", ran.stderr);
    let ran = told(&sandbox, &with(&few, &["--min-rows", "5", "--min-group", "9"]), "n\n");
    assert!(ran.code == 5 && ran.stderr.contains("clusters of at least 9 rows"), "{}", ran.stderr);
    coordinator.kill();
}

/// The sum over one observed value is that value. Of levels, counts of rows leave and no values.
#[test]
fn cells_of_columns_that_few_rows_have_are_refused_before_anything_leaves() {
    let sandbox = Sandbox::with_job(
        "name = \"clinics\"\nseed = 7\n\n[data]\nsource = \"csv\"\n\
         columns = [\"age\", \"pressure\", \"falls\", \"housing\"]\n\n[model]\nkind = \"mixture\"\n\
         components = 2\ntypes = { falls = \"count\", housing = [\"alone\", \"family\"] }\n\n\
         [method]\nkind = \"fedem\"\nrounds = 3\n\n[federation]\n\
         clients = [\"west\", \"east\", \"north\"]\nlisten = \"127.0.0.1:0\"\ndashboard = false\n",
    );
    let write = |pressures: usize, counts: usize| {
        let mut text = String::from("age,pressure,falls,housing\n");
        for i in 0..40 {
            let pressure = if i < pressures { "157.3" } else { "" };
            let falls = if i < counts { "2" } else { "" };
            let housing = if i == 0 { "family" } else { "alone" };
            text.push_str(&format!("{},{pressure},{falls},{housing}\n", 40 + i));
        }
        sandbox.write("east.csv", &text);
    };
    let mut coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let (_, invitation) = invitations.iter().find(|(name, _)| name == "east").unwrap();
    let enter = ["join", invitation, "--data", "east.csv", "--out", "x", "--yes"];
    for (pressures, counts, why) in [
        (1, 40, "column \"pressure\" has 1 observed value in the training rows"),
        (40, 4, "column \"falls\" has 4 observed values in the training rows"),
    ] {
        write(pressures, counts);
        let ran = sandbox.run(&enter);
        assert!(ran.code == 3 && ran.stderr.contains(why), "{}: {}", ran.code, ran.stderr);
        assert!(ran.stderr.contains("--min-group 1"), "{}", ran.stderr);
        assert!(!sandbox.path("x/consent").exists(), "it was not agreed to");
    }
    let ledger = sandbox.ok(&["ledger", "x"]).stdout;
    assert!(ledger.contains("nothing was agreed to, and nothing was answered"), "{ledger}");
    let enter = &enter[..6];
    let allowed = told(&sandbox, &with(enter, &["--min-group", "1"]), "n\n");
    assert_eq!(allowed.code, 5, "{}", allowed.stderr);
    // A column without a value tells nothing of one.
    write(0, 5);
    let ran = told(&sandbox, enter, "n\n");
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    coordinator.kill();
}

/// The gradient of a minibatch of one row is that row.
#[test]
fn minibatches_below_the_smallest_group_are_refused() {
    let sandbox = wards(3, "batch = 2\n");
    let mut coordinator = serve(&sandbox, false);
    let (name, invitation) = invitations(&sandbox).swap_remove(0);
    let data = format!("{name}.csv");
    let enter = ["join", &invitation, "--data", &data, "--out", "x", "--yes"];
    let why = "the job's minibatches have 2 rows, and --min-group is 5";
    refused(&sandbox, &enter, why);
    assert!(!sandbox.path("x/consent").exists(), "it was not agreed to");
    refused(&sandbox, &with(&enter, &["--min-group", "3"]), "2 rows, and --min-group is 3");
    let mut client = Process::start(&sandbox, "x", &with(&enter, &["--min-group", "2"]));
    wait("its consent", || sandbox.path("x/data.sha256").exists());
    let said = sandbox.read("x.log");
    assert!(said.contains("messages in rounds rest on minibatches of 2 rows"), "{said}");
    client.kill();
    // What it agreed to and its rows have a version, as everything in its folder.
    for file in ["consent", "data.sha256"] {
        let path = sandbox.path("x").join(file);
        let whole = fs::read(&path).unwrap();
        let mut other = whole.clone();
        other[8] = 9;
        fs::write(&path, other).unwrap();
        let ran = sandbox.run(&with(&enter, &["--min-group", "2"]));
        let named = ran.stderr.contains(file) && ran.stderr.contains("it has version 9");
        assert!(ran.code == 1 && named, "{}: {}", ran.code, ran.stderr);
        fs::write(&path, whole).unwrap();
    }
    coordinator.kill();
    let status = sandbox.read("served/status.json");
    sandbox.write("served/status.json", &status.replacen("\"version\":1", "\"version\":9", 1));
    let ran = sandbox.run(&["status", "served"]);
    assert!(ran.code == 1 && ran.stderr.contains("it has version 9"), "{}", ran.stderr);
}

/// Connections of strangers give way to each other, never those of clients, though all come from one host.
#[test]
fn a_crowd_of_strangers_pushes_no_client_out() {
    let sandbox = wards(100_000, "");
    let limited = ["-c", "ulimit -n 256 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_whimbrel")];
    let mut command = std::process::Command::new("sh");
    command.args(limited).args(SERVE).current_dir(sandbox.path("")).stdin(Stdio::null());
    let mut coordinator = Process::spawn(&sandbox, "serve", command);
    let invitations = invitations(&sandbox);
    let mut clients: Vec<Process> =
        invitations.iter().map(|(name, invitation)| join(&sandbox, name, invitation)).collect();
    let status = || sandbox.ok(&["status", "served", "--json"]).json();
    let round = || status()["round"].as_u64().unwrap();
    wait("rounds", || sandbox.path("served/status.json").exists() && round() > 0);
    let address = whimbrel::parts::net::Invitation::decode(&invitations[0].1).unwrap().address;
    let flood: Vec<std::net::TcpStream> =
        (0..400).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    let crowded = |status: &serde_json::Map<String, serde_json::Value>| {
        status["refused"]["too-many-connections"].as_u64().unwrap_or(0)
    };
    wait("a crowd", || crowded(&status()) > 200);
    let before = round();
    wait("more rounds", || round() > before);
    let clients_now = status()["clients"].clone();
    for name in NAMES {
        assert_eq!(clients_now[name]["disconnects"], 0, "{name}: {clients_now}");
        assert_eq!(clients_now[name]["connected"], true, "{name}: {clients_now}");
    }
    drop(flood);
    coordinator.kill();
    clients.iter_mut().for_each(Process::kill);
}
