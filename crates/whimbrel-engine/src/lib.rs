//! The round machine, the simulator, the journal and checkpoints.
//!
//! Absent on purpose: any method's types (the engine sees only [`whimbrel_core::DynMethod`]), any
//! transport, and any random number that is not addressed by a key.

pub mod agreement;
pub mod checkpoint;
pub mod client;
pub mod decentralised;
mod ending;
mod enrolment;
mod evaluation;
mod federation;
pub mod journal;
pub mod keeper;
pub mod keys;
pub mod lock;
mod log;
pub mod machine;
pub mod metrics;
pub mod names;
pub mod participation;
mod prefetch;
pub mod remote;
pub mod run;
pub mod runner;
pub mod runner_state;
pub mod simulation;
pub mod simulator;
pub mod topology;
pub mod versioned;

pub use agreement::{Agreement, Consent, Ledger};
pub use client::{ClientMachine, Participant, Purpose, Question, Reply, StepId};
pub use decentralised::Neighbours;
pub use journal::Journal;
pub use keeper::Keeper;
pub use machine::{Machine, SMALLER_STEP};
pub use metrics::Row;
pub use participation::{Faults, Participation, Quorum};
pub use remote::{Remote, Sender, Summed, Summing, Transport, sum_upload};
pub use run::{
    Chain, Ending, Observer, Outcome, Stage, StageMethod, StageRules, Stopping, run_with,
};
pub use runner::{Carrier, Protocol, Runner, StageState};
pub use simulation::{Limits, Simulation, run};
pub use simulator::{Duty, Federation, Simulator};
pub use topology::{Graphs, Mixing, Topology, Weighting};

/// The maximum of bytes of an offer, enforced by coordinator and client.
pub const OFFER_BYTES_MAX: usize = 16 << 20;
