//! The studies of `whimbrel paper`: jobs of the repository and the papers' claims about their results.
//!
//! A study is a file in `jobs/papers`. It, its jobs and the files that they read are compiled in.

use serde::Deserialize;
use std::fmt;
use whimbrel_core::{Error, Result};

/// A figure or a table of a paper.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    pub title: String,
    /// The folder of published data that the jobs read; absent where they generate their data.
    pub data: Option<String>,
    /// Approximate duration on two cores.
    pub time: String,
    /// Paths below `jobs`.
    pub jobs: Vec<String>,
    /// Other files that the jobs read, as paths below `jobs`.
    #[serde(default)]
    pub files: Vec<String>,
    pub claims: Vec<Claim>,
}

/// A claim of a paper, as a bound on a figure of the jobs' summaries.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub says: String,
    /// The printed value.
    #[serde(default = "unprinted")]
    pub paper: String,
    /// `job.key`: the mean over seeds.
    pub figure: String,
    /// Whether logarithms are averaged.
    #[serde(default)]
    pub log10: bool,
    /// `job.key` whose mean is subtracted.
    pub less: Option<String>,
    pub bound: Bound,
}

fn unprinted() -> String {
    "-".into()
}

/// The claimed range of a figure.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// A value and a tolerance.
    Within(f64, f64),
}

impl Bound {
    /// Whether the bound holds; false for NaN.
    pub fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtMost(most) => figure <= most,
            Self::AtLeast(least) => figure >= least,
            Self::Within(near, by) => (figure - near).abs() <= by,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(to, "at most {most:?}"),
            Self::AtLeast(least) => write!(to, "at least {least:?}"),
            Self::Within(near, by) => write!(to, "{near:?} +- {by:?}"),
        }
    }
}

/// Paths below `jobs` and the texts of these files.
macro_rules! embedded {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!("../../../../jobs/", $file)))),*]
    };
}

const STUDIES: &[(&str, &str)] = embedded![
    "papers/fedem-figure-1.toml",
    "papers/fedem-figure-3.toml",
    "papers/mcm-figure-s2.toml",
    "papers/mcm-table-3-a9a.toml",
    "papers/fedmix-table-2-synthetic.toml",
    "papers/fedsoul-figure-s6.toml",
];

const FILES: &[(&str, &str)] = embedded![
    "bayes/soul.toml",
    "gradient/steps/compat-diana.toml",
    "gradient/steps/compat-dore.toml",
    "gradient/steps/compat-mcm.toml",
    "gradient/toy/artemis.toml",
    "gradient/toy/diana.toml",
    "gradient/toy/dore.toml",
    "gradient/toy/mcm.toml",
    "gradient/toy/rand-mcm.toml",
    "gradient/toy/sgd.toml",
    "mnist/fedem.toml",
    "mnist/vr-fedem.toml",
    "personal/table-2/clustered.toml",
    "personal/table-2/fedavg-plus.toml",
    "personal/table-2/fedavg.toml",
    "personal/table-2/fedmix.toml",
    "personal/table-2/fedprox.toml",
    "personal/table-2/local.toml",
    "personal/table-2/pfedme.toml",
    "variance/fedem-sampled.toml",
    "variance/init.json",
    "variance/vr-fedem-sampled.toml",
];

/// The names of all studies: those of their files.
pub fn all() -> impl Iterator<Item = &'static str> {
    STUDIES.iter().map(|(file, _)| base(file).trim_end_matches(".toml"))
}

/// The names that a user may type.
pub fn names() -> clap::builder::PossibleValuesParser {
    all().collect::<Vec<_>>().into()
}

/// The study of that name.
pub fn study(name: &str) -> Result<Study> {
    let (file, text) = find(STUDIES, &format!("papers/{name}.toml"))?;
    toml::from_str(text).map_err(|e| Error::internal(format!("{file}: {e}")))
}

/// The name and the text of a file of a study.
pub fn file(path: &str) -> Result<(&'static str, &'static str)> {
    find(FILES, path)
}

fn find(
    files: &[(&'static str, &'static str)],
    path: &str,
) -> Result<(&'static str, &'static str)> {
    let found = files.iter().find(|(file, _)| *file == path);
    let absent = || Error::internal(format!("{path} is not compiled in"));
    found.map(|(file, text)| (base(file), *text)).ok_or_else(absent)
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
