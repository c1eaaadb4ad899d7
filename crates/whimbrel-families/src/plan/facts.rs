//! What a plan needs to know of the data: everything else is in the job.

use crate::failure::Result;
use crate::job::{Clients, Csv, DataSource, Job, Labels, Partition};
use crate::load::{Layout, Loaded, class_names, described, mixed, read_side, settle_classes};
use std::collections::BTreeSet;
use whimbrel_core::Error;
use whimbrel_data::{
    Attribute, Column, ColumnType, CsvOptions, Dataset, Features, MixedColumn, read_npy,
};

/// Who holds the data and what their columns are.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// How many clients are planned for, those who are only evaluated left out.
    pub clients: usize,
    /// Their names by id; empty where clients enrol under names that are not known yet.
    pub names: Vec<String>,
    /// The columns of the features, or of a table with gaps, in order.
    pub columns: Vec<String>,
    /// The rows of a table with gaps, in order; empty where rows are examples.
    pub rows: Vec<String>,
    /// The classes of a target in the order of their numbers, or the one that becomes -1 first; empty
    /// for others.
    pub classes: Vec<String>,
    /// The levels of each column of a mixed table, in the order of their numbers; empty for others.
    pub levels: Vec<Vec<String>>,
    /// What describes the rows and columns of a table with gaps; empty where the job needs nothing.
    pub attributes: Vec<Attribute>,
    /// Rows of all clients that train, where they are known.
    pub total_rows: Option<u64>,
    /// Which clients are only evaluated, by id; empty where everyone trains.
    pub unseen: Vec<bool>,
}

impl Facts {
    /// What loaded data say.
    pub fn of(loaded: &Loaded) -> Self {
        Self {
            clients: loaded.expected.unwrap_or_else(|| loaded.training().count()),
            names: loaded.clients.iter().map(|(name, _)| name.clone()).collect(),
            columns: loaded.columns.clone(),
            rows: loaded.row_labels(),
            classes: loaded.classes.clone(),
            levels: loaded.levels.clone(),
            attributes: loaded.attributes.clone(),
            total_rows: loaded.training().map(|(id, _)| loaded.rows[id.0 as usize]).sum(),
            unseen: loaded.unseen.clone(),
        }
    }

    /// What a coordinator knows before any client has come: clients from `[federation]`, columns
    /// from `columns` in `[data]` or from the file there, of which nothing else is used. A table
    /// with gaps has the rows and columns that the job lists.
    pub fn on_network(job: &Job) -> Result<Self> {
        let (clients, names) = match job.federation.as_ref().map(|f| &f.clients) {
            Some(clients @ Clients::Named(names)) => (clients.count(), names.clone()),
            Some(clients @ Clients::Number(_)) => (clients.count(), Vec::new()),
            None => {
                let error = Error::config("the job has no [federation] table")
                    .hint("write [federation] with `clients`: their names, or how many there are");
                return Err(error.into());
            }
        };
        let (mut levels, mut attributes) = (Vec::new(), Vec::new());
        let ((columns, classes), rows) = match (job.fit.layout(), &job.data.source) {
            (Layout::Mixed, DataSource::Csv(csv)) => {
                let found = mixed_columns(csv, job)?;
                levels = found.iter().map(|column| column.levels.clone()).collect();
                let names = found.into_iter().map(|column| column.name).collect();
                ((names, Vec::new()), Vec::new())
            }
            (Layout::Cells(_), DataSource::Csv(csv)) => {
                let (rows, columns) = labels(csv)?;
                attributes = described(job, csv, &rows, &columns)?;
                ((columns, Vec::new()), rows)
            }
            _ => (columns(job)?, Vec::new()),
        };
        let unseen = Vec::new();
        let total_rows = None;
        Ok(Self { clients, names, columns, rows, classes, levels, attributes, total_rows, unseen })
    }
}

/// Feature columns and classes, from the job or from a file that the coordinator has.
fn columns(job: &Job) -> Result<(Vec<String>, Vec<String>)> {
    let (path, given, classes) = match &job.data.source {
        DataSource::Csv(csv) => (csv.path.clone(), csv.columns.clone(), csv.classes.clone()),
        DataSource::Npy(npy) => (npy.path.clone().into(), None, None),
        DataSource::Libsvm(_) => {
            let error = Error::config(
                "libsvm files count columns from 0 or from 1 and leave the last ones out, so that \
                 two clients' files may not mean the same",
            )
            .hint("give the clients csv files");
            return Err(error.into());
        }
        DataSource::Idx(_) | DataSource::Collection(_) => {
            let error = Error::config("images are dealt out by a simulation; clients hold tables")
                .hint("give the clients csv or npy files");
            return Err(error.into());
        }
        DataSource::Mixture(_)
        | DataSource::Toy(_)
        | DataSource::SyntheticMixture(_)
        | DataSource::SyntheticRepresentation(_) => {
            let error = Error::config("drawn rows are in no file that clients could hold")
                .hint("set source = \"csv\" in [data]");
            return Err(error.into());
        }
    };
    if path.exists() {
        return match &job.data.source {
            DataSource::Csv(csv) => sample(csv, job),
            DataSource::Npy(npy) => Ok((names_of(read_npy(&npy.path)?.columns()), Vec::new())),
            _ => Ok((Vec::new(), Vec::new())),
        };
    }
    match given {
        // Without a file to look at, classes are the numbers that the loss uses.
        Some(columns) if job.fit.layout().has_classes() => {
            Ok((columns, classes.unwrap_or_else(|| vec!["-1".into(), "1".into()])))
        }
        Some(columns) => Ok((columns, Vec::new())),
        None => {
            let what = format!("{path} is not here to tell the columns");
            let error = Error::config(what)
                .hint("list `columns` in [data], or put a file with the same header there");
            Err(error.into())
        }
    }
}

