//! A served run whose files are damaged, lost or older: what is said of it, and what is refused.

use crate::federation::{Process, invitations, join, serve, wait, wards};
use crate::support::{Ran, Sandbox};
use std::fs;

/// A run in the middle of its rounds, as a kill of everyone leaves it, with one client revoked.
fn killed() -> Sandbox {
    let sandbox = wards(100_000, "");
    let mut coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let mut clients: Vec<Process> =
        invitations.iter().map(|(name, invitation)| join(&sandbox, name, invitation)).collect();
    let metrics = || fs::read_to_string(sandbox.path("served/metrics.jsonl")).unwrap_or_default();
    wait("evaluations", || metrics().lines().count() > 3);
    coordinator.kill();
    clients.iter_mut().for_each(Process::kill);
    fs::copy(sandbox.path("served/federation.json"), sandbox.path("older.json")).unwrap();
    sandbox.ok(&["revoke", "served", "west"]);
    sandbox
}

fn verified(sandbox: &Sandbox) -> Ran {
    sandbox.run(&["verify", "served"])
}

fn resumed(sandbox: &Sandbox) -> Ran {
    sandbox.run(&["serve", "job.toml", "--out", "served", "--resume"])
}

#[test]
fn every_damaged_file_is_named_and_a_revocation_stays() {
    let sandbox = killed();
    assert!(verified(&sandbox).stdout.ends_with("whole\n"), "{}", verified(&sandbox).stdout);
    let members = sandbox.read("served/members.jsonl");
    assert_eq!(members.matches("\"revoked\"").count(), 1, "{members}");

    let cut = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let flipped = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        bytes
    };
    let files = ["checkpoint/state", "checkpoint/log", "journal", "metrics.jsonl"];
    let more = ["federation.json", "members.jsonl", "tls/identity"];
    for file in files.iter().chain(&more) {
        let path = sandbox.path("served").join(file);
        let whole = fs::read(&path).unwrap();
        for damaged in [Some(flipped(&whole)), Some(cut(&whole)), None] {
            match &damaged {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let (case, before) = (damaged.as_ref().map(Vec::len), fs::read(&path).ok());
            let (found, promised) = (verified(&sandbox), sandbox.run(&["repair", "served"]));
            // A log whose end is gone, lines of it included, is known by what the journal has more.
            let named = format!("damaged: {file}: ");
            assert!(found.stdout.contains(&named), "{file} {case:?}: {}", found.stdout);
            assert_eq!(found.code, 1, "{file} {case:?}");
            assert!(promised.code == 0 || promised.stderr.contains("hint: restore"), "{file}");
            assert!(!promised.stderr.contains("os error"), "{file}: {}", promised.stderr);
            assert_eq!(fs::read(&path).ok(), before, "{file} was changed by looking at it");
            assert!(!sandbox.path("served/damaged-1").exists());
        }
        fs::write(&path, whole).unwrap();
    }
    assert!(verified(&sandbox).stdout.ends_with("whole\n"));

    // Nobody gets back in by an older list.
    let newer = sandbox.read("served/federation.json");
    fs::copy(sandbox.path("older.json"), sandbox.path("served/federation.json")).unwrap();
    for ran in [resumed(&sandbox), sandbox.run(&["invite", "served", "more"])] {
        let named = ran.stderr.contains("federation.json: it is an older copy");
        assert!(named && ran.stderr.contains("without `west` being revoked"), "{}", ran.stderr);
    }
    sandbox.write("served/federation.json", &newer);

    // A coordinator without its identity is another one.
    fs::rename(sandbox.path("served/tls"), sandbox.path("tls")).unwrap();
    let ran = resumed(&sandbox);
    let said = ran.stderr.contains("lost its identity") && ran.stderr.contains("restore tls/");
    assert!(ran.code == 1 && said, "{}: {}", ran.code, ran.stderr);
    assert!(!sandbox.path("served/tls").exists(), "another one was made");
    fs::rename(sandbox.path("tls"), sandbox.path("served/tls")).unwrap();

    // Told once, whoever starts again.
    for _ in 0..2 {
        let mut coordinator = serve(&sandbox, true);
        let listens = || sandbox.read("serve.log").matches("listening on 127.0.0.1:").count();
        let before = listens();
        wait("a start", || listens() > before);
        coordinator.kill();
    }
    assert_eq!(sandbox.read("served/members.jsonl"), members);
    assert!(!sandbox.read("serve.log").contains("`west` is revoked"));
}

