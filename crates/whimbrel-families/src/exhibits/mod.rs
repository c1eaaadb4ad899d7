//! What a family shows of a finished run: exhibits for its report.

pub mod mixture;
pub mod table;

/// A number with so many significant digits, as short as it can be.
fn figure(value: f64, digits: usize) -> String {
    let rounded = format!("{value:.*e}", digits.saturating_sub(1)).parse().unwrap_or(value);
    if rounded == 0.0 || (1e-4..1e7).contains(&f64::abs(rounded)) {
        return rounded.to_string();
    }
    format!("{rounded:e}")
}
