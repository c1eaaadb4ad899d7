//! The state of a client between rounds, in two slots written alternately.
//!
//! One slot holds the last accepted step, the other the staged step. A new step overwrites the
//! older slot and is durable before its upload is sent, so after any crash one slot holds the
//! state that the coordinator relies on.
//!
//! ```text
//! slot   "WHIMSLOT"  version u32  length u64  crc u32  payload      crc of length and payload
//! ```

use crate::wal::checksum;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use whimbrel_core::{Error, Result, Wire};
use whimbrel_engine::checkpoint::{private_file, sync_folder};
use whimbrel_engine::client::{Record, StepId};

const MAGIC: &[u8; 8] = b"WHIMSLOT";
const VERSION: u32 = 6;
const HEAD: usize = 24;
const NAMES: [&str; 2] = ["slot-a", "slot-b"];

/// The two slots of a folder.
pub struct Slots {
    slots: [Slot; 2],
}

struct Slot {
    path: PathBuf,
    file: File,
    holds: Option<StepId>,
}

impl Slots {
    /// Opens and reads a folder's slots; creates missing ones.
    pub fn open(folder: &Path) -> Result<(Self, Vec<Record>)> {
        let [a, b] = NAMES;
        let mut slots = [open(folder.join(a))?, open(folder.join(b))?];
        let mut found = Vec::new();
        let mut damaged = Vec::new();
        for slot in &mut slots {
            match read(slot)? {
                Content::Empty => {}
                Content::Damaged => damaged.push(slot.path.display().to_string()),
                Content::Whole(record) => {
                    slot.holds = Some(record.at);
                    found.push(record);
                }
            }
        }
        for path in damaged {
            let instead = if found.is_empty() { "" } else { "; the other slot is used" };
            tracing::warn!("{path}: damaged or incompletely written, and skipped{instead}");
        }
        // Slots are lost if a crash forgets their folder. The folders above may be new as well
        // (`joined/NAME`), and may not be accessible.
        sync_folder(folder).map_err(|e| Error::storage(folder.display(), e))?;
        for above in folder.ancestors().skip(1).take(2) {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            let _ = sync_folder(above);
        }
        Ok((Self { slots }, found))
    }

    /// Reads the slots of a folder while its client may be running.
    pub fn read_all(folder: &Path) -> Result<Vec<Record>> {
        let mut found = Vec::new();
        for name in NAMES {
            let path = folder.join(name);
            match File::open(&path) {
                Ok(file) => match read(&mut Slot { path, file, holds: None })? {
                    Content::Whole(record) => found.push(record),
                    Content::Empty | Content::Damaged => {}
                },
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(Error::storage(path.display(), e)),
            }
        }
        Ok(found)
    }

    /// Makes a step durable in the slot that does not hold the accepted one, before its upload is
    /// sent. An error leaves the accepted step untouched, and the write can be retried.
    pub fn write(&mut self, record: &Record, accepted: Option<StepId>) -> Result<()> {
        let at = usize::from(accepted.is_some() && self.slots[0].holds == accepted);
        let slot = &mut self.slots[at];
        slot.holds = None;
        if let Err(e) = write(&mut slot.file, record) {
            // After a failed sync the bytes are readable but may be missing on the disk: the next
            // process must not take them for a durable step.
            let _ = slot.file.set_len(0);
            return Err(Error::storage(slot.path.display(), e));
        }
        slot.holds = Some(record.at);
        Ok(())
    }
}

fn open(path: PathBuf) -> Result<Slot> {
    let opened = private_file().read(true).write(true).create(true).truncate(false).open(&path);
    match opened {
        Ok(file) => Ok(Slot { path, file, holds: None }),
        Err(e) => Err(Error::storage(path.display(), e)),
    }
}

/// Content of a slot.
enum Content {
    Empty,
    /// Bytes without a complete record, as after a crash during a write.
    Damaged,
    Whole(Record),
}