/// What a client cannot do without is named, and nothing is made in its place.
#[test]
fn a_clients_lost_and_damaged_files_are_named() {
    let sandbox = killed();
    let invitations = invitations(&sandbox);
    let (_, invitation) = invitations.iter().find(|(name, _)| name == "east").unwrap();
    let enter = ["join", invitation, "--data", "east.csv", "--out", "client-east", "--yes"];
    let enter = [&enter[..], &["--give-up", "0.1", "--min-group", "1"]].concat();
    let file = |name: &str| sandbox.path("client-east").join(name);
    let lost = |name: &str, args: &[&str]| {
        let whole = fs::read(file(name)).unwrap();
        fs::remove_file(file(name)).unwrap();
        let ran = sandbox.run(args);
        let said = ran.stderr.contains(&format!("{name}: it is missing, "));
        assert!(ran.code == 1 && said, "{name}: {}: {}", ran.code, ran.stderr);
        assert!(ran.stderr.contains("\nhint: restore"), "{}", ran.stderr);
        assert!(!file(name).exists(), "{name} was made anew");
        fs::write(file(name), whole).unwrap();
        ran.stderr
    };
    let before = sandbox.ok(&["ledger", "client-east"]).stdout;
    let said = lost("data.sha256", &enter);
    assert!(said.contains("a new invitation and another folder"), "{said}");
    lost("data.sha256", &[&enter[..], &["--renew"]].concat());
    assert_eq!(sandbox.ok(&["ledger", "client-east"]).stdout, before);

    let said = lost("identity", &enter);
    assert!(!said.contains("supplied") && said.contains("under another name"), "{said}");
    // A folder of before does not say how its client enrolled.
    fs::remove_file(file("enrolment")).unwrap();
    let said = lost("identity", &enter);
    assert!(said.contains("give --cert and --key if this client joined with a supplied"), "{said}");

    let mut slot = fs::read(file("slot-a")).unwrap();
    // Behind the head: the step's number.
    slot[28] ^= 1;
    fs::write(file("slot-a"), slot).unwrap();
    let ran = sandbox.run(&enter);
    let said = ran.stderr.contains("slot-a: damaged or incompletely written");
    assert!(ran.code != 0 && said, "{}: {}", ran.code, ran.stderr);
}

/// Files that tell something private are their owner's alone, whatever mask a process was given.
#[cfg(unix)]
#[test]
fn private_files_are_private_whatever_the_mask() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = wards(100_000, "");
    let unmasked = |args: &[&str]| {
        let shell = ["-c", "umask 0 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_whimbrel")];
        let mut command = std::process::Command::new("sh");
        command.args(shell).args(args).current_dir(sandbox.path(""));
        command
    };
    let serve = ["serve", "job.toml", "--out", "served", "--dashboard", "127.0.0.1:0"];
    let mut coordinator = Process::spawn(&sandbox, "serve", unmasked(&serve));
    let invitations = invitations(&sandbox);
    let mut clients = Vec::new();
    for (name, invitation) in &invitations {
        let (data, out) = (format!("{name}.csv"), format!("client-{name}"));
        let args = ["join", invitation, "--data", &data, "--out", &out, "--yes"];
        clients.push(Process::spawn(&sandbox, name, unmasked(&args)));
    }
    let journal = || fs::read_to_string(sandbox.path("served/journal")).unwrap_or_default();
    wait("rounds", || journal().contains("\"round\":20,") || journal().len() > 10_000);
    coordinator.kill();
    clients.iter_mut().for_each(Process::kill);
    let repair = unmasked(&["repair", "served", "--keep-prefix"]).output().unwrap();
    assert!(repair.status.success(), "{}", String::from_utf8_lossy(&repair.stderr));
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let private = ["checkpoint/state", "checkpoint/log", "tls/identity", "federation.json"];
    for file in private.iter().chain(&["members.jsonl", "dashboard-token"]) {
        assert_eq!(mode(&sandbox.path("served").join(file)), 0o600, "{file}");
    }
    for folder in ["served/checkpoint", "served/tls", "served/damaged-1", "client-east"] {
        assert_eq!(mode(&sandbox.path(folder)), 0o700, "{folder}");
    }
    for folder in ["served/damaged-1", "client-east"] {
        for entry in fs::read_dir(sandbox.path(folder)).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("lock") {
                assert_eq!(mode(&path), 0o600, "{}", path.display());
            }
        }
    }
}

