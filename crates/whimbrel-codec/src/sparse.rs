//! Random sparsification: a random subset of the coordinates, scaled to be unbiased.
//!
//! Each coordinate is kept with probability q and divided by it, or exactly k of d are kept,
//! every subset equally likely, and multiplied by d/k. Coordinates are sent unscaled; the decoder scales
//! them.

use whimbrel_core::{Error, Key, Probability, Result};

use crate::kept::Kept;
use crate::scalar::check_finite;
use crate::{Packet, Scalar};

/// Random sparsification.
#[derive(Clone, PartialEq, Debug)]
pub struct Sparse(Rule);

#[derive(Clone, PartialEq, Debug)]
enum Rule {
    Each(Probability),
    Exactly(usize),
}

impl Default for Sparse {
    /// Keeps each coordinate with probability one half.
    fn default() -> Self {
        Self::each(Probability::HALF)
    }
}

impl Sparse {
    /// Keeps each coordinate with probability `q`.
    pub fn each(q: Probability) -> Self {
        Self(Rule::Each(q))
    }

    /// Keeps exactly `k` coordinates, or all of a shorter vector.
    pub fn exactly(k: usize) -> Result<Self> {
        if k == 0 {
            return Err(Error::config("sparsification that keeps 0 coordinates sends nothing")
                .hint("keep at least 1 coordinate"));
        }
        Ok(Self(Rule::Exactly(k)))
    }

    /// The probability of keeping a coordinate; `None` if their number is fixed.
    pub fn probability(&self) -> Option<f64> {
        match self.0 {
            Rule::Each(q) => Some(q.value()),
            Rule::Exactly(_) => None,
        }
    }

    /// The fixed number of kept coordinates, if any.
    pub fn count(&self) -> Option<usize> {
        match self.0 {
            Rule::Each(_) => None,
            Rule::Exactly(k) => Some(k),
        }
    }

    pub(crate) fn omega(&self, d: usize) -> f64 {
        match self.0 {
            Rule::Each(q) => 1.0 / q.value() - 1.0,
            Rule::Exactly(k) => (d as f64 / k as f64 - 1.0).max(0.0),
        }
    }

    pub(crate) fn encode<T: Scalar>(
        &self,
        x: &[T],
        key: Key,
        decoded: Option<&mut [T]>,
    ) -> Result<Packet> {
        check_finite(x)?;
        let kept = Kept::of(x, self.draw(x.len(), key));
        let scale = self.scale(x.len());
        if !kept.fits(scale) {
            return Err(Error::numerical(format!(
                "a coordinate of the vector to compress, times {scale}, overflows"
            )));
        }
        if let Some(out) = decoded {
            kept.value(scale, out);
        }
        Ok(kept.write())
    }

    pub(crate) fn decode<T: Scalar>(&self, packet: &Packet, out: &mut [T]) -> Result<()> {
        let scale = self.scale(out.len());
        let most = match self.0 {
            Rule::Each(_) => out.len(),
            Rule::Exactly(k) => k,
        };
        Kept::read(packet, out.len(), most, scale)?.value(scale, out);
        Ok(())
    }

    /// Marks of the kept coordinates, from one random number per coordinate in order.
    fn draw(&self, d: usize, key: Key) -> Vec<i16> {
        let mut stream = key.stream();
        match self.0 {
            Rule::Each(q) => (0..d).map(|_| i16::from(stream.uniform() < q.value())).collect(),
            // Selection sampling: with `left` still to choose among `d - i`, keep this one with
            // probability left/(d - i).
            Rule::Exactly(k) => {
                let mut left = k.min(d) as u64;
                (0..d as u64)
                    .map(|i| {
                        let keep = stream.below(d as u64 - i) < left;
                        left -= u64::from(keep);
                        i16::from(keep)
                    })
                    .collect()
            }
        }
    }

    fn scale(&self, d: usize) -> f64 {
        match self.0 {
            Rule::Each(q) => 1.0 / q.value(),
            Rule::Exactly(k) => (d as f64 / k as f64).max(1.0),
        }
    }
}
