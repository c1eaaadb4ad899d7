//! The Python package's compiled half: jobs, run folders, rows and both halves of the protocol.
//!
//! The public interface is Python, in `python/whimbrel`; this crate has the functions that it calls.
//! They take and return paths, bytes and buffers of numbers, release the interpreter while they
//! compute, and turn failures into exceptions (`errors`).

mod background;
mod errors;
mod jobs;
mod learner;
mod machines;
mod roster;
mod rows;
mod runs;
mod shard;

#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Jobs, runs, rows and machines; the package `whimbrel` is its interface.
#[pyo3::pymodule]
mod _whimbrel {
    #[pymodule_export]
    use super::errors::{DegenerateFit, NumericalError};
    #[pymodule_export]
    use super::jobs::{check, estimate, inspect_clients, inspect_data, new};
    #[pymodule_export]
    use super::learner::{OwnLearner, network_gradient};
    #[pymodule_export]
    use super::machines::{keep_own, serve};
    #[pymodule_export]
    use super::roster::identity;
    #[pymodule_export]
    use super::rows::Rows;
    #[pymodule_export]
    use super::runs::{
        adapt, compare, export, impute, learned, own_names, predict, report, run, shared_predicts,
        tensors,
    };
    #[pymodule_export]
    use super::shard::{Offered, Shard, offer};
}
