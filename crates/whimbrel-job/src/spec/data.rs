//! `[data]`: where the rows come from and who holds them.

use super::mixture::{self, Mixture};
use crate::key::{Key, Section, choices};
use crate::reader::{Read, Reader, Value};
use crate::resolve::{Writer, list, text};
use crate::spec::matrix::read_all;
use crate::spec::path::{read_path, write_path};
use std::path::PathBuf;

/// `[data]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// Where the rows come from.
    pub source: Source,
    /// The seed of splits and generators.
    pub seed: u64,
}

/// Where the rows come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A CSV file.
    Csv(Csv),
    /// A `.npy` file.
    Npy(Npy),
    /// Rows drawn from a Gaussian mixture.
    Mixture(Mixture),
}

/// A CSV file with a header.
#[derive(Clone, Debug, PartialEq)]
pub struct Csv {
    /// The file, as written in the job.
    pub path: PathBuf,
    /// Who holds which row.
    pub partition: Partition,
    /// The columns of the features; `None`: every numeric column with no other part.
    pub columns: Option<Vec<String>>,
    /// A column left out of the features.
    pub label: Option<String>,
    /// What separates cells; `None`: told from the header.
    pub delimiter: Option<char>,
}

/// A two-dimensional `.npy` array.
#[derive(Clone, Debug, PartialEq)]
pub struct Npy {
    /// The file, as written in the job.
    pub path: PathBuf,
    /// Who holds which row: `Iid` or `Pooled`.
    pub partition: Partition,
}

/// Who holds which row.
#[derive(Clone, Debug, PartialEq)]
pub enum Partition {
    /// One client holds everything (`em` only).
    Pooled,
    /// A column names the client; it is no feature.
    Column(String),
    /// Rows are dealt at random in equal shares.
    Iid {
        /// How many clients.
        clients: usize,
    },
    /// Each class is shared out by weights drawn from a Dirichlet distribution.
    Dirichlet {
        /// How many clients.
        clients: usize,
        /// Concentration: small values give each class to few clients.
        alpha: f64,
        /// The column that holds the class; it is no feature.
        column: String,
    },
}

impl Partition {
    /// How many clients there will be, where the job alone tells.
    pub fn clients(&self) -> Option<usize> {
        match self {
            Self::Pooled => Some(1),
            Self::Column(_) => None,
            Self::Iid { clients } | Self::Dirichlet { clients, .. } => Some(*clients),
        }
    }
}

choices! {
    /// The word in `source`.
    pub enum SourceKind {
        Csv = "csv": "a CSV file with a header line",
        Npy = "npy": "a two-dimensional NumPy array of numbers",
        Mixture = "mixture": "rows drawn from a Gaussian mixture, with a dial for how much \
         clients differ",
    }
}

choices! {
    /// The word in `[data.split]`'s `kind`.
    pub enum SplitKind {
        Iid = "iid": "rows are dealt at random in equal shares",
        Column = "column": "a column names the client (the same as `client`)",
        Dirichlet = "dirichlet": "each class of a label column is shared out by Dirichlet weights",
    }
}

const NAMED_COLUMNS: &str = "only csv files have named columns";

pub(crate) static SOURCE: Key =
    Key::required("source", "", "where the rows come from").words(SourceKind::WORDS);
pub(crate) static PATH: Key =
    Key::required("path", "a file name", "the file, relative to the job file")
        .only(&["csv", "npy"], "its rows are drawn, not read");
pub(crate) static CLIENT: Key = Key::optional(
    "client",
    "a column name",
    "`[data.split]` says who holds which row",
    "the column that says who holds the row",
)
.only(&["csv"], NAMED_COLUMNS);
pub(crate) static COLUMNS: Key = Key::optional(
    "columns",
    "a list of column names",
    "every numeric column but `client`, `label` and the split's",
    "the columns of the features",
)
.only(&["csv"], NAMED_COLUMNS);
static LABEL: Key = Key::optional(
    "label",
    "a column name",
    "none",
    "a column left out of the features, by which rows can be split",
)
.only(&["csv"], NAMED_COLUMNS);
static DELIMITER: Key = Key::default(
    "delimiter",
    "one character or \"auto\"",
    "\"auto\"",
    "what separates the cells of a row",
)
.words(&[crate::key::Word { name: "auto", doc: "told from the header line" }])
.only(&["csv"], "only csv files have a delimiter");
pub(crate) static SPLIT: Key = Key::optional(
    "split",
    "a table, `[data.split]`",
    "`client` says who holds which row",
    "how rows are shared out between made-up clients",
)
.only(&["csv", "npy"], "each client draws its own rows");
static SEED: Key = Key::optional(
    "seed",
    "an integer from 0 to 18446744073709551615",
    "the job's `seed`",
    "the seed of splits and generators, so that several runs can share their data",
);

