//! Images, a row each.

use super::{Layout, Loaded, by_label, clustered, collection, columns, everyone, hash_all};
use crate::failure::{Failure, Result};
use crate::job::data::idx::{LABEL, WRITER};
use crate::job::{Idx, Partition};
use whimbrel_core::{Key, Samples, Table, Targets};
use whimbrel_data::{
    Classes, ClientRows, CsvOptions, Dataset, Images, by_column, by_number, class_numbers,
    iid_rows, read_csv, read_idx_images, read_idx_numbers, standardize_table,
};

/// Where QMNIST's table has the writer.
const WRITER_COLUMN: usize = 2;

pub(super) fn from_idx(idx: &Idx, layout: Layout, standardize: bool, key: Key) -> Result<Loaded> {
    let mut images = read_idx_images(&idx.path)?;
    if idx.transpose {
        images.transpose()?;
    }
    let rows = images.rows();
    let beside = Beside::read(idx, rows)?;
    let (clients, note) = match &idx.partition {
        Partition::Pooled => (everyone(rows), None),
        Partition::Iid { clients } | Partition::Rows { clients } => {
            (iid_rows(rows, *clients, key)?, None)
        }
        Partition::Column(column) => (beside.clients(column)?, None),
        Partition::Labels { .. } => {
            let classes = |column: Option<&str>, _| beside.classes(column.unwrap_or(LABEL));
            (by_label(&idx.partition, classes, key)?.unwrap_or_default(), None)
        }
        Partition::Natural => return Err(Failure::config("the images have no writers")),
        Partition::Clusters { .. } => {
            let points = || {
                let mut table = images.table(0..rows, idx.scale)?;
                if standardize {
                    standardize_table(&mut table)?;
                }
                Ok((table.values, table.columns.len()))
            };
            let split = clustered(&idx.partition, points, rows, key)?;
            split.map_or_else(Default::default, |(clients, note)| (clients, Some(note)))
        }
    };
    if matches!(layout, Layout::Samples { .. }) {
        let loaded = samples(&images, &beside, clients, hash(idx)?)?;
        let mut loaded = Loaded { notes: note.into_iter().collect(), ..loaded };
        columns::say_all(&mut loaded, &["the labels (the target)"]);
        columns::say_classes(&mut loaded);
        return Ok(loaded);
    }
    let table = |client: ClientRows| -> Result<(String, Table)> {
        Ok((client.name, images.table(client.rows.into_iter(), idx.scale)?))
    };
    let tables = clients.into_iter().map(table).collect::<Result<_>>()?;
    let mut loaded = Loaded::of_tables(tables, hash(idx)?);
    loaded.notes.extend(note);
    let labels = match &idx.partition {
        Partition::Labels { .. } => "the labels (split the rows)",
        _ => "the labels (the model has no targets)",
    };
    columns::say_all(&mut loaded, idx.labels.is_some().then_some(labels).as_slice());
    Ok(loaded)
}

/// Bytes with the numbers of their labels.
fn samples(
    images: &Images,
    beside: &Beside<'_>,
    clients: Vec<ClientRows>,
    hash: String,
) -> Result<Loaded> {
    let (labels, classes) = beside.labels()?;
    let client = |client: ClientRows| -> Result<(String, Samples)> {
        let of = client.rows.iter().map(|row| labels[*row]).collect();
        let targets = Targets::Classes { of, count: classes.len() };
        Ok((client.name, images.samples(&client.rows, targets)?))
    };
    let clients = clients.into_iter().map(client).collect::<Result<_>>()?;
    Ok(Loaded { classes, ..collection::of_clients(clients, hash) })
}

/// What is known of the images beside their pixels.
struct Beside<'a> {
    idx: &'a Idx,
    rows: usize,
    table: Option<Dataset>,
}

impl<'a> Beside<'a> {
    fn read(idx: &'a Idx, rows: usize) -> Result<Self> {
        let Some(path) = &idx.table else { return Ok(Self { idx, rows, table: None }) };
        let table = read_csv(path, &CsvOptions::default())?;
        if table.rows() != rows {
            let what = format!("{} has {} lines for {rows} images", path.display(), table.rows());
            return Err(Failure::config(what));
        }
        Ok(Self { idx, rows, table: Some(table) })
    }

    /// The table, where a column is to be looked up in it.
    fn table(&self, column: &str) -> Option<&Dataset> {
        let elsewhere = (column == WRITER && self.idx.writers.is_some())
            || (column == LABEL && self.idx.labels.is_some());
        self.table.as_ref().filter(|_| !elsewhere)
    }

    fn clients(&self, column: &str) -> Result<Vec<ClientRows>> {
        match self.table(column) {
            Some(table) => Ok(by_column(table, column)?),
            None => Ok(by_number(&self.numbers(column)?, column)),
        }
    }

    fn classes(&self, column: &str) -> Result<Classes> {
        match self.table(column) {
            Some(table) => Ok(Classes::of_column(table, column)?),
            None => Ok(Classes::of_values(self.numbers(column)?.into_iter().map(f64::from))?),
        }
    }

    /// The number of each image's class, and the names of the classes.
    fn labels(&self) -> Result<(Vec<u16>, Vec<String>)> {
        if let (Some(label), Some(table)) = (&self.idx.label, &self.table) {
            return Ok(class_numbers(table, label)?);
        }
        let mut labels: Vec<f64> = self.numbers(LABEL)?.into_iter().map(f64::from).collect();
        let classes = super::settle_classes(&mut labels, &[])?;
        Ok((labels.into_iter().map(|label| label as u16).collect(), classes))
    }

    /// The label or the writer of each image.
    fn numbers(&self, column: &str) -> Result<Vec<i32>> {
        let (path, at) = match column {
            WRITER => (&self.idx.writers, WRITER_COLUMN),
            _ => (&self.idx.labels, 0),
        };
        let path = path.as_ref();
        let path = path.ok_or_else(|| Failure::config(format!("images have no `{column}`")))?;
        Ok(read_idx_numbers(path, self.rows, at)?)
    }
}

/// Of the images, or of all files that say what is fitted.
fn hash(idx: &Idx) -> Result<String> {
    let beside = [&idx.labels, &idx.writers, &idx.table].into_iter().flatten();
    hash_all(std::iter::once(&idx.path).chain(beside))
}
