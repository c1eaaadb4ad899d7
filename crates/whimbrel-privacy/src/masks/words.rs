//! Vectors of words modulo 2^w as packed bytes, and the key streams that mask them.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use whimbrel_core::{Error, Result, Segment, Wire, wire};

/// The bits of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    W16,
    W32,
    W64,
}

/// The form of a segment without its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub width: Width,
    pub words: u32,
}

wire!(Span { width, words });

impl Wire for Width {
    fn put(&self, out: &mut Vec<u8>) {
        (8 * self.bytes() as u8).put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        match u8::take(from)? {
            16 => Ok(Self::W16),
            32 => Ok(Self::W32),
            64 => Ok(Self::W64),
            other => Err(Error::peer(format!("words have 16, 32 or 64 bits, not {other}"))),
        }
    }
}

impl Width {
    fn bytes(self) -> usize {
        match self {
            Self::W16 => 2,
            Self::W32 => 4,
            Self::W64 => 8,
        }
    }
}

impl Span {
    /// This many words of 16, 32 or 64 bits.
    pub fn new(bits: u32, words: usize) -> Result<Self> {
        let width = match bits {
            16 => Width::W16,
            32 => Width::W32,
            64 => Width::W64,
            other => {
                let what = format!("words of {other} bits cannot be masked");
                return Err(Error::config(what).hint("words of 16, 32 or 64 bits can"));
            }
        };
        let words = u32::try_from(words)
            .map_err(|_| Error::config("a segment has more than 2^32 words"))?;
        Ok(Self { width, words })
    }

    pub fn of(segment: &Segment) -> Result<Self> {
        Self::new(segment.width, segment.words.len())
    }

    fn bytes(&self) -> usize {
        self.words as usize * self.width.bytes()
    }
}

/// The bytes of segments of this form.
pub(super) fn packed_bytes(layout: &[Span]) -> usize {
    layout.iter().map(Span::bytes).sum()
}

/// All words, w bits each, little-endian; the form of the segments is checked.
pub(super) fn pack(segments: &[Segment]) -> Vec<u8> {
    fn put<const N: usize>(words: &[u64], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + N * words.len(), 0);
        for (place, word) in out[start..].as_chunks_mut::<N>().0.iter_mut().zip(words) {
            place.copy_from_slice(&word.to_le_bytes()[..N]);
        }
    }
    let mut out = Vec::new();
    for segment in segments {
        match segment.width {
            16 => put::<2>(&segment.words, &mut out),
            32 => put::<4>(&segment.words, &mut out),
            _ => put::<8>(&segment.words, &mut out),
        }
    }
    out
}

/// The segments of packed bytes of this form.
pub(super) fn unpack(layout: &[Span], mut bytes: &[u8]) -> Vec<Segment> {
    fn words<const N: usize>(bytes: &[u8]) -> Vec<u64> {
        let word = |chunk: &[u8; N]| {
            let mut word = [0; 8];
            word[..N].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        };
        bytes.as_chunks::<N>().0.iter().map(word).collect()
    }
    let segment = |span: &Span| {
        let (part, rest) = bytes.split_at(span.bytes());
        bytes = rest;
        let words = match span.width {
            Width::W16 => words::<2>(part),
            Width::W32 => words::<4>(part),
            Width::W64 => words::<8>(part),
        };
        Segment { width: 8 * span.width.bytes() as u32, words }
    };
    layout.iter().map(segment).collect()
}

/// The direction in which a vector enters a sum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    Plus,
    Minus,
}

impl Sign {
    pub(super) fn opposite(self) -> Self {
        if self == Self::Plus { Self::Minus } else { Self::Plus }
    }
}

/// Adds or subtracts packed words, `term` being as long as `sum` or longer.
fn add(width: Width, sum: &mut [u8], term: &[u8], sign: Sign) {
    macro_rules! words {
        ($word:ty) => {{
            let (sum, term) = (sum.as_chunks_mut().0, term.as_chunks().0);
            for (to, from) in sum.iter_mut().zip(term) {
                let (a, b) = (<$word>::from_le_bytes(*to), <$word>::from_le_bytes(*from));
                let word = if sign == Sign::Plus { a.wrapping_add(b) } else { a.wrapping_sub(b) };
                *to = word.to_le_bytes();
            }
        }};
    }
    match width {
        Width::W16 => words!(u16),
        Width::W32 => words!(u32),
        Width::W64 => words!(u64),
    }
}

/// Adds a packed vector of the same form.
pub(super) fn add_packed(layout: &[Span], mut sum: &mut [u8], mut term: &[u8]) {
    for span in layout {
        let (to, from) = (sum.split_at_mut(span.bytes()), term.split_at(span.bytes()));
        add(span.width, to.0, from.0, Sign::Plus);
        (sum, term) = (to.1, from.1);
    }
}

/// The key stream of AES-256 in counter mode: AES-GCM's ciphertext of zeros, under one nonce for
/// each call. `ring` has no counter mode by itself, and with its tags it is still three times as fast
/// as ChaCha20 where processors have instructions for AES.
pub(super) struct KeyStream {
    key: LessSafeKey,
    calls: u64,
}

impl KeyStream {
    pub(super) fn new(key: [u8; 32]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &key).expect("32 bytes");
        Self { key: LessSafeKey::new(key), calls: 0 }
    }

    /// Overwrites bytes by the next ones of the stream.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.calls.to_le_bytes());
        self.calls += 1;
        bytes.fill(0);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), bytes);
        let _tag = sealed.expect("a chunk is far below the limit of AES-GCM");
    }
}

/// Bytes of a key stream that are made at once.
const CHUNK: usize = 4096;

/// Adds or subtracts the streams of these keys. A segment starts at a new chunk.
pub(super) fn apply(layout: &[Span], body: &mut [u8], masks: &[([u8; 32], Sign)]) {
    let mut made = [0; CHUNK];
    // The keys of a batch and a chunk of the body fit the caches of a core.
    for batch in masks.chunks(64) {
        let mut streams: Vec<_> =
            batch.iter().map(|&(k, sign)| (KeyStream::new(k), sign)).collect();
        let mut rest = &mut *body;
        for span in layout {
            let (part, after) = rest.split_at_mut(span.bytes());
            rest = after;
            for chunk in part.chunks_mut(CHUNK) {
                for (stream, sign) in &mut streams {
                    stream.fill(&mut made[..chunk.len()]);
                    add(span.width, chunk, &made, *sign);
                }
            }
        }
    }
}
