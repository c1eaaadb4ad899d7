//! `keep_rows` and `keep_clients` in `[data]`: a part of the data, chosen at random.

use super::file::FILES;
use whimbrel_job::form::{ABOVE_ZERO, Form};
use whimbrel_job::table;
use whimbrel_job::writer::number;

/// The part of the data that is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Subset {
    /// The share of each client's rows.
    pub rows: f64,
    /// How many clients; `None`: all.
    pub clients: Option<KeptClients>,
}

/// How many clients are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeptClients {
    /// This number of them.
    Number(usize),
    /// A share of them.
    Share(f64),
}

const WHY: &str = "a generator draws as many as it is asked for";

table! {
    pub(super) SUBSET: Subset, only (FILES, WHY) {
        rows: KEEP_ROWS = "keep_rows", ABOVE_ZERO, default,
            "the share of each client's rows that is used, chosen at random before any is kept out of the \
             fit; at least one stays";
        clients: KEEP_CLIENTS = "keep_clients", KEPT, unset "all",
            "how many of the clients are used, chosen at random";
    }
}

const KEPT: Form<KeptClients> = Form::new(
    "an integer of at least 1, or a share below 1",
    |v| {
        let asked = v.number(|x| x > 0.0 && (x < 1.0 || x.fract() == 0.0))?;
        Ok(if asked < 1.0 {
            KeptClients::Share(asked)
        } else {
            KeptClients::Number(asked as usize)
        })
    },
    |kept| match kept {
        KeptClients::Number(count) => count.to_string(),
        KeptClients::Share(share) => number(*share),
    },
);

impl Default for Subset {
    fn default() -> Self {
        Self { rows: 1.0, clients: None }
    }
}
