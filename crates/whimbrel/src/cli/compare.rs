//! `whimbrel compare`: several jobs, one report.

use super::args::Compare;
use super::execute::{INTERRUPTED, Prepared, read_job};
use super::messages::{note, warning};
use super::{report, view};
use serde_json::{Map, Value};
use std::path::Path;
use whimbrel::core::Error;
use whimbrel::engine::Ending;
use whimbrel::job::Job;
use whimbrel::job::failure::{Failure, Result};
use whimbrel::job::rundir::{Existing, RunDir};
use whimbrel::report::RunView;

/// Runs several job files.
pub fn compare_command(args: &Compare) -> Result<u8> {
    let jobs = args.jobs.iter().map(|path| read_job(path)).collect::<Result<Vec<_>>>()?;
    let parent = Parent::open(args.out.as_deref(), "compare", args.force)?;
    let Some((views, summaries)) = run_all(jobs, &parent)? else { return Ok(INTERRUPTED) };
    let report = report::write(&views, &parent.dir.path().join("report.html"))?;
    if args.json {
        println!("{}", Value::Object(summaries));
    } else {
        print!("{}", whimbrel::report::closing_table(&views));
    }
    note(&format!("report: {}", report.display()));
    Ok(0)
}

/// The folder that holds the runs of a comparison.
pub struct Parent {
    pub dir: RunDir,
    force: bool,
}

impl Parent {
    /// A new or empty folder, or one whose runs may be replaced.
    pub fn open(out: Option<&Path>, name: &str, force: bool) -> Result<Self> {
        let existing = Existing::Refuse;
        let dir = match out {
            Some(path) if force && path.is_dir() => RunDir::adopt(path),
            _ => RunDir::open(out, name, existing)?,
        };
        Ok(Self { dir, force })
    }
}

/// What a report shows of each run, and the summaries by name.
type Compared = (Vec<RunView>, Map<String, Value>);

/// The views of all runs with the objective of an `em` among them as the reference, and their
/// summaries by name; none when the user stopped it.
pub fn run_all(jobs: Vec<Job>, parent: &Parent) -> Result<Option<Compared>> {
    let mut names: Vec<&str> = jobs.iter().map(|j| j.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
        let error = Error::config(format!("two jobs are called `{}`", twice[0]))
            .hint("give each job its own `name`");
        return Err(error.into());
    }
    // Everything is checked before anything runs.
    let prepared = jobs.into_iter().map(Prepared::new).collect::<Result<Vec<_>>>()?;
    let mut views = Vec::new();
    let mut summaries = Map::new();
    for job in prepared {
        let name = job.job.name.clone();
        job.warnings().iter().for_each(|w| warning(&format!("{name}: {w}")));
        let existing = if parent.force { Existing::Replace } else { Existing::Refuse };
        let dir = RunDir::open(Some(&parent.dir.path().join(&name)), &name, existing)?;
        let done = job.execute(&dir, false)?;
        match done.ending {
            Ending::Interrupted => {
                note(&format!(
                    "interrupted in `{name}`; finished runs are in {}",
                    parent.dir.path().display()
                ));
                return Ok(None);
            }
            Ending::Failed(error) => warning(&format!("{name} failed: {}", Failure::from(error))),
            Ending::Early(_) | Ending::Finished => {}
        }
        let view = view::load(&dir)?;
        report::write(std::slice::from_ref(&view), &dir.path().join("report.html"))?;
        let mut summary = done.summary;
        summary.insert("run".into(), dir.path().display().to_string().into());
        summaries.insert(name, Value::Object(summary));
        views.push(view);
    }
    view::refer_to_em(&mut views);
    Ok(Some((views, summaries)))
}
