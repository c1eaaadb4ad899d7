//! What a client keeps between rounds: two slots, written in turn.
//!
//! One holds the last step that was accepted, the other the step that waits for its fate. A new
//! step is written over the older of the two and made durable before its upload leaves; so
//! whatever happens, one of them is the state that the coordinator counts on.
//!
//! ```text
//! slot   "WHIMSLOT"  version u32  length u64  crc u32  payload      crc of length and payload
//! ```

use crate::point::Point;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use whimbrel_core::{Error, Result, Wire, wire};
use whimbrel_engine::checkpoint::sync_folder;

const MAGIC: &[u8; 8] = b"WHIMSLOT";
const VERSION: u32 = 2;
const HEAD: usize = 24;

/// One step, as it is kept.
#[derive(Clone, PartialEq, Debug)]
pub struct Slot {
    /// Which step.
    pub point: Point,
    /// The accepted step that it builds on.
    pub base: Option<Point>,
    /// The client's number when it was made.
    pub client: u32,
    /// SHA-256 of the message that it answers.
    pub asked: Vec<u8>,
    /// The state after it.
    pub state: Vec<u8>,
    /// What is uploaded for it.
    pub upload: Vec<u8>,
}

wire!(Slot { point, base, client, asked, state, upload });

/// The two slots of a folder.
pub struct Slots {
    files: [(PathBuf, File); 2],
    /// Which file the accepted step is in.
    committed: Option<(usize, Slot)>,
    staged: Option<(usize, Slot)>,
}

impl Slots {
    /// Opens a folder's slots; makes empty ones.
    pub fn open(folder: &Path) -> Result<Self> {
        let mut files = [open(folder.join("slot-a"))?, open(folder.join("slot-b"))?];
        let mut found: Vec<(usize, Slot)> = Vec::new();
        for (at, (path, file)) in files.iter_mut().enumerate() {
            found.extend(read(path, file)?.map(|slot| (at, slot)));
        }
        // Slots whose folder is forgotten in a crash are lost, however durable they are. The folders
        // above may be new as well (`joined/NAME`), and may be none of this client's to open.
        sync_folder(folder).map_err(|e| Error::storage(folder.display(), e))?;
        for above in folder.ancestors().skip(1).take(2) {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            let _ = sync_folder(above);
        }
        found.sort_by_key(|(_, slot)| slot.point);
        let newer = found.pop();
        let older = found.pop();
        // The newer one waits for its fate until the coordinator tells. The older one is what it
        // builds on; if it is something else, it is from before and has been overtaken.
        let base = newer.as_ref().and_then(|(_, slot)| slot.base);
        let committed = older.filter(|(_, slot)| Some(slot.point) == base);
        Ok(Self { files, committed, staged: newer })
    }

    /// The last step known to be accepted.
    pub fn committed(&self) -> Option<&Slot> {
        self.committed.as_ref().map(|(_, slot)| slot)
    }

    /// The step whose fate is not known.
    pub fn staged(&self) -> Option<&Slot> {
        self.staged.as_ref().map(|(_, slot)| slot)
    }

    /// Makes a step durable. Only then may its upload leave. On an error, as on a full disk, the
    /// accepted step is untouched and the writing can be tried again.
    pub fn stage(&mut self, slot: Slot) -> Result<()> {
        let at = self.committed.as_ref().map_or(0, |(at, _)| 1 - at);
        self.staged = None;
        let (path, file) = &mut self.files[at];
        if let Err(e) = write(file, &slot) {
            // After a sync that failed the bytes can be read and may not be on the disk: a process
            // that starts next must not take them for a step that was kept.
            let _ = file.set_len(0);
            return Err(Error::storage(path.display(), e));
        }
        self.staged = Some((at, slot));
        Ok(())
    }

    /// The staged step was accepted.
    pub fn accept(&mut self) {
        if let Some(staged) = self.staged.take() {
            self.committed = Some(staged);
        }
    }

