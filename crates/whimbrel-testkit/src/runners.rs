//! The same bits in every runner.
//!
//! [`runners_agree`] runs a method with sampled cohorts, lost uploads and late joiners, and
//! compares servers, peers, clients and metrics byte for byte:
//!
//! - a plain sequential loop over the method's own types, without bytes;
//! - the simulator on one, two and five threads: every message as bytes, uploads in shards;
//! - the simulator, saved and loaded through bytes after every exchange;
//! - a replay of the journal of the first simulation.
//!
//! It also checks the declared kinds of exchange, their order and their maximum.

use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_core::method::{
    Allowance, Bind, ClientGroup, Cohort, Done, Evaluate, Metric, Next, Sender,
};
use whimbrel_core::{ClientData, ClientId, DynMethod, Erased, Key, Probability, Wire};
use whimbrel_engine::journal::Line;
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::participation::{Invited, everyone};
use whimbrel_engine::{Faults, Federation, Journal, Participation, Protocol, Runner, Simulator};

/// Share of the clients asked in a sampled round.
const ASKED: f64 = 0.6;
/// Share of the uploads that are lost.
const LOST: f64 = 0.2;

/// The final state of a run.
#[derive(PartialEq)]
struct End {
    server: Vec<u8>,
    peers: Vec<Option<Vec<u8>>>,
    clients: Vec<Vec<u8>>,
    metrics: Vec<Metric>,
}

/// Runs the method in every runner, on at least four clients, and compares the final states.
pub fn runners_agree<M: Evaluate, B: Bind<M>>(
    name: &str,
    method: impl Into<Arc<Erased<M, B>>>,
    data: &[ClientData],
) {
    let late = BTreeMap::from([(ClientId(1), 2), (ClientId(data.len() as u32 - 1), 3)]);
    runners_agree_under(name, method, data, Faults { lost: LOST, late, ..Faults::default() });
}

/// The same with other losses and late joiners.
pub fn runners_agree_under<M: Evaluate, B: Bind<M>>(
    name: &str,
    method: impl Into<Arc<Erased<M, B>>>,
    data: &[ClientData],
    faults: Faults,
) {
    let method = &method.into();
    assert!(data.len() >= 4, "{name}: too few clients");
    let reference = plain_loop(method, data, &faults);
    let (one, journal) = simulate(method, data, &faults, 1, false);
    assert!(one == reference, "{name}: one thread differs from the plain loop");
    for threads in [2, 5] {
        let (end, _) = simulate(method, data, &faults, threads, false);
        assert!(end == reference, "{name}: {threads} threads differ");
    }
    let (reloaded, _) = simulate(method, data, &faults, 2, true);
    assert!(reloaded == reference, "{name}: saving and loading after every exchange differs");
    let replay = Some(Journal::parse(&journal, 0).expect("its own journal"));
    let faults = Faults { replay, lost: 0.0, ..faults };
    let (replayed, again) = simulate(method, data, &faults, 2, false);
    assert!(replayed == reference, "{name}: the journal's replay differs");
    assert_eq!(again, journal, "{name}");
}

fn keys() -> StageKeys {
    StageKeys::new(1, 0)
}

fn participation() -> Participation {
    Participation::Bernoulli(Probability::new(ASKED).expect("a probability"))
}

/// The exchanges that one client answered, checked against the method's allowances.
#[derive(Clone, Default)]
struct Answered {
    counts: BTreeMap<usize, u32>,
    rank: u8,
}

impl Answered {
    fn add(&mut self, allowances: &[Allowance], kind: usize) {
        let Some(allowed) = allowances.get(kind) else { panic!("an exchange of no declared kind") };
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let most = allowed.most.unwrap_or(u32::MAX);
        assert!(*count <= most, "more than {most} exchanges of the kind `{}`", allowed.name);
        if allowed.rank >= Allowance::EVALUATIONS {
            return;
        }
        assert!(allowed.rank >= self.rank, "`{}` comes out of its order", allowed.name);
        self.rank = allowed.rank;
    }
}

