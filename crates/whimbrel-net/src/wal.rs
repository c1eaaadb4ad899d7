//! The write-ahead log: framed and checksummed records, overwritten from the beginning once a
//! checkpoint contains them.
//!
//! ```text
//! file    "WHIMWAL\0"  version u32  epoch u32  crc u32      then records
//! record  length u32  epoch u32  crc u32  payload           crc of length, epoch and payload
//! ```
//!
//! Numbers are little-endian, checksums CRC-32. [`Wal::reset`] begins a new epoch over the old
//! bytes, since allocated blocks become durable faster than a growing file. Reading ends at the first
//! record that is torn or of another epoch; the next record overwrites it. Records become durable in
//! order, so a complete record of the same epoch behind a torn one means damage rather than a crash,
//! and the log is refused.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use whimbrel_core::{Error, Result};
use whimbrel_engine::checkpoint::{private_file, sync_folder, write_privately_with};

const MAGIC: &[u8; 8] = b"WHIMWAL\0";
const VERSION: u32 = 1;
const HEAD: u64 = 20;
const RECORD_HEAD: usize = 12;

/// An open log.
pub struct Wal {
    path: PathBuf,
    file: File,
    epoch: u32,
    /// Position of the next record.
    end: u64,
    /// Whether a sync failed, after which earlier writes may be missing on the disk.
    doubtful: bool,
    sync: fn(&File) -> std::io::Result<()>,
}

impl Wal {
    /// Bytes of a log without records.
    pub const EMPTY_BYTES: u64 = HEAD;

    /// Creates an empty log, or empties an existing one.
    pub fn create(path: &Path) -> Result<Self> {
        let made = private_file().read(true).write(true).create(true).truncate(true).open(path);
        let file = made.map_err(|e| Error::storage(path.display(), e))?;
        let path = path.to_path_buf();
        let mut wal = Self { path, file, epoch: 0, end: HEAD, doubtful: false, sync };
        wal.begin(1)?;
        let folder = wal.path.parent().unwrap_or(Path::new("."));
        let synced = wal.file.sync_all().and_then(|()| sync_folder(folder));
        synced.map_err(|e| wal.fault(e))?;
        Ok(wal)
    }

    /// Opens a log and passes its records to `each`. A damaged log is an error.
    pub fn open(path: &Path, each: impl FnMut(&[u8]) -> Result<()>) -> Result<Self> {
        let fault = |e: std::io::Error| Error::storage(path.display(), e);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(fault)?;
        match Self::read(path, file, each)? {
            // The process died while it created the file.
            None => Self::create(path),
            Some((wal, None)) => Ok(wal),
            Some((_, Some(damage))) => Err(Error::storage(path.display(), damage)),
        }
    }

