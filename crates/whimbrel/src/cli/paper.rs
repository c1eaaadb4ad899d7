//! `whimbrel paper`: figures and tables of the papers, what they say beside what is obtained.

use super::execute::INTERRUPTED;
use super::listener::Terminal;
use super::messages::{data as print, note};
use super::studies::{Claim, Figure, STUDIES, Study};
use crate::run::compare::{Compared, Parent, run_all};
use crate::run::execute::absolute;
use crate::run::page;
use serde_json::{Map, Value, json};
use std::path::{Component, Path, PathBuf};
use whimbrel_core::Error;
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_families::Job;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_report::text_table;

/// The exit code where a claim does not hold or a run failed.
const FAILED: u8 = 1;

/// Shows what can be reproduced.
pub fn list_command(json: bool) -> Result<u8> {
    if json {
        let studies = STUDIES.iter().map(|study| {
            let jobs: Vec<&str> = study.jobs.iter().map(|(file, _)| *file).collect();
            let about = json!({ "title": study.title, "data": study.data, "jobs": jobs });
            (study.name.to_owned(), about)
        });
        print(&format!("{}\n", Value::Object(studies.collect())))?;
        return Ok(0);
    }
    let rows: Vec<Vec<String>> = STUDIES
        .iter()
        .map(|study| {
            let data = study.data.map_or("generated".into(), |folder| format!("DIR/{folder}"));
            vec![study.name.into(), study.title.into(), data, study.time.into()]
        })
        .collect();
    print(&text_table(&["name", "what it reproduces", "data", "about"], &rows))?;
    Ok(0)
}

/// Runs the jobs of a study and holds its claims against the results.
pub fn run_command(name: &str, data: Option<&Path>, out: Option<&Path>, json: bool) -> Result<u8> {
    let study = STUDIES.iter().find(|study| study.name == name);
    let study = study.ok_or_else(|| Error::internal(format!("there is no study `{name}`")))?;
    let data = data_folder(study, data)?;
    let parent = Parent::open(out, &format!("paper-{name}"), false)?;
    let folder = parent.dir.path().join("jobs");
    let jobs = write_jobs(study, &folder, data.as_deref())?;
    note(&format!("{}\njobs: {}", study.title, folder.display()));
    let Some(Compared { views, summaries, failed }) = run_all(jobs, &parent, &Terminal)? else {
        return Ok(INTERRUPTED);
    };
    let page = parent.dir.path().join("report.html");
    page::write_or_warn(study.title, &views, &page, &Terminal);
    let judged = study.claims.iter().map(|claim| judge(claim, &summaries));
    let judged = judged.collect::<Result<Vec<Judged>>>()?;
    if json {
        let claims: Vec<Value> = judged.iter().map(Judged::value).collect();
        print(&format!("{}\n", json!({ "study": name, "claims": claims, "runs": summaries })))?;
    } else {
        let rows: Vec<Vec<String>> = judged.iter().map(Judged::row).collect();
        print(&text_table(&["claim", "paper", "asked for", "obtained", "holds"], &rows))?;
    }
    note(&format!("report: {}", page.display()));
    Ok(if failed || judged.iter().any(|one| !one.holds) { FAILED } else { 0 })
}

/// Where a study's published data are; none where it generates them.
fn data_folder(study: &Study, data: Option<&Path>) -> Result<Option<PathBuf>> {
    match (study.data, data) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            Err(Failure::config(format!("`{}` generates its data: --data has no use", study.name)))
        }
        (Some(folder), None) => {
            let error = Error::config(format!("`{}` reads published data", study.name));
            let hint =
                format!("--data DIR, with its files in DIR/{folder} (jobs/README.md lists them)");
            Err(error.hint(hint).into())
        }
        (Some(folder), Some(data)) if data.join(folder).is_dir() => Ok(Some(absolute(data))),
        (Some(folder), Some(data)) => {
            let what = format!("{} is not a folder", data.join(folder).display());
            Err(Error::config(what)
                .hint(format!("the files of `{}` belong there", study.name))
                .into())
        }
    }
}

/// Writes the study's files into a folder, so that its jobs can be run again one by one, and reads
/// the jobs among them.
fn write_jobs(study: &Study, folder: &Path, data: Option<&Path>) -> Result<Vec<Job>> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Error::storage(folder.display().to_string(), e.to_string()))?;
    let mut jobs = Vec::new();
    for (file, text) in study.files {
        write_atomically(&folder.join(file), text.as_bytes())?;
    }
    for (file, text) in study.jobs {
        let mut job = Job::parse(text, file)?;
        let mut text = (*text).to_owned();
        for named in job.paths_mut() {
            let place = locate(named, folder, data);
            text = text.replace(&*named.to_string_lossy(), &place.to_string_lossy());
            *named = place;
        }
        write_atomically(&folder.join(file), text.as_bytes())?;
        jobs.push(job);
    }
    Ok(jobs)
}

