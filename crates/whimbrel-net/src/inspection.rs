//! Inspection of a served run's files.
//!
//! Checkpoint, log, journal and metrics vouch for each other: the checkpoint holds the number and
//! the checksum of the journal and metrics lines that it covers, each record of the log adds lines,
//! and a line is written only after its record is durable. Therefore a damaged or truncated log is
//! detected, and so is a missing checkpoint.

use crate::durable_run::{apply, wal_path};
use crate::registry::{Registry, unhex};
use crate::tls::Identity;
use crate::wal::Wal;
use std::io::ErrorKind;
use std::path::Path;
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::{Checkpoint, Lines, Store};
use whimbrel_engine::journal::{Entry, Line};

/// The result of an inspection.
#[derive(Clone, PartialEq, Debug)]
pub struct Inspection {
    /// State in checkpoint and log; `None` before the first checkpoint, or if it is lost.
    pub kept: Option<Kept>,
    pub faults: Vec<Fault>,
}

/// Position and sizes of the state in checkpoint and log.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Kept {
    /// The stage under way, from zero.
    pub stage: u32,
    /// Rounds of the stage in the checkpoint alone.
    pub checkpoint_round: u32,
    /// Exchanges and rounds of the stage, with the log.
    pub exchanges: u32,
    pub round: u32,
    /// Readable records of the log, and its bytes.
    pub records: u64,
    pub log_bytes: u64,
    /// Lines of journal and metrics.
    pub lines: (u64, u64),
    /// The last round in the journal, if it is beyond checkpoint and log.
    pub journal_round: Option<u32>,
}

/// A damaged or missing file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Path in the run's folder.
    pub file: &'static str,
    pub what: String,
    pub remedy: Remedy,
}

/// The remedy of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// Resuming the run writes the file again.
    Resume,
    /// `whimbrel repair`, which loses rounds.
    Repair,
    /// A backup of the folder.
    Copy,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.file, self.what)?;
        match self.remedy {
            Remedy::Resume => f.write_str("; resuming writes it again"),
            Remedy::Repair | Remedy::Copy => Ok(()),
        }
    }
}

const STATE: &str = "checkpoint/state";
const LOG: &str = "checkpoint/log";
const LIST: &str = "federation.json";
pub(crate) const METRICS: &str = "metrics.jsonl";

/// Lines that the log adds to journal and metrics.
#[derive(Default)]
struct LoggedLines {
    journal: Vec<String>,
    metrics: Vec<String>,
}

impl Inspection {
    /// Reads the files that a run resumes from, without changing them.
    pub fn of(folder: &Path) -> Result<Self> {
        let mut found = Self { kept: None, faults: Vec::new() };
        if !Store::has_checkpoint(folder) {
            let log = std::fs::metadata(wal_path(folder));
            let left = if log.is_ok_and(|log| log.len() > Wal::EMPTY_BYTES) {
                Some("a log")
            } else {
                has_exchanges(folder)?.then_some("a journal with exchanges")
            };
            if let Some(left) = left {
                let what =
                    format!("it is missing although {left} exists: nothing can be recovered");
                found.fault(STATE, what, Remedy::Copy);
            }
            return Ok(found);
        }
        match Store::read(folder) {
            Ok((lines, checkpoint)) => found.read_state(folder, &lines, checkpoint)?,
            Err(error) => found.storage_fault(STATE, error)?,
        }
        Ok(found)
    }

    /// Reads these files and all others of a served run.
    pub fn of_all(folder: &Path) -> Result<Self> {
        let mut found = Self::of(folder)?;
        found.read_list(folder)?;
        found.read_results(folder)?;
        Ok(found)
    }