fn read(slot: &mut Slot) -> Result<Content> {
    let Slot { path, file, .. } = slot;
    let fault = |e: std::io::Error| Error::storage(path.display(), e);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(fault)?;
    if bytes.is_empty() {
        return Ok(Content::Empty);
    }
    let Some((head, rest)) = bytes.split_at_checked(HEAD) else { return Ok(Content::Damaged) };
    if &head[..8] != MAGIC {
        return Ok(Content::Damaged);
    }
    let version = u32::from_le_bytes(head[8..12].try_into().expect("four bytes"));
    if version != VERSION {
        let what = format!("it has version {version}, this program reads {VERSION}");
        return Err(Error::storage(path.display(), what));
    }
    let length = u64::from_le_bytes(head[12..20].try_into().expect("eight bytes"));
    let sum = u32::from_le_bytes(head[20..].try_into().expect("four bytes"));
    let payload = usize::try_from(length).ok().and_then(|length| rest.get(..length));
    let whole = payload.filter(|payload| checksum(&head[12..20], payload) == sum);
    let record = whole.and_then(|payload| Record::from_bytes(payload).ok());
    Ok(record.map_or(Content::Damaged, Content::Whole))
}

fn write(file: &mut File, record: &Record) -> std::io::Result<()> {
    let payload = record.to_bytes();
    let length = (payload.len() as u64).to_le_bytes();
    let sum = checksum(&length, &payload).to_le_bytes();
    let head = [&MAGIC[..], &VERSION.to_le_bytes(), &length, &sum].concat();
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&head)?;
    file.write_all(&payload)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::ClientId;
    use whimbrel_engine::Ledger;

    fn record(step: u32, base: Option<u32>, size: usize) -> Record {
        Record {
            at: StepId { stage: 0, step },
            base: base.map(|step| StepId { stage: 0, step }),
            client: ClientId(3),
            asked: vec![9; 2],
            state: vec![step as u8; size],
            upload: vec![7; 5],
            ledger: Ledger::default(),
        }
    }

    fn step(step: u32) -> Option<StepId> {
        Some(StepId { stage: 0, step })
    }

    fn found(folder: &Path) -> Vec<Record> {
        let mut found = Slots::open(folder).unwrap().1;
        found.sort_by_key(|record| record.at);
        found
    }

    #[test]
    fn the_accepted_step_is_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let (mut slots, empty) = Slots::open(folder.path()).unwrap();
        assert!(empty.is_empty());
        slots.write(&record(0, None, 50), None).unwrap();
        assert_eq!(found(folder.path()), [record(0, None, 50)]);
        // Longer, shorter, and a dropped step.
        slots.write(&record(1, Some(0), 90), step(0)).unwrap();
        slots.write(&record(2, Some(0), 10), step(0)).unwrap();
        assert_eq!(found(folder.path()), [record(0, None, 50), record(2, Some(0), 10)]);
        let (mut slots, _) = Slots::open(folder.path()).unwrap();
        slots.write(&record(3, Some(2), 20), step(2)).unwrap();
        assert_eq!(found(folder.path()), [record(2, Some(0), 10), record(3, Some(2), 20)]);
    }

    #[test]
    fn a_torn_write_leaves_the_accepted_step() {
        let folder = tempfile::tempdir().unwrap();
        let (mut slots, _) = Slots::open(folder.path()).unwrap();
        slots.write(&record(0, None, 50), None).unwrap();
        slots.write(&record(1, Some(0), 50), step(0)).unwrap();
        let path = folder.path().join("slot-b");
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(found(folder.path()), [record(0, None, 50)]);
        }
    }

    #[test]
    fn a_slot_has_its_golden_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (mut slots, _) = Slots::open(folder.path()).unwrap();
        slots.write(&record(1, Some(0), 2), None).unwrap();
        let bytes = std::fs::read(folder.path().join("slot-a")).unwrap();
        assert_eq!(
            whimbrel_core::wire::hex(&bytes),
            "5748494d534c4f54060000003f000000000000005d4138da\
             000000000100000001000000000000000003000000020909020101050707070707\
             000000000000000000000000000000000000000000000000000000000000"
        );
    }
}
