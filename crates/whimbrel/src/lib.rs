//! Whimbrel: federated learning that says as little as possible over the wire.
//!
//! Estimators fit models to rows that clients hold, here rows in memory, by federated methods over compressed
//! channels; a [`Job`] is the same as a file. Nothing is written unless it is saved.
//!
//! ```
//! use whimbrel::{Codec, GaussianMixture, Rows};
//! let clients = [0.0, 9.0, 0.5].map(|c| Rows::from_rows((0..30).map(|i| [c + f64::from(i % 4)])));
//! let fit = GaussianMixture::new(2).uplink(Codec::dithering(8)).fit(&clients)?;
//! println!("{:?} for {} bits", fit.weights(), fit.bits_up());
//! # Ok::<(), whimbrel::Error>(())
//! ```
//!
//! A method of one's own is a [`Simple`] in a [`Simulate`], or, with everything that the built-in ones have, an
//! [`Oracle`](methods::federated::Oracle). [`run`] is what the command line stands on; the binary is
//! [`cli::main`], which another program can call with families of its own. The other modules are the parts.

#![warn(missing_docs)]

extern crate self as whimbrel;

mod api;
pub mod cli;
pub mod job_run;
pub mod run;

pub use api::{
    BayesianRegression, Codec, Estimator, GaussianMixture, Job, Kind, LinearRegression,
    LogisticRegression, LowRank, LowRankFit, MixtureFit, MixtureOfLearners, Personal, PersonalFit,
    Progress, RegressionFit, Rows, Run, Setting, Simulate, Simulated,
};
pub use whimbrel_families::failure::Failure as Error;
pub use whimbrel_methods::federated::Simple;
pub use whimbrel_methods::sgd::Preset;
pub use whimbrel_models::gmm::Covariance;

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
