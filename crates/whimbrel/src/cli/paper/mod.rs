//! `whimbrel paper`: figures and tables of the papers, reproduced and compared with their claims.

pub mod args;
mod judge;
mod page;
pub mod study;

use super::execute::INTERRUPTED;
use super::listener::Terminal;
use super::messages::{data as print, note, warning};
use crate::run::compare::{Compared, Parent, run_all};
use crate::run::execute::absolute;
use args::PaperOptions;
use judge::{DIVERGED, Judged, Results, Verdict};
use serde_json::{Map, Value, json};
use std::path::{Component, Path, PathBuf};
use std::time::Instant;
use study::{PAPERS, Planned, Scale, Study};
use whimbrel_core::Error;
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_families::Job;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_report::text_table;

/// The exit code where a claim does not hold or a run failed.
const FAILED: u8 = 1;
/// The name of all studies together.
pub const ALL: &str = "all";

/// Lists the studies, and the exhibits without one.
pub fn list_command(json: bool) -> Result<u8> {
    let mut table = Vec::new();
    let (mut about, mut absent) = (Map::new(), Vec::new());
    for name in study::names() {
        let study = study::study(name)?;
        let Study { title, data, time, exhibits, claims, .. } = &study;
        let jobs: Vec<String> =
            study.jobs(Scale::Paper)?.iter().map(|job| format!("{}.toml", job.name)).collect();
        let known = claims.iter().filter(|claim| claim.known_disagreement.is_some()).count();
        let status = match known {
            0 => "runs".to_owned(),
            known => format!("runs, {known} of {} claims disagree", claims.len()),
        };
        let needs = if data.is_empty() { "generated".into() } else { data.join(", ") };
        let times = format!("{} / {}", time.quick, time.paper);
        table.push(vec![(*name).into(), exhibits.join(", "), needs, times, status]);
        about.insert(
            (*name).into(),
            json!({
                "title": title, "exhibits": exhibits, "data": data, "jobs": jobs,
                "time": { "quick": time.quick, "paper": time.paper }, "known_disagreements": known,
            }),
        );
    }
    for (paper, _) in PAPERS {
        for missing in study::missing(paper)? {
            let row = [format!("({paper})"), missing.exhibit.clone(), "-".into(), "-".into()];
            table.push([&row[..], &[format!("not run: {}", missing.why)]].concat());
            absent.push(json!({
                "paper": paper, "exhibit": missing.exhibit, "title": missing.title,
                "why": missing.why,
            }));
        }
    }
    if json {
        about.insert("not run".into(), absent.into());
        print(&format!("{}\n", Value::Object(about)))?;
    } else {
        let heads = ["name", "exhibits", "data", "quick / paper", "status"];
        print(&text_table(&heads, &table))?;
    }
    Ok(0)
}

/// The names that a user may type.
pub fn names() -> clap::builder::PossibleValuesParser {
    study::names().iter().copied().chain([ALL]).collect::<Vec<_>>().into()
}

/// Runs studies and compares the results with the claims.
pub fn run_command(names: &[String], with: &PaperOptions, usual: Scale) -> Result<u8> {
    let scale = with.scale.unwrap_or(usual);
    let every = names.iter().any(|name| name == ALL);
    let names =
        if every { study::names().to_vec() } else { names.iter().map(|name| &**name).collect() };
    let studies = names.iter().map(|name| study::study(name));
    let studies = studies.collect::<std::result::Result<Vec<_>, _>>()?;
    let (mut ready, mut absent) = (Vec::new(), Vec::new());
    let given = with.data.clone().or_else(usual_data);
    for study in &studies {
        match data_folder(study, given.as_deref()) {
            Ok(data) => ready.push((study, data)),
            Err(failure) if every => {
                warning(&format!("{} is left out: {failure}", study.name));
                absent.push(&*study.name);
            }
            Err(failure) => return Err(failure),
        }
    }
    if !every && with.data.is_some() && ready.iter().all(|(_, data)| data.is_none()) {
        let those = names.join(", ");
        return Err(Failure::config(format!("`{those}` generates its data: --data has no use")));
    }
    let called = if every { ALL } else { names[0] };
    let parent = Parent::open(with.out.as_deref(), &format!("paper-{called}"), false)?;
    let mut done = Vec::new();
    for (study, data) in ready {
        let own = match studies.len() {
            1 => None,
            _ => {
                Some(Parent::open(Some(&parent.dir.path().join(&study.name)), &study.name, false)?)
            }
        };
        let folder = own.as_ref().unwrap_or(&parent);
        let Some(one) = run_study(study, scale, data.as_deref(), folder)? else {
            return Ok(INTERRUPTED);
        };
        if !with.json {
            print(&format!("\n{}: {}\n", study.name, study.title))?;
            let rows: Vec<Vec<String>> = one.judged.iter().map(Judged::row).collect();
            print(&text_table(&Judged::COLUMNS, &rows))?;
        }
        done.push(one);
    }
    let code = finish(with, scale, &done, parent.dir.path())?;
    if !absent.is_empty() {
        let (count, names) = (absent.len(), absent.join(", "));
        note(&format!("{count} studies were left out, since their data are absent: {names}"));
    }
    Ok(code)
}

