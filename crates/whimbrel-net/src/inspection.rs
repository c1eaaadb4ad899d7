//! Whether what a coordinator left is whole, and what of it can be kept where it is not.
//!
//! Checkpoint, log, journal and metrics vouch for each other: the checkpoint says how many lines of
//! journal and metrics it counts on, each record of the log adds lines, and no line is written before
//! its record is durable. A log that is damaged or lost its end is therefore noticed, and so is a
//! checkpoint that is gone.

use crate::kept_run::{Adds, apply, wal_path};
use crate::wal::Wal;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::{Checkpoint, DAMAGED_JOURNAL, Lines, Store};
use whimbrel_engine::journal::{Line, Repair};
use whimbrel_engine::lock::FolderLock;

/// What was found in a run's folder.
#[derive(Clone, PartialEq, Debug)]
pub struct Inspection {
    /// The stage under way, from zero.
    pub stage: u32,
    /// Its rounds, by the checkpoint.
    pub checkpoint_round: u32,
    /// Its exchanges and rounds, with what the log adds.
    pub exchanges: u32,
    /// Rounds with what the log adds.
    pub round: u32,
    /// Records of the log that can be read.
    pub records: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Lines of journal and metrics.
    pub lines: (u64, u64),
    /// The last round that the journal knows of, where it knows of more than checkpoint and log.
    pub journal_round: Option<u32>,
    /// What is wrong.
    pub faults: Vec<String>,
}

/// Counts lines without writing them.
struct Counted(Lines);

impl Adds for Counted {
    fn journal(&mut self, _: &Line) -> Result<()> {
        self.0.journal += 1;
        Ok(())
    }

    fn metrics(&mut self, _: &str) -> Result<()> {
        self.0.metrics += 1;
        Ok(())
    }
}

impl Inspection {
    /// Reads a run's folder and changes nothing; none where nothing was kept yet.
    pub fn of(folder: &Path) -> Result<Option<Self>> {
        let log = wal_path(folder);
        if !Store::has_checkpoint(folder) {
            let logged = std::fs::metadata(&log).is_ok_and(|found| found.len() > Wal::EMPTY_BYTES);
            if logged || has_exchanges(&folder.join("journal"))? {
                let left = if logged { "log" } else { "journal with exchanges" };
                let what = format!(
                    "it is gone, and a {left} is beside it: without the checkpoint nothing can be kept; \
                     restore the folder from a copy"
                );
                return Err(Error::storage(
                    folder.join("checkpoint").join("state").display(),
                    what,
                ));
            }
            return Ok(None);
        }
        let (lines, mut checkpoint) = Store::read(folder)?;
        let checkpoint_round = checkpoint.runner.state.round();
        let (mut counted, mut records, mut faults) = (Counted(lines), 0, Vec::new());
        let mut log_bytes = 0;
        if log.exists() {
            let (wal, damage) = Wal::read(&log, |record| {
                records += 1;
                apply(record, &mut checkpoint, &mut counted)
            })?;
            log_bytes = wal.bytes();
            faults.extend(damage.map(|damage| format!("{}: {damage}", log.display())));
        } else {
            faults.push(format!("{}: it is gone", log.display()));
        }
        let journal = read_lines(&folder.join("journal"))?;
        let metrics = read_lines(&folder.join("metrics.jsonl"))?;
        let mut found = Self {
            stage: checkpoint.stage,
            checkpoint_round,
            exchanges: checkpoint.runner.state.exchanges(),
            round: checkpoint.runner.state.round(),
            records,
            log_bytes,
            lines: (journal.len() as u64, metrics.len() as u64),
            journal_round: None,
            faults,
        };
        found.compare("journal", journal.len() as u64, lines.journal);
        if let Some(counted_on) = journal.get(..lines.journal as usize) {
            let mut sum = crc32fast::Hasher::new();
            counted_on.iter().for_each(|line| sum.update(format!("{line}\n").as_bytes()));
            if sum.finalize() != lines.journal_sum {
                found.faults.push(format!("journal: {DAMAGED_JOURNAL}"));
            }
        }
        found.compare("metrics.jsonl", metrics.len() as u64, lines.metrics);
        // A stage that begins writes its line before its checkpoint; everything else is logged first.
        let beyond = journal.iter().skip(counted.0.journal as usize);
        let mut exchanges = beyond.filter_map(|line| match Line::parse(line) {
            Ok(Line::Exchange(entry)) => Some(entry),
            _ => None,
        });
        if let Some(last) = exchanges.next_back() {
            found.journal_round = last.round.or(Some(found.round));
            found.faults.push(format!(
                "{}: it lost its end: the journal knows of exchange {}, checkpoint and log of {}",
                log.display(),
                last.exchange + 1,
                found.exchanges
            ));
        }
        Ok(Some(found))
    }