    /// No step counts; the next one is the first.
    pub fn forget(&mut self) {
        (self.committed, self.staged) = (None, None);
    }

    /// The staged step was not accepted. The file stays: read again after a crash, it meets the
    /// same fate.
    pub fn drop_staged(&mut self) {
        self.staged = None;
    }
}

fn open(path: PathBuf) -> Result<(PathBuf, File)> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    match opened {
        Ok(file) => Ok((path, file)),
        Err(e) => Err(Error::storage(path.display(), e)),
    }
}

/// What is in a slot; none where nothing is, or where a crash cut the writing short.
fn read(path: &Path, file: &mut File) -> Result<Option<Slot>> {
    let fault = |e: std::io::Error| Error::storage(path.display(), e);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(fault)?;
    let Some((head, rest)) = bytes.split_at_checked(HEAD) else { return Ok(None) };
    if &head[..8] != MAGIC {
        return Ok(None);
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
    Ok(whole.and_then(|payload| Slot::from_bytes(payload).ok()))
}

fn write(file: &mut File, slot: &Slot) -> std::io::Result<()> {
    let payload = slot.to_bytes();
    let length = (payload.len() as u64).to_le_bytes();
    let sum = checksum(&length, &payload).to_le_bytes();
    let head = [&MAGIC[..], &VERSION.to_le_bytes(), &length, &sum].concat();
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&head)?;
    file.write_all(&payload)?;
    file.sync_data()
}

fn checksum(length: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(length);
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(step: u32, base: Option<u32>, size: usize) -> Slot {
        Slot {
            point: Point { stage: 0, step },
            base: base.map(|step| Point { stage: 0, step }),
            client: 3,
            asked: vec![9; 2],
            state: vec![step as u8; size],
            upload: vec![7; 5],
        }
    }

    #[test]
    fn after_every_crash_one_slot_is_what_the_coordinator_counts_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut slots = Slots::open(folder.path()).unwrap();
        assert_eq!((slots.committed(), slots.staged()), (None, None));
        slots.stage(slot(0, None, 50)).unwrap();
        let again = Slots::open(folder.path()).unwrap();
        assert_eq!((again.committed(), again.staged()), (None, Some(&slot(0, None, 50))));
        slots.accept();
        // Longer, shorter, and one that was dropped.
        slots.stage(slot(1, Some(0), 90)).unwrap();
        slots.drop_staged();
        slots.stage(slot(2, Some(0), 10)).unwrap();
        let again = Slots::open(folder.path()).unwrap();
        assert_eq!(again.committed(), Some(&slot(0, None, 50)));
        assert_eq!(again.staged(), Some(&slot(2, Some(0), 10)));
        slots.accept();
        slots.stage(slot(3, Some(2), 20)).unwrap();
        let mut again = Slots::open(folder.path()).unwrap();
        assert_eq!(again.committed(), Some(&slot(2, Some(0), 10)));
        again.accept();
        assert_eq!(again.committed(), Some(&slot(3, Some(2), 20)));
    }

    #[test]
    fn a_torn_write_leaves_the_accepted_step() {
        let folder = tempfile::tempdir().unwrap();
        let mut slots = Slots::open(folder.path()).unwrap();
        slots.stage(slot(0, None, 50)).unwrap();
        slots.accept();
        slots.stage(slot(1, Some(0), 50)).unwrap();
        let path = folder.path().join("slot-b");
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let again = Slots::open(folder.path()).unwrap();
            // Its fate is asked for again, and the coordinator says: accepted.
            assert_eq!((again.committed(), again.staged()), (None, Some(&slot(0, None, 50))));
        }
    }

    #[test]
    fn a_slot_has_its_golden_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let mut slots = Slots::open(folder.path()).unwrap();
        slots.stage(slot(1, Some(0), 2)).unwrap();
        let bytes = std::fs::read(folder.path().join("slot-a")).unwrap();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "5748494d534c4f5402000000210000000000000064552458\
             000000000100000001000000000000000003000000020909020101050707070707"
        );
    }
}
