//! From `[data]` to clients with their rows.

use crate::failure::{Failure, Result};
use crate::spec::{
    Csv, DataSource as Source, Heterogeneity, Job, MethodKind, Mixture as MixtureTable, Npy,
    Partition,
};
use std::path::Path;
use std::sync::Arc;
use whimbrel_core::{ClientData, Key, Table};
use whimbrel_data::{
    ClientRows, Covariance, CsvOptions, Dataset, Features, Heterogeneity as Spread, Mixture,
    MixtureSpec, Sha256, Sizes, by_client, dirichlet, hash_file, hash_tables, iid, read_csv,
    read_npy,
};

/// The name of the one client that holds everything.
const POOLED: &str = "pooled";

/// Splits and generators draw from streams of their own, apart from the run's.
const DATA_KEY: u64 = 0xDA7A;

/// The clients of a job and what is known of their data.
#[derive(Clone)]
pub struct Loaded {
    /// Names, sorted, and what each holds.
    pub clients: Vec<(String, ClientData)>,
    /// Column names.
    pub columns: Vec<String>,
    /// Rows by client; none for a stream.
    pub rows: Vec<Option<u64>>,
    /// SHA-256 of the file, or of what was generated.
    pub hash: String,
}

impl Loaded {
    /// Rows of all clients; none for streams.
    pub fn total_rows(&self) -> Option<u64> {
        self.rows.iter().copied().sum()
    }

    /// Up to `count` rows spread evenly over all tables, for a picture; none for streams.
    pub fn preview(&self, count: usize) -> Option<Vec<Vec<f64>>> {
        let total = self.total_rows()? as usize;
        let step = total.div_ceil(count.max(1)).max(1);
        let tables = self.clients.iter().filter_map(|(_, data)| match data {
            ClientData::Table(table) => Some(table),
            ClientData::Stream(_) | ClientData::Labelled(_) => None,
        });
        let rows = tables.flat_map(|t| (0..t.rows()).map(move |i| t.row(i).to_vec()));
        Some(rows.step_by(step).collect())
    }
}

/// Reads or draws the data of a job whose paths are resolved.
pub fn load(job: &Job) -> Result<Loaded> {
    let key = Key::root(job.data.seed).fold(DATA_KEY);
    let pooled = job.method.kind == MethodKind::Em;
    let loaded = match &job.data.source {
        Source::Csv(csv) => from_csv(csv, key)?,
        Source::Npy(npy) => from_npy(npy, key)?,
        Source::Mixture(mixture) if mixture.stream => streams(mixture, key, pooled)?,
        Source::Mixture(mixture) => {
            let tables = generator(mixture, key)?.tables()?;
            let hash = hash_tables(&tables);
            from_tables(tables, hash)
        }
    };
    if pooled { pool(loaded) } else { Ok(loaded) }
}

fn from_csv(csv: &Csv, key: Key) -> Result<Loaded> {
    let by = match &csv.partition {
        Partition::Column(column) | Partition::Dirichlet { column, .. } => Some(column.clone()),
        Partition::Pooled | Partition::Iid { .. } => None,
    };
    let text: Vec<String> = by.iter().chain(&csv.label).cloned().collect();
    let delimiter = csv.delimiter.map(|c| c as u8);
    let options = CsvOptions { delimiter, text: text.clone(), ..CsvOptions::default() };
    let data = read_csv(&csv.path, &options)?;
    let except: Vec<&str> = text.iter().map(String::as_str).collect();
    let features = match &csv.columns {
        Some(columns) => Features::Listed(columns),
        None => Features::All { except: &except },
    };
    let tables = split(&data, &csv.partition, &features, key)?;
    Ok(from_tables(tables, hash_file(&csv.path)?))
}

fn from_npy(npy: &Npy, key: Key) -> Result<Loaded> {
    let data = read_npy(&npy.path)?;
    let tables = split(&data, &npy.partition, &Features::All { except: &[] }, key)?;
    Ok(from_tables(tables, hash_file(&npy.path)?))
}