/// Whether an evaluation is due, after every third round and at the end, and notes it.
fn evaluates(next: &Next, round: u32, evaluated: &mut Option<u32>) -> bool {
    let due = next.is_over() || matches!(next, Next::Round(_)) && round.is_multiple_of(3);
    due && evaluated.replace(round) != Some(round)
}

/// A run over the method's own types, without bytes, threads or the engine's machine.
fn plain_loop<M: Evaluate, B: Bind<M>>(
    erased: &Erased<M, B>,
    data: &[ClientData],
    faults: &Faults,
) -> End {
    let Erased(method, bind) = erased;
    let data: Vec<M::Data> = data.iter().map(|d| bind.bind(method, d).expect("data")).collect();
    let ids: Vec<ClientId> = (0..data.len() as u32).map(ClientId).collect();
    let enrol = |(id, data): (&ClientId, _)| method.enroll(data, keys().enrol(*id)).expect("enrol");
    let (mut clients, summaries): (Vec<M::Client>, Vec<_>) =
        ids.iter().zip(&data).map(enrol).unzip();
    let on_time: Vec<ClientId> = ids.iter().copied().filter(|id| !faults.is_late(*id)).collect();
    let mut roster = on_time.iter().map(|id| {
        let summary = summaries[id.0 as usize].to_bytes();
        (*id, M::Summary::from_bytes(&summary).expect("a summary"))
    });
    let mut server = method.start(&mut roster, keys().start()).expect("the roster starts");
    let mut peers: Vec<Option<M::Peer>> = ids.iter().map(|_| None).collect();
    for id in on_time {
        let i = id.0 as usize;
        peers[i] = Some(method.admit(&mut server, id, &summaries[i]).expect("admission"));
    }
    let declared = method.declare();
    let allowances = declared.exchanges;
    let mut answered = vec![Answered::default(); ids.len()];
    let (mut number, mut round, mut evaluated) = (0, 0, None);
    loop {
        if evaluates(&method.status(&server).next, round, &mut evaluated)
            && let Some(begun) = method.begin(&server).expect("an evaluation")
        {
            server = begun;
        }
        if method.status(&server).next.is_over() {
            break;
        }
        let continues =
            matches!(method.status(&server).next, Next::Continued(_) | Next::Evaluation(_));
        for id in ids.iter().filter(|_| !continues) {
            let i = id.0 as usize;
            if peers[i].is_none() && faults.lets_in(*id, number, round + 1) {
                peers[i] = Some(method.admit(&mut server, *id, &summaries[i]).expect("admission"));
            }
        }
        let enrolled: Vec<ClientId> =
            ids.iter().copied().filter(|id| peers[id.0 as usize].is_some()).collect();
        let evaluates = matches!(method.status(&server).next, Next::Evaluation(_));
        let at = keys().exchange_of(number - method.status(&server).asides, declared.steps);
        let next = method.status(&server).next;
        let this_round = matches!(next, Next::Round(_)).then_some(round + 1);
        let mut cohort = cohort_of(next, &enrolled, at.cohort());
        if cohort.len() < declared.cohort_min && !continues {
            cohort.clear();
        }
        let asked: Vec<ClientId> = cohort.iter().map(|invited| invited.id).collect();
        let (broadcast, mut fold) = method.open(&server, &asked).expect("an exchange");
        let mut staged = Vec::new();
        for invited in cohort {
            let (id, i) = (invited.id, invited.id.0 as usize);
            let peer = peers[i].as_ref().expect("an enrolled client");
            let (peer, down) =
                method.downlink(&server, &broadcast, peer, at.down()).expect("a message");
            let place = method.place(&clients[i], &down).expect("its own message");
            answered[i].add(&allowances, place.kind);
            let Done { client, up, .. } =
                method.local_step(&clients[i], &down, &data[i], at.local(id)).expect("an upload");
            if evaluates || !faults.loses(number, this_round, id, at.loss()) {
                let from = Sender { id, inclusion: invited.inclusion, peer: &peer };
                method.absorb(&mut fold, from, up).expect("its own upload");
                staged.push((i, peer, client));
            }
        }
        server = method.server_step(server, fold, at.step()).expect("a step");
        for (i, peer, client) in staged {
            (peers[i], clients[i]) = (Some(peer), client);
        }
        number += 1;
        round = this_round.unwrap_or(round);
    }
    ended(method, &server, &peers, &clients, &data)
}

