//! An append-only text file that can be truncated to a number of lines.

use crate::checkpoint::{fewer, private_file};
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use whimbrel_core::{Error, Result};

/// The maximum of buffered bytes.
const WAITING_BYTES_MAX: usize = 64 << 10;
/// The maximum of bytes that are written before the file is synced.
const UNSYNCED_BYTES_MAX: usize = 256 << 10;

/// The part of a line that enters the checksum.
pub(crate) type Summed = fn(&[u8], &mut crc32fast::Hasher);

/// The whole line.
pub(crate) fn whole_line(line: &[u8], sum: &mut crc32fast::Hasher) {
    sum.update(line);
}

/// The whole lines of a file.
pub(crate) fn whole_lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"))
}

/// An open file with its number of lines.
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    /// Durable bytes.
    durable: u64,
    /// The lines after them, until they are durable: after a failed sync the system may report
    /// unwritten data as written.
    unsynced: Vec<u8>,
    /// The number of these bytes that were written. After a failed write the file may have more.
    written: usize,
    lines: u64,
    /// CRC-32 of all lines.
    sum: crc32fast::Hasher,
    summed: Summed,
    sync: fn(&File) -> std::io::Result<()>,
}

impl Log {
    /// Creates or empties the file, which only its owner can read.
    pub fn create(path: PathBuf, summed: Summed) -> Result<Self> {
        let file = private_file().write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(|e| Error::storage(path.display(), e))?;
        Ok(Self::new(path, file, (0, 0), crc32fast::Hasher::new(), summed))
    }

    /// Opens a file and truncates it to its first `lines` lines.
    pub fn resume(path: PathBuf, lines: u64, summed: Summed) -> Result<Self> {
        let old = fs::read(&path).map_err(|e| Error::storage(path.display(), e))?;
        let (mut found, mut end, mut sum) = (0, 0, crc32fast::Hasher::new());
        for line in whole_lines(&old).take(lines as usize) {
            (found, end) = (found + 1, end + line.len() as u64);
            summed(line, &mut sum);
        }
        if found < lines {
            return Err(Error::storage(path.display(), fewer(found, lines)));
        }
        let cut_back = || -> std::io::Result<File> {
            let file = OpenOptions::new().write(true).open(&path)?;
            file.set_len(end)?;
            file.sync_all()?;
            Ok(file)
        };
        let file = cut_back().map_err(|e| Error::storage(path.display(), e))?;
        Ok(Self::new(path, file, (end, lines), sum, summed))
    }

    fn new(
        path: PathBuf,
        file: File,
        (durable, lines): (u64, u64),
        sum: crc32fast::Hasher,
        summed: Summed,
    ) -> Self {
        let sync = |file: &File| file.sync_data();
        Self { path, file, durable, unsynced: Vec::new(), written: 0, lines, sum, summed, sync }
    }

    /// Number of lines.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// CRC-32 of all lines.
    pub fn sum(&self) -> u32 {
        self.sum.clone().finalize()
    }

    /// Appends a line with its line break; it may stay in memory until [`Log::flush`]. The line
    /// counts even if the write fails, which can be retried.
    pub fn append(&mut self, line: &str) -> Result<()> {
        debug_assert!(line.ends_with('\n') && line.trim_end().lines().count() == 1);
        self.unsynced.extend_from_slice(line.as_bytes());
        (self.summed)(line.as_bytes(), &mut self.sum);
        self.lines += 1;
        match self.unsynced.len() {
            UNSYNCED_BYTES_MAX.. => self.sync(),
            bytes if bytes - self.written >= WAITING_BYTES_MAX => self.flush(),
            _ => Ok(()),
        }
    }

    /// Writes the buffer. It can be retried after an error: the lines stay buffered.
    pub fn flush(&mut self) -> Result<()> {
        let waiting = &self.unsynced[self.written..];
        if waiting.is_empty() {
            return Ok(());
        }
        let at = SeekFrom::Start(self.durable + self.written as u64);
        let written = self.file.seek(at).and_then(|_| self.file.write_all(waiting));
        written.map_err(|e| Error::storage(self.path.display(), e))?;
        self.written = self.unsynced.len();
        Ok(())
    }

    /// Makes all lines durable. A retry after an error rewrites all lines that may not be durable.
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        if let Err(e) = (self.sync)(&self.file) {
            self.written = 0;
            return Err(Error::storage(self.path.display(), e));
        }
        self.durable += self.unsynced.len() as u64;
        self.unsynced.clear();
        self.written = 0;
        Ok(())
    }
}

impl Drop for Log {
    /// Flushes like a buffered file; call [`Log::sync`] to see errors.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    #[test]
    fn a_torn_line_and_lines_past_the_checkpoint_are_cut_off() {
        for tail in [&b""[..], b"c\n", b"c\nd\n{\"torn", b"\xff\xfe\x80"] {
            let (_folder, path) = log_of(&[b"a\nb\n", tail].concat());
            let mut log = Log::resume(path.clone(), 2, whole_line).unwrap();
            log.append("next\n").unwrap();
            log.sync().unwrap();
            assert_eq!(log.lines(), 3);
            assert_eq!(fs::read(&path).unwrap(), b"a\nb\nnext\n");
        }
    }

    #[test]
    fn missing_lines_are_an_error_and_change_nothing() {
        let (_folder, path) = log_of(b"a\nb\ntorn");
        let error = Log::resume(path.clone(), 3, whole_line).err().unwrap().to_string();
        assert!(error.ends_with("it has 2 lines, and the checkpoint was made after 3"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"a\nb\ntorn");
        assert!(Log::resume(path.with_file_name("absent"), 0, whole_line).is_err());
    }

    #[test]
    fn after_a_failed_sync_lines_are_written_again() {
        let (_folder, path) = log_of(b"a\n");
        let mut log = Log::resume(path.clone(), 1, whole_line).unwrap();
        log.append("b\n").unwrap();
        log.sync = |_| Err(std::io::Error::from_raw_os_error(5));
        assert!(log.sync().is_err());
        // As the system may have it: the line never reached the disk, and counts as written.
        fs::write(&path, b"a\n").unwrap();
        log.append("c\n").unwrap();
        log.sync = |file| file.sync_data();
        log.sync().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a\nb\nc\n");
        log.append("d\n").unwrap();
        log.sync().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a\nb\nc\nd\n");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let mut log = Log::create(path, whole_line).unwrap();
        log.append("kept in memory\n").unwrap();
        let error = log.sync().unwrap_err();
        let Error::Storage { path, what, .. } = error else { panic!("{error}") };
        assert!(path.ends_with("journal") && what.contains("No space left"), "{path}: {what}");
    }
}
