//! Types that all other crates share: ids, keyed random streams, exact sums, the wire format, the
//! method trait and its erased twin, and the declarations of methods.
//!
//! Absent on purpose: files, clocks, threads, and any third-party array type.

pub mod decentralised;
pub mod declare;
pub mod erased;
pub mod error;
pub mod frame;
pub mod id;
pub mod isa;
pub mod key;
pub mod linalg;
pub mod math;
pub mod method;
pub mod sample;
pub mod samples;
pub mod segment;
pub mod shared;
pub mod spread;
pub mod sum;
pub mod table;
pub mod text;
pub mod vector;
pub mod wire;

pub use decentralised::Decentralised;
pub use declare::Measure;
pub use erased::{Bound, DynDone, DynMethod, DynSender, DynTask, Erased, Opaque, StateKind};
pub use error::{Error, Result};
pub use frame::Frame;
pub use id::{ClientId, Probability, StepSize};
pub use key::{Key, Stream};
pub use method::{Evaluate, Method};
pub use samples::{Inputs, Samples, Targets};
pub use segment::Segment;
pub use shared::{Message, Shared, Tail};
pub use spread::{InTurn, Spread};
pub use sum::ExactSum;
pub use table::{Cell, Cells, ClientData, FeatureRows, HeldOut, Labelled, RowStream, Table};
pub use wire::{State, Wire};
