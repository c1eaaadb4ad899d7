//! Rows with targets.

use super::split::{Unsplit, split};
use super::{Layout, Loaded, columns, samples, tables};
use crate::failure::{AtKey, Failure, Result};
use crate::family::refuse;
use crate::job::{Csv, Job, Libsvm, Partition};
use whimbrel_core::{ClientData, Key, Labelled};
use whimbrel_data::{
    BadRow, Classes, ClientRows, Dataset, Error as DataError, LISTED_MAX, LeastSquaresSpec,
    by_column, by_feature, dense_rows, hash_labelled, hash_path, labelled_clients, level_of,
    read_libsvm, standardize, two_classes,
};

pub(super) fn from_csv(csv: &Csv, job: &Job, layout: &Layout, key: Key) -> Result<Loaded> {
    let (data, set_apart) = tables::read(csv, job)?;
    let except: Vec<&str> = set_apart.iter().map(String::as_str).collect();
    let target = csv.target.as_deref().unwrap_or_default();
    let mut rows = data.labelled(target, &tables::features(csv, &except))?;
    let names = data.class_names(target)?;
    if csv.classes.is_some() && !layout.has_classes() {
        return refuse(
            "the model predicts numbers, but `classes` lists classes",
            "take it out, or use a classifier",
        )
        .at("data.classes");
    }
    if !names.is_empty() && !layout.has_classes() {
        let what = "the targets are text, which only a classifier can predict";
        let hint = "a logistic model predicts two classes, a softmax model any number";
        return refuse(what, hint).at("data.target");
    }
    let classes = match &csv.classes {
        None => find_classes(&mut rows, &names, layout)?,
        Some(declared) => {
            number_declared(&mut rows, &data, target, declared, layout)?;
            declared.clone()
        }
    };
    let given = Given { rows, table: Some(&data), classes, partition: &csv.partition };
    let mut loaded = given.share_out(layout, csv.standardize, csv.path.hash()?, key)?;
    tables::described(&mut loaded, &data, csv, job)?;
    if csv.classes.is_none() {
        columns::say_classes(&mut loaded);
    }
    Ok(loaded)
}

pub(super) fn from_libsvm(libsvm: &Libsvm, layout: &Layout, key: Key) -> Result<Loaded> {
    let mut rows = read_libsvm(&libsvm.path, libsvm.columns)?;
    let classes = find_classes(&mut rows, &[], layout)?;
    let given = Given { rows, table: None, classes, partition: &libsvm.partition };
    let mut loaded = given.share_out(layout, libsvm.standardize, hash_path(&libsvm.path)?, key)?;
    columns::say_all(&mut loaded, &["the first number of a line (the target)"]);
    columns::say_classes(&mut loaded);
    Ok(loaded)
}

pub(super) fn from_toy(toy: &LeastSquaresSpec, layout: &Layout, key: Key) -> Result<Loaded> {
    let clients = toy.draw(key)?.clients;
    let hash = hash_labelled(&clients);
    match layout {
        Layout::Samples { classes: true } => {
            let what = "the targets of the toy set are numbers, not classes";
            refuse(what, "use kind = \"linear\", or source = \"synthetic-mixture\"")
                .at("model.kind")
        }
        Layout::Samples { classes: false } => samples::of_rows(clients, None, hash),
        _ => Ok(Loaded::of(clients, ClientData::Labelled, hash)),
    }
}

/// Codes the targets of two classes as -1 and 1, and returns the class names in this order. `names`
/// are the classes that targets index, if the file names them.
pub(crate) fn class_names(rows: &mut Labelled, names: &[String]) -> Result<Vec<String>> {
    let found = two_classes(rows)?;
    Ok(found.map(|class| names.get(class as usize).cloned().unwrap_or(class.to_string())).into())
}

/// Codes targets by class as the layout needs them, and returns the class names; empty for numeric
/// targets.
fn find_classes(rows: &mut Labelled, names: &[String], layout: &Layout) -> Result<Vec<String>> {
    match layout {
        Layout::Targets { classes: true } => class_names(rows, names).at("model.kind"),
        Layout::Samples { classes: true } => samples::settle_classes(&mut rows.targets, names),
        _ => Ok(Vec::new()),
    }
}

/// Codes targets by declared classes; rows of other classes are refused by line.
pub(crate) fn number_declared(
    rows: &mut Labelled,
    file: &Dataset,
    column: &str,
    declared: &[String],
    layout: &Layout,
) -> Result<()> {
    let signs = matches!(layout, Layout::Targets { .. });
    if signs && declared.len() != 2 {
        let what = format!("the model has two classes, but `classes` lists {}", declared.len());
        return Err(Failure::config(what)).at("data.classes");
    }
    let names = file.class_names(column)?;
    let (mut listed, mut count) = (Vec::new(), 0);
    for (row, target) in rows.targets.iter_mut().enumerate() {
        let class = names.get(*target as usize).cloned().unwrap_or_else(|| target.to_string());
        match level_of(declared, &class) {
            Some(number) if signs => *target = 2.0 * number as f64 - 1.0,
            Some(number) => *target = number as f64,
            None => {
                count += 1;
                if listed.len() < LISTED_MAX {
                    let reason = format!("{class:?} is not a declared class");
                    let reasons = vec![(Some(column.to_owned()), reason)];
                    listed.push(BadRow { row: row + 1, line: file.line(row), reasons });
                }
            }
        }
    }
    if count == 0 {
        return Ok(());
    }
    let hint = Some(format!("the classes are {}", columns::quoted(declared)));
    Err(DataError::Rows { file: file.name().into(), listed, count, hint }.into())
}

/// The rows of one file.
struct Given<'a> {
    rows: Labelled,
    /// The columns that are not features, if the file names columns.
    table: Option<&'a Dataset>,
    /// Names of the classes; empty for numeric targets.
    classes: Vec<String>,
    partition: &'a Partition,
}

impl Given<'_> {
    fn share_out(mut self, layout: &Layout, scale: bool, hash: String, key: Key) -> Result<Loaded> {
        // Columns split the rows by values of the file; clusters are of standardised features.
        let clusters = matches!(self.partition, Partition::Clusters { .. });
        let early = (!clusters).then(|| split(self.partition, &self, key)).transpose()?;
        let found = scale.then(|| standardize(&mut self.rows)).transpose()?;
        let (clients, note) = match early {
            Some(done) => done,
            None => split(self.partition, &self, key)?,
        };
        let rows = labelled_clients(&self.rows, &clients)?;
        let loaded = match layout {
            Layout::Samples { classes: of_classes } => {
                samples::of_rows(rows, of_classes.then_some(self.classes.len()), hash)?
            }
            _ => Loaded::of(rows, ClientData::Labelled, hash),
        };
        let mut loaded = loaded.standardized(found);
        loaded.places = clients;
        loaded.notes.extend(note);
        loaded.classes = self.classes;
        Ok(loaded)
    }
}

impl Unsplit for Given<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn by_column(&self, column: &str) -> Result<Vec<ClientRows>> {
        Ok(match self.table {
            Some(table) => by_column(table, column)?,
            None => by_feature(&self.rows, column)?,
        })
    }

    fn classes(&self, column: Option<&str>, _: bool) -> Result<Classes> {
        Ok(match (column, self.table) {
            (Some(column), Some(table)) => Classes::of_column(table, column)?,
            _ => Classes::of_values(self.rows.targets.iter().copied())?,
        })
    }

    fn features(&self) -> Result<(Vec<f64>, usize)> {
        Ok((dense_rows(&self.rows)?, self.rows.width()))
    }
}
