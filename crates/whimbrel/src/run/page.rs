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
                view::of_seeds(&mut own, dir, &view::summary(dir)?);
                views.extend(own);
            }
        }
    }
    // An unfinished run has no hash.
    let hashes = views.iter().map(|v| (v.name.as_str(), v.data_hash.as_str()));
    warn_of_others(
        "data differ from those",
        false,
        hashes.filter(|(_, hash)| !hash.is_empty()),
        to,
    );
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

/// Warns if compared runs, by name, have different data or models (`what`), shown where `shows`: their
/// objectives are then not comparable.
pub fn warn_of_others<'a>(
    what: &str,
    shows: bool,
    mut runs: impl Iterator<Item = (&'a str, &'a str)>,
    to: &dyn Listener,
) {
    let Some((first, own)) = runs.next() else { return };
    let named = |name: &str, value: &str| {
        if shows { format!("`{name}` ({value})") } else { format!("`{name}`") }
    };
    let others = runs.filter(|(_, other)| *other != own).map(|(name, other)| named(name, other));
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        let (others, first) = (others.join(", "), named(first, own));
        to.warning(&format!("{others}: {what} of {first}, so objectives are not comparable"));
    }
}
