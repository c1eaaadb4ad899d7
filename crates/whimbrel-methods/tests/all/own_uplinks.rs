//! FedEM with codecs for single clients.

use crate::federation::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::channel::{UpRule, Uplink, em_alpha};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::Erased;
use whimbrel_engine::{Faults, Protocol, Simulator};
use whimbrel_methods::fedem::{Batch, Client, Estimator, FedEm, Peer, Server};
use whimbrel_methods::federated::BindRows;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm};
use whimbrel_testkit::pairs;

fn memory(codec: Codec, q: usize) -> Uplink {
    let alpha = em_alpha(codec.omega(q).unwrap());
    Uplink::new(codec, UpRule::Memory { alpha }, q).unwrap()
}

fn fit(estimator: Estimator, batch: Batch, rounds: u32) -> FedEm<Gmm> {
    let covariance = Covariance::Known(TRUTH.to_vec());
    Setup { covariance, estimator, batch, ..dithered(rounds) }.typed()
}

/// Everyone's, a finer one, an exact one and a sparse one, dealt out in turn.
fn mixed(mut fit: FedEm<Gmm>, clients: u32) -> FedEm<Gmm> {
    let q = fit.oracle.model.statistic_len();
    let finer = Codec::dithering(8, Norm::Infinity, None).unwrap();
    let sparse = Codec::sparse(0.5).unwrap();
    fit.terms.uplinks.extend([finer, Codec::Exact, sparse].map(|codec| memory(codec, q)));
    fit.terms.own_uplinks =
        (0..clients).map(|id| (id, (id % 4) as u8)).filter(|own| own.1 > 0).collect();
    fit
}

fn last(fit: FedEm<Gmm>, check: impl Fn(&Simulator)) -> (Server, f64) {
    let method = Arc::new(Erased(fit, BindRows));
    let faults = Faults { lost: 0.1, ..Faults::default() };
    let mut simulator = simulator(method, &unequal(20), bernoulli(0.75), faults);
    while simulator.step().unwrap().is_some() {
        check(&simulator);
    }
    let field = figure(&mut simulator, "field_norm2");
    (simulator.machine().server().downcast_ref::<Server>().unwrap().clone(), field)
}

#[test]
fn a_codec_of_its_own_that_is_everyones_changes_nothing() {
    let plain = fit(Estimator::Minibatch, Batch::Full, 40);
    let mut own = fit(Estimator::Minibatch, Batch::Full, 40);
    own.terms.uplinks.push(own.terms.uplinks[0].clone());
    own.terms.own_uplinks = BTreeMap::from([(0, 1), (7, 1)]);
    assert_eq!(last(own, |_| {}).0.global.s_hat, last(plain, |_| {}).0.global.s_hat);
}

#[test]
fn clients_with_codecs_of_their_own_reach_the_fixed_point_of_all() {
    let everyones = last(fit(Estimator::Minibatch, Batch::Full, 1500), |_| {});
    let batch = Batch::Sample { size: 4, replacement: true, local_steps: 1 };
    for (estimator, batch) in
        [(Estimator::Minibatch, Batch::Full), (Estimator::Spider { inner: 10 }, batch)]
    {
        let (server, field) = last(mixed(fit(estimator, batch, 1500), 20), |_| {});
        assert!(field < 1e-20, "{estimator:?}: {field:e}");
        let gap = relative_gap(&server.global.theta, &everyones.0.global.theta);
        assert!(gap < 1e-9, "{estimator:?}: {gap:e}");
        assert_ne!(server.global.s_hat, everyones.0.global.s_hat);
    }
}

#[test]
fn the_servers_memory_is_the_sum_of_the_clients_with_an_alpha_for_each() {
    last(mixed(fit(Estimator::Minibatch, Batch::Full, 60), 20), |simulator| {
        let machine = simulator.machine();
        let server = machine.server().downcast_ref::<Server>().unwrap();
        let mut sum = vec![0.0; server.global.s_hat.len()];
        let mut scale = 1e-300;
        for id in machine.enrolled() {
            let peer = machine.peer(id).unwrap().downcast_ref::<Peer>().unwrap();
            assert_eq!(u32::from(peer.uplink), id.0 % 4);
            let client = simulator.clients()[id.0 as usize].downcast_ref::<Client>().unwrap();
            for (s, v) in sum.iter_mut().zip(&client.up.kept) {
                *s += peer.weight * v;
                scale = f64::max(scale, (peer.weight * v).abs());
            }
        }
        // Each side rounds once per client and round.
        let tolerance = f64::EPSILON * scale * 20.0 * f64::from(machine.exchanges() + 1);
        for (a, b) in pairs(&sum, &server.up.memory_sum) {
            assert!((a - b).abs() <= tolerance, "{a} against {b} (tolerance {tolerance:e})");
        }
    });
}
