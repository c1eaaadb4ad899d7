//! FedMissEM: one table of low rank, fitted to cells that stay with those who observed them.

mod settings;
mod state;

pub use settings::{Copies, FedMiss, Memory, PERSONAL_MAX, StepRule, auto_step};
pub use state::{Client, Down, Fold, Member, Peer, Phase, Positions, Server, Summary, Up, Upload};
