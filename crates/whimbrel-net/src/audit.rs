//! `audit.jsonl`: joins, refusals with reasons, revocations; one object per line, append-only.
//!
//! The log has a bounded size. A full file is renamed to `audit.1.jsonl`, older files move up, and
//! the oldest is deleted. Unauthenticated connections have a quota in each file, and so has each
//! client: beyond it their events are only counted, in `status.json`. Hence neither a flood of
//! connections nor a single client can displace other events. `members.jsonl` records membership
//! separately ([`crate::members`]).

use crate::status::now;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use whimbrel_engine::checkpoint::private_file;

/// Format version, repeated in each line.
pub(crate) const VERSION: u32 = 1;
/// Number of older files.
const ASIDE: u32 = 4;
/// Mark of a line about an unauthenticated connection.
const UNAUTHENTICATED: &str = "\"stranger\":true";
/// Mark of the line after which such connections are only counted.
const SILENCED: &str = "\"event\":\"silenced\"";

/// The audit log of a run.
pub struct Audit {
    held: Mutex<Held>,
}

struct Held {
    folder: PathBuf,
    quotas: Quotas,
    /// `None` if it could not be opened: the next line retries.
    log: Option<Log>,
}

/// Maximal bytes of a file, of unauthenticated connections in it, and of one client in it.
#[derive(Clone, Copy)]
struct Quotas {
    file: u64,
    unauthenticated: u64,
    client: u64,
}

/// The open file.
struct Log {
    file: File,
    bytes: u64,
    unauthenticated: u64,
    /// Bytes about each client.
    clients: HashMap<String, u64>,
    /// Whether the last line is incomplete, after a full disk or a power failure.
    torn: bool,
}

impl Audit {
    /// Opens a run's log for appending. The log never stops a job: an unreadable file is moved
    /// aside with the next line.
    pub fn open(folder: &Path) -> Self {
        let quotas = Quotas { file: 16 << 20, unauthenticated: 4 << 20, client: 256 << 10 };
        Self::open_with(folder, quotas)
    }

    fn open_with(folder: &Path, quotas: Quotas) -> Self {
        let log = Log::open(&name(folder, 0)).inspect_err(|error| {
            tracing::warn!(%error, "the audit log cannot be opened");
        });
        let held = Held { folder: folder.to_path_buf(), quotas, log: log.ok() };
        Self { held: Mutex::new(held) }
    }

    /// Records an event of a client. On a full disk the line is lost.
    pub fn note(&self, event: &str, client: &str, detail: &str) {
        self.add(line(event, client, detail), client, false);
    }

    /// Records an event of an unauthenticated connection.
    pub fn note_unauthenticated(&self, event: &str, address: &str, detail: &str) {
        let mut line = line(event, address, detail);
        line["stranger"] = true.into();
        self.add(line, address, true);
    }

    fn add(&self, line: Value, who: &str, unauthenticated: bool) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = held.add(&format!("{line}\n"), who, unauthenticated) {
            tracing::warn!(%error, "a line of the audit log is lost");
        }
    }
}

fn line(event: &str, who: &str, detail: &str) -> Value {
    json!({ "version": VERSION, "time": now(), "event": event, "who": who, "detail": detail })
}

impl Held {
    fn add(&mut self, line: &str, who: &str, unauthenticated: bool) -> io::Result<()> {
        let Held { folder, quotas, log } = self;
        let bytes = line.len() as u64;
        let log = match log {
            Some(log) => log,
            None => log.insert(rotate(folder)?),
        };
        let mut unlimited = 0;
        let (used, quota, event, whose) = if unauthenticated {
            let used = &mut log.unauthenticated;
            (used, quotas.unauthenticated, "silenced", "unauthenticated connections")
        } else if who.is_empty() {
            (&mut unlimited, u64::MAX, "", "")
        } else {
            let used = log.clients.entry(who.to_owned()).or_default();
            (used, quotas.client, "client-silenced", "events of this client")
        };
        if *used > quota {
            return Ok(());
        }
        *used += bytes;
        if *used > quota {
            let who = if unauthenticated { "" } else { who };
            let what = format!("from here on, {whose} are only counted, in status.json");
            return log.write(&format!("{}\n", self::line(event, who, &what)));
        }
        if log.bytes + bytes > quotas.file {
            *log = rotate(folder)?;
        }
        log.write(line)
    }
}

