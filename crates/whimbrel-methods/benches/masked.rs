//! A client's time and bytes in a round of masked sums, beside the same round without masks: logistic
//! regression on dense rows, 16-bit grid with memories, encoding of state and upload included.
//!
//! `cargo xtask bench masked`, or with one setting: `cargo xtask bench masked 100 100000 200`.

use std::hint::black_box;
use std::time::Instant;
use whimbrel_codec::channel::{UpRule, Uplink};
use whimbrel_codec::{Codec, Inclusion, SharedGrid};
use whimbrel_core::method::{Bind, Done, Sender};
use whimbrel_core::{ClientData, ClientId, FeatureRows, Key, Labelled, Method, StepSize, Wire};
use whimbrel_methods::federated::{BindRows, FirstMemories, Terms};
use whimbrel_methods::masked::{MaskSecret, Masked, Masks, Trust};
use whimbrel_methods::settings::{Budget, Weights};
use whimbrel_methods::sgd::{Gradient, Sgd, StepRule};
use whimbrel_methods::step::Schedule;
use whimbrel_models::convex::Problem;

/// Clients, numbers of a model, rows of the measured client.
const SETTINGS: [(usize, usize, usize); 6] = [
    (10, 1_000, 200),
    (10, 100_000, 200),
    (100, 1_000, 200),
    (100, 100_000, 4),
    (100, 100_000, 200),
    (100, 100_000, 2_000),
];
/// Repetitions of each step, of which the fastest counts.
const REPEATS: usize = 7;

fn sgd(clients: usize, d: usize) -> Sgd {
    let codec = Codec::Grid(
        SharedGrid::new(16).expect("16 bits").among(clients as u32, Inclusion::Equal(1.0)),
    );
    let uplink = Uplink::new(codec, UpRule::Memory { alpha: 1.0 }, d).expect("a grid");
    Sgd {
        oracle: Gradient {
            step: StepRule::Given(Schedule::Constant(StepSize::new(0.1).expect("positive"))),
            ..Gradient::new(Problem::logistic(0.0, false).expect("no penalty"), d)
        },
        terms: Terms {
            weights: Weights::Equal,
            memories: FirstMemories::Zero,
            uplinks: vec![uplink],
            ..Terms::over(Codec::Exact, d, Budget::Rounds(u32::MAX)).expect("exact")
        },
    }
}

/// Rows of the first client; the others have one sparse row each.
fn data(i: usize, d: usize, rows: usize) -> ClientData {
    let mut stream = Key::root(1).child(i as u64).stream();
    let columns = (0..d).map(|j| j.to_string()).collect();
    let (rows, targets) = if i == 0 {
        let mut values = vec![0.0; rows * d];
        stream.fill_normal(&mut values);
        (FeatureRows::Dense(values), (0..rows).map(|r| [1.0, -1.0][r % 2]).collect())
    } else {
        let (starts, columns, values) = (vec![0, 1], vec![(i % d) as u32], vec![1.0]);
        (FeatureRows::Sparse { starts, columns, values }, vec![1.0])
    };
    ClientData::Labelled(Labelled::new(columns, rows, targets).expect("rows of this length"))
}

/// The first client's part in one exchange.
#[derive(Clone, Copy, Default)]
struct Cost {
    ms: f64,
    up: usize,
    down: usize,
}

