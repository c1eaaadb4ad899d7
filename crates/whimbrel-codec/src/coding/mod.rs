//! Entropy coding: integer levels to bytes and back.

pub(crate) mod count;
mod digits;
pub(crate) mod levels;
mod model;
mod range;
mod table;
