//! The typed interface: estimators over rows in memory, job files, and simulations of own methods.

mod estimator;
mod jobs;
mod low_rank;
mod mixture;
mod personal;
mod progress;
mod regression;
mod rows;
mod run;
mod settings;
mod simulate;

pub use estimator::{Estimator, Kind};
pub use jobs::Job;
pub use low_rank::{LowRank, LowRankFit};
pub use mixture::{GaussianMixture, MixtureFit};
pub use personal::{BayesianRegression, MixtureOfLearners, Personal, PersonalFit};
pub use progress::Progress;
pub use regression::{LinearRegression, LogisticRegression, RegressionFit};
pub use rows::Rows;
pub use run::Run;
pub use settings::{Codec, Setting};
pub use simulate::{Simulate, Simulated};
