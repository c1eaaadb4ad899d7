//! The closed list of codecs, with their constants.

use std::borrow::Cow;
use whimbrel_core::{Error, Key, Probability, Result};

use crate::quantise::{Blocks, Grid};
use crate::{
    BlockP, Dithering, Norm, Packet, Scalar, SharedGrid, Sparse, TopK, exact, natural, sign,
};

/// A compression operator together with its byte encoding.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Codec {
    /// Every coordinate at its own width.
    #[default]
    Exact,
    /// Every coordinate rounded to the nearest `f32`; the relative error of at most `2^-24` is neglected.
    ExactF32,
    Dithering(Dithering),
    BlockP(BlockP),
    Sparse(Sparse),
    /// Natural compression: random rounding to powers of two.
    Natural,
    /// The largest coordinates as they are. Biased.
    TopK(TopK),
    /// Signs times the mean magnitude. Biased.
    Sign,
    /// Integers on a grid that all clients share; for uplinks only.
    Grid(SharedGrid),
}

impl Codec {
    /// Random dithering; see [`Dithering::new`].
    pub fn dithering(levels: u32, norm: Norm, bucket: Option<usize>) -> Result<Self> {
        Dithering::new(levels, norm, bucket).map(Self::Dithering)
    }

    /// Block-p-quantization in blocks of `size`; see also [`BlockP::listed`].
    pub fn block_p(size: usize, norm: Norm) -> Result<Self> {
        BlockP::every(size, norm).map(Self::BlockP)
    }

    /// Sparsification that keeps each coordinate with probability `q`.
    pub fn sparse(q: f64) -> Result<Self> {
        Ok(Self::Sparse(Sparse::each(Probability::new(q)?)))
    }

    /// Sparsification that keeps exactly `k` coordinates; see [`Sparse::exactly`].
    pub fn sparse_exactly(k: usize) -> Result<Self> {
        Sparse::exactly(k).map(Self::Sparse)
    }

    /// The `k` largest coordinates; see [`TopK::new`].
    pub fn top_k(k: usize) -> Result<Self> {
        TopK::new(k).map(Self::TopK)
    }

    /// The same codec with this number of levels, if they are automatic.
    pub fn settled(&self, levels: u16) -> Self {
        match self {
            Self::Dithering(dithering) => Self::Dithering(dithering.settled(levels)),
            other => other.clone(),
        }
    }

    /// Whether its number of levels is still to be chosen.
    pub fn is_automatic(&self) -> bool {
        matches!(self, Self::Dithering(dithering) if dithering.is_automatic())
    }

