//! `[data]` with `source = "synthetic-mixture"`: a mixture of logistic models.

use super::mixture::CLIENTS;
use whimbrel_data::LogisticMixtureSpec;
use whimbrel_job::form::{COUNT, NOT_NEGATIVE};
use whimbrel_job::{integer, table};

table! {
    pub(super) SYNTHETIC: LogisticMixtureSpec,
        only (&["synthetic-mixture"], "only a drawn mixture of logistic models has it")
    {
        & clients: CLIENTS, COUNT, unset or LogisticMixtureSpec::default().clients;
        /// number of logistic models
        components: COMPONENTS = "components", COUNT, default;
        /// number of features
        dimension: DIMENSION = "dimension", COUNT, default;
        /// Dirichlet concentration of the clients' weights of the components; 0 gives each client
        /// one component
        alpha: ALPHA = "alpha", NOT_NEGATIVE, default;
        /// test samples of each client in place of the share `test`; 0: that share. Training
        /// samples do not depend on it
        test_samples: TEST_SAMPLES = "test_samples", integer!(usize, 0 to 1000000), default;
    }
}
