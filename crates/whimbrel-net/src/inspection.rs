//! Whether what a coordinator left is whole, and what is wrong where it is not.
//!
//! Checkpoint, log, journal and metrics vouch for each other: the checkpoint says how many lines of
//! journal and metrics it counts on and their checksums, each record of the log adds lines, and no
//! line is written before its record is durable. A log that is damaged or lost its end is therefore
//! noticed, and so is a checkpoint that is gone.

use crate::durable_run::{Adds, apply, wal_path};
use crate::registry::Registry;
use crate::tls::Identity;
use crate::wal::Wal;
use std::io::ErrorKind;
use std::path::Path;
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::{Checkpoint, Lines, Store};
use whimbrel_engine::journal::Line;

/// What was found in a run's folder.
#[derive(Clone, PartialEq, Debug)]
pub struct Inspection {
    /// What checkpoint and log hold; none where nothing was kept yet, or the checkpoint is lost.
    pub kept: Option<Kept>,
    /// What is wrong.
    pub faults: Vec<Fault>,
}

/// What checkpoint and log hold.
#[derive(Clone, PartialEq, Debug)]
pub struct Kept {
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
}

/// A file that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Its name in the run's folder.
    pub file: &'static str,
    /// What is wrong with it.
    pub what: String,
    /// What helps.
    pub remedy: Remedy,
}

/// What helps against a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// Going on: the file is written again from another one.
    Resume,
    /// A repair, at a cost.
    Repair,
    /// A copy of the folder, and nothing else.
    Copy,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.file, self.what)?;
        match self.remedy {
            Remedy::Resume => f.write_str("; going on writes it again"),
            Remedy::Repair | Remedy::Copy => Ok(()),
        }
    }
}

const STATE: &str = "checkpoint/state";
const LOG: &str = "checkpoint/log";
pub(crate) const METRICS: &str = "metrics.jsonl";

/// Keeps the lines that a log adds without writing them.
#[derive(Default)]
struct Added {
    journal: Vec<String>,
    metrics: Vec<String>,
}

impl Adds for Added {
    fn journal(&mut self, line: &Line) -> Result<()> {
        self.journal.push(line.to_text());
        Ok(())
    }

    fn metrics(&mut self, line: &str) -> Result<()> {
        self.metrics.push(line.into());
        Ok(())
    }
}

impl Inspection {
    /// Reads what a run goes on from, and changes nothing.
    pub fn of(folder: &Path) -> Result<Self> {
        let mut found = Self { kept: None, faults: Vec::new() };
        if !Store::has_checkpoint(folder) {
            let logged = std::fs::metadata(wal_path(folder))
                .is_ok_and(|found| found.len() > Wal::EMPTY_BYTES);
            let left = match logged {
                true => Some("a log"),
                false => has_exchanges(folder)?.then_some("a journal with exchanges"),
            };
            if let Some(left) = left {
                let what =
                    format!("it is gone, and {left} is beside it: nothing can be kept without it");
                found.fault(STATE, what, Remedy::Copy);
            }
            return Ok(found);
        }
        match Store::read(folder) {
            Ok((lines, checkpoint)) => found.read(folder, lines, checkpoint)?,
            Err(Error::Storage { what, .. }) => found.fault(STATE, first_line(&what), Remedy::Copy),
            Err(error) => return Err(error),
        }
        Ok(found)
    }

    /// The same, and every other file of a served run that something depends on.
    pub fn of_all(folder: &Path) -> Result<Self> {
        let mut found = Self::of(folder)?;
        found.list(folder)?;
        found.results(folder)?;
        Ok(found)
    }

