//! The facts about data that a plan needs.

use crate::failure::{Failure, Result};
use crate::family::refuse;
use crate::job::{Clients, Csv, DataSource, Job, Labels, Partition};
use crate::load::{
    Layout, Loaded, class_names, described, mixed, read_side, settle_classes, tables,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use whimbrel_core::Error;
use whimbrel_data::{Attribute, ColumnType, CsvOptions, Dataset, MixedColumn, read_npy};

/// The clients and the columns of their data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Number of clients that train, or are expected to.
    pub clients: usize,
    /// Their names by id; empty if clients enrol under names that are not known yet.
    pub names: Vec<String>,
    /// Columns of the features, or of a table with gaps.
    pub columns: Vec<String>,
    /// Row labels of a table with gaps; empty for other data.
    pub rows: Vec<String>,
    /// Classes of the target by number; the first of two is coded as -1. Empty without classes.
    pub classes: Vec<String>,
    /// Levels of each column of a mixed table by number; empty for other data.
    pub levels: Vec<Vec<String>>,
    /// Descriptions of the rows and columns of a table with gaps.
    pub attributes: Vec<Attribute>,
    /// Training rows of all clients, if known.
    pub total_rows: Option<u64>,
    /// Observations of the client itself in a table with gaps, if known.
    pub observations: Option<usize>,
    /// Flags of clients that are only evaluated, by id; empty if all train.
    pub unseen: Vec<bool>,
}

impl Facts {
    /// The facts about loaded data.
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
            observations: None,
            unseen: loaded.unseen.clone(),
        }
    }

    /// The facts that a coordinator knows before clients join: clients from `[federation]`, columns
    /// from `[data]` or from the header of the file there. A table with gaps has the rows and
    /// columns that the job lists.
    pub fn on_network(job: &Job) -> Result<Self> {
        let Some(federation) = &job.federation else {
            return refuse(
                "the job has no [federation] table",
                "write [federation] with `clients`: their names, or how many there are",
            );
        };
        let mut facts = Self { clients: federation.clients.count(), ..Self::default() };
        if let Clients::Named(names) = &federation.clients {
            facts.names.clone_from(names);
        }
        match (job.fit.layout(), &job.data.source) {
            (Layout::Mixed { types, response }, DataSource::Csv(csv)) => {
                let response = response.as_ref();
                for MixedColumn { name, levels, .. } in mixed_columns(csv, job, &types, response)? {
                    facts.columns.push(name);
                    facts.levels.push(levels);
                }
            }
            (Layout::Cells { described: by, .. }, DataSource::Csv(csv)) => {
                (facts.rows, facts.columns) = labels(csv)?;
                facts.attributes = described(csv, &facts.rows, &facts.columns, by)?;
            }
            _ => (facts.columns, facts.classes) = columns(job)?,
        }
        Ok(facts)
    }
}

/// The reason why clients on a network cannot hold the data of a source.
pub(crate) fn not_on_network(source: &DataSource) -> Failure {
    let (what, hint) = match source {
        DataSource::Libsvm(_) => (
            "libsvm files count columns from 0 or from 1 and omit trailing ones, so the files of \
             two clients may disagree",
            "give the clients csv files",
        ),
        DataSource::Idx(_) | DataSource::Collection(_) => (
            "images are split among clients by a simulation; clients of a network hold tables",
            "give the clients csv or npy files",
        ),
        _ => ("clients cannot hold generated rows", "set source = \"csv\" in [data]"),
    };
    Error::config(what).hint(hint).into()
}

/// Feature columns and classes, from the job or from a file that the coordinator has.
fn columns(job: &Job) -> Result<(Vec<String>, Vec<String>)> {
    let csv = match &job.data.source {
        DataSource::Csv(csv) if csv.path.exists() => return sample(csv, job),
        DataSource::Npy(npy) if npy.path.exists() => {
            let data = read_npy(&npy.path)?;
            return Ok((data.columns().iter().map(|c| c.name.clone()).collect(), Vec::new()));
        }
        DataSource::Csv(csv) => csv,
        DataSource::Npy(npy) => return Err(no_columns(npy.path.display())),
        other => return Err(not_on_network(other)),
    };
    let columns = csv.columns.clone().ok_or_else(|| no_columns(&csv.path))?;
    // Without a file, classes are the numbers of the loss.
    let classes = || csv.classes.clone().unwrap_or_else(|| vec!["-1".into(), "1".into()]);
    Ok((columns, if job.fit.layout().has_classes() { classes() } else { Vec::new() }))
}

