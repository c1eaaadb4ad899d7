//! `whimbrel check`: what a job will do and cost, without running it.

use super::join::show_disclosures;
use super::listener::Terminal;
use super::messages::{data, note};
use crate::run::check::{Checked, Found};
use crate::run::read_job;
use std::path::Path;
use whimbrel::families::failure::Result;

/// Validates a job and prints what it resolves to, its memory, bytes per round and expected time.
pub fn check_command(path: &Path, json: bool) -> Result<u8> {
    let job = read_job(path)?;
    let checked = Checked::of(&job, &Terminal)?;
    if json {
        data(&format!("{}\n", checked.figures()))?;
        return Ok(0);
    }
    match &checked.found {
        Found::Served { offered, .. } => {
            data(&format!("{}\n", checked.text))?;
            note(
                "the rows are the clients', so nothing is tried; what `whimbrel join` will show them:",
            );
            show_disclosures(offered)?;
        }
        Found::Tried(costs) => {
            data(&format!("{}\n{}", checked.text, checked.page(costs)))?;
            if costs.trial.cut_short {
                note(
                    "the stages before the fit take longer than was tried; an automatic rank is \
                     costed as 1",
                );
            }
            note("bits and time come from some trial rounds, kept nowhere");
        }
    }
    Ok(0)
}