    /// The name used in jobs and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::ExactF32 => "exact-f32",
            Self::Dithering(_) => "dithering",
            Self::BlockP(_) => "block-p",
            Self::Sparse(_) => "sparse",
            Self::Natural => "natural",
            Self::TopK(_) => "top-k",
            Self::Sign => "sign",
            Self::Grid(_) => "grid",
        }
    }

    /// Draws the compressed form of `x` and writes it. All randomness comes from `key`.
    pub fn encode<T: Scalar>(&self, x: &[T], key: Key) -> Result<Packet> {
        self.run(x, key, None)
    }

    /// Encodes `x` and writes the result of [`decode`](Self::decode) to `decoded`, which has the length of
    /// `x`.
    pub fn encode_decoded<T: Scalar>(
        &self,
        x: &[T],
        key: Key,
        decoded: &mut [T],
    ) -> Result<Packet> {
        assert_eq!(x.len(), decoded.len(), "the decoded vector is as long as the vector");
        self.run(x, key, Some(decoded))
    }

    /// Reads a packet into `out`, whose length both ends know. Invalid bytes are refused as a fault of the
    /// peer or decoded to some finite vector; nothing panics.
    pub fn decode<T: Scalar>(&self, packet: &Packet, out: &mut [T]) -> Result<()> {
        check_length(out.len())?;
        match self {
            Self::Exact => exact::decode(packet, out),
            Self::ExactF32 => exact::decode_f32(packet, out),
            Self::Dithering(_) | Self::BlockP(_) => self.grid(out.len())?.decode(packet, out),
            Self::Sparse(sparse) => sparse.decode(packet, out),
            Self::Natural => natural::decode(packet, out),
            Self::TopK(top) => top.decode(packet, out),
            Self::Sign => sign::decode(packet, out),
            Self::Grid(_) => Err(no_exponents()),
        }
    }

    /// The constant of `E||C(x) - x||^2 <= omega ||x||^2` over vectors of `d` coordinates, for
    /// codecs with `E C(x) = x`; `None` for biased ones.
    pub fn omega(&self, d: usize) -> Option<f64> {
        match self {
            Self::Exact | Self::ExactF32 => Some(0.0),
            Self::Dithering(dithering) => Some(dithering.omega(d)),
            Self::BlockP(block) => Some(block.omega(d)),
            Self::Sparse(sparse) => Some(sparse.omega(d)),
            Self::Natural => Some(natural::OMEGA),
            Self::Grid(grid) => Some(grid.omega()),
            Self::TopK(_) | Self::Sign => None,
        }
    }

    /// The constant of `||C(x) - x||^2 <= (1 - delta) ||x||^2` over vectors of `d` coordinates,
    /// for the biased codecs; `None` for unbiased ones, which are contractions with
    /// `delta = 1/(1 + omega)` after division by `1 + omega`.
    pub fn contraction(&self, d: usize) -> Option<f64> {
        match self {
            Self::TopK(top) => Some(top.contraction(d)),
            Self::Sign => Some(1.0 / d.max(1) as f64),
            _ => None,
        }
    }

    /// Whether `E C(x) = x`.
    pub fn is_unbiased(&self) -> bool {
        !matches!(self, Self::TopK(_) | Self::Sign)
    }

    /// Whether `C(x) = x`, for `exact-f32` up to rounding.
    pub fn is_exact(&self) -> bool {
        matches!(self, Self::Exact | Self::ExactF32)
    }

    fn run<T: Scalar>(&self, x: &[T], key: Key, decoded: Option<&mut [T]>) -> Result<Packet> {
        check_length(x.len())?;
        match self {
            Self::Exact => {
                let packet = exact::encode(x)?;
                if let Some(out) = decoded {
                    out.copy_from_slice(x);
                }
                Ok(packet)
            }
            Self::ExactF32 => {
                let packet = exact::encode_f32(x)?;
                if let Some(out) = decoded {
                    exact::decode_f32(&packet, out)?;
                }
                Ok(packet)
            }
            Self::Dithering(_) | Self::BlockP(_) => self.grid(x.len())?.encode(x, key, decoded),
            Self::Sparse(sparse) => sparse.encode(x, key, decoded),
            Self::Natural => natural::encode(x, key, decoded),
            Self::TopK(top) => top.encode(x, decoded),
            Self::Sign => sign::encode(x, decoded),
            Self::Grid(_) => Err(no_exponents()),
        }
    }

    /// The grid of codecs that round to multiples of a step.
    fn grid(&self, d: usize) -> Result<Grid<'_>> {
        match self {
            Self::Dithering(dithering) => Ok(Grid {
                blocks: Cow::Owned(Blocks::Every(dithering.bucket().unwrap_or(d.max(1)))),
                norm: dithering.norm(),
                largest: dithering.levels(),
            }),
            Self::BlockP(block) => {
                let blocks = Cow::Borrowed(block.blocks(d)?);
                Ok(Grid { blocks, norm: block.norm(), largest: 1 })
            }
            _ => Err(Error::internal(format!("{} has no grid", self.name()))),
        }
    }
}

/// A grid without the exponents that a server sends.
fn no_exponents() -> Error {
    Error::config("a grid is shared by uploads: only an uplink can have one")
        .hint("use \"dithering\" for other messages")
}

/// Positions are 32-bit numbers.
fn check_length(d: usize) -> Result<()> {
    if d < u32::MAX as usize {
        Ok(())
    } else {
        Err(Error::config(format!("a vector of {d} coordinates is too long to compress"))
            .hint("split it into blocks of at most four thousand million coordinates"))
    }
}
