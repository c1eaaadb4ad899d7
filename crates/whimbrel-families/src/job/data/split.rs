//! `[data.split]`: assignment of rows to clients.

use super::file::CLIENT;
use std::path::PathBuf;
use whimbrel_data::{ClusterRule, Clustering, LabelSplit};
use whimbrel_job::form::{COLUMN as NAME, COUNT, PATH, POSITIVE, Table};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, text};
use whimbrel_job::{choices, define_keys, form, table};

/// Assignment of rows to clients.
#[derive(Clone, Debug, PartialEq)]
pub enum Partition {
    /// One client with all rows (`em` only).
    Pooled,
    /// By the names in a column, which is not a feature.
    Column(String),
    /// At random in equal shares.
    Iid { clients: usize },
    /// Whole rows of a table with gaps, at random in equal shares.
    Rows { clients: usize },
    /// The clients of the files: writers, speakers, users.
    Natural,
    /// By class.
    Labels {
        clients: usize,
        split: LabelSplit,
        /// Column of the class, which is not a feature; `None`: the targets.
        column: Option<String>,
        /// Column of the coarse class, likewise; `None`: known from the source or not needed.
        coarse: Option<String>,
    },
    /// Clusters of rows.
    Clusters {
        clients: usize,
        /// File of points that represent the rows; `None`: the features.
        embedding: Option<PathBuf>,
        using: ClusterRule,
    },
}

form! {
    CLUSTER_RULES: ClusterRule {
        /// k-means with one centre per client
        "kmeans" => ClusterRule::KMeans,
        /// a Gaussian mixture with one component per client
        "gmm" => ClusterRule::Mixture,
    }
}

choices! {
    /// The word in `[data.split]`'s `by`.
    pub enum SplitKind {
        /// rows (of a table with gaps: cells) at random, in equal shares
        Iid = "iid",
        /// whole rows of a table with gaps at random, in equal shares
        Rows = "rows",
        /// by the names in a column, as `client` does
        Column = "column",
        /// the clients of the files: writers, speakers, users
        Natural = "natural",
        /// each class by Dirichlet weights
        Dirichlet = "dirichlet",
        /// Pachinko allocation: each client draws weights of coarse classes, of the classes within
        /// them, and then its rows
        Pachinko = "pachinko",
        /// rows sorted by class are cut into equal shards, which are dealt at random
        Shards = "shards",
        /// each client has rows of some classes, and the clients of a class share it equally
        Classes = "classes",
        /// clusters of rows; while the largest client has over 10 times the rows of the smallest,
        /// the half of its rows nearest to the smallest moves there
        Clusters = "clusters",
    }
}

impl Partition {
    /// Number of clients, if the job alone determines it.
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

    /// Columns that assign rows, which are not features.
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

/// Properties of a source by which rows can be split.
#[derive(Clone, Copy, Default)]
pub(super) struct Has<'a> {
    /// Whether one client may hold all rows.
    pub pooled: bool,
    /// Column of the classes, if known.
    pub label: Option<&'a str>,
    /// Whether there are targets, which may be classes.
    pub targets: bool,
    pub natural: bool,
    /// Whether coarse classes are known without a column.
    pub coarse: bool,
}

/// `split`.
pub(super) static SPLIT: JobKey = JobKey::optional(
    "split",
    "a table, `[data.split]`",
    "clients are those of `client`",
    "assignment of rows to simulated clients",
)
.only(
    &["csv", "parquet", "sql", "npy", "libsvm", "idx", "cifar10", "cifar100", "jpeg"],
    "the source defines its clients",
);

define_keys! {
    /// the rule
    pub(crate) BY = "by", SplitKind::FORM, required;
    /// number of clients
    pub(crate) CLIENTS = "clients", COUNT, required,
        only (&["iid", "rows", "dirichlet", "pachinko", "shards", "classes", "clusters"], "the data name their clients");
    /// Dirichlet concentration: with small values each class has few clients (`pachinko`: each
    /// client few coarse classes)
    ALPHA = "alpha", POSITIVE, required,
        only (&["dirichlet", "pachinko"], "only dirichlet and pachinko splits have a concentration");
    /// column of the coarse class, which is not a feature
    COARSE = "coarse", NAME, unset "CIFAR-100's 20 coarse classes; required for others",
        only (&["pachinko"], "only a pachinko split has coarse classes");
    /// shards or classes of each client
    PER_CLIENT = "per_client", COUNT, default(LabelSplit::PER_CLIENT),
        only (&["shards", "classes"], "only `shards` and `classes` count them");
    /// column of the client's name (`column`) or of the class, which is not a feature
    COLUMN = "column", NAME, unset "for splits by class, `label`, else the targets",
        only (&["column", "dirichlet", "pachinko", "shards", "classes"], "it does not depend on a column");
}

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
        /// a file of points that represent the rows, in their order: .npy, or raw little-endian
        /// f32, two per row; plain or gzipped
        embedding: EMBEDDING = "embedding", PATH, unset "rows are compared by their features", only (&["clusters"], "only clusters compare rows");
        /// the clustering
        using: USING = "using", CLUSTER_RULES, default(Clustering::default().rule);
    }
}

table! {
    DIRICHLET: LabelSplit::Dirichlet, only (&["dirichlet"], "only a dirichlet split groups classes") {
        & alpha: ALPHA, POSITIVE, required;
        /// number of random groups of classes, each of which is split as one class
        clusters: LABEL_CLUSTERS = "label_clusters", COUNT, unset "no groups";
    }
}

table! {
    PACHINKO: LabelSplit::Pachinko, only (&["pachinko"], "only a pachinko split has it") {
        & alpha: ALPHA, POSITIVE, required;
        /// Dirichlet concentration of a client's classes within a coarse class
        beta: BETA = "beta", POSITIVE, default(LabelSplit::BETA);
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
    doc: "Assigns the rows of one file to simulated clients, in place of `client`. In one line: \
          `split = { by = \"iid\", clients = 10 }` in [data].",
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
    /// Writes `[data.split]` unless `client` stands for it.
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

/// The assignment by `client` or `[data.split]`.
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
            "[data] does not assign rows to clients",
            "give the column of a csv file as `client`, or simulate clients with [data.split]",
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
            "give the column of a csv file as `client`, or use another split",
        )),
        SplitKind::Dirichlet => read_labels(reader, has, &DIRICHLET),
        SplitKind::Pachinko => {
            let partition = read_labels(reader, has, &PACHINKO);
            if !reader.has(&COARSE) && !has.coarse {
                return Err(reader.missing(&COARSE));
            }
            partition
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