    /// Checkpoint, log, journal and metrics.
    fn read_state(&mut self, folder: &Path, lines: &Lines, mut state: Checkpoint) -> Result<()> {
        let mut kept = Kept {
            stage: state.stage,
            checkpoint_round: state.runner.state.round(),
            ..Kept::default()
        };
        let logged = self.read_log(folder, &mut state, &mut kept)?;
        (kept.exchanges, kept.round) = (state.runner.state.exchanges(), state.runner.state.round());
        let (journal, metrics) = (read_lines(folder, "journal")?, read_lines(folder, METRICS)?);
        kept.lines = (journal.len() as u64, metrics.len() as u64);
        let [journal_fault, metrics_fault] = lines.faults(folder)?;
        for (file, covered, found, logged, fault, remedy) in [
            ("journal", lines.journal, &journal, &logged.journal, journal_fault, Remedy::Copy),
            (METRICS, lines.metrics, &metrics, &logged.metrics, metrics_fault, Remedy::Repair),
        ] {
            let mut both = found.iter().skip(covered as usize).zip(logged);
            if let Some(what) = fault {
                self.fault(file, what, remedy);
            } else if let Some(at) = both.position(|(found, logged)| found != logged) {
                let what = format!("line {} differs from the log", covered + at as u64 + 1);
                self.fault(file, what, Remedy::Resume);
            }
        }
        let known = lines.metrics + logged.metrics.len() as u64;
        let beyond = &journal[journal.len().min(lines.journal as usize + logged.journal.len())..];
        self.check_ends(&mut kept, beyond, known);
        self.kept = Some(kept);
        Ok(())
    }

    /// Applies the readable records of the log to the checkpoint.
    fn read_log(
        &mut self,
        folder: &Path,
        state: &mut Checkpoint,
        kept: &mut Kept,
    ) -> Result<LoggedLines> {
        let (path, mut logged) = (wal_path(folder), LoggedLines::default());
        if !path.exists() {
            self.fault(LOG, "it is missing".into(), Remedy::Repair);
            return Ok(logged);
        }
        let read = Wal::inspect(&path, |record| {
            kept.records += 1;
            let added = apply(record, state)?;
            logged.journal.extend(added.journal.map(|line| line.to_text()));
            logged.metrics.extend(added.metrics);
            Ok(())
        });
        match read {
            Ok((bytes, damage)) => {
                kept.log_bytes = bytes;
                if let Some(damage) = damage {
                    self.fault(LOG, damage.to_string(), Remedy::Repair);
                }
            }
            Err(Error::Storage { what, .. }) => self.fault(LOG, what, Remedy::Copy),
            Err(error) => return Err(error),
        }
        Ok(logged)
    }

    /// Compares the ends of journal and metrics with checkpoint and log, which know `known` lines of
    /// metrics; `beyond` are the journal's further lines. A new stage writes its line before its
    /// checkpoint; everything else is logged first.
    fn check_ends(&mut self, kept: &mut Kept, beyond: &[String], known: u64) {
        let evaluations = kept.lines.1;
        if let Some(last) = beyond.iter().rev().find_map(|line| exchange(line)) {
            kept.journal_round = last.round.or(Some(kept.round));
            let what = format!(
                "it lost its end: the journal has exchange {}, checkpoint and log {}",
                last.exchange + 1,
                kept.exchanges
            );
            self.fault(LOG, what, Remedy::Repair);
        } else if evaluations < known && self.faults.iter().all(|fault| fault.file != METRICS) {
            let what = format!("it has {evaluations} lines, checkpoint and log {known}");
            self.fault(METRICS, what, Remedy::Resume);
        } else if evaluations > known {
            let what = format!(
                "it lost its end: metrics.jsonl has {evaluations} evaluations, checkpoint and log {known}"
            );
            self.fault(LOG, what, Remedy::Repair);
        }
    }

    /// The list of clients and the coordinator's identity.
    fn read_list(&mut self, folder: &Path) -> Result<()> {
        if !Registry::exists(folder) {
            self.fault(LIST, "it is missing".into(), Remedy::Copy);
            return Ok(());
        }
        let list = match Registry::inspect(folder) {
            Ok((list, fault)) => {
                if let Some(fault) = fault {
                    self.fault(fault.file(), fault.what().into(), Remedy::Copy);
                }
                list
            }
            Err(error) => return self.storage_fault(LIST, error),
        };
        if list.brought {
            return Ok(());
        }
        let file = "tls/identity";
        match Identity::kept(&folder.join("tls")) {
            Ok(Some(kept)) if kept.fingerprint() == unhex(&list.certificate) => {}
            Ok(Some(_)) => {
                let what = "it differs from the certificate that invitations name";
                self.fault(file, what.into(), Remedy::Copy);
            }
            Ok(None) => self.fault(file, LOST_IDENTITY.into(), Remedy::Copy),
            Err(error) => self.storage_fault(file, error)?,
        }
        Ok(())
    }

