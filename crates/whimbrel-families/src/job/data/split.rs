//! `[data.split]`: who holds which row.

use super::file::CLIENT;
use std::path::PathBuf;
use whimbrel_data::{ClusterRule, Clustering, LabelSplit};
use whimbrel_job::form::{COLUMN as NAME, COUNT, PATH, POSITIVE, Table};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{choices, form, table};

/// Who holds which row.
#[derive(Clone, Debug, PartialEq)]
pub enum Partition {
    /// One client holds everything (`em` only).
    Pooled,
    /// A column names the client; it is no feature of a csv file.
    Column(String),
    /// Rows are dealt at random in equal shares.
    Iid {
        /// How many clients.
        clients: usize,
    },
    /// Whole rows of a table with gaps are dealt at random in equal shares.
    Rows {
        /// How many clients.
        clients: usize,
    },
    /// The clients that the files name: writers, speakers, users.
    Natural,
    /// Classes are shared out.
    Labels {
        /// How many clients.
        clients: usize,
        /// How.
        split: LabelSplit,
        /// The column that holds the class, which is no feature; `None`: the targets are classes.
        column: Option<String>,
        /// The column that holds the coarse class, likewise; `None`: the source has it or none is
        /// needed.
        coarse: Option<String>,
    },
    /// Rows that lie near one another belong to the same client.
    Clusters {
        /// How many clients.
        clients: usize,
        /// Points that stand for the rows; `None`: the features.
        embedding: Option<PathBuf>,
        /// What a cluster is.
        using: ClusterRule,
    },
}

form! {
    CLUSTER_RULES: ClusterRule {
        ClusterRule::KMeans => "kmeans": "the rows nearest to one of as many centres as there are clients",
        ClusterRule::Mixture => "gmm": "the rows likeliest under one component of a Gaussian mixture",
    }
}

choices! {
    /// The word in `[data.split]`'s `by`.
    pub enum SplitKind {
        Iid = "iid": "rows (of a table with gaps: cells) are dealt at random in equal shares",
        Rows = "rows": "whole rows of a table with gaps are dealt at random in equal shares",
        Column = "column": "a column names the client (the same as `client`)",
        Natural = "natural": "the clients that the files name: writers, speakers, users",
        Dirichlet = "dirichlet": "each class is shared out by Dirichlet weights",
        Pachinko = "pachinko": "each client draws weights of coarse classes and, within each, of \
         classes, and then its rows one by one",
        Shards = "shards": "rows in the order of their classes are cut into equal shards, which are \
         dealt at random",
        Classes = "classes": "each client has rows of a number of classes, and a class is shared \
         equally by those who have it",
        Clusters = "clusters": "rows near one another go to the same client; while the largest \
         client has over 10 times the rows of the smallest, the nearer half of its rows moves there",
    }
}

impl Partition {
    /// How many clients there will be, where the job alone tells.
    pub fn clients(&self) -> Option<usize> {
        match self {
            Self::Pooled => Some(1),
            Self::Column(_) | Self::Natural => None,
            Self::Iid { clients }
            | Self::Rows { clients }
            | Self::Labels { clients, .. }
            | Self::Clusters { clients, .. } => Some(*clients),
        }
    }

    /// The columns that say who holds a row, which are no features.
    pub fn columns(&self) -> Vec<&String> {
        match self {
            Self::Column(column) => vec![column],
            Self::Labels { column, coarse, .. } => column.iter().chain(coarse).collect(),
            Self::Pooled
            | Self::Natural
            | Self::Iid { .. }
            | Self::Rows { .. }
            | Self::Clusters { .. } => Vec::new(),
        }
    }
}

/// What a source has to split its rows by.
#[derive(Clone, Copy, Default)]
pub(super) struct Has<'a> {
    /// Whether rows need no client.
    pub pooled: bool,
    /// The column of the classes, where one is known.
    pub label: Option<&'a str>,
    /// Whether rows have targets that may be classes.
    pub targets: bool,
    /// Whether the files name clients.
    pub natural: bool,
    /// Whether the source knows coarse classes without a column.
    pub coarse: bool,
}

/// `split`.
pub(super) static SPLIT: JobKey = JobKey::optional(
    "split",
    "a table, `[data.split]`",
    "`client` says who holds which row",
    "how rows are shared out between made-up clients",
)
.only(
    &["csv", "npy", "libsvm", "idx", "cifar10", "cifar100", "jpeg"],
    "the source says who holds what",
);

