//! `audit.jsonl`: joins, refusals with their reason, revocations; one object per line, only added
//! to.
//!
//! However many connect and however long, the log has a bounded size. A file that is full is put
//! aside as `audit.1.jsonl`, the ones before it move up, and the oldest goes. Strangers must not be
//! able to push out what clients did: they have a share of each file, and beyond it they are only
//! counted, in `status.json`.

use crate::status::now;
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use whimbrel_core::{Error, Result};

/// Bytes of one file.
const BYTES_MAX: u64 = 16 << 20;
/// Bytes of strangers in it.
const STRANGERS_BYTES_MAX: u64 = 4 << 20;
/// Files that were put aside.
const ASIDE: u32 = 4;
/// How a stranger's line is known again.
const STRANGER: &str = "\"stranger\":true";
const SILENCED: &str = "\"event\":\"silenced\"";

/// The open file.
pub struct Audit {
    held: Mutex<Held>,
}

struct Held {
    folder: PathBuf,
    file: File,
    bytes: u64,
    strangers: u64,
    limits: Sizes,
}

#[derive(Clone, Copy)]
struct Sizes {
    file: u64,
    strangers: u64,
}

impl Audit {
    /// Adds to a run's file.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_with(folder, Sizes { file: BYTES_MAX, strangers: STRANGERS_BYTES_MAX })
    }

    fn open_with(folder: &Path, limits: Sizes) -> Result<Self> {
        let path = folder.join("audit.jsonl");
        let fault = |e: io::Error| Error::storage(path.display(), e);
        let text = match fs::read_to_string(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.map_err(fault)?,
        };
        let strangers = match text.contains(SILENCED) {
            true => u64::MAX,
            false => {
                let lines = text.split_inclusive('\n').filter(|line| line.contains(STRANGER));
                lines.map(|line| line.len() as u64).sum()
            }
        };
        let file = append_to(&path).map_err(fault)?;
        let folder = folder.to_path_buf();
        let held = Held { folder, file, bytes: text.len() as u64, strangers, limits };
        Ok(Self { held: Mutex::new(held) })
    }

    /// Notes an event about a client, or about a stranger (`who` is then an address). A full disk
    /// loses lines of the audit log before it stops a job.
    pub fn note(&self, event: &str, who: &str, detail: &str, stranger: bool) {
        let mut line = json!({ "time": now(), "event": event, "who": who, "detail": detail });
        if stranger {
            line["stranger"] = true.into();
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = held.add(&format!("{line}\n"), stranger) {
            tracing::warn!(%error, "a line of the audit log is lost");
        }
    }
}

impl Held {
    fn add(&mut self, line: &str, stranger: bool) -> io::Result<()> {
        let bytes = line.len() as u64;
        if stranger {
            if self.strangers > self.limits.strangers {
                return Ok(());
            }
            self.strangers += bytes;
            if self.strangers > self.limits.strangers {
                let what = "from here on, strangers are only counted, in status.json";
                let last = json!({ "time": now(), "event": "silenced", "who": "", "detail": what });
                return self.write(&format!("{last}\n"));
            }
        }
        if self.bytes + bytes > self.limits.file {
            self.put_aside()?;
        }
        self.write(line)
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    fn put_aside(&mut self) -> io::Result<()> {
        let name = |n: u32| match n {
            0 => self.folder.join("audit.jsonl"),
            n => self.folder.join(format!("audit.{n}.jsonl")),
        };
        for n in (0..ASIDE).rev() {
            match fs::rename(name(n), name(n + 1)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        self.file = append_to(&name(0))?;
        (self.bytes, self.strangers) = (0, 0);
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(folder: &Path) -> Vec<(String, u64)> {
        let each = fs::read_dir(folder).unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
        });
        let mut all: Vec<(String, u64)> = each.collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_flood_of_strangers_neither_fills_a_disk_nor_pushes_a_client_out() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Sizes { file: 4000, strangers: 1000 };
        for _ in 0..3 {
            // A restart in between gives them no second share.
            let audit = Audit::open_with(folder.path(), limits).unwrap();
            audit.note("enrolled", "north", "", false);
            (0..500).for_each(|_| audit.note("wrong-token", "203.0.113.9", "refused", true));
        }
        let sizes = sizes(folder.path());
        assert_eq!(sizes.len(), 1, "{sizes:?}");
        assert!(sizes[0].1 < 1800, "{sizes:?}");
        let text = fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
        assert_eq!(text.matches("\"enrolled\"").count(), 3);
        assert_eq!(text.matches("\"silenced\"").count(), 1);
    }

    #[test]
    fn a_client_that_floods_pushes_out_the_oldest_lines_alone() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open_with(folder.path(), Sizes { file: 1000, strangers: 500 }).unwrap();
        for n in 0..400 {
            audit.note("connected", "north", &n.to_string(), false);
        }
        let sizes = sizes(folder.path());
        assert_eq!(sizes.len(), 1 + ASIDE as usize, "{sizes:?}");
        assert!(sizes.iter().all(|(_, bytes)| *bytes <= 1000), "{sizes:?}");
        let text = fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
        assert!(text.contains("\"399\"") && !text.contains("\"300\""), "{text}");
    }
}
