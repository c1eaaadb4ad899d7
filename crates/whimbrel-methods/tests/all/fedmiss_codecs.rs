//! FedMissEM with codecs for single clients.

use crate::fedmiss::*;
use std::sync::Arc;
use whimbrel_codec::Codec;
use whimbrel_core::Key;
use whimbrel_models::lowrank::Family;

/// Three of five clients have their own codecs and memory steps: the optimum is unchanged, and the
/// server's sum stays that of the memories.
#[test]
fn clients_with_codecs_of_their_own_reach_the_optimum() {
    let data = clients(Family::Gaussian, 5, 60, Key::root(24));
    let observed = all_cells(&data);
    let ranked = Setup::ranked(Family::Gaussian, 9, 0.5);
    let setup = Setup { batch: cells(20), codec: dither(4), rounds: 3_000, ..ranked };
    let (_, best) = soft_impute(&observed, 5.0 * 0.5);
    let run = |own: &[(u32, u8)]| {
        let mut method = setup.method();
        let fit = &mut Arc::get_mut(&mut method).expect("one owner").0;
        fit.codecs.extend([Codec::Exact, Codec::sparse(0.5).unwrap()]);
        fit.own_codecs = own.iter().copied().collect();
        fit.check().unwrap();
        let simulator = finished(method, &data);
        assert!(memory_gap(&simulator) < 1e-12);
        let factors = &server(&simulator).factors;
        (soft_objective(&setup, factors, &observed, 5.0), simulator.traffic().up)
    };
    let (alike, few) = run(&[]);
    let (mixed, more) = run(&[(1, 1), (2, 2), (4, 1)]);
    for found in [alike, mixed] {
        assert!((found - best).abs() <= 1e-8 * best, "{found} for {best}");
    }
    assert!(more > few + 2 * 3_000 * 8 * 20 / 2, "exact uploads are longer: {more} {few}");
}
