//! Reads `[data]` into clients with their rows.

mod any_file;
mod cells;
mod collection;
mod columns;
mod held_out;
mod images;
mod labelled;
pub(crate) mod mixed;
mod samples;
mod split;
mod subset;
pub(crate) mod tables;

pub use any_file::{FileKind, read_any, read_images};
pub use cells::{cell_options, kept_out};
pub(crate) use cells::{described, of_client, read_side};
pub(crate) use held_out::of_client as rows_of_client;
pub(crate) use labelled::{class_names, number_declared};
pub use mixed::Response;
pub(crate) use samples::settle_classes;

use crate::failure::{AtKey, Failure, Result};
use crate::family::refuse;
use crate::job::{Csv, DataSource as Source, Job, Partition};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use whimbrel_core::{ClientData, ClientId, Error, HeldOut, Key, Samples, Table};
use whimbrel_data::{
    Attribute, ClientRows, ColumnType, Described, Entries, FILL_CELLS, Input, LogisticTruth,
    ReadHashes, RepresentationTruth, Sha256, Standardization, hash_path,
};
use whimbrel_methods::guard::Withheld;

/// The name of the client that holds all pooled rows.
const POOLED: &str = "pooled";

/// Separates the random streams of splits and generators from the run's.
const DATA_KEY: u64 = 0xDA7A;

/// The form in which a model reads clients' rows.
#[derive(Clone, Debug, PartialEq)]
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
    /// Rows of numbers, counts and levels, with missing cells.
    Mixed {
        /// Types of columns by name; others hold numbers.
        types: Vec<(String, ColumnType)>,
        /// Columns of a regression beside its features; `None` without a target.
        response: Option<Response>,
    },
    /// Cells of a table with gaps.
    Cells {
        /// The kind of the values.
        entries: Entries,
        /// The columns of the file that describe rows and columns of the table.
        described: Described,
    },
}

impl Layout {
    /// Whether targets are classes.
    pub fn has_classes(&self) -> bool {
        matches!(self, Self::Targets { classes: true } | Self::Samples { classes: true })
    }
}

/// The true model of generated data.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// The components, and each client's weights by id.
    pub law: LogisticTruth,
    /// Accuracy of the Bayes rule on each client's test rows, by id.
    pub bayes_accuracy: Vec<Option<f64>>,
}

/// The clients of a job with their data.
#[derive(Clone, Default)]
pub struct Loaded {
    /// Names and data, sorted by name unless [renumbered](Self::renumber) by a journal.
    pub clients: Vec<(String, ClientData)>,
    pub columns: Vec<String>,
    /// Number of clients to plan for, if it differs from the number here: the replayed coordinator
    /// planned for the clients that it expected.
    pub expected: Option<usize>,
    /// Rows by client; `None` for a stream.
    pub rows: Vec<Option<u64>>,
    /// Each client's rows of the file, until a column separates test rows.
    places: Vec<ClientRows>,
    /// SHA-256 of the file or of the generated rows.
    pub hash: String,
    /// The files that the job names, with their SHA-256.
    pub files: Vec<(String, String)>,
    /// The standardisation of the columns, to be applied to new rows.
    pub standardization: Option<Standardization>,
    /// Classes of the target by number; the first of two is coded as -1. Empty without classes.
    pub classes: Vec<String>,
    /// Levels of each column of a mixed table; empty for other data.
    pub levels: Vec<Vec<String>>,
    /// Descriptions of the rows and columns of a table with gaps.
    pub attributes: Vec<Attribute>,
    /// Flags of clients that are only evaluated, by id; empty if all train.
    pub unseen: Vec<bool>,
    /// The true model of a generated mixture.
    pub truth: Option<Truth>,
    /// The true representation of generated clients, and their predictors by id.
    pub representation: Option<RepresentationTruth>,
    /// Generated test samples, until rows are held out.
    drawn_tests: Vec<Samples>,
    /// Cells and rows that the rule of the smallest group withholds.
    pub withheld: Withheld,
    pub notes: Vec<String>,
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Rows of all clients; `None` for streams.
    pub fn total_rows(&self) -> Option<u64> {
        self.rows.iter().copied().sum()
    }

