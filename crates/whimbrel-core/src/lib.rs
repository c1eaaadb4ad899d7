//! Words every other crate shares: ids, keyed random streams, exact sums, the wire, the method
//! trait and its erased twin.
//!
//! Absent on purpose: files, clocks, threads, and any third-party array type.

pub mod error;
pub mod id;
pub mod isa;
pub mod key;
pub mod table;

pub use error::{Error, Result};
pub use id::{ClientId, Probability, StepSize};
pub use key::{Key, Stream};
pub use table::{ClientData, RowStream, Table};
