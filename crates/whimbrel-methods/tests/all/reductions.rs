//! Under named settings FedEM becomes something simpler.

use crate::federation::*;
use whimbrel_core::{ClientData, Table};
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::fedem::{Batch, FirstMemories, Weights};
use whimbrel_models::gmm::Covariance;
use whimbrel_models::{LatentModel, Rows};
use whimbrel_testkit::{pairs, relative_gap};

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
        let trace = run(&setup, &tables, Participation::Everyone, Faults::default(), 0);
        for (ours, pooled) in pairs(&trace.states, pooled_em(covariance, &tables, 200)) {
            let gap = relative_gap(&ours.global.theta, &pooled);
            assert!(gap < 1e-10, "round {}: {gap:e}", ours.round);
        }
    }
}

#[test]
fn with_everyone_and_an_exact_codec_memories_do_not_matter() {
    let tables = unequal(9);
    let base = Setup { gamma: 0.3, rounds: 60, ..Setup::default() };
    let reference = run(&base, &tables, Participation::Everyone, Faults::default(), 0);
    let given = FirstMemories::Given(vec![0.5, -0.25, 1.0, 2.0, -1.0, 0.125]);
    for (alpha, memories) in
        [(0.01, FirstMemories::Oracle), (1.0, FirstMemories::Zero), (0.5, given)]
    {
        let other =
            Setup { alpha: Some(alpha), memories, gamma: 0.3, rounds: 60, ..Setup::default() };
        let trace = run(&other, &tables, Participation::Everyone, Faults::default(), 0);
        for (a, b) in pairs(&trace.states, &reference.states) {
            // Rounding of h_i + (g - h_i), a few units in the last place per round.
            assert!(
                relative_gap(&a.global.s_hat, &b.global.s_hat) < 1e-13 * f64::from(a.round),
                "{alpha}"
            );
        }
    }
}

#[test]
fn a_batch_of_every_row_without_replacement_is_the_full_batch() {
    let tables = unequal(6);
    let base = Setup { rounds: 20, ..Setup::default() };
    let all = Batch::Sample { size: 1000, replacement: false, local_steps: 1 };
    let sampled = Setup { rounds: 20, batch: all, ..Setup::default() };
    let a = run(&base, &tables, Participation::Everyone, Faults::default(), 0);
    let b = run(&sampled, &tables, Participation::Everyone, Faults::default(), 0);
    for (a, b) in pairs(&a.states, &b.states) {
        assert!(relative_gap(&a.global.s_hat, &b.global.s_hat) < 1e-12);
        assert_eq!(a.rows_used, b.rows_used);
    }
}

#[test]
fn equal_weights_equal_row_weights_where_clients_are_equally_large() {
    let tables = tables(8, whimbrel_data::Sizes::Equal(20));
    let rows = Setup { rounds: 30, ..Setup::default() };
    let equal = Setup { rounds: 30, weights: Weights::Equal, ..Setup::default() };
    let a = run(&rows, &tables, Participation::Everyone, Faults::default(), 0);
    let b = run(&equal, &tables, Participation::Everyone, Faults::default(), 0);
    for (a, b) in pairs(&a.states, &b.states) {
        assert!(relative_gap(&a.global.s_hat, &b.global.s_hat) < 1e-12);
    }
}

#[test]
fn dem_is_fedem_with_a_plain_uplink_and_with_everyone_and_no_compression_they_agree() {
    let tables = unequal(8);
    let fedem = Setup { gamma: 0.5, rounds: 40, ..Setup::default() };
    let dem = Setup { memory: false, gamma: 0.5, rounds: 40, ..Setup::default() };
    let a = run(&fedem, &tables, Participation::Everyone, Faults::default(), 0);
    let b = run(&dem, &tables, Participation::Everyone, Faults::default(), 0);
    for (a, b) in pairs(&a.states, &b.states) {
        assert!(relative_gap(&a.global.s_hat, &b.global.s_hat) < 1e-12);
    }
}
