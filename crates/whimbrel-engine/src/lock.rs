//! A lock that admits one process per folder.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;
use whimbrel_core::{Error, Result};

/// The locked file. It stays in the folder; its existence has no meaning.
pub const LOCK_FILE: &str = "lock";
/// Attempts before a folder is refused: probing ([`FolderLock::is_held`]) takes the lock briefly.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// A folder that this process has locked until the value is dropped or the process ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Locks an existing folder; refused while another process holds the lock.
    pub fn take(folder: &Path) -> Result<Self> {
        Self::take_with(folder, || sleep(PAUSE))
    }

    fn take_with(folder: &Path, mut pause: impl FnMut()) -> Result<Self> {
        let path = folder.join(LOCK_FILE);
        let fault = |e: std::io::Error| Error::storage(path.display(), e);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(fault)?;
        for _ in 0..TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::WouldBlock) => pause(),
                Err(TryLockError::Error(e)) => return Err(fault(e)),
            }
        }
        Err(Error::config(format!("another process works in {}", folder.display()))
            .hint("wait for it or stop it, or choose another folder"))
    }

    /// Whether a process holds the lock now.
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

    #[test]
    fn whoever_only_asks_keeps_nobody_out() {
        let folder = tempfile::tempdir().unwrap();
        drop(FolderLock::take(folder.path()).unwrap());
        // In the midst of `is_held`.
        let asking = File::open(folder.path().join(LOCK_FILE)).unwrap();
        asking.try_lock_shared().unwrap();
        let mut pauses = 0;
        let taken = FolderLock::take_with(folder.path(), || {
            pauses += 1;
            if pauses == 3 {
                asking.unlock().unwrap();
            }
        });
        assert!(taken.is_ok());
        assert_eq!(pauses, 3);
    }
}
