//! From `[data]` to clients with their rows.

mod any_file;
mod cells;
mod collection;
mod columns;
mod held_out;
mod images;
mod labelled;
pub(crate) mod mixed;
mod samples;
mod subset;
mod tables;

pub use any_file::{FileKind, read_any, read_images};
pub use cells::{cell_options, kept_out};
pub(crate) use cells::{described, of_client, read_side};
pub(crate) use held_out::of_client as rows_of_client;
pub(crate) use labelled::{class_names, number_declared};
pub(crate) use samples::settle_classes;

use crate::failure::{AtKey, Failure, Result};
use crate::job::{DataSource as Source, Job, Partition};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use whimbrel_core::{ClientData, ClientId, Error, HeldOut, Key, Labelled, Samples, Table};
use whimbrel_data::{
    Attribute, Classes, ClientRows, Clustered, Clustering, Entries, LabelSplit, LogisticTruth,
    ReadHashes, RepresentationTruth, Sha256, Standardization, clusters, hash_path, read_embedding,
};

/// The name of the one client that holds everything.
const POOLED: &str = "pooled";

/// Splits and generators draw from streams of their own, apart from the run's.
const DATA_KEY: u64 = 0xDA7A;

/// How clients' rows are laid out for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Rows of numbers.
    Rows,
    /// Rows of numbers, each with a target.
    Targets {
        /// Whether the target is one of two classes.
        classes: bool,
    },
    /// Samples of a learner: `f32` or bytes, each with a target.
    Samples {
        /// Whether the target is one of any number of classes.
        classes: bool,
    },
    /// Rows of numbers, counts and levels, in which cells may be missing.
    Mixed,
    /// Cells of a table with gaps.
    Cells(Entries),
}

impl Layout {
    /// Whether targets are classes.
    pub fn has_classes(self) -> bool {
        matches!(self, Self::Targets { classes: true } | Self::Samples { classes: true })
    }
}

/// What is known of the law that generated data come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// The components and each client's weights, by id.
    pub law: LogisticTruth,
    /// The share of each client's test rows that its Bayes rule predicts, by id; none where it has no
    /// test rows.
    pub bayes_accuracy: Vec<Option<f64>>,
}

/// The clients of a job and what is known of their data.
#[derive(Clone, Default)]
pub struct Loaded {
    /// Names, sorted unless a journal gave them [numbers](Self::renumber), and what each holds.
    pub clients: Vec<(String, ClientData)>,
    /// Column names.
    pub columns: Vec<String>,
    /// How many clients are planned for, where it is not their number: a coordinator plans for those
    /// that it expects, whichever join it afterwards.
    pub expected: Option<usize>,
    /// Rows by client; none for a stream.
    pub rows: Vec<Option<u64>>,
    /// Which rows of the file each client got, until parts are set apart by a column.
    places: Vec<ClientRows>,
    /// SHA-256 of the file, or of what was generated.
    pub hash: String,
    /// SHA-256 of each file that the job names, beside the file.
    pub files: Vec<(String, String)>,
    /// What was done to the columns, so that it can be done to new rows.
    pub standardization: Option<Standardization>,
    /// The classes as the data have them, in the order of their numbers; of two that became -1 and 1
    /// the former first. Empty for targets that are numbers.
    pub classes: Vec<String>,
    /// The levels of each column of a mixed table; empty for others.
    pub levels: Vec<Vec<String>>,
    /// What describes the rows and columns of a table with gaps.
    pub attributes: Vec<Attribute>,
    /// Which clients are only evaluated, by id; empty where everyone trains.
    pub unseen: Vec<bool>,
    /// What generated data come from.
    pub truth: Option<Truth>,
    /// The representation that drawn clients share, and each one's predictor, by id.
    pub representation: Option<RepresentationTruth>,
    /// Test samples that were drawn beside the clients' own, until rows are set apart.
    drawn_tests: Vec<Samples>,
    /// What is worth saying about them.
    pub notes: Vec<String>,
    /// What should be looked at.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Rows of all clients; none for streams.
    pub fn total_rows(&self) -> Option<u64> {
        self.rows.iter().copied().sum()
    }