/// Writes the pages and sums up.
fn finish(with: &PaperOptions, scale: Scale, done: &[Done], folder: &Path) -> Result<u8> {
    let page = folder.join("papers.html");
    write_atomically(&page, page::html(done, scale)?.as_bytes())?;
    if let Some(to) = &with.markdown {
        std::fs::create_dir_all(to).map_err(|e| Error::storage(to.display(), e))?;
        let has_run = |paper: &str| done.iter().any(|one| one.study.paper() == paper);
        for (paper, citation) in PAPERS.into_iter().filter(|(paper, _)| has_run(paper)) {
            let text = page::markdown(paper, citation, done, scale)?;
            write_atomically(&to.join(format!("{paper}.md")), text.as_bytes())?;
        }
    }
    if with.json {
        let all: Map<String, Value> =
            done.iter().map(|one| (one.study.name.clone(), one.value())).collect();
        print(&format!("{}\n", Value::Object(all)))?;
    }
    let count = |verdict| {
        let judged = done.iter().flat_map(|one| &one.judged);
        judged.filter(|one| one.verdict == verdict).count()
    };
    let seconds: f64 = done.iter().map(|one| one.seconds).sum();
    note(&format!(
        "{} studies at {scale} scale in {seconds:.0} s: {} claims hold, {} disagree as analysed, {} miss\n\
         report: {}",
        done.len(),
        count(Verdict::Holds),
        count(Verdict::Known),
        count(Verdict::Misses),
        page.display()
    ));
    let missed = done.iter().any(|one| one.failed) || count(Verdict::Misses) > 0;
    Ok(if missed { FAILED } else { 0 })
}

/// A study that has run.
pub struct Done<'a> {
    study: &'a Study,
    judged: Vec<Judged<'a>>,
    results: Results,
    seconds: f64,
    failed: bool,
}

impl Done<'_> {
    fn value(&self) -> Value {
        let claims: Vec<Value> = self.judged.iter().map(Judged::value).collect();
        json!({ "claims": claims, "seconds": self.seconds, "runs": self.results.summaries })
    }
}

/// Runs the jobs of a study, setting by setting; `None` if interrupted.
fn run_study<'a>(
    study: &'a Study,
    scale: Scale,
    data: Option<&Path>,
    parent: &Parent,
) -> Result<Option<Done<'a>>> {
    let start = Instant::now();
    let planned = study.jobs(scale)?;
    let jobs = write_jobs(study, &planned, &parent.dir.path().join("jobs"), data)?;
    note(&format!("{}: {} jobs, about {}", study.name, jobs.len(), study.time.at(scale)));
    let (mut results, mut failed) = (Results::default(), false);
    let mut jobs = planned.iter().map(|one| one.setting.map(|s| &s.name)).zip(jobs).peekable();
    while let Some((setting, job)) = jobs.next() {
        let mut together = vec![job];
        while let Some((_, job)) = jobs.next_if(|(other, _)| *other == setting) {
            together.push(job);
        }
        let Some(compared) = run_all(together, parent, &Terminal)? else { return Ok(None) };
        let Compared { views, summaries, failed: some } = compared;
        let may = |name: &String| planned.iter().any(|job| job.name == *name && job.diverges);
        let expected = |name: &String| may(name) && summaries[name]["ending"] == DIVERGED;
        failed |= !some.iter().all(expected);
        results.views.extend(views);
        results.summaries.extend(summaries);
    }
    // A claim about a variant that runs only at paper scale is not judged at quick scale.
    let runs = |name: &str| planned.iter().any(|one| name.split('.').next() == Some(&one.name));
    let claims = study.claims.iter();
    let claims = claims.filter(|claim| {
        scale == Scale::Paper || runs(&claim.figure) && claim.less.as_deref().is_none_or(runs)
    });
    let judged = claims.map(|claim| Judged::new(claim, scale, &results));
    let judged = judged.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(Some(Done { study, judged, results, seconds: start.elapsed().as_secs_f64(), failed }))
}

