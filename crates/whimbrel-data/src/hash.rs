//! SHA-256 (FIPS 180-4) of files and tables, so that a run can say which data it saw.

use crate::source::open_file;
use crate::{Error, Result};
use std::io::Read;
use std::path::Path;
use whimbrel_core::{FeatureRows, Labelled, Table};

/// The hash of a file's bytes as they are on disk, in hexadecimal.
pub fn hash_file(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
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

/// The hash of tables by client: names, columns and the bits of every value, each part preceded by
/// its length so that no two federations read alike.
pub fn hash_tables(clients: &[(String, Table)]) -> String {
    let mut hash = Sha256::new();
    hash.count(clients.len());
    for (name, table) in clients {
        hash.names(name, &table.columns);
        hash.numbers(&table.values);
    }
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

/// A hash in progress.
#[derive(Clone)]
pub struct Sha256 {
    state: [u32; 8],
    block: [u8; 64],
    filled: usize,
    bytes: u64,
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

impl Sha256 {
    /// The hash of nothing yet.
    pub fn new() -> Self {
        Self { state: INITIAL, block: [0; 64], filled: 0, bytes: 0 }
    }

    /// Appends bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if self.filled > 0 {
            let take = bytes.len().min(64 - self.filled);
            self.block[self.filled..self.filled + take].copy_from_slice(&bytes[..take]);
            self.filled += take;
            bytes = &bytes[take..];
            if self.filled < 64 {
                return;
            }
            let block = self.block;
            compress(&mut self.state, &block);
            self.filled = 0;
        }
        let (blocks, rest) = bytes.as_chunks::<64>();
        for block in blocks {
            compress(&mut self.state, block);
        }
        self.block[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    fn count(&mut self, n: usize) {
        self.update(&(n as u64).to_le_bytes());
    }

    fn names(&mut self, client: &str, columns: &[String]) {
        for text in std::iter::once(client).chain(columns.iter().map(String::as_str)) {
            self.count(text.len());
            self.update(text.as_bytes());
        }
        self.count(columns.len());
    }

    fn numbers(&mut self, values: &[f64]) {
        self.words(values, |x| x.to_bits().to_le_bytes());
    }

    /// The length, then the words, a buffer at a time.
    fn words<T, const N: usize>(&mut self, words: &[T], bytes: impl Fn(&T) -> [u8; N]) {
        self.count(words.len());
        let mut buffer = Vec::new();
        for chunk in words.chunks(4096) {
            buffer.clear();
            buffer.extend(chunk.iter().flat_map(&bytes));
            self.update(&buffer);
        }
    }

    /// The digest, in hexadecimal.
    pub fn hex(mut self) -> String {
        let bits = self.bytes.wrapping_mul(8);
        self.update(&[0x80]);
        let zeros = (64 + 56 - self.filled) % 64;
        self.update(&[0; 64][..zeros]);
        self.update(&bits.to_be_bytes());
        debug_assert_eq!(self.filled, 0);
        self.state.iter().map(|word| format!("{word:08x}")).collect()
    }
}

const INITIAL: [u32; 8] = [
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
];

#[rustfmt::skip]
const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

fn compress(state: &mut [u32; 8], block: &[u8; 64]) {
    let mut w = [0u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    for t in 16..64 {
        let s0 = w[t - 15].rotate_right(7) ^ w[t - 15].rotate_right(18) ^ (w[t - 15] >> 3);
        let s1 = w[t - 2].rotate_right(17) ^ w[t - 2].rotate_right(19) ^ (w[t - 2] >> 10);
        w[t] = w[t - 16].wrapping_add(s0).wrapping_add(w[t - 7]).wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for t in 0..64 {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(K[t]).wrapping_add(w[t]);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(t1));
        (d, c, b, a) = (c, b, a, t1.wrapping_add(s0.wrapping_add(majority)));
    }
    for (word, x) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(bytes: &[u8]) -> String {
        let mut hash = Sha256::new();
        hash.update(bytes);
        hash.hex()
    }

    #[test]
    fn digests_are_those_of_the_standard() {
        // FIPS 180-4 examples: one block, two blocks, a million letters; and the empty message.
        let known: [(&[u8], &str); 4] = [
            (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (
                &[b'a'; 1_000_000],
                "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
            ),
        ];
        for (message, expected) in known {
            assert_eq!(digest(message), expected);
        }
    }

    #[test]
    fn pieces_give_the_digest_of_the_whole() {
        let message: Vec<u8> = (0..1000u32).map(|i| (i * 31 % 251) as u8).collect();
        for step in [1, 3, 55, 56, 63, 64, 65, 200] {
            let mut hash = Sha256::new();
            message.chunks(step).for_each(|piece| hash.update(piece));
            assert_eq!(hash.hex(), digest(&message), "pieces of {step}");
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
