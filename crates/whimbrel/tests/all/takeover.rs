//! A run that an earlier program left, with its clients: the folder in `tests/golden/served` is taken over
//! and ends in the simulation's bits. Folders of older versions are refused by their number.
//!
//! `WHIMBREL_BLESS=1` makes the folder anew; a format that changes keeps the old folder as a second one.

use crate::federation::{Process, free_address, wait};
use crate::support::Sandbox;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Stands for the folder of the job, whose path the run keeps.
const ELSEWHERE: &str = "/elsewhere/";
const NAMES: [&str; 2] = ["east", "west"];
const JOB: &str = "name = \"taken-over\"\nseed = 7\n\n[data]\nsource = \"csv\"\ncolumns = [\"a\", \"b\"]\n\n\
    [model]\nkind = \"gmm\"\ncomponents = 2\n\n[method]\nkind = \"fedem\"\nrounds = 300\n\
    evaluate = { every = 5 }\n\n[uplink]\ncodec = { kind = \"dithering\", levels = 4 }\n\n\
    [federation]\nclients = [\"east\", \"west\"]\nlisten = \"127.0.0.1:0\"\ndashboard = false\n\
    heartbeat_s = 1\n";

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/served")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let place = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &place),
            false => drop(fs::copy(&path, &place).unwrap()),
        }
    }
}

/// The rows of both clients, and a job that simulates them.
fn write_rows(sandbox: &Sandbox) {
    let mut all = String::from("a,b,ward\n");
    for (w, name) in NAMES.iter().enumerate() {
        let mut own = String::from("a,b\n");
        for i in 0..24 + 6 * w {
            let group = f64::from((i * 7 + w) as u32 % 2);
            let wave = |step: usize| ((i * step + 13 * w) % 97) as f64 / 97.0 - 0.5;
            let (a, b) = (4.0 * group + wave(31), -3.0 * group + wave(57));
            writeln!(own, "{a},{b}").unwrap();
            writeln!(all, "{a},{b},{name}").unwrap();
        }
        sandbox.write(&format!("{name}.csv"), &own);
    }
    sandbox.write("all.csv", &all);
    sandbox.write("job.toml", JOB);
    let simulated =
        JOB.replace("source = \"csv\"", "source = \"csv\"\npath = \"all.csv\"\nclient = \"ward\"");
    sandbox.write("simulated.toml", &simulated);
}

fn join(sandbox: &Sandbox, name: &str, invitation: &str) -> Process {
    let (data, out) = (format!("{name}.csv"), format!("client-{name}"));
    let args = ["join", invitation, "--data", &data, "--out", &out, "--yes", "--give-up", "120"];
    Process::start(sandbox, name, &args)
}

/// A run in the middle of its rounds, as a kill of everyone leaves it.
fn make() {
    let sandbox = Sandbox::new();
    write_rows(&sandbox);
    let args = ["serve", "job.toml", "--out", "served"];
    let mut coordinator = Process::start(&sandbox, "serve", &args);
    let printed = || fs::read_to_string(sandbox.path("serve.out")).unwrap_or_default();
    wait("the invitations", || printed().matches('\n').count() == NAMES.len());
    let text = printed();
    let mut clients: Vec<Process> = text
        .lines()
        .map(|line| line.split_once('\t').unwrap())
        .map(|(name, invitation)| join(&sandbox, name, invitation))
        .collect();
    // The log grows with every round.
    let log = || fs::metadata(sandbox.path("served/checkpoint/log")).map_or(0, |found| found.len());
    wait("some rounds", || log() > 6000 || coordinator.is_over());
    assert!(!coordinator.is_over(), "it was over too soon: try again");
    coordinator.kill();
    clients.iter_mut().for_each(Process::kill);
    let _ = fs::remove_dir_all(golden());
    let files = [
        "federation.json",
        "members.jsonl",
        "job.toml",
        "journal",
        "metrics.jsonl",
        "measures.json",
    ];
    fs::create_dir_all(golden().join("served")).unwrap();
    for file in files {
        fs::copy(sandbox.path("served").join(file), golden().join("served").join(file)).unwrap();
    }
    for folder in ["served/checkpoint", "served/tls", "client-east", "client-west"] {
        copy(&sandbox.path(folder), &golden().join(folder));
    }
    let job = golden().join("served/job.toml");
    let text = fs::read_to_string(&job).unwrap();
    fs::write(&job, text.replace(sandbox.path("").to_str().unwrap(), ELSEWHERE)).unwrap();
}

