//! `whimbrel report`: a run's page, from its folder.

use super::messages::note;
use super::view;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use whimbrel::engine::checkpoint::write_atomically;
use whimbrel::job::failure::Result;
use whimbrel::job::rundir::RunDir;
use whimbrel::report::{RunView, html};

/// Makes the report of one run or several.
pub fn report_command(runs: &[PathBuf], out: Option<&Path>, json: bool) -> Result<u8> {
    let dirs = runs.iter().map(|run| RunDir::existing(run)).collect::<Result<Vec<_>>>()?;
    let mut views = dirs.iter().map(view::load).collect::<Result<Vec<_>>>()?;
    view::refer_to_em(&mut views);
    let default = match &dirs[..] {
        [one] => one.path().join("report.html"),
        _ => PathBuf::from("report.html"),
    };
    let page = write(&views, out.unwrap_or(&default))?;
    if json {
        let by_name = views.iter().map(|v| (v.name.clone(), Value::Object(v.summary.clone())));
        println!("{}", Value::Object(by_name.collect::<Map<_, _>>()));
    }
    note(&format!("report: {}", page.display()));
    Ok(0)
}

/// Writes the page.
pub fn write(views: &[RunView], path: &Path) -> Result<PathBuf> {
    let names: Vec<&str> = views.iter().map(|v| v.name.as_str()).collect();
    write_atomically(path, html(&names.join(", "), views).as_bytes())?;
    Ok(path.to_path_buf())
}
