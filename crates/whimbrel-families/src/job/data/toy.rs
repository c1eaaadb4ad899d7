//! `[data]` with `source = "toy"`: least-squares federations.

use super::mixture::{CLIENTS, ROWS};
use whimbrel_data::LeastSquaresSpec;
use whimbrel_job::key::Key;
use whimbrel_job::reader::{Read, Reader};
use whimbrel_job::writer::{Writer, number};

/// A federation drawn around a linear predictor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Toy {
    /// How many clients.
    pub clients: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns.
    pub dims: usize,
    /// The correlation of neighbouring columns.
    pub correlation: f64,
    /// The standard deviation of the noise on each target.
    pub noise: f64,
    /// The standard deviation of a client's own coefficients around the common ones.
    pub spread: f64,
}

const TOY: &[&str] = &["toy"];
const ONLY: &str = "only drawn targets have it";

pub(crate) static DIMS: Key =
    Key::default("dims", "an integer of at least 1", "20", "how many columns are drawn")
        .only(TOY, ONLY);
pub(crate) static CORRELATION: Key = Key::default(
    "correlation",
    "a number between -1 and 1",
    "0.6",
    "the correlation of neighbouring columns",
)
.only(TOY, ONLY);
pub(crate) static NOISE: Key = Key::optional(
    "noise",
    "a number of at least 0, for synthetic-representation above 0",
    "0 for toy, 0.1 for synthetic-representation",
    "the standard deviation of the noise on each target; the MCM paper's noisy set has 0.4",
)
.only(&["toy", "synthetic-representation"], ONLY);
pub(crate) static SPREAD: Key = Key::default(
    "spread",
    "a number of at least 0",
    "0.0",
    "the standard deviation of a client's own coefficients around the common ones",
)
.only(TOY, ONLY);

impl Toy {
    pub(crate) fn read(reader: &Reader<'_>) -> Read<Self> {
        let usual = LeastSquaresSpec::default();
        let clients = reader.optional(&CLIENTS, |v| v.count());
        let rows = reader.optional(&ROWS, |v| v.count());
        let dims = reader.read(&DIMS, |v| v.count());
        let correlation = reader.read(&CORRELATION, |v| v.number(|x| x > -1.0 && x < 1.0));
        let noise = reader.optional(&NOISE, |v| v.number(|x| x >= 0.0));
        let spread = reader.read(&SPREAD, |v| v.number(|x| x >= 0.0));
        Ok(Self {
            clients: clients?.unwrap_or(usual.clients),
            rows: rows?.unwrap_or(usual.rows),
            dims: dims?,
            correlation: correlation?,
            noise: noise?.unwrap_or(0.0),
            spread: spread?,
        })
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.put(&CLIENTS, self.clients.to_string());
        out.put(&ROWS, self.rows.to_string());
        out.put(&DIMS, self.dims.to_string());
        out.put(&CORRELATION, number(self.correlation));
        out.put(&NOISE, number(self.noise));
        out.put(&SPREAD, number(self.spread));
    }
}