/// `by`.
pub(crate) static BY: JobKey = SplitKind::FORM.required("by", "how rows are shared out");
/// `clients`.
pub(crate) static CLIENTS: JobKey = COUNT.required("clients", "how many clients there are").only(
    &["iid", "rows", "dirichlet", "pachinko", "shards", "classes", "clusters"],
    "the clients are those that the data name",
);
static ALPHA: JobKey = POSITIVE
    .required(
        "alpha",
        "Dirichlet concentration: small values give each class to few clients (`pachinko`: each client \
         few coarse classes)",
    )
    .only(&["dirichlet", "pachinko"], "only dirichlet and pachinko splits have a concentration");
static COARSE: JobKey = NAME
    .unset(
        "coarse",
        "CIFAR-100's 20 coarse classes; required for others",
        "the column that holds the coarse class; it is no feature",
    )
    .only(&["pachinko"], "only a pachinko split has coarse classes");
static PER_CLIENT: JobKey = COUNT
    .default(
        "per_client",
        || COUNT.write(&LabelSplit::PER_CLIENT),
        "how many shards, or classes, each client has",
    )
    .only(&["shards", "classes"], "only shards and classes are counted");
static COLUMN: JobKey = NAME
    .unset(
        "column",
        "for splits by class, `label`, else the targets",
        "the column that names the client (`column`) or holds the class; it is no feature of a csv file",
    )
    .only(
        &["column", "dirichlet", "pachinko", "shards", "classes"],
        "this split looks at no single column",
    );

table! {
    IID: Partition::Iid {
        & clients: CLIENTS, COUNT, required;
    }
}

table! {
    WHOLE_ROWS: Partition::Rows {
        & clients: CLIENTS, COUNT, required;
    }
}

table! {
    CLUSTERS: Partition::Clusters, only (&["clusters"], "only clusters have it") {
        & clients: CLIENTS, COUNT, required;
        embedding: EMBEDDING = "embedding", PATH, unset "rows are compared by their features",
            "a file of points that stand for the rows, in their order: .npy, or raw little-endian f32, two \
             for each row; plain or gzipped", only (&["clusters"], "only clusters compare rows");
        using: USING = "using", CLUSTER_RULES, default(Clustering::default().rule), "what a cluster is";
    }
}

table! {
    DIRICHLET: LabelSplit::Dirichlet, only (&["dirichlet"], "only a dirichlet split groups classes") {
        & alpha: ALPHA, POSITIVE, required;
        clusters: LABEL_CLUSTERS = "label_clusters", COUNT, unset "each class is shared out for itself",
            "the number of groups that classes are dealt into at random, each shared out as one class";
    }
}

table! {
    PACHINKO: LabelSplit::Pachinko, only (&["pachinko"], "only a pachinko split has it") {
        & alpha: ALPHA, POSITIVE, required;
        beta: BETA = "beta", POSITIVE, default(LabelSplit::BETA),
            "Dirichlet concentration of a client's classes within a coarse one";
    }
}

table! {
    SHARDS: LabelSplit::Shards {
        & per_client: PER_CLIENT, COUNT, default;
    }
}

table! {
    CLASSES: LabelSplit::Classes {
        & per_client: PER_CLIENT, COUNT, default;
    }
}

/// `[data.split]`.
pub(crate) static SECTION: Section = Section {
    name: "data.split",
    doc: "Shares the rows of one file out between made-up clients, in place of `client`. Written \
          in one line: `split = { by = \"iid\", clients = 10 }` in [data].",
    keys: &[
        &BY,
        &CLIENTS,
        &ALPHA,
        &BETA,
        &LABEL_CLUSTERS,
        &PER_CLIENT,
        &COLUMN,
        &COARSE,
        &EMBEDDING,
        &USING,
    ],
    example: "[data]\nsource = \"csv\"\npath = \"digits.csv\"\nlabel = \"digit\"\n\n\
              [data.split]\nby = \"dirichlet\"\nclients = 100\nalpha = 0.4\n",
};

