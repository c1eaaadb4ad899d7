//! `whimbrel paper`: figures and tables of the papers, reproduced and compared with their claims.

use super::execute::INTERRUPTED;
use super::listener::Terminal;
use super::messages::{data as print, note};
use super::studies::{self, Claim, Study};
use crate::run::compare::{Compared, Parent, run_all};
use crate::run::execute::absolute;
use crate::run::page;
use serde_json::{Map, Value, json};
use std::path::{Component, Path, PathBuf};
use whimbrel_core::Error;
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_families::Job;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_report::format::number;
use whimbrel_report::text_table;

/// The exit code where a claim does not hold or a run failed.
const FAILED: u8 = 1;

/// Lists the studies.
pub fn list_command(json: bool) -> Result<u8> {
    let mut table = Vec::new();
    let mut about = Map::new();
    for name in studies::all() {
        let Study { title, data, time, jobs, .. } = studies::study(name)?;
        let files = jobs.iter().map(|job| Ok(studies::file(job)?.0)).collect::<Result<Vec<_>>>()?;
        about.insert(name.into(), json!({ "title": title, "data": data, "jobs": files }));
        let data = data.map_or("generated".into(), |folder| format!("DIR/{folder}"));
        table.push(vec![name.into(), title, data, time]);
    }
    if json {
        print(&format!("{}\n", Value::Object(about)))?;
    } else {
        print(&text_table(&["name", "what it reproduces", "data", "about"], &table))?;
    }
    Ok(0)
}

/// Runs the jobs of a study and compares the results with its claims.
pub fn run_command(name: &str, data: Option<&Path>, out: Option<&Path>, json: bool) -> Result<u8> {
    let study = studies::study(name)?;
    let data = data_folder(name, study.data.as_deref(), data)?;
    let parent = Parent::open(out, &format!("paper-{name}"), false)?;
    let folder = parent.dir.path().join("jobs");
    let jobs = write_jobs(&study, &folder, data.as_deref())?;
    note(&format!("{}\njobs: {}", study.title, folder.display()));
    let Some(Compared { views, summaries, failed }) = run_all(jobs, &parent, &Terminal)? else {
        return Ok(INTERRUPTED);
    };
    let page = parent.dir.path().join("report.html");
    page::write_or_warn(&study.title, &views, &page, &Terminal);
    let judged = study.claims.iter().map(|claim| Judged::new(claim, &summaries));
    let judged = judged.collect::<Result<Vec<_>>>()?;
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

/// The folder of published data; `None` for a study that generates its data.
fn data_folder(study: &str, folder: Option<&str>, data: Option<&Path>) -> Result<Option<PathBuf>> {
    match (folder, data) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            Err(Failure::config(format!("`{study}` generates its data: --data has no use")))
        }
        (Some(folder), None) => {
            let hint =
                format!("--data DIR, with its files in DIR/{folder} (jobs/README.md lists them)");
            Err(Error::config(format!("`{study}` reads published data")).hint(hint).into())
        }
        (Some(folder), Some(data)) if data.join(folder).is_dir() => Ok(Some(absolute(data))),
        (Some(folder), Some(data)) => {
            let what = format!("{} is not a folder", data.join(folder).display());
            Err(Error::config(what).hint(format!("the files of `{study}` belong there")).into())
        }
    }
}

/// Writes the study's files into a folder, so that its jobs can be rerun one by one, and reads the
/// jobs among them.
fn write_jobs(study: &Study, folder: &Path, data: Option<&Path>) -> Result<Vec<Job>> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Error::storage(folder.display().to_string(), e.to_string()))?;
    for path in &study.files {
        let (file, text) = studies::file(path)?;
        write_atomically(&folder.join(file), text.as_bytes())?;
    }
    let mut jobs = Vec::new();
    for path in &study.jobs {
        let (file, text) = studies::file(path)?;
        let mut job = Job::parse(text, file)?;
        let mut text = text.to_owned();
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

/// The place of a file that a job names: published data are below a folder `data` in the repository,
/// a job's own files beside it.
fn locate(named: &Path, folder: &Path, data: Option<&Path>) -> PathBuf {
    let mut parts = named.components();
    let published = parts.by_ref().any(|part| part == Component::Normal("data".as_ref()));
    match (published, data) {
        (true, Some(data)) => data.join(parts.as_path()),
        _ => absolute(&folder.join(named)),
    }
}

/// A claim and the value obtained.
struct Judged<'a> {
    claim: &'a Claim,
    obtained: f64,
    holds: bool,
}