/// Runs exchanges with everyone; returns the first client's cost in the last `kept` of them.
fn exchanges<M: Method>(
    method: &M,
    data: &[M::Data],
    (count, steps, kept): (usize, usize, usize),
) -> Vec<Cost> {
    let root = Key::root(7);
    let ids: Vec<ClientId> = (0..data.len() as u32).map(ClientId).collect();
    let enrolled = data.iter().zip(&ids);
    let enrolled = enrolled.map(|(data, id)| method.enroll(data, root.child(u64::from(id.0))));
    let (mut clients, summaries): (Vec<_>, Vec<_>) =
        enrolled.map(|enrolled| enrolled.expect("an enrolment")).unzip();
    let summary = |id: &ClientId| M::Summary::from_bytes(&summaries[id.0 as usize].to_bytes());
    let mut roster = ids.iter().map(|id| (*id, summary(id).expect("its own bytes")));
    let mut server = method.start(&mut roster, root).expect("a first state");
    let admit = |(id, summary): (&ClientId, &M::Summary)| method.admit(&mut server, *id, summary);
    let mut peers: Vec<_> =
        ids.iter().zip(&summaries).map(admit).map(|peer| peer.expect("a new client")).collect();
    let mut costs = Vec::new();
    for number in 0..count {
        let (round, step) = (number / steps, number % steps);
        let (broadcast, mut fold) = method.open(&server, &ids).expect("an exchange");
        for (i, id) in ids.iter().enumerate() {
            let mut key = root.child(1_000 + round as u64).child(i as u64);
            if step > 0 {
                key = key.child(step as u64);
            }
            let (staged, down) =
                method.downlink(&server, &broadcast, &peers[i], key).expect("a message");
            let (client, data) = (&clients[i], &data[i]);
            if i == 0 && number + kept >= count {
                let mut cost = Cost { ms: f64::INFINITY, up: 0, down: down.to_bytes().len() };
                for _ in 0..REPEATS {
                    let clock = Instant::now();
                    let done = method.local_step(client, &down, data, key).expect("a step");
                    let up = black_box((done.client.to_bytes(), done.up.to_bytes())).1.len();
                    let ms = 1e3 * clock.elapsed().as_secs_f64();
                    cost = Cost { ms: ms.min(cost.ms), up, ..cost };
                }
                costs.push(cost);
            }
            let Done { client: state, up, .. } =
                method.local_step(client, &down, data, key).expect("a step");
            let from = Sender { id: *id, inclusion: 1.0, peer: &staged };
            method.absorb(&mut fold, from, up).expect("an upload");
            (clients[i], peers[i]) = (state, staged);
        }
        server = method.server_step(server, fold, root.child(number as u64)).expect("a step");
    }
    costs
}

fn measure(n: usize, d: usize, rows: usize) {
    let (plain, settings) = (
        sgd(n, d),
        Masks {
            least: 3,
            clients: n,
            seed: 1,
            secret: MaskSecret::Simulated,
            trust: Trust::default(),
        },
    );
    let bind = |i| BindRows.bind(&plain, &data(i, d, rows)).expect("rows of this problem");
    let data: Vec<_> = (0..n).map(bind).collect();
    // Rounds until nearly all pairs of neighbours have met.
    let rounds = 12;
    let alone = exchanges(&plain, &data, (3, 1, 1))[0];
    let masked = exchanges(&Masked::new(sgd(n, d), &settings), &data, (3 * rounds, 3, 3));
    let total = |of: fn(&Cost) -> f64| masked.iter().map(of).sum::<f64>();
    let [upload, vouch, share] = [masked[0].ms, masked[1].ms, masked[2].ms];
    println!(
        "{n:5}{d:8}{rows:6}{:10.2}{upload:9.2}{vouch:7.2}{share:7.2}{:8.1}{:11.1}{:11.1}",
        alone.ms,
        total(|c| c.ms) / alone.ms,
        1e-3 * (total(|c| c.up as f64) - alone.up as f64),
        1e-3 * (total(|c| c.down as f64) - alone.down as f64),
    );
}

fn main() {
    let given = std::env::args().filter_map(|word| word.parse().ok());
    let given: Vec<usize> = given.collect();
    println!("milliseconds of one client (fastest of {REPEATS}); kilobytes beyond the plain round");
    println!("    n       d  rows     plain   upload  vouch  share   ratio   extra up extra down");
    match given[..] {
        [n, d, rows] => measure(n, d, rows),
        _ => SETTINGS.iter().for_each(|&(n, d, rows)| measure(n, d, rows)),
    }
}
