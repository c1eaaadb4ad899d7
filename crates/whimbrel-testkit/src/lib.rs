//! Batteries of laws for codecs, methods and runners, comparisons, and published data for tests.

pub mod codec;
pub mod compare;
pub mod method;
pub mod neighbours;
pub mod runners;

mod data;

pub use compare::{gap, pairs, relative_gap};
pub use data::{data_file, skipped};
