//! Settings that the validation rows choose: a run for each candidate, before the run itself.

use super::Listener;
use super::execute::Ready;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use whimbrel::core::Error;
use whimbrel::engine::Ending;
use whimbrel::engine::checkpoint::write_atomically;
use whimbrel::families::Job;
use whimbrel::families::failure::Result;
use whimbrel::runs::{Existing, RunDir};

/// Figures by which candidates are judged, the first that a run has, and whether more is better.
const JUDGED_BY: [(&str, bool); 2] = [("validation_accuracy", true), ("validation_loss", false)];

/// The job with the settings that do best; none when the user stopped it. Candidates run in folders
/// beside `out`, named after what they set. A run that goes on has chosen already.
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
        let text = std::fs::read_to_string(&file).map_err(|e| Error::storage(file.display(), e))?;
        let recorded = Job::parse(&text, &file.display().to_string())?;
        let chosen = candidates.into_iter().find(|(_, job)| job.method == recorded.method);
        let what = "the run that is to go on has settings that this search does not try";
        return chosen.map(|(_, job)| Some(job)).ok_or_else(|| Error::config(what).into());
    }
    if job.data.held_out.validation == 0.0 && job.data.held_out.role.is_none() {
        let error = Error::config("nothing in [data] keeps validation rows to search by")
            .hint("set validation = 0.2 in [data], or take `search` out of [method]");
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
                to.note("interrupted in a search, which starts anew with the same command");
                return Ok(None);
            }
            // Its last figures are those of a round before it failed.
            Ending::Failed(error) => Err(error.to_string()),
            Ending::Degenerate(why) if !candidate.fit.allows_degenerate() => Err(why),
            _ => figure(&done.summary).ok_or_else(|| "it has no validation figure".to_owned()),
        };
        let (name, value, up) = match found {
            Ok(found) => found,
            Err(why) => {
                to.note(&format!("{label}: left out: {why}"));
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
    to.note(&format!("{}: going on with {words}", job.name));
    Ok(Some(chosen))
}

/// The folder of a candidate.
fn beside(out: Option<&Path>, name: &str, words: &str) -> PathBuf {
    match out {
        None => Path::new("runs").join(name),
        Some(out) => searched(out).join(words),
    }
}

/// The file that says what was tried and chosen.
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
        // Of several seeds: their mean.
        let value = value.get("mean").unwrap_or(value);
        value.as_f64().filter(|x| x.is_finite()).map(|x| (name, x, up))
    };
    JUDGED_BY.into_iter().find_map(of)
}
