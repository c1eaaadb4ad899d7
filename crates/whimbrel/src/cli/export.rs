//! `whimbrel export`: a run's figures for an experiment tracker.

use super::args::Export;
use super::messages::note;
use crate::run::tracking::{mlflow, tensorboard};
use whimbrel_families::failure::Result;
use whimbrel_runs::RunDir;

/// Writes the files of the trackers that were asked for.
pub fn export_command(args: &Export) -> Result<u8> {
    let run = RunDir::existing(&args.run)?;
    if let Some(folder) = &args.to.tensorboard {
        note(&format!("TensorBoard: {}", tensorboard(&run, folder)?.display()));
    }
    if let Some(folder) = &args.to.mlflow {
        note(&format!("MLflow: {}", mlflow(&run, folder)?.display()));
    }
    Ok(0)
}