/// The folder of published data that is not named: that of `WHIMBREL_DATA`, else one of a checkout.
fn usual_data() -> Option<PathBuf> {
    let named = std::env::var_os("WHIMBREL_DATA").map(PathBuf::from);
    let usual = ["jobs/data", "../shared/data"].map(PathBuf::from);
    named.or_else(|| usual.into_iter().find(|folder| folder.is_dir()))
}

/// The folder of published data; `None` for a study that generates its data.
fn data_folder(study: &Study, data: Option<&Path>) -> Result<Option<PathBuf>> {
    let name = &study.name;
    match (&study.data[..], data) {
        ([], _) => Ok(None),
        (folders, None) => {
            let folders = folders.join(", DIR/");
            let hint =
                format!("--data DIR, with files in DIR/{folders} (jobs/README.md lists them)");
            Err(Error::config(format!("`{name}` reads published data")).hint(hint).into())
        }
        (folders, Some(data)) => {
            let absent = folders.iter().find(|folder| !data.join(folder).is_dir());
            let Some(absent) = absent else { return Ok(Some(absolute(data))) };
            let what = format!("{} is not a folder", data.join(absent).display());
            Err(Error::config(what).hint(format!("the files of `{name}` belong there")).into())
        }
    }
}

/// Writes the study's jobs and files into a folder, so that its jobs can be rerun one by one, and reads
/// the jobs.
fn write_jobs(
    study: &Study,
    planned: &[Planned],
    folder: &Path,
    data: Option<&Path>,
) -> Result<Vec<Job>> {
    std::fs::create_dir_all(folder).map_err(|e| Error::storage(folder.display(), e))?;
    for file in &study.files {
        let text = study::find(&format!("{}/jobs/{file}", study.paper()))?;
        write_atomically(&folder.join(file), text.as_bytes())?;
    }
    let mut jobs = Vec::new();
    for Planned { name, text, .. } in planned {
        let file = format!("{name}.toml");
        let mut job = Job::parse(text, &format!("{}/{file}", study.name))?;
        let mut text = text.clone();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_of_every_study_is_read_and_every_claim_is_about_one_of_them() {
        for name in study::names() {
            let study = study::study(name).unwrap();
            assert!(PAPERS.iter().any(|(paper, _)| *paper == study.paper()), "{name}");
            for scale in [Scale::Quick, Scale::Paper] {
                for Planned { name: job, text, .. } in study.jobs(scale).unwrap() {
                    Job::parse(&text, &format!("{name}/{job}")).unwrap();
                }
            }
            let jobs = study.jobs(Scale::Paper).unwrap();
            let summaries = jobs.iter().map(|job| (job.name.clone(), Value::Null)).collect();
            let results = Results { summaries, views: Vec::new() };
            for claim in &study.claims {
                assert!(Judged::new(claim, Scale::Paper, &results).is_ok(), "{}", claim.says);
                let (known, range) = (&claim.known_disagreement, claim.known_range);
                assert_eq!(known.is_some(), range.is_some(), "{name}: {}", claim.says);
                // A negative loss, distance or number of bits is a fault.
                let is_signed = claim.less.is_some() || claim.log10;
                let bounds = [claim.bound, claim.paper_bound, claim.quick_bound];
                let open = bounds.iter().flatten().any(|b| matches!(b, study::Bound::AtMost(_)));
                assert!(is_signed || !open, "{name}: {} is not bounded below", claim.says);
                let checked =
                    [Scale::Quick, Scale::Paper].map(|scale| claim.bound(scale).is_some());
                assert_ne!(checked, [false, false], "{name}: {} has no bound", claim.says);
            }
            for panel in &study.figures {
                let known = |line: &String| study.variants.iter().any(|v| v.name == *line);
                assert!(panel.lines.iter().all(known), "{name}: {}", panel.title);
                let known = |wanted: &String| study.settings.iter().any(|s| s.name == *wanted);
                let mut settings = panel.setting.iter().chain(panel.over.keys());
                assert!(settings.all(known), "{name}: {}", panel.title);
            }
        }
    }

    #[test]
    fn every_paper_lists_its_missing_exhibits() {
        for (paper, _) in PAPERS {
            assert!(study::missing(paper).is_ok(), "{paper}");
        }
    }
}
