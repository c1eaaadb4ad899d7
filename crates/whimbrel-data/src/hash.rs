//! SHA-256 of files and tables, so that a run can say which data it saw.

use crate::source::{ReadHashes, open_file};
use crate::{Error, Result, memory};
use rayon::prelude::*;
use std::io::Read;
use std::path::{Path, PathBuf};
use whimbrel_core::{FeatureRows, Inputs, Labelled, Samples, Table, Targets};

/// The hash of a file's bytes as they are on disk, in hexadecimal; of one that was read under
/// [`ReadHashes`](crate::ReadHashes), the hash of what was read.
pub fn hash_file(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    if memory::find(path).is_some() {
        // Its name is its hash.
        return Ok(path.file_name().unwrap_or_default().display().to_string());
    }
    if let Some(hash) = ReadHashes::in_use().find(path) {
        return Ok(hash);
    }
    let name = path.display().to_string();
    let mut file = open_file(path, &name)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hash.hex()),
            Ok(n) => hash.update(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::storage(&name, &e)),
        }
    }
}

/// The hash of a file, or of a folder: of the names and hashes of its files, sorted, folders
/// included.
pub fn hash_path(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    if !path.is_dir() {
        return hash_file(path);
    }
    let mut hash = Sha256::new();
    for entry in sorted_entries(path)? {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        hash.names(&name, &[hash_path(&entry)?]);
    }
    Ok(hash.hex())
}

/// What a folder holds, sorted by name.
pub(crate) fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let broken = |e: std::io::Error| Error::storage(&folder.display().to_string(), &e);
    let entries = std::fs::read_dir(folder).map_err(broken)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>().map_err(broken)?;
    paths.sort();
    Ok(paths)
}

/// The hash of tables by client: of the hashes of each client's name, columns and the bits of every
/// value, each part preceded by its length so that no two federations read alike.
pub fn hash_tables(clients: &[(String, Table)]) -> String {
    let each = clients.par_iter().map(|(name, table)| {
        let mut hash = Sha256::new();
        hash.names(name, &table.columns);
        hash.numbers(&table.values);
        hash.0.finish()
    });
    let mut hash = Sha256::new();
    hash.count(clients.len());
    each.collect::<Vec<_>>().iter().for_each(|digest| hash.update(digest.as_ref()));
    hash.hex()
}

/// The hash of rows with targets by client, as [`hash_tables`]. Dense and sparse rows of equal
/// values differ.
pub fn hash_labelled(clients: &[(String, Labelled)]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"labelled");
    hash.count(clients.len());
    for (name, data) in clients {
        hash.names(name, &data.columns);
        hash.numbers(&data.targets);
        match &data.rows {
            FeatureRows::Dense(values) => {
                hash.update(b"dense");
                hash.numbers(values);
            }
            FeatureRows::Sparse { starts, columns, values } => {
                hash.update(b"sparse");
                hash.words(starts, |start| (*start as u64).to_le_bytes());
                hash.words(columns, |column| column.to_le_bytes());
                hash.numbers(values);
            }
        }
    }
    hash.hex()
}

/// The hash of samples by client, as [`hash_tables`].
pub fn hash_samples(clients: &[(String, Samples)]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"samples");
    hash.count(clients.len());
    for (name, samples) in clients {
        hash.names(name, &[]);
        hash.words(&samples.shape, |n| (*n as u64).to_le_bytes());
        match &samples.inputs {
            Inputs::Real(values) => hash.words(values, |x| x.to_bits().to_le_bytes()),
            Inputs::Bytes(bytes) => hash.words(bytes, |x| [*x]),
            Inputs::Symbols(symbols) => hash.words(symbols, |x| x.to_le_bytes()),
        }
        match &samples.targets {
            Targets::Classes { of, .. } => hash.words(of, |class| class.to_le_bytes()),
            Targets::Values(values) => hash.words(values, |y| y.to_bits().to_le_bytes()),
        }
    }
    hash.hex()
}

/// A hash in progress.
#[derive(Clone)]
pub struct Sha256(ring::digest::Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

impl Sha256 {
    /// The hash of nothing yet.
    pub fn new() -> Self {
        Self(ring::digest::Context::new(&ring::digest::SHA256))
    }

    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn count(&mut self, n: usize) {
        self.update(&(n as u64).to_le_bytes());
    }

    pub(crate) fn names(&mut self, client: &str, columns: &[String]) {
        for text in std::iter::once(client).chain(columns.iter().map(String::as_str)) {
            self.count(text.len());
            self.update(text.as_bytes());
        }
        self.count(columns.len());
    }

    pub(crate) fn numbers(&mut self, values: &[f64]) {
        self.words(values, |x| x.to_bits().to_le_bytes());
    }

    /// The length, then the words, a buffer at a time.
    pub(crate) fn words<T, const N: usize>(&mut self, words: &[T], bytes: impl Fn(&T) -> [u8; N]) {
        self.count(words.len());
        let mut buffer = Vec::with_capacity(words.len().min(4096) * N);
        for chunk in words.chunks(4096) {
            buffer.clear();
            chunk.iter().for_each(|word| buffer.extend_from_slice(&bytes(word)));
            self.update(&buffer);
        }
    }

    /// The digest, in hexadecimal.
    pub fn hex(self) -> String {
        whimbrel_core::wire::hex(self.0.finish().as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_give_the_digest_of_the_whole_message() {
        // The example of two blocks in FIPS 180-4.
        let message = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        let digest = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";
        for step in [1, 7, 56] {
            let mut hash = Sha256::new();
            message.chunks(step).for_each(|piece| hash.update(piece));
            assert_eq!(hash.hex(), digest, "pieces of {step}");
        }
    }

    #[test]
    fn tables_differ_in_names_columns_shape_and_sign_of_zero() {
        let table = |columns: &[&str], values: &[f64]| {
            Table::new(columns.iter().map(|c| c.to_string()).collect(), values.to_vec()).unwrap()
        };
        let federations = [
            vec![("a".to_string(), table(&["x", "y"], &[0.0, 1.0]))],
            vec![("b".to_string(), table(&["x", "y"], &[0.0, 1.0]))],
            vec![("a".to_string(), table(&["xy"], &[0.0, 1.0]))],
            vec![("ax".to_string(), table(&["y"], &[0.0, 1.0]))],
            vec![("a".to_string(), table(&["x", "y"], &[-0.0, 1.0]))],
            vec![],
        ];
        let mut hashes: Vec<String> = federations.iter().map(|f| hash_tables(f)).collect();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), federations.len());
    }
}
