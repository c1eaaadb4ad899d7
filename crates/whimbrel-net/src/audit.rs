//! `audit.jsonl`: joins, refusals with their reason, revocations; one object per line, only added
//! to.
//!
//! However many connect and however long, the log has a bounded size. A file that is full is put
//! aside as `audit.1.jsonl`, the ones before it move up, and the oldest goes. Strangers must not be
//! able to push out what clients did: they have a share of each file, and beyond it they are only
//! counted, in `status.json`. So has each client, and therefore no single one can push out anything.
//! Who joined and who was shut out is in a file of its own as well ([`crate::members`]).

use crate::status::now;
use serde_json::json;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Of the lines: each says it, since files are cut and put aside.
pub(crate) const VERSION: u32 = 1;
/// Bytes of one file.
const BYTES_MAX: u64 = 16 << 20;
/// Bytes of strangers in it.
const STRANGERS_BYTES_MAX: u64 = 4 << 20;
/// Bytes of one client in it.
const CLIENT_BYTES_MAX: u64 = 256 << 10;
/// Files that were put aside.
const ASIDE: u32 = 4;
/// How a stranger's line is known again.
const STRANGER: &str = "\"stranger\":true";
const SILENCED: &str = "\"event\":\"silenced\"";

/// The log of a run.
pub struct Audit {
    held: Mutex<Held>,
}

struct Held {
    folder: PathBuf,
    limits: Sizes,
    /// None where it could not be opened: the next line tries again.
    log: Option<Log>,
}

#[derive(Clone, Copy)]
struct Sizes {
    file: u64,
    strangers: u64,
    client: u64,
}

/// The open file.
struct Log {
    file: File,
    bytes: u64,
    strangers: u64,
    /// Bytes about each client.
    clients: HashMap<String, u64>,
    /// Its last line has no end: a disk was full, or the power went.
    torn: bool,
}

impl Audit {
    /// Adds to a run's file. A job is never stopped by its audit log: one that cannot be read is put
    /// aside with the next line.
    pub fn open(folder: &Path) -> Self {
        Self::open_with(
            folder,
            Sizes { file: BYTES_MAX, strangers: STRANGERS_BYTES_MAX, client: CLIENT_BYTES_MAX },
        )
    }

    fn open_with(folder: &Path, limits: Sizes) -> Self {
        let log = Log::open(&name(folder, 0)).inspect_err(|error| {
            tracing::warn!(%error, "the audit log cannot be opened");
        });
        let held = Held { folder: folder.to_path_buf(), limits, log: log.ok() };
        Self { held: Mutex::new(held) }
    }

