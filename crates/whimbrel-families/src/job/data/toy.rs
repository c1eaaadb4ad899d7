//! `[data]` with `source = "toy"`: least-squares federations.

use super::mixture::{CLIENTS, ROWS};
use whimbrel_data::LeastSquaresSpec;
use whimbrel_job::form::{COUNT, NOT_NEGATIVE};
use whimbrel_job::{number, table};

const ONLY: &str = "only generated targets have it";

table! {
    pub(super) TOY: LeastSquaresSpec, only (&["toy"], ONLY) {
        & clients: CLIENTS, COUNT, unset or LeastSquaresSpec::default().clients;
        & rows: ROWS, COUNT, unset or LeastSquaresSpec::default().rows;
        /// number of columns
        dims: DIMS = "dims", COUNT, default;
        /// correlation of neighbouring columns
        correlation: CORRELATION = "correlation",
            number!("a number between -1 and 1", |x| x > -1.0 && x < 1.0), default;
        /// standard deviation of the targets' noise; 0.4 in the MCM paper
        noise: NOISE = "noise",
            NOT_NEGATIVE.takes("a number of at least 0, for synthetic-representation above 0"),
            unset "0 for toy, 0.1 for synthetic-representation" or LeastSquaresSpec::default().noise,
            only (&["toy", "synthetic-representation"], ONLY);
        /// standard deviation of a client's coefficients around the common ones
        heterogeneity: SPREAD = "spread", NOT_NEGATIVE, default;
    }
}
