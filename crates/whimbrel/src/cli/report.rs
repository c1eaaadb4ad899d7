//! `whimbrel report`: a run's page, from its folder.

use super::args::Report;
use super::listener::Terminal;
use super::messages::{data, note};
use super::output::Output;
use crate::run::page::{names, side_by_side, write};
use crate::run::view;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use whimbrel_families::failure::Result;
use whimbrel_report::{
    Detail, LEVELS, RunView, answer, bits_to_reach, closing_table, html, section_tables,
};
use whimbrel_runs::RunDir;

/// The page of a run, in its folder.
const PAGE: &str = "report.html";

/// Makes the report of one run or several.
pub fn report_command(args: &Report) -> Result<u8> {
    let dirs = args.runs.iter().map(|run| RunDir::existing(run)).collect::<Result<Vec<_>>>()?;
    let target = Target::of(args, &dirs)?;
    let views = side_by_side(&dirs, &Terminal)?;
    let title = args.title.clone().unwrap_or_else(|| names(&views));
    let shown = match &target {
        Target::Own(path) => write(&title, &views, path)?.display().to_string(),
        Target::Asked(output) => {
            output.write(&html(&title, &views))?;
            output.shown().into()
        }
    };
    if args.json {
        data(&format!("{}\n", Value::Object(summaries(&dirs)?)))?;
    }
    note(&format!("report: {shown}"));
    Ok(0)
}

/// The destination of the page.
enum Target {
    /// The page that the run wrote.
    Own(PathBuf),
    /// Another file.
    Asked(Output),
}

impl Target {
    fn of(args: &Report, dirs: &[RunDir]) -> Result<Self> {
        let asked = match (&args.out, dirs) {
            (None, [one]) => return Ok(Self::Own(one.path().join(PAGE))),
            (Some(out), [one]) if is_page_of(out, one.path()) => {
                return Ok(Self::Own(one.path().join(PAGE)));
            }
            (Some(out), _) => out.as_path(),
            (None, _) => Path::new(PAGE),
        };
        Ok(Self::Asked(Output::check_beside_json(asked, args.force, args.json, [])?))
    }
}

fn is_page_of(out: &Path, run: &Path) -> bool {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize();
    out.file_name() == Some(PAGE.as_ref()) && folder.ok() == run.canonicalize().ok()
}

/// The runs' summaries by name, or by folder for runs of equal name.
fn summaries(dirs: &[RunDir]) -> Result<Map<String, Value>> {
    let mut found = Vec::new();
    for dir in dirs {
        let mut summary = view::summary(dir)?;
        let name = match summary.get("name").and_then(Value::as_str) {
            Some(name) => name.to_string(),
            // An unfinished run has no summary.
            None => view::load(dir, &Terminal)?.name,
        };
        let folder = dir.path().display().to_string();
        summary.insert("run".into(), folder.clone().into());
        found.push((name, folder, summary));
    }
    let shared = |name: &str| found.iter().filter(|(other, ..)| other == name).count() > 1;
    let keys: Vec<bool> = found.iter().map(|(name, ..)| shared(name)).collect();
    let named = found.into_iter().zip(keys).map(|((name, folder, summary), shared)| {
        (if shared { folder } else { name }, Value::Object(summary))
    });
    Ok(named.collect())
}

/// The answer and the closing tables, on standard output.
pub fn tables(views: &[RunView], diagnostics: bool) -> Result<()> {
    let answer = answer(views);
    if !answer.is_empty() {
        data(&format!("{answer}\n\n"))?;
    }
    for view in views.iter().filter(|view| view.measures.is_empty()) {
        data(&section_tables(view))?;
    }
    let detail = if diagnostics { Detail::Diagnostics } else { Detail::Results };
    for view in views.iter().filter(|_| diagnostics) {
        view.settings.iter().for_each(|line| note(&format!("{}: {line}", view.name)));
    }
    data(&closing_table(views, detail))?;
    if let Some(reached) = bits_to_reach(views, &LEVELS) {
        data(&format!("\n{}", reached.text()))?;
    }
    Ok(())
}
