//! A runner's state as bytes, and what one exchange changed of it: for stores that keep every
//! exchange and do not want to write every client's record each time.

use whimbrel_core::{ClientId, Error, Result, wire};

/// What a runner keeps once, and one record per client.
#[derive(Clone, PartialEq, Debug)]
pub struct Saved {
    exchange: u32,
    round: u32,
    global: Vec<u8>,
    records: Vec<Option<Vec<u8>>>,
}

/// The same after one exchange: the records that moved.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    exchange: u32,
    round: u32,
    global: Vec<u8>,
    records: Vec<(ClientId, Vec<u8>)>,
}

wire!(Saved { exchange, round, global, records });
wire!(Change { exchange, round, global, records });

/// No federation keeps more ids free than this: a damaged record must not take all memory.
const IDS_AHEAD_MAX: usize = 10_000_000;

impl Saved {
    /// After this number of exchanges and rounds.
    pub fn new(exchange: u32, round: u32, global: Vec<u8>, records: Vec<Option<Vec<u8>>>) -> Self {
        Self { exchange, round, global, records }
    }

    /// Rounds done when it was saved.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Exchanges done when it was saved.
    pub fn exchanges(&self) -> u32 {
        self.exchange
    }

    /// Everyone with a record, in id order.
    pub fn enrolled(&self) -> Vec<ClientId> {
        let present = self.records.iter().enumerate().filter(|(_, record)| record.is_some());
        present.map(|(i, _)| ClientId(i as u32)).collect()
    }

    /// One more than the highest id that ever had a record.
    pub fn ids_end(&self) -> usize {
        self.records.len()
    }

    /// What is kept once: equal bytes are equal states.
    pub fn global(&self) -> &[u8] {
        &self.global
    }

    /// The records by id.
    pub fn records(&self) -> &[Option<Vec<u8>>] {
        &self.records
    }

    /// The state one exchange later.
    pub fn apply(&mut self, change: Change) -> Result<()> {
        match change.exchange == self.exchange + 1 {
            true => self.take(change),
            false => Err(self.out_of_order(&change)),
        }
    }

    /// The state once clients have joined before the next exchange.
    pub fn join(&mut self, change: Change) -> Result<()> {
        match change.exchange == self.exchange {
            true => self.take(change),
            false => Err(self.out_of_order(&change)),
        }
    }

    fn out_of_order(&self, change: &Change) -> Error {
        let what = format!("exchange {} is followed by {}", self.exchange, change.exchange);
        Error::storage("journal", what)
    }

    fn take(&mut self, change: Change) -> Result<()> {
        for (id, record) in change.records {
            let at = id.0 as usize;
            // A client joins with the next id, or with one that was kept for it.
            if at > self.records.len() + IDS_AHEAD_MAX {
                return Err(Error::storage("journal", format!("{id} is no client's id")));
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
    /// Exchanges done when it was made.
    pub fn exchanges(&self) -> u32 {
        self.exchange
    }

    /// After the exchange that moved these records.
    pub fn new(
        exchange: u32,
        round: u32,
        global: Vec<u8>,
        records: Vec<(ClientId, Vec<u8>)>,
    ) -> Self {
        Self { exchange, round, global, records }
    }
}
