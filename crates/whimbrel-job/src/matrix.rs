//! Lists of numbers and square matrices in a job file.

use crate::form::Form;
use crate::reader::{Read, Reported, Value};
use crate::writer::{list, number};

/// A matrix by rows.
pub type Matrix = Vec<Vec<f64>>;

/// Covariance matrices.
pub const COVARIANCE: Form<Matrix> =
    Form::new("a square matrix", |v| read_covariance(v.clone()), write_matrix);

/// Largest difference of mirrored entries, relative to the larger.
const SYMMETRY_TOLERANCE: f64 = 1e-9;

/// A non-empty list of numbers that pass a test.
pub fn read_numbers(value: Value<'_>, test: fn(f64) -> bool) -> Read<Vec<f64>> {
    let numbers = read_all(value.list()?, |item| item.number(test))?;
    if numbers.is_empty() { Err(value.refuse()) } else { Ok(numbers) }
}

/// A non-empty list of rows of one length.
pub fn read_rows(value: Value<'_>) -> Read<Matrix> {
    let items = value.list()?;
    let rows = read_all(items.clone(), |row| read_numbers(row, |_| true))?;
    let Some(width) = rows.first().map(Vec::len) else { return Err(value.refuse()) };
    match rows.iter().position(|row| row.len() != width) {
        None => Ok(rows),
        Some(odd) => Err(items[odd].fail(
            format!("row {} has {} numbers, the first has {width}", odd + 1, rows[odd].len()),
            "every row needs the same length",
        )),
    }
}

/// A covariance matrix: square, symmetric, positive definite.
pub fn read_covariance(value: Value<'_>) -> Read<Matrix> {
    let rows = read_rows(value.clone())?;
    let d = rows.len();
    if rows[0].len() != d {
        return Err(value.fail(
            format!("the matrix is {d} x {}, it must be square", rows[0].len()),
            "a covariance has one row and one column for each column of the data",
        ));
    }
    let mirrored = |i: usize, j: usize| {
        let (a, b) = (rows[i][j], rows[j][i]);
        (a - b).abs() <= SYMMETRY_TOLERANCE * a.abs().max(b.abs())
    };
    let mut below_diagonal = (0..d).flat_map(|i| (0..i).map(move |j| (i, j)));
    if let Some((i, j)) = below_diagonal.find(|&(i, j)| !mirrored(i, j)) {
        let (row, column, a, b) = (i + 1, j + 1, rows[i][j], rows[j][i]);
        return Err(value.fail(
            format!(
                "the matrix is not symmetric: row {row} column {column} is {a}, \
                 row {column} column {row} is {b}"
            ),
            "a covariance equals its transpose",
        ));
    }
    if !is_positive_definite(&rows) {
        return Err(value.fail(
            "the matrix is not positive definite",
            "a covariance has positive eigenvalues only",
        ));
    }
    Ok(rows)
}

/// Reads every item, so that all faults are reported, then fails if one did.
pub fn read_all<'a, T>(items: Vec<Value<'a>>, read: impl Fn(Value<'a>) -> Read<T>) -> Read<Vec<T>> {
    let results: Vec<Result<T, Reported>> = items.into_iter().map(read).collect();
    results.into_iter().collect()
}

/// A matrix as TOML.
pub fn write_matrix(matrix: &Matrix) -> String {
    list(matrix.iter().map(|row| list(row.iter().map(|x| number(*x)))))
}

/// Whether a Cholesky factorisation exists.
fn is_positive_definite(matrix: &Matrix) -> bool {
    let d = matrix.len();
    let mut factor = vec![vec![0.0; d]; d];
    for i in 0..d {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| factor[i][k] * factor[j][k]).sum();
            let rest = matrix[i][j] - dot;
            if i == j {
                if rest.is_nan() || rest <= 0.0 {
                    return false;
                }
                factor[i][i] = rest.sqrt();
            } else {
                factor[i][j] = rest / factor[j][j];
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positive_definite_matrices_are_told_from_others() {
        assert!(is_positive_definite(&vec![vec![1.0, 0.3], vec![0.3, 0.8]]));
        assert!(!is_positive_definite(&vec![vec![1.0, 2.0], vec![2.0, 1.0]]));
        assert!(!is_positive_definite(&vec![vec![0.0]]));
        assert!(!is_positive_definite(&vec![vec![1.0, 1.0], vec![1.0, 1.0]]));
    }
}
