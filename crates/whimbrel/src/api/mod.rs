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
mod setters;
mod settings;
mod simulate;

pub use estimator::{Estimator, Kind};
pub use jobs::Job;
pub use low_rank::{LowRank, LowRankFit};
pub use mixture::{GaussianMixture, MixtureFit};
pub use personal::{BayesianRegression, MixtureOfLearners, Personal, PersonalFit};
pub use progress::Progress;
pub use regression::{Cox, Glm, LinearRegression, LogisticRegression, RegressionFit};
pub use rows::Rows;
pub use run::Run;
pub use settings::{Codec, Setting};
pub use simulate::{Simulate, Simulated};

use whimbrel_families::failure::{Failure, remedy};

/// Adds the methods that carry out the remedies in a hint.
fn by_methods(failure: Failure) -> Failure {
    failure.with_ways(&[
        (remedy::NEW_RUN, "`Job::run_in`"),
        (remedy::RESUME, "`Job::resume`"),
        (remedy::REPLACE, "remove its folder first"),
        (remedy::OPEN, "`Run::open`"),
        (remedy::NAME_CLIENT, "`PersonalFit::client`"),
        (remedy::ADAPT, "`PersonalFit::adapt`"),
        (remedy::COMPLETE, "`LowRankFit::impute`"),
        (remedy::ADD_ROWS, "`LowRankFit::adapt`"),
        (remedy::DRAFT, "`Job::parse` reads text"),
        (remedy::NAME_LEVEL, "text is read from a file by `Run::predict_file`"),
    ])
}

/// Adds the setters that carry out the remedies as well, in place of keys of the job file.
fn by_setters(failure: Failure) -> Failure {
    by_methods(failure.map_hint(|hint| setters::of_keys(&hint))).with_ways(&[
        (remedy::NO_CODECS, "`uplink`, `downlink`"),
        (remedy::BY_GRADIENTS, "`preset`"),
        (remedy::DROP_CONSTANT, "`.set(\"data.prepare.drop_constant\", true)`"),
        (remedy::STANDARDIZE, "`.standardize()`"),
        (remedy::NEEDS_TYPE, "`.set(\"schema.COLUMN.type\", \"category\")`"),
        ("in [data]", "`.set(\"data.KEY\", VALUE)`"),
        ("in [data.prepare]", "`.set(\"data.prepare.KEY\", VALUE)`"),
        ("in [method]", "`.set(\"method.KEY\", VALUE)`, the kind by `.method(..)`"),
        ("in [model]", "`.set(\"model.KEY\", VALUE)`"),
        ("in [uplink]", "`.set(\"uplink.KEY\", VALUE)`, the codec by `.uplink(..)`"),
        ("in [downlink]", "`.set(\"downlink.KEY\", VALUE)`, the codec by `.downlink(..)`"),
        ("in [privacy]", "`.set(\"privacy.KEY\", VALUE)`"),
    ])
}