    /// The clients that train, with their ids.
    pub fn training(&self) -> impl Iterator<Item = (ClientId, &(String, ClientData))> {
        let trains = |i: usize| !self.unseen.get(i).copied().unwrap_or_default();
        let all = self.clients.iter().enumerate().filter(move |(i, _)| trains(*i));
        all.map(|(i, client)| (ClientId(i as u32), client))
    }

    /// The lengths of one input, of samples for learners.
    pub fn shape(&self) -> Option<&[usize]> {
        match self.clients.first() {
            Some((_, ClientData::Samples(samples))) => Some(&samples.shape),
            _ => None,
        }
    }

    /// The labels of a table's rows; empty where rows are examples.
    pub fn row_labels(&self) -> Vec<String> {
        match self.clients.first() {
            Some((_, ClientData::Cells(cells))) => cells.rows.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Makes them the clients of a run that is replayed: with the numbers that its journal gave these
    /// names, and a plan for those whom `[federation]` expects. Those who are only evaluated follow
    /// where the journal does not name them; whom else it does not name took no part and is left out.
    /// Returns the names of those.
    pub fn renumber(&mut self, names: &[String], job: &Job) -> Result<Vec<String>> {
        self.expected = job.federation.as_ref().map(|federation| federation.clients.count());
        let mut places: BTreeMap<&str, usize> =
            self.clients.iter().enumerate().map(|(i, (name, _))| (name.as_str(), i)).collect();
        let mut order = Vec::with_capacity(names.len());
        for name in names {
            let Some(place) = places.remove(name.as_str()) else {
                let what = format!("the journal has a client `{name}`, and the data do not");
                let error = Error::data(what)
                    .hint("a replay needs the rows of everyone who took part, under the same name");
                return Err(error.into());
            };
            order.push(place);
        }
        let is_unseen = |place: usize| self.unseen.get(place).copied().unwrap_or_default();
        order.extend(places.values().copied().filter(|place| is_unseen(*place)));
        let absent: Vec<String> = places
            .into_iter()
            .filter(|(_, place)| !is_unseen(*place))
            .map(|(name, _)| name.to_owned())
            .collect();
        reorder(&mut self.clients, &order);
        reorder(&mut self.rows, &order);
        reorder(&mut self.unseen, &order);
        if let Some(truth) = &mut self.truth {
            reorder(&mut truth.bayes_accuracy, &order);
            reorder(&mut truth.law.weights, &order);
        }
        Ok(absent)
    }

    /// Up to `count` rows spread evenly over all tables, for a picture; none for streams.
    pub fn preview(&self, count: usize) -> Option<Vec<Vec<f64>>> {
        let total = self.total_rows()? as usize;
        let step = total.div_ceil(count.max(1)).max(1);
        let tables = self.clients.iter().filter_map(|(_, data)| match data {
            ClientData::Table(table) => Some(table),
            _ => None,
        });
        let rows = tables.flat_map(|t| (0..t.rows()).map(move |i| t.row(i)));
        let rows: Vec<Vec<f64>> = rows.step_by(step).map(<[f64]>::to_vec).collect();
        (!rows.is_empty()).then_some(rows)
    }

    fn of_tables(tables: Vec<(String, Table)>, hash: String) -> Self {
        Self {
            columns: tables.first().map_or_else(Vec::new, |(_, t)| t.columns.to_vec()),
            rows: tables.iter().map(|(_, t)| Some(t.rows() as u64)).collect(),
            clients: tables.into_iter().map(|(n, t)| (n, ClientData::Table(t))).collect(),
            hash,
            ..Self::default()
        }
    }

    fn of_labelled(clients: Vec<(String, Labelled)>, hash: String) -> Self {
        Self {
            columns: clients.first().map_or_else(Vec::new, |(_, l)| l.columns.clone()),
            rows: clients.iter().map(|(_, l)| Some(l.len() as u64)).collect(),
            clients: clients.into_iter().map(|(n, l)| (n, ClientData::Labelled(l))).collect(),
            hash,
            ..Self::default()
        }
    }

    fn of_samples(clients: Vec<(String, Samples)>, columns: Vec<String>, hash: String) -> Self {
        Self {
            columns,
            rows: clients.iter().map(|(_, s)| Some(s.len() as u64)).collect(),
            clients: clients.into_iter().map(|(n, s)| (n, ClientData::Samples(s))).collect(),
            hash,
            ..Self::default()
        }
    }

    fn standardized(mut self, found: Option<Standardization>) -> Self {
        if let Some(n) = found.as_ref().map(|found| found.constant).filter(|n| *n > 0) {
            let columns = if n == 1 { "1 column is".into() } else { format!("{n} columns are") };
            self.notes.push(format!("{columns} constant, and zero once standardised"));
        }
        self.standardization = found;
        self
    }
}

/// The items at these different places; a list that has none of them stays empty.
fn reorder<T>(items: &mut Vec<T>, order: &[usize]) {
    let mut all: Vec<Option<T>> = std::mem::take(items).into_iter().map(Some).collect();
    items.extend(order.iter().filter_map(|place| all.get_mut(*place)?.take()));
}

/// The key of splits, generators and hold-outs.
fn data_key(seed: u64) -> Key {
    Key::root(seed).child(DATA_KEY)
}

/// Reads or draws the data of a job whose paths are resolved.
pub fn load(job: &Job) -> Result<Loaded> {
    load_as(job, job.fit.layout())
}

/// The same in another layout than the job's model takes.
pub fn load_as(job: &Job, layout: Layout) -> Result<Loaded> {
    // Files are hashed as they are read.
    let loaded = ReadHashes::default().during(|| read_or_draw(job, layout));
    loaded.map_err(|failure| failure.placed(job))
}

fn read_or_draw(job: &Job, layout: Layout) -> Result<Loaded> {
    let key = data_key(job.data.seed);
    let pooled = job.method.kind.pooled;
    if !pooled && job.data.partition() == Some(&Partition::Pooled) {
        let error = Error::config("nothing in [data] says who holds which row")
            .hint("`whimbrel serve` runs this job, or name a column with `client` to simulate it");
        return Err(error).at("data");
    }
    let role = job.data.held_out.role.as_deref();
    let mut loaded = match &job.data.source {
        Source::Csv(csv) if let Layout::Cells(entries) = layout => {
            cells::from_csv(job, csv, entries, key)?
        }
        Source::Csv(csv) if layout == Layout::Mixed => {
            mixed::from_csv(csv, job.fit.types(), role, key)?
        }
        Source::Csv(csv) if csv.target.is_some() => labelled::from_csv(csv, layout, role, key)?,
        Source::Csv(csv) => tables::from_csv(csv, job.data.standardize(), role, key)?,
        Source::Npy(npy) => tables::from_npy(npy, job.data.standardize(), key)?,
        Source::Libsvm(libsvm) => labelled::from_libsvm(libsvm, layout, key)?,
        Source::Idx(idx) => images::from_idx(idx, layout, job.data.standardize(), key)?,
        Source::Collection(collection) => collection::load(collection, &job.data, key)?,
        Source::Toy(toy) => labelled::from_toy(toy, layout, key)?,
        Source::SyntheticMixture(spec) => samples::from_synthetic(spec, key)?,
        Source::SyntheticRepresentation(spec) => samples::from_representation(spec, key)?,
        Source::Mixture(mixture) if mixture.stream => tables::streams(mixture, key)?,
        Source::Mixture(mixture) => tables::from_mixture(mixture, key)?,
    };
    loaded.places = Vec::new();
    samples::reshape(&mut loaded, job.data.shape.as_deref())?;
    let speeches = matches!(&job.data.source, Source::Collection(files) if files.is_cut());
    let mut subset = job.data.subset;
    if speeches {
        // Speakers were chosen and their parts cut where the windows were.
        subset.clients = None;
    }
    subset::take(&mut loaded, &subset, key)?;
    if job.data.held_out.is_something() && !speeches {
        held_out::set_apart(&mut loaded, &job.data.held_out, key)?;
    }
    samples::settle_tests(&mut loaded);
    held_out::count(&mut loaded);
    held_out::draw_unseen(&mut loaded, job.data.unseen, key);
    samples::leave_out_empty(&mut loaded);
    loaded = samples::laid_out(loaded, layout)?;
    if pooled {
        loaded = pool(loaded)?;
    }
    for path in job.clone().paths_mut() {
        loaded.files.push((path.display().to_string(), hash_path(path as &Path)?));
    }
    Ok(loaded)
}

/// All rows with one client, in the clients' order.
fn pool(loaded: Loaded) -> Result<Loaded> {
    let Loaded { clients, columns, hash, standardization, levels, notes, warnings, .. } = loaded;
    let (mut values, mut held_out) = (Vec::new(), HeldOut::default());
    for (_, data) in clients {
        match data {
            ClientData::Table(table) => {
                values.extend(table.values);
                held_out.asked |= table.held_out.asked;
                append(&mut held_out.validation, table.held_out.validation);
                append(&mut held_out.test, table.held_out.test);
            }
            ClientData::Stream(_)
            | ClientData::Labelled(_)
            | ClientData::Samples(_)
            | ClientData::Cells(_) => {
                return Err(Failure::config("only tables can be pooled"));
            }
        }
    }
    let table = Table { held_out, ..Table::new(columns, values)? };
    let pooled = Loaded::of_tables(vec![(POOLED.into(), table)], hash);
    Ok(Loaded { standardization, levels, notes, warnings, ..pooled })
}

/// Adds rows to others.
fn append(to: &mut Option<Box<Table>>, rows: Option<Box<Table>>) {
    match (to.as_mut(), rows) {
        (Some(to), Some(rows)) => to.values.extend(rows.values),
        (None, rows) => *to = rows,
        (Some(_), None) => {}
    }
}

/// Everything with one client.
fn everyone(rows: usize) -> Vec<ClientRows> {
    vec![ClientRows { name: POOLED.into(), rows: (0..rows).collect() }]
}

/// Clients by classes: `classes` has those of a column, or of the targets, or the coarse ones.
fn by_label(
    partition: &Partition,
    classes: impl Fn(Option<&str>, bool) -> Result<Classes>,
    key: Key,
) -> Result<Option<Vec<ClientRows>>> {
    let Partition::Labels { clients, split, column, coarse } = partition else { return Ok(None) };
    let coarse = match split {
        LabelSplit::Pachinko { .. } => Some(classes(coarse.as_deref(), true)?),
        _ => None,
    };
    let classes = classes(column.as_deref(), false)?;
    Ok(Some(split.deal(classes, coarse.as_ref(), *clients, key).at("data.split")?))
}

/// Clients as clusters of points, of an embedding or else of the features (`width` numbers each).
fn clustered(
    partition: &Partition,
    features: impl FnOnce() -> Result<(Vec<f64>, usize)>,
    rows: usize,
    key: Key,
) -> Result<Option<(Vec<ClientRows>, String)>> {
    let Partition::Clusters { clients, embedding, using } = partition else { return Ok(None) };
    let (points, width) = match embedding {
        Some(path) => read_embedding(path, rows)?,
        None => features()?,
    };
    let clustering = Clustering { rule: *using, ..Clustering::default() };
    let Clustered { clients, found, moves } =
        clusters(&points, width, *clients, &clustering, key).at("data.split")?;
    let extremes = |sizes: &mut dyn Iterator<Item = usize>| {
        sizes.fold((usize::MAX, 0), |(low, high), n| (low.min(n), high.max(n)))
    };
    let (low, high) = extremes(&mut found.iter().copied());
    let (least, most) = extremes(&mut clients.iter().map(|c| c.rows.len()));
    let note = format!(
        "clusters of {low} to {high} rows; after {moves} moves of half a cluster clients hold \
         {least} to {most}"
    );
    Ok(Some((clients, note)))
}

/// The hash of a file, or of the hashes of several.
fn hash_all<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Result<String> {
    let hashes: Vec<String> =
        paths.into_iter().map(hash_path).collect::<std::result::Result<_, _>>()?;
    if let [only] = &hashes[..] {
        return Ok(only.clone());
    }
    let mut all = Sha256::new();
    hashes.iter().for_each(|hash| all.update(hash.as_bytes()));
    Ok(all.hex())
}
