//! Whole runs of two stages in a folder: interrupted, killed at any exchange, on a full disk; each
//! time the resumed run ends in the bytes of the run that nothing happened to.

use crate::toy::{SOUND, Toy, clients, erased};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientId, Error, Probability, Result};
use whimbrel_engine::simulator::Done;
use whimbrel_engine::{
    Chain, Ending, Faults, Limits, Observer, Outcome, Participation, Row, Stage, Stopping, run,
};

/// A stage without metrics, then one with.
#[derive(Clone)]
struct Two {
    stopping: Stopping,
    growth: f64,
}

const TWO: Two = Two {
    stopping: Stopping {
        limits: Vec::new(),
        patience: None,
        tolerance: 0.0,
        spent: None,
        rounds_before: 0,
    },
    growth: 1.0,
};

impl Chain for Two {
    fn len(&self) -> usize {
        2
    }

    fn build(&self, index: usize, delivered: &[Artifact]) -> Result<Stage> {
        assert_eq!(delivered.len(), index, "a stage sees what the stages before it delivered");
        let growth = if index == 0 { 1.0 } else { self.growth };
        Ok(Stage {
            name: ["first", "second"][index],
            method: erased(Toy { rounds: 5 + 4 * index as u32, growth, ..SOUND }).into(),
            participation: Participation::Bernoulli(Probability::new(0.6)?),
            faults: Faults {
                lost: 0.2,
                late: BTreeMap::from([(ClientId(2), 4)]),
                ..Faults::default()
            },
            evaluate_every: (index == 1).then_some(2),
            stopping: if index == 1 { self.stopping.clone() } else { Stopping::default() },
        })
    }
}

/// Counts exchanges of the whole run and does something at one of them.
struct At<F: FnMut()> {
    seen: u32,
    at: u32,
    act: F,
}

impl<F: FnMut()> Observer for At<F> {
    fn exchange(&mut self, _: &Done) {
        if self.seen == self.at {
            (self.act)();
        }
        self.seen += 1;
    }
}

fn go(
    chain: Two,
    folder: &Path,
    resume: bool,
    every: Duration,
    interrupt: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    let limits = Limits { folder: Some(folder), resume, checkpoint_every: every, interrupt };
    run(&chain, clients(6), 11, &limits, observer)
}

fn calm() -> AtomicBool {
    AtomicBool::new(false)
}

const NEVER: Duration = Duration::from_secs(3600);

/// What must be equal between two runs: checkpoint and journal to the byte, metrics but for the
/// clock.
#[derive(PartialEq, Debug)]
struct Left {
    checkpoint: Vec<u8>,
    journal: String,
    metrics: Vec<String>,
}

fn left(folder: &Path) -> Left {
    let metrics = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let without_seconds = |line: &str| line.split(",\"seconds\"").next().unwrap().to_string();
    Left {
        checkpoint: fs::read(folder.join("checkpoint/state")).unwrap(),
        journal: fs::read_to_string(folder.join("journal")).unwrap(),
        metrics: metrics.lines().map(without_seconds).collect(),
    }
}

fn untouched(chain: Two) -> (Left, Outcome) {
    let folder = tempfile::tempdir().unwrap();
    let outcome = go(chain, folder.path(), false, NEVER, &calm(), &mut ()).unwrap();
    (left(folder.path()), outcome)
}

fn same(outcome: &Outcome, reference: &Outcome) {
    assert_eq!(outcome.ending, reference.ending);
    assert_eq!(outcome.delivered, reference.delivered);
    assert_eq!(outcome.tallies, reference.tallies);
    assert_eq!(outcome.own, reference.own);
    assert_eq!((outcome.traffic, outcome.rounds), (reference.traffic, reference.rounds));
    let figures = |row: &Row| Row { seconds: 0.0, ..row.clone() };
    assert_eq!(outcome.last.as_ref().map(figures), reference.last.as_ref().map(figures));
}

/// As a killed process leaves it: the files as they are at that moment, and half a line.
fn copy_as_killed(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("checkpoint")).unwrap();
    for name in ["journal", "metrics.jsonl", "checkpoint/state"] {
        if let Ok(bytes) = fs::read(from.join(name)) {
            let torn: &[u8] = if name == "checkpoint/state" { b"" } else { b"{\"stage\":1,\xff" };
            fs::write(to.join(name), [&bytes, torn].concat()).unwrap();
        }
    }
    fs::write(to.join("checkpoint/state.tmp"), b"half a checkpoint").unwrap();
}

/// 2 openings, 5 and 9 rounds; more where an opening was lost.
const EXCHANGES: u32 = 16;