/// The final state, with the metrics of the clients that were admitted.
fn ended<M: Evaluate>(
    method: &M,
    server: &M::Server,
    peers: &[Option<M::Peer>],
    clients: &[M::Client],
    data: &[M::Data],
) -> End {
    let ask = method.ask(server).expect("a question");
    let admitted = (0..peers.len()).filter(|i| peers[*i].is_some());
    let mut answers = admitted.map(|i| {
        (ClientId(i as u32), method.answer(&clients[i], &ask, &data[i]).expect("an answer"))
    });
    let metrics = method.conclude(server, &mut answers, ClientGroup::Trained).expect("metrics");
    End {
        server: server.to_bytes(),
        peers: peers.iter().map(|peer| peer.as_ref().map(Wire::to_bytes)).collect(),
        clients: clients.iter().map(Wire::to_bytes).collect(),
        metrics,
    }
}

/// The clients asked in an exchange.
fn cohort_of(next: Next, enrolled: &[ClientId], key: Key) -> Vec<Invited> {
    match next {
        Next::Stop | Next::Converged => unreachable!("the run is over"),
        Next::Continued(ids) | Next::Evaluation(ids) => everyone(&ids),
        Next::Uncounted | Next::Round(Cohort::Everyone) => everyone(enrolled),
        Next::Round(Cohort::Sampled) => participation().draw(enrolled, key),
    }
}

/// The simulator on a number of threads; with `reload`, saved and loaded after every exchange.
fn simulate<M: Evaluate, B: Bind<M>>(
    method: &Arc<Erased<M, B>>,
    data: &[ClientData],
    faults: &Faults,
    threads: usize,
    reload: bool,
) -> (End, String) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    pool.install(|| {
        let federation = Arc::new(Federation {
            names: (0..data.len()).map(|i| format!("{i:03}")).collect(),
            data: data.iter().map(|d| method.bind(d).expect("data")).collect(),
            duties: Vec::new(),
        });
        let (who, what) = (participation(), faults.clone());
        let started = Simulator::start(method.clone(), federation.clone(), keys(), who, what);
        let mut simulator = started.expect("a start");
        let mut journal = Line::stage_begin(0, &simulator.machine().enrolled()).to_text();
        let mut evaluated = None;
        loop {
            let next = method.status(simulator.machine().server()).expect("a status").next;
            if evaluates(&next, simulator.machine().round(), &mut evaluated) {
                simulator.begin_evaluation().expect("an evaluation");
            }
            let Some(done) = simulator.step().expect("an exchange") else { break };
            journal.push_str(&Line::exchange(0, &done).to_text());
            if reload {
                let saved = simulator.save().expect("saved").to_bytes();
                let saved = Wire::from_bytes(&saved).expect("its own bytes");
                let (at, who, what) = (keys(), participation(), faults.clone());
                let (method, clients) = (method.clone(), federation.clone());
                simulator =
                    Simulator::load(method, clients, at, who, what, &saved).expect("its own state");
            }
        }
        let (metrics, _) = simulator.evaluate().expect("an evaluation");
        let machine = simulator.machine();
        let peer = |id| machine.peer(id).map(|peer| peer.save());
        let end = End {
            server: machine.server().save(),
            peers: (0..data.len() as u32).map(|id| peer(ClientId(id))).collect(),
            clients: simulator.clients().iter().map(|client| client.save()).collect(),
            metrics,
        };
        (end, journal)
    })
}
