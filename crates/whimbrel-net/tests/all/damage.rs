//! A coordinator that lost state: it is refused or repaired, and its clients say so.

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

/// What a run's folder holds.
fn copy(run: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    FILES.map(|file| (run.join(file), std::fs::read(run.join(file)).unwrap())).to_vec()
}

fn restore(files: &[(PathBuf, Vec<u8>)]) {
    files.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
}

/// A run that was killed after some exchanges: its folder, as the crash left it.
fn killed(toys: Toys) -> (Town, Vec<(PathBuf, Vec<u8>)>) {
    let mut town = Town::new(toys, 2);
    let serving = town.serve(false);
    let mut clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    serving.shows("eight exchanges", |s| s.strip.len() >= 8);
    // Without its second client the job waits, and its files are what a crash would leave.
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

/// Lets every client leave, as `whimbrel repair` does.
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

/// A flipped byte anywhere: never a silent loss, and what stands before it can be kept.
#[test]
fn a_log_that_is_damaged_anywhere_is_refused_as_it_is() {
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
    // All of it but the last record, of which nobody can say whether a crash tore it.
    for _ in 0..200 {
        let at = stream.below(end as u64) as usize;
        let mut damaged = log.to_vec();
        damaged[at] ^= 1 << stream.below(8);
        std::fs::write(path, &damaged).unwrap();
        let found = Inspection::of(&town.run_folder()).unwrap();
        assert!(found.faults.iter().any(|f| f.file == "checkpoint/log"), "at {at}: {found:?}");
        assert!(found.kept.unwrap().records < all || at < 20, "at {at}");
    }
    // Refused, and nothing is changed by it.
    let mut damaged = log.to_vec();
    damaged[end / 2] ^= 4;
    std::fs::write(path, &damaged).unwrap();
    let before = copy(&town.run_folder());
    let error = town.serve(true).result().err().unwrap().to_string();
    assert!(error.contains("the run is damaged") && error.contains("is damaged, and"), "{error}");
    assert!(error.contains("`whimbrel repair`"), "{error}");
    assert_eq!(copy(&town.run_folder()), before);
    // A checkpoint that is gone is no new start.
    restore(&files);
    std::fs::remove_file(&files[0].0).unwrap();
    let error = town.serve(true).result().err().unwrap().to_string();
    assert!(error.contains("it is gone, and a log is beside it"), "{error}");
    // Nor is one that is gone with its log.
    std::fs::remove_file(path).unwrap();
    let before = [&files[2].1[..], &line(30)].concat();
    std::fs::write(&files[2].0, &before).unwrap();
    let error = town.serve(true).result().err().unwrap().to_string();
    assert!(error.contains("a journal with exchanges is beside it"), "{error}");
    assert_eq!(std::fs::read(&files[2].0).unwrap(), before);
    // A journal that says something else than when the checkpoint was made.
    restore(&files);
    let mut journal = files[2].1.clone();
    journal[12] ^= 1;
    std::fs::write(&files[2].0, &journal).unwrap();
    let error = town.serve(true).result().err().unwrap().to_string();
    assert!(error.contains("journal: it is damaged"), "{error}");
    assert!(repair(&town.run_folder()).is_err());
    assert_eq!(std::fs::read(&files[2].0).unwrap(), journal);
    // A log that is shorter than what the journal says.
    restore(&files);
    std::fs::write(path, &log[..20]).unwrap();
    std::fs::write(&files[2].0, [&files[2].1[..], &line(30)].concat()).unwrap();
    let error = town.serve(true).result().err().unwrap().to_string();
    assert!(error.contains("it lost its end: the journal knows of exchange 31"), "{error}");
}

fn line(exchange: u32) -> Vec<u8> {
    let line = format!(
        "{{\"stage\":0,\"exchange\":{exchange},\"round\":{exchange},\"cohort\":\"0-1\",\"accepted\":\"0-1\"}}\n"
    );
    line.into_bytes()
}

#[test]
fn a_repaired_run_goes_on_with_clients_that_agree_again() {
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
    let clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    let (left, _) = serving.end();
    clients.into_iter().for_each(Joined::model);
    // Two more that it was rejoined in, of which one opens memories again.
    assert_eq!(left.journal.lines().filter(|line| line.contains("\"repaired\"")).count(), 1);
    assert!(left.journal.contains("\"round\":40,"), "{}", left.journal);
}

#[test]
fn a_client_ahead_of_an_older_copy_says_that_state_was_lost() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 40) };
    let (mut town, _) = killed(toys);
    let older = copy(&town.run_folder());
    let serving = town.serve(true);
    let clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    serving.shows("some exchanges", |s| s.strip.len() >= 3);
    clients.into_iter().for_each(Joined::halt);
    let _ = serving.halt();
    restore(&older);
    let serving = town.serve(true);
    let said = town.join(0).error().to_string();
    assert!(said.contains("the coordinator lost state"), "{said}");
    serving.shows("a warning", |s| s.log.iter().any(|l| l.text.contains("whimbrel repair")));
    let _ = serving.halt();
}

/// Whatever happens to journal or metrics, what `whimbrel repair` says beforehand is what it does.
#[test]
fn a_repair_does_what_it_promises_whatever_happened_to_journal_and_metrics() {
    let (mut town, files) = killed(Toys { evaluate: Some(1), ..Toys::new(1, 40) });
    let run = town.run_folder();
    // A line that the log holds is written again from it.
    let (path, bytes) = &files[3];
    let mut damaged = bytes.clone();
    let last = bytes[..bytes.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 3;
    damaged[last] ^= 1;
    std::fs::write(path, &damaged).unwrap();
    let found = Inspection::of(&run).unwrap();
    assert_eq!(found.faults.iter().map(|f| f.remedy).collect::<Vec<_>>(), [Remedy::Resume]);
    assert!(found.whole(&run).is_ok());

    // An orderly stop makes a checkpoint that counts on all lines.
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
            assert_eq!(std::fs::read(path).ok(), before, "{file} {case}: changed by looking");
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

/// Before its first exchange a run has nothing that could be lost: what clients sent until then they
/// send again.
#[test]
fn a_run_without_an_exchange_and_a_checkpoint_begins_anew() {
    let toys = Toys::new(1, 4);
    let mut town = Town::new(toys.clone(), 2);
    let serving = town.serve(false);
    let first = town.join(0);
    serving.shows("an enrolment", |s| s.clients.get("c00").is_some_and(|c| c.connected));
    let _ = serving.halt();
    assert!(!town.run_folder().join("checkpoint/state").exists());
    assert_eq!(Inspection::of(&town.run_folder()).unwrap().kept, None);
    let serving = town.serve(true);
    let second = town.join(1);
    let (left, _) = serving.end();
    [first, second].into_iter().for_each(Joined::model);
    assert_eq!(left, crate::support::simulate(&toys, 2).0);
}

/// The same where the copy is of an earlier stage: there the client has nothing to compare.
#[test]
fn a_client_in_a_later_stage_than_an_older_copy_says_that_state_was_lost() {
    let (mut town, older) = killed(Toys { evaluate: None, ..Toys::new(2, 40) });
    let serving = town.serve(true);
    let clients: Vec<Joined> = (0..2).map(|i| town.join(i)).collect();
    serving.shows("the next stage", |s| s.stage_index == 1 && s.round >= 2);
    clients.into_iter().for_each(Joined::halt);
    let _ = serving.halt();
    restore(&older);
    let serving = town.serve(true);
    let said = town.join(0).error().to_string();
    assert!(said.contains("the coordinator lost state"), "{said}");
    let _ = serving.halt();
}
