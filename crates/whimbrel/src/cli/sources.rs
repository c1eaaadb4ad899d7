//! `whimbrel data list`, and `whimbrel data inspect` of a job: what its clients hold.

use super::execute::read_job;
use super::listener::{Listener, Terminal};
use super::messages::data as print;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::path::Path;
use whimbrel::core::{ClientData, FeatureRows, Targets};
use whimbrel::families::Job;
use whimbrel::families::failure::Result;
use whimbrel::families::job::data::SourceKind;
use whimbrel::families::job::data::split::SplitKind;
use whimbrel::families::load::{Loaded, load};

/// Classes shown one by one; of more, the range.
const CLASSES_MAX: usize = 20;

/// Shows the words of `source` and of `by` in `[data.split]`.
pub fn list_command(json: bool) -> Result<u8> {
    let tables = [("source", SourceKind::FORM.words), ("split", SplitKind::FORM.words)];
    if json {
        let words = |words: &[whimbrel::job::key::Word]| -> Map<String, Value> {
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

/// Rows of a client by what they are for, and the classes of those for training.
struct Held {
    name: String,
    rows: [usize; 3],
    classes: Vec<usize>,
    unseen: bool,
}

/// Shows what the clients of a job hold.
pub fn inspect_job(path: &Path, json: bool) -> Result<u8> {
    let job = read_job(path)?;
    if json {
        return print(&format!("{}\n", job_figures(&job, &Terminal)?)).map(|()| 0);
    }
    let (loaded, held) = look(&job, &Terminal)?;
    print(&page(&loaded, &held)).map(|()| 0)
}

fn look(job: &Job, to: &dyn Listener) -> Result<(Loaded, Vec<Held>)> {
    let loaded = load(job)?;
    loaded.warnings.iter().for_each(|words| to.warning(words));
    loaded.notes.iter().for_each(|words| to.note(words));
    let held = (0..loaded.clients.len()).map(|i| Held::of(&loaded, i)).collect();
    Ok((loaded, held))
}

/// The same as one object.
pub fn job_figures(job: &Job, to: &dyn Listener) -> Result<Value> {
    let (loaded, held) = look(job, to)?;
    let clients = held.iter().map(|client| {
        let [train, validation, test] = client.rows;
        let content = json!({
            "rows": train, "validation": validation, "test": test, "unseen": client.unseen,
            "classes": client.classes,
        });
        (client.name.clone(), content)
    });
    let clients: Map<String, Value> = clients.collect();
    Ok(json!({
        "job": job.name, "columns": loaded.columns.len(), "shape": loaded.shape(),
        "classes": loaded.classes, "clients": clients,
    }))
}

impl Held {
    fn of(loaded: &Loaded, id: usize) -> Self {
        let (name, data) = &loaded.clients[id];
        let held_out = data.held_out();
        let part = |data: Option<Box<ClientData>>| data.map_or(0, |data| rows(&data));
        let mut classes = vec![0; loaded.classes.len()];
        let mut count = |class: usize| classes.get_mut(class).into_iter().for_each(|n| *n += 1);
        match data {
            ClientData::Samples(samples) => {
                if let Targets::Classes { of, .. } = &samples.targets {
                    of.iter().for_each(|class| count(usize::from(*class)));
                }
            }
            ClientData::Labelled(rows) if loaded.classes.len() == 2 => {
                rows.targets.iter().for_each(|sign| count(usize::from(*sign > 0.0)));
            }
            _ => {}
        }
        Self {
            name: name.clone(),
            rows: [rows(data), part(held_out.validation), part(held_out.test)],
            classes,
            unseen: loaded.unseen.get(id).copied().unwrap_or_default(),
        }
    }
}

fn rows(data: &ClientData) -> usize {
    match data {
        ClientData::Table(table) => table.rows(),
        ClientData::Labelled(rows) => rows.len(),
        ClientData::Samples(samples) => samples.len(),
        ClientData::Cells(cells) => cells.observed.len(),
        ClientData::Stream(_) => 0,
    }
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
