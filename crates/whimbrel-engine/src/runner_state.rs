//! The state of a protocol as bytes, and the change that one exchange makes: a store that keeps
//! every exchange writes only the records that changed.

use whimbrel_core::{ClientId, Error, Result, wire};

/// Global bytes and one record per client.
#[derive(Clone, PartialEq, Debug)]
pub struct Saved {
    exchange: u32,
    round: u32,
    global: Vec<u8>,
    records: Vec<Option<Vec<u8>>>,
}

/// The difference after one exchange: global bytes and the records that changed.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    exchange: u32,
    round: u32,
    global: Vec<u8>,
    records: Vec<(ClientId, Vec<u8>)>,
}

wire!(Saved { exchange, round, global, records });
wire!(Change { exchange, round, global, records });

/// The maximum of unused ids below an id: a damaged record must not exhaust memory.
const IDS_AHEAD_MAX: usize = 10_000_000;

impl Saved {
    pub fn new(exchange: u32, round: u32, global: Vec<u8>, records: Vec<Option<Vec<u8>>>) -> Self {
        Self { exchange, round, global, records }
    }

    /// Rounds done.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Exchanges done.
    pub fn exchanges(&self) -> u32 {
        self.exchange
    }

    /// Clients with a record, in id order.
    pub fn enrolled(&self) -> Vec<ClientId> {
        let present = self.records.iter().enumerate().filter(|(_, record)| record.is_some());
        present.map(|(i, _)| ClientId(i as u32)).collect()
    }

    /// One more than the highest id with a record so far.
    pub fn ids_end(&self) -> usize {
        self.records.len()
    }

    /// The global bytes: equal states have equal bytes.
    pub fn global(&self) -> &[u8] {
        &self.global
    }

    pub fn records(&self) -> &[Option<Vec<u8>>] {
        &self.records
    }

    /// Advances by one exchange.
    pub fn apply(&mut self, change: Change) -> Result<()> {
        self.take(change, self.exchange + 1)
    }

    /// Adds clients that joined before the next exchange.
    pub fn join(&mut self, change: Change) -> Result<()> {
        self.take(change, self.exchange)
    }

    fn take(&mut self, change: Change, expected: u32) -> Result<()> {
        if change.exchange != expected {
            let what = format!("exchange {} is followed by {}", self.exchange, change.exchange);
            return Err(Error::storage("journal", what));
        }
        for (id, record) in change.records {
            let at = id.0 as usize;
            // A client joins with the next id, or with one that was kept for it.
            if at > self.records.len() + IDS_AHEAD_MAX {
                return Err(Error::storage("journal", format!("{id} is not a client's id")));
            }
            if self.records.len() <= at {
                self.records.resize(at + 1, None);
            }
            self.records[at] = Some(record);
        }
        self.exchange = change.exchange;
        self.round = change.round;
        self.global = change.global;
        Ok(())
    }
}

impl Change {
    /// Exchanges done.
    pub fn exchanges(&self) -> u32 {
        self.exchange
    }

    pub fn new(
        exchange: u32,
        round: u32,
        global: Vec<u8>,
        records: Vec<(ClientId, Vec<u8>)>,
    ) -> Self {
        Self { exchange, round, global, records }
    }
}
