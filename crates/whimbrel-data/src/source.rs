//! Bytes to read: a file, plain or gzipped, or memory.

use crate::{Error, Result, Sha256};
use flate2::read::MultiGzDecoder;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that can be read from the start as often as needed.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    File(&'a Path),
    /// Bytes in memory, and their name in messages.
    Bytes(&'a str, &'a [u8]),
}

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for Source<'a> {
    fn from(path: &'a P) -> Self {
        Self::File(path.as_ref())
    }
}

impl<'a> Source<'a> {
    /// Bytes in memory; `name` stands for the file in messages.
    pub fn bytes(name: &'a str, bytes: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self::Bytes(name, bytes.as_ref())
    }

    /// The name in messages.
    pub(crate) fn name(self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Bytes(name, _) => name.into(),
        }
    }

    /// Opens the source, and unpacks gzip, which is recognised by content, not by name.
    pub(crate) fn open(self) -> Result<Box<dyn Read + 'a>> {
        let mut plain: Box<dyn Read + 'a> = match self {
            Self::File(path) => Box::new(open_file(path)?),
            Self::Bytes(_, bytes) => Box::new(bytes),
        };
        let mut magic = [0; 2];
        let got =
            read_full(&mut plain, &mut magic).map_err(|e| Error::storage(&self.name(), &e))?;
        let whole = std::io::Cursor::new(magic).take(got as u64).chain(plain);
        if got == 2 && magic == [0x1f, 0x8b] {
            let packed = BufReader::with_capacity(1 << 16, Counted { reader: whole, bytes: 0 });
            return Ok(Box::new(Unpacked { decoder: MultiGzDecoder::new(packed), bytes: 0 }));
        }
        Ok(Box::new(whole))
    }

    /// Reads all bytes.
    pub(crate) fn read(self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open()?.read_to_end(&mut bytes).map_err(|e| Error::storage(&self.name(), &e))?;
        Ok(bytes)
    }
}

/// Unpacked bytes that are read whatever the packed size: a table of one-digit cells in memory has some
/// eight times as many.
const UNPACKED_BYTES: u64 = 64 << 20;
/// Beyond that, the largest ratio of unpacked to packed bytes. Tables reach tens; deflate reaches
/// 1,000 on bytes that are all the same.
const UNPACKED_RATIO: u64 = 200;

/// A reader that counts its bytes.
struct Counted<R> {
    reader: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(into)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

/// A gzipped source. A small file that unpacks to very many bytes is refused while it is read.
struct Unpacked<R> {
    decoder: MultiGzDecoder<BufReader<Counted<R>>>,
    bytes: u64,
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.decoder.read(into)?;
        self.bytes += read as u64;
        let packed = self.decoder.get_ref().get_ref().bytes;
        if self.bytes > UNPACKED_BYTES && self.bytes > UNPACKED_RATIO * packed {
            return Err(std::io::Error::other(format!(
                "it unpacks to more than {UNPACKED_RATIO} times its size; unpack it with gunzip if \
                 this is intended"
            )));
        }
        Ok(read)
    }
}

/// Hashes of files by path, taken as the files are read.
#[derive(Clone, Default)]
pub struct ReadHashes(Arc<Mutex<HashMap<PathBuf, String>>>);

thread_local! {
    static IN_USE: RefCell<Option<ReadHashes>> = const { RefCell::new(None) };
}

impl ReadHashes {
    /// Calls `read`, and keeps the hash of every file that this thread reads to its end meanwhile.
    pub fn during<T>(&self, read: impl FnOnce() -> T) -> T {
        let _restored = Restore(IN_USE.replace(Some(self.clone())));
        read()
    }

    /// The hashes in use on this thread, to pass on to other threads; new ones if none are in use.
    pub(crate) fn in_use() -> Self {
        IN_USE.with_borrow(|used| used.clone().unwrap_or_default())
    }

    /// The hash of a file that was read to its end.
    pub(crate) fn find(&self, path: &Path) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }
}

/// Restores the hashes that were in use before, even after a panic.
struct Restore(Option<ReadHashes>);

