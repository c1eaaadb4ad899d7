//! `members.jsonl`: changes of the list of clients, one object per line, never rotated.
//!
//! `federation.json` covers these lines as a checkpoint covers its journal: it holds their number,
//! their checksum and the last ones. It is replaced first and they are appended afterwards, so a
//! crash in between leaves only these lines to append. A list that covers fewer lines than the file has
//! is an older copy, which would admit clients revoked since.

use crate::audit::VERSION;
use crate::status::now;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::private_file;

/// The lines that a list of clients covers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Members {
    lines: u64,
    bytes: u64,
    /// CRC-32 of all lines.
    sum: u32,
    /// The last lines, with their ends: those of one change.
    last: String,
}

/// A change of the list of clients.
pub struct MemberEvent {
    pub event: &'static str,
    /// The client's name, or empty.
    pub who: String,
    /// Further information, such as an address.
    pub detail: String,
}

impl MemberEvent {
    pub fn new(event: &'static str, who: &str, detail: impl Into<String>) -> Self {
        Self { event, who: who.into(), detail: detail.into() }
    }
}

/// A disagreement of list and lines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberFault {
    /// The list is older than the lines.
    OlderList(String),
    /// The lines are not those that the list covers.
    Lines(String),
}

/// State of the file.
enum FileState {
    Complete,
    /// The last lines are missing or incomplete.
    Pending,
    Wrong(MemberFault),
}

impl Members {
    /// These lines and those of one change.
    pub fn with(&self, events: &[MemberEvent]) -> Self {
        if events.is_empty() {
            return self.clone();
        }
        let time = now();
        let line = |MemberEvent { event, who, detail }: &MemberEvent| {
            let line = json!({ "version": VERSION, "time": time, "event": event, "who": who, "detail": detail });
            format!("{line}\n")
        };
        let last: String = events.iter().map(line).collect();
        let mut sum = crc32fast::Hasher::new_with_initial(self.sum);
        sum.update(last.as_bytes());
        let (lines, bytes) = (self.lines + events.len() as u64, self.bytes + last.len() as u64);
        Self { lines, bytes, sum: sum.finalize(), last }
    }

    /// The fault of the file in a folder.
    pub fn fault(&self, folder: &Path) -> Result<Option<MemberFault>> {
        Ok(match self.compare(folder)? {
            FileState::Wrong(fault) => Some(fault),
            FileState::Complete | FileState::Pending => None,
        })
    }

    /// Appends the last lines if they are missing.
    pub fn complete(&self, folder: &Path) -> Result<()> {
        let path = path(folder);
        if fs::metadata(&path).is_ok_and(|found| found.len() == self.bytes) {
            return Ok(());
        }
        match self.compare(folder)? {
            FileState::Complete => return Ok(()),
            FileState::Pending => {}
            FileState::Wrong(fault) => return Err(fault.error(folder)),
        }
        let add = || {
            let mut file = private_file().create(true).append(true).open(&path)?;
            // Removes a part of them.
            file.set_len(self.bytes - self.last.len() as u64)?;
            file.write_all(self.last.as_bytes())?;
            file.sync_data()
        };
        add().map_err(|e| Error::storage(path.display(), e))
    }

    fn compare(&self, folder: &Path) -> Result<FileState> {
        let path = path(folder);
        let bytes = match fs::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            read => Some(read.map_err(|e| Error::storage(path.display(), e))?),
        };
        let wrong = |what: String| Ok(FileState::Wrong(MemberFault::Lines(what)));
        let Some(bytes) = bytes else {
            return match self.lines {
                0 => Ok(FileState::Complete),
                1 => Ok(FileState::Pending),
                lines => {
                    wrong(format!("it is missing, and the list of clients covers {lines} lines"))
                }
            };
        };
        let before = self.bytes as usize - self.last.len();
        if bytes.len() >= self.bytes as usize {
            let (counted, more) = bytes.split_at(self.bytes as usize);
            return match (crc32fast::hash(counted) == self.sum, first_event(more)) {
                (false, _) => wrong(OTHER_LINES.into()),
                (true, None) if more.is_empty() => Ok(FileState::Complete),
                (true, None) => wrong("it has bytes after its last line".into()),
                (true, Some(event)) => Ok(FileState::Wrong(MemberFault::OlderList(format!(
                    "it is an older copy: members.jsonl has {} lines and it covers {}, without {event}",
                    bytes.iter().filter(|byte| **byte == b'\n').count(),
                    self.lines
                )))),
            };
        }
        if bytes.len() < before {
            let has = bytes.iter().filter(|byte| **byte == b'\n').count();
            let lines = self.lines;
            return wrong(format!("it has {has} lines, and the list of clients covers {lines}"));
        }
        let mut sum = crc32fast::Hasher::new();
        sum.update(&bytes[..before]);
        sum.update(self.last.as_bytes());
        if sum.finalize() == self.sum { Ok(FileState::Pending) } else { wrong(OTHER_LINES.into()) }
    }
}

const OTHER_LINES: &str = "it is damaged: its lines are not those that the list of clients covers";

impl MemberFault {
    /// The faulty file.
    pub fn file(&self) -> &'static str {
        match self {
            Self::OlderList(_) => "federation.json",
            Self::Lines(_) => "members.jsonl",
        }
    }

    pub fn what(&self) -> &str {
        match self {
            Self::OlderList(what) | Self::Lines(what) => what,
        }
    }

    pub fn error(&self, folder: &Path) -> Error {
        let what = format!(
            "{}\nhint: restore both files, or the whole folder, from one copy; `whimbrel verify` \
             checks all of it",
            self.what()
        );
        Error::storage(folder.join(self.file()).display(), what)
    }
}

/// The event in the first of these lines.
fn first_event(bytes: &[u8]) -> Option<String> {
    let line = bytes.split_inclusive(|byte| *byte == b'\n').next()?;
    let line: serde_json::Value = serde_json::from_slice(line).ok()?;
    let word = |key: &str| line[key].as_str().unwrap_or("").escape_debug().to_string();
    Some(format!("`{}` being {}", word("who"), word("event")))
}

fn path(folder: &Path) -> PathBuf {
    folder.join("members.jsonl")
}
