//! `whimbrel check`: the settings and the cost of a job, without running it.

use super::consent::messages_table;
use super::listener::Terminal;
use super::messages::{data, note};
use crate::run::{Checked, Findings, read_job};
use std::path::Path;
use whimbrel_engine::Consent;
use whimbrel_families::failure::Result;

/// Validates a job and prints its resolved settings, memory, bytes per round and expected time.
pub fn check_command(path: &Path, json: bool) -> Result<u8> {
    let job = read_job(path)?;
    let checked = Checked::of(&job, &Terminal)?;
    if json {
        data(&format!("{}\n", checked.figures()))?;
        return Ok(0);
    }
    match &checked.found {
        Findings::Served { offered, .. } => {
            data(&format!("{}\n", checked.text))?;
            note(
                "no trial rounds, since the rows are with the clients; `whimbrel join` will show them:",
            );
            messages_table(offered, &Consent::default())?.iter().for_each(|line| note(line));
        }
        Findings::Tried(costs) => {
            data(&format!("{}\n{}", checked.text, checked.page(costs)))?;
            if costs.is_cut_short() {
                note(
                    "the stages before the fit take longer than was tried; an automatic rank is \
                     costed as 1",
                );
            }
            note("bytes and time are estimated from trial rounds, which are not saved");
        }
    }
    Ok(0)
}
