//! `whimbrel new`: a job file to start from.

use super::messages::note;
use super::output::Output;
use crate::run::execute::shell_word;
use crate::run::{Wishes, draft};
use std::path::Path;
use whimbrel_core::Error;
use whimbrel_families::failure::Result;

/// Writes a commented job file.
pub fn new_command(
    data: Option<&Path>,
    out: Option<&Path>,
    force: bool,
    wishes: Wishes<'_>,
) -> Result<u8> {
    if let Some(file) = data.filter(|file| !file.exists()) {
        let error = Error::config(format!("there is no file {}", file.display()))
            .hint("give the path of your data; without one, the job is for generated data");
        return Err(error.into());
    }
    let output = Output::check(out.unwrap_or(Path::new("-")), force, data)?;
    let job = out.filter(|_| !output.is_standard());
    let draft = draft(data, job, wishes)?;
    output.write(&draft.text)?;
    draft.doubts.iter().for_each(|doubt| note(doubt));
    if let Some(job) = job {
        note(&format!("wrote {}; next: whimbrel check {}", output.shown(), shell_word(job)));
    }
    Ok(0)
}
