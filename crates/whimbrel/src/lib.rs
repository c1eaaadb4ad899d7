//! Federated learning with small, measured messages.
//!
//! Whimbrel fits models to data that stay with the parties who hold them. An estimator takes the rows
//! of each client, runs a federated method over compressed channels in this process, and returns the
//! fit together with its measured traffic:
//!
//! ```
//! use whimbrel::{Codec, GaussianMixture, Rows};
//!
//! // Three clients, 30 rows of one column each.
//! let clients = [0.0, 9.0, 0.5].map(|c| Rows::from_rows((0..30).map(|i| [c + f64::from(i % 4)])));
//! let fit = GaussianMixture::new(2).uplink(Codec::dithering(8)).fit(&clients)?;
//! println!("weights {:?}, {} bits sent by clients", fit.weights(), fit.run().bits_up());
//! # assert_eq!(fit.weights().len(), 2);
//! # Ok::<(), whimbrel::Error>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | fit a Gaussian mixture | [`GaussianMixture`] |
//! | fit a regression with standard errors | [`LinearRegression`], [`LogisticRegression`], [`Glm`] for counts, several classes and other targets, [`Cox`] for times to an event |
//! | fit a regression by compressed gradients | `preset` of [`LinearRegression`] and [`LogisticRegression`] |
//! | fit a personal model for each client, also for clients unseen in training | [`MixtureOfLearners`] |
//! | give each client a posterior | [`BayesianRegression`] |
//! | fill the gaps of a table | [`LowRank`] |
//! | run a job file | [`Job`] |
//! | try a method of your own | [`Simple`] with [`Simulate`] |
//!
//! **Settings.** An estimator holds only what was set; everything else has the default of the job
//! file, and [`Estimator::to_toml`] prints the whole job. Required values are arguments of the
//! constructor. Every key of a job file can be set by [`Estimator::set`]. Values are checked by `fit`, and an
//! error names the key.
//!
//! **Results.** A fit holds its [`Run`]: metrics by round, the model's tensors, predictions, personal models,
//! [`Run::report`], and [`Run::save`], which writes the folder that `whimbrel run` writes. Nothing
//! is written to disk before that. Equal rows, settings and seed give equal bits, whatever
//! the number of threads.
//!
//! **Progress and cancellation.** `fit_with` and `run_with` call back after each round and each
//! evaluation; [`ControlFlow::Break`](std::ops::ControlFlow::Break) ends the fit there.
//!
//! **Features.** The default feature `cli` builds the command line (`cli::main`, which accepts
//! additional model families) and the network. Programs that embed the library depend on it with
//! `default-features = false`. [`run`] has the functions behind the commands; [`parts`] has the crates
//! below, for new families, codecs and transports.
//!
#![warn(missing_docs)]

mod api;
#[cfg(feature = "cli")]
pub mod cli;
pub mod run;

pub use api::{
    BayesianRegression, Codec, Cox, Estimator, GaussianMixture, Glm, Job, Kind, LinearRegression,
    LogisticRegression, LowRank, LowRankFit, MixtureFit, MixtureOfLearners, Personal, PersonalFit,
    Progress, RegressionFit, Rows, Run, Setting, Simulate, Simulated,
};
pub use whimbrel_codec::channel::Preset;
pub use whimbrel_core::method::{Artifact, Tensor};
pub use whimbrel_core::{Key, Table};
pub use whimbrel_families::failure::Failure as Error;
pub use whimbrel_families::failure::Result;
pub use whimbrel_families::family::{Predicted, Predictions};
pub use whimbrel_families::regression::keys::GlmFamily;
pub use whimbrel_families::table::completed::Estimate;
pub use whimbrel_methods::federated::Simple;
pub use whimbrel_models::glm::inference::{Coefficient, Test};
pub use whimbrel_models::gmm::Covariance;

/// The crates of the workspace, for programs that add families, codecs, methods or transports.
pub mod parts {
    pub use whimbrel_codec as codec;
    pub use whimbrel_core as core;
    pub use whimbrel_data as data;
    pub use whimbrel_engine as engine;
    pub use whimbrel_families as families;
    pub use whimbrel_job as job;
    pub use whimbrel_methods as methods;
    pub use whimbrel_models as models;
    #[cfg(feature = "net")]
    pub use whimbrel_net as net;
    pub use whimbrel_nn as nn;
    pub use whimbrel_report as report;
    pub use whimbrel_runs as runs;
}

/// Runs the examples of the guide and of the README.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/guide/rust.md")]
    struct Guide;
    #[doc = include_str!("../../../README.md")]
    struct Readme;
}