    /// Notes an event about a client, or about a stranger (`who` is then an address). A full disk
    /// loses lines of the audit log before it stops a job.
    pub fn note(&self, event: &str, who: &str, detail: &str, stranger: bool) {
        let mut line = json!({ "version": VERSION, "time": now(), "event": event, "who": who, "detail": detail });
        if stranger {
            line["stranger"] = true.into();
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = held.add(&format!("{line}\n"), who, stranger) {
            tracing::warn!(%error, "a line of the audit log is lost");
        }
    }
}

impl Held {
    fn add(&mut self, line: &str, who: &str, stranger: bool) -> io::Result<()> {
        let Held { folder, limits, log } = self;
        let bytes = line.len() as u64;
        let log = match log {
            Some(log) => log,
            None => log.insert(put_aside(folder)?),
        };
        if stranger {
            if log.strangers > limits.strangers {
                return Ok(());
            }
            log.strangers += bytes;
            if log.strangers > limits.strangers {
                let what = "from here on, strangers are only counted, in status.json";
                let last = json!({ "version": VERSION, "time": now(), "event": "silenced", "who": "", "detail": what });
                return log.write(&format!("{last}\n"));
            }
        }
        if !stranger && !who.is_empty() {
            let share = log.clients.entry(who.to_owned()).or_default();
            if *share > limits.client {
                return Ok(());
            }
            *share += bytes;
            if *share > limits.client {
                let what = "from here on, this client is only counted, in status.json";
                let last = json!({ "version": VERSION, "time": now(), "event": "client-silenced", "who": who, "detail": what });
                return log.write(&format!("{last}\n"));
            }
        }
        if log.bytes + bytes > limits.file {
            *log = put_aside(folder)?;
        }
        log.write(line)
    }
}

impl Log {
    fn open(path: &Path) -> io::Result<Self> {
        // Bytes: what a torn line ends with need not be a character.
        let text = match fs::read(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let mut strangers = 0u64;
        let mut clients: HashMap<String, u64> = HashMap::new();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let shown = String::from_utf8_lossy(line);
            if shown.contains(SILENCED) {
                strangers = u64::MAX;
            } else if shown.contains(STRANGER) {
                strangers = strangers.saturating_add(line.len() as u64);
            } else if let Ok(line) = serde_json::from_str::<serde_json::Value>(&shown)
                && let Some(who) = line["who"].as_str().filter(|who| !who.is_empty())
            {
                let share = clients.entry(who.to_owned()).or_default();
                let silenced = line["event"] == "client-silenced";
                *share = if silenced { u64::MAX } else { share.saturating_add(shown.len() as u64) };
            }
        }
        let torn = text.last().is_some_and(|byte| *byte != b'\n');
        Ok(Self { file: append_to(path)?, bytes: text.len() as u64, strangers, clients, torn })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        let text = format!("{}{line}", if self.torn { "\n" } else { "" });
        let written = self.file.write_all(text.as_bytes());
        if written.is_ok() {
            self.bytes += text.len() as u64;
            self.torn = false;
        } else if let Ok(found) = self.file.metadata()
            && found.len() > self.bytes
        {
            self.bytes = found.len();
            self.torn = true;
        }
        written
    }
}

/// Begins a file, and moves the ones before it up as far as the first free place. What fails on the
/// way leaves such a place to the next try: the oldest goes for a new file alone.
fn put_aside(folder: &Path) -> io::Result<Log> {
    let fresh = folder.join("audit.jsonl.tmp");
    let file = append_to(&fresh)?;
    let mut free = 0;
    while free < ASIDE && fs::exists(name(folder, free))? {
        free += 1;
    }
    for n in (0..free).rev() {
        fs::rename(name(folder, n), name(folder, n + 1))?;
    }
    fs::rename(fresh, name(folder, 0))?;
    Ok(Log { file, bytes: 0, strangers: 0, clients: HashMap::new(), torn: false })
}

fn name(folder: &Path, n: u32) -> PathBuf {
    match n {
        0 => folder.join("audit.jsonl"),
        n => folder.join(format!("audit.{n}.jsonl")),
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
        let limits = Sizes { file: 4000, strangers: 1000, client: u64::MAX };
        for _ in 0..3 {
            // A restart in between gives them no second share.
            let audit = Audit::open_with(folder.path(), limits);
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
        let audit =
            Audit::open_with(folder.path(), Sizes { file: 1000, strangers: 500, client: u64::MAX });
        for n in 0..400 {
            audit.note("connected", "north", &n.to_string(), false);
        }
        let sizes = sizes(folder.path());
        assert_eq!(sizes.len(), 1 + ASIDE as usize, "{sizes:?}");
        assert!(sizes.iter().all(|(_, bytes)| *bytes <= 1000), "{sizes:?}");
        let text = fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
        assert!(text.contains("\"399\"") && !text.contains("\"300\""), "{text}");
    }

    #[test]
    fn no_client_alone_pushes_anything_out_in_a_week() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Sizes { file: 20_000, strangers: 5_000, client: 2_000 };
        let audit = Audit::open_with(folder.path(), limits);
        audit.note("enrolled", "north", "203.0.113.7:1", false);
        audit.note("connected", "south", "203.0.113.8:1", false);
        // Twice a second for a week.
        (0..1_200_000).for_each(|_| audit.note("connected", "north", "203.0.113.7:1", false));
        drop(audit);
        let audit = Audit::open_with(folder.path(), limits);
        (0..1000).for_each(|_| audit.note("connected", "north", "203.0.113.7:1", false));
        audit.note("failed", "south", "no rows", false);
        let sizes = sizes(folder.path());
        assert_eq!(sizes.len(), 1, "{sizes:?}");
        assert!(sizes[0].1 < 3_000, "{sizes:?}");
        let text = fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
        assert_eq!(text.matches("\"south\"").count(), 2);
        assert_eq!(text.matches("\"client-silenced\"").count(), 1);
        assert_eq!(text.matches("\"enrolled\"").count(), 1);
    }

    #[test]
    fn a_torn_line_stops_nobody_and_the_next_one_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let limits = Sizes { file: 4000, strangers: 200, client: u64::MAX };
        let audit = Audit::open_with(folder.path(), limits);
        audit.note("enrolled", "Zoë", "", false);
        audit.note("wrong-token", "203.0.113.9", "refused", true);
        drop(audit);
        // In the middle of a character.
        let torn = b"{\"detail\":\"\xc3";
        append_to(&path).unwrap().write_all(torn).unwrap();

        let audit = Audit::open_with(folder.path(), limits);
        audit.note("connected", "Zoë", "", false);
        audit.note("wrong-token", "203.0.113.9", "refused", true);
        let bytes = fs::read(&path).unwrap();
        let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), 6, "{}", String::from_utf8_lossy(&bytes));
        assert_eq!((lines[2], lines[5]), (&torn[..], &b""[..]));
        let events = [0, 1, 3, 4].map(|n| {
            let line: serde_json::Value = serde_json::from_slice(lines[n]).unwrap();
            line["event"].as_str().unwrap().to_owned()
        });
        // The share of strangers was counted over the torn line.
        assert_eq!(events, ["enrolled", "wrong-token", "connected", "silenced"]);
    }

    /// A folder in the place of a file stands for any that cannot be read or opened.
    #[test]
    fn a_log_that_cannot_be_read_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("audit.jsonl")).unwrap();
        let audit =
            Audit::open_with(folder.path(), Sizes { file: 1000, strangers: 500, client: u64::MAX });
        audit.note("enrolled", "north", "", false);
        audit.note("connected", "north", "", false);
        assert!(folder.path().join("audit.1.jsonl").is_dir());
        let text = fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
        assert!(text.contains("\"enrolled\"") && text.contains("\"connected\""), "{text}");
    }

    #[test]
    fn a_new_file_that_cannot_be_opened_moves_none_of_the_old_ones() {
        let folder = tempfile::tempdir().unwrap();
        let audit =
            Audit::open_with(folder.path(), Sizes { file: 120, strangers: 100, client: u64::MAX });
        let note = |n: u32| audit.note("connected", "north", &format!("line {n}"), false);
        // One line each.
        (0..4).for_each(note);
        let read = || {
            let files = (0..=ASIDE).map(|n| fs::read_to_string(name(folder.path(), n)).ok());
            files.collect::<Vec<Option<String>>>()
        };
        let before = read();
        assert!(before[3].is_some() && before[4].is_none(), "{before:?}");
        let obstacle = folder.path().join("audit.jsonl.tmp");
        fs::create_dir(&obstacle).unwrap();
        (4..24).for_each(note);
        assert_eq!(read(), before);
        fs::remove_dir(&obstacle).unwrap();
        note(24);
        let after = read();
        assert!(after[0].as_ref().unwrap().contains("line 24"), "{after:?}");
        assert_eq!(after[1..], before[..4]);
    }

    #[test]
    fn a_free_place_is_filled_before_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        // As a process leaves it that was killed between two renames.
        for n in [0, 1, 3, 4] {
            fs::write(name(folder.path(), n), n.to_string()).unwrap();
        }
        put_aside(folder.path()).unwrap();
        let read = |n| fs::read_to_string(name(folder.path(), n)).unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(read), ["", "0", "1", "3", "4"]);
    }
}
