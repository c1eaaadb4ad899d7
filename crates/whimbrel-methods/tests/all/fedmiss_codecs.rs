//! FedMissEM with codecs for single clients.

use crate::fedmiss::*;
use std::sync::Arc;
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::Key;
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Participation, Simulator};
use whimbrel_methods::fedmiss::Server;
use whimbrel_models::lowrank::Family;

/// Three clients with codecs of their own among five, each with its own memory step: the optimum is
/// everyone's, and the server's sum stays that of the memories.
#[test]
fn clients_with_codecs_of_their_own_reach_the_optimum() {
    let data = clients(Family::Gaussian, 5, 60, Key::root(24));
    let observed = all_cells(&data);
    let mut setup = Setup {
        batch: cells(20),
        codec: Codec::dithering(4, Norm::P(2), None).unwrap(),
        rounds: 3_000,
        ..Setup::new(Family::Gaussian)
    };
    (setup.settings.rank, setup.settings.lambda) = (9, 0.5);
    let (_, best) = soft_impute(&observed, 5.0 * 0.5);
    let finished = |own: &[(u32, u8)]| {
        let mut method = setup.method();
        let fit = &mut Arc::get_mut(&mut method).expect("one owner").0;
        fit.codecs.extend([Codec::Exact, Codec::sparse(0.5).unwrap()]);
        fit.own_codecs = own.iter().copied().collect();
        fit.check().unwrap();
        let federation = federation(&*method, &data);
        let (keys, everyone) = (StageKeys::new(1, 0), Participation::Everyone);
        let mut simulator =
            Simulator::start(method, federation, keys, everyone, Faults::default()).unwrap();
        while simulator.step().unwrap().is_some() {}
        assert!(memory_gap(&simulator) < 1e-12);
        let server = simulator.machine().server().downcast_ref::<Server>().unwrap().clone();
        (soft_objective(&setup, &server.factors, &observed, 5.0), simulator.traffic().up)
    };
    let (alike, few) = finished(&[]);
    let (mixed, more) = finished(&[(1, 1), (2, 2), (4, 1)]);
    for found in [alike, mixed] {
        assert!((found - best).abs() <= 1e-8 * best, "{found} for {best}");
    }
    assert!(more > few + 2 * 3_000 * 8 * 20 / 2, "exact uploads are longer: {more} {few}");
}
