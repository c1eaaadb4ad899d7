//! Files of a run that must survive a crash: the checkpoint, the journal and the metrics.
//!
//! A checkpoint replaces the previous one atomically (temporary file, fsync, rename, fsync of the
//! folder). Journal and metrics are made durable before it. The checkpoint stores the number of
//! their lines, to which they are truncated after a crash. Nothing in a checkpoint depends on the
//! clock, so equal runs have equal checkpoints.

use crate::journal::Line;
use crate::keeper::Progress;
use crate::log::{Log, Summed, whole_line, whole_lines};
use crate::metrics::{Latest, Row, sum_line};
use crate::runner::{SavedStage, StageState, Tally, Traffic};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use whimbrel_core::Measure;
use whimbrel_core::method::Artifact;
use whimbrel_core::wire::{cut, put_varint};
use whimbrel_core::{Error, Result, Wire, wire};

const MAGIC: &[u8; 8] = b"WHIMBREL";
const VERSION: u32 = 6;
/// A checkpoint is written in pieces of about this size.
const PIECE_BYTES: usize = 1 << 20;
/// Clients whose states are serialised at a time.
const CLIENTS_TOGETHER: usize = 8192;

/// Everything needed to resume.
#[derive(Clone, PartialEq, Debug)]
pub struct Checkpoint {
    /// The current stage, from zero.
    pub stage: u32,
    /// The artifacts of the stages before.
    pub delivered: Vec<Artifact>,
    /// Bytes of the stages before.
    pub earlier: Earlier,
    /// The state of the current stage.
    pub runner: SavedStage,
    pub evaluated: Option<u32>,
    /// The best objective so far, and the number of evaluations since.
    pub patience: Option<(f64, u32)>,
    /// Number of uploads accepted in the last round.
    pub accepted: u32,
    /// Whether the stage is over.
    pub finished: bool,
    /// The text of the stopping rule that ended the stage.
    pub stopped: Option<String>,
    pub latest: Option<Latest>,
}

wire!(Checkpoint {
    stage,
    delivered,
    earlier,
    runner,
    evaluated,
    patience,
    accepted,
    finished,
    stopped,
    latest
});

impl Checkpoint {
    /// The state of the loop between exchanges.
    pub(crate) fn progress(&self) -> Progress {
        let Self { evaluated, patience, accepted, finished, .. } = *self;
        Progress { evaluated, patience, accepted, finished }
    }
}

/// Costs of the stages before the current one.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Earlier {
    pub traffic: Traffic,
    /// Per client; empty during the first stage.
    pub tallies: Vec<Tally>,
}

wire!(Earlier { traffic, tallies });

impl Earlier {
    /// The bytes of each client so far; rounds are those of the current stage.
    pub fn with(&self, current: &[Tally]) -> Vec<Tally> {
        let mut all = current.to_vec();
        for (now, before) in all.iter_mut().zip(&self.tallies) {
            now.bytes_up += before.bytes_up;
            now.bytes_down += before.bytes_down;
        }
        all
    }
}

/// The message for a file whose lines differ from those at the checkpoint.
const OTHER_LINES: &str = "it is damaged: its lines are not those that the checkpoint counts on";
const JOURNAL: &str = "journal";
const METRICS: &str = "metrics.jsonl";

/// The declarations of the figures in `metrics.jsonl`.
pub const MEASURES: &str = "measures.json";
const MEASURES_VERSION: u32 = 1;

/// The content of `measures.json`.
pub fn measures_to_json(measures: &[Measure]) -> Result<Vec<u8>> {
    let content = serde_json::json!({ "version": MEASURES_VERSION, "measures": measures });
    serde_json::to_vec_pretty(&content).map_err(|e| Error::internal(e.to_string()))
}

/// Parses `measures.json`; `None` for another version.
pub fn measures_from_json(bytes: &[u8]) -> Option<Vec<Measure>> {
    #[derive(serde::Deserialize)]
    struct Content {
        version: u32,
        measures: Vec<Measure>,
    }
    let content: Content = serde_json::from_slice(bytes).ok()?;
    (content.version == MEASURES_VERSION).then_some(content.measures)
}

/// The files, in one run's folder.
pub struct Store {
    folder: PathBuf,
    journal: Log,
    metrics: Log,
}

/// The lines of journal and metrics at a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lines {
    pub journal: u64,
    pub metrics: u64,
    /// CRC-32 of the journal.
    pub journal_sum: u32,
    /// CRC-32 of the metrics without their seconds.
    pub metrics_sum: u32,
}

wire!(Lines { journal, metrics, journal_sum, metrics_sum });

/// A file with its lines at a checkpoint.
struct Counted {
    file: &'static str,
    lines: u64,
    sum: u32,
    summed: Summed,
}

