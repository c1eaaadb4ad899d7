//! Clients that are only evaluated, and clients that are taken together.

use crate::toy::{SOUND, TOGETHER, Toy, clients, erased};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use whimbrel_core::method::MetricValue;
use whimbrel_core::{ClientId, Probability, Wire};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Duty, Faults, Federation, Participation, Protocol, Simulator};

const COUNT: u32 = 23;

fn federation(toy: &Toy, evaluated: &[u32]) -> Federation {
    let method = erased(Toy { ..*toy });
    let bound = clients(COUNT).into_iter().map(|(name, data)| (name, method.bind(&data).unwrap()));
    let (names, data) = bound.unzip();
    let duty = |i| if evaluated.contains(&i) { Duty::Evaluate } else { Duty::Train };
    Federation { names, data, duties: (0..COUNT).map(duty).collect() }
}

fn start(toy: Toy, evaluated: &[u32], participation: Participation) -> Simulator {
    let federation = Arc::new(federation(&toy, evaluated));
    let faults = Faults { lost: 0.2, late: [(ClientId(9), 3)].into(), ..Faults::default() };
    Simulator::start(erased(toy), federation, StageKeys::new(3, 0), participation, faults).unwrap()
}

#[test]
fn who_is_only_evaluated_is_in_no_cohort_and_costs_no_bytes() {
    let evaluated = [0, 4, 22];
    let half = || Participation::Bernoulli(Probability::new(0.5).unwrap());
    let mut simulator = start(SOUND, &evaluated, half());
    loop {
        // As after a restart.
        let saved = simulator.save().unwrap();
        let faults = Faults { lost: 0.2, late: [(ClientId(9), 3)].into(), ..Faults::default() };
        let (federation, keys) = (Arc::new(federation(&SOUND, &evaluated)), StageKeys::new(3, 0));
        simulator =
            Simulator::load(erased(SOUND), federation, keys, half(), faults, &saved).unwrap();
        let Some(done) = simulator.step().unwrap() else { break };
        let is_out = |id: &ClientId| !evaluated.contains(&id.0);
        assert!(done.cohort.iter().all(is_out) && done.joined.iter().all(is_out), "{done:?}");
        assert!(simulator.machine().enrolled().iter().all(is_out));
    }
    let (metrics, own) = simulator.evaluate().unwrap();
    assert!(own.iter().all(|own| own.len() == 1), "everyone is asked at evaluations");
    for id in evaluated {
        assert_eq!(simulator.tallies()[id as usize], Default::default());
    }
    let number = |i: usize| match own[i][0].value {
        MetricValue::Number(loss) => loss,
        _ => panic!("no loss"),
    };
    let MetricValue::Number(objective) = metrics[0].value else { panic!("no objective") };
    let trained: f64 =
        (0..COUNT as usize).filter(|i| !evaluated.contains(&(*i as u32))).map(number).sum();
    assert_eq!((&*metrics[0].name, objective), ("objective", trained));
    let unseen = evaluated.iter().map(|i| number(*i as usize)).collect();
    assert_eq!(metrics[1].value, MetricValue::List(unseen));
}

#[test]
fn bits_do_not_depend_on_how_many_clients_are_taken_together() {
    let end = |batch: usize, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut simulator = start(Toy { batch, ..SOUND }, &[5], Participation::Fixed(17));
            while simulator.step().unwrap().is_some() {}
            simulator.save().unwrap().to_bytes()
        })
    };
    let wanted = end(1, 1);
    for batch in [2, 3, 7, 16, usize::MAX] {
        for threads in [1, 3] {
            assert!(end(batch, threads) == wanted, "{batch} together on {threads} threads");
        }
    }
    assert_eq!(TOGETHER.load(Ordering::Relaxed), 21, "a whole shard is handed over");
}
