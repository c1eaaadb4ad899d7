//! Whimbrel: federated learning that says as little as possible over the wire.
//!
//! This crate is the facade: the parts under one name. The binary of the same name is the command
//! line, [`cli::main`], which another program can call with families of its own. Start at [`methods::fedem`] for a method, [`codec`] for what travels,
//! [`engine::Simulator`] for a federation on one machine.

extern crate self as whimbrel;

pub mod cli;
pub mod job_run;

pub use whimbrel_codec as codec;
pub use whimbrel_core as core;
pub use whimbrel_data as data;
pub use whimbrel_engine as engine;
pub use whimbrel_families as families;
pub use whimbrel_job as job;
pub use whimbrel_methods as methods;
pub use whimbrel_models as models;
pub use whimbrel_net as net;
pub use whimbrel_nn as nn;
pub use whimbrel_report as report;
pub use whimbrel_runs as runs;