impl Lines {
    /// The faults of the journal and of the metrics in a folder.
    pub fn faults(&self, folder: &Path) -> Result<[Option<String>; 2]> {
        Ok([self.of_journal().fault(folder)?, self.of_metrics().fault(folder)?])
    }

    fn of_journal(&self) -> Counted {
        let (lines, sum) = (self.journal, self.journal_sum);
        Counted { file: JOURNAL, lines, sum, summed: whole_line }
    }

    fn of_metrics(&self) -> Counted {
        let (lines, sum) = (self.metrics, self.metrics_sum);
        Counted { file: METRICS, lines, sum, summed: sum_line }
    }
}

impl Counted {
    fn fault(&self, folder: &Path) -> Result<Option<String>> {
        let path = folder.join(self.file);
        let bytes = match fs::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Some("it is gone".into())),
            read => read.map_err(|e| Error::storage(path.display(), e))?,
        };
        let (mut found, mut sum) = (0, crc32fast::Hasher::new());
        for line in whole_lines(&bytes).take(self.lines as usize) {
            found += 1;
            (self.summed)(line, &mut sum);
        }
        if found < self.lines {
            return Ok(Some(fewer(found, self.lines)));
        }
        Ok((sum.finalize() != self.sum).then(|| OTHER_LINES.into()))
    }

    fn resume(&self, folder: &Path) -> Result<Log> {
        let path = folder.join(self.file);
        let log = Log::resume(path.clone(), self.lines, self.summed)?;
        if log.sum() != self.sum {
            return Err(Error::storage(path.display(), OTHER_LINES));
        }
        Ok(log)
    }
}

/// The message for a file with fewer lines than at the checkpoint.
pub(crate) fn fewer(found: u64, lines: u64) -> String {
    format!("it has {found} lines, and the checkpoint was made after {lines}")
}

impl Store {
    /// Creates empty files and removes those of an earlier run.
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder.join("checkpoint"))
            .map_err(|e| Error::storage(folder.display(), e))?;
        let stale = checkpoint_path(folder);
        match fs::remove_file(&stale) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(Error::storage(stale.display(), e));
            }
            _ => {}
        }
        let journal = Log::create(folder.join(JOURNAL), whole_line)?;
        let metrics = Log::create(folder.join(METRICS), sum_line)?;
        sync_folder(folder).map_err(|e| Error::storage(folder.display(), e))?;
        Ok(Self { folder: folder.to_path_buf(), journal, metrics })
    }

    /// Opens the files of an interrupted run and truncates them to its checkpoint.
    pub fn resume(folder: &Path) -> Result<(Self, Checkpoint)> {
        let (lines, checkpoint) = Self::read(folder)?;
        let (journal, metrics) =
            (lines.of_journal().resume(folder)?, lines.of_metrics().resume(folder)?);
        Ok((Self { folder: folder.to_path_buf(), journal, metrics }, checkpoint))
    }

    /// [`Store::resume`] with lost metrics, which start empty: no computation depends on them.
    pub fn resume_without_metrics(folder: &Path) -> Result<(Self, Checkpoint)> {
        let (lines, checkpoint) = Self::read(folder)?;
        let journal = lines.of_journal().resume(folder)?;
        let metrics = Log::create(folder.join(METRICS), sum_line)?;
        Ok((Self { folder: folder.to_path_buf(), journal, metrics }, checkpoint))
    }

    /// Reads the checkpoint of a folder and the lines of journal and metrics at that time.
    pub fn read(folder: &Path) -> Result<(Lines, Checkpoint)> {
        let path = checkpoint_path(folder);
        let bytes = fs::read(&path).map_err(|e| Error::storage(path.display(), e))?;
        decode(&bytes).map_err(|e| {
            Error::storage(path.display(), format!("the checkpoint cannot be used: {e}"))
                .hint("restore the folder from a copy, or start a new run")
        })
    }

    /// Whether the folder holds a checkpoint.
    pub fn has_checkpoint(folder: &Path) -> bool {
        checkpoint_path(folder).is_file()
    }

    /// Appends to the journal.
    pub fn record(&mut self, line: &Line) -> Result<()> {
        self.journal.append(&line.to_text())
    }

    /// Writes the declarations of figures beside the metrics; none for a stage without.
    pub fn declare(&self, measures: &[Measure]) -> Result<()> {
        if measures.is_empty() {
            return Ok(());
        }
        write_atomically(&self.folder.join(MEASURES), &measures_to_json(measures)?)
    }

    /// Appends one evaluation to the metrics without buffering, for those who follow the file.
    pub fn evaluated(&mut self, row: &Row) -> Result<()> {
        self.evaluated_line(&format!("{}\n", serde_json::Value::Object(row.to_json())))
    }

    /// [`Store::evaluated`] for a formatted line with its line break.
    pub fn evaluated_line(&mut self, line: &str) -> Result<()> {
        self.metrics.append(line)?;
        self.metrics.flush()
    }

    /// Makes journal and metrics durable, then the checkpoint. Client states are taken from `stage`
    /// as they are written; without it, clients keep their own.
    pub fn save(&mut self, without_clients: &Checkpoint, stage: Option<&StageState>) -> Result<()> {
        self.flush()?;
        let lines = Lines {
            journal: self.journal.lines(),
            metrics: self.metrics.lines(),
            journal_sum: self.journal.sum(),
            metrics_sum: self.metrics.sum(),
        };
        let path = checkpoint_path(&self.folder);
        write_privately_with(&path, |out| encode(lines, without_clients, stage, out))
    }

    /// Makes journal and metrics durable.
    pub fn flush(&mut self) -> Result<()> {
        self.journal.sync()?;
        self.metrics.sync()
    }
}

