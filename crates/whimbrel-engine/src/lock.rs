//! One process per folder: a second one would write over what the first counts on.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use whimbrel_core::{Error, Result};

/// The file that is locked. It stays in the folder and means nothing by itself.
pub const LOCK_FILE: &str = "lock";

/// A folder held by this process until the value is dropped, or the process ends in any way.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Takes a folder, which must exist; refused while another process holds it.
    pub fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(LOCK_FILE);
        let fault = |e: std::io::Error| Error::storage(path.display(), e);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(fault)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => {
                Err(Error::config(format!("another process works in {}", folder.display()))
                    .hint("wait for it or stop it, or choose another folder"))
            }
            Err(TryLockError::Error(e)) => Err(fault(e)),
        }
    }

    /// Whether a process holds the folder now.
    pub fn is_held(folder: &Path) -> bool {
        let Ok(file) = File::open(folder.join(LOCK_FILE)) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_held_once_and_free_again_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!FolderLock::is_held(folder.path()));
        let held = FolderLock::take(folder.path()).unwrap();
        let refused = FolderLock::take(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("another process works in"), "{refused}");
        assert!(FolderLock::is_held(folder.path()));
        drop(held);
        assert!(!FolderLock::is_held(folder.path()));
        FolderLock::take(folder.path()).unwrap();
    }
}
