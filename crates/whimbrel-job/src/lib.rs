//! Reading, writing and documenting job files by one definition per key.
//!
//! The [`reader`] parses by a [`JobKey`](key::JobKey) and takes defaults and messages from it, the [`writer`]
//! writes it, the [`reference`](mod@reference) pages print it. The tables of a job are defined in
//! `whimbrel-families`.

pub mod error;
pub mod form;
pub mod key;
pub mod matrix;
pub mod origin;
pub mod reader;
pub mod reference;
pub mod writer;

pub mod suggest;

pub use error::{Error, Errors};
pub use origin::Origin;
