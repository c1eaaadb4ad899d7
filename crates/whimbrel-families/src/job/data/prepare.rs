//! `[data.prepare]`: what is done to the columns before anything is fitted.

use whimbrel_job::form::{BOOLEAN, COUNT};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::table;
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

/// `prepare`.
pub(super) static PREPARE: JobKey = JobKey::optional(
    "prepare",
    "a table, `[data.prepare]`",
    "columns are used as they are",
    "what is done to the columns before a mixture is fitted",
)
.only(
    &["csv", "npy", "idx", "mixture"],
    "its rows have targets; `standardize` scales their columns",
);

table! {
    pub(crate) PREPARATION: Prepare = "data.prepare",
        "What is done to the columns before a mixture is fitted, in the order of the keys, from \
         sums that clients send. It is saved with the model, and `whimbrel predict` does it to \
         new rows."
    {
        drop_constant: DROP_CONSTANT = "drop_constant", BOOLEAN, default,
            "whether columns with one value in every row of every client are left out";
        standardize: STANDARDIZE = "standardize", BOOLEAN, default,
            "whether each column is scaled to mean 0 and variance 1 over all clients' rows; \
             `standardize = true` in [data] is short for it";
        pca: PCA = "pca", COUNT, unset "columns are not projected",
            "how many principal components of the pooled rows take the place of the columns; clients send \
             the sums of products of each pair of columns, and the fit is one of the components";
    }
}

/// `[data.prepare]`.
pub(crate) static SECTION: Section = Section {
    example: "[data]\nsource = \"csv\"\npath = \"digits.csv\"\nclient = \"writer\"\n\n\
              [data.prepare]\ndrop_constant = true\nstandardize = true\npca = 20\n",
    ..PREPARATION.section
};

impl Prepare {
    /// Whether there is anything to do.
    pub fn is_something(&self) -> bool {
        *self != Self::default()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        if self.is_something() {
            out.table(&SECTION);
            PREPARATION.write(self, out);
        }
    }
}
