//! A coordinator that lost state is refused or repaired, and its clients report the loss.

use crate::support::{Joined, Town, Toys};
use crate::toy::{self, SOUND, Toy};
use std::path::{Path, PathBuf};
use whimbrel_core::{Key, Result};
use whimbrel_engine::checkpoint::Checkpoint;
use whimbrel_engine::machine::Machine;
use whimbrel_net::inspection::{Inspection, Remedy};
use whimbrel_net::repair::{Repairable, Repaired};
use whimbrel_net::wal::Wal;

const FILES: [&str; 4] = ["checkpoint/state", "checkpoint/log", "journal", "metrics.jsonl"];

/// New contents of files, `None` for removed ones.
type Changes<'a> = Vec<(&'a Path, Option<Vec<u8>>)>;

/// Paths and contents of a run's files.
type Files = Vec<(PathBuf, Vec<u8>)>;

fn copy(run: &Path) -> Files {
    FILES.map(|file| (run.join(file), std::fs::read(run.join(file)).unwrap())).to_vec()
}

fn restore(files: &[(PathBuf, Vec<u8>)]) {
    files.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
}

/// A run killed after some exchanges, and its files.
fn killed(toys: Toys) -> (Town, Files) {
    let mut town = Town::new(toys, 2);
    let serving = town.serve(false);
    let mut clients = town.join_all();
    serving.shows("eight exchanges", |s| s.strip.len() >= 8);
    // Without its second client the job waits, with files as after a crash.
    clients.pop().unwrap().halt();
    serving.shows("a wait", |s| s.state.contains("(not connected)"));
    let files = copy(&town.run_folder());
    let _ = serving.halt();
    clients.pop().unwrap().halt();
    restore(&files);
    (town, files)
}

fn log_of(files: &[(PathBuf, Vec<u8>)]) -> (&Path, &[u8]) {
    (&files[1].0, &files[1].1)
}

/// Removes all clients, as `whimbrel repair` does.
fn leave(checkpoint: &mut Checkpoint) -> Result<()> {
    let method = toy::erased(Toy { rounds: 40, ..SOUND });
    checkpoint.runner.state = Machine::without_clients(&*method, &checkpoint.runner.state)?;
    Ok(())
}

fn repair(run: &Path) -> Result<Repaired> {
    Repairable::of(run, leave)?.repair()
}

fn records(log: &Path) -> u64 {
    let mut count = 0;
    Wal::inspect(log, |_| {
        count += 1;
        Ok(())
    })
    .unwrap();
    count
}

/// A flipped byte is always detected, and the records before it stay readable.
#[test]
fn a_damaged_log_is_refused_unchanged() {
    let (mut town, files) = killed(Toys { evaluate: None, ..Toys::new(1, 40) });
    let (path, log) = log_of(&files);
    let all = records(path);
    let mut stream = Key::root(7).stream();
    let mut end = 20;
    while end + 12 <= log.len() {
        let next = end + 12 + u32::from_le_bytes(log[end..end + 4].try_into().unwrap()) as usize;
        if next >= log.len() {
            break;
        }
        end = next;
    }
    // Except in the last record, which a crash may have torn.
    for _ in 0..200 {
        let at = stream.below(end as u64) as usize;
        let mut damaged = log.to_vec();
        damaged[at] ^= 1 << stream.below(8);
        std::fs::write(path, &damaged).unwrap();
        let found = Inspection::of(&town.run_folder()).unwrap();
        assert!(found.faults.iter().any(|f| f.file == "checkpoint/log"), "at {at}: {found:?}");
        assert!(found.kept.unwrap().records < all || at < 20, "at {at}");
    }
    let (state, journal) = (&files[0].0, &files[2]);
    let flipped = |bytes: &[u8], at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1;
        Some(bytes)
    };
    let longer = || Some([&journal.1[..], &line(30)].concat());
    let cases: [(Changes<'_>, &[&str]); 5] = [
        // A flipped byte.
        (vec![(path, flipped(log, end / 2))], &["the run is damaged", "`whimbrel repair`"]),
        // A missing checkpoint, also with its log, does not restart the run.
        (vec![(state, None)], &["it is missing although a log exists"]),
        (
            vec![(state, None), (path, None), (&journal.0, longer())],
            &["although a journal with exchanges exists"],
        ),
        // A journal that differs from the checkpoint.
        (vec![(&journal.0, flipped(&journal.1, 12))], &["journal: it is damaged"]),
        // A log that is shorter than the journal.
        (
            vec![(path, Some(log[..20].to_vec())), (&journal.0, longer())],
            &["it lost its end: the journal has exchange 31"],
        ),
    ];
    for (changes, wanted) in cases {
        restore(&files);
        for (path, content) in &changes {
            match content {
                Some(content) => std::fs::write(path, content).unwrap(),
                None => std::fs::remove_file(path).unwrap(),
            }
        }
        let error = town.serve(true).result().err().unwrap().to_string();
        assert!(wanted.iter().all(|text| error.contains(text)), "{error}");
        for (path, content) in changes {
            assert_eq!(std::fs::read(path).ok(), content, "{error}: changed");
        }
        if error.contains("journal: it is damaged") {
            assert!(repair(&town.run_folder()).is_err());
        }
    }
}

fn line(exchange: u32) -> Vec<u8> {
    let line = format!(
        "{{\"stage\":0,\"exchange\":{exchange},\"round\":{exchange},\"cohort\":\"0-1\",\"accepted\":\"0-1\"}}\n"
    );
    line.into_bytes()
}

