//! Vectors of words, the terms of sums modulo powers of two.

/// Words of one width, part of an upload. Sums of uploads are sums of their words modulo `2^width`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// In bits, at most 64.
    pub width: u32,
    /// Only the low bits count: signed numbers are cast.
    pub words: Vec<u64>,
}
