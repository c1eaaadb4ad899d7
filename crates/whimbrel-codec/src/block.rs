//! Block-p-quantization: every coordinate of a block becomes `±||x||_p` or zero.
//!
//! `C(x)_j = ||x||_p sign(x_j) U_j` with `U_j` Bernoulli of parameter `|x_j| / ||x||_p`, block by
//! block (Mishchenko et al., 2019). Its variance is exactly
//! `sum over blocks of ||x||_1 ||x||_p - ||x||^2`.

use whimbrel_core::{Error, Result};

use crate::Norm;
use crate::quantise::Blocks;

/// Block-p-quantization with given blocks and norm.
#[derive(Clone, PartialEq, Debug)]
pub struct BlockP {
    norm: Norm,
    blocks: Blocks,
}

/// Largest offered `p`: higher powers agree with the largest magnitude to all digits.
const LARGEST_P: u32 = 64;

impl Default for BlockP {
    /// Blocks of 64 coordinates with their Euclidean norms.
    fn default() -> Self {
        Self { norm: Norm::P(2), blocks: Blocks::Every(64) }
    }
}

impl BlockP {
    /// Blocks of `size` coordinates (the last one may be shorter).
    pub fn every(size: usize, norm: Norm) -> Result<Self> {
        Self::listed_or_every(Blocks::Every(size), norm)
    }

    /// Blocks of the given sizes, whose sum must be the length of the vector.
    pub fn listed(sizes: Vec<usize>, norm: Norm) -> Result<Self> {
        Self::listed_or_every(Blocks::Listed(sizes), norm)
    }

    fn listed_or_every(blocks: Blocks, norm: Norm) -> Result<Self> {
        let empty = match &blocks {
            Blocks::Every(size) => *size == 0,
            Blocks::Listed(sizes) => sizes.contains(&0),
        };
        if empty {
            return Err(Error::config("block-p-quantization with a block of 0 coordinates")
                .hint("block sizes must be positive"));
        }
        if let Norm::P(p) = norm
            && !(1..=LARGEST_P).contains(&p)
        {
            return Err(Error::config(format!(
                "block-p-quantization with p = {p} is not supported"
            ))
            .hint(format!("p must be an integer from 1 to {LARGEST_P}, or infinity")));
        }
        Ok(Self { norm, blocks })
    }

    /// The common block size, if there is one.
    pub fn size(&self) -> Option<usize> {
        match &self.blocks {
            Blocks::Every(size) => Some(*size),
            Blocks::Listed(_) => None,
        }
    }

    /// The listed block sizes, or empty.
    pub fn sizes(&self) -> &[usize] {
        match &self.blocks {
            Blocks::Every(_) => &[],
            Blocks::Listed(sizes) => sizes,
        }
    }

    pub fn norm(&self) -> Norm {
        self.norm
    }

    /// The blocks of a vector with `d` coordinates.
    pub(crate) fn blocks(&self, d: usize) -> Result<&Blocks> {
        let sum: usize = self.sizes().iter().sum();
        if matches!(self.blocks, Blocks::Listed(_)) && sum != d {
            let what = format!("block sizes sum to {sum} and the vector has {d} coordinates");
            return Err(Error::config(what).hint(
                "give sizes that sum to the length of the vector, or one size for all blocks",
            ));
        }
        Ok(&self.blocks)
    }

    /// The supremum over `x` of the variance over `||x||^2`, for the largest block `q`:
    /// `sqrt(q) - 1` for p = 2 (constant vector), `q - 1` for p = 1 (constant vector) and
    /// `(sqrt(q) - 1)/2` for infinity (one coordinate 1, the others `1/(sqrt(q) + 1)`); for other
    /// p the bound `sqrt(q) - 1` that follows from `||x||_p <= ||x||_2`.
    pub(crate) fn omega(&self, d: usize) -> f64 {
        let q = match &self.blocks {
            Blocks::Every(size) => *size.min(&d),
            Blocks::Listed(sizes) => sizes.iter().copied().max().unwrap_or(0),
        };
        let q = q.max(1) as f64;
        match self.norm {
            Norm::P(1) => q - 1.0,
            Norm::P(_) => q.sqrt() - 1.0,
            Norm::Infinity => (q.sqrt() - 1.0) / 2.0,
        }
    }
}
