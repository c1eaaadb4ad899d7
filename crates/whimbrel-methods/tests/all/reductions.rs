//! Under named settings FedEM becomes something simpler.

use crate::federation::*;
use whimbrel_core::{ClientData, Table};
use whimbrel_methods::fedem::{Batch, FirstMemories, Weights};
use whimbrel_models::gmm::Covariance;
use whimbrel_models::{LatentModel, Rows};
use whimbrel_testkit::pairs;

/// EM on the pooled rows, written as a plain loop over the model.
fn pooled_em(covariance: Covariance, tables: &[Table], rounds: u32) -> Vec<Vec<f64>> {
    let model = gmm(covariance);
    let pooled = tables.iter().flat_map(|t| t.values.clone()).collect();
    let table = Table::new(tables[0].columns.to_vec(), pooled).unwrap();
    let data = model.bind(&ClientData::Table(table)).unwrap();
    let moments = model.moments(&data).unwrap();
    let whimbrel_methods::mixture::MixtureStart::Given(theta) = start(&model) else {
        unreachable!()
    };
    let mut theta = model.from_vector(&theta).unwrap();
    let mut s = vec![0.0; model.statistic_len()];
    let mut path = Vec::new();
    for _ in 0..rounds {
        model.expect(&theta, &data, Rows::All, &mut s).unwrap();
        theta = model.maximize(&s, &moments).unwrap().theta;
        path.push(model.to_vector(&theta));
    }
    path
}

#[test]
fn everyone_exact_full_batch_step_one_is_pooled_em() {
    let tables = unequal(17);
    for covariance in [
        Covariance::Known(TRUTH.to_vec()),
        Covariance::Tied,
        Covariance::Diagonal,
        Covariance::Full,
    ] {
        let setup = Setup { covariance: covariance.clone(), ..Setup::default() };
        let pooled = pooled_em(covariance, &tables, setup.rounds);
        for (ours, pooled) in pairs(states(&setup, &tables), pooled) {
            let gap = relative_gap(&ours.global.theta, &pooled);
            assert!(gap < 1e-10, "round {}: {gap:e}", ours.round);
        }
    }
}

#[test]
fn with_everyone_and_an_exact_codec_memories_do_not_matter() {
    let tables = unequal(9);
    let base = Setup { gamma: 0.3, rounds: 60, ..Setup::default() };
    let reference = states(&base, &tables);
    let given = FirstMemories::Given(vec![0.5, -0.25, 1.0, 2.0, -1.0, 0.125]);
    for (alpha, memories) in
        [(0.01, FirstMemories::Oracle), (1.0, FirstMemories::Zero), (0.5, given)]
    {
        let other = Setup { alpha: Some(alpha), memories, ..base.clone() };
        for (a, b) in pairs(&states(&other, &tables), &reference) {
            // Rounding of h_i + (g - h_i), a few units in the last place per round.
            let gap = relative_gap(&a.global.s_hat, &b.global.s_hat);
            assert!(gap < 1e-13 * f64::from(a.round), "{alpha}: {gap:e}");
        }
    }
}

/// Both settings give the same iterates, up to rounding, from the same rows.
fn agree(a: &Setup, b: &Setup, tables: &[Table]) {
    for (a, b) in pairs(states(a, tables), states(b, tables)) {
        assert!(relative_gap(&a.global.s_hat, &b.global.s_hat) < 1e-12, "round {}", a.round);
    }
}

#[test]
fn a_batch_of_every_row_without_replacement_is_the_full_batch() {
    let base = Setup { rounds: 20, ..Setup::default() };
    let batch = Batch::Sample { size: 1000, replacement: false, local_steps: 1 };
    agree(&base, &Setup { batch, ..base.clone() }, &unequal(6));
}

#[test]
fn equal_weights_equal_row_weights_for_equally_large_clients() {
    let base = Setup { rounds: 30, ..Setup::default() };
    let tables = tables(8, whimbrel_data::Sizes::Equal(20));
    agree(&base, &Setup { weights: Weights::Equal, ..base.clone() }, &tables);
}

#[test]
fn dem_is_fedem_with_a_plain_uplink_and_with_everyone_and_no_compression_they_agree() {
    let base = Setup { gamma: 0.5, rounds: 40, ..Setup::default() };
    agree(&base, &Setup { memory: false, ..base.clone() }, &unequal(8));
}