    /// Reads a log up to its damage, without changing it; returns the bytes of the readable records
    /// and the damage.
    pub fn inspect(
        path: &Path,
        each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<(u64, Option<Damage>)> {
        let file = File::open(path).map_err(|e| Error::storage(path.display(), e))?;
        let found = Self::read(path, file, each)?;
        Ok(found.map_or((0, None), |(wal, damage)| (wal.bytes(), damage)))
    }

    /// `None` if the head is incomplete.
    fn read(
        path: &Path,
        file: File,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<Option<(Self, Option<Damage>)>> {
        let fault = |e: std::io::Error| Error::storage(path.display(), e);
        let length = file.metadata().map_err(fault)?.len();
        let mut reader = BufReader::new(file);
        let mut head = [0; HEAD as usize];
        match reader.read_exact(&mut head) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            other => other.map_err(fault)?,
        }
        let (epoch, damaged_head) = match epoch(&head) {
            Ok(epoch) => (epoch, None),
            Err(HeadFault::Other(what)) => return Err(Error::storage(path.display(), what)),
            Err(HeadFault::Damaged(what)) => {
                // The first record also holds the epoch.
                let mut first = [0; RECORD_HEAD];
                let read = reader.read_exact(&mut first).and_then(|()| reader.seek_relative(-12));
                (read.map_or(0, |()| word(&first, 4)), Some(what))
            }
        };
        let mut payload = Vec::new();
        let (mut end, mut records) = (HEAD, 0);
        while record(&mut reader, epoch, length - end, &mut payload).map_err(fault)? {
            end += (RECORD_HEAD + payload.len()) as u64;
            records += 1;
            each(&payload).map_err(|e| Error::storage(path.display(), e))?;
        }
        let mut file = reader.into_inner();
        let mut behind = Vec::new();
        let read = file.seek(SeekFrom::Start(end)).and_then(|_| file.read_to_end(&mut behind));
        read.map_err(fault)?;
        let behind = whole_records(&behind, epoch);
        let damage = match damaged_head {
            Some(what) => Some(Damage::Head(what)),
            None => (behind > 0).then_some(Damage::Record { record: records + 1, at: end, behind }),
        };
        let path = path.to_path_buf();
        Ok(Some((Self { path, file, epoch, end, doubtful: false, sync }, damage)))
    }

    /// Appends a record and makes it durable. After an error the log is unchanged.
    pub fn append(&mut self, payload: &[u8]) -> Result<()> {
        let length = u32::try_from(payload.len())
            .map_err(|_| Error::internal("a record of the log exceeds 4 GiB"))?;
        let mut head = [0; RECORD_HEAD];
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        let sum = checksum(&head[..8], payload);
        head[8..].copy_from_slice(&sum.to_le_bytes());
        self.mend()?;
        if let Err(e) = self.write(&head, payload) {
            // It will not be acknowledged, so no later reader may find it.
            let _ = self.file.seek(SeekFrom::Start(self.end));
            let _ = self.file.write_all(&[0; RECORD_HEAD]);
            return Err(self.fault(e));
        }
        self.end += (RECORD_HEAD + payload.len()) as u64;
        Ok(())
    }

    fn write(&mut self, head: &[u8], payload: &[u8]) -> std::io::Result<()> {
        self.file.seek(SeekFrom::Start(self.end))?;
        if payload.len() < 64 << 10 {
            self.file.write_all(&[head, payload].concat())?;
        } else {
            self.file.write_all(head)?;
            self.file.write_all(payload)?;
        }
        (self.sync)(&self.file).inspect_err(|_| self.doubtful = true)
    }

    /// After a failed sync the system may consider pages clean that never reached the disk, and a
    /// second sync would do nothing. Therefore all records are copied to a new file.
    fn mend(&mut self) -> Result<()> {
        if !self.doubtful {
            return Ok(());
        }
        let fault = |e: std::io::Error| Error::storage(self.path.display(), e);
        let records = self.end - HEAD;
        self.file.seek(SeekFrom::Start(HEAD)).map_err(fault)?;
        let (file, epoch) = (&mut self.file, self.epoch);
        write_privately_with(&self.path, |out| {
            out.write_all(&head(epoch))?;
            let copied = std::io::copy(&mut file.take(records), out)?;
            if copied == records { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
        })?;
        let opened = OpenOptions::new().read(true).write(true).open(&self.path);
        self.file = opened.map_err(fault)?;
        self.doubtful = false;
        Ok(())
    }

    /// Begins a new epoch, since a checkpoint contains all records. Durable with the next record;
    /// until then old records may reappear, and their reader must recognise them.
    pub fn reset(&mut self) -> Result<()> {
        self.begin(self.epoch.wrapping_add(1))
    }

    /// Bytes of the records.
    pub fn bytes(&self) -> u64 {
        self.end - HEAD
    }

    fn begin(&mut self, epoch: u32) -> Result<()> {
        let head = head(epoch);
        let written = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(&head));
        written.map_err(|e| self.fault(e))?;
        self.epoch = epoch;
        self.end = HEAD;
        Ok(())
    }

    fn fault(&self, error: std::io::Error) -> Error {
        Error::storage(self.path.display(), error)
    }
}

fn sync(file: &File) -> std::io::Result<()> {
    file.sync_data()
}

fn head(epoch: u32) -> Vec<u8> {
    let mut head = [&MAGIC[..], &VERSION.to_le_bytes(), &epoch.to_le_bytes()].concat();
    head.extend(crc32fast::hash(&head).to_le_bytes());
    head
}

/// The fault of a head.
enum HeadFault {
    /// Another format or version.
    Other(String),
    /// A damaged head; the records may be readable.
    Damaged(&'static str),
}

fn epoch(head: &[u8; HEAD as usize]) -> std::result::Result<u32, HeadFault> {
    const NOT_A_LOG: &str = "it does not begin like a log";
    let is_log = &head[..8] == MAGIC;
    let is_intact = crc32fast::hash(&head[..16]) == word(head, 16);
    match (is_log, is_intact, word(head, 8)) {
        (true, true, VERSION) => Ok(word(head, 12)),
        (true, true, other) => {
            Err(HeadFault::Other(format!("it has version {other}, this program reads {VERSION}")))
        }
        (true, false, _) => {
            Err(HeadFault::Damaged("its head is damaged (its checksum does not match)"))
        }
        (false, false, _) => Err(HeadFault::Damaged(NOT_A_LOG)),
        (false, true, _) => Err(HeadFault::Other(NOT_A_LOG.into())),
    }
}

/// The little-endian number at a position.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The position of damage in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// In the head; the records are read nevertheless.
    Head(&'static str),
    /// In a record: its number from one, its position, and the complete records behind it.
    Record { record: u64, at: u64, behind: u64 },
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Head(what) => f.write_str(what),
            Self::Record { record, at, behind } => write!(
                f,
                "record {record}, at byte {at}, is damaged, and {behind} complete records follow it"
            ),
        }
    }
}

