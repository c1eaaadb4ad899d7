//! Rows without targets.

use super::{Loaded, by_label, clustered, columns, everyone, held_out};
use crate::failure::{AtKey, Failure, Result};
use crate::job::{Csv, Mixture as MixtureTable, Npy, Partition};
use std::sync::Arc;
use whimbrel_core::{ClientData, Key};
use whimbrel_data::{
    Classes, ClientRows, CsvOptions, Dataset, Features, Mixture, Sha256, by_client, by_column,
    hash_path, hash_tables, iid, read_npy, standardize_table,
};

pub(super) fn from_csv(
    csv: &Csv,
    standardize: bool,
    role: Option<&str>,
    key: Key,
) -> Result<Loaded> {
    let (data, set_apart) = read(csv, role)?;
    let except: Vec<&str> = set_apart.iter().map(String::as_str).collect();
    let features = features(csv, &except);
    let hash = csv.path.hash()?;
    let mut loaded = share_out(&data, &csv.partition, &features, standardize, hash, key)?;
    columns::say(&mut loaded, &data, csv, role);
    if let Some(role) = role {
        held_out::by_role(&mut loaded, &data, role)?;
    }
    Ok(loaded)
}

pub(super) fn from_npy(npy: &Npy, standardize: bool, key: Key) -> Result<Loaded> {
    let data = read_npy(&npy.path)?;
    let hash = hash_path(&npy.path)?;
    let features = Features::All { except: &[] };
    let mut loaded = share_out(&data, &npy.partition, &features, standardize, hash, key)?;
    columns::say_all(&mut loaded, &[]);
    Ok(loaded)
}

/// The file, and the columns that are kept as text and are no features: client, class and label.
pub(super) fn read(csv: &Csv, role: Option<&str>) -> Result<(Dataset, Vec<String>)> {
    read_with(csv, role, &[])
}

/// The same with further columns of text.
pub(super) fn read_with(
    csv: &Csv,
    role: Option<&str>,
    more: &[&String],
) -> Result<(Dataset, Vec<String>)> {
    let role = role.map(String::from);
    let by = csv.partition.columns().into_iter();
    let text: Vec<String> = by.chain(&csv.label).chain(&role).cloned().collect();
    let delimiter = csv.delimiter.map(|c| c as u8);
    let all = text.iter().chain(more.iter().copied()).cloned().collect();
    let options = CsvOptions { delimiter, text: all };
    Ok((csv.path.read_csv(&options)?, text))
}

pub(super) fn features<'a>(csv: &'a Csv, except: &'a [&'a str]) -> Features<'a> {
    match &csv.columns {
        Some(columns) => Features::Listed(columns),
        None => Features::All { except },
    }
}

fn share_out(
    data: &Dataset,
    partition: &Partition,
    features: &Features<'_>,
    standardize: bool,
    hash: String,
    key: Key,
) -> Result<Loaded> {
    let clients = match partition {
        Partition::Column(column) => {
            let places = by_column(data, column)?;
            let tables = by_client(data, column, features)?;
            return Ok(Loaded { places, ..Loaded::of_tables(tables, hash) });
        }
        Partition::Pooled
        | Partition::Iid { .. }
        | Partition::Rows { .. }
        | Partition::Natural
        | Partition::Labels { .. } => places(data, partition, key)?,
        Partition::Clusters { .. } => {
            let points = || {
                let mut table = data.table(&data.features(features)?)?;
                // The rows themselves are standardised by a stage of the fit.
                if standardize {
                    standardize_table(&mut table)?;
                }
                Ok((table.values, table.columns.len()))
            };
            let (clients, note) =
                clustered(partition, points, data.rows(), key)?.unwrap_or_default();
            let tables = data.tables(&data.features(features)?, &clients)?;
            let loaded = Loaded::of_tables(tables, hash);
            return Ok(Loaded { notes: vec![note], places: clients, ..loaded });
        }
    };
    let tables = data.tables(&data.features(features)?, &clients)?;
    Ok(Loaded { places: clients, ..Loaded::of_tables(tables, hash) })
}

/// Which rows each client gets, where their values do not matter.
pub(super) fn places(data: &Dataset, partition: &Partition, key: Key) -> Result<Vec<ClientRows>> {
    Ok(match partition {
        Partition::Column(column) => by_column(data, column)?,
        Partition::Pooled => everyone(data.rows()),
        Partition::Iid { clients } | Partition::Rows { clients } => {
            iid(data, *clients, key).at("data.split")?
        }
        Partition::Natural => return Err(Failure::config("the file names no clients")),
        Partition::Labels { .. } => {
            let classes =
                |column: Option<&str>, _| Ok(Classes::of_column(data, column.unwrap_or_default())?);
            by_label(partition, classes, key)?.unwrap_or_default()
        }
        Partition::Clusters { .. } => {
            return Err(Failure::config("clusters are made of numbers, and this table is mixed"));
        }
    })
}

pub(super) fn from_mixture(table: &MixtureTable, key: Key) -> Result<Loaded> {
    let tables = Arc::new(Mixture::new(table.spec.clone(), key)?).tables()?;
    let hash = hash_tables(&tables);
    Ok(Loaded::of_tables(tables, hash))
}

pub(super) fn streams(table: &MixtureTable, key: Key) -> Result<Loaded> {
    let mixture = Arc::new(Mixture::new(table.spec.clone(), key)?);
    // The first rows stand for the stream: they name its law and its key.
    let heads = mixture.tables()?;
    let mut hash = Sha256::new();
    hash.update(b"stream");
    hash.update(hash_tables(&heads).as_bytes());
    let columns = heads.first().map_or_else(Vec::new, |(_, t)| t.columns.to_vec());
    let clients: Vec<(String, ClientData)> = heads
        .into_iter()
        .enumerate()
        .map(|(i, (name, _))| (name, ClientData::Stream(Arc::new(mixture.stream(i)))))
        .collect();
    let rows = vec![None; clients.len()];
    Ok(Loaded { rows, clients, columns, hash: hash.hex(), ..Loaded::default() })
}
