//! `keep_rows` and `keep_clients` in `[data]`: a part of the data, chosen at random.

use whimbrel_job::key::Key;
use whimbrel_job::reader::{Read, Reader, Value};
use whimbrel_job::writer::{Writer, number};

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
    /// So many.
    Number(usize),
    /// A share of them.
    Share(f64),
}

const FILES: &[&str] =
    &["csv", "npy", "libsvm", "idx", "leaf", "cifar10", "cifar100", "jpeg", "speeches"];
const WHY: &str = "a generator draws as many as it is asked for";

pub(super) static KEEP_ROWS: Key = Key::default(
    "keep_rows",
    "a number above 0, at most 1",
    "1.0",
    "the share of each client's rows that is used, chosen at random before any is kept out of the \
     fit; at least one stays",
)
.only(FILES, WHY);
pub(super) static KEEP_CLIENTS: Key = Key::optional(
    "keep_clients",
    "an integer of at least 1, or a share below 1",
    "all",
    "how many of the clients are used, chosen at random",
)
.only(FILES, WHY);

impl Default for Subset {
    fn default() -> Self {
        Self { rows: 1.0, clients: None }
    }
}

impl Subset {
    pub(super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let rows = reader.read(&KEEP_ROWS, |v| v.number(|x| x > 0.0 && x <= 1.0));
        let clients = reader.optional(&KEEP_CLIENTS, read_clients);
        Ok(Self { rows: rows?, clients: clients? })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        if self.rows < 1.0 {
            out.put(&KEEP_ROWS, number(self.rows));
        }
        match self.clients {
            None => {}
            Some(KeptClients::Number(count)) => out.put(&KEEP_CLIENTS, count.to_string()),
            Some(KeptClients::Share(share)) => out.put(&KEEP_CLIENTS, number(share)),
        }
    }
}

fn read_clients(value: Value<'_>) -> Read<KeptClients> {
    let asked = value.number(|x| x > 0.0 && (x < 1.0 || x.fract() == 0.0))?;
    Ok(if asked < 1.0 { KeptClients::Share(asked) } else { KeptClients::Number(asked as usize) })
}
