//! Drafts of job files for a data file.

use super::execute::in_text;
use super::inspect::targets;
use std::path::{Path, PathBuf};
use whimbrel_data::{
    Dataset, Features, Kind, class_numbers, guess_table, read_idx_images, read_libsvm,
};
use whimbrel_families::failure::Result;
use whimbrel_families::load::{FileKind, read_any};
use whimbrel_families::{DataFacts, TableFacts, template};

/// Usual names of the column of clients.
const CLIENT_NAMES: [&str; 14] = [
    "client",
    "site",
    "ward",
    "hospital",
    "clinic",
    "center",
    "centre",
    "group",
    "observer",
    "user",
    "device",
    "institution",
    "lab",
    "subject",
];

/// Usual names of the target column.
const TARGET_NAMES: [&str; 5] = ["label", "class", "target", "outcome", "y"];

/// Largest number of values of a column of classes.
const CLASSES_MAX: usize = 20;

/// A commented job for a data file, or for the generator; `job` is the file it will be in.
pub fn draft(data: Option<&Path>, job: Option<&Path>) -> Result<String> {
    let facts = data.map(|file| look(file, job)).transpose()?;
    Ok(template(facts.as_ref()))
}

fn look(file: &Path, job: Option<&Path>) -> Result<DataFacts> {
    let kind = FileKind::of(file);
    let path = in_text(&seen_from(job, file))?.into();
    let known = DataFacts { path, kind, ..DataFacts::default() };
    let numbered = |n: usize| (1..=n).map(|i| format!("c{i}")).collect();
    match kind {
        FileKind::Libsvm => {
            let rows = read_libsvm(file, None)?;
            let classes = targets(&rows.targets).len();
            return Ok(DataFacts { rows: rows.len(), classes, ..known });
        }
        FileKind::Idx => {
            let images = read_idx_images(file)?;
            let columns = numbered(images.width());
            return Ok(DataFacts { rows: images.rows(), columns, ..known });
        }
        FileKind::Csv | FileKind::Npy => {}
    }
    let data = read_any(&file.into(), None)?;
    let guess = guess_table(&data);
    let target = guess.is_none().then(|| target_column(&data)).flatten();
    let (target, classes) = target.map_or((None, 0), |(name, count)| (Some(name), count));
    let client = match &guess {
        Some(table) => table.client.clone(),
        None => client_column(&data, target.as_deref()),
    };
    let table = guess.map(|table| TableFacts {
        row: table.row,
        column: table.column,
        value: table.value,
        entries: table.entries,
    });
    let except: Vec<&str> = client.as_deref().into_iter().chain(target.as_deref()).collect();
    let columns = data.features(&Features::All { except: &except }).unwrap_or_default();
    let columns: Vec<String> =
        columns.into_iter().map(|at| data.columns()[at].name.clone()).collect();
    let mut facts = DataFacts { columns, client, rows: data.rows(), table, ..known };
    let named: Vec<&str> = facts.columns.iter().map(String::as_str).collect();
    if target.is_some() && !named.is_empty() && !data.has_gaps(&named) {
        return Ok(DataFacts { target, classes, ..facts });
    }
    if facts.kind == FileKind::Csv && facts.table.is_none() {
        mixed_columns(&data, &mut facts);
    }
    Ok(facts)
}

/// Treats a file with gaps, or with text columns of few values, as a mixed table.
fn mixed_columns(data: &Dataset, facts: &mut DataFacts) {
    let except: Vec<&str> = facts.client.as_deref().into_iter().collect();
    let types = data.guess_types(&except);
    let is_text =
        |name: &str| data.column(name).is_ok_and(|at| data.columns()[at].kind == Kind::Text);
    let named = |name: &&str| {
        facts.columns.iter().any(|known| known == name)
            || types.iter().any(|(known, _)| known == name)
    };
    let used: Vec<&str> =
        data.columns().iter().map(|column| column.name.as_str()).filter(named).collect();
    if data.has_gaps(&used) || types.iter().any(|(name, _)| is_text(name)) {
        facts.columns = used.into_iter().map(String::from).collect();
        facts.types = Some(types);
    }
}

/// The path of a data file as the job file writes it, relative to its folder if possible.
fn seen_from(job: Option<&Path>, file: &Path) -> PathBuf {
    let folder = job.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    let Some(folder) = folder else { return file.into() };
    match (folder.canonicalize(), file.canonicalize()) {
        (Ok(folder), Ok(file)) => {
            file.strip_prefix(&folder).map_or(file.clone(), Path::to_path_buf)
        }
        _ => file.into(),
    }
}

/// A column of classes with a usual name, and its number of classes.
fn target_column(data: &Dataset) -> Option<(String, usize)> {
    let is_usual = |name: &str| TARGET_NAMES.contains(&name.to_lowercase().as_str());
    let mut usual = data.columns().iter().filter(|c| c.named && is_usual(&c.name));
    let (column, None) = (usual.next()?, usual.next()) else { return None };
    let (_, classes) = class_numbers(data, &column.name).ok()?;
    (2..=CLASSES_MAX).contains(&classes.len()).then(|| (column.name.clone(), classes.len()))
}

/// A column with a usual name, else the only text column beside the target.
fn client_column(data: &Dataset, target: Option<&str>) -> Option<String> {
    let is_target = |name: &str| target == Some(name);
    let names = || data.columns().iter().filter(|c| c.named && !is_target(&c.name));
    let usual = names().find(|c| CLIENT_NAMES.contains(&c.name.to_lowercase().as_str()));
    let mut texts = names().filter(|c| c.kind == Kind::Text);
    let only = texts.next().filter(|_| texts.next().is_none());
    usual.or(only).map(|c| c.name.clone())
}