/// What was given and is not kept is given again; what is bound is what is said.
#[cfg(unix)]
#[test]
fn the_hint_to_go_on_has_what_was_given() {
    let sandbox = wards(3, "");
    sandbox.write("mine", "a file of mine\n");
    let serve = ["serve", "job.toml", "--out", "served"];
    let ran = sandbox.run(&[&serve[..], &["--invitations", "mine"]].concat());
    let said = ran.stderr.contains("mine exists and does not hold invitations");
    assert!(ran.code == 2 && said && !sandbox.path("served").exists(), "{}", ran.stderr);

    let more = ["--listen", "127.0.0.1:0", "--address", "fl.example.org:7443"];
    let shown = ["--dashboard", "127.0.0.1:0", "--log", "json"];
    let args = [&serve[..], &more, &shown].concat();
    let mut command = sandbox.command(&args);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    wait("a start", || sandbox.path("served/status.json").exists());
    let stopped = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(stopped.success());
    let log = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    let hint = "resume with: whimbrel serve job.toml --out served --resume --listen 127.0.0.1:0 \
                --address fl.example.org:7443 --dashboard 127.0.0.1:0 --log json";
    assert!(log.contains(hint), "{log}");
    assert!(log.contains("listening on 127.0.0.1:"), "{log}");
    assert!(log.contains(" (clients use fl.example.org:7443)"), "{log}");
}

#[test]
fn a_ledger_says_what_was_agreed_to_and_what_left() {
    let sandbox = wards(4, "");
    let mut coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let (name, invitation) = &invitations[0];
    let data = format!("{name}.csv");
    let enter = ["join", invitation, "--data", &data, "--out", "x"];
    assert_eq!(sandbox.run(&enter).code, 5);
    let said = sandbox.ok(&["ledger", "x"]).stdout;
    assert!(said.contains("no consent, and no answers"), "{said}");
    assert!(!said.contains(" of "), "{said}");
    let long = "n".repeat(3000);
    let ran = sandbox.run(&[&enter[..], &["--name", &long]].concat());
    assert!(ran.code == 2 && ran.stderr.contains("a name has 1 to 200 bytes"), "{}", ran.stderr);

    let args = [&enter[..], &["--yes", "--give-up", "120"]].concat();
    let first = Process::start(&sandbox, "x", &args);
    let others: Vec<Process> =
        invitations[1..].iter().map(|(name, i)| join(&sandbox, name, i)).collect();
    first.ends(&sandbox, "x");
    for ((name, _), client) in invitations[1..].iter().zip(others) {
        client.ends(&sandbox, name);
    }
    coordinator.kill();
    let said = sandbox.ok(&["ledger", "x"]).stdout;
    assert!(said.contains(": answers, of the agreed maximum\n"), "{said}");
    let bytes = said.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
    let number = |text: &str| text.replace([',', ' ', '\u{202f}'], "").parse::<u64>().unwrap();
    let (left, most) = (number(bytes[1]), number(bytes[3]));
    assert!(0 < left && left <= most, "{said}");

    // The job is over, and agreeing again asks for nothing: what left before is still told.
    let again = [&enter[..], &["--yes", "--renew", "--give-up", "0.1"]].concat();
    let _ = sandbox.run(&again);
    let said = sandbox.ok(&["ledger", "x"]).stdout;
    assert!(said.contains("consent renewed 1 time;"), "{said}");
    let before = said.lines().last().unwrap();
    assert!(before.starts_with("before the last renewal: "), "{said}");
    assert!(before.ends_with(&format!(", {} bytes", bytes[1])), "{said}");
}
