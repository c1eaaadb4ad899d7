//! The file of the list of clients: cached reads, changes under a lock.

use super::list::{ClientList, VERSION};
use crate::members::MemberEvent;
use serde::Deserialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::{private_file, write_privately};

/// More than the clock resolution of any file system.
const CLOCK_TICK_MAX: Duration = Duration::from_millis(100);
const FROM_COPY: &str = "\nhint: restore the folder from a copy";

/// `federation.json` and its last read content.
pub(super) struct ListFile {
    pub folder: PathBuf,
    held: Mutex<Held>,
}

struct Held {
    list: Arc<ClientList>,
    version: Option<Version>,
}

/// A change of the list: its result and the events to record.
pub(super) type Changed<T> = Result<(T, Vec<MemberEvent>)>;

impl ListFile {
    pub fn new(folder: &Path, list: ClientList) -> Self {
        // The first use reads the file again.
        let held = Held { list: Arc::new(list), version: None };
        Self { folder: folder.to_path_buf(), held: Mutex::new(held) }
    }

    /// The list, read again if the file has changed; an unreadable file is ignored.
    pub fn fresh(&self) -> Arc<ClientList> {
        let mut held = self.held();
        if let Err(error) = held.refresh(&self.folder) {
            tracing::debug!(%error, "the list of clients is not read");
        }
        held.list.clone()
    }

    /// Changes the list under its lock, and records the events if the list differs.
    pub fn change<T>(&self, change: impl FnOnce(&mut ClientList) -> Changed<T>) -> Result<T> {
        let lock_path = self.folder.join("federation.lock");
        let lock = private_file().write(true).create(true).truncate(false).open(&lock_path);
        let lock = lock.map_err(|e| Error::storage(lock_path.display(), e))?;
        lock.lock().map_err(|e| Error::storage(lock_path.display(), e))?;
        let before = {
            let mut held = self.held();
            held.refresh(&self.folder)?;
            held.list.clone()
        };
        before.members.complete(&self.folder)?;
        let mut after = ClientList::clone(&before);
        let (result, events) = change(&mut after)?;
        if after != *before {
            after.members = after.members.with(&events);
            write(&self.folder, &after)?;
            // The list holds the lines: on a full disk, the next change appends them.
            if let Err(error) = after.members.complete(&self.folder) {
                tracing::warn!(%error, "to be written later");
            }
            let version = Version::of(&self.folder);
            *self.held() = Held { list: Arc::new(after), version };
        }
        Ok(result)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn refresh(&mut self, folder: &Path) -> Result<()> {
        if self.version.as_ref().is_some_and(|version| version.is_current(folder)) {
            return Ok(());
        }
        let version = Version::of(folder);
        self.list = Arc::new(read(folder)?);
        self.version = version;
        Ok(())
    }
}

/// Distinguishes versions of the file. The modification time does not suffice, since two writes may
/// fall into one clock tick. Each write renames a new file into place, and the open handle keeps the
/// inode of this version from being used again.
struct Version {
    stamp: Stamp,
    _open: File,
}

#[derive(PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Version {
    fn of(folder: &Path) -> Option<Self> {
        let file = File::open(path(folder)).ok()?;
        let stamp = Stamp::of(&file.metadata().ok()?);
        Some(Self { stamp, _open: file })
    }

    fn is_current(&self, folder: &Path) -> bool {
        let Ok(found) = fs::metadata(path(folder)) else { return false };
        // Without inodes, a version so young that another write could have its time is not trusted.
        (cfg!(unix) || self.stamp.is_settled()) && Stamp::of(&found) == self.stamp
    }
}

impl Stamp {
    fn of(file: &fs::Metadata) -> Self {
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(file);
        #[cfg(not(unix))]
        let inode = 0;
        Self { modified: file.modified().ok(), length: file.len(), inode }
    }

    /// Whether a clock tick has passed; a time in the future never counts.
    fn is_settled(&self) -> bool {
        let age = self.modified.and_then(|modified| modified.elapsed().ok());
        age.is_some_and(|age| age > CLOCK_TICK_MAX)
    }
}

pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join("federation.json")
}

pub(super) fn read(folder: &Path) -> Result<ClientList> {
    let path = path(folder);
    let text = fs::read(&path).map_err(|e| Error::storage(path.display(), e))?;
    let refuse = |what: String| Err(Error::storage(path.display(), what));
    // Other versions may have other fields.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    if let Ok(Versioned { version }) = serde_json::from_slice(&text)
        && version != VERSION
    {
        return refuse(format!("it has version {version}, this program reads {VERSION}"));
    }
    match serde_json::from_slice::<ClientList>(&text) {
        // Equal to the byte.
        Ok(list) if to_text(&list).as_bytes() == text => Ok(list),
        Ok(_) => refuse(format!("it is damaged (its checksum does not match){FROM_COPY}")),
        Err(error) => refuse(format!("it is damaged or cut short ({error}){FROM_COPY}")),
    }
}

pub(super) fn write(folder: &Path, list: &ClientList) -> Result<()> {
    write_privately(&path(folder), to_text(list).as_bytes())
}

/// The file of a list, with its checksum: the CRC-32 of the text with zero in its place.
fn to_text(list: &ClientList) -> String {
    let text = serde_json::to_string_pretty(list).expect("a registry is plain data") + "\n";
    let sum = crc32fast::hash(text.as_bytes());
    text.replacen(r#""sum": 0"#, &format!(r#""sum": {sum}"#), 1)
}
