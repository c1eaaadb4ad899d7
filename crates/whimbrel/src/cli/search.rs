//! Settings that the validation rows choose: a run for each candidate, before the run itself.

use super::execute::Ready;
use super::listener::Listener;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use whimbrel::core::Error;
use whimbrel::engine::Ending;
use whimbrel::families::Job;
use whimbrel::families::failure::Result;
use whimbrel::runs::{Existing, RunDir};

/// Figures by which candidates are judged, the first that a run has, and whether more is better.
const JUDGED_BY: [(&str, bool); 2] = [("validation_accuracy", true), ("validation_loss", false)];

/// The job with the settings that do best. Candidates run in folders beside `out`, named after what
/// they set.
pub fn settle(job: Job, out: Option<&Path>, to: &dyn Listener) -> Result<Job> {
    if job.method.search.is_empty() {
        return Ok(job);
    }
    if job.data.held_out.validation == 0.0 && job.data.held_out.role.is_none() {
        let error = Error::config("nothing in [data] keeps validation rows to search by")
            .hint("set validation = 0.2 in [data], or take `search` out of [method]");
        return Err(error.into());
    }
    let mut best: Option<(f64, String, Job)> = None;
    for (words, mut candidate) in job.candidates()? {
        candidate.name = format!("{}-search-{}", job.name, words.replace([',', '='], "-"));
        let folder = beside(out, &candidate.name, &words);
        let found = figure(&run(&candidate, &folder, to)?);
        candidate.name.clone_from(&job.name);
        let Some((name, value, up)) = found else {
            to.note(&format!("search {words}: failed"));
            continue;
        };
        to.note(&format!("search {words}: {name} {value:.4}"));
        let merit = if up { value } else { -value };
        if best.as_ref().is_none_or(|(most, _, _)| merit > *most) {
            best = Some((merit, words, candidate));
        }
    }
    let Some((_, words, chosen)) = best else {
        return Err(Error::config("every candidate of the search failed").into());
    };
    to.note(&format!("search: going on with {words}"));
    Ok(chosen)
}

/// The folder of a candidate.
fn beside(out: Option<&Path>, name: &str, words: &str) -> PathBuf {
    match out {
        None => Path::new("runs").join(name),
        Some(out) => {
            let mut folder = out.as_os_str().to_owned();
            folder.push("-search");
            Path::new(&folder).join(words)
        }
    }
}

/// A candidate's summary.
fn run(job: &Job, folder: &Path, to: &dyn Listener) -> Result<Map<String, Value>> {
    let mut ready = Ready::new(job.clone())?;
    let dir = RunDir::open(Some(folder), &job.name, Existing::Replace)?;
    let done = ready.execute(&dir, false, to)?;
    if let Ending::Interrupted = done.ending {
        return Err(Error::config("interrupted in a search; run the same command again").into());
    }
    Ok(done.summary)
}

fn figure(summary: &Map<String, Value>) -> Option<(&'static str, f64, bool)> {
    let of = |(name, up): (&'static str, bool)| {
        let value = summary.get(name)?;
        // Of several seeds: their mean.
        let value = value.get("mean").unwrap_or(value);
        value.as_f64().filter(|x| x.is_finite()).map(|x| (name, x, up))
    };
    JUDGED_BY.into_iter().find_map(of)
}
