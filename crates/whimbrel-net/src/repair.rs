//! Repair of a damaged run: keeps the readable prefix of its state.

use crate::durable_run::{apply, wal_path};
use crate::inspection::{Inspection, METRICS};
use crate::wal::Wal;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::{Checkpoint, Store, private_file};
use whimbrel_engine::journal::{Line, Repair};
use whimbrel_engine::lock::FolderLock;

/// A repair that was checked in full and can be carried out.
pub struct Repairable {
    pub inspection: Inspection,
    folder: PathBuf,
    checkpoint: Checkpoint,
    _lock: FolderLock,
}

/// The result of a repair.
pub struct Repaired {
    /// Folder with the original files.
    pub kept_aside: PathBuf,
    /// Stage and round from which the run resumes.
    pub stage: u32,
    pub round: u32,
}

impl Repairable {
    /// Reads checkpoint and log up to the damage, without changing them. Clients beyond that point
    /// must restart the stage, so all clients do: `leave` removes them from the state.
    pub fn of(folder: &Path, leave: impl FnOnce(&mut Checkpoint) -> Result<()>) -> Result<Self> {
        let lock = FolderLock::take(folder)?;
        let inspection = Inspection::of(folder)?;
        inspection.repairable(folder)?;
        let (_, mut checkpoint) = Store::read(folder)?;
        apply_log(folder, &mut checkpoint, None)?;
        leave(&mut checkpoint)?;
        Ok(Self { inspection, folder: folder.to_path_buf(), checkpoint, _lock: lock })
    }

    /// Whether `metrics.jsonl` is lost and starts empty.
    pub fn begins_metrics(&self) -> bool {
        self.inspection.faults.iter().any(|fault| fault.file == METRICS)
    }

    /// Copies the original files to a new folder and writes the readable prefix.
    pub fn repair(self) -> Result<Repaired> {
        let folder = &self.folder;
        let kept_aside = set_aside(folder)?;
        let (mut store, mut readable) = if self.begins_metrics() {
            Store::resume_without_metrics(folder)?
        } else {
            Store::resume(folder)?
        };
        apply_log(folder, &mut readable, Some(&mut store))?;
        let (stage, state) = (self.checkpoint.stage, &self.checkpoint.runner.state);
        store.record(&Line::Repair(Repair { stage, repaired: state.exchanges() }))?;
        store.save(&self.checkpoint, None)?;
        Wal::create(&wal_path(folder))?;
        Ok(Repaired { kept_aside, stage, round: state.round() })
    }
}

/// Applies the readable records, and writes their lines where there is a store.
fn apply_log(
    folder: &Path,
    checkpoint: &mut Checkpoint,
    mut store: Option<&mut Store>,
) -> Result<()> {
    let log = wal_path(folder);
    if !log.exists() {
        return Ok(());
    }
    let read = Wal::inspect(&log, |record| {
        let added = apply(record, checkpoint)?;
        store.as_deref_mut().map_or(Ok(()), |store| added.write(store))
    });
    read.map(drop)
}

/// Copies the files of a run to a new folder that only its owner can read.
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