fn split(
    data: &Dataset,
    partition: &Partition,
    features: &Features<'_>,
    key: Key,
) -> Result<Vec<(String, Table)>> {
    let clients = match partition {
        Partition::Column(column) => return Ok(by_client(data, column, features)?),
        Partition::Pooled => {
            vec![ClientRows { name: POOLED.into(), rows: (0..data.rows()).collect() }]
        }
        Partition::Iid { clients } => iid(data, *clients, key)?,
        Partition::Dirichlet { clients, alpha, column } => {
            dirichlet(data, column, *clients, *alpha, key)?
        }
    };
    Ok(data.tables(&data.features(features)?, &clients)?)
}

fn generator(table: &MixtureTable, key: Key) -> Result<Arc<Mixture>> {
    let covariance = match &table.covariances[..] {
        [one] => Covariance::Shared(one.clone()),
        many => Covariance::PerComponent(many.to_vec()),
    };
    let spec = MixtureSpec {
        clients: table.clients,
        rows: Sizes::Equal(table.rows),
        weights: table.weights.clone(),
        means: table.means.clone(),
        covariance,
        heterogeneity: match &table.heterogeneity {
            Heterogeneity::Identical => Spread::Identical,
            Heterogeneity::OneComponent => Spread::OneComponent,
            Heterogeneity::Dirichlet(concentration) => Spread::Dirichlet(concentration.clone()),
        },
    };
    Ok(Arc::new(Mixture::new(spec, key)?))
}

fn streams(table: &MixtureTable, key: Key, pooled: bool) -> Result<Loaded> {
    if pooled {
        let error = whimbrel_core::Error::config("em pools fixed tables, and a stream has no end")
            .hint("set stream = false in [data], or use kind = \"fedem\"");
        return Err(error.into());
    }
    let mixture = generator(table, key)?;
    // The first rows stand for the stream: they name its law and its key.
    let heads = mixture.tables()?;
    let mut hash = Sha256::new();
    hash.update(b"stream");
    hash.update(hash_tables(&heads).as_bytes());
    let columns = heads.first().map_or_else(Vec::new, |(_, t)| t.columns.clone());
    let clients: Vec<(String, ClientData)> = heads
        .into_iter()
        .enumerate()
        .map(|(i, (name, _))| (name, ClientData::Stream(Arc::new(mixture.stream(i)))))
        .collect();
    Ok(Loaded { rows: vec![None; clients.len()], clients, columns, hash: hash.hex() })
}

fn from_tables(tables: Vec<(String, Table)>, hash: String) -> Loaded {
    Loaded {
        columns: tables.first().map_or_else(Vec::new, |(_, t)| t.columns.clone()),
        rows: tables.iter().map(|(_, t)| Some(t.rows() as u64)).collect(),
        clients: tables.into_iter().map(|(n, t)| (n, ClientData::Table(t))).collect(),
        hash,
    }
}

/// All rows with one client, in the clients' order.
fn pool(loaded: Loaded) -> Result<Loaded> {
    let mut values = Vec::new();
    for (_, data) in loaded.clients {
        match data {
            ClientData::Table(table) => values.extend(table.values),
            ClientData::Stream(_) | ClientData::Labelled(_) => {
                return Err(Failure::config("only tables can be pooled"));
            }
        }
    }
    let table = Table::new(loaded.columns, values)?;
    Ok(from_tables(vec![(POOLED.into(), table)], loaded.hash))
}

/// The SHA-256 of each file a job names, beside the file.
pub fn file_hashes(job: &Job) -> Result<Vec<(String, String)>> {
    let mut job = job.clone();
    let mut hashes = Vec::new();
    for path in job.paths_mut() {
        hashes.push((path.display().to_string(), hash_file(path as &Path)?));
    }
    Ok(hashes)
}