/// The folder on this machine, in the place of the one that it was made in.
fn restore(sandbox: &Sandbox) {
    copy(&golden(), &sandbox.path(""));
    let job = sandbox.read("served/job.toml");
    sandbox.write("served/job.toml", &job.replace(ELSEWHERE, sandbox.path("").to_str().unwrap()));
}

#[test]
fn a_folder_of_this_version_is_taken_over_and_ends_in_the_same_bits() {
    if std::env::var_os("WHIMBREL_BLESS").is_some() {
        make();
    }
    let sandbox = Sandbox::new();
    write_rows(&sandbox);
    restore(&sandbox);
    let said = sandbox.ok(&["verify", "served"]).stdout;
    assert!(said.ends_with("whole\n") && !said.contains("round 0:"), "{said}");
    // As of a program that did not know this key: its default is what the run has.
    let job = sandbox.read("served/job.toml");
    assert!(job.contains("linger_s = 60.0\n"), "{job}");
    sandbox.write("served/job.toml", &job.replace("linger_s = 60.0\n", ""));
    // Another machine, and so another address.
    let address = free_address();
    let args = ["serve", "job.toml", "--out", "served", "--resume", "--listen", &address];
    let args = [&args[..], &["--address", &address, "--rotate"]].concat();
    let coordinator = Process::start(&sandbox, "serve", &args);
    wait("the address", || sandbox.read("served/federation.json").contains(&address));
    let clients: Vec<(&str, Process)> = NAMES
        .iter()
        .map(|name| {
            let again = sandbox.ok(&["invite", "served", name, "--again"]).stdout;
            (*name, join(&sandbox, name, again.trim()))
        })
        .collect();
    coordinator.ends(&sandbox, "serve");
    clients.into_iter().for_each(|(name, client)| client.ends(&sandbox, name));
    sandbox.ok(&["run", "simulated.toml", "--out", "simulated"]);
    let model = |run: &str| fs::read(sandbox.path(run).join("model/model.safetensors")).unwrap();
    assert!(model("served") == model("simulated"), "another model than the simulation's");
    assert_eq!(sandbox.read("served/journal"), sandbox.read("simulated/journal"));
    for name in NAMES {
        assert!(model(&format!("client-{name}")) == model("served"), "{name} has another model");
    }
}

/// The version is a number in each of these files: another one is named, and nothing is changed.
#[test]
fn folders_of_other_versions_are_refused_by_their_number() {
    let sandbox = Sandbox::new();
    write_rows(&sandbox);
    let address = free_address();
    let serve = ["serve", "job.toml", "--out", "served", "--resume", "--listen", &address];
    let again = |name: &str| -> String {
        restore(&sandbox);
        sandbox.ok(&["invite", "served", name, "--again"]).stdout.trim().to_owned()
    };
    let invitation = again("east");
    let join = ["join", &invitation, "--data", "east.csv", "--out", "client-east", "--yes"];
    // Where the number stands, and the one before it.
    let binary = [
        ("served/checkpoint/state", 4, &serve[..]),
        ("served/tls/identity", 1, &serve),
        ("client-east/identity", 1, &join),
        ("client-east/offer", 1, &join),
        ("client-east/slot-a", 4, &join),
        ("client-east/stage-1", 1, &join),
    ];
    for (file, older, command) in binary {
        restore(&sandbox);
        let path = sandbox.path(file);
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = older;
        fs::write(&path, &bytes).unwrap();
        let ran = sandbox.run(command);
        let why = format!("it has version {older}, this program reads {}", older + 1);
        assert!(ran.code != 0 && ran.stderr.contains(&why), "{file}: {}", ran.stderr);
        assert!(fs::read(&path).unwrap() == bytes, "{file} was changed");
    }
    restore(&sandbox);
    let book =
        sandbox.read("served/federation.json").replacen("\"version\": 3", "\"version\": 2", 1);
    sandbox.write("served/federation.json", &book);
    let ran = sandbox.run(&serve);
    assert!(ran.stderr.contains("it has version 2, this program reads 3"), "{}", ran.stderr);
    assert_eq!(sandbox.read("served/federation.json"), book);
}