    /// Checkpoint, log, journal and metrics.
    fn read(&mut self, folder: &Path, lines: Lines, mut checkpoint: Checkpoint) -> Result<()> {
        let checkpoint_round = checkpoint.runner.state.round();
        let (mut added, mut records, mut log_bytes) = (Added::default(), 0, 0);
        let path = wal_path(folder);
        match path.exists() {
            true => {
                let read = Wal::inspect(&path, |record| {
                    records += 1;
                    apply(record, &mut checkpoint, &mut added)
                });
                match read {
                    Ok((bytes, None)) => log_bytes = bytes,
                    Ok((bytes, Some(damage))) => {
                        log_bytes = bytes;
                        self.fault(LOG, damage.to_string(), Remedy::Repair);
                    }
                    Err(Error::Storage { what, .. }) => self.fault(LOG, what, Remedy::Copy),
                    Err(error) => return Err(error),
                }
            }
            false => self.fault(LOG, "it is gone".into(), Remedy::Repair),
        }
        let [journal_fault, metrics_fault] = lines.faults(folder)?;
        let (journal, metrics) = (read_lines(folder, "journal")?, read_lines(folder, METRICS)?);
        let state = &checkpoint.runner.state;
        let mut kept = Kept {
            stage: checkpoint.stage,
            checkpoint_round,
            exchanges: state.exchanges(),
            round: state.round(),
            records,
            log_bytes,
            lines: (journal.len() as u64, metrics.len() as u64),
            journal_round: None,
        };
        for (file, counted, has, added, fault, remedy) in [
            ("journal", lines.journal, &journal, &added.journal, journal_fault, Remedy::Copy),
            (METRICS, lines.metrics, &metrics, &added.metrics, metrics_fault, Remedy::Repair),
        ] {
            match fault {
                Some(what) => self.fault(file, what, remedy),
                None => {
                    let behind = has.iter().skip(counted as usize).zip(added);
                    if let Some(at) = behind.into_iter().position(|(has, logged)| has != logged) {
                        let what =
                            format!("line {} is not what the log says", counted + at as u64 + 1);
                        self.fault(file, what, Remedy::Resume);
                    }
                }
            }
        }
        // A stage that begins writes its line before its checkpoint; everything else is logged first.
        let beyond = journal.iter().skip(lines.journal as usize + added.journal.len());
        let mut exchanges = beyond.filter_map(|line| match Line::parse(line.trim_end()) {
            Ok(Line::Exchange(entry)) => Some(entry),
            _ => None,
        });
        let (evaluations, known) =
            (metrics.len() as u64, lines.metrics + added.metrics.len() as u64);
        if let Some(last) = exchanges.next_back() {
            kept.journal_round = last.round.or(Some(kept.round));
            let what = format!(
                "it lost its end: the journal knows of exchange {}, checkpoint and log of {}",
                last.exchange + 1,
                kept.exchanges
            );
            self.fault(LOG, what, Remedy::Repair);
        } else if evaluations < known && self.faults.iter().all(|fault| fault.file != METRICS) {
            // Its lines are written at once, and those of the journal when there are many.
            let what =
                format!("it has {evaluations} lines, and checkpoint and log know of {known}");
            self.fault(METRICS, what, Remedy::Resume);
        } else if evaluations > known {
            let what = format!(
                "it lost its end: metrics.jsonl has {evaluations} evaluations, checkpoint and log {known}"
            );
            self.fault(LOG, what, Remedy::Repair);
        }
        self.kept = Some(kept);
        Ok(())
    }

    /// The list of clients and the coordinator's identity.
    fn list(&mut self, folder: &Path) -> Result<()> {
        if !Registry::exists(folder) {
            self.fault("federation.json", "it is gone".into(), Remedy::Copy);
            return Ok(());
        }
        let book = match Registry::inspect(folder) {
            Ok((book, fault)) => {
                if let Some(fault) = fault {
                    self.fault(fault.file(), fault.what().into(), Remedy::Copy);
                }
                book
            }
            Err(Error::Storage { what, .. }) => {
                self.fault("federation.json", first_line(&what), Remedy::Copy);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if book.brought {
            return Ok(());
        }
        let what = match Identity::kept(&folder.join("tls")) {
            Ok(Some(kept)) if kept.fingerprint() == crate::registry::unhex(&book.certificate) => {
                return Ok(());
            }
            Ok(Some(_)) => "it is another one than invitations name".into(),
            Ok(None) => LOST_IDENTITY.into(),
            Err(Error::Storage { what, .. }) => first_line(&what),
            Err(error) => return Err(error),
        };
        self.fault("tls/identity", what, Remedy::Copy);
        Ok(())
    }

    /// What is written at the end, by its form: it has no checksums.
    fn results(&mut self, folder: &Path) -> Result<()> {
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

    /// Refuses a run that cannot go on as it is.
    pub fn whole(&self, folder: &Path) -> Result<()> {
        let Some(fault) = self.faults.iter().find(|fault| fault.remedy != Remedy::Resume) else {
            return Ok(());
        };
        let hint = match (self.lost(), &self.kept) {
            (None, Some(kept)) => format!(
                "restore the folder from a copy, or see what `whimbrel repair` can keep (up to round {})",
                kept.round
            ),
            _ => "restore the folder from a copy; `whimbrel verify` reads all of it".into(),
        };
        Err(Error::storage(folder.display(), format!("the run is damaged: {fault}\nhint: {hint}")))
    }

    /// Refuses a run that no repair helps.
    pub fn repairable(&self, folder: &Path) -> Result<()> {
        match self.lost() {
            None => Ok(()),
            Some(fault) => {
                let what =
                    format!("it cannot be repaired: {fault}\nhint: restore the folder from a copy");
                Err(Error::storage(folder.display(), what))
            }
        }
    }

    fn lost(&self) -> Option<&Fault> {
        self.faults.iter().find(|fault| fault.remedy == Remedy::Copy)
    }
}

/// What is said of an identity that is gone.
pub const LOST_IDENTITY: &str =
    "it is gone: the coordinator lost its identity, and no client would come to another";

/// Without the hint behind it.
fn first_line(what: &str) -> String {
    what.lines().next().unwrap_or_default().into()
}

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(bytes).is_ok()
}

/// Whether bytes have the form of a safetensors file: a header, and as many bytes as it says.
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

/// Whether a journal, if there is one, tells of an exchange: the first checkpoint is made before it.
fn has_exchanges(folder: &Path) -> Result<bool> {
    let lines = read_lines(folder, "journal")?;
    Ok(lines.iter().any(|line| matches!(Line::parse(line.trim_end()), Ok(Line::Exchange(_)))))
}

/// The whole lines of a file, with their ends; none where it is gone.
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