/// Number of complete records of an epoch in these bytes, at any position.
fn whole_records(mut bytes: &[u8], epoch: u32) -> u64 {
    let (epoch, mut found) = (epoch.to_le_bytes(), 0);
    while bytes.len() >= RECORD_HEAD {
        let length = word(bytes, 0) as usize;
        let payload = (bytes[4..8] == epoch).then(|| bytes[RECORD_HEAD..].get(..length)).flatten();
        match payload.filter(|payload| checksum(&bytes[..8], payload) == word(bytes, 8)) {
            Some(payload) => {
                found += 1;
                bytes = &bytes[RECORD_HEAD + payload.len()..];
            }
            None => bytes = &bytes[1..],
        }
    }
    found
}

/// Reads the next record; false at the end of the log, also of a torn one.
fn record(
    file: &mut impl Read,
    epoch: u32,
    left: u64,
    payload: &mut Vec<u8>,
) -> std::io::Result<bool> {
    if left < RECORD_HEAD as u64 {
        return Ok(false);
    }
    let mut head = [0; RECORD_HEAD];
    file.read_exact(&mut head)?;
    let length = u64::from(word(&head, 0));
    if word(&head, 4) != epoch || length > left - RECORD_HEAD as u64 {
        return Ok(false);
    }
    payload.resize(length as usize, 0);
    file.read_exact(payload)?;
    Ok(checksum(&head[..8], payload) == word(&head, 8))
}