/// Replaces a file atomically.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    write_atomically_with(path, |out| out.write_all(bytes))
}

/// [`write_atomically`] in pieces.
pub fn write_atomically_with(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<()> {
    replace(path, |beside| File::create(beside), write)
}

/// [`write_atomically`] for a file that only its owner can read, under every umask.
pub fn write_privately(path: &Path, bytes: &[u8]) -> Result<()> {
    write_privately_with(path, |out| out.write_all(bytes))
}

/// [`write_privately`] in pieces.
pub fn write_privately_with(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<()> {
    let create = |beside: &Path| {
        let file = private_file().write(true).create(true).truncate(true).open(beside)?;
        // One that a crash left may have another mode.
        #[cfg(unix)]
        if file.metadata()?.is_file() {
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        }
        Ok(file)
    };
    replace(path, create, write)
}

/// Options of a file that only its owner can read.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn replace(
    path: &Path,
    create: impl FnOnce(&Path) -> std::io::Result<File>,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    let beside = path.with_file_name(name);
    let written = create(&beside).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
        fs::rename(&beside, path)?;
        match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => sync_folder(folder),
            _ => Ok(()),
        }
    });
    written.map_err(|e| {
        // The half-written file is of no use; that it could not be removed either adds nothing.
        let _ = fs::remove_file(&beside);
        Error::storage(path.display(), e)
    })
}

/// Makes the entries of a folder durable.
pub fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

fn checkpoint_path(folder: &Path) -> PathBuf {
    folder.join("checkpoint").join("state")
}

/// Writes the same bytes as `put`, in pieces: a checkpoint of a million clients has gigabytes.
fn encode(
    lines: Lines,
    checkpoint: &Checkpoint,
    stage: Option<&StageState>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let mut sum = crc32fast::Hasher::new();
    let mut piece = MAGIC.to_vec();
    let mut flush = |piece: &mut Vec<u8>| {
        sum.update(piece);
        out.write_all(piece)?;
        piece.clear();
        std::io::Result::Ok(())
    };
    VERSION.put(&mut piece);
    lines.put(&mut piece);
    let SavedStage { state, tallies, traffic, .. } = &checkpoint.runner;
    checkpoint.stage.put(&mut piece);
    checkpoint.delivered.put(&mut piece);
    checkpoint.earlier.put(&mut piece);
    state.put(&mut piece);
    let clients = stage.map_or(0, |stage| stage.clients.len());
    put_varint(clients as u64, &mut piece);
    for first in (0..clients).step_by(CLIENTS_TOGETHER) {
        let ids = first..clients.min(first + CLIENTS_TOGETHER);
        for client in stage.map_or_else(Vec::new, |stage| stage.save_clients(ids)) {
            client.put(&mut piece);
            if piece.len() >= PIECE_BYTES {
                flush(&mut piece)?;
            }
        }
    }
    tallies.put(&mut piece);
    traffic.put(&mut piece);
    checkpoint.evaluated.put(&mut piece);
    checkpoint.patience.put(&mut piece);
    checkpoint.accepted.put(&mut piece);
    checkpoint.finished.put(&mut piece);
    checkpoint.stopped.put(&mut piece);
    checkpoint.latest.put(&mut piece);
    flush(&mut piece)?;
    out.write_all(&sum.finalize().to_le_bytes())
}

fn decode(bytes: &[u8]) -> Result<(Lines, Checkpoint)> {
    let Some((body, sum)) = bytes.split_last_chunk::<4>() else {
        return Err(Error::peer("it is too short"));
    };
    let mut rest = body;
    if cut(&mut rest, MAGIC.len())? != MAGIC {
        return Err(Error::peer("it does not begin with the mark of a checkpoint"));
    }
    let version = u32::take(&mut rest)?;
    if version != VERSION {
        return Err(Error::peer(format!("it has version {version}, this program reads {VERSION}")));
    }
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(Error::peer("it is damaged or cut short (its checksum does not match)"));
    }
    Ok((Lines::take(&mut rest)?, Checkpoint::from_bytes(rest)?))
}
