//! What a program that fits models sees: estimators over rows in memory, and jobs.

mod estimator;
mod jobs;
mod low_rank;
mod mixture;
mod personal;
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
pub use regression::{LinearRegression, LogisticRegression, RegressionFit};
pub use rows::Rows;
pub use run::{Progress, Run};
pub use settings::{Codec, Setting};
pub use simulate::{Simulate, Simulated};