/// `[data]`.
pub(crate) static SECTION: Section = Section {
    name: "data",
    doc: "Where the rows come from and who holds them.",
    keys: &[
        &SOURCE,
        &PATH,
        &CLIENT,
        &COLUMNS,
        &LABEL,
        &DELIMITER,
        &SPLIT,
        &mixture::CLIENTS,
        &mixture::ROWS,
        &mixture::MEANS,
        &mixture::COVARIANCE,
        &mixture::HETEROGENEITY,
        &mixture::WEIGHTS,
        &mixture::STREAM,
        &SEED,
    ],
    example: "[data]\nsource = \"csv\"\npath = \"wards.csv\"\nclient = \"ward\"\n\
             label = \"outcome\"\n",
};

pub(crate) static KIND: Key =
    Key::required("kind", "", "how rows are shared out").words(SplitKind::WORDS);
pub(crate) static CLIENTS: Key =
    Key::required("clients", "an integer of at least 1", "how many clients there are")
        .only(&["iid", "dirichlet"], "the column's values are the clients");
static ALPHA: Key = Key::required(
    "alpha",
    "a positive number",
    "Dirichlet concentration: small values give each class to few clients",
)
.only(&["dirichlet"], "only a dirichlet split has a concentration");
static COLUMN: Key = Key::optional(
    "column",
    "a column name",
    "for dirichlet, `label`",
    "the column that names the client (`column`) or holds the class (`dirichlet`); it is no \
     feature",
)
.only(&["column", "dirichlet"], "an iid split looks at no column");

/// `[data.split]`.
pub(crate) static SPLIT_SECTION: Section = Section {
    name: "data.split",
    doc: "Shares the rows of one file out between made-up clients, in place of `client`.",
    keys: &[&KIND, &CLIENTS, &ALPHA, &COLUMN],
    example: "[data]\nsource = \"csv\"\npath = \"digits.csv\"\nlabel = \"digit\"\n\n\
              [data.split]\nkind = \"dirichlet\"\nclients = 100\nalpha = 0.4\n",
};

impl Data {
    /// Reads `[data]`; with `pooled`, nobody needs to hold a row.
    pub(crate) fn read(reader: &Reader<'_>, job_seed: u64, pooled: bool) -> Read<Self> {
        let seed = reader.optional(&SEED, |v| v.integer(0..=u64::MAX));
        let kind: SourceKind = reader.read(&SOURCE, |v| v.choice())?;
        reader.check_meaning(kind.name());
        let source = match kind {
            SourceKind::Csv => Csv::read(reader, pooled).map(Source::Csv),
            SourceKind::Npy => Npy::read(reader, pooled).map(Source::Npy),
            SourceKind::Mixture => Mixture::read(reader).map(Source::Mixture),
        };
        Ok(Self { source: source?, seed: seed?.unwrap_or(job_seed) })
    }

    /// How many clients there will be, where the job alone tells.
    pub fn clients(&self) -> Option<usize> {
        match &self.source {
            Source::Csv(csv) => csv.partition.clients(),
            Source::Npy(npy) => npy.partition.clients(),
            Source::Mixture(mixture) => Some(mixture.clients),
        }
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.table(&SECTION);
        match &self.source {
            Source::Csv(csv) => csv.write(out, self.seed),
            Source::Npy(npy) => {
                out.put(&SOURCE, text(SourceKind::Npy.name()));
                out.put(&PATH, write_path(&npy.path));
                out.put(&SEED, self.seed.to_string());
                npy.partition.write(out);
            }
            Source::Mixture(mixture) => {
                out.put(&SOURCE, text(SourceKind::Mixture.name()));
                mixture.write(out);
                out.put(&SEED, self.seed.to_string());
            }
        }
    }
}

impl Csv {
    fn read(reader: &Reader<'_>, pooled: bool) -> Read<Self> {
        let path = reader.read(&PATH, read_path);
        let columns = reader.optional(&COLUMNS, read_columns);
        let label = reader.optional(&LABEL, |v| v.text());
        let delimiter = reader.read(&DELIMITER, read_delimiter);
        let partition = reader.refuse_both(&CLIENT, &SPLIT).and_then(|()| {
            let label = label.as_ref().ok().and_then(|label| label.as_deref());
            read_partition(reader, pooled, label)
        });
        let csv = Self {
            path: path?,
            partition: partition?,
            columns: columns?,
            label: label?,
            delimiter: delimiter?,
        };
        csv.check_columns(reader)?;
        Ok(csv)
    }

    /// A column is a feature or something else, never both.
    fn check_columns(&self, reader: &Reader<'_>) -> Read<()> {
        let class = match &self.partition {
            Partition::Column(name) => Some((name, "names the client")),
            Partition::Dirichlet { column, .. } => Some((column, "holds the class of the split")),
            Partition::Pooled | Partition::Iid { .. } => None,
        };
        let label = self.label.as_ref().map(|name| (name, "is the label"));
        for (name, part) in class.into_iter().chain(label) {
            if self.columns.as_ref().is_some_and(|columns| columns.contains(name)) {
                reader.optional(&COLUMNS, |v| {
                    Err::<(), _>(v.fail(
                        format!("column {} is listed as a feature but {part}", text(name)),
                        format!("take {} out of `columns`", text(name)),
                    ))
                })?;
            }
        }
        Ok(())
    }