    /// The clients that train, with their ids.
    pub fn training(&self) -> impl Iterator<Item = (ClientId, &(String, ClientData))> {
        let trains = |i: usize| !self.unseen.get(i).copied().unwrap_or_default();
        let all = self.clients.iter().enumerate().filter(move |(i, _)| trains(*i));
        all.map(|(i, client)| (ClientId(i as u32), client))
    }

    /// The shape of one input of a learner.
    pub fn shape(&self) -> Option<&[usize]> {
        match self.clients.first() {
            Some((_, ClientData::Samples(samples))) => Some(&samples.shape),
            _ => None,
        }
    }

    /// Row labels of a table with gaps; empty for other data.
    pub fn row_labels(&self) -> Vec<String> {
        match self.clients.first() {
            Some((_, ClientData::Cells(cells))) => cells.rows.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Renumbers the clients for a replay, in the order of the journal's `names`. Clients that are
    /// only evaluated follow; other clients absent from the journal are dropped, and their names
    /// returned.
    pub fn renumber(&mut self, names: &[String], job: &Job) -> Result<Vec<String>> {
        self.expected = job.federation.as_ref().map(|federation| federation.clients.count());
        let mut places: BTreeMap<&str, usize> =
            self.clients.iter().enumerate().map(|(i, (name, _))| (name.as_str(), i)).collect();
        let mut order = Vec::with_capacity(names.len());
        for name in names {
            let Some(place) = places.remove(name.as_str()) else {
                let what = format!("the journal names client `{name}`, which the data do not have");
                let hint = "a replay needs the rows of all participants, under the same names";
                return Err(Error::data(what).hint(hint).into());
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

    /// Up to `count` rows spread evenly over all tables, for a plot; `None` for streams.
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

    /// Applies the rule of the smallest group to the rows of the clients that train.
    fn withhold(&mut self, job: &Job) -> Result<()> {
        let Some(group) = job.privacy.groups() else { return Ok(()) };
        let unseen = self.unseen.iter().copied().chain(std::iter::repeat(false));
        for ((name, data), unseen) in self.clients.iter_mut().zip(unseen) {
            if !unseen {
                let withheld = job.fit.withhold(job, data, (&self.columns, &self.levels));
                let within = |failure| match failure {
                    Failure::Core(error) => Failure::Core(error.within(format!("client `{name}`"))),
                    other => other,
                };
                self.withheld = self.withheld.plus(withheld.map_err(within)?);
            }
        }
        self.notes.extend(self.withheld.sentence(group));
        Ok(())
    }

    /// Clients with rows of one kind; samples have no column names of their own.
    fn of<T>(clients: Vec<(String, T)>, kind: fn(T) -> ClientData, hash: String) -> Self {
        let wrapped = clients.into_iter().map(|(name, rows)| (name, kind(rows)));
        let clients: Vec<(String, ClientData)> = wrapped.collect();
        let columns = match clients.first() {
            Some((_, ClientData::Table(table))) => table.columns.to_vec(),
            Some((_, ClientData::Labelled(rows))) => rows.columns.clone(),
            _ => Vec::new(),
        };
        let rows = clients.iter().map(|(_, data)| Some(data.rows() as u64)).collect();
        Self { clients, columns, rows, hash, ..Self::default() }
    }

    fn standardized(mut self, found: Option<Standardization>) -> Self {
        if let Some(n) = found.as_ref().map(|found| found.constant).filter(|n| *n > 0) {
            let columns = if n == 1 { "1 column is".into() } else { format!("{n} columns are") };
            self.notes.push(format!("{columns} constant, and 0 after standardisation"));
        }
        self.standardization = found;
        self
    }
}

/// Reorders by distinct indices; an empty list stays empty.
fn reorder<T>(items: &mut Vec<T>, order: &[usize]) {
    let mut all: Vec<Option<T>> = std::mem::take(items).into_iter().map(Some).collect();
    items.extend(order.iter().filter_map(|place| all.get_mut(*place)?.take()));
}

/// The random key of splits, generators and hold-outs.
fn data_key(seed: u64) -> Key {
    Key::root(seed).child(DATA_KEY)
}

/// Reads or generates the data of a job with resolved paths.
pub fn load(job: &Job) -> Result<Loaded> {
    load_as(job, job.fit.layout())
}

/// Reads or generates the data in a layout other than that of the job's model.
pub fn load_as(job: &Job, layout: Layout) -> Result<Loaded> {
    // Files are hashed while they are read.
    let loaded = ReadHashes::default().during(|| read_or_draw(job, &layout));
    loaded.map_err(|failure| failure.placed(job).map_hint(with_models_of_gaps))
}

/// Adds the models that read gaps to the remedy for missing cells.
fn with_models_of_gaps(hint: String) -> String {
    if hint != FILL_CELLS {
        return hint;
    }
    hint + "; in [model], \"mixture\" reads rows with gaps, and \"glm\" leaves them out"
}

fn read_or_draw(job: &Job, layout: &Layout) -> Result<Loaded> {
    let key = data_key(job.data.seed);
    let pooled = job.method.kind.pooled;
    if !pooled && job.data.partition() == Some(&Partition::Pooled) {
        return refuse(
            "[data] does not tell which client holds a row",
            "`whimbrel serve` runs this job; to simulate it, name a column with `client`",
        )
        .at("data");
    }
    let mut loaded = match &job.data.source {
        Source::Csv(csv) if let Layout::Cells { entries, described } = layout => {
            cells::from_csv(csv, *entries, described, key)?
        }
        Source::Csv(csv) if let Layout::Mixed { types, response } = layout => {
            mixed::from_csv(csv, job, types, response.as_ref(), key)?
        }
        Source::Csv(csv) if csv.target.is_some() => labelled::from_csv(csv, job, layout, key)?,
        Source::Csv(csv) => tables::from_csv(csv, job, key)?,
        Source::Npy(npy) => tables::from_npy(npy, job, key)?,
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
        // Speakers were chosen, and held-out windows cut, by the reader.
        subset.clients = None;
    }
    subset::take(&mut loaded, &subset, key)?;
    if job.data.held_out.is_something() && !speeches {
        held_out::set_apart(&mut loaded, &job.data.held_out, key)?;
    }
    samples::settle_tests(&mut loaded);
    held_out::count(&mut loaded);
    held_out::draw_unseen(&mut loaded, job.data.unseen, key);
    held_out::shorten_unseen(&mut loaded, job.data.unseen_samples, key);
    samples::leave_out_empty(&mut loaded);
    loaded = samples::laid_out(loaded, layout)?;
    if pooled {
        loaded = pool(loaded)?;
    } else if *layout == job.fit.layout() {
        loaded.withhold(job)?;
    }
    for path in job.clone().paths_mut() {
        loaded.files.push((path.display().to_string(), hash_input(job, path)?));
    }
    Ok(loaded)
}

/// The hash of a file or folder of the job; of a Parquet folder, that of the files that are read.
fn hash_input(job: &Job, path: &Path) -> Result<String> {
    match &job.data.source {
        Source::Csv(Csv { path: Input::Parquet(folder), .. }) if folder == path => {
            Ok(Input::Parquet(folder.clone()).hash()?)
        }
        _ => Ok(hash_path(path)?),
    }
}

/// Gives all rows to one client, in the clients' order.
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
            _ => return Err(Failure::config("only tables can be pooled")),
        }
    }
    let table = Table { held_out, ..Table::new(columns, values)? };
    let pooled = Loaded::of(vec![(POOLED.into(), table)], ClientData::Table, hash);
    Ok(Loaded { standardization, levels, notes, warnings, ..pooled })
}

fn append(to: &mut Option<Box<Table>>, rows: Option<Box<Table>>) {
    match (to.as_mut(), rows) {
        (Some(to), Some(rows)) => to.values.extend(rows.values),
        (None, rows) => *to = rows,
        (Some(_), None) => {}
    }
}

/// The hash of a file, or the hash of several files' hashes.
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
