//! The batteries that every codec, model, method and runner must pass, and where tests find data.

pub mod codec;
pub mod compare;
pub mod method;
pub mod neighbours;
pub mod runners;

mod data;

pub use compare::{gap, pairs, relative_gap};
pub use data::{data_file, skipped};