impl<'a> Judged<'a> {
    fn new(claim: &'a Claim, summaries: &Map<String, Value>) -> Result<Self> {
        let obtained = figure(claim, summaries)?;
        Ok(Self { claim, obtained, holds: claim.bound.holds(obtained) })
    }

    fn row(&self) -> Vec<String> {
        let Claim { says, paper, bound, .. } = self.claim;
        let holds = if self.holds { "yes" } else { "NO" };
        let obtained = number(self.obtained, 4);
        vec![says.clone(), paper.clone(), bound.to_string(), obtained, holds.into()]
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

/// The figure of a claim; NaN, for which no claim holds, where a run lacks it.
fn figure(claim: &Claim, summaries: &Map<String, Value>) -> Result<f64> {
    let mean = |name: &str, log10: bool| -> Result<f64> {
        let (job, key) = name.split_once('.').unwrap_or((name, ""));
        let summary = summaries.get(job).ok_or_else(|| {
            Error::internal(format!("a claim is about `{job}`, which its study does not run"))
        })?;
        let seeds = summary[key]["values"].as_array();
        let seeds = seeds.map_or(std::slice::from_ref(&summary[key]), Vec::as_slice);
        let value = |seed: &Value| {
            let value = seed.as_f64().unwrap_or(f64::NAN);
            if log10 { value.log10() } else { value }
        };
        Ok(seeds.iter().map(value).sum::<f64>() / seeds.len() as f64)
    };
    let found = mean(&claim.figure, claim.log10)?;
    let less = claim.less.as_deref().map(|less| mean(less, false)).transpose()?;
    Ok(less.map_or(found, |less| found - less))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::studies::Bound;

    #[test]
    fn every_file_of_every_study_is_read_and_every_claim_is_about_one_of_its_jobs() {
        for name in studies::all() {
            let study = studies::study(name).unwrap();
            study.files.iter().for_each(|path| assert!(studies::file(path).is_ok(), "{path}"));
            let jobs = study.jobs.iter().map(|path| {
                let (file, text) = studies::file(path).unwrap();
                (Job::parse(text, file).unwrap().name, Value::Null)
            });
            let jobs: Map<String, Value> = jobs.collect();
            for claim in &study.claims {
                assert!(figure(claim, &jobs).unwrap().is_nan(), "{name}: {}", claim.says);
            }
        }
    }

    #[test]
    fn figures_are_means_over_seeds_and_no_claim_holds_for_an_absent_one() {
        let summaries = json!({
            "one": { "loss": { "mean": 0.5, "sd": 0.5, "values": [0.01, 1.0] }, "best": 0.7 },
            "two": { "loss": 0.25 },
        });
        let value = |name: &str, log10, less: Option<&str>| {
            let (says, paper, bound) = (String::new(), String::new(), Bound::AtMost(0.0));
            let (figure, less) = (name.into(), less.map(String::from));
            let claim = Claim { says, paper, figure, log10, less, bound };
            super::figure(&claim, summaries.as_object().unwrap())
        };
        assert_eq!(value("one.loss", false, None).unwrap(), 0.505);
        assert_eq!(value("one.loss", true, None).unwrap(), -1.0);
        assert_eq!(value("one.loss", false, Some("two.loss")).unwrap(), 0.255);
        assert!(value("three.loss", false, None).is_err());
        let absent = value("two.absent", false, None).unwrap();
        for bound in [Bound::AtMost(1e300), Bound::AtLeast(-1e300)] {
            assert!(bound.holds(0.0) && !bound.holds(absent));
        }
        assert!(!Bound::AtMost(0.1).holds(0.2) && !Bound::Within(1.0, 0.1).holds(1.2));
    }
}
