//! Failures as Python exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{
    PyArithmeticError, PyConnectionError, PyFileNotFoundError, PyOSError, PyRuntimeError,
    PyValueError,
};
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use whimbrel::parts::core::Error as Core;
use whimbrel::parts::data::Error as Data;
use whimbrel::parts::families::failure::{Failure, Result, remedy};

create_exception!(
    whimbrel,
    NumericalError,
    PyArithmeticError,
    "A run diverged or failed numerically."
);
create_exception!(
    whimbrel,
    DegenerateFit,
    NumericalError,
    "The fit is degenerate. The attribute `run` is the run."
);

/// The arguments and functions that carry out the remedies in hints.
const WAYS: [(&str, &str); 14] = [
    (remedy::OTHER_FOLDER, "`out`"),
    (remedy::NAME_FOLDER, "`out`"),
    (remedy::NEW_RUN, "without existing=\"resume\""),
    (remedy::RESUME, "existing=\"resume\""),
    (remedy::REPLACE, "existing=\"replace\""),
    (remedy::REPLACE_ALL, "existing=\"replace\""),
    (remedy::OPEN, "`whimbrel.Run`"),
    (remedy::NAME_CLIENT, "`client`"),
    (remedy::NO_CLIENT, "without `client`"),
    (remedy::ADAPT, "`adapt`"),
    (remedy::COMPLETE, "`impute`"),
    (remedy::ADD_ROWS, "`adapt`"),
    (remedy::GIVE_FILE, "`data`"),
    (remedy::DRAFT, "`whimbrel new`"),
];

/// The exception of a failure, by who must act.
pub fn exception(failure: &Failure) -> PyErr {
    let text = failure.clone().with_ways(&WAYS).with_ways(&remedy::KEYS).to_string();
    let of_core = |error: &Core| match error {
        Core::Config { .. } | Core::Data { .. } => PyValueError::new_err(text.clone()),
        Core::Numerical { .. } => NumericalError::new_err(text.clone()),
        Core::Peer { .. } => PyConnectionError::new_err(text.clone()),
        Core::Storage { missing: true, .. } => PyFileNotFoundError::new_err(text.clone()),
        Core::Storage { .. } => PyOSError::new_err(text.clone()),
        _ => PyRuntimeError::new_err(text.clone()),
    };
    // The text already has the line of the job.
    let cause = match failure {
        Failure::At { cause, .. } => &**cause,
        other => other,
    };
    match cause {
        Failure::Core(error) | Failure::Data(Data::Core(error)) => of_core(error),
        Failure::Data(Data::Storage { missing: true, .. }) => PyFileNotFoundError::new_err(text),
        Failure::Data(Data::Storage { .. }) => PyOSError::new_err(text),
        Failure::Job(_) | Failure::Data(_) | Failure::At { .. } => PyValueError::new_err(text),
    }
}

/// The exception of a panic: that of a learner written in Python, or a defect of Whimbrel, which must
/// not end the interpreter.
pub fn panicked(payload: Box<dyn Any + Send>) -> PyErr {
    let payload = match payload.downcast::<PyErr>() {
        Ok(exception) => return *exception,
        Err(payload) => payload,
    };
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
    PyRuntimeError::new_err(format!("internal error: {text}; please report it"))
}

/// Refuses to work in a process forked from one that has worked: threads do not survive a fork, and
/// waiting for them would block forever.
pub fn refuse_forks() -> PyResult<()> {
    static FIRST: OnceLock<u32> = OnceLock::new();
    let here = std::process::id();
    if *FIRST.get_or_init(|| here) == here {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(
        "this process was forked from one that had used whimbrel, whose threads do not survive a fork: \
         start processes with multiprocessing's \"spawn\" or \"forkserver\"",
    ))
}

/// Runs `work` without the interpreter; failures become exceptions.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    refuse_forks()?;
    match py.detach(|| catch_unwind(AssertUnwindSafe(work))) {
        Ok(done) => done.map_err(|failure| exception(&failure)),
        Err(payload) => Err(panicked(payload)),
    }
}
