//! `whimbrel pool`: fits of completed data sets by Rubin's rules.

use super::args::Pool;
use super::messages::data;
use crate::run::view;
use whimbrel_families::failure::Result;
use whimbrel_families::regression::pool;
use whimbrel_runs::RunDir;

/// Pools the coefficients of several runs.
pub fn pool_command(args: &Pool) -> Result<u8> {
    let read = |run: &std::path::PathBuf| {
        Ok((run.display().to_string(), view::summary(&RunDir::existing(run)?)?))
    };
    let runs = args.runs.iter().map(read).collect::<Result<Vec<_>>>()?;
    let (object, table) = pool(&runs)?;
    data(&if args.json { format!("{object}\n") } else { format!("{table}\n") })?;
    Ok(0)
}
