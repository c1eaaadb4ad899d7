//! Keeping what can be read of a damaged run.

use crate::durable_run::{Adds, apply, wal_path};
use crate::inspection::{Inspection, METRICS};
use crate::wal::Wal;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::{Checkpoint, Store, private_file};
use whimbrel_engine::journal::{Line, Repair};
use whimbrel_engine::lock::FolderLock;

/// A repair that can be made: everything that can fail for the content's sake was tried.
pub struct Repairable {
    /// What was found.
    pub inspection: Inspection,
    folder: PathBuf,
    checkpoint: Checkpoint,
    _lock: FolderLock,
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

/// Lines that are not written.
struct Nowhere;

impl Adds for Nowhere {
    fn journal(&mut self, _: &Line) -> Result<()> {
        Ok(())
    }

    fn metrics(&mut self, _: &str) -> Result<()> {
        Ok(())
    }
}

impl Repairable {
    /// Reads checkpoint and log up to the damage, and changes nothing. Clients that stand beyond it
    /// begin anew in this stage, so that all do: `leave` takes them out of the state.
    pub fn of(folder: &Path, leave: impl FnOnce(&mut Checkpoint) -> Result<()>) -> Result<Self> {
        let lock = FolderLock::take(folder)?;
        let inspection = Inspection::of(folder)?;
        inspection.repairable(folder)?;
        let (_, mut checkpoint) = Store::read(folder)?;
        apply_log(folder, &mut checkpoint, &mut Nowhere)?;
        leave(&mut checkpoint)?;
        Ok(Self { inspection, folder: folder.to_path_buf(), checkpoint, _lock: lock })
    }

    /// Whether the figures of evaluations are lost, and begin anew.
    pub fn begins_metrics(&self) -> bool {
        self.inspection.faults.iter().any(|fault| fault.file == METRICS)
    }

    /// Keeps what can be read; the files are kept aside as they were.
    pub fn repair(self) -> Result<Repaired> {
        let folder = &self.folder;
        let kept_aside = set_aside(folder)?;
        let (mut store, mut readable) = match self.begins_metrics() {
            true => Store::resume_without_metrics(folder)?,
            false => Store::resume(folder)?,
        };
        apply_log(folder, &mut readable, &mut store)?;
        let (stage, state) = (self.checkpoint.stage, &self.checkpoint.runner.state);
        store.record(&Line::Repair(Repair { stage, repaired: state.exchanges() }))?;
        store.save(&self.checkpoint, None)?;
        Wal::create(&wal_path(folder))?;
        Ok(Repaired { kept_aside, stage, round: state.round() })
    }
}

fn apply_log(folder: &Path, checkpoint: &mut Checkpoint, files: &mut dyn Adds) -> Result<()> {
    let log = wal_path(folder);
    match log.exists() {
        true => Wal::inspect(&log, |record| apply(record, checkpoint, files)).map(drop),
        false => Ok(()),
    }
}

/// Copies the files of a run to a folder of their own, which its owner alone can read.
fn set_aside(folder: &Path) -> Result<PathBuf> {
    let free = (1..).map(|n| folder.join(format!("damaged-{n}"))).find(|place| !place.exists());
    let place = free.ok_or_else(|| Error::internal("no free name"))?;
    let fault = |e: std::io::Error| Error::storage(place.display(), e);
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&place).map_err(fault)?;
    for name in ["checkpoint/state", "checkpoint/log", "journal", "metrics.jsonl"] {
        let file = name.rsplit('/').next().unwrap_or(name);
        let mut from = match std::fs::File::open(folder.join(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            opened => opened.map_err(fault)?,
        };
        let to = private_file().write(true).create_new(true).open(place.join(file));
        let copied = to.and_then(|mut to| std::io::copy(&mut from, &mut to));
        copied.map_err(fault)?;
    }
    Ok(place)
}