    fn compare(&mut self, file: &str, has: u64, counted_on: u64) {
        if has < counted_on {
            let what = format!(
                "{file}: it has {has} lines, and the checkpoint was made after {counted_on}"
            );
            self.faults.push(what);
        }
    }

    /// Refuses a run that is not whole.
    pub fn whole(&self, folder: &Path) -> Result<()> {
        match self.faults.first() {
            None => Ok(()),
            Some(fault) => Err(Error::storage(
                folder.display(),
                format!(
                    "the run is damaged: {fault}\nhint: restore the folder from a copy, or see what \
                     `whimbrel repair` can keep (up to round {})",
                    self.round
                ),
            )),
        }
    }
}

/// What a repair did.
pub struct Repaired {
    /// Where the files are as they were.
    pub kept_aside: PathBuf,
    /// The stage and the round that it goes on from.
    pub stage: u32,
    /// The round.
    pub round: u32,
}

/// Keeps what can be read: checkpoint and log up to the damage. Clients that stand beyond it begin
/// anew in this stage, so that all do: `leave` takes them out of the state. The files are kept aside
/// as they were.
pub fn repair(
    folder: &Path,
    leave: impl FnOnce(&mut Checkpoint) -> Result<()>,
) -> Result<Repaired> {
    let _lock = FolderLock::take(folder)?;
    let found = Inspection::of(folder)?.map(|found| found.faults).unwrap_or_default();
    if let Some(fault) = found.iter().find(|fault| fault.starts_with("journal: ")) {
        let what =
            format!("{fault}; without it nothing can be repaired: restore the folder from a copy");
        return Err(Error::storage(folder.display(), what));
    }
    let (lines, mut checkpoint) = Store::read(folder)?;
    let log = wal_path(folder);
    let apply_log = |checkpoint: &mut Checkpoint, files: &mut dyn Adds| match log.exists() {
        true => Wal::read(&log, |record| apply(record, checkpoint, files)).map(drop),
        false => Ok(()),
    };
    // Everything that can fail for the content's sake fails before a file is touched.
    apply_log(&mut checkpoint, &mut Counted(lines))?;
    leave(&mut checkpoint)?;
    let kept_aside = set_aside(folder)?;
    let (mut store, mut readable) = Store::resume(folder)?;
    apply_log(&mut readable, &mut store)?;
    let (stage, repaired) = (checkpoint.stage, checkpoint.runner.state.exchanges());
    store.record(&Line::Repair(Repair { stage, repaired }))?;
    store.save_alone(&checkpoint)?;
    Wal::create(&log)?;
    Ok(Repaired { kept_aside, stage, round: checkpoint.runner.state.round() })
}

/// Copies the files of a run to a folder of their own.
fn set_aside(folder: &Path) -> Result<PathBuf> {
    let free = (1..).map(|n| folder.join(format!("damaged-{n}"))).find(|place| !place.exists());
    let place = free.ok_or_else(|| Error::internal("no free name"))?;
    let fault = |e: std::io::Error| Error::storage(place.display(), e);
    std::fs::create_dir(&place).map_err(fault)?;
    for name in ["checkpoint/state", "checkpoint/log", "journal", "metrics.jsonl"] {
        let file = name.rsplit('/').next().unwrap_or(name);
        match std::fs::copy(folder.join(name), place.join(file)) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(fault(e)),
            _ => {}
        }
    }
    Ok(place)
}

/// The whole lines of a file.
/// Whether a journal, if there is one, tells of an exchange: the first checkpoint is made before it.
fn has_exchanges(journal: &Path) -> Result<bool> {
    let lines = if journal.exists() { read_lines(journal)? } else { Vec::new() };
    Ok(lines.iter().any(|line| matches!(Line::parse(line), Ok(Line::Exchange(_)))))
}

fn read_lines(path: &Path) -> Result<Vec<String>> {
    let bytes = std::fs::read(path).map_err(|e| Error::storage(path.display(), e))?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    Ok(whole.map(str::to_owned).collect())
}
