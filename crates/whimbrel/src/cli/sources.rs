//! `whimbrel data list` and `data make`, and `whimbrel data inspect` of a job.

use super::listener::Terminal;
use super::messages::{data as print, note};
use crate::run::holdings::{Held, inspect_job as job_figures, look};
use crate::run::{Example, read_job};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use whimbrel_core::{ClientData, Error, FeatureRows};
use whimbrel_families::failure::Result;
use whimbrel_families::job::data::SourceKind;
use whimbrel_families::job::data::split::SplitKind;
use whimbrel_families::load::Loaded;

/// Largest number of classes shown one by one.
const CLASSES_MAX: usize = 20;

/// Lists the values of `source` and of `by` in `[data.split]`.
pub fn list_command(json: bool) -> Result<u8> {
    let tables = [("source", SourceKind::FORM.words), ("split", SplitKind::FORM.words)];
    if json {
        let words = |words: &[whimbrel_job::key::Word]| -> Map<String, Value> {
            words.iter().map(|word| (word.name.into(), word.doc.into())).collect()
        };
        let report: Map<String, Value> =
            tables.iter().map(|(name, all)| ((*name).into(), words(all).into())).collect();
        print(&format!("{}\n", Value::Object(report)))?;
        return Ok(0);
    }
    let heads = ["source in [data]", "by in [data.split]"];
    for ((_, words), head) in tables.iter().zip(heads) {
        let mut page = format!("{head}\n\n");
        for word in *words {
            let _ = writeln!(page, "  {:<18} {}", word.name, word.doc);
        }
        print(&format!("{page}\n"))?;
    }
    Ok(0)
}

/// Writes the files of an example to a new folder.
pub fn make_command(example: Example, out: Option<&Path>, seed: u64) -> Result<u8> {
    let folder = out.unwrap_or(Path::new(example.name()));
    let fault = |e| Error::storage(folder.display(), e);
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        let what = format!("{} exists and is not empty", folder.display());
        return Err(Error::config(what).hint("name a new folder with --out").into());
    }
    fs::create_dir_all(folder).map_err(fault)?;
    let files = example.files(seed);
    for (name, text) in &files {
        fs::write(folder.join(name), text).map_err(fault)?;
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    note(&format!("{}: {}", folder.display(), example.about()));
    note(&format!("files: {}", names.join(", ")));
    Ok(0)
}

/// Shows the rows and classes of each client of a job.
pub fn inspect_job(path: &Path, json: bool) -> Result<u8> {
    let job = read_job(path)?;
    if json {
        return print(&format!("{}\n", job_figures(&job, &Terminal)?)).map(|()| 0);
    }
    let (loaded, held) = look(&job, &Terminal)?;
    print(&page(&loaded, &held)).map(|()| 0)
}

fn page(loaded: &Loaded, held: &[Held]) -> String {
    let unseen = held.iter().filter(|client| client.unseen).count();
    let evaluated = if unseen > 0 { format!(", {unseen} only evaluated") } else { String::new() };
    let form = match (loaded.shape(), loaded.clients.first().map(|(_, data)| data)) {
        (Some(shape), _) => format!("inputs of {shape:?}"),
        (_, Some(ClientData::Labelled(rows)))
            if matches!(rows.rows, FeatureRows::Sparse { .. }) =>
        {
            format!("{} sparse columns", loaded.columns.len())
        }
        _ => format!("{} columns", loaded.columns.len()),
    };
    let mut page = format!("{} clients{evaluated}; {form}\n\n", held.len());
    let _ =
        writeln!(page, "{:>10} {:>9} {:>9} {:>9} {:>9}", "", "in all", "least", "median", "most");
    for (at, purpose) in ["training", "validation", "test"].into_iter().enumerate() {
        let mut sizes: Vec<usize> = held.iter().map(|client| client.rows[at]).collect();
        sizes.sort_unstable();
        let all: usize = sizes.iter().sum();
        if let ([least, .., most] | [least @ most], 1..) = (&sizes[..], all) {
            let median = sizes[sizes.len() / 2];
            let _ = writeln!(page, "{purpose:>10} {all:>9} {least:>9} {median:>9} {most:>9}");
        }
    }
    let totals = |class: usize| held.iter().map(|client| client.classes[class]).sum::<usize>();
    let holders = |class: usize| held.iter().filter(|client| client.classes[class] > 0).count();
    match loaded.classes.len() {
        0 => {}
        1..=CLASSES_MAX => {
            let _ = writeln!(page, "\n{:>10} {:>9} {:>9}", "class", "training", "clients");
            for (class, name) in loaded.classes.iter().enumerate() {
                let _ = writeln!(page, "{name:>10} {:>9} {:>9}", totals(class), holders(class));
            }
        }
        count => {
            let sizes = (0..count).map(totals);
            let (least, most) = (sizes.clone().min(), sizes.max());
            let (least, most) = (least.unwrap_or(0), most.unwrap_or(0));
            let _ = writeln!(page, "\n{count} classes of {least} to {most} training rows");
        }
    }
    page
}
