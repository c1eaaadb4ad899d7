//! `whimbrel compare`: several jobs, one report.

use super::args::Compare;
use super::execute::INTERRUPTED;
use super::listener::Terminal;
use super::messages::{data, note};
use super::report;
use crate::run::{Compared, Comparison, compare, read_job};
use serde_json::Value;
use std::path::{Path, PathBuf};
use whimbrel_families::failure::Result;

/// The exit code of a comparison with a failed run, or a degenerate one that its job does not allow.
const FAILED: u8 = 1;

/// Runs several job files.
pub fn compare_command(args: &Compare) -> Result<u8> {
    let jobs = args.jobs.iter().map(|path| read_job(path)).collect::<Result<Vec<_>>>()?;
    let title = args.title.clone().or_else(|| folder_name(&args.jobs));
    let compared = compare(jobs, title, args.out.as_deref(), args.force, &Terminal)?;
    let Some(Comparison { compared, page, .. }) = compared else { return Ok(INTERRUPTED) };
    let Compared { views, summaries, failed } = compared;
    if args.json {
        data(&format!("{}\n", Value::Object(summaries)))?;
    } else {
        report::tables(&views, args.diagnostics)?;
    }
    page.iter().for_each(|path| note(&format!("report: {}", path.display())));
    Ok(if failed.is_empty() { 0 } else { FAILED })
}

/// The name of the folder that holds all jobs.
fn folder_name(jobs: &[PathBuf]) -> Option<String> {
    let folder = |job: &PathBuf| job.canonicalize().ok()?.parent().map(Path::to_path_buf);
    let first = folder(jobs.first()?)?;
    let name = first.file_name()?.to_string_lossy().into_owned();
    (jobs.len() > 1 && jobs.iter().all(|job| folder(job).as_ref() == Some(&first))).then_some(name)
}
