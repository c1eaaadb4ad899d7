//! Search over settings by validation rows: one run per candidate before the run itself.

use super::Listener;
use super::execute::Ready;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use whimbrel_core::Error;
use whimbrel_engine::Ending;
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_families::Job;
use whimbrel_families::failure::Result;
use whimbrel_runs::{Existing, RunDir};

/// Criteria in order of preference, and whether larger is better.
const JUDGED_BY: [(&str, bool); 2] = [("validation_accuracy", true), ("validation_loss", false)];

/// The job with the best settings; `None` if interrupted. Candidates run in folders beside `out`. A
/// resumed run keeps the settings it was started with.
pub fn settle(
    job: Job,
    out: Option<&Path>,
    resume: bool,
    to: &dyn Listener,
) -> Result<Option<Job>> {
    if job.method.search.is_empty() {
        return Ok(Some(job));
    }
    let candidates = job.candidates()?;
    if let (true, Some(out)) = (resume, out) {
        let file = RunDir::existing(out)?.path().join("job.toml");
        let text = std::fs::read_to_string(&file).map_err(|e| Error::read(file.display(), &e))?;
        let recorded = Job::parse(&text, &file.display().to_string())?;
        let chosen = candidates.into_iter().find(|(_, job)| job.method == recorded.method);
        let what =
            "the interrupted run has settings that are not among the candidates of this search";
        return chosen.map(|(_, job)| Some(job)).ok_or_else(|| Error::config(what).into());
    }
    if job.data.held_out.validation == 0.0 && job.data.held_out.role.is_none() {
        let error = Error::config("a search needs validation rows, and [data] holds out none")
            .hint("set validation = 0.2 in [data], or remove `search` from [method]");
        return Err(error.into());
    }
    let mut best: Option<(f64, String, Job)> = None;
    let mut tried = Map::new();
    for (words, mut candidate) in candidates {
        candidate.name = format!("{}-search-{}", job.name, words.replace([',', '='], "-"));
        let folder = beside(out, &candidate.name, &words);
        let label = format!("{}: search {words}", job.name);
        let mut ready = Ready::new(candidate.clone())?;
        let dir = RunDir::open(Some(&folder), &candidate.name, Existing::Replace)?;
        let done = ready.execute(&dir, false, to)?;
        candidate.name.clone_from(&job.name);
        let found = match done.ending {
            Ending::Interrupted => {
                to.note("interrupted during the search; the same command restarts it");
                return Ok(None);
            }
            Ending::Failed(error) => Err(error.to_string()),
            Ending::Degenerate(why) if !candidate.fit.allows_degenerate() => Err(why),
            _ => figure(&done.summary).ok_or_else(|| "no validation metric".to_owned()),
        };
        let (name, value, up) = match found {
            Ok(found) => found,
            Err(why) => {
                to.note(&format!("{label}: dropped: {why}"));
                tried.insert(words, json!({ "left_out": why }));
                continue;
            }
        };
        to.note(&format!("{label}: {name} {value:.4}"));
        tried.insert(words.clone(), json!({ name: value }));
        let merit = if up { value } else { -value };
        if best.as_ref().is_none_or(|(most, _, _)| merit > *most) {
            best = Some((merit, words, candidate));
        }
    }
    let chosen_words = best.as_ref().map(|(_, words, _)| words);
    let record = json!({ "tried": tried, "chosen": chosen_words });
    let text = serde_json::to_string_pretty(&record).unwrap_or_default();
    write_atomically(&record_of(out, &job.name), (text + "\n").as_bytes())?;
    let Some((_, words, chosen)) = best else {
        return Err(Error::config("every candidate of the search failed").into());
    };
    to.note(&format!("{}: continuing with {words}", job.name));
    Ok(Some(chosen))
}

/// The folder of a candidate.
fn beside(out: Option<&Path>, name: &str, words: &str) -> PathBuf {
    match out {
        None => Path::new("runs").join(name),
        Some(out) => searched(out).join(words),
    }
}

/// The record of candidates and choice.
fn record_of(out: Option<&Path>, name: &str) -> PathBuf {
    match out {
        None => Path::new("runs").join(format!("{name}-search.json")),
        Some(out) => searched(out).join("search.json"),
    }
}

/// The folder of the candidates of a run.
fn searched(out: &Path) -> PathBuf {
    let mut folder = out.as_os_str().to_owned();
    folder.push("-search");
    folder.into()
}

fn figure(summary: &Map<String, Value>) -> Option<(&'static str, f64, bool)> {
    let of = |(name, up): (&'static str, bool)| {
        let value = summary.get(name)?;
        // The mean over several seeds.
        let value = value.get("mean").unwrap_or(value);
        value.as_f64().filter(|x| x.is_finite()).map(|x| (name, x, up))
    };
    JUDGED_BY.into_iter().find_map(of)
}
