//! The former name of [`run`](crate::run).

pub use crate::run::*;
