//! A coordinator that lost state: it is refused or repaired, and its clients say so.

use crate::support::{Joined, Town, Toys};
use crate::toy::{self, SOUND, Toy};
use std::path::{Path, PathBuf};
use whimbrel_core::{Key, Result};
use whimbrel_engine::checkpoint::Checkpoint;
use whimbrel_engine::machine::Machine;
use whimbrel_net::inspection::{Inspection, repair};
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

fn records(log: &Path) -> u64 {
    let mut count = 0;
    Wal::read(log, |_| {
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
        let found = Inspection::of(&town.run_folder()).unwrap().unwrap();
        assert!(found.faults.iter().any(|f| f.contains("log: ")), "at {at}: {found:?}");
        assert!(found.records < all || at < 20, "at {at}");
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
    assert!(repair(&town.run_folder(), leave).is_err());
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
    let found = Inspection::of(&town.run_folder()).unwrap().unwrap();
    let repaired = repair(&town.run_folder(), leave).unwrap();
    assert_eq!((repaired.stage, repaired.round), (0, found.round));
    assert_eq!(std::fs::read(repaired.kept_aside.join("log")).unwrap(), damaged);
    let found = Inspection::of(&town.run_folder()).unwrap().unwrap();
    assert_eq!((found.round, found.faults), (repaired.round, Vec::new()));
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
