//! `whimbrel` alone: the built-in demonstration.

use super::execute::INTERRUPTED;
use super::listener::Terminal;
use super::messages::note;
use super::report;
use crate::run::compare::{Compared, Parent, run_all};
use crate::run::page;
use std::path::Path;
use whimbrel_families::Job;
use whimbrel_families::failure::Result;

const JOBS: [(&str, &str); 3] = [
    ("em.toml", include_str!("../../../../jobs/demo/em.toml")),
    ("dem.toml", include_str!("../../../../jobs/demo/dem.toml")),
    ("fedem.toml", include_str!("../../../../jobs/demo/fedem.toml")),
];

const TITLE: &str = "Demonstration: pooled EM, naive distributed EM and FedEM";

/// Runs the three jobs and compares them.
pub fn demo(out: Option<&Path>) -> Result<u8> {
    let parent = Parent::open(out, "demo", false)?;
    note(
        "100 clients hold 100 points each of two Gaussian components, in shares that differ from \
         client to client.\nem sees all points; dem and fedem see messages of one-level dithering \
         from three in four clients a round.",
    );
    let jobs = JOBS.iter().map(|(name, text)| Job::parse(text, name));
    let jobs = jobs.collect::<std::result::Result<Vec<_>, _>>()?;
    let Some(Compared { views, .. }) = run_all(jobs, &parent, &Terminal)? else {
        return Ok(INTERRUPTED);
    };
    let page = page::write(TITLE, &views, &parent.dir.path().join("report.html"))?;
    report::tables(&views, false)?;
    note(&format!("report: {}", page.display()));
    Ok(0)
}
