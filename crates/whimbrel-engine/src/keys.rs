//! The address of every random draw of a run: (seed, stage, exchange, purpose, client).
//!
//! Every runner takes its keys from here, so the same job draws the same numbers in a simulation,
//! over a network and in a test's plain loop.

use whimbrel_core::{ClientId, Key};

/// The keys of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageKeys(Key);

/// The keys of one exchange, and its step among those that form one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeKeys(Key, u32);

impl StageKeys {
    /// The keys of a job's stage.
    pub fn new(seed: u64, stage: u32) -> Self {
        Self(Key::root(seed).child(u64::from(stage)))
    }

    /// A client's draws at enrolment.
    pub fn enrol(&self, id: ClientId) -> Key {
        self.0.child(1).child(u64::from(id.0))
    }

    /// The server's draws at the start.
    pub fn start(&self) -> Key {
        self.0.child(2)
    }

    /// The keys of an exchange, openings included, counted from zero.
    pub fn exchange(&self, number: u32) -> ExchangeKeys {
        self.exchange_of(number, 1)
    }

    /// The keys of an exchange where `steps` exchanges form one; `number` counts no asides.
    pub fn exchange_of(&self, number: u32, steps: u32) -> ExchangeKeys {
        ExchangeKeys(self.0.child(3).child(u64::from(number / steps)), number % steps)
    }

    /// The graph of a stage without a server.
    pub fn graph(&self) -> Key {
        self.0.child(4)
    }
}

impl ExchangeKeys {
    /// The draw of the cohort.
    pub fn cohort(&self) -> Key {
        self.0.child(1)
    }

    /// The draws of the downlink; channels derive a child per client or group.
    pub fn down(&self) -> Key {
        self.0.child(2)
    }

    /// A client's local step. Each later step has a child of the first one's key.
    pub fn local(&self, id: ClientId) -> Key {
        let key = self.0.child(3).child(u64::from(id.0));
        if self.1 == 0 { key } else { key.child(u64::from(self.1)) }
    }

    /// The server's step.
    pub fn step(&self) -> Key {
        self.0.child(4)
    }

    /// Simulated losses of uploads.
    pub fn loss(&self) -> Key {
        self.0.child(5)
    }

    /// The redrawn graph of an exchange without a server.
    pub fn graph(&self) -> Key {
        self.0.child(6)
    }
}
