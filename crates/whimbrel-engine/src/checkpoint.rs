//! Files of a run that must survive a crash: the checkpoint, the journal and the metrics.
//!
//! A checkpoint replaces the one before it whole (write beside, fsync, rename, fsync the folder).
//! Journal and metrics are appended to; after a crash they are cut back to the checkpoint. Nothing
//! in a checkpoint depends on the clock, so equal runs have equal checkpoints.

use crate::journal::Entry;
use crate::metrics::Row;
use crate::simulator::{SavedSimulation, Traffic};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use whimbrel_core::method::Artifact;
use whimbrel_core::wire::cut;
use whimbrel_core::{Error, Result, Wire, wire};

const MAGIC: &[u8; 8] = b"WHIMBREL";
const VERSION: u32 = 1;

/// Everything needed to go on.
#[derive(Clone, PartialEq, Debug)]
pub struct Checkpoint {
    /// The stage under way, from zero.
    pub stage: u32,
    /// What the stages before it delivered.
    pub delivered: Vec<Artifact>,
    /// Bytes of the stages before it.
    pub earlier: Traffic,
    /// The stage's simulation.
    pub simulation: SavedSimulation,
    /// The last evaluated round.
    pub evaluated: Option<u32>,
    /// The best objective so far, and how many evaluations ago it was seen.
    pub patience: Option<(f64, u32)>,
    /// Whether the run is over.
    pub finished: bool,
}

wire!(Checkpoint { stage, delivered, earlier, simulation, evaluated, patience, finished });

/// The files, in one run's folder.
pub struct Store {
    folder: PathBuf,
    journal: BufWriter<File>,
    metrics: BufWriter<File>,
}

impl Store {
    /// Opens empty files.
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder.join("checkpoint"))
            .map_err(|e| Error::storage(folder.display(), e))?;
        Self::open(folder, |_| Ok(String::new()), |_| Ok(String::new()))
    }

    /// Opens what an interrupted run left and cuts it back to its checkpoint.
    pub fn resume(folder: &Path) -> Result<(Self, Checkpoint)> {
        let path = checkpoint_path(folder);
        let bytes = fs::read(&path).map_err(|e| Error::storage(path.display(), e))?;
        let checkpoint =
            decode(&bytes).map_err(|e| Error::storage(path.display(), format!("unusable: {e}")))?;
        let exchanges = checkpoint.simulation.machine.exchanges();
        let store = Self::open(
            folder,
            |text| keep_lines(text, |line| before(line, checkpoint.stage, exchanges)),
            |text| keep_lines(text, |line| evaluated_by(line, checkpoint.evaluated)),
        )?;
        Ok((store, checkpoint))
    }

    /// Whether the folder holds a checkpoint.
    pub fn has_checkpoint(folder: &Path) -> bool {
        checkpoint_path(folder).is_file()
    }

    /// Appends one exchange to the journal.
    pub fn record(&mut self, entry: &Entry) -> Result<()> {
        let line = entry.to_line();
        self.journal.write_all(line.as_bytes()).map_err(|e| self.failed("journal", e))
    }

    /// Appends one evaluation to the metrics.
    pub fn evaluated(&mut self, row: &Row) -> Result<()> {
        let line = format!("{}\n", serde_json::Value::Object(row.to_json()));
        let written = self.metrics.write_all(line.as_bytes()).and_then(|()| self.metrics.flush());
        written.map_err(|e| self.failed("metrics.jsonl", e))
    }

    /// Makes everything durable: journal and metrics first, then the checkpoint that counts on
    /// them.
    pub fn save(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        self.flush()?;
        write_atomically(&checkpoint_path(&self.folder), &encode(checkpoint))
    }

    /// Writes out what is buffered.
    pub fn flush(&mut self) -> Result<()> {
        let journal = self.journal.flush().and_then(|()| self.journal.get_ref().sync_data());
        journal.map_err(|e| self.failed("journal", e))?;
        let metrics = self.metrics.flush().and_then(|()| self.metrics.get_ref().sync_data());
        metrics.map_err(|e| self.failed("metrics.jsonl", e))
    }

    fn open(
        folder: &Path,
        cut_journal: impl Fn(&str) -> Result<String>,
        cut_metrics: impl Fn(&str) -> Result<String>,
    ) -> Result<Self> {
        let reopen =
            |name: &str, cut: &dyn Fn(&str) -> Result<String>| -> Result<BufWriter<File>> {
                let path = folder.join(name);
                let old = fs::read_to_string(&path).unwrap_or_default();
                write_atomically(&path, cut(&old)?.as_bytes())?;
                let file = OpenOptions::new().append(true).open(&path);
                file.map(BufWriter::new).map_err(|e| Error::storage(path.display(), e))
            };
        let journal = reopen("journal", &cut_journal)?;
        let metrics = reopen("metrics.jsonl", &cut_metrics)?;
        Ok(Self { folder: folder.to_path_buf(), journal, metrics })
    }

    fn failed(&self, name: &str, error: std::io::Error) -> Error {
        Error::storage(self.folder.join(name).display(), error)
    }
}

/// Replaces a file whole, or leaves it as it was.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    let beside = path.with_file_name(name);
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
            _ => Ok(()),
        }
    });
    written.map_err(|e| {
        // The half-written file is of no use; that it could not be removed either adds nothing.
        let _ = fs::remove_file(&beside);
        Error::storage(path.display(), e)
    })
}

fn checkpoint_path(folder: &Path) -> PathBuf {
    folder.join("checkpoint").join("state")
}

fn encode(checkpoint: &Checkpoint) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    VERSION.put(&mut bytes);
    checkpoint.put(&mut bytes);
    let sum = checksum(&bytes);
    sum.put(&mut bytes);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Checkpoint> {
    let Some((body, sum)) = bytes.split_last_chunk::<8>() else {
        return Err(Error::peer("it is too short"));
    };
    let mut rest = body;
    if cut(&mut rest, MAGIC.len())? != MAGIC {
        return Err(Error::peer("it is not a checkpoint"));
    }
    let version = u32::take(&mut rest)?;
    if version != VERSION {
        return Err(Error::peer(format!("it has version {version}, this program reads {VERSION}")));
    }
    if checksum(body) != u64::from_le_bytes(*sum) {
        return Err(Error::peer("its checksum does not match"));
    }
    Checkpoint::from_bytes(rest)
}

/// Detects truncated and damaged files; not meant against forgery.
fn checksum(bytes: &[u8]) -> u64 {
    let mix =
        |state: u64, word: u64| (state ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let chunks = bytes.chunks_exact(8);
    let tail = chunks.remainder().iter().fold(bytes.len() as u64, |s, b| s << 8 | u64::from(*b));
    let sum = chunks.fold(0x5768_696D, |s, c| mix(s, u64::from_le_bytes(c.try_into().expect("8"))));
    mix(mix(sum, tail), 0)
}

fn keep_lines(text: &str, keep: impl Fn(&str) -> bool) -> Result<String> {
    Ok(text.lines().take_while(|line| keep(line)).flat_map(|line| [line, "\n"]).collect())
}

fn before(line: &str, stage: u32, exchanges: u32) -> bool {
    serde_json::from_str::<Entry>(line)
        .is_ok_and(|e| e.stage < stage || (e.stage == stage && e.exchange < exchanges))
}

fn evaluated_by(line: &str, evaluated: Option<u32>) -> bool {
    let round = serde_json::from_str::<serde_json::Value>(line).ok();
    let round = round.and_then(|row| row.get("round").and_then(serde_json::Value::as_u64));
    round.is_some_and(|round| evaluated.is_some_and(|last| round <= u64::from(last)))
}