impl Drop for Restore {
    fn drop(&mut self) {
        IN_USE.set(self.0.take());
    }
}

/// A file that is hashed as it is read, if hashes are in use.
pub(crate) struct HashedFile {
    file: File,
    hash: Option<(ReadHashes, PathBuf, Sha256)>,
}

impl HashedFile {
    pub(crate) fn metadata(&self) -> std::io::Result<Metadata> {
        self.file.metadata()
    }

    /// Keeps the hash at the file's end.
    fn end(&mut self) {
        if let Some((all, path, hash)) = self.hash.take() {
            all.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path, hash.hex());
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        if let Some((_, _, hash)) = &mut self.hash {
            hash.update(bytes);
        }
    }
}

impl Read for HashedFile {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read(out)?;
        self.update(&out[..n]);
        if n == 0 && !out.is_empty() {
            self.end();
        }
        Ok(n)
    }

    fn read_to_end(&mut self, out: &mut Vec<u8>) -> std::io::Result<usize> {
        let n = self.file.read_to_end(out)?;
        self.update(&out[out.len() - n..]);
        self.end();
        Ok(n)
    }
}

pub(crate) fn open_file(path: &Path) -> Result<HashedFile> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| Error::storage(&name, &e))?;
    if file.metadata().is_ok_and(|m| m.is_dir()) {
        let what = "is a folder, not a file".into();
        return Err(Error::Storage { path: name, what, missing: false, hint: None });
    }
    let asked = IN_USE.with_borrow(|used| used.clone());
    let asked = asked.filter(|all| all.find(path).is_none());
    let hash = asked.map(|all| (all, path.to_path_buf(), Sha256::new()));
    Ok(HashedFile { file, hash })
}

/// Reads until `out` is full or the source ends; returns the number of bytes read.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash_path;
    use std::io::Write;

    #[test]
    fn a_small_file_that_unpacks_to_gigabytes_is_refused_on_the_way() {
        let pack = |bytes: &[u8]| {
            let mut packer =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            packer.write_all(bytes).unwrap();
            packer.finish().unwrap()
        };
        let bomb = pack(&vec![b'0'; 1 << 20]).repeat(3 << 10);
        let mut read = 0;
        let mut unpacked = Source::bytes("bomb.gz", &bomb).open().unwrap();
        let mut space = vec![0; 1 << 20];
        let error = loop {
            match unpacked.read(&mut space) {
                Ok(0) => panic!("{read} bytes were unpacked"),
                Ok(bytes) => read += bytes as u64,
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("unpacks to more than 200 times its size"), "{error}");
        assert!(read <= UNPACKED_BYTES, "{read} bytes came before the refusal");
        // A constant table below the limit, and any size at an ordinary ratio.
        let small = pack(&vec![b'0'; 10 << 20]);
        assert_eq!(Source::bytes("small.gz", &small).read().unwrap().len(), 10 << 20);
    }

    /// The hash equals that of a second pass, for folders too; a partly read file has none.
    #[test]
    fn files_are_hashed_as_they_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let [whole, left] = ["whole", "left"].map(|name| folder.path().join(name));
        std::fs::write(&whole, vec![7; 100_000]).unwrap();
        std::fs::write(&left, "abc").unwrap();
        let hashes = ReadHashes::default();
        let expected = (hash_path(&whole).unwrap(), hash_path(folder.path()).unwrap());
        hashes.during(|| {
            assert_eq!(Source::File(&whole).read().unwrap().len(), 100_000);
            open_file(&left).unwrap().read_exact(&mut [0]).unwrap();
            assert_eq!((hashes.find(&whole), hashes.find(&left)), (Some(expected.0.clone()), None));
            std::fs::write(&whole, "changed after it was read").unwrap();
            assert_eq!((hash_path(&whole).unwrap(), hash_path(folder.path()).unwrap()), expected);
        });
        assert_ne!(hash_path(&whole).unwrap(), expected.0, "nobody asks for hashes any more");
    }
}