#[test]
fn a_repaired_run_resumes_with_clients_that_renew_their_consent() {
    let (mut town, files) = killed(Toys { evaluate: None, ..Toys::new(1, 40) });
    let (path, log) = log_of(&files);
    let mut damaged = log.to_vec();
    let middle = log.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(path, &damaged).unwrap();
    let found = Inspection::of(&town.run_folder()).unwrap().kept.unwrap();
    let repaired = repair(&town.run_folder()).unwrap();
    assert_eq!((repaired.stage, repaired.round), (0, found.round));
    assert_eq!(std::fs::read(repaired.kept_aside.join("log")).unwrap(), damaged);
    let found = Inspection::of(&town.run_folder()).unwrap();
    assert_eq!((found.kept.unwrap().round, found.faults), (repaired.round, Vec::new()));
    let serving = town.serve(true);
    let said = town.join(0).error().to_string();
    assert!(said.contains("repaired") && said.contains("`join --renew`"), "{said}");
    town.renews = true;
    let (left, _) = serving.end_with(town.join_all());
    assert_eq!(left.journal.lines().filter(|line| line.contains("\"repaired\"")).count(), 1);
    assert!(left.journal.contains("\"round\":40,"), "{}", left.journal);
}

/// The older copy is of the same stage or of an earlier one.
#[test]
fn a_client_ahead_of_an_older_copy_reports_the_loss() {
    for stages in [1, 2] {
        let (mut town, older) = killed(Toys { evaluate: None, ..Toys::new(stages, 40) });
        let serving = town.serve(true);
        let clients = town.join_all();
        serving.shows("progress", |s| {
            s.stage_index as usize + 1 == stages && s.strip.len() >= 3 && s.round >= 2
        });
        clients.into_iter().for_each(Joined::halt);
        let _ = serving.halt();
        restore(&older);
        let serving = town.serve(true);
        let said = town.join(0).error().to_string();
        assert!(said.contains("the coordinator lost state"), "{said}");
        serving.shows("a warning", |s| s.log.iter().any(|l| l.text.contains("whimbrel repair")));
        let _ = serving.halt();
    }
}

/// The check before a repair predicts its result for any damage of journal and metrics.
#[test]
fn a_repair_does_what_its_check_promises() {
    let (mut town, files) = killed(Toys { evaluate: Some(1), ..Toys::new(1, 40) });
    let run = town.run_folder();
    // A line in the log is written again.
    let (path, bytes) = &files[3];
    let mut damaged = bytes.clone();
    let last = bytes[..bytes.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 3;
    damaged[last] ^= 1;
    std::fs::write(path, &damaged).unwrap();
    let found = Inspection::of(&run).unwrap();
    assert_eq!(found.faults.iter().map(|f| f.remedy).collect::<Vec<_>>(), [Remedy::Resume]);
    assert!(found.whole(&run).is_ok());

    // An orderly stop makes a checkpoint that covers all lines.
    let serving = town.serve(true);
    serving.shows("a wait", |s| s.state.contains("(not connected)"));
    let _ = serving.halt();
    let files = copy(&run);
    assert_eq!(files[3].1, *bytes, "it was not written again");
    assert_eq!(Inspection::of(&run).unwrap().faults, Vec::new());
    let older = |bytes: &[u8]| {
        let first = bytes.iter().position(|b| *b == b'\n').unwrap() + 1;
        bytes[..first].to_vec()
    };
    let flipped = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[12] ^= 1;
        bytes
    };
    for (file, remedy) in [("journal", Remedy::Copy), ("metrics.jsonl", Remedy::Repair)] {
        let (path, bytes) = files.iter().find(|(path, _)| path.ends_with(file)).unwrap();
        let cases = [Some(older(bytes)), Some(flipped(bytes)), Some(Vec::new()), None];
        for (case, damaged) in cases.into_iter().enumerate() {
            restore(&files);
            match &damaged {
                Some(damaged) => std::fs::write(path, damaged).unwrap(),
                None => std::fs::remove_file(path).unwrap(),
            }
            let found = Inspection::of(&run).unwrap();
            let fault = found.faults.iter().find(|fault| fault.file == file);
            assert_eq!(fault.map(|fault| fault.remedy), Some(remedy), "{file} {case}: {found:?}");
            assert!(found.whole(&run).is_err(), "{file} {case}");
            let (promised, before) = (Repairable::of(&run, leave), std::fs::read(path).ok());
            assert_eq!(promised.is_ok(), remedy == Remedy::Repair, "{file} {case}");
            assert_eq!(std::fs::read(path).ok(), before, "{file} {case}: changed by the check");
            match promised {
                Err(error) => {
                    let said = error.to_string();
                    assert!(said.contains(&format!("it cannot be repaired: {file}: ")), "{said}");
                    assert!(!run.join("damaged-1").exists(), "{file} {case}");
                }
                Ok(promised) => {
                    assert!(promised.begins_metrics());
                    let repaired = promised.repair().unwrap();
                    assert_eq!(std::fs::read(repaired.kept_aside.join(file)).ok(), damaged);
                    assert_eq!(Inspection::of(&run).unwrap().faults, Vec::new(), "{file} {case}");
                    std::fs::remove_dir_all(repaired.kept_aside).unwrap();
                }
            }
        }
    }
}

/// Before the first exchange nothing can be lost: clients repeat their uploads.
#[test]
fn a_run_without_an_exchange_and_a_checkpoint_begins_anew() {
    let toys = Toys::new(1, 4);
    let mut town = Town::new(toys.clone(), 2);
    let serving = town.serve(false);
    let first = town.join(0);
    serving.shows_connected("c00");
    let _ = serving.halt();
    assert!(!town.run_folder().join("checkpoint/state").exists());
    assert_eq!(Inspection::of(&town.run_folder()).unwrap().kept, None);
    let serving = town.serve(true);
    serving.ends_as_simulated(vec![first, town.join(1)], &toys);
}
