//! 100 heterogeneous clients, 100 points each, in the plane; full batches, step 0.1, three in four
//! clients a round, 600 rounds. FedEM converges linearly with one-level dithering; the naive method
//! stalls, compressed or not.

use crate::federation::*;
use whimbrel_codec::Codec;
use whimbrel_core::Probability;
use whimbrel_data::Sizes;
use whimbrel_engine::{Faults, Participation};
use whimbrel_models::gmm::Covariance;
use whimbrel_testkit::pairs;

fn fields(covariance: Covariance, codec: Codec, memory: bool) -> Vec<(u32, f64)> {
    let tables = tables(100, Sizes::Equal(100));
    let setup = Setup { covariance, codec, memory, gamma: 0.1, rounds: 600, ..Setup::default() };
    let participation = Participation::Bernoulli(Probability::new(0.75).unwrap());
    run(&setup, &tables, participation, Faults::default(), 10).fields
}

fn last(fields: &[(u32, f64)]) -> f64 {
    fields.last().unwrap().1
}

#[test]
fn with_a_known_covariance_fedem_converges_and_dem_stalls() {
    let known = || Covariance::Known(TRUTH.to_vec());
    for codec in [dither(), Codec::Exact] {
        let fedem = last(&fields(known(), codec.clone(), true));
        assert!(fedem < 1e-15, "fedem, {}: {fedem:e}", codec.name());
    }
    let compressed = last(&fields(known(), dither(), false));
    assert!((1e-4..1e-2).contains(&compressed), "dem, dithering: {compressed:e}");
    let exact = last(&fields(known(), Codec::Exact, false));
    assert!((1e-6..1e-2).contains(&exact), "dem, exact: {exact:e}");
}

#[test]
fn with_fitted_covariances_compression_costs_at_most_a_factor_ten() {
    for covariance in [Covariance::Tied, Covariance::Full] {
        let compressed = fields(covariance.clone(), dither(), true);
        let exact = fields(covariance.clone(), Codec::Exact, true);
        for ((round, a), (_, b)) in pairs(&compressed, &exact) {
            assert!(a / b < 10.0, "{covariance:?}, round {round}: {a:e} against {b:e}");
        }
        for codec in [dither(), Codec::Exact] {
            let dem = last(&fields(covariance.clone(), codec, false));
            assert!(dem > 1e-5, "{covariance:?}: dem at {dem:e}");
        }
    }
}