/// The columns of a mixed table: from a file that looks like the clients', else as the job lists them.
fn mixed_columns(csv: &Csv, job: &Job) -> Result<Vec<MixedColumn>> {
    let types = job.fit.types();
    if csv.path.exists() {
        let mut also: Vec<&String> = job.data.held_out.role.iter().collect();
        also.extend(mixed::leveled(types));
        let (data, text) = read_sample(csv, &also)?;
        let leveled: Vec<&String> = mixed::leveled(types).collect();
        let except = text.iter().filter(|name| !leveled.contains(name)).map(String::as_str);
        let except: Vec<&str> = except.collect();
        return Ok(data.mixed_columns(csv.columns.as_deref(), types, &except)?);
    }
    let Some(columns) = &csv.columns else {
        let what = format!("{} is not here to tell the columns", csv.path);
        let hint = "list `columns` in [data], or put a file with the same header there";
        return Err(Error::config(what).hint(hint).into());
    };
    let column = |name: &String| {
        let kind = types.iter().find(|(known, _)| known == name).map(|(_, kind)| kind);
        let kind = kind.unwrap_or(&ColumnType::Number);
        let levels = match kind {
            ColumnType::Number | ColumnType::Count => Vec::new(),
            ColumnType::YesNo => vec!["0".into(), "1".into()],
            ColumnType::Category(given) if !given.is_empty() => given.clone(),
            ColumnType::Category(_) => {
                let what = format!("nothing tells the levels of column {name:?}");
                let hint = format!(
                    "list them, types = {{ {name} = [\"a\", \"b\"] }}, or put a file that has \
                     them all at `path`"
                );
                return Err(Error::config(what).hint(hint).into());
            }
        };
        Ok(MixedColumn::of(name, kind, levels))
    };
    columns.iter().map(column).collect()
}

/// Rows and columns of a table that no client sees the whole of.
fn labels(csv: &Csv) -> Result<(Vec<String>, Vec<String>)> {
    let needed = |side: &str| {
        let what = format!("the job does not list the table's {side}s, and no client has them all");
        let hint =
            format!("set `{side}_labels` in [data]: a list, or a file with one on each line");
        Error::config(what).hint(hint)
    };
    let cells = &csv.cells;
    if cells.row.is_empty() {
        let what = "the rows of this table are the numbers of lines, which are others in the file \
                    of each client";
        let error =
            Error::config(what).hint("name the column of their labels with `row` in [data]");
        return Err(error.into());
    }
    let rows = read_side(cells.row_labels.as_ref())?.ok_or_else(|| needed("row"))?;
    // A wide file's columns are labels already.
    let listed = csv.columns.clone().filter(|_| cells.value.is_none()).map(Labels::Listed);
    let columns = cells.column_labels.as_ref().or(listed.as_ref());
    let columns = read_side(columns)?.ok_or_else(|| needed("column"))?;
    for (side, labels) in [("row", &rows), ("column", &columns)] {
        let mut known = BTreeSet::new();
        if let Some(twice) = labels.iter().find(|label| !known.insert(*label)) {
            return Err(Error::config(format!("{side} label {twice:?} is listed twice")).into());
        }
    }
    Ok((rows, columns))
}

/// Columns and classes of a file that looks like the clients'.
fn sample(csv: &Csv, job: &Job) -> Result<(Vec<String>, Vec<String>)> {
    let (data, set_apart) = read_sample(csv, &job.data.held_out.role.iter().collect::<Vec<_>>())?;
    let except: Vec<&str> = set_apart.iter().map(String::as_str).collect();
    let features = match &csv.columns {
        Some(columns) => Features::Listed(columns),
        None => Features::All { except: &except },
    };
    let Some(target) = &csv.target else {
        let chosen = data.features(&features)?;
        let names = chosen.into_iter().map(|at| data.columns()[at].name.clone());
        return Ok((names.collect(), Vec::new()));
    };
    let mut rows = data.labelled(target, &features)?;
    let names = data.class_names(target)?;
    let classes = match job.fit.layout() {
        Layout::Targets { classes: true } => class_names(&mut rows, &names)?,
        Layout::Samples { classes: true } => settle_classes(&mut rows.targets, &names)?,
        _ => Vec::new(),
    };
    Ok((rows.columns, classes))
}

/// The file, and those of its columns that are no features; a sample need not have them.
fn read_sample(csv: &Csv, also: &[&String]) -> Result<(Dataset, Vec<String>)> {
    let client = match &csv.partition {
        Partition::Column(column) => Some(column),
        _ => None,
    };
    let mut text: Vec<String> =
        client.into_iter().chain(&csv.label).chain(also.iter().copied()).cloned().collect();
    let delimiter = csv.delimiter.map(|c| c as u8);
    let options = CsvOptions { delimiter, text: text.clone() };
    let data = csv.path.read_csv(&options)?;
    text.retain(|name| data.columns().iter().any(|column| column.name == *name));
    Ok((data, text))
}

fn names_of(columns: &[Column]) -> Vec<String> {
    columns.iter().map(|column| column.name.clone()).collect()
}
