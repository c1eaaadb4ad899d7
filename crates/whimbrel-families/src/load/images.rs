//! Images, a row each.

use super::{FileHashes, Layout, Loaded, clustered, everyone, settle_classes};
use crate::failure::{Failure, Result};
use crate::job::{Idx, Partition};
use std::path::Path;
use whimbrel_core::{Key, Samples, Table, Targets};
use whimbrel_data::{
    ClientRows, Images, Sha256, by_number, dirichlet_rows, iid_rows, read_idx_images,
    read_idx_numbers, standardize_table,
};

/// Where QMNIST's table has the writer.
const WRITER_COLUMN: usize = 2;

pub(super) fn from_idx(
    idx: &Idx,
    layout: Layout,
    standardize: bool,
    files: &FileHashes,
    key: Key,
) -> Result<Loaded> {
    let images = read_idx_images(&idx.path)?;
    let rows = images.rows();
    let (clients, note) = match &idx.partition {
        Partition::Pooled => (everyone(rows), None),
        Partition::Iid { clients } | Partition::Rows { clients } => {
            (iid_rows(rows, *clients, key)?, None)
        }
        Partition::Column(column) => (by_number(&numbers(idx, column, rows)?, column), None),
        Partition::Dirichlet { clients, alpha, column } => {
            let column = column.as_deref().unwrap_or_default();
            let classes: Vec<f64> =
                numbers(idx, column, rows)?.into_iter().map(f64::from).collect();
            (dirichlet_rows(&classes, *clients, *alpha, key)?, None)
        }
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
        let loaded = samples(&images, idx, clients, hash(idx, files))?;
        return Ok(Loaded { notes: note.into_iter().collect(), ..loaded });
    }
    let table = |client: ClientRows| -> Result<(String, Table)> {
        Ok((client.name, images.table(client.rows.into_iter(), idx.scale)?))
    };
    let tables = clients.into_iter().map(table).collect::<Result<_>>()?;
    let loaded = Loaded::of_tables(tables, hash(idx, files));
    Ok(Loaded { notes: note.into_iter().collect(), ..loaded })
}

/// Bytes with the numbers of their labels.
fn samples(images: &Images, idx: &Idx, clients: Vec<ClientRows>, hash: String) -> Result<Loaded> {
    let labels = numbers(idx, crate::job::data::idx::LABEL, images.rows())?;
    let mut labels: Vec<f64> = labels.into_iter().map(f64::from).collect();
    let classes = settle_classes(&mut labels, &[])?;
    let client = |client: ClientRows| -> Result<(String, Samples)> {
        let of = client.rows.iter().map(|row| labels[*row] as u16).collect();
        let targets = Targets::Classes { of, count: classes.len() };
        Ok((client.name, images.samples(&client.rows, targets)?))
    };
    let clients = clients.into_iter().map(client).collect::<Result<_>>()?;
    let columns = (0..images.width()).map(|j| format!("p{j}")).collect();
    Ok(Loaded { classes, ..Loaded::of_samples(clients, columns, hash) })
}

/// The label or the writer of each image.
fn numbers(idx: &Idx, column: &str, rows: usize) -> Result<Vec<i32>> {
    let (path, at) = match column {
        crate::job::data::idx::WRITER => (&idx.writers, WRITER_COLUMN),
        _ => (&idx.labels, 0),
    };
    let path = path.as_ref();
    let path = path.ok_or_else(|| Failure::config(format!("images have no `{column}`")))?;
    Ok(read_idx_numbers(path, rows, at)?)
}

/// Of the images, or of all files that say what is fitted.
fn hash(idx: &Idx, files: &FileHashes) -> String {
    let beside: Vec<&Path> =
        [&idx.labels, &idx.writers].into_iter().filter_map(Option::as_deref).collect();
    let images = files.get(&idx.path);
    if beside.is_empty() {
        return images;
    }
    let mut all = Sha256::new();
    all.update(images.as_bytes());
    for path in beside {
        all.update(files.get(path).as_bytes());
    }
    all.hex()
}
