//! `keep_rows` and `keep_clients` in `[data]`: a random part of the data.

use super::file::STORED;
use whimbrel_job::form::{ABOVE_ZERO, Form};
use whimbrel_job::table;
use whimbrel_job::writer::number;

/// The part of the data that is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Subset {
    /// Share of each client's rows.
    pub rows: f64,
    /// `None`: all.
    pub clients: Option<KeptClients>,
}

/// Number or share of the clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeptClients {
    Number(usize),
    Share(f64),
}

const WHY: &str = "the size of generated data is a key";

table! {
    pub(super) SUBSET: Subset, only (STORED, WHY) {
        /// share of each client's rows that is used, at least one row; drawn before rows are held
        /// out
        rows: KEEP_ROWS = "keep_rows", ABOVE_ZERO, default;
        /// number or share of the clients that are used, drawn at random
        clients: KEEP_CLIENTS = "keep_clients", KEPT, unset "all";
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
