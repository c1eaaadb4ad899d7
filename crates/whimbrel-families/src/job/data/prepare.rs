//! `[data.prepare]`: transformations of the columns before a fit.

use whimbrel_job::form::{BOOLEAN, COUNT, Form};
use whimbrel_job::key::{JobKey, Section};
use whimbrel_job::reader::{Read, Value};
use whimbrel_job::table;
use whimbrel_job::writer::{Writer, inline, list, number};

/// Transformations of the columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prepare {
    /// Whether constant columns are dropped.
    pub drop_constant: bool,
    /// Whether columns are scaled to mean 0 and variance 1.
    pub standardize: bool,
    /// Number of principal components that replace the columns.
    pub pca: Option<usize>,
    /// The least and the largest value of each column, known without the rows.
    pub ranges: Vec<(String, [f64; 2])>,
}

/// `prepare`.
pub(super) static PREPARE: JobKey = JobKey::optional(
    "prepare",
    "a table, `[data.prepare]`",
    "no transformation",
    "transformations of the columns before a mixture is fitted",
)
.only(&["csv", "npy", "idx", "mixture"], "it has targets; use `standardize`");

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
        /// least and largest value of each column, from knowledge instead of the rows: columns are scaled
        /// to -2 to 2 without any message, which `epsilon` in [privacy] allows; a value outside is an
        /// error, under `epsilon` it becomes the nearest limit
        ranges: RANGES = "ranges", RANGE_TABLE, default;
    }
}

const RANGE_TABLE: Form<Vec<(String, [f64; 2])>> = Form::new(
    "a table of pairs, such as `{ age = [0, 120], weight = [30, 200] }`",
    read_ranges,
    |ranges| inline(ranges.iter().map(|(name, pair)| (name.as_str(), list(pair.map(number))))),
);

fn read_ranges(value: &Value<'_>) -> Read<Vec<(String, [f64; 2])>> {
    let entry = |(name, value): (String, Value<'_>)| {
        let bounds =
            value.list()?.iter().map(|v| v.number(f64::is_finite)).collect::<Read<Vec<_>>>()?;
        match bounds[..] {
            [low, high] if low < high => Ok((name, [low, high])),
            _ => {
                let what = format!("column {name:?} needs two numbers, the smaller one first");
                Err(value.fail(what, "write, for example, age = [0, 120]"))
            }
        }
    };
    value.entries()?.into_iter().map(entry).collect()
}

pub(crate) static SECTION: Section = PREPARATION.section;

impl Prepare {
    pub fn is_something(&self) -> bool {
        *self != Self::default()
    }

    /// Whether clients send sums of their rows for it.
    pub fn asks_clients(&self) -> bool {
        self.is_something() && self.ranges.is_empty()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        if self.is_something() {
            out.table(&SECTION);
            PREPARATION.write(self, out);
        }
    }
}
