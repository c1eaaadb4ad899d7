//! A run of an earlier program and its clients: the folder `tests/golden/served` is resumed and ends in
//! the simulation's bits. Folders of older versions are refused.
//!
//! `WHIMBREL_BLESS=1` makes the folder again; when a format changes, the old folder stays as a second one.

use crate::federation::{
    Process, all_end, free_address, invitations_of, join_with, serve, wait, write_two_groups,
};
use crate::support::Sandbox;
use std::fs;
use std::path::{Path, PathBuf};

/// Placeholder of the job's folder in the run's files.
const ELSEWHERE: &str = "/elsewhere/";
const NAMES: [&str; 2] = ["east", "west"];
const JOB: &str = "name = \"taken-over\"\nseed = 7\n\n[data]\nsource = \"csv\"\ncolumns = [\"a\", \"b\"]\n\n\
    [model]\nkind = \"gmm\"\ncomponents = 2\n\n[method]\nkind = \"fedem\"\nrounds = 300\n\
    evaluate = { every = 5 }\n\n[uplink]\ncodec = { kind = \"dithering\", levels = 4 }\n\n[privacy]\nmin_group = 5\n\n\
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
        if path.is_dir() {
            copy(&path, &place);
        } else {
            fs::copy(&path, &place).unwrap();
        }
    }
}

/// The rows of both clients, and a job that simulates them.
fn write_rows(sandbox: &Sandbox) {
    write_two_groups(sandbox, &NAMES, |w| 24 + 6 * w);
    sandbox.write("job.toml", JOB);
    let simulated =
        JOB.replace("source = \"csv\"", "source = \"csv\"\npath = \"all.csv\"\nclient = \"ward\"");
    sandbox.write("simulated.toml", &simulated);
}

/// Makes a run and kills all its processes within the rounds.
fn make() {
    let sandbox = Sandbox::new();
    write_rows(&sandbox);
    let mut coordinator = serve(&sandbox, false);
    let mut clients: Vec<Process> = invitations_of(&sandbox, NAMES.len())
        .iter()
        .map(|(name, invitation)| join_with(&sandbox, name, invitation, &[]))
        .collect();
    // The log grows with every round.
    let log = || fs::metadata(sandbox.path("served/checkpoint/log")).map_or(0, |found| found.len());
    wait("some rounds", || log() > 6000 || coordinator.is_over());
    assert!(!coordinator.is_over(), "over too soon: try again");
    coordinator.kill();
    clients.iter_mut().for_each(Process::kill);
    let _ = fs::remove_dir_all(golden());
    fs::create_dir_all(golden().join("served")).unwrap();
    let kept = ["federation.json", "members.jsonl", "job.toml", "journal"];
    for file in kept.iter().chain(&["metrics.jsonl", "measures.json"]) {
        fs::copy(sandbox.path("served").join(file), golden().join("served").join(file)).unwrap();
    }
    for folder in ["served/checkpoint", "served/tls", "client-east", "client-west"] {
        copy(&sandbox.path(folder), &golden().join(folder));
    }
    let job = golden().join("served/job.toml");
    let text = fs::read_to_string(&job).unwrap();
    fs::write(&job, text.replace(sandbox.path("").to_str().unwrap(), ELSEWHERE)).unwrap();
}

/// Copies the folder, with the path of this sandbox.
fn restore(sandbox: &Sandbox) {
    copy(&golden(), &sandbox.path(""));
    let job = sandbox.read("served/job.toml");
    sandbox.write("served/job.toml", &job.replace(ELSEWHERE, sandbox.path("").to_str().unwrap()));
}

#[test]
fn a_folder_of_this_version_is_resumed_and_ends_in_the_same_bits() {
    if std::env::var_os("WHIMBREL_BLESS").is_some() {
        make();
    }
    let sandbox = Sandbox::new();
    write_rows(&sandbox);
    restore(&sandbox);
    let said = sandbox.ok(&["verify", "served"]).stdout;
    assert!(said.ends_with("whole\n") && !said.contains("round 0:"), "{said}");
    // As of a program without this key, whose default the run has.
    let job = sandbox.read("served/job.toml");
    assert!(job.contains("linger_s = 60.0\n"), "{job}");
    sandbox.write("served/job.toml", &job.replace("linger_s = 60.0\n", ""));
    // Another machine has another address.
    let address = free_address();
    let args = ["serve", "job.toml", "--out", "served", "--resume", "--listen", &address];
    let args = [&args[..], &["--address", &address, "--rotate"]].concat();
    let coordinator = Process::start(&sandbox, "serve", &args);
    wait("the address", || sandbox.read("served/federation.json").contains(&address));
    let again = NAMES.map(|name| {
        let again = sandbox.ok(&["invite", "served", name, "--again"]).stdout;
        (name.to_owned(), again.trim().to_owned())
    });
    let clients = again.iter().map(|(name, i)| join_with(&sandbox, name, i, &[])).collect();
    all_end(&sandbox, coordinator, &again, clients);
    sandbox.ok(&["run", "simulated.toml", "--out", "simulated"]);
    let model = |run: &str| fs::read(sandbox.path(run).join("model/model.safetensors")).unwrap();
    assert!(model("served") == model("simulated"), "another model than the simulation's");
    assert_eq!(sandbox.read("served/journal"), sandbox.read("simulated/journal"));
    for name in NAMES {
        assert!(model(&format!("client-{name}")) == model("served"), "{name} has another model");
    }
}

/// The error names the version, and the files stay unchanged.
#[test]
fn folders_of_other_versions_are_refused() {
    let sandbox = Sandbox::new();
    write_rows(&sandbox);
    let address = free_address();
    let serve = ["serve", "job.toml", "--out", "served", "--resume", "--listen", &address];
    restore(&sandbox);
    let invitation = sandbox.ok(&["invite", "served", "east", "--again"]).stdout;
    let join = ["join", invitation.trim(), "--data", "east.csv", "--out", "client-east", "--yes"];
    // Files with an older version number.
    let binary = [
        ("served/checkpoint/state", 5, &serve[..]),
        ("served/tls/identity", 2, &serve),
        ("client-east/identity", 2, &join),
        ("client-east/offer", 2, &join),
        ("client-east/slot-a", 5, &join),
        ("client-east/stage-1", 2, &join),
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
    let list =
        sandbox.read("served/federation.json").replacen("\"version\": 3", "\"version\": 2", 1);
    sandbox.write("served/federation.json", &list);
    let ran = sandbox.run(&serve);
    assert!(ran.stderr.contains("it has version 2, this program reads 3"), "{}", ran.stderr);
    assert_eq!(sandbox.read("served/federation.json"), list);
}
