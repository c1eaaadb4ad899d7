//! `[data.prepare]`: what is done to the columns before anything is fitted.

use whimbrel_job::key::{Key, Section};
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::Writer;

/// What is done to the columns, from sums that clients send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepare {
    /// Whether columns with one value in all rows are left out.
    pub drop_constant: bool,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
    /// How many principal components take the place of the columns.
    pub pca: Option<usize>,
}

pub(super) static PREPARE: Key = Key::optional(
    "prepare",
    "a table, `[data.prepare]`",
    "columns are used as they are",
    "what is done to the columns before a mixture is fitted",
)
.only(
    &["csv", "npy", "idx", "mixture"],
    "its rows have targets; `standardize` scales their columns",
);

pub(crate) static DROP_CONSTANT: Key = Key::default(
    "drop_constant",
    "true or false",
    "false",
    "whether columns with one value in every row of every client are left out",
);
static STANDARDIZE: Key = Key::default(
    "standardize",
    "true or false",
    "false",
    "whether each column is scaled to mean 0 and variance 1 over all clients' rows; \
     `standardize = true` in [data] is short for it",
);
pub(crate) static PCA: Key = Key::optional(
    "pca",
    "an integer of at least 1",
    "columns are not projected",
    "how many principal components of the pooled rows take the place of the columns; clients send \
     the sums of products of each pair of columns, and the fit is one of the components",
);

/// `[data.prepare]`.
pub(crate) static SECTION: Section = Section {
    name: "data.prepare",
    doc: "What is done to the columns before a mixture is fitted, in the order of the keys, from \
          sums that clients send. It is saved with the model, and `whimbrel predict` does it to \
          new rows.",
    keys: &[&DROP_CONSTANT, &STANDARDIZE, &PCA],
    example: "[data]\nsource = \"csv\"\npath = \"digits.csv\"\nclient = \"writer\"\n\n\
              [data.prepare]\ndrop_constant = true\nstandardize = true\npca = 20\n",
};

impl Prepare {
    pub(super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let drop_constant = reader.read(&DROP_CONSTANT, |v| v.boolean());
        let standardize = reader.read(&STANDARDIZE, |v| v.boolean());
        let pca = reader.optional(&PCA, |v| v.count());
        Ok(Self { drop_constant: drop_constant?, standardize: standardize?, pca: pca? })
    }

    /// Whether there is anything to do.
    pub fn is_something(&self) -> bool {
        *self != Self::default()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        if !self.is_something() {
            return;
        }
        out.table(&SECTION);
        out.put(&DROP_CONSTANT, self.drop_constant.to_string());
        out.put(&STANDARDIZE, self.standardize.to_string());
        if let Some(pca) = self.pca {
            out.put(&PCA, pca.to_string());
        }
    }
}