impl Log {
    fn open(path: &Path) -> io::Result<Self> {
        // Bytes, since a torn line may end within a character.
        let text = match fs::read(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let mut unauthenticated = 0u64;
        let mut clients: HashMap<String, u64> = HashMap::new();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let shown = String::from_utf8_lossy(line);
            if shown.contains(SILENCED) {
                unauthenticated = u64::MAX;
            } else if shown.contains(UNAUTHENTICATED) {
                unauthenticated = unauthenticated.saturating_add(line.len() as u64);
            } else if let Ok(line) = serde_json::from_str::<Value>(&shown)
                && let Some(who) = line["who"].as_str().filter(|who| !who.is_empty())
            {
                let used = clients.entry(who.to_owned()).or_default();
                let silenced = line["event"] == "client-silenced";
                *used = if silenced { u64::MAX } else { used.saturating_add(shown.len() as u64) };
            }
        }
        let torn = text.last().is_some_and(|byte| *byte != b'\n');
        let bytes = text.len() as u64;
        Ok(Self { file: append_to(path)?, bytes, unauthenticated, clients, torn })
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

/// Begins a new file and moves the older ones up to the first free number. A failure on the way
/// leaves a free number for the next attempt: the oldest file is deleted only for a new one.
fn rotate(folder: &Path) -> io::Result<Log> {
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
    Ok(Log { file, bytes: 0, unauthenticated: 0, clients: HashMap::new(), torn: false })
}

fn name(folder: &Path, n: u32) -> PathBuf {
    match n {
        0 => folder.join("audit.jsonl"),
        n => folder.join(format!("audit.{n}.jsonl")),
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    private_file().create(true).append(true).open(path)
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
    fn a_flood_of_connections_neither_fills_a_disk_nor_displaces_clients() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Quotas { file: 4000, unauthenticated: 1000, client: u64::MAX };
        for _ in 0..3 {
            // A restart does not renew the quota.
            let audit = Audit::open_with(folder.path(), limits);
            audit.note("enrolled", "north", "");
            (0..500)
                .for_each(|_| audit.note_unauthenticated("wrong-token", "203.0.113.9", "refused"));
        }
        let sizes = sizes(folder.path());
        assert_eq!(sizes.len(), 1, "{sizes:?}");
        assert!(sizes[0].1 < 1800, "{sizes:?}");
        let text = fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
        assert_eq!(text.matches("\"enrolled\"").count(), 3);
        assert_eq!(text.matches("\"silenced\"").count(), 1);
    }

    #[test]
    fn a_flood_displaces_only_the_oldest_lines() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open_with(
            folder.path(),
            Quotas { file: 1000, unauthenticated: 500, client: u64::MAX },
        );
        for n in 0..400 {
            audit.note("connected", "north", &n.to_string());
        }
        let sizes = sizes(folder.path());
        assert_eq!(sizes.len(), 1 + ASIDE as usize, "{sizes:?}");
        assert!(sizes.iter().all(|(_, bytes)| *bytes <= 1000), "{sizes:?}");
        let text = fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
        assert!(text.contains("\"399\"") && !text.contains("\"300\""), "{text}");
    }

    #[test]
    fn a_single_client_displaces_nothing_in_a_week() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Quotas { file: 20_000, unauthenticated: 5_000, client: 2_000 };
        let audit = Audit::open_with(folder.path(), limits);
        audit.note("enrolled", "north", "203.0.113.7:1");
        audit.note("connected", "south", "203.0.113.8:1");
        // Twice a second for a week.
        (0..1_200_000).for_each(|_| audit.note("connected", "north", "203.0.113.7:1"));
        drop(audit);
        let audit = Audit::open_with(folder.path(), limits);
        (0..1000).for_each(|_| audit.note("connected", "north", "203.0.113.7:1"));
        audit.note("failed", "south", "no rows");
        let sizes = sizes(folder.path());
        assert_eq!(sizes.len(), 1, "{sizes:?}");
        assert!(sizes[0].1 < 3_000, "{sizes:?}");
        let text = fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
        assert_eq!(text.matches("\"south\"").count(), 2);
        assert_eq!(text.matches("\"client-silenced\"").count(), 1);
        assert_eq!(text.matches("\"enrolled\"").count(), 1);
    }

    #[test]
    fn the_line_after_a_torn_one_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let limits = Quotas { file: 4000, unauthenticated: 200, client: u64::MAX };
        let audit = Audit::open_with(folder.path(), limits);
        audit.note("enrolled", "Zoë", "");
        audit.note_unauthenticated("wrong-token", "203.0.113.9", "refused");
        drop(audit);
        // In the middle of a character.
        let torn = b"{\"detail\":\"\xc3";
        append_to(&path).unwrap().write_all(torn).unwrap();

        let audit = Audit::open_with(folder.path(), limits);
        audit.note("connected", "Zoë", "");
        audit.note_unauthenticated("wrong-token", "203.0.113.9", "refused");
        let bytes = fs::read(&path).unwrap();
        let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), 6, "{}", String::from_utf8_lossy(&bytes));
        assert_eq!((lines[2], lines[5]), (&torn[..], &b""[..]));
        let events = [0, 1, 3, 4].map(|n| {
            let line: serde_json::Value = serde_json::from_slice(lines[n]).unwrap();
            line["event"].as_str().unwrap().to_owned()
        });
        // The quota is counted across the torn line.
        assert_eq!(events, ["enrolled", "wrong-token", "connected", "silenced"]);
    }

    /// A folder in place of the file stands for any unreadable file.
    #[test]
    fn an_unreadable_log_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("audit.jsonl")).unwrap();
        let audit = Audit::open_with(
            folder.path(),
            Quotas { file: 1000, unauthenticated: 500, client: u64::MAX },
        );
        audit.note("enrolled", "north", "");
        audit.note("connected", "north", "");
        assert!(folder.path().join("audit.1.jsonl").is_dir());
        let text = fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
        assert!(text.contains("\"enrolled\"") && text.contains("\"connected\""), "{text}");
    }

    #[test]
    fn old_files_stay_if_no_new_one_can_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open_with(
            folder.path(),
            Quotas { file: 120, unauthenticated: 100, client: u64::MAX },
        );
        let note = |n: u32| audit.note("connected", "north", &format!("line {n}"));
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
    fn a_free_number_is_used_before_the_oldest_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        // The state after a crash between two renames.
        for n in [0, 1, 3, 4] {
            fs::write(name(folder.path(), n), n.to_string()).unwrap();
        }
        rotate(folder.path()).unwrap();
        let read = |n| fs::read_to_string(name(folder.path(), n)).unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(read), ["", "0", "1", "3", "4"]);
    }
}
