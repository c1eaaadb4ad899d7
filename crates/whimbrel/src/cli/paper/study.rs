//! The studies of `whimbrel paper`: variants of a job, and the papers' claims about their results.
//!
//! A study is a file `jobs/papers/PAPER/NAME.toml`; the jobs it varies are in `jobs/papers/PAPER/jobs`.
//! `jobs/papers/PAPER/missing.toml` lists the exhibits without a study, with the reason. The build script
//! compiles the whole folder in.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use toml::{Table, Value};
use whimbrel_core::{Error, Result};

include!(concat!(env!("OUT_DIR"), "/papers.rs"));

/// The papers: folder, and citation.
pub const PAPERS: [(&str, &str); 4] = [
    ("fedem", "Dieuleveut, Fort, Moulines, Robin (2021): FedEM and VR-FedEM"),
    ("fedmix", "Marfoq, Neglia, Bellet, Kameni, Vidal (2021): mixtures of learners, here `fedmix`"),
    ("fedsoul", "Kotelevskii, Vono, Durmus, Moulines (2022), supplement: FedSOUL"),
    ("mcm", "Philippenko, Dieuleveut (2021): MCM"),
];

/// The extent of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scale {
    /// Fewer rounds, seeds or clients; checks orders and signs
    Quick,
    /// The paper's settings; checks values
    Paper,
}

impl fmt::Display for Scale {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Quick => "quick",
            Self::Paper => "paper",
        })
    }
}

/// Exhibits of a paper that share their runs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// `PAPER-FILE`.
    #[serde(skip)]
    pub name: String,
    pub title: String,
    /// The figures and tables covered.
    pub exhibits: Vec<String>,
    /// The places of settings and published values in the paper.
    pub place: String,
    /// Departures from the paper's settings, with their reasons.
    pub note: Option<String>,
    /// Folders of published data that the jobs read; empty if they generate their data.
    #[serde(default)]
    pub data: Vec<String>,
    pub time: Times,
    /// The varied job: a file in the paper's folder `jobs`, without `.toml`.
    pub base: String,
    pub variants: Vec<Variant>,
    /// Conditions under which every variant runs.
    #[serde(default)]
    pub settings: Vec<Variant>,
    /// Other files that the jobs read, in the paper's folder `jobs`.
    #[serde(default)]
    pub files: Vec<String>,
    #[serde(default)]
    pub quick: Quick,
    #[serde(default)]
    pub figures: Vec<Panel>,
    #[serde(default)]
    pub claims: Vec<Claim>,
}

/// Approximate durations on two cores.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    pub quick: String,
    pub paper: String,
}

impl Times {
    pub fn at(&self, scale: Scale) -> &str {
        match scale {
            Scale::Quick => &self.quick,
            Scale::Paper => &self.paper,
        }
    }
}

/// A line of a figure, a row or a column of a table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    pub name: String,
    /// The paper's name for it.
    pub label: Option<String>,
    /// A job other than the study's.
    pub base: Option<String>,
    /// Keys that replace those of the job, as dotted paths.
    #[serde(default)]
    pub set: Table,
    /// Tables and keys that are taken out, as dotted paths.
    #[serde(default)]
    pub unset: Vec<String>,
    /// Further replacements at quick scale.
    #[serde(default)]
    pub quick: Table,
    /// The horizontal coordinate in a figure of final values.
    pub at: Option<f64>,
    /// Whether the study expects a divergence: the paper reports it, or the analysis of a claim.
    #[serde(default)]
    pub diverges: bool,
}

impl Variant {
    pub fn label(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.name)
    }
}

/// Replacements at quick scale.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    #[serde(default)]
    pub set: Table,
    #[serde(default)]
    pub unset: Vec<String>,
    /// Variants and settings that only run at paper scale.
    #[serde(default)]
    pub skip: Vec<String>,
}

/// A plot in the paper's layout.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Panel {
    pub title: String,
    /// Horizontal axis.
    pub x: Against,
    /// Name of the horizontal axis of a figure of final values.
    #[serde(default)]
    pub x_label: String,
    /// The metric.
    pub y: String,
    pub y_label: String,
    /// A logarithmic vertical axis.
    #[serde(default)]
    pub log: bool,
    /// The setting whose runs are drawn; without settings, all.
    pub setting: Option<String>,
    /// The horizontal coordinate of each setting in a figure of final values with a line per variant;
    /// without, one line through the variants at their `at`.
    #[serde(default)]
    pub over: BTreeMap<String, f64>,
    /// The lines, in the order of the paper's legend; without, all variants.
    #[serde(default)]
    pub lines: Vec<String>,
}

/// The horizontal axis of a plot.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    Rounds,
    Epochs,
    Bits,
    /// Final values against `at` of the variants.
    Final,
}

/// A claim of a paper, as a bound on a figure of the runs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub says: String,
    /// The printed value.
    #[serde(default = "unprinted")]
    pub paper: String,
    /// `job.key`: the mean over seeds of the final value; `job.key@F`: at the fraction F of the rounds.
    pub figure: String,
    /// Whether logarithms are averaged.
    #[serde(default)]
    pub log10: bool,
    /// `job.key` that is subtracted.
    pub less: Option<String>,
    /// A text that one of the list `job.key` contains: the figure is 1 if so, else 0.
    pub text: Option<String>,
    /// The bound at both scales.
    pub bound: Option<Bound>,
    /// The bound at paper scale alone.
    pub paper_bound: Option<Bound>,
    /// The bound at quick scale alone.
    pub quick_bound: Option<Bound>,
    /// Analysis of a claim that does not hold.
    pub known_disagreement: Option<String>,
    /// The range that the analysis explains; beyond it the claim misses.
    pub known_range: Option<Bound>,
}

