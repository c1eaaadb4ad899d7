//! Several jobs, one report.

use super::execute::{Ready, keep_inputs};
use super::{Listener, page, search, view};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use whimbrel_core::Error;
use whimbrel_engine::Ending;
use whimbrel_families::Job;
use whimbrel_families::failure::{Failure, Result, remedy};
use whimbrel_report::RunView;
use whimbrel_runs::{Existing, RunDir};

/// A comparison of several runs.
pub struct Comparison {
    /// The folder, with one folder per job in it.
    pub dir: RunDir,
    /// The runs.
    pub compared: Compared,
    /// The report, if it could be written.
    pub page: Option<PathBuf>,
}

/// Runs jobs of different names into one folder; `None` if interrupted. The report's default title
/// is the jobs' names.
pub fn compare(
    jobs: Vec<Job>,
    title: Option<String>,
    out: Option<&Path>,
    force: bool,
    to: &dyn Listener,
) -> Result<Option<Comparison>> {
    check_names(&jobs)?;
    let parent = Parent::open(out, "compare", force).map_err(|e| match e {
        Failure::Core(error) if out.is_some_and(Path::is_dir) => {
            error.hint(format!("{}, or {}", remedy::OTHER_FOLDER, remedy::REPLACE_ALL)).into()
        }
        other => other,
    })?;
    let Some(compared) = run_all(jobs, &parent, to)? else { return Ok(None) };
    let (views, page) = (&compared.views, parent.dir.path().join("report.html"));
    let title = title.unwrap_or_else(|| page::names(views));
    let page = page::write_or_warn(&title, views, &page, to);
    Ok(Some(Comparison { dir: parent.dir, compared, page }))
}

/// The folder that holds the runs of a comparison.
pub struct Parent {
    pub dir: RunDir,
    force: bool,
}

impl Parent {
    /// A new or empty folder, or one whose runs may be replaced.
    pub fn open(out: Option<&Path>, name: &str, force: bool) -> Result<Self> {
        let dir = match out {
            Some(path) if force && path.is_dir() => RunDir::adopt(path),
            _ => RunDir::open(out, name, Existing::Refuse)?,
        };
        Ok(Self { dir, force })
    }
}

/// Several runs side by side.
pub struct Compared {
    /// The runs as a report shows them, with the objective of an `em` run as the reference.
    pub views: Vec<RunView>,
    /// The summaries by name.
    pub summaries: Map<String, Value>,
    /// Names of runs that failed, or are degenerate against their jobs' `allow_degenerate`.
    pub failed: Vec<String>,
}

/// Runs all jobs; `None` if interrupted.
pub fn run_all(jobs: Vec<Job>, parent: &Parent, to: &dyn Listener) -> Result<Option<Compared>> {
    let settled = jobs.into_iter().map(|job| {
        let out = parent.dir.path().join(&job.name);
        search::settle(job, Some(&out), false, to)
    });
    let Some(jobs) = settled.collect::<Result<Option<Vec<_>>>>()? else { return Ok(None) };
    // Everything is checked before anything runs.
    let ready = jobs.into_iter().map(Ready::new).collect::<Result<Vec<_>>>()?;
    let data = ready.iter().map(|p| (p.job.name.as_str(), p.data_hash()));
    page::warn_of_others("data differ from those", false, data, to);
    let models = ready.iter().map(|p| (p.job.name.as_str(), p.job.model));
    page::warn_of_others("model differs from that", true, models, to);
    let (mut views, mut failed) = (Vec::new(), Vec::new());
    let mut summaries = Map::new();
    if parent.force {
        ready.iter().try_for_each(|ready| keep_inputs(&ready.job, None, parent.dir.path()))?;
    }
    for mut job in ready {
        let name = job.job.name.clone();
        job.say(&format!("{name}: "), to);
        let existing = if parent.force { Existing::Replace } else { Existing::Refuse };
        let dir = RunDir::open(Some(&parent.dir.path().join(&name)), &name, existing)?;
        let done = job.execute(&dir, false, to)?;
        done.said.iter().for_each(|table| to.note(table));
        match done.ending {
            Ending::Interrupted => {
                to.note(&format!(
                    "interrupted in `{name}`; finished runs are in {}",
                    parent.dir.path().display()
                ));
                return Ok(None);
            }
            Ending::Failed(error) => {
                failed.push(name.clone());
                to.warning(&format!("{name} failed: {}", Failure::from(error)));
            }
            Ending::Degenerate(why) => {
                failed.extend((!job.job.fit.allows_degenerate()).then(|| name.clone()));
                to.warning(&format!("{name} is degenerate: {why}"));
            }
            Ending::Stopped(why) => to.warning(&format!("{name} stopped {why}")),
            Ending::Converged(_) => {}
        }
        page::write_or_warn(&name, &done.views, &dir.path().join("report.html"), to);
        let mut summary = done.summary;
        summary.insert("run".into(), dir.path().display().to_string().into());
        summaries.insert(name, Value::Object(summary));
        views.extend(done.views);
    }
    view::refer_to_pooled(&mut views);
    Ok(Some(Compared { views, summaries, failed }))
}

/// Refuses jobs of equal name.
fn check_names(jobs: &[Job]) -> Result<()> {
    let mut names: Vec<&str> = jobs.iter().map(|j| j.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|w| w[0] == w[1]) {
        Some(twice) => {
            let error = Error::config(format!("two jobs have the name `{}`", twice[0]))
                .hint("give each job its own `name`");
            Err(error.into())
        }
        None => Ok(()),
    }
}
