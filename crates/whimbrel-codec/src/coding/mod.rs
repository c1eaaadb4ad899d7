//! Entropy coding: integer levels to bytes and back.

mod bits;
pub(crate) mod levels;
mod model;
mod range;
mod rice;
mod table;