fn unprinted() -> String {
    "-".into()
}

impl Claim {
    /// The bound at a scale; `None` if the claim is not checked there.
    pub fn bound(&self, scale: Scale) -> Option<Bound> {
        let own = match scale {
            Scale::Quick => self.quick_bound,
            Scale::Paper => self.paper_bound,
        };
        own.or(self.bound)
    }
}

/// The claimed range of a figure.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// A value and a tolerance.
    Within(f64, f64),
    /// The smallest and the largest value.
    Between(f64, f64),
}

impl Bound {
    /// Whether the bound holds; false for NaN.
    pub fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtMost(most) => figure <= most,
            Self::AtLeast(least) => figure >= least,
            Self::Within(near, by) => (figure - near).abs() <= by,
            Self::Between(least, most) => (least..=most).contains(&figure),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(to, "at most {most:?}"),
            Self::AtLeast(least) => write!(to, "at least {least:?}"),
            Self::Within(near, by) => write!(to, "{near:?} ± {by:?}"),
            Self::Between(least, most) => write!(to, "{least:?} to {most:?}"),
        }
    }
}

/// A job of a study: the text of its file.
pub struct Planned<'a> {
    /// `VARIANT` or `VARIANT-SETTING`.
    pub name: String,
    pub setting: Option<&'a Variant>,
    /// Whether the run may diverge.
    pub diverges: bool,
    pub text: String,
}

impl Study {
    /// The folder of the paper.
    pub fn paper(&self) -> &str {
        self.name.split_once('-').map_or("", |(paper, _)| paper)
    }

    /// The jobs at a scale, setting by setting.
    pub fn jobs(&self, scale: Scale) -> Result<Vec<Planned<'_>>> {
        let runs = |one: &&Variant| scale == Scale::Paper || !self.quick.skip.contains(&one.name);
        let variants = || self.variants.iter().filter(runs);
        if self.settings.is_empty() {
            return variants().map(|variant| self.job(variant, None, scale)).collect();
        }
        let each = |setting| variants().map(move |variant| self.job(variant, Some(setting), scale));
        self.settings.iter().filter(runs).flat_map(each).collect()
    }

    fn job<'a>(
        &self,
        variant: &Variant,
        setting: Option<&'a Variant>,
        scale: Scale,
    ) -> Result<Planned<'a>> {
        let parts: Vec<&Variant> = setting.into_iter().chain([variant]).collect();
        let base = parts.iter().rev().find_map(|part| part.base.as_ref()).unwrap_or(&self.base);
        let path = format!("{}/jobs/{base}.toml", self.paper());
        let mut job: Table = parse(&path, find(&path)?)?;
        for part in &parts {
            part.unset.iter().for_each(|path| remove(&mut job, path));
            merge(&mut job, &part.set);
        }
        if scale == Scale::Quick {
            self.quick.unset.iter().for_each(|path| remove(&mut job, path));
            merge(&mut job, &self.quick.set);
            parts.iter().for_each(|part| merge(&mut job, &part.quick));
        }
        let name = match setting {
            Some(setting) => format!("{}-{}", variant.name, setting.name),
            None => variant.name.clone(),
        };
        job.insert("name".into(), Value::String(name.clone()));
        let text = toml::to_string(&job).map_err(|e| Error::internal(format!("{path}: {e}")))?;
        Ok(Planned { name, setting, diverges: variant.diverges, text })
    }
}

/// Replaces keys; those of a table one by one, those inside a nested table as a whole.
fn merge(job: &mut Table, with: &Table) {
    for (key, value) in with {
        match (job.get_mut(key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => old.extend(new.clone()),
            _ => {
                job.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Takes out a table, or a key of one.
fn remove(job: &mut Table, path: &str) {
    match path.split_once('.') {
        None => job.remove(path),
        Some((table, key)) => {
            job.get_mut(table).and_then(Value::as_table_mut).and_then(|table| table.remove(key))
        }
    };
}

/// An exhibit without a study.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Missing {
    pub exhibit: String,
    pub title: String,
    /// The reason.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllMissing {
    exhibits: Vec<Missing>,
}

/// The exhibits of a paper without a study.
pub fn missing(paper: &str) -> Result<Vec<Missing>> {
    let path = format!("{paper}/missing.toml");
    Ok(parse::<AllMissing>(&path, find(&path)?)?.exhibits)
}

/// The names of all studies, paper by paper, in the order of their files.
pub fn names() -> &'static [&'static str] {
    STUDIES
}

/// The study of that name.
pub fn study(name: &str) -> Result<Study> {
    let path = format!("{}.toml", name.replacen('-', "/", 1));
    let study: Study = parse(&path, find(&path)?)?;
    Ok(Study { name: name.into(), ..study })
}

/// The text of a file below `jobs/papers`.
pub fn find(path: &str) -> Result<&'static str> {
    let found = FILES.iter().find(|(file, _)| *file == path);
    found.map(|(_, text)| *text).ok_or_else(|| Error::internal(format!("no file {path}")))
}

fn parse<T: serde::de::DeserializeOwned>(path: &str, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|e| Error::internal(format!("jobs/papers/{path}: {e}")))
}
