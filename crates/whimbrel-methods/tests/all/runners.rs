//! The same bits in every runner: a plain typed loop, the simulator on one and two threads, a
//! simulation saved and loaded after every exchange, and a replay of the journal.

use crate::federation::*;
use whimbrel_core::method::{Cohort, Method, Next, Sender};
use whimbrel_core::{ClientData, ClientId, Probability, Table, Wire};
use whimbrel_engine::journal::Line;
use whimbrel_engine::participation::everyone;
use whimbrel_engine::{Faults, Journal, Participation, Simulator};
use whimbrel_methods::fedem::{Batch, Client, Estimator, FirstMemories, Server};

fn participation() -> Participation {
    Participation::Bernoulli(Probability::new(0.6).unwrap())
}

fn faults() -> Faults {
    Faults { lost: 0.2, ..Faults::default() }
}

fn setups() -> Vec<Setup> {
    let batch = Batch::Sample { size: 7, replacement: true, local_steps: 2 };
    vec![
        Setup { codec: dither(), gamma: 0.1, rounds: 30, ..Setup::default() },
        Setup { codec: dither(), gamma: 0.1, rounds: 30, batch, memory: false, ..Setup::default() },
        Setup {
            codec: dither(),
            estimator: Estimator::Spider { inner: 4 },
            batch,
            gamma: 0.1,
            rounds: 30,
            ..Setup::default()
        },
        Setup { gamma: 0.3, rounds: 30, memories: FirstMemories::Zero, ..Setup::default() },
    ]
}

/// The method's own types in a plain loop, clients one after the other, no bytes in between.
fn typed_loop(setup: &Setup, tables: &[Table]) -> Vec<u8> {
    let (method, keys, faults) = (setup.typed(), keys(), faults());
    let ids: Vec<ClientId> = (0..tables.len() as u32).map(ClientId).collect();
    let bind = |t: &Table| {
        whimbrel_models::LatentModel::bind(&method.oracle.model, &ClientData::Table(t.clone()))
            .unwrap()
    };
    let data: Vec<_> = tables.iter().map(bind).collect();
    let enrolled =
        ids.iter().map(|id| method.enroll(&data[id.0 as usize], keys.enrol(*id)).unwrap());
    let (mut clients, summaries): (Vec<Client>, Vec<_>) = enrolled.unzip();
    let mut roster = ids.iter().copied().zip(summaries.iter().cloned());
    let mut server = method.start(&mut roster, keys.start()).unwrap();
    let mut peers = Vec::new();
    for (id, summary) in ids.iter().zip(&summaries) {
        peers.push(method.admit(&mut server, *id, summary).unwrap());
    }
    let (mut number, mut round) = (0, 0);
    loop {
        let at = keys.exchange(number);
        let (this_round, cohort) = match method.next(&server) {
            Next::Stop => break,
            Next::Opening => (None, everyone(&ids)),
            Next::Round(Cohort::Everyone) => (Some(round + 1), everyone(&ids)),
            Next::Round(Cohort::Sampled) => {
                (Some(round + 1), participation().draw(&ids, at.cohort()))
            }
        };
        let mut fold = method.fold(&server);
        let mut staged = Vec::new();
        for invited in cohort {
            let (id, i) = (invited.id, invited.id.0 as usize);
            let (peer, down) = method.downlink(&server, &(), &peers[i], at.down()).unwrap();
            let (client, up) =
                method.local_step(&clients[i], &down, &data[i], at.local(id)).unwrap();
            if !faults.loses(number, this_round, id, at.loss()) {
                let from = Sender { id, inclusion: invited.inclusion, peer: &peer };
                method.absorb(&mut fold, from, up).unwrap();
                staged.push((i, peer, client));
            }
        }
        server = method.server_step(server, fold, at.step()).unwrap();
        for (i, peer, client) in staged {
            (peers[i], clients[i]) = (peer, client);
        }
        number += 1;
        round = this_round.unwrap_or(round);
    }
    final_bytes(&server, clients.iter())
}

fn final_bytes<'a>(server: &Server, clients: impl Iterator<Item = &'a Client>) -> Vec<u8> {
    let mut bytes = server.to_bytes();
    clients.for_each(|c| c.put(&mut bytes));
    bytes
}

fn simulated(
    setup: &Setup,
    tables: &[Table],
    threads: usize,
    faults: Faults,
    reload: bool,
) -> (Vec<u8>, String) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let method = setup.erased();
        let federation = federation(&*method, tables);
        let mut simulator = Simulator::start(
            method.clone(),
            federation.clone(),
            keys(),
            participation(),
            faults.clone(),
        )
        .unwrap();
        let mut journal = String::new();
        while let Some(done) = simulator.step().unwrap() {
            journal.push_str(&Line::exchange(0, &done).to_text());
            if reload {
                let saved = simulator.save().unwrap().to_bytes();
                let saved = Wire::from_bytes(&saved).unwrap();
                simulator = Simulator::load(
                    method.clone(),
                    federation.clone(),
                    keys(),
                    participation(),
                    faults.clone(),
                    &saved,
                )
                .unwrap();
            }
        }
        let server = simulator.machine().server().downcast_ref::<Server>().unwrap();
        let clients = simulator.clients().iter().map(|c| c.downcast_ref::<Client>().unwrap());
        (final_bytes(server, clients), journal)
    })
}

#[test]
fn every_runner_ends_in_the_same_bits() {
    let tables = unequal(14);
    for setup in setups() {
        let reference = typed_loop(&setup, &tables);
        let (one, journal) = simulated(&setup, &tables, 1, faults(), false);
        assert!(one == reference, "one thread differs from the typed loop");
        let (two, _) = simulated(&setup, &tables, 2, faults(), false);
        assert!(two == reference, "two threads differ");
        let (five, _) = simulated(&setup, &tables, 5, faults(), false);
        assert!(five == reference, "five threads differ");
        let (reloaded, _) = simulated(&setup, &tables, 2, faults(), true);
        assert!(reloaded == reference, "saving and loading after every exchange differs");
        let replay =
            Faults { replay: Some(Journal::parse(&journal, 0).unwrap()), ..Faults::default() };
        let (replayed, again) = simulated(&setup, &tables, 2, replay, false);
        assert!(replayed == reference, "the journal's replay differs");
        assert_eq!(again, journal);
    }
}