#[test]
fn a_run_killed_after_any_exchange_resumes_to_the_same_bytes() {
    let (reference, outcome) = untouched(TWO);
    assert!(reference.journal.lines().count() >= EXCHANGES as usize);
    for every in [Duration::ZERO, NEVER] {
        for at in 0..EXCHANGES {
            let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let act = || copy_as_killed(folder.path(), copy.path());
            let mut killed = At { seen: 0, at, act };
            go(TWO, folder.path(), false, every, &calm(), &mut killed).unwrap();
            let resumed = go(TWO, copy.path(), true, every, &calm(), &mut ()).unwrap();
            same(&resumed, &outcome);
            assert!(left(copy.path()) == reference, "killed after exchange {at}");
        }
    }
}

#[test]
fn an_interrupted_run_says_so_and_resumes_to_the_same_bytes() {
    let (reference, outcome) = untouched(TWO);
    for at in 0..EXCHANGES - 1 {
        let folder = tempfile::tempdir().unwrap();
        let interrupt = calm();
        let act = || interrupt.store(true, Ordering::Relaxed);
        let mut observer = At { seen: 0, at, act };
        let stopped = go(TWO, folder.path(), false, NEVER, &interrupt, &mut observer).unwrap();
        assert_eq!(stopped.ending, Ending::Interrupted, "after exchange {at}");
        // Whatever was interrupted, what is delivered last is the model or there is nothing.
        assert!(stopped.delivered.len() != 1, "{:?}", stopped.delivered);
        let resumed = go(TWO, folder.path(), true, NEVER, &calm(), &mut ()).unwrap();
        same(&resumed, &outcome);
        assert!(left(folder.path()) == reference, "interrupted after exchange {at}");
    }
}

#[test]
fn a_finished_run_stays_as_it_is_when_resumed() {
    let patience = Stopping { patience: Some(1), ..TWO.stopping };
    for stopping in [TWO.stopping, patience] {
        let early = stopping.patience.is_some();
        let chain = Two { stopping, ..TWO };
        let folder = tempfile::tempdir().unwrap();
        let outcome = go(chain.clone(), folder.path(), false, NEVER, &calm(), &mut ()).unwrap();
        assert_eq!(outcome.ending.detail().contains("has stayed"), early);
        let before = left(folder.path());
        let again = go(chain, folder.path(), true, NEVER, &calm(), &mut ()).unwrap();
        same(&again, &outcome);
        assert_eq!(left(folder.path()), before);
    }
}

#[test]
fn a_new_run_in_an_old_folder_does_not_resume_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    go(TWO, folder.path(), false, NEVER, &calm(), &mut ()).unwrap();
    let copy = tempfile::tempdir().unwrap();
    let act = || copy_as_killed(folder.path(), copy.path());
    let mut observer = At { seen: 0, at: 0, act };
    go(TWO, folder.path(), false, NEVER, &calm(), &mut observer).unwrap();
    assert!(!copy.path().join("checkpoint/state").exists(), "the old checkpoint was still there");
}

#[test]
fn a_run_that_diverges_keeps_what_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let chain = Two { growth: 1e3, ..TWO };
    let outcome = go(chain, folder.path(), false, Duration::ZERO, &calm(), &mut ()).unwrap();
    let Ending::Failed(Error::Numerical { round: Some(round), .. }) = outcome.ending else {
        panic!("{:?}", outcome.ending)
    };
    let left = left(folder.path());
    let last = left.journal.lines().rfind(|line| line.contains("exchange")).unwrap();
    assert!(last.contains(&format!("\"round\":{}", round - 1)), "round {round}: {last}");
    assert!(!left.metrics.is_empty());
}

/// Where a write ends on a device that is always full.
fn plant_full_disk(path: PathBuf) {
    let _ = fs::remove_file(&path);
    std::os::unix::fs::symlink("/dev/full", path).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_stops_the_run_and_costs_nothing_already_saved() {
    let (reference, outcome) = untouched(TWO);
    for at in (1..EXCHANGES).step_by(4) {
        let folder = tempfile::tempdir().unwrap();
        let act = || plant_full_disk(folder.path().join("checkpoint/state.tmp"));
        let mut observer = At { seen: 0, at, act };
        let error = go(TWO, folder.path(), false, Duration::ZERO, &calm(), &mut observer)
            .err()
            .expect("the disk is full");
        let Error::Storage { path, what, .. } = error else { panic!("{error}") };
        assert!(path.ends_with("state") && what.contains("No space left"), "{path}: {what}");
        let resumed = go(TWO, folder.path(), true, Duration::ZERO, &calm(), &mut ()).unwrap();
        same(&resumed, &outcome);
        assert!(left(folder.path()) == reference, "full after exchange {at}");
    }
}