fn no_columns(path: impl std::fmt::Display) -> Failure {
    let error = Error::config(format!("the columns are unknown: {path} does not exist"));
    error.hint("list `columns` in [data], or put a file with the same header there").into()
}

/// The columns of a mixed table, from a sample file or from the job's list.
fn mixed_columns(
    csv: &Csv,
    job: &Job,
    types: &[(String, ColumnType)],
    response: Option<&mixed::Response>,
) -> Result<Vec<MixedColumn>> {
    let typed = mixed::with_target(csv, types, response);
    let types = &typed;
    if csv.path.exists() {
        let leveled: Vec<&String> = mixed::leveled(types).collect();
        let also = job.data.held_out.role.iter().chain(leveled.iter().copied());
        let (data, text) = read_sample(csv, job, also)?;
        let except = text.iter().filter(|name| !leveled.contains(name)).map(String::as_str);
        let except: Vec<&str> = except.collect();
        let (listed, types) = mixed::settled(&data, csv, types, response, &except);
        return Ok(data.mixed_columns(listed.as_deref(), &types, &except)?);
    }
    let column = |name: &String| {
        let kind = types.iter().find(|(known, _)| known == name).map(|(_, kind)| kind);
        let kind = kind.unwrap_or(&ColumnType::Number);
        let levels = match kind {
            ColumnType::Number | ColumnType::Count => Vec::new(),
            ColumnType::YesNo => vec!["0".into(), "1".into()],
            ColumnType::Category(given) if !given.is_empty() => given.clone(),
            ColumnType::Category(_) => {
                return refuse(
                    format!("the levels of column {name:?} are unknown"),
                    format!(
                        "list them, {name} = {{ type = \"category\", levels = [\"a\", \"b\"] }} in \
                         [schema], or put a file that has them all at `path`"
                    ),
                );
            }
        };
        Ok(MixedColumn::of(name, kind, levels))
    };
    let columns = csv.columns.as_ref().ok_or_else(|| no_columns(&csv.path))?;
    columns.iter().chain(mixed::beside(csv, response)).map(column).collect()
}

/// Row and column labels of a table; no client has all of its rows.
fn labels(csv: &Csv) -> Result<(Vec<String>, Vec<String>)> {
    let needed = |side: &str| {
        let what = format!("the job does not list the table's {side}s, and no client has them all");
        let hint =
            format!("set `{side}_labels` in [data]: a list, or a file with one on each line");
        Error::config(what).hint(hint)
    };
    let cells = &csv.cells;
    if cells.row.is_empty() {
        return refuse(
            "the rows of this table are line numbers, which differ between the clients' files",
            "name the column of row labels with `row` in [data]",
        );
    }
    let rows = read_side(cells.row_labels.as_ref())?.ok_or_else(|| needed("row"))?;
    // The columns of a wide file are labels already.
    let listed = csv.columns.clone().filter(|_| cells.value.is_none()).map(Labels::Listed);
    let columns = cells.column_labels.as_ref().or(listed.as_ref());
    let columns = read_side(columns)?.ok_or_else(|| needed("column"))?;
    for (side, labels) in [("row", &rows), ("column", &columns)] {
        let mut known = BTreeSet::new();
        if let Some(twice) = labels.iter().find(|label| !known.insert(*label)) {
            return Err(Failure::config(format!("{side} label {twice:?} is listed twice")));
        }
    }
    Ok((rows, columns))
}

/// Columns and classes of a sample file.
fn sample(csv: &Csv, job: &Job) -> Result<(Vec<String>, Vec<String>)> {
    let types = job.column_types();
    let also = job.data.held_out.role.iter().chain(mixed::leveled(&types));
    let (data, set_apart) = read_sample(csv, job, also)?;
    let except: Vec<&str> = set_apart.iter().map(String::as_str).collect();
    let features = tables::features(csv, &except);
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

/// A sample file, and its columns that are not features; a sample may lack some of them.
fn read_sample<'a>(
    csv: &'a Csv,
    job: &Job,
    also: impl IntoIterator<Item = &'a String>,
) -> Result<(Arc<Dataset>, Vec<String>)> {
    let client = match &csv.partition {
        Partition::Column(column) => Some(column),
        _ => None,
    };
    let mut text: Vec<String> = client.into_iter().chain(&csv.label).chain(also).cloned().collect();
    let delimiter = csv.delimiter.map(|c| c as u8);
    let only = tables::needed(csv, job, &text);
    let options = CsvOptions { delimiter, text: text.clone(), only, spelling: csv.spelling() };
    let data = csv.path.read(&options)?;
    text.retain(|name| data.columns().iter().any(|column| column.name == *name));
    Ok((data, text))
}