/// CRC-32 of both parts.
pub(crate) fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wal");
        (folder, path)
    }

    fn open(path: &Path) -> Result<(Wal, Vec<Vec<u8>>)> {
        let mut found = Vec::new();
        let wal = Wal::open(path, |record| {
            found.push(record.to_vec());
            Ok(())
        })?;
        Ok((wal, found))
    }

    fn records(path: &Path) -> Vec<Vec<u8>> {
        open(path).unwrap().1
    }

    #[test]
    fn the_file_has_its_golden_bytes() {
        let (_folder, path) = fresh();
        let mut wal = Wal::create(&path).unwrap();
        wal.append(b"whimbrel").unwrap();
        assert_eq!(
            whimbrel_core::wire::hex(&std::fs::read(&path).unwrap()),
            "5748494d57414c000100000001000000a3c09266\
             080000000100000037de4cce7768696d6272656c"
        );
    }

    #[test]
    fn a_torn_record_is_rolled_back_and_overwritten() {
        let (_folder, path) = fresh();
        let mut wal = Wal::create(&path).unwrap();
        wal.append(b"first").unwrap();
        let good = std::fs::read(&path).unwrap();
        wal.append(b"second").unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in good.len()..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let (mut wal, found) = open(&path).unwrap();
            assert_eq!(found, [b"first".to_vec()], "cut to {length}");
            wal.append(b"next").unwrap();
            assert_eq!(records(&path), [b"first".to_vec(), b"next".to_vec()]);
        }
        for at in good.len()..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(records(&path), [b"first".to_vec()], "damaged at {at}");
        }
    }

    #[test]
    fn a_damaged_record_with_whole_ones_behind_it_is_refused_and_kept() {
        let (_folder, path) = fresh();
        let mut wal = Wal::create(&path).unwrap();
        wal.append(b"of an old epoch, and long enough to stand behind the new ones").unwrap();
        wal.reset().unwrap();
        let records: Vec<Vec<u8>> = (0..20u8).map(|n| vec![n; 3 + usize::from(n)]).collect();
        let mut ends = vec![HEAD as usize];
        for record in &records {
            wal.append(record).unwrap();
            ends.push(wal.end as usize);
        }
        let whole = std::fs::read(&path).unwrap();
        for at in HEAD as usize..ends[20] {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x04;
            std::fs::write(&path, &damaged).unwrap();
            let record = ends.iter().rposition(|end| *end <= at).unwrap();
            let mut found = Vec::new();
            let read = Wal::inspect(&path, |record| {
                found.push(record.to_vec());
                Ok(())
            });
            // Whether a crash tore the last record cannot be known.
            let damage = (record < 19).then_some(record as u64 + 1);
            let found_at = read.unwrap().1.map(|damage| match damage {
                Damage::Record { record, .. } => record,
                Damage::Head(what) => panic!("{what}"),
            });
            assert_eq!(found_at, damage, "at {at}");
            assert_eq!(found, records[..record], "at {at}");
            if record < 19 {
                let error = open(&path).err().unwrap().to_string();
                assert!(error.contains(&format!("record {}, ", record + 1)), "{error}");
            }
            assert_eq!(std::fs::read(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn an_old_epoch_does_not_come_back() {
        let (_folder, path) = fresh();
        let mut wal = Wal::create(&path).unwrap();
        wal.append(b"one").unwrap();
        wal.append(b"two").unwrap();
        wal.reset().unwrap();
        assert_eq!(records(&path), Vec::<Vec<u8>>::new());
        wal.append(b"new").unwrap();
        // The old second record stands right behind the new first one.
        assert_eq!(records(&path), [b"new".to_vec()]);
    }

    /// The first sync after a reset fails, and with it the new head may be lost: what is
    /// acknowledged afterwards must not hang on it.
    #[test]
    fn after_a_failed_sync_everything_is_written_again() {
        let (_folder, path) = fresh();
        let mut wal = Wal::create(&path).unwrap();
        wal.append(b"old").unwrap();
        let old = std::fs::read(&path).unwrap();
        wal.reset().unwrap();
        wal.sync = |_| Err(std::io::Error::from_raw_os_error(5));
        let error = wal.append(b"one").unwrap_err();
        assert!(matches!(error, Error::Storage { .. }), "{error}");
        assert!(records(&path).is_empty(), "it was not acknowledged");
        // As the system may have it: nothing since the last good sync is on the disk.
        std::fs::write(&path, &old).unwrap();
        wal.sync = sync;
        wal.append(b"one").unwrap();
        assert_eq!(records(&path), [b"one".to_vec()]);
        wal.sync = |_| Err(std::io::Error::from_raw_os_error(5));
        assert!(wal.append(b"two").is_err());
        wal.sync = sync;
        wal.append(b"two").unwrap();
        wal.append(b"three").unwrap();
        assert_eq!(records(&path), [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]);
    }

    #[test]
    fn a_reader_that_fails_stops_at_its_record() {
        let (_folder, path) = fresh();
        let mut wal = Wal::create(&path).unwrap();
        [b"one", b"two"].iter().for_each(|record| wal.append(*record).unwrap());
        let mut seen = 0;
        let opened = Wal::open(&path, |_| {
            seen += 1;
            Err(Error::peer("not this one"))
        });
        let error = opened.err().unwrap().to_string();
        assert!(error.contains("wal: ") && error.contains("not this one"), "{error}");
        assert_eq!(seen, 1);
    }

    #[test]
    fn another_file_is_refused_by_name() {
        let (_folder, path) = fresh();
        std::fs::write(&path, b"WHIMBREL and something else").unwrap();
        let error = open(&path).err().unwrap().to_string();
        assert!(error.contains("wal: it does not begin like a log"), "{error}");
        let mut wal = Wal::create(&path).unwrap();
        wal.append(b"x").unwrap();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..HEAD as usize {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let error = open(&path).err().unwrap().to_string();
            let said = if at < 8 { "does not begin like a log" } else { "its head is damaged" };
            assert!(error.contains(said), "{error}");
            // The records stay readable.
            let mut found = Vec::new();
            Wal::inspect(&path, |record| {
                found.push(record.to_vec());
                Ok(())
            })
            .unwrap();
            assert_eq!(found, [b"x".to_vec()]);
        }
        std::fs::write(&path, b"WHIM").unwrap();
        assert!(records(&path).is_empty());
    }

    #[test]
    fn a_claimed_length_beyond_the_file_takes_no_memory() {
        let (_folder, path) = fresh();
        Wal::create(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend([0xff; 4]);
        bytes.extend(1u32.to_le_bytes());
        bytes.extend([0; 64]);
        std::fs::write(&path, bytes).unwrap();
        assert!(records(&path).is_empty());
    }
}
