//! SHA-256 of files and tables, which identifies the data of a run.

use crate::columnar::is_read;
use crate::source::{ReadHashes, open_file, read_full};
use crate::{Dataset, Error, Result};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use whimbrel_core::{FeatureRows, Inputs, Labelled, Samples, Table, Targets};

/// The hash of a file's bytes on disk, in hexadecimal. For a file that was read under
/// [`ReadHashes`](crate::ReadHashes), the hash of the bytes read.
pub fn hash_file(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    if let Some(hash) = ReadHashes::in_use().find(path) {
        return Ok(hash);
    }
    let name = path.display().to_string();
    let mut file = open_file(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match read_full(&mut file, &mut buffer).map_err(|e| Error::storage(&name, &e))? {
            0 => return Ok(hash.hex()),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// The hash of a file, or of a folder: a hash over the sorted names and hashes of its entries,
/// recursively.
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

/// [`hash_path`] of a Parquet or Arrow file or of a folder of them, over the entries that are read: a folder's
/// hash does not depend on markers such as `_SUCCESS`.
pub(crate) fn hash_columnar(path: &Path) -> Result<String> {
    Ok(hash_read(path)?.unwrap_or_else(|| Sha256::new().hex()))
}

/// The hash of a file or folder; `None` for a folder without files that are read.
fn hash_read(path: &Path) -> Result<Option<String>> {
    if !path.is_dir() {
        return hash_file(path).map(Some);
    }
    let (mut hash, mut is_empty) = (Sha256::new(), true);
    for entry in sorted_entries(path)?.into_iter().filter(|entry| is_read(entry)) {
        if let Some(found) = hash_read(&entry)? {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            hash.names(&name, &[found]);
            is_empty = false;
        }
    }
    Ok((!is_empty).then(|| hash.hex()))
}

/// The file itself, or the files of a folder with one of these endings, sorted by name.
pub(crate) fn files_ending(path: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let mut files = sorted_entries(path)?;
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        endings.iter().any(|ending| name.ends_with(ending))
    });
    if files.is_empty() {
        let what = format!("the folder has no {} file", endings[0]);
        return Err(Error::format(&path.display().to_string(), what));
    }
    Ok(files)
}

/// The entries of a folder, sorted by name.
pub(crate) fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let broken = |e: std::io::Error| Error::storage(&folder.display().to_string(), &e);
    let entries = std::fs::read_dir(folder).map_err(broken)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>().map_err(broken)?;
    paths.sort();
    Ok(paths)
}

/// The hash of rows that a program holds.
pub(crate) fn hash_rows(data: &Dataset) -> String {
    let mut hash = Sha256::new();
    hash.update(b"in memory");
    let names: Vec<String> = data.columns().iter().map(|c| c.name.clone()).collect();
    hash.names("", &names);
    hash.numbers(&data.numbers);
    for text in &data.texts {
        hash.names("", &text.names);
        hash.words(&text.codes, |code| code.to_le_bytes());
    }
    hash.hex()
}

/// The hash of tables by client: a hash over the hashes of each client's name, columns and values
/// (bits). Each part is preceded by its length, so that different federations differ.
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

/// The hash of rows with targets by client, as in [`hash_tables`]. Dense and sparse rows of equal
/// values have different hashes.
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

/// The hash of samples by client, as in [`hash_tables`].
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
    pub fn new() -> Self {
        Self(ring::digest::Context::new(&ring::digest::SHA256))
    }

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
    fn the_hash_of_a_parquet_folder_is_that_of_the_files_that_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("site=north/a.parquet", "a");
        write("site=south/b.parquet", "b");
        let before = hash_columnar(folder.path()).unwrap();
        assert_eq!(before, hash_path(folder.path()).unwrap(), "every file is read");
        for name in ["_SUCCESS", "site=north/.a.parquet.crc", "_temporary/c.parquet", "notes.txt"] {
            write(name, "not rows");
        }
        std::fs::create_dir(folder.path().join("site=west")).unwrap();
        assert_eq!(hash_columnar(folder.path()).unwrap(), before);
        write("site=north/a.parquet", "c");
        let changed = hash_columnar(folder.path()).unwrap();
        write("site=west/c.parquet", "c");
        let added = hash_columnar(folder.path()).unwrap();
        assert!(before != changed && changed != added && before != added);
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
