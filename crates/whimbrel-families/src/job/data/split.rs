//! `[data.split]`: who holds which row.

use super::file::CLIENT;
use std::path::PathBuf;
use whimbrel_job::choices;
use whimbrel_job::key::{Key, Section};
use whimbrel_job::path::{read_path, write_path};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number, text};

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
    /// Each class is shared out by weights drawn from a Dirichlet distribution.
    Dirichlet {
        /// How many clients.
        clients: usize,
        /// Concentration: small values give each class to few clients.
        alpha: f64,
        /// The column that holds the class, which is no feature; `None`: the targets are classes.
        column: Option<String>,
    },
    /// Rows that lie near one another belong to the same client.
    Clusters {
        /// How many clients.
        clients: usize,
        /// Points that stand for the rows; `None`: the features.
        embedding: Option<PathBuf>,
        /// What a cluster is.
        using: ClusterBy,
    },
}

choices! {
    /// What a cluster is.
    pub enum ClusterBy {
        Kmeans = "kmeans": "the rows nearest to one of as many centres as there are clients",
        Gmm = "gmm": "the rows likeliest under one component of a Gaussian mixture",
    }
}

choices! {
    /// The word in `[data.split]`'s `by`.
    pub enum SplitKind {
        Iid = "iid": "rows (of a table with gaps: cells) are dealt at random in equal shares",
        Rows = "rows": "whole rows of a table with gaps are dealt at random in equal shares",
        Column = "column": "a column names the client (the same as `client`)",
        Dirichlet = "dirichlet": "each class is shared out by Dirichlet weights",
        Clusters = "clusters": "rows near one another go to the same client; while the largest \
         client has over 10 times the rows of the smallest, the nearer half of its rows moves there",
    }
}

impl Partition {
    /// How many clients there will be, where the job alone tells.
    pub fn clients(&self) -> Option<usize> {
        match self {
            Self::Pooled => Some(1),
            Self::Column(_) => None,
            Self::Iid { clients }
            | Self::Rows { clients }
            | Self::Dirichlet { clients, .. }
            | Self::Clusters { clients, .. } => Some(*clients),
        }
    }
}

pub(super) static SPLIT: Key = Key::optional(
    "split",
    "a table, `[data.split]`",
    "`client` says who holds which row",
    "how rows are shared out between made-up clients",
)
.only(&["csv", "npy", "libsvm", "idx"], "each client draws its own rows");

pub(crate) static BY: Key =
    Key::required("by", "", "how rows are shared out").words(SplitKind::WORDS);
pub(crate) static CLIENTS: Key =
    Key::required("clients", "an integer of at least 1", "how many clients there are")
        .only(&["iid", "rows", "dirichlet", "clusters"], "the column's values are the clients");
static ALPHA: Key = Key::required(
    "alpha",
    "a positive number",
    "Dirichlet concentration: small values give each class to few clients",
)
.only(&["dirichlet"], "only a dirichlet split has a concentration");
static COLUMN: Key = Key::optional(
    "column",
    "a column name",
    "for dirichlet, `label`, else the targets",
    "the column that names the client (`column`) or holds the class (`dirichlet`); it is no \
     feature of a csv file",
)
.only(&["column", "dirichlet"], "this split looks at no single column");
static EMBEDDING: Key = Key::optional(
    "embedding",
    "a file name",
    "rows are compared by their features",
    "a file of points that stand for the rows, in their order: .npy, or raw little-endian f32, two \
     for each row; plain or gzipped",
)
.only(&["clusters"], "only clusters compare rows");
static USING: Key = Key::default("using", "", "\"gmm\"", "what a cluster is")
    .words(ClusterBy::WORDS)
    .only(&["clusters"], "only clusters have it");

