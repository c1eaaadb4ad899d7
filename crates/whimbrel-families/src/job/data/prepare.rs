//! `[data.prepare]`: transformations of the columns before a fit.

use whimbrel_job::form::{BOOLEAN, COUNT};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::table;
use whimbrel_job::writer::Writer;

/// Transformations of the columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prepare {
    /// Whether constant columns are dropped.
    pub drop_constant: bool,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
    /// Number of principal components that replace the columns.
    pub pca: Option<usize>,
    /// Whether columns are scaled by the limits in `[schema]`.
    pub limits: bool,
}

/// `prepare`.
pub(super) static PREPARE: JobKey = JobKey::optional(
    "prepare",
    "a table, `[data.prepare]`",
    "no transformation",
    "transformations of the columns before a mixture is fitted",
)
.only(&["csv", "parquet", "sql", "npy", "idx", "mixture"], "it has targets; use `standardize`");

table! {
    pub(crate) PREPARATION: Prepare = "data.prepare",
        "Transformations of the columns before a mixture is fitted, in the order of the keys, computed from \
         sums that clients send. They are saved with the model and applied by `whimbrel predict`.",
        example "[data]\nsource = \"csv\"\npath = \"digits.csv\"\nclient = \"writer\"\n\n\
                 [data.prepare]\ndrop_constant = true\nstandardize = true\npca = 20\n"
    {
        /// whether columns that are constant over all clients are dropped
        drop_constant: DROP_CONSTANT = "drop_constant", BOOLEAN, default;
        /// whether columns are scaled to mean 0 and variance 1 over all clients; `standardize =
        /// true` in [data] is short for it
        standardize: STANDARDIZE = "standardize", BOOLEAN, default;
        /// number of principal components of the pooled rows that replace the columns; clients send
        /// the sums of products of all pairs of columns
        pca: PCA = "pca", COUNT, unset "no projection";
        /// whether columns are scaled to -2 to 2 by `min` and `max` of [schema], without any message, which
        /// `epsilon` in [privacy] allows; a value outside is an error, under `epsilon` it becomes the nearest
        /// limit
        limits: LIMITS = "limits", BOOLEAN, default;
    }
}

pub(crate) static SECTION: Section = PREPARATION.section;

impl Prepare {
    pub fn is_something(&self) -> bool {
        *self != Self::default()
    }

    /// Whether clients send sums of their rows for it.
    pub fn asks_clients(&self) -> bool {
        self.is_something() && !self.limits
    }

    pub(super) fn write(&self, out: &mut Writer) {
        if self.is_something() {
            out.table(&SECTION);
            PREPARATION.write(self, out);
        }
    }
}
