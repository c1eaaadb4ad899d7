//! `members.jsonl`: what happened to the list of clients, one object per line; never put aside.
//!
//! `federation.json` counts on these lines as a checkpoint counts on its journal: it has their number,
//! their checksum and the last of them. It is replaced first, and that line is added then, so that a
//! process which dies in between leaves a line to add and nothing that disagrees. A list that knows
//! fewer lines than there are is an older copy: a client revoked since would be let in by it.

use crate::audit::VERSION;
use crate::status::now;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::private_file;

/// The lines that a list of clients counts on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Members {
    lines: u64,
    bytes: u64,
    /// A CRC-32 of all of them.
    sum: u32,
    /// The last, with its end.
    last: String,
}

/// What a line says.
pub struct Happened {
    /// What.
    pub event: &'static str,
    /// To whom.
    pub who: String,
    /// More about it, such as an address.
    pub detail: String,
}

impl Happened {
    /// The same from borrowed words.
    pub fn new(event: &'static str, who: &str, detail: impl Into<String>) -> Self {
        Self { event, who: who.into(), detail: detail.into() }
    }
}

/// What is wrong, and with which of the two files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The list is older than the lines.
    OlderList(String),
    /// The lines are not those that the list counts on.
    Lines(String),
}

/// How the file stands to the list.
enum Found {
    Complete,
    /// The last line is not there yet, or not all of it.
    Pending,
    Wrong(Fault),
}

impl Members {
    /// One line more.
    pub fn and(&self, happened: &Happened) -> Self {
        let Happened { event, who, detail } = happened;
        let line = json!({ "version": VERSION, "time": now(), "event": event, "who": who, "detail": detail });
        let last = format!("{line}\n");
        let mut sum = crc32fast::Hasher::new_with_initial(self.sum);
        sum.update(last.as_bytes());
        let bytes = self.bytes + last.len() as u64;
        Self { lines: self.lines + 1, bytes, sum: sum.finalize(), last }
    }

    /// What is wrong with the file of a folder.
    pub fn fault(&self, folder: &Path) -> Result<Option<Fault>> {
        Ok(match self.compare(folder)? {
            Found::Wrong(fault) => Some(fault),
            Found::Complete | Found::Pending => None,
        })
    }

    /// Adds the last line where it is not there yet.
    pub fn complete(&self, folder: &Path) -> Result<()> {
        let path = path(folder);
        if fs::metadata(&path).is_ok_and(|found| found.len() == self.bytes) {
            return Ok(());
        }
        match self.compare(folder)? {
            Found::Complete => return Ok(()),
            Found::Pending => {}
            Found::Wrong(fault) => return Err(fault.error(folder)),
        }
        let add = || {
            let mut file = private_file().create(true).append(true).open(&path)?;
            // A line that a crash cut short.
            file.set_len(self.bytes - self.last.len() as u64)?;
            file.write_all(self.last.as_bytes())?;
            file.sync_data()
        };
        add().map_err(|e| Error::storage(path.display(), e))
    }

    fn compare(&self, folder: &Path) -> Result<Found> {
        let path = path(folder);
        let bytes = match fs::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            read => Some(read.map_err(|e| Error::storage(path.display(), e))?),
        };
        let wrong = |what: String| Ok(Found::Wrong(Fault::Lines(what)));
        let Some(bytes) = bytes else {
            return match self.lines {
                0 => Ok(Found::Complete),
                1 => Ok(Found::Pending),
                lines => {
                    wrong(format!("it is gone, and the list of clients counts on {lines} lines"))
                }
            };
        };
        let before = self.bytes as usize - self.last.len();
        if bytes.len() >= self.bytes as usize {
            let (counted, more) = bytes.split_at(self.bytes as usize);
            return match (crc32fast::hash(counted) == self.sum, first_event(more)) {
                (false, _) => wrong(OTHER_LINES.into()),
                (true, None) if more.is_empty() => Ok(Found::Complete),
                (true, None) => wrong("there are bytes behind its last line".into()),
                (true, Some(event)) => Ok(Found::Wrong(Fault::OlderList(format!(
                    "it is an older copy: members.jsonl has {} lines and it knows of {}, not of {event}",
                    bytes.iter().filter(|byte| **byte == b'\n').count(),
                    self.lines
                )))),
            };
        }
        if bytes.len() < before {
            let has = bytes.iter().filter(|byte| **byte == b'\n').count();
            return wrong(format!(
                "it has {has} lines, and the list of clients counts on {}",
                self.lines
            ));
        }
        let mut sum = crc32fast::Hasher::new();
        sum.update(&bytes[..before]);
        sum.update(self.last.as_bytes());
        match sum.finalize() == self.sum {
            true => Ok(Found::Pending),
            false => wrong(OTHER_LINES.into()),
        }
    }
}

const OTHER_LINES: &str =
    "it is damaged: its lines are not those that the list of clients counts on";

impl Fault {
    /// The file that is wrong.
    pub fn file(&self) -> &'static str {
        match self {
            Self::OlderList(_) => "federation.json",
            Self::Lines(_) => "members.jsonl",
        }
    }

    /// What is wrong with it.
    pub fn what(&self) -> &str {
        match self {
            Self::OlderList(what) | Self::Lines(what) => what,
        }
    }

    /// As an error.
    pub fn error(&self, folder: &Path) -> Error {
        let what = format!(
            "{}\nhint: restore both files, or the whole folder, from one copy; `whimbrel verify` reads \
             all of it",
            self.what()
        );
        Error::storage(folder.join(self.file()).display(), what)
    }
}

/// What the first of these lines tells.
fn first_event(bytes: &[u8]) -> Option<String> {
    let line = bytes.split_inclusive(|byte| *byte == b'\n').next()?;
    let line: serde_json::Value = serde_json::from_slice(line).ok()?;
    let word = |key: &str| line[key].as_str().unwrap_or("").escape_debug().to_string();
    Some(format!("`{}` being {}", word("who"), word("event")))
}

fn path(folder: &Path) -> PathBuf {
    folder.join("members.jsonl")
}
