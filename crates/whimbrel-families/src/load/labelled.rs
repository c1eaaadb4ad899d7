//! Rows with targets.

use super::{Layout, Loaded, by_label, clustered, columns, everyone, held_out, samples, tables};
use crate::failure::{AtKey, Failure, Result};
use crate::job::{Csv, Libsvm, Partition};
use whimbrel_core::{Error, Key, Labelled};
use whimbrel_data::{
    BadRow, Classes, ClientRows, Dataset, Error as DataError, LISTED_MAX, LeastSquaresSpec,
    by_column, by_feature, dense_rows, hash_labelled, hash_path, iid_rows, labelled_clients,
    read_libsvm, standardize, two_classes,
};

pub(super) fn from_csv(csv: &Csv, layout: Layout, role: Option<&str>, key: Key) -> Result<Loaded> {
    let (data, set_apart) = tables::read(csv, role)?;
    let except: Vec<&str> = set_apart.iter().map(String::as_str).collect();
    let target = csv.target.as_deref().unwrap_or_default();
    let mut rows = data.labelled(target, &tables::features(csv, &except))?;
    let names = data.class_names(target)?;
    if csv.classes.is_some() && !layout.has_classes() {
        let error = Error::config("the model predicts numbers, and `classes` lists classes");
        return Err(error.hint("take it out, or use a model of classes")).at("data.classes");
    }
    if !names.is_empty() && !layout.has_classes() {
        let what =
            format!("column {target:?} holds text, which only a model of classes can predict");
        let error = Error::config(what).hint("two classes are predicted by kind = \"logistic\"");
        return Err(error).at("data.target");
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
    columns::say(&mut loaded, &data, csv, role);
    if csv.classes.is_none() {
        columns::say_classes(&mut loaded);
    }
    if let Some(role) = role {
        held_out::by_role(&mut loaded, &data, role)?;
    }
    Ok(loaded)
}

pub(super) fn from_libsvm(libsvm: &Libsvm, layout: Layout, key: Key) -> Result<Loaded> {
    let mut rows = read_libsvm(&libsvm.path, libsvm.columns)?;
    let classes = find_classes(&mut rows, &[], layout)?;
    let given = Given { rows, table: None, classes, partition: &libsvm.partition };
    let mut loaded = given.share_out(layout, libsvm.standardize, hash_path(&libsvm.path)?, key)?;
    columns::say_all(&mut loaded, &["the first number of a line (the target)"]);
    columns::say_classes(&mut loaded);
    Ok(loaded)
}

pub(super) fn from_toy(toy: &LeastSquaresSpec, layout: Layout, key: Key) -> Result<Loaded> {
    let clients = toy.draw(key)?.clients;
    let hash = hash_labelled(&clients);
    match layout {
        Layout::Samples { classes: true } => {
            let error = Error::config("the targets of the toy set are numbers, not classes");
            Err(error.hint("use kind = \"linear\", or source = \"synthetic-mixture\""))
                .at("model.kind")
        }
        Layout::Samples { classes: false } => samples::of_rows(clients, None, hash),
        _ => Ok(Loaded::of_labelled(clients, hash)),
    }
}

/// Makes the targets of two classes -1 and 1, and names the classes, the one that became -1 first;
/// `names` has those that targets count from 0, where the file names them.
pub(crate) fn class_names(rows: &mut Labelled, names: &[String]) -> Result<Vec<String>> {
    let found = two_classes(rows)?;
    Ok(found.map(|class| names.get(class as usize).cloned().unwrap_or(class.to_string())).into())
}

/// Makes targets the numbers of the classes that occur, or -1 and 1 where a model wants two, and names
/// the classes; none where targets are numbers.
fn find_classes(rows: &mut Labelled, names: &[String], layout: Layout) -> Result<Vec<String>> {
    match layout {
        Layout::Targets { classes: true } => class_names(rows, names).at("model.kind"),
        Layout::Samples { classes: true } => samples::settle_classes(&mut rows.targets, names),
        _ => Ok(Vec::new()),
    }
}

/// The same with classes that were declared: rows with another value are refused, by line.
pub(crate) fn number_declared(
    rows: &mut Labelled,
    file: &Dataset,
    column: &str,
    declared: &[String],
    layout: Layout,
) -> Result<()> {
    let signs = matches!(layout, Layout::Targets { .. });
    if signs && declared.len() != 2 {
        let what = format!("the model has two classes, and `classes` lists {}", declared.len());
        return Err(Failure::config(what)).at("data.classes");
    }
    let names = file.class_names(column)?;
    let (mut listed, mut count) = (Vec::new(), 0);
    for (row, target) in rows.targets.iter_mut().enumerate() {
        let class = names.get(*target as usize).cloned().unwrap_or_else(|| target.to_string());
        match declared.iter().position(|known| *known == class) {
            Some(number) if signs => *target = 2.0 * number as f64 - 1.0,
            Some(number) => *target = number as f64,
            None => {
                count += 1;
                if listed.len() < LISTED_MAX {
                    let reason = format!("{class:?} is none of the classes");
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

/// Rows of one file before they are shared out.
struct Given<'a> {
    rows: Labelled,
    /// The columns that are no features, where the file has names for them.
    table: Option<&'a Dataset>,
    /// The names of the classes; none where targets are numbers.
    classes: Vec<String>,
    partition: &'a Partition,
}

impl Given<'_> {
    fn share_out(mut self, layout: Layout, scale: bool, hash: String, key: Key) -> Result<Loaded> {
        // By single columns as they were read; clusters are of what is fitted.
        let by_column = self.by_column(key)?;
        let found = scale.then(|| standardize(&mut self.rows)).transpose()?;
        let (clients, note) = match by_column {
            Some(clients) => (clients, None),
            None => {
                let features = || Ok((dense_rows(&self.rows)?, self.rows.width()));
                let split = clustered(self.partition, features, self.rows.len(), key)?;
                let broken = || Failure::config("this split is not for rows with targets");
                let (clients, note) = split.ok_or_else(broken)?;
                (clients, Some(note))
            }
        };
        let rows = labelled_clients(&self.rows, &clients)?;
        let loaded = match layout {
            Layout::Samples { classes: of_classes } => {
                samples::of_rows(rows, of_classes.then_some(self.classes.len()), hash)?
            }
            _ => Loaded::of_labelled(rows, hash),
        };
        let mut loaded = loaded.standardized(found);
        loaded.places = clients;
        loaded.notes.extend(note);
        loaded.classes = self.classes;
        Ok(loaded)
    }

    /// The splits that look at one column or at none.
    fn by_column(&self, key: Key) -> Result<Option<Vec<ClientRows>>> {
        let rows = self.rows.len();
        Ok(Some(match (self.partition, self.table) {
            (Partition::Clusters { .. } | Partition::Rows { .. } | Partition::Natural, _) => {
                return Ok(None);
            }
            (Partition::Pooled, _) => everyone(rows),
            (Partition::Iid { clients }, _) => iid_rows(rows, *clients, key).at("data.split")?,
            (Partition::Column(column), Some(table)) => by_column(table, column)?,
            (Partition::Column(column), None) => by_feature(&self.rows, column)?,
            (Partition::Labels { .. }, table) => {
                let classes = |column: Option<&str>, _| match (column, table) {
                    (Some(column), Some(table)) => Ok(Classes::of_column(table, column)?),
                    _ => Ok(Classes::of_values(self.rows.targets.iter().copied())?),
                };
                return by_label(self.partition, classes, key);
            }
        }))
    }
}