    /// Files written at the end. They have no checksums, so only their form is checked.
    fn read_results(&mut self, folder: &Path) -> Result<()> {
        for (file, remedy) in [
            ("measures.json", Remedy::Resume),
            ("status.json", Remedy::Resume),
            ("summary.json", Remedy::Copy),
            ("exhibits.json", Remedy::Copy),
            ("model/model.json", Remedy::Copy),
            ("model/model.safetensors", Remedy::Copy),
        ] {
            let is_whole = if file.ends_with(".json") { is_json } else { is_tensors };
            let path = folder.join(file);
            match std::fs::read(&path) {
                Ok(bytes) if is_whole(&bytes) => {}
                Ok(_) => self.fault(file, "it is damaged or cut short".into(), remedy),
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(Error::storage(path.display(), e)),
            }
        }
        Ok(())
    }

    fn fault(&mut self, file: &'static str, what: String, remedy: Remedy) {
        self.faults.push(Fault { file, what, remedy });
    }

    /// Records a file that cannot be read, without the error's hint; other errors are passed on.
    fn storage_fault(&mut self, file: &'static str, error: Error) -> Result<()> {
        let Error::Storage { what, .. } = error else { return Err(error) };
        self.fault(file, what.lines().next().unwrap_or_default().into(), Remedy::Copy);
        Ok(())
    }

    /// Refuses a run that cannot be resumed without repair.
    pub fn whole(&self, folder: &Path) -> Result<()> {
        let Some(fault) = self.faults.iter().find(|fault| fault.remedy != Remedy::Resume) else {
            return Ok(());
        };
        let hint = match (self.lost(), &self.kept) {
            (None, Some(kept)) => format!(
                "restore the folder from a copy, or run `whimbrel repair`, which can keep the run up \
                 to round {}",
                kept.round
            ),
            _ => "restore the folder from a copy; `whimbrel verify` checks all of it".into(),
        };
        Err(Error::storage(folder.display(), format!("the run is damaged: {fault}\nhint: {hint}")))
    }

    /// Refuses a run that needs a backup.
    pub fn repairable(&self, folder: &Path) -> Result<()> {
        let Some(fault) = self.lost() else { return Ok(()) };
        let what = format!("it cannot be repaired: {fault}\nhint: restore the folder from a copy");
        Err(Error::storage(folder.display(), what))
    }

    fn lost(&self) -> Option<&Fault> {
        self.faults.iter().find(|fault| fault.remedy == Remedy::Copy)
    }
}

/// Message about a lost identity.
pub const LOST_IDENTITY: &str =
    "it is missing: the coordinator lost its identity, and clients accept no other";

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(bytes).is_ok()
}

/// Whether bytes have the form of a safetensors file: a header and the number of bytes it states.
fn is_tensors(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return false };
    let Ok(length) = usize::try_from(u64::from_le_bytes(*length)) else { return false };
    let Some((head, data)) = rest.split_at_checked(length) else { return false };
    let Ok(head) = serde_json::from_slice::<serde_json::Map<_, serde_json::Value>>(head) else {
        return false;
    };
    let ends = head.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    ends.max().unwrap_or(0) == data.len() as u64
}

/// Whether the journal contains an exchange; the first checkpoint precedes it.
fn has_exchanges(folder: &Path) -> Result<bool> {
    Ok(read_lines(folder, "journal")?.iter().any(|line| exchange(line).is_some()))
}

fn exchange(line: &str) -> Option<Entry> {
    match Line::parse(line.trim_end()) {
        Ok(Line::Exchange(entry)) => Some(entry),
        _ => None,
    }
}

/// The complete lines of a file, with their ends; empty for a missing file.
fn read_lines(folder: &Path, file: &str) -> Result<Vec<String>> {
    let path = folder.join(file);
    let bytes = match std::fs::read(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        read => read.map_err(|e| Error::storage(path.display(), e))?,
    };
    let text = String::from_utf8_lossy(&bytes);
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    Ok(whole.map(str::to_owned).collect())
}