impl Partition {
    /// `[data.split]`, for the partitions that `client` does not already tell.
    pub(super) fn write(&self, out: &mut Writer, has_client: bool) {
        let kind = match self {
            Self::Pooled | Self::Natural => return,
            Self::Column(_) if has_client => return,
            Self::Column(_) => SplitKind::Column,
            Self::Iid { .. } => SplitKind::Iid,
            Self::Rows { .. } => SplitKind::Rows,
            Self::Labels { split, .. } => match split {
                LabelSplit::Dirichlet { .. } => SplitKind::Dirichlet,
                LabelSplit::Pachinko { .. } => SplitKind::Pachinko,
                LabelSplit::Shards { .. } => SplitKind::Shards,
                LabelSplit::Classes { .. } => SplitKind::Classes,
            },
            Self::Clusters { .. } => SplitKind::Clusters,
        };
        out.table(&SECTION);
        out.put(&BY, text(kind.name()));
        match self {
            Self::Pooled | Self::Natural => {}
            Self::Column(column) => out.put(&COLUMN, text(column)),
            Self::Iid { .. } => IID.write(self, out),
            Self::Rows { .. } => WHOLE_ROWS.write(self, out),
            Self::Labels { clients, split, column, coarse } => {
                out.put(&CLIENTS, clients.to_string());
                for table in [&DIRICHLET, &PACHINKO, &SHARDS, &CLASSES] {
                    table.write(split, out);
                }
                for (key, name) in [(&COLUMN, column), (&COARSE, coarse)] {
                    if let Some(name) = name {
                        out.put(key, text(name));
                    }
                }
            }
            Self::Clusters { .. } => CLUSTERS.write(self, out),
        }
    }
}

/// Who holds which row, by `client` or `[data.split]`.
pub(super) fn read_partition(reader: &Reader<'_>, has: &Has<'_>) -> Read<Partition> {
    if let Some(column) = reader.optional_as(&CLIENT, &NAME)? {
        return Ok(Partition::Column(column));
    }
    match reader.optional(&SPLIT, |v| read_split(&v.table(&SECTION)?, has))? {
        Some(split) => Ok(split),
        None if has.natural => Ok(Partition::Natural),
        None if has.pooled => Ok(Partition::Pooled),
        None => Err(reader.lacking(
            &SPLIT,
            "nothing in [data] says who holds which row",
            "name a csv file's column with `client`, or make clients up with [data.split]",
        )),
    }
}

fn read_split(reader: &Reader<'_>, has: &Has<'_>) -> Read<Partition> {
    let kind = reader.read_as(&BY, &SplitKind::FORM)?;
    reader.check_meaning(kind.name());
    match kind {
        SplitKind::Iid => IID.read(reader),
        SplitKind::Rows => WHOLE_ROWS.read(reader),
        SplitKind::Column => {
            let column = reader.optional_as(&COLUMN, &NAME)?;
            column.map(Partition::Column).ok_or_else(|| reader.missing(&COLUMN))
        }
        SplitKind::Natural if has.natural => Ok(Partition::Natural),
        SplitKind::Natural => Err(reader.fault(
            &BY,
            "the files name no clients",
            "name the column of a csv file with `client`, or use another split",
        )),
        SplitKind::Dirichlet => read_labels(reader, has, &DIRICHLET),
        SplitKind::Pachinko => {
            let partition = read_labels(reader, has, &PACHINKO);
            match reader.has(&COARSE) || has.coarse {
                true => partition,
                false => Err(reader.missing(&COARSE)),
            }
        }
        SplitKind::Shards => read_labels(reader, has, &SHARDS),
        SplitKind::Classes => read_labels(reader, has, &CLASSES),
        SplitKind::Clusters => CLUSTERS.read(reader),
    }
}

/// A split by classes.
fn read_labels(reader: &Reader<'_>, has: &Has<'_>, rule: &Table<LabelSplit>) -> Read<Partition> {
    let (clients, split) = (reader.read_as(&CLIENTS, &COUNT), rule.read(reader));
    let column = reader.optional_as(&COLUMN, &NAME).and_then(|column| {
        match column.or(has.label.map(str::to_owned)) {
            None if !has.targets => Err(reader.missing(&COLUMN)),
            column => Ok(column),
        }
    });
    let coarse = reader.optional_as(&COARSE, &NAME);
    Ok(Partition::Labels { clients: clients?, split: split?, column: column?, coarse: coarse? })
}
