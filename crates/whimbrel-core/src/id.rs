//! Ids and checked numbers.

use crate::{Error, Result};

/// A client, by its rank in the sorted roster (late joiners follow in order of admission).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u32);

impl std::fmt::Display for ClientId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A probability in (0, 1].
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Probability(f64);

impl Probability {
    /// Certainty.
    pub const ONE: Self = Self(1.0);
    /// An even chance.
    pub const HALF: Self = Self(0.5);

    /// Checks that `p` lies in (0, 1].
    pub fn new(p: f64) -> Result<Self> {
        if p > 0.0 && p <= 1.0 {
            Ok(Self(p))
        } else {
            Err(Error::config(format!("{p} is not a probability in (0, 1]")))
        }
    }

    /// The number.
    pub fn value(self) -> f64 {
        self.0
    }
}

/// A positive, finite step size.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct StepSize(f64);

impl StepSize {
    /// Checks that `gamma` is positive and finite.
    pub fn new(gamma: f64) -> Result<Self> {
        if gamma > 0.0 && gamma.is_finite() {
            Ok(Self(gamma))
        } else {
            Err(Error::config(format!("{gamma} is not a positive step size")))
        }
    }

    /// The number.
    pub fn value(self) -> f64 {
        self.0
    }
}
