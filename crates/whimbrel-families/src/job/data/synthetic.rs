//! `[data]` with `source = "synthetic-mixture"`: labels of a mixture of logistic models.

use super::mixture::CLIENTS;
use whimbrel_data::LogisticMixtureSpec;
use whimbrel_job::form::{COUNT, NOT_NEGATIVE};
use whimbrel_job::{integer, table};

table! {
    pub(super) SYNTHETIC: LogisticMixtureSpec,
        only (&["synthetic-mixture"], "only a drawn mixture of logistic models has it")
    {
        & clients: CLIENTS, COUNT, unset or LogisticMixtureSpec::default().clients;
        components: COMPONENTS = "components", COUNT, default,
            "how many logistic models labels are drawn from";
        dimension: DIMENSION = "dimension", COUNT, default, "how many features are drawn";
        alpha: ALPHA = "alpha", NOT_NEGATIVE, default,
            "the concentration of the Dirichlet law of the clients' weights over the components; 0 gives \
             each client one component";
        test_samples: TEST_SAMPLES = "test_samples", integer!(usize, 0 to 1000000), default,
            "how many test samples are drawn for each client, in place of the share `test` of its own; 0 for \
             that share; the training samples are the same either way";
    }
}
