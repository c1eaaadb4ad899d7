//! Reports of one run or several.

use super::{Listener, view};
use std::path::{Path, PathBuf};
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_families::failure::Result;
use whimbrel_report::{RunView, html};
use whimbrel_runs::RunDir;

/// The views of several runs, each compared with a pooled run among them.
pub fn side_by_side(dirs: &[RunDir], to: &dyn Listener) -> Result<Vec<RunView>> {
    let mut views = Vec::new();
    for dir in dirs {
        match &dir.seeds()[..] {
            [] => views.push(view::load(dir, to)?),
            seeds => {
                let own = seeds.iter().map(|seed| view::load(seed, to));
                let mut own = own.collect::<Result<Vec<_>>>()?;
                view::mark_delivered(&mut own, &view::summary(dir)?);
                views.extend(own);
            }
        }
    }
    // An unfinished run has no hash.
    let hashes = views.iter().map(|v| (v.name.as_str(), v.data_hash.as_str()));
    warn_of_other_data(hashes.filter(|(_, hash)| !hash.is_empty()), to);
    view::refer_to_pooled(&mut views);
    Ok(views)
}

/// The runs' names, for a title.
pub fn names(views: &[RunView]) -> String {
    let mut names: Vec<&str> = views.iter().map(|v| v.name.as_str()).collect();
    names.dedup();
    names.join(", ")
}

/// Writes a report; a failure is a warning, since model and summary are already on disk.
pub fn write_or_warn(
    title: &str,
    views: &[RunView],
    path: &Path,
    to: &dyn Listener,
) -> Option<PathBuf> {
    let written = write(title, views, path);
    written.map_err(|failure| to.warning(&format!("no report: {failure}"))).ok()
}

/// Writes a report.
pub fn write(title: &str, views: &[RunView], path: &Path) -> Result<PathBuf> {
    write_atomically(path, html(title, views).as_bytes())?;
    Ok(path.to_path_buf())
}

/// Warns if compared runs have different data: their objectives, means over rows, are then not
/// comparable.
pub fn warn_of_other_data<'a>(
    mut runs: impl Iterator<Item = (&'a str, &'a str)>,
    to: &dyn Listener,
) {
    let Some((first, hash)) = runs.next() else { return };
    let others = runs.filter(|(_, other)| *other != hash).map(|(name, _)| format!("`{name}`"));
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        let others = others.join(", ");
        to.warning(&format!(
            "{others}: data differ from those of `{first}`, so objectives are not comparable"
        ));
    }
}

/// Warns if compared runs have different models, and so different objectives.
pub fn warn_of_other_models<'a>(
    mut runs: impl Iterator<Item = (&'a str, &'a str)>,
    to: &dyn Listener,
) {
    let Some((first, model)) = runs.next() else { return };
    let others: Vec<String> = runs
        .filter(|(_, other)| *other != model)
        .map(|(name, other)| format!("`{name}` ({other})"))
        .collect();
    if !others.is_empty() {
        to.warning(&format!(
            "{}: model differs from that of `{first}` ({model}), so objectives are not comparable",
            others.join(", ")
        ));
    }
}
