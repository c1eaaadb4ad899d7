//! `whimbrel run`: one job from its file to its report.

use super::args::{Describe, Run};
use super::listener::Terminal;
use super::messages::{data, note, warning};
use super::report;
use crate::run::execute::{CarriedOut, Request, read_job, shell_word};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};
use whimbrel_core::Error;
use whimbrel_engine::Ending;
use whimbrel_families::Job;
use whimbrel_families::describe::described;
use whimbrel_families::failure::Result;
use whimbrel_runs::Existing;

/// The exit code of a run that was interrupted and saved.
pub const INTERRUPTED: u8 = 130;

/// Runs one job file.
pub fn run_command(args: &Run) -> Result<u8> {
    carry_out(args, read_job(&args.job)?)
}

/// Describes the rows of a job file.
pub fn describe_command(args: &Describe) -> Result<u8> {
    let job = described(&read_job(&args.job)?, args.by.as_deref())?;
    let Describe { job: path, out, force, json, .. } = args;
    let (path, out, resume, replay) = (path.clone(), out.clone(), false, None);
    carry_out(
        &Run { job: path, out, resume, force: *force, replay, json: *json, diagnostics: false },
        job,
    )
}

fn carry_out(args: &Run, job: Job) -> Result<u8> {
    let existing = match (args.resume, args.force) {
        (true, _) => Existing::Resume,
        (_, true) => Existing::Replace,
        _ => Existing::Refuse,
    };
    let request =
        Request { job, out: args.out.as_deref(), existing, replay: args.replay.as_deref() };
    let Some(CarriedOut { job, dir, done, report }) = request.carry_out(&Terminal)? else {
        return Ok(INTERRUPTED);
    };
    if args.json {
        let mut object = done.summary;
        object.insert("run".into(), dir.path().display().to_string().into());
        data(&format!("{}\n", Value::Object(object)))?;
    }
    match &done.ending {
        Ending::Failed(error) => {
            note(&format!(
                "results up to there are in {}",
                report.as_deref().unwrap_or(dir.path()).display()
            ));
            return Err(error.clone().into());
        }
        Ending::Interrupted => {
            note(&format!("interrupted after round {}; the state is saved", done.rounds));
            note(&format!(
                "resume with: whimbrel run {} --out {} --resume",
                shell_word(&args.job),
                shell_word(dir.path())
            ));
            return Ok(INTERRUPTED);
        }
        Ending::Degenerate(_) => {}
        ending => verdict(ending),
    }
    if !args.json {
        done.said.iter().try_for_each(|table| data(&format!("{table}\n\n")))?;
        report::tables(&done.views, args.diagnostics)?;
    }
    report.iter().for_each(|path| note(&format!("report: {}", path.display())));
    match done.ending {
        Ending::Degenerate(why) => degenerate(&job, &why).map(|()| 0),
        _ => Ok(0),
    }
}

/// Prints whether a fit has converged.
pub fn verdict(ending: &Ending) {
    match ending {
        Ending::Stopped(_) => warning(&ending.to_string()),
        other => note(&other.to_string()),
    }
}

/// A degenerate fit is an error, or a warning where the job allows it.
pub fn degenerate(job: &Job, why: &str) -> Result<()> {
    if job.fit.allows_degenerate() {
        warning(&format!("the fit is degenerate: {why}"));
        return Ok(());
    }
    let error = Error::numerical(format!("the fit is degenerate: {why}"));
    Err(error.into())
}

/// A flag that the first Ctrl-C sets; the second ends the process at once.
pub fn interrupt_flag() -> Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    static HANDLER: Once = Once::new();
    let flag = FLAG.get_or_init(|| Arc::new(AtomicBool::new(false))).clone();
    HANDLER.call_once(|| {
        let seen = flag.clone();
        let set = ctrlc::set_handler(move || {
            if seen.swap(true, Ordering::Relaxed) {
                std::process::exit(i32::from(INTERRUPTED));
            }
        });
        if let Err(e) = set {
            warning(&format!("Ctrl-C will not save the state: {e}"));
        }
    });
    flag
}
