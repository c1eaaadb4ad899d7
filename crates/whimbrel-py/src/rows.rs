//! Rows of a Python program.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;
use whimbrel::parts::core::Table;
use whimbrel::parts::data::{Dataset, Input};
use whimbrel::parts::families::failure::Failure;

use crate::errors::exception;

/// Rows in memory. Copies share them.
#[pyclass(frozen, from_py_object, module = "whimbrel._whimbrel")]
#[derive(Clone)]
pub struct Rows {
    pub input: Input,
}

/// Rows in memory, or the path of a file.
#[derive(FromPyObject)]
pub enum Source {
    Rows(Rows),
    File(PathBuf),
}

impl Source {
    pub fn input(self) -> Input {
        match self {
            Self::Rows(rows) => rows.input,
            Self::File(path) => path.into(),
        }
    }
}

#[pymethods]
impl Rows {
    /// Takes a copy of a two-dimensional buffer of `float64` with these column names; `target` is a
    /// further column of numbers, and `texts` are columns of text; `order` is that of all columns.
    #[new]
    #[pyo3(signature = (values, columns, target=None, texts=Vec::new(), order=Vec::new()))]
    fn new(
        py: Python<'_>,
        values: PyBuffer<f64>,
        mut columns: Vec<String>,
        target: Option<(String, PyBuffer<f64>)>,
        texts: Vec<(String, Vec<String>)>,
        order: Vec<String>,
    ) -> PyResult<Self> {
        let [rows, width] = *values.shape() else {
            return Err(PyValueError::new_err("rows must be a two-dimensional array"));
        };
        if columns.len() != width {
            let what = format!("{width} columns and {} names", columns.len());
            return Err(PyValueError::new_err(what));
        }
        let check_length = |length: usize, name: &str| {
            if length == rows {
                return Ok(());
            }
            Err(PyValueError::new_err(format!("{length} values of `{name}` for {rows} rows")))
        };
        let mut numbers = values.to_vec(py)?;
        if let Some((name, target)) = target {
            check_length(target.item_count(), &name)?;
            widen(&mut numbers, width, &target.to_vec(py)?);
            columns.push(name);
        }
        let table = Table::new(columns, numbers);
        let table = table.map_err(|error| exception(&Failure::Core(error)))?;
        let mut data = Dataset::from_table("X", table);
        for (name, values) in texts {
            check_length(values.len(), &name)?;
            data = data.with_text(&name, values.iter().map(String::as_str));
        }
        Ok(Self { input: py.detach(|| Input::rows(data.in_order(&order))) })
    }
}

/// Appends a number to each row in place.
fn widen(rows: &mut Vec<f64>, width: usize, last: &[f64]) {
    rows.resize(last.len() * (width + 1), 0.0);
    for (i, x) in last.iter().enumerate().rev() {
        rows.copy_within(i * width..(i + 1) * width, i * (width + 1));
        rows[i * (width + 1) + width] = *x;
    }
}