/// In the repository, jobs name published data below a folder `data`, and their own files beside
/// themselves.
fn locate(named: &Path, folder: &Path, data: Option<&Path>) -> PathBuf {
    let mut parts = named.components();
    let published = parts.by_ref().any(|part| part == Component::Normal("data".as_ref()));
    match (published, data) {
        (true, Some(data)) => data.join(parts.as_path()),
        _ => absolute(&folder.join(named)),
    }
}

/// A claim and what came out.
struct Judged {
    claim: &'static Claim,
    obtained: f64,
    holds: bool,
}

fn judge(claim: &'static Claim, summaries: &Map<String, Value>) -> Result<Judged> {
    let obtained = figure(&claim.figure, summaries)?;
    Ok(Judged { claim, obtained, holds: claim.bound.holds(obtained) })
}

/// A figure of the runs' summaries; NaN, which no claim holds for, where a run has none.
fn figure(figure: &Figure, summaries: &Map<String, Value>) -> Result<f64> {
    let values = |job: &str, key: &str| -> Result<Vec<f64>> {
        let summary = summaries.get(job).ok_or_else(|| {
            Error::internal(format!("a claim is about `{job}`, which its study does not run"))
        })?;
        let value = &summary[key];
        Ok(match value["values"].as_array() {
            Some(seeds) => seeds.iter().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect(),
            None => vec![value.as_f64().unwrap_or(f64::NAN)],
        })
    };
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    Ok(match *figure {
        Figure::Of(job, key) => mean(values(job, key)?),
        Figure::Log10(job, key) => mean(values(job, key)?.into_iter().map(f64::log10).collect()),
        Figure::Difference(key, job, other) => mean(values(job, key)?) - mean(values(other, key)?),
        Figure::Below(job, key, other) => mean(values(job, other)?) - mean(values(job, key)?),
    })
}

impl Judged {
    fn row(&self) -> Vec<String> {
        let Claim { says, paper, bound, .. } = self.claim;
        let holds = if self.holds { "yes" } else { "NO" };
        let obtained = Short(self.obtained).to_string();
        vec![(*says).into(), (*paper).into(), bound.to_string(), obtained, holds.into()]
    }

    fn value(&self) -> Value {
        json!({
            "claim": self.claim.says,
            "paper": self.claim.paper,
            "asked": self.claim.bound.to_string(),
            "obtained": self.obtained,
            "holds": self.holds,
        })
    }
}

/// A number as tables show it: small ones by their exponent.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.abs() {
            small if small > 0.0 && small < 1e-3 => write!(to, "{:.1e}", self.0),
            _ => write!(to, "{:.4}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::studies::Bound;

    #[test]
    fn every_job_of_every_study_is_read_and_every_claim_is_about_one_of_them() {
        for study in STUDIES {
            let jobs = study.jobs.iter().map(|(file, text)| Job::parse(text, file).unwrap());
            let names: Vec<String> = jobs.map(|job| job.name).collect();
            for claim in study.claims {
                let about = match claim.figure {
                    Figure::Of(job, _) | Figure::Log10(job, _) | Figure::Below(job, ..) => {
                        vec![job]
                    }
                    Figure::Difference(_, job, other) => vec![job, other],
                };
                for job in about {
                    assert!(names.iter().any(|name| name == job), "{}: {job}", study.name);
                }
            }
        }
    }

    #[test]
    fn figures_are_means_over_seeds_and_what_is_absent_holds_nothing() {
        let summaries = json!({
            "one": { "loss": { "mean": 0.5, "sd": 0.5, "values": [0.01, 1.0] }, "best": 0.7 },
            "two": { "loss": 0.25 },
        });
        let summaries = summaries.as_object().unwrap();
        let value = |which| figure(&which, summaries).unwrap();
        assert_eq!(value(Figure::Of("one", "loss")), 0.505);
        assert_eq!(value(Figure::Log10("one", "loss")), -1.0);
        assert_eq!(value(Figure::Difference("loss", "one", "two")), 0.255);
        assert_eq!(value(Figure::Below("two", "loss", "loss")), 0.0);
        assert!(figure(&Figure::Of("three", "loss"), summaries).is_err());
        for bound in [Bound::AtMost(1e300), Bound::AtLeast(-1e300)] {
            assert!(bound.holds(0.0) && !bound.holds(value(Figure::Of("two", "absent"))));
        }
        assert!(!Bound::AtMost(0.1).holds(0.2) && !Bound::Within(1.0, 0.1).holds(1.2));
    }
}
