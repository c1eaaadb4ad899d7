//! Random dithering: every coordinate rounded at random to one of `s` levels of the norm.
//!
//! `C(x)_i = (||x||_r / s) sign(x_i) floor(s |x_i| / ||x||_r + xi_i)` with `xi_i` uniform on
//! [0, 1] (Alistarh et al., 2017; Horváth et al., 2019), on the whole vector or on buckets, each
//! with its own norm. The step `||x||_r / s` is rounded up and sent; levels are drawn for the rounded
//! step, so they stay unbiased.

use whimbrel_core::{Error, Result};

use crate::Norm;
use crate::coding::levels::LARGEST_LEVEL;

/// Random dithering with `levels` levels of the norm `norm`.
#[derive(Clone, PartialEq, Debug)]
pub struct Dithering {
    levels: u16,
    norm: Norm,
    bucket: Option<usize>,
}

impl Default for Dithering {
    /// One level of the Euclidean norm of the whole vector.
    fn default() -> Self {
        Self { levels: 1, norm: Norm::P(2), bucket: None }
    }
}

impl Dithering {
    /// Checks `levels` (1 to 32767), `norm` (1, 2 or infinity) and `bucket` (coordinates per norm; `None`
    /// for one norm of the whole vector).
    pub fn new(levels: u32, norm: Norm, bucket: Option<usize>) -> Result<Self> {
        if levels == 0 || levels > u32::from(LARGEST_LEVEL) {
            return Err(Error::config(format!("dithering with {levels} levels is not supported"))
                .hint(format!("levels must be between 1 and {LARGEST_LEVEL}")));
        }
        if !matches!(norm, Norm::P(1 | 2) | Norm::Infinity) {
            return Err(Error::config(format!("dithering with norm {norm:?} is not supported"))
                .hint("the norm must be 1, 2 or infinity"));
        }
        if bucket == Some(0) {
            return Err(Error::config("dithering needs buckets of at least 1 coordinate")
                .hint("leave the bucket out to use one norm for the whole vector"));
        }
        Ok(Self { levels: levels as u16, norm, bucket })
    }

    /// The same codec with a number of levels that is chosen later: [`settled`](Self::settled) must be
    /// called before its use.
    pub fn automatic(self) -> Self {
        Self { levels: 0, ..self }
    }

    /// The same codec with this number of levels, if it is automatic.
    pub fn settled(&self, levels: u16) -> Self {
        let levels = if self.is_automatic() { levels } else { self.levels };
        Self { levels, ..self.clone() }
    }

    /// Whether the number of levels is still to be chosen.
    pub fn is_automatic(&self) -> bool {
        self.levels == 0
    }

    pub fn levels(&self) -> u16 {
        self.levels
    }

    pub fn norm(&self) -> Norm {
        self.norm
    }

    /// Coordinates per norm; `None` for the whole vector.
    pub fn bucket(&self) -> Option<usize> {
        self.bucket
    }

    /// The supremum over `x` of `E||C(x) - x||^2 / ||x||^2`, or a bound close to it.
    ///
    /// With `y_i = s |x_i| / ||x||_r` and `g(y) = f (1 - f)`, `f` the fractional part of `y`, the
    /// ratio is `sum g(y_i) / sum y_i^2`. Three facts give the constants: `g <= 1/4`;
    /// `g(sqrt(t))` lies below the concave function that is `sqrt(t) - t` up to `t = 1/4` and
    /// 1/4 from there on; and for `m <= 1/2` the tangent of `y - y^2` at `m` lies above `g`.
    ///
    /// - r = 2 (`sum y_i^2 = s^2`): `sqrt(d)/s - 1` where `s <= sqrt(d)/2` or `s = 1`, at the
    ///   constant vector; else `d/(4 s^2)`, where all `y_i` are half-integers.
    /// - r = 1 (`sum y_i = s`): `d/s - 1` where `s <= d/2` or `s = 1`, at the constant vector;
    ///   else `(d/(2 s))^2`, where all `y_i` are the same half-integer.
    /// - r = infinity (some `y_i = s`): `(sqrt(s^2 + d - 1) - s) / (2 s)`, at one large coordinate
    ///   and all others with `y_i = s / (s + sqrt(s^2 + d - 1))`.
    pub(crate) fn omega(&self, d: usize) -> f64 {
        let d = self.bucket.map_or(d, |b| b.min(d)) as f64;
        let s = f64::from(self.levels);
        // A single coordinate is its own norm.
        if d <= 1.0 {
            return 0.0;
        }
        match self.norm {
            Norm::Infinity => ((s * s + d - 1.0).sqrt() - s) / (2.0 * s),
            Norm::P(1) => small_or_half(s / d, s),
            Norm::P(_) => small_or_half(s / d.sqrt(), s),
        }
    }
}

/// `1/m - 1` for a typical level `m <= 1/2`, and `1/(4 m^2)` above: they meet at 1/2. With a
/// single level no `y` exceeds 1, where `g(y) = y - y^2`, so the first holds for every `m`.
fn small_or_half(m: f64, s: f64) -> f64 {
    if m <= 0.5 || s == 1.0 { 1.0 / m - 1.0 } else { 1.0 / (4.0 * m * m) }
}
