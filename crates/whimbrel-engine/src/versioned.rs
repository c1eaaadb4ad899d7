//! Small files of coordinator and clients, with a version and a checksum.
//!
//! ```text
//! "WHIMFILE"  version u32  crc u32  content          numbers little-endian, a CRC-32 of the content
//! ```
//!
//! All files share one version, raised when the content of any changes. Other versions, damaged files
//! and files without a version are refused.

use crate::checkpoint::write_privately;
use std::io::ErrorKind;
use std::path::Path;
use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Result, Wire};

const MAGIC: &[u8; 8] = b"WHIMFILE";
const VERSION: u32 = 3;
const HEAD: usize = 16;
const DAMAGED: &str = "it is damaged or cut short (its checksum does not match)\n\
                       hint: restore the folder from a copy";

/// Writes a file atomically, readable only by its owner.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    let sum = crc32fast::hash(content).to_le_bytes();
    write_privately(path, &[&MAGIC[..], &VERSION.to_le_bytes(), &sum, content].concat())
}

/// Reads a file; `None` if it does not exist.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let bytes = match std::fs::read(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|e| Error::storage(path.display(), e))?,
    };
    let refuse = |what: String| Err(Error::storage(path.display(), what));
    let word =
        |at: usize| bytes.get(at..at + 4).and_then(|w| w.try_into().ok()).map(u32::from_le_bytes);
    match (bytes.starts_with(MAGIC), word(8), word(12)) {
        (true, Some(VERSION), Some(sum)) if crc32fast::hash(&bytes[HEAD..]) == sum => {
            Ok(Some(bytes[HEAD..].to_vec()))
        }
        (true, Some(version), _) if version != VERSION => {
            refuse(format!("it has version {version}, this program reads {VERSION}"))
        }
        (true, ..) => refuse(DAMAGED.into()),
        (false, ..) => refuse("it is not a file of this program".into()),
    }
}

/// The file of a client's identity under masks.
pub const MASK_IDENTITY: &str = "mask-identity";

/// The secret in a file, drawn from the operating system where there is none.
pub fn secret(path: &Path) -> Result<[u8; 32]> {
    if let Some(kept) = read(path)? {
        let kept = kept.try_into();
        return kept.map_err(|_| Error::storage(path.display(), "this is not a secret"));
    }
    let drawn = ring::rand::generate(&ring::rand::SystemRandom::new());
    let drawn: [u8; 32] =
        drawn.map_err(|_| Error::internal("the system provides no random numbers"))?.expose();
    write(path, &drawn)?;
    Ok(drawn)
}

/// The file in a client's folder that holds its personal artifact.
pub const OWN: &str = "own";

/// The personal artifact in a client's folder; `None` without one.
pub fn read_own(folder: &Path) -> Result<Option<Artifact>> {
    read(&folder.join(OWN))?.map(|bytes| Artifact::from_bytes(&bytes)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_back_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pins");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, b"whimbrel").unwrap();
        let whole = std::fs::read(&path).unwrap();
        let hex = whimbrel_core::wire::hex(&whole);
        assert_eq!(hex, "5748494d46494c45030000002b9963af7768696d6272656c");
        assert_eq!(read(&path).unwrap().unwrap(), b"whimbrel");
        let said = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read(&path).unwrap_err().to_string()
        };
        for at in 12..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(said(&damaged).contains("damaged"), "at {at}");
        }
        for length in 8..whole.len() {
            assert!(said(&whole[..length]).contains("damaged"), "cut to {length}");
        }
        let mut other = whole.clone();
        other[8] = 9;
        assert!(said(&other).contains("it has version 9, this program reads 3"));
        assert!(said(b"whimbrel").contains("not a file of this program"));
    }
}