/// `[data.split]`.
pub(crate) static SECTION: Section = Section {
    name: "data.split",
    doc: "Shares the rows of one file out between made-up clients, in place of `client`. Written \
          in one line: `split = { by = \"iid\", clients = 10 }` in [data].",
    keys: &[&BY, &CLIENTS, &ALPHA, &COLUMN, &EMBEDDING, &USING],
    example: "[data]\nsource = \"csv\"\npath = \"digits.csv\"\nlabel = \"digit\"\n\n\
              [data.split]\nby = \"dirichlet\"\nclients = 100\nalpha = 0.4\n",
};

impl Partition {
    /// `[data.split]`, for the partitions that `client` does not already tell.
    pub(super) fn write(&self, out: &mut Writer, has_client: bool) {
        let kind = match self {
            Self::Pooled => return,
            Self::Column(_) if has_client => return,
            Self::Column(_) => SplitKind::Column,
            Self::Iid { .. } => SplitKind::Iid,
            Self::Rows { .. } => SplitKind::Rows,
            Self::Dirichlet { .. } => SplitKind::Dirichlet,
            Self::Clusters { .. } => SplitKind::Clusters,
        };
        out.table(&SECTION);
        out.put(&BY, text(kind.name()));
        if let Some(clients) = self.clients() {
            out.put(&CLIENTS, clients.to_string());
        }
        match self {
            Self::Pooled | Self::Iid { .. } | Self::Rows { .. } => {}
            Self::Column(column) => out.put(&COLUMN, text(column)),
            Self::Dirichlet { alpha, column, .. } => {
                out.put(&ALPHA, number(*alpha));
                if let Some(column) = column {
                    out.put(&COLUMN, text(column));
                }
            }
            Self::Clusters { embedding, using, .. } => {
                if let Some(path) = embedding {
                    out.put(&EMBEDDING, write_path(path));
                }
                out.put(&USING, text(using.name()));
            }
        }
    }
}

/// Who holds which row, by `client` or `[data.split]`; `targets` says whether a Dirichlet split
/// could be by them.
pub(super) fn read_partition(
    reader: &Reader<'_>,
    pooled: bool,
    label: Option<&str>,
    targets: bool,
) -> Read<Partition> {
    if let Some(column) = reader.optional(&CLIENT, |v| v.text())? {
        return Ok(Partition::Column(column));
    }
    match reader.optional(&SPLIT, |v| read_split(&v.table(&SECTION)?, label, targets))? {
        Some(split) => Ok(split),
        None if pooled => Ok(Partition::Pooled),
        None => Err(reader.lacking(
            &SPLIT,
            "nothing in [data] says who holds which row",
            "name a csv file's column with `client`, or make clients up with [data.split]",
        )),
    }
}

fn read_split(reader: &Reader<'_>, label: Option<&str>, targets: bool) -> Read<Partition> {
    let kind: SplitKind = reader.read(&BY, |v| v.choice())?;
    reader.check_meaning(kind.name());
    let column = reader.optional(&COLUMN, |v| v.text());
    let clients = || reader.read(&CLIENTS, |v| v.count());
    Ok(match kind {
        SplitKind::Iid => Partition::Iid { clients: clients()? },
        SplitKind::Rows => Partition::Rows { clients: clients()? },
        SplitKind::Column => Partition::Column(column?.ok_or_else(|| reader.missing(&COLUMN))?),
        SplitKind::Dirichlet => {
            let clients = clients();
            let alpha = reader.read(&ALPHA, |v| v.number(|x| x > 0.0));
            let column = column.and_then(|column| match column.or(label.map(str::to_owned)) {
                None if !targets => Err(reader.missing(&COLUMN)),
                column => Ok(column),
            });
            Partition::Dirichlet { clients: clients?, alpha: alpha?, column: column? }
        }
        SplitKind::Clusters => {
            let clients = clients();
            let embedding = reader.optional(&EMBEDDING, read_path);
            let using = reader.read(&USING, |v| v.choice());
            Partition::Clusters { clients: clients?, embedding: embedding?, using: using? }
        }
    })
}
