//! `whimbrel predict`, `impute` and `adapt`: use of a finished run.

use super::args::{Adapt, Impute, Predict};
use super::listener::Terminal;
use super::messages::{data, note, warning};
use super::output::Output;
use crate::run::FinishedRun;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use whimbrel_core::Error;
use whimbrel_data::Input;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::family::{AdaptOptions, ImputeOptions, Imputed, ModelUse};

/// Writes a prediction for each row.
pub fn predict_command(args: &Predict) -> Result<u8> {
    check_is_file(&args.data)?;
    let run = FinishedRun::read(&args.run, &Terminal)?;
    let out = output(&run, &args.out, args.force, args.json, Some(&args.data))?;
    let own = run.own(args.client.as_deref())?;
    let model = ModelUse { own: own.as_ref(), libsvm: args.libsvm, ..run.model() };
    let found = run.job.fit.predict(&model, &args.data.as_path().into())?;
    out.write(&found.text())?;
    let rows = found.rows();
    if args.json {
        let mut report = Map::from_iter([("rows".into(), json!(rows))]);
        report.extend(found.figures.into_iter().map(|(name, value)| (name.into(), value)));
        report.insert("out".into(), out.shown().into());
        data(&format!("{}\n", Value::Object(report)))?;
    }
    note(&format!("{rows} rows, {}: {}", found.words, out.shown()));
    Ok(0)
}

/// Writes estimates, intervals and imputations of every cell.
pub fn impute_command(args: &Impute) -> Result<u8> {
    args.data.iter().try_for_each(|data| check_is_file(data))?;
    let run = FinishedRun::read(&args.run, &Terminal)?;
    let data = args.data.as_deref().map(Input::from);
    let (draws, client) = (args.draws, args.client.as_deref());
    let files = match (args.wide, draws) {
        (true, 1..) => {
            (1..=draws).map(|k| Ok((k, numbered(&args.out, k)?))).collect::<Result<_>>()?
        }
        _ => vec![(draws, args.out.clone())],
    };
    let checked = |(draws, path): &(u32, PathBuf)| {
        Ok((*draws, output(&run, path, args.force, args.json, args.data.as_deref())?))
    };
    let files: Vec<(u32, Output)> = files.iter().map(checked).collect::<Result<_>>()?;
    let mut found = Imputed::default();
    for (draws, out) in &files {
        let options = ImputeOptions { data: data.as_ref(), client, wide: args.wide, draws: *draws };
        found = out.write_with(|table| run.job.fit.impute(&run.model(), &options, table))?;
    }
    let shown: Vec<&str> = files.iter().map(|(_, out)| out.shown()).collect();
    let listed = if files.len() == 1 { json!(shown[0]) } else { json!(shown) };
    found.figures.extend([("draws".into(), json!(draws)), ("out".into(), listed)]);
    found.notes.push(format!("table: {}", shown.join(", ")));
    say(found, args.json)
}

/// The file of an imputation: `table-2.csv` beside `table.csv`.
fn numbered(path: &Path, number: u32) -> Result<PathBuf> {
    let Some(stem) = path.file_stem().filter(|_| path != Path::new("-")) else {
        let error = Error::config("--wide with --draws writes a file for each imputation");
        return Err(error.hint("name a file as --out").into());
    };
    let end = path.extension().map_or(String::new(), |end| format!(".{}", end.display()));
    Ok(path.with_file_name(format!("{}-{number}{end}", stem.display())))
}

/// Fits the personal part of a new client.
pub fn adapt_command(args: &Adapt) -> Result<u8> {
    check_is_file(&args.data)?;
    let run = FinishedRun::read(&args.run, &Terminal)?;
    make_folder(&args.out)?;
    let labels = args.labels.as_deref();
    let data = Input::from(args.data.as_path());
    let options = AdaptOptions { data: &data, labels, draws: args.draws, out: &args.out };
    say(run.adapt(&options)?, args.json)
}

/// Refuses a pipe: rows are read more than once.
fn check_is_file(data: &Path) -> Result<()> {
    match std::fs::metadata(data) {
        Ok(kind) if !kind.is_file() && !kind.is_dir() => {
            let what = format!("{} is a pipe or a device", data.display());
            Err(Error::config(what)
                .hint("rows are read more than once: write them to a file")
                .into())
        }
        // The reader reports missing files and folders.
        _ => Ok(()),
    }
}

/// Checks the output file: it must not replace an input of the run or of this command.
fn output(
    run: &FinishedRun<'_>,
    out: &Path,
    force: bool,
    json: bool,
    data: Option<&Path>,
) -> Result<Output> {
    let mut job = run.job.clone();
    let inputs = job.paths_mut().into_iter().map(|path| path.as_path()).chain(data);
    Output::check_beside_json(out, force, json, inputs)
}

fn say(found: Imputed, json: bool) -> Result<u8> {
    found.warnings.iter().for_each(|w| warning(w));
    if json {
        data(&format!("{}\n", Value::Object(found.figures)))?;
    }
    found.notes.iter().for_each(|n| note(n));
    Ok(0)
}

fn make_folder(path: &Path) -> Result<()> {
    let taken = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    if taken || path.is_file() {
        let error =
            Error::config(format!("{} is not empty", path.display())).hint("choose another --out");
        return Err(error.into());
    }
    let failed = |e| Failure::config(format!("cannot make the folder {}: {e}", path.display()));
    std::fs::create_dir_all(path).map_err(failed)
}
