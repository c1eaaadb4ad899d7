//! Rows without targets.

use super::mixed::leveled;
use super::split::{Unsplit, split};
use super::{Layout, Loaded, columns, held_out};
use crate::failure::{Failure, Result};
use crate::job::{Csv, Job, MixtureSource, Npy, Partition};
use std::sync::Arc;
use whimbrel_core::{ClientData, Key};
use whimbrel_data::{
    Classes, ClientRows, CsvOptions, Dataset, Features, Mixture, Sha256, by_client, by_column,
    hash_path, hash_tables, read_npy, standardize_table,
};

pub(super) fn from_csv(csv: &Csv, job: &Job, key: Key) -> Result<Loaded> {
    let (data, set_apart) = read(csv, job)?;
    let except: Vec<&str> = set_apart.iter().map(String::as_str).collect();
    let features = features(csv, &except);
    let hash = csv.path.hash()?;
    let standardize = job.data.standardize();
    let mut loaded = share_out(&data, &csv.partition, &features, standardize, hash, key)?;
    described(&mut loaded, &data, csv, job)?;
    Ok(loaded)
}

/// Notes the columns of a csv file, and sets rows apart by their roles.
pub(super) fn described(loaded: &mut Loaded, data: &Dataset, csv: &Csv, job: &Job) -> Result<()> {
    let role = job.data.held_out.role.as_deref();
    columns::say(loaded, data, csv, role);
    role.map_or(Ok(()), |role| held_out::by_role(loaded, data, role))
}

pub(super) fn from_npy(npy: &Npy, job: &Job, key: Key) -> Result<Loaded> {
    let data = read_npy(&npy.path)?;
    data.check_declared(&job.schema, job.clips())?;
    let hash = hash_path(&npy.path)?;
    let features = Features::All { except: &[] };
    let standardize = job.data.standardize();
    let mut loaded = share_out(&data, &npy.partition, &features, standardize, hash, key)?;
    columns::say_all(&mut loaded, &[]);
    Ok(loaded)
}

/// The file, and its columns of text that are not features: client, class and label.
pub(super) fn read(csv: &Csv, job: &Job) -> Result<(Arc<Dataset>, Vec<String>)> {
    let types = job.column_types();
    read_with(csv, job, &leveled(&types).collect::<Vec<_>>())
}

/// Reads the file with `more` columns of text, and checks it against the schema.
pub(super) fn read_with(
    csv: &Csv,
    job: &Job,
    more: &[&String],
) -> Result<(Arc<Dataset>, Vec<String>)> {
    let role = &job.data.held_out.role;
    let by = csv.partition.columns().into_iter();
    let text: Vec<String> = by.chain(&csv.label).chain(role).cloned().collect();
    let delimiter = csv.delimiter.map(|c| c as u8);
    let all: Vec<String> = text.iter().chain(more.iter().copied()).cloned().collect();
    let only = needed(csv, job, &all);
    let options = CsvOptions { delimiter, text: all, only, spelling: csv.spelling() };
    let data = csv.path.read(&options)?;
    data.check_declared(&job.schema, job.clips())?;
    Ok((data, text))
}

/// The columns that a job reads, those of `text` among them, if it lists its features.
pub(crate) fn needed(csv: &Csv, job: &Job, text: &[String]) -> Option<Vec<String>> {
    let features = csv.columns.as_ref()?;
    let response = match job.fit.layout() {
        Layout::Mixed { response: Some(response), .. } => response.columns,
        _ => Vec::new(),
    };
    let declared = job.schema.iter().map(|column| &column.name);
    let all = features.iter().chain(declared).chain(&csv.target).chain(&response).chain(text);
    Some(all.cloned().collect())
}

pub(crate) fn features<'a>(csv: &'a Csv, except: &'a [&'a str]) -> Features<'a> {
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
    let unsplit = TableRows { data, features: Some(features), standardize };
    let (places, note) = split(partition, &unsplit, key)?;
    let tables = match partition {
        Partition::Column(column) => by_client(data, column, features)?,
        _ => data.tables(&data.features(features)?, &places)?,
    };
    let notes = note.into_iter().collect();
    Ok(Loaded { places, notes, ..Loaded::of(tables, ClientData::Table, hash) })
}

/// Rows of a table; without `features` they are mixed.
pub(super) struct TableRows<'a> {
    pub data: &'a Dataset,
    pub features: Option<&'a Features<'a>>,
    pub standardize: bool,
}

impl Unsplit for TableRows<'_> {
    fn rows(&self) -> usize {
        self.data.rows()
    }

    fn by_column(&self, column: &str) -> Result<Vec<ClientRows>> {
        Ok(by_column(self.data, column)?)
    }

    fn classes(&self, column: Option<&str>, _: bool) -> Result<Classes> {
        Ok(Classes::of_column(self.data, column.unwrap_or_default())?)
    }

    fn features(&self) -> Result<(Vec<f64>, usize)> {
        let Some(features) = self.features else {
            return Err(Failure::config("clusters need numeric columns, and this table is mixed"));
        };
        let mut table = self.data.table(&self.data.features(features)?)?;
        // A stage of the fit standardises the rows themselves.
        if self.standardize {
            standardize_table(&mut table)?;
        }
        Ok((table.values, table.columns.len()))
    }
}

pub(super) fn from_mixture(table: &MixtureSource, key: Key) -> Result<Loaded> {
    let tables = Arc::new(Mixture::new(table.spec.clone(), key)?).tables()?;
    let hash = hash_tables(&tables);
    Ok(Loaded::of(tables, ClientData::Table, hash))
}

pub(super) fn streams(table: &MixtureSource, key: Key) -> Result<Loaded> {
    let mixture = Arc::new(Mixture::new(table.spec.clone(), key)?);
    // The first rows identify the stream: they depend on its law and its key.
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
