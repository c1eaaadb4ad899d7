//! Runs side by side, and their page.

use super::{Listener, view};
use std::path::{Path, PathBuf};
use whimbrel::engine::checkpoint::write_atomically;
use whimbrel::families::failure::Result;
use whimbrel::report::{RunView, html};
use whimbrel::runs::RunDir;

/// What a page shows of runs side by side, each measured against a pooled run among them.
pub fn side_by_side(dirs: &[RunDir], to: &dyn Listener) -> Result<Vec<RunView>> {
    let mut views = Vec::new();
    for dir in dirs {
        // A job of several seeds is the runs of all of them.
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
    // A run that is not over has no hash yet.
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

/// Writes the page of a run whose model and summary are on disk: a page that cannot be written is
/// worth a warning.
pub fn write_or_warn(
    title: &str,
    views: &[RunView],
    path: &Path,
    to: &dyn Listener,
) -> Option<PathBuf> {
    let written = write(title, views, path);
    written.map_err(|failure| to.warning(&format!("no report: {failure}"))).ok()
}

/// Writes the page.
pub fn write(title: &str, views: &[RunView], path: &Path) -> Result<PathBuf> {
    write_atomically(path, html(title, views).as_bytes())?;
    Ok(path.to_path_buf())
}

/// Says when runs side by side, named with the hashes of their data, are not on the same rows:
/// objectives are means over rows, so these are other quantities.
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
            "the data of {others} are not those of `{first}`: objectives are not comparable"
        ));
    }
}

/// Says when runs side by side, named with the kinds of their models, have different objectives.
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
            "the model of {} is not that of `{first}` ({model}): objectives are not comparable",
            others.join(", ")
        ));
    }
}
