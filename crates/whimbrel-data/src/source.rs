//! Where bytes come from: a file, plain or gzipped, or memory.

use crate::{Error, Result};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Something that can be read from the start as often as needed.
pub(crate) enum Source<'a> {
    File(&'a Path),
    Bytes(&'a [u8]),
}

impl<'a> Source<'a> {
    /// Opens it, unpacking gzip wherever the content says so, whatever the name.
    pub(crate) fn open(&self, name: &str) -> Result<Box<dyn Read + 'a>> {
        let mut plain: Box<dyn Read + 'a> = match *self {
            Self::File(path) => Box::new(open_file(path, name)?),
            Self::Bytes(bytes) => Box::new(bytes),
        };
        let mut magic = [0; 2];
        let got = read_full(&mut plain, &mut magic).map_err(|e| Error::storage(name, &e))?;
        let whole = std::io::Cursor::new(magic).take(got as u64).chain(plain);
        if got == 2 && magic == [0x1f, 0x8b] {
            let packed = BufReader::with_capacity(1 << 16, whole);
            return Ok(Box::new(MultiGzDecoder::new(packed)));
        }
        Ok(Box::new(whole))
    }

    /// All of it.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.read_to_end(&mut bytes).map_err(|e| Error::storage(name, &e))?;
        Ok(bytes)
    }
}

pub(crate) fn open_file(path: &Path, name: &str) -> Result<File> {
    let file = File::open(path).map_err(|e| Error::storage(name, &e))?;
    if file.metadata().is_ok_and(|m| m.is_dir()) {
        let what = "is a folder, where a file is needed".into();
        return Err(Error::Storage { path: name.into(), what });
    }
    Ok(file)
}

/// Reads until `out` is full or the source ends; how many bytes were read.
pub(crate) fn read_full(source: &mut dyn Read, out: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < out.len() {
        match source.read(&mut out[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}
