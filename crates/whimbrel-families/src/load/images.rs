//! Images as rows.

use super::split::{Unsplit, split};
use super::{Layout, Loaded, collection, columns, hash_all};
use crate::failure::{Failure, Result};
use crate::job::data::idx::{LABEL, WRITER};
use crate::job::{Idx, Partition};
use whimbrel_core::{ClientData, Key, Samples, Table, Targets};
use whimbrel_data::{
    Classes, ClientRows, CsvOptions, Dataset, Images, by_column, by_number, class_numbers,
    read_csv, read_idx_images, read_idx_numbers, standardize_table,
};

/// The writer's column in QMNIST's table.
const WRITER_COLUMN: usize = 2;

pub(super) fn from_idx(idx: &Idx, layout: &Layout, standardize: bool, key: Key) -> Result<Loaded> {
    let mut images = read_idx_images(&idx.path)?;
    if idx.transpose {
        images.transpose()?;
    }
    let beside = Beside::read(idx, &images, standardize)?;
    let (clients, note) = split(&idx.partition, &beside, key)?;
    if matches!(layout, Layout::Samples { .. }) {
        let mut loaded = samples(&beside, clients, hash(idx)?)?;
        loaded.notes.extend(note);
        columns::say_all(&mut loaded, &["the labels (the target)"]);
        columns::say_classes(&mut loaded);
        return Ok(loaded);
    }
    let table = |client: ClientRows| -> Result<(String, Table)> {
        Ok((client.name, images.table(client.rows.into_iter(), idx.scale)?))
    };
    let tables = clients.into_iter().map(table).collect::<Result<_>>()?;
    let mut loaded = Loaded::of(tables, ClientData::Table, hash(idx)?);
    loaded.notes.extend(note);
    let labels = match &idx.partition {
        Partition::Labels { .. } => "the labels (split the rows)",
        _ => "the labels (the model has no targets)",
    };
    columns::say_all(&mut loaded, idx.labels.is_some().then_some(labels).as_slice());
    Ok(loaded)
}

/// Images as bytes, with class numbers as targets.
fn samples(beside: &Beside<'_>, clients: Vec<ClientRows>, hash: String) -> Result<Loaded> {
    let (labels, classes) = beside.labels()?;
    let client = |client: ClientRows| -> Result<(String, Samples)> {
        let of = client.rows.iter().map(|row| labels[*row]).collect();
        let targets = Targets::Classes { of, count: classes.len() };
        Ok((client.name, beside.images.samples(&client.rows, targets)?))
    };
    let clients = clients.into_iter().map(client).collect::<Result<_>>()?;
    Ok(Loaded { classes, ..collection::of_clients(clients, hash) })
}

/// Images with the files that describe them.
struct Beside<'a> {
    idx: &'a Idx,
    images: &'a Images,
    standardize: bool,
    table: Option<Dataset>,
}

impl Unsplit for Beside<'_> {
    fn rows(&self) -> usize {
        self.images.rows()
    }

    fn by_column(&self, column: &str) -> Result<Vec<ClientRows>> {
        match self.table(column) {
            Some(table) => Ok(by_column(table, column)?),
            None => Ok(by_number(&self.numbers(column)?, column)),
        }
    }

    fn classes(&self, column: Option<&str>, _: bool) -> Result<Classes> {
        let column = column.unwrap_or(LABEL);
        match self.table(column) {
            Some(table) => Ok(Classes::of_column(table, column)?),
            None => Ok(Classes::of_values(self.numbers(column)?.into_iter().map(f64::from))?),
        }
    }

    fn features(&self) -> Result<(Vec<f64>, usize)> {
        let mut table = self.images.table(0..self.rows(), self.idx.scale)?;
        if self.standardize {
            standardize_table(&mut table)?;
        }
        Ok((table.values, table.columns.len()))
    }
}

impl<'a> Beside<'a> {
    fn read(idx: &'a Idx, images: &'a Images, standardize: bool) -> Result<Self> {
        let mut table = None;
        if let Some(path) = &idx.table {
            let (read, rows) = (read_csv(path, &CsvOptions::default())?, images.rows());
            if read.rows() != rows {
                let what =
                    format!("{} has {} lines for {rows} images", path.display(), read.rows());
                return Err(Failure::config(what));
            }
            table = Some(read);
        }
        Ok(Self { idx, images, standardize, table })
    }

    /// The table, if it is the source of a column.
    fn table(&self, column: &str) -> Option<&Dataset> {
        let elsewhere = (column == WRITER && self.idx.writers.is_some())
            || (column == LABEL && self.idx.labels.is_some());
        self.table.as_ref().filter(|_| !elsewhere)
    }

    /// Class numbers of the images, and the names of the classes.
    fn labels(&self) -> Result<(Vec<u16>, Vec<String>)> {
        if let (Some(label), Some(table)) = (&self.idx.label, &self.table) {
            return Ok(class_numbers(table, label)?);
        }
        let mut labels: Vec<f64> = self.numbers(LABEL)?.into_iter().map(f64::from).collect();
        let classes = super::settle_classes(&mut labels, &[])?;
        Ok((labels.into_iter().map(|label| label as u16).collect(), classes))
    }

    /// Label or writer of each image.
    fn numbers(&self, column: &str) -> Result<Vec<i32>> {
        let (path, at) = match column {
            WRITER => (&self.idx.writers, WRITER_COLUMN),
            _ => (&self.idx.labels, 0),
        };
        let path = path.as_ref();
        let path = path.ok_or_else(|| Failure::config(format!("images have no `{column}`")))?;
        Ok(read_idx_numbers(path, self.images.rows(), at)?)
    }
}

/// The hash of the images and the files beside them.
fn hash(idx: &Idx) -> Result<String> {
    let beside = [&idx.labels, &idx.writers, &idx.table].into_iter().flatten();
    hash_all(std::iter::once(&idx.path).chain(beside))
}
