//! Batteries of laws for codecs, methods and runners, comparisons, and published data for tests.

pub mod codec;
pub mod compare;
pub mod method;
pub mod neighbours;
pub mod runners;

mod data;
mod postgres;

pub use compare::{gap, pairs, relative_gap};
pub use data::{data_file, skipped};
pub use postgres::Postgres;

/// A line of this process's status, in MB; zero where there is none.
pub fn resident_mb(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    let kilobytes = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) / 1e3
}