    fn write(&self, out: &mut Writer, seed: u64) {
        out.put(&SOURCE, text(SourceKind::Csv.name()));
        out.put(&PATH, write_path(&self.path));
        if let Partition::Column(name) = &self.partition {
            out.put(&CLIENT, text(name));
        }
        if let Some(columns) = &self.columns {
            out.put(&COLUMNS, list(columns.iter().map(|name| text(name))));
        }
        if let Some(label) = &self.label {
            out.put(&LABEL, text(label));
        }
        out.put(&DELIMITER, text(&self.delimiter.map_or("auto".to_owned(), String::from)));
        out.put(&SEED, seed.to_string());
        self.partition.write(out);
    }
}

impl Npy {
    fn read(reader: &Reader<'_>, pooled: bool) -> Read<Self> {
        let path = reader.read(&PATH, read_path);
        let partition = read_partition(reader, pooled, None);
        let partition = match partition? {
            Partition::Column(_) | Partition::Dirichlet { .. } => reader.read(&SPLIT, |v| {
                Err(v.fail(
                    "a npy file has no named columns to split by",
                    "use kind = \"iid\", or a csv file",
                ))
            }),
            plain => Ok(plain),
        };
        Ok(Self { path: path?, partition: partition? })
    }
}

impl Partition {
    /// `[data.split]`, for the partitions that `client` does not already tell.
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Pooled | Self::Column(_) => {}
            Self::Iid { clients } => {
                out.table(&SPLIT_SECTION);
                out.put(&KIND, text(SplitKind::Iid.name()));
                out.put(&CLIENTS, clients.to_string());
            }
            Self::Dirichlet { clients, alpha, column } => {
                out.table(&SPLIT_SECTION);
                out.put(&KIND, text(SplitKind::Dirichlet.name()));
                out.put(&CLIENTS, clients.to_string());
                out.put(&ALPHA, crate::resolve::number(*alpha));
                out.put(&COLUMN, text(column));
            }
        }
    }
}

fn read_partition(reader: &Reader<'_>, pooled: bool, label: Option<&str>) -> Read<Partition> {
    if let Some(column) = reader.optional(&CLIENT, |v| v.text())? {
        return Ok(Partition::Column(column));
    }
    match reader.optional(&SPLIT, |v| read_split(&v.table(&SPLIT_SECTION)?, label))? {
        Some(split) => Ok(split),
        None if pooled => Ok(Partition::Pooled),
        None => Err(reader.lacking(
            &SPLIT,
            "nothing in [data] says who holds which row",
            "name a csv file's column with `client`, or make clients up with [data.split]",
        )),
    }
}

fn read_split(reader: &Reader<'_>, label: Option<&str>) -> Read<Partition> {
    let kind: SplitKind = reader.read(&KIND, |v| v.choice())?;
    reader.check_meaning(kind.name());
    let column = reader.optional(&COLUMN, |v| v.text());
    Ok(match kind {
        SplitKind::Iid => Partition::Iid { clients: reader.read(&CLIENTS, |v| v.count())? },
        SplitKind::Column => Partition::Column(column?.ok_or_else(|| reader.missing(&COLUMN))?),
        SplitKind::Dirichlet => {
            let clients = reader.read(&CLIENTS, |v| v.count());
            let alpha = reader.read(&ALPHA, |v| v.number(|x| x > 0.0));
            let column = column.and_then(|column| {
                column.or(label.map(str::to_owned)).ok_or_else(|| reader.missing(&COLUMN))
            });
            Partition::Dirichlet { clients: clients?, alpha: alpha?, column: column? }
        }
    })
}

fn read_columns(value: Value<'_>) -> Read<Vec<String>> {
    let items = value.list()?;
    let names = read_all(items.clone(), |item| item.text())?;
    if names.is_empty() {
        return Err(value.fail("`columns` is empty", "leave it out to take every numeric column"));
    }
    match (1..names.len()).find(|&i| names[..i].contains(&names[i])) {
        None => Ok(names),
        Some(i) => Err(items[i].fail(
            format!("column {} is listed twice", text(&names[i])),
            "each feature is one column",
        )),
    }
}

fn read_delimiter(value: Value<'_>) -> Read<Option<char>> {
    let written = value.text()?;
    let mut characters = written.chars();
    match (characters.next(), characters.next()) {
        (Some(only), None) if only.is_ascii() && !matches!(only, '"' | '\n' | '\r') => {
            Ok(Some(only))
        }
        _ if written == "auto" => Ok(None),
        _ => Err(value.refuse()),
    }
}
