//! Attacks of a coordinator that chooses the parameters of agreed rounds to read a client's rows.
//!
//! Each attack counts the rows that it reads exactly. It knows every row up to a small error, as
//! someone who holds quasi-identifiers does, except for bisection, which knows nothing.

use crate::federation::{Setup, equal_terms};
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::channel::{DownMessage, Downlink, UpRule, Uplink};
use whimbrel_codec::{Codec, Scalar};
use whimbrel_core::method::Artifact;
use whimbrel_core::{
    ClientData, ClientId, DynMethod, Erased, FeatureRows, Inputs, Key, Labelled, Result, Samples,
    Shared, Table, Targets, Wire,
};
use whimbrel_engine::{ClientMachine, Consent, Participant, Purpose, Question, Stage, StepId};
use whimbrel_methods::clustering::Clustering;
use whimbrel_methods::fedem::{self, FirstMemories, Form, PrivateEm};
use whimbrel_methods::federated::{BindRows, Down, Enrolment, ExchangeKind, Terms, Up};
use whimbrel_methods::guard;
use whimbrel_methods::mixture::MixtureStart;
use whimbrel_methods::personal::{FedAvg, Length, Personal, Rates, Sampling, ServerStep, Solver};
use whimbrel_methods::pooled::ExactSums;
use whimbrel_methods::settings::{Budget, Privacy, Weights};
use whimbrel_methods::sgd::{Gradient, Sgd};
use whimbrel_models::convex::Problem;
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};
use whimbrel_nn::{Network, Optimiser};

const ROWS: usize = 200;
/// Rounds that the client agreed to.
const ROUNDS: u32 = 199;

/// The rule of the smallest group.
const GROUP: Option<u32> = Some(5);

/// A coordinator with one client.
pub(crate) struct Spy {
    client: ClientMachine,
    next: u32,
    /// The client's message at enrolment.
    pub(crate) summary: Vec<u8>,
}

impl Spy {
    pub(crate) fn new(method: Arc<dyn DynMethod>, data: ClientData) -> Self {
        let (chain, consent) = (Box::new(vec![Stage::new("fit", method)]), Consent::default());
        let client = ClientMachine::new(Participant { chain, data, seed: 3, consent });
        let mut spy = Self { client, next: 0, summary: Vec::new() };
        let nothing = Vec::<Artifact>::new().to_bytes();
        spy.summary = spy.put(Purpose::Enrol, StepId::enrolment(0), nothing).unwrap();
        spy
    }

    pub(crate) fn put(
        &mut self,
        purpose: Purpose,
        at: StepId,
        message: Vec<u8>,
    ) -> Result<Vec<u8>, String> {
        let question = Question { purpose, at, client: ClientId(0), message: message.into() };
        let answer = self.client.answer(&question).map_err(|error| error.to_string());
        self.client.acknowledge(at, true);
        answer
    }

    /// The answer to the next exchange.
    pub(crate) fn ask(&mut self, down: &impl Wire) -> Result<Vec<u8>, String> {
        let at = StepId::exchange(0, self.next);
        let answer = self.put(Purpose::Exchange, at, down.to_bytes());
        self.next += u32::from(answer.is_ok());
        answer
    }

    /// The vector that comes back from a round at this point.
    pub(crate) fn round<N: Wire, P: Wire, T: Scalar>(
        &mut self,
        at: &[T],
        note: Option<N>,
        private: P,
        length: usize,
    ) -> Result<Vec<T>, String> {
        let state = Shared::new(&DownMessage::whole(at));
        let down = Down { kind: ExchangeKind::Round, uplink: 0, note, private, grid: None, state };
        let up = Up::from_bytes(&self.ask(&down)?).unwrap();
        let mut value = T::zeros(length);
        Codec::Exact.decode(&up.packet, &mut value).unwrap();
        Ok(value)
    }
}

pub(crate) fn normal(count: usize, seed: u64) -> Vec<f64> {
    let mut stream = Key::root(seed).stream();
    (0..count).map(|_| stream.normal()).collect()
}

/// Marks the row that a guess equals.
fn note(read: &mut [bool], rows: &[f64], guess: &[f64], error_max: f64) {
    let near = |row: &[f64]| row.iter().zip(guess).all(|(x, g)| (x - g).abs() < error_max);
    if let Some(at) = rows.chunks_exact(guess.len()).position(near) {
        read[at] = true;
    }
}

fn count(read: &[bool]) -> usize {
    read.iter().filter(|read| **read).count()
}

const COLUMNS: usize = 3;

/// A client of a mixture with full covariances, over exact channels.
struct Mixed {
    spy: Spy,
    rows: Vec<f64>,
    components: usize,
    /// The mean of all rows, from the enrolment.
    mean: Vec<f64>,
}

impl Mixed {
    fn new(components: usize, min_group: Option<u32>) -> Self {
        Self::under(components, min_group, None)
    }

    fn under(components: usize, min_group: Option<u32>, private: Option<PrivateEm>) -> Self {
        let rows = normal(ROWS * COLUMNS, 7);
        let mut settings = GmmSettings::new(components, COLUMNS, Covariance::Full);
        settings.want_moments = true;
        let model = Gmm::new(settings).unwrap();
        let setup = Setup { memory: false, rounds: ROUNDS + 1, ..Setup::default() };
        assert_eq!((setup.form, setup.memories.clone()), (Form::Pair, FirstMemories::Oracle));
        let mut fit = setup.fit(model, MixtureStart::Moments);
        fit.oracle.private = private;
        let columns = (0..COLUMNS).map(|j| j.to_string()).collect();
        let mut data = ClientData::Table(Table::new(columns, rows.clone()).unwrap());
        if let Some(group) = min_group {
            guard::surrogates(&mut data, group).unwrap();
        }
        let spy = Spy::new(Arc::new(Erased(fit, BindRows)), data);
        let enrolment = Enrolment::<fedem::Summary>::from_bytes(&spy.summary).unwrap();
        let mean = enrolment.summary.moments.iter().copied().take(COLUMNS).collect();
        Self { spy, rows, components, mean }
    }

    /// Weights and first moments of the components at these means and deviations of columns.
    fn ask(&mut self, components: &[([f64; COLUMNS], [f64; COLUMNS])]) -> Result<Vec<f64>, String> {
        let (k, triangle) = (self.components, COLUMNS * (COLUMNS + 1) / 2);
        let q = k * (1 + COLUMNS + triangle);
        // Ŝ = 0, then equal weights, means and inverse factors with logarithmic diagonals.
        let mut at = vec![0.0; q + k];
        components.iter().for_each(|(mean, _)| at.extend(mean));
        for (_, deviations) in components {
            for (i, deviation) in deviations.iter().enumerate() {
                at.extend(vec![0.0; i]);
                at.push(-deviation.ln());
            }
        }
        self.spy.round(&at, None::<fedem::OuterLoop>, None::<Vec<f64>>, q)
    }

    /// A row with an error of a thousandth, as the centre of a narrow component.
    fn spike(&self, row: usize) -> ([f64; COLUMNS], [f64; COLUMNS]) {
        let error = normal(COLUMNS, 100 + row as u64);
        let row = &self.rows[row * COLUMNS..][..COLUMNS];
        (std::array::from_fn(|j| row[j] + 1e-3 * error[j]), [1e-3; COLUMNS])
    }
}

/// Rows read from components around single rows, and rows read from the rest: the mean of all rows
/// less the wide component.
fn spikes(components: usize, min_group: Option<u32>) -> [usize; 2] {
    let mut mixed = Mixed::new(components, min_group);
    let mut read = [vec![false; ROWS], vec![false; ROWS]];
    let all: Vec<usize> = (0..ROWS).collect();
    for some in all.chunks(components - 1).take(ROUNDS as usize) {
        let mut asked = vec![([0.0; COLUMNS], [2.0; COLUMNS]); components];
        some.iter().enumerate().for_each(|(at, row)| asked[at] = mixed.spike(*row));
        let Ok(told) = mixed.ask(&asked) else { continue };
        let (weights, sums) = told.split_at(components);
        let mean = |weight: f64, sum: &[f64]| sum.iter().map(|x| x / weight).collect::<Vec<_>>();
        for at in 0..some.len() {
            let guess = mean(weights[at], &sums[at * COLUMNS..][..COLUMNS]);
            note(&mut read[0], &mixed.rows, &guess, 1e-6);
        }
        let wide = components - 1;
        let sum = &sums[wide * COLUMNS..][..COLUMNS];
        let rest: Vec<f64> = mixed.mean.iter().zip(sum).map(|(all, sum)| all - sum).collect();
        note(&mut read[1], &mixed.rows, &mean(1.0 - weights[wide], &rest), 1e-6);
    }
    read.map(|read| count(&read))
}

/// Rows read as differences of two sums: two components divide the first column at a threshold, and
/// thresholds are bisected until one row lies between two of them. Needs no knowledge of the rows.
fn bisected(min_group: Option<u32>) -> usize {
    let mut mixed = Mixed::new(2, min_group);
    let (mut read, rows) = (vec![false; ROWS], mixed.rows.clone());
    let mut sum_below = |threshold: f64| {
        let half = |side: f64| ([threshold + side * 1e-3, 0.0, 0.0], [1e-4, 1e3, 1e3]);
        let told = mixed.ask(&[half(-1.0), half(1.0)]).ok()?;
        Some(([&told[..1], &told[2..2 + COLUMNS]].concat(), threshold))
    };
    let Some(all) = sum_below(10.0) else { return 0 };
    let mut between = vec![((vec![0.0; 1 + COLUMNS], -10.0), all)];
    while let Some((low, high)) = between.pop() {
        let rest: Vec<f64> = high.0.iter().zip(&low.0).map(|(high, low)| high - low).collect();
        match (rest[0] * ROWS as f64).round() as usize {
            0 => {}
            1 => {
                let guess: Vec<f64> = rest[1..].iter().map(|x| x / rest[0]).collect();
                note(&mut read, &rows, &guess, 1e-6);
            }
            // Components of fewer rows than a group are left out: their rows appear at one threshold.
            _ if high.1 - low.1 < 1e-3 => {}
            _ => {
                let Some(middle) = sum_below((low.1 + high.1) / 2.0) else { break };
                between.push((low, middle.clone()));
                between.push((middle, high));
            }
        }
    }
    count(&read)
}

#[test]
fn mixtures_with_narrow_components() {
    // Components around single rows are those rows, and so is the rest beside one of them.
    assert_eq!(spikes(10, None), [ROWS, 0]);
    assert_eq!(spikes(2, None), [ROUNDS as usize; 2]);
    assert_eq!(spikes(10, GROUP), [0; 2]);
    assert_eq!(spikes(2, GROUP), [0; 2]);
    // Differences between questions tell of surrogates, which are no rows.
    let read = [None, GROUP].map(bisected);
    println!("bisection with two components: {read:?} of {ROWS} rows in {ROUNDS} rounds");
    assert!(read[0] > 40 && read[1] == 0, "{read:?}");
}

/// A narrow component at a guessed row would make rounding errors of the row's coordinates larger than
/// the noise: a client that trusts no coordinator refuses it.
#[test]
fn components_too_narrow_for_the_noise() {
    for (deviation, distributed, refused) in
        [(1e-12, true, true), (1e-4, true, true), (1e-12, false, false), (0.1, true, false)]
    {
        let private = PrivateEm { row_bound: Some(6.7), distributed, averaged: 0..1 };
        let mut mixed = Mixed::under(2, None, Some(private));
        let guess = std::array::from_fn(|j| mixed.rows[j]);
        let told = mixed.ask(&[(guess, [deviation; COLUMNS]), ([0.0; COLUMNS], [1.0; COLUMNS])]);
        let said = told.err().unwrap_or_default();
        assert_eq!(said.contains("parameters so narrow"), refused, "{deviation} {said}");
    }
}

/// A client of the k-means on a grid: ten clusterings in each answer.
struct Clustered {
    spy: Spy,
    rows: Vec<f64>,
}

const STARTS: usize = 10;

impl Clustered {
    fn new(clusters: usize, rows_min: usize) -> Self {
        let rows = normal(ROWS * COLUMNS, 7);
        let model = Gmm::new(GmmSettings::new(clusters, COLUMNS, Covariance::Full)).unwrap();
        let method = Clustering { model, moments: Vec::new(), rows_min };
        let method = ExactSums { method, masks: None }.erased(BindRows);
        let columns = (0..COLUMNS).map(|j| j.to_string()).collect();
        let data = ClientData::Table(Table::new(columns, rows.clone()).unwrap());
        let mut clustered = Self { spy: Spy::new(method, data), rows };
        clustered.ask(&[]).unwrap();
        clustered
    }

    fn ask(&mut self, centres: &[f64]) -> Option<Vec<f64>> {
        let answer = self.spy.ask(&centres.to_vec()).ok()?;
        Some(Vec::from_bytes(&answer).unwrap())
    }

    /// Counts and sums of the rows by cluster.
    fn clusters(&mut self, centres: &[f64]) -> Option<Vec<Cluster>> {
        let answer = self.ask(centres)?;
        let (counts, rest) = answer.split_at(centres.len() / COLUMNS);
        let sums = rest[counts.len()..].chunks_exact(COLUMNS);
        Some(counts.iter().zip(sums).map(|(n, sum)| (*n as i64, sum.to_vec())).collect())
    }
}

/// The count and the sum of some rows.
type Cluster = (i64, Vec<f64>);

/// The one row in which two sums differ.
fn single(a: &Cluster, b: &Cluster) -> Option<Vec<f64>> {
    let sign = (a.0 - b.0) as f64;
    let row = a.1.iter().zip(&b.1).map(|(a, b)| sign * (a - b)).collect();
    (sign.abs() == 1.0).then_some(row)
}

/// Rows that a coordinator which follows the job reads off two sums of its answers.
fn read_from_lloyd(clusters: usize, rows_min: usize) -> usize {
    let mut client = Clustered::new(clusters, rows_min);
    let (mut read, rows) = (vec![false; ROWS], client.rows.clone());
    let mut centres = normal(STARTS * clusters * COLUMNS, 21);
    let mut told: Vec<Cluster> = Vec::new();
    for _ in 0..15 {
        let of_round = client.clusters(&centres).unwrap();
        for (centre, (n, sum)) in centres.chunks_exact_mut(COLUMNS).zip(&of_round) {
            centre.iter_mut().zip(sum).filter(|_| *n > 0).for_each(|(c, x)| *c = x / *n as f64);
        }
        told.extend(of_round);
    }
    for (at, a) in told.iter().enumerate() {
        let pairs = told[..at].iter().filter_map(|b| single(a, b));
        pairs.for_each(|row| note(&mut read, &rows, &row, 1e-6));
    }
    count(&read)
}

/// Rows read by a coordinator that divides a column at 50 thresholds in each message, each by a pair
/// of centres, and bisects between thresholds with more than one row. Needs no knowledge of the rows.
fn bisected_clusters(rows_min: usize) -> usize {
    let (clusters, pairs) = (10, 5);
    let mut client = Clustered::new(clusters, rows_min);
    let (mut read, rows) = (vec![false; ROWS], client.rows.clone());
    let sum = |j| rows.iter().skip(j).step_by(COLUMNS).sum();
    let mut below = vec![(-9.0, (0, vec![0.0; COLUMNS])), (9.0, (ROWS as i64, Vec::new()))];
    below[1].1.1 = (0..COLUMNS).map(sum).collect();
    let mut asked: Vec<f64> = (0..50).map(|i| -2.2 + 4.4 * f64::from(i) / 49.0).collect();
    loop {
        let mut centres = Vec::new();
        let of = |start| asked.iter().copied().skip(start).step_by(STARTS).take(pairs);
        for start in 0..STARTS {
            let own: Vec<f64> = of(start).collect();
            let gaps = own.windows(2).map(|pair| pair[1] - pair[0]);
            let beside = 0.1 * gaps.fold(1.0, f64::min);
            let near = own.iter().flat_map(|t| [t - beside, t + beside]);
            for x in near.chain(std::iter::repeat(1e6)).take(clusters) {
                centres.extend([x, 0.0, 0.0]);
            }
        }
        let Some(told) = client.clusters(&centres) else { return count(&read) };
        for (start, told) in told.chunks_exact(clusters).enumerate() {
            let mut under = (0, vec![0.0; COLUMNS]);
            for (threshold, sides) in of(start).zip(told.chunks_exact(2)) {
                let add = |to: &mut Cluster, (n, sum): &Cluster| {
                    to.0 += n;
                    to.1.iter_mut().zip(sum).for_each(|(to, x)| *to += x);
                };
                add(&mut under, &sides[0]);
                below.push((threshold, under.clone()));
                add(&mut under, &sides[1]);
            }
        }
        below.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut wide: Vec<(i64, f64)> = Vec::new();
        for pair in below.windows(2) {
            let ((low, a), (high, b)) = (&pair[0], &pair[1]);
            single(b, a).into_iter().for_each(|row| note(&mut read, &rows, &row, 1e-6));
            if b.0 - a.0 > 1 && high - low > 1e-9 {
                wide.push((a.0 - b.0, (low + high) / 2.0));
            }
        }
        wide.sort_by_key(|(rows, _)| *rows);
        asked = wide.iter().take(50).map(|(_, threshold)| *threshold).collect();
        asked.sort_by(f64::total_cmp);
    }
}

#[test]
fn clusterings_that_differ_in_a_row() {
    let honest = [1, 5].map(|rows_min| [3, 5, 10].map(|k| read_from_lloyd(k, rows_min)));
    println!("k-means on a grid with 3, 5, 10 clusters: {honest:?} of {ROWS} rows");
    assert!(honest[0].iter().all(|read| *read > 20) && honest[1] == [0; 3], "{honest:?}");
    let read = [1, 5].map(bisected_clusters);
    println!("bisection by pairs of centres: {read:?} of {ROWS} rows in 25 messages");
    assert!(read[0] > 150 && read[1] == 0, "{read:?}");
}

/// Rows read from gradients of a logistic regression at weights that misclassify one row. Two well
/// separated classes in 40 columns.
fn steep(min_group: Option<u32>) -> usize {
    let (d, mut rows) = (40, normal(ROWS * 40, 8));
    let sign = |row: usize| if row.is_multiple_of(2) { 1.0 } else { -1.0 };
    rows.chunks_exact_mut(d).enumerate().for_each(|(at, row)| row[0] += 6.0 * sign(at));
    let targets = (0..ROWS).map(sign).collect();
    let columns = (0..d).map(|j| j.to_string()).collect();
    let data = Labelled::new(columns, FeatureRows::Dense(rows.clone()), targets).unwrap();
    let uplink = Uplink::new(Codec::Exact, UpRule::Plain, d + 1).unwrap();
    let method = Sgd {
        oracle: Gradient::new(Problem::logistic(0.0, true).unwrap(), d + 1),
        terms: Terms {
            privacy: Privacy { min_group, ..Privacy::default() },
            ..equal_terms(uplink, Downlink::exact(d + 1), ROUNDS)
        },
    };
    let mut spy = Spy::new(Arc::new(Erased(method, BindRows)), ClientData::Labelled(data));
    let mut read = vec![false; ROWS];
    for (at, row) in rows.chunks_exact(d).enumerate().take(ROUNDS as usize) {
        let error = normal(d, 300 + at as u64);
        let known: Vec<f64> = row.iter().zip(error).map(|(x, e)| x + 0.01 * e).collect();
        // Separates the classes; less the part along the row, it puts this row alone on the wrong side.
        let side: Vec<f64> = known[1..].to_vec();
        let norm2: f64 = side.iter().map(|x| x * x).sum();
        let mut w = vec![0.0; d + 1];
        w[0] = 1e3;
        let push = 1e3 * (known[0].abs() + 1.0) / norm2;
        w[1..d].iter_mut().zip(&side).for_each(|(w, x)| *w = -sign(at) * push * x);
        let Ok(told) = spy.round(&w, None::<()>, (), d + 1) else { continue };
        let guess: Vec<f64> = told[..d].iter().map(|x| x / told[d]).collect();
        note(&mut read, &rows, &guess, 1e-6);
    }
    count(&read)
}

/// Rows read from one gradient of a network with 100 hidden units, each of which is positive for
/// about one row in 200: the quotient of a unit's gradients in its weights and its intercept.
fn trapped() -> usize {
    let (d, hidden) = (10, 100);
    let inputs: Vec<f32> = normal(ROWS * d, 9).iter().map(|x| *x as f32).collect();
    let rows: Vec<f64> = inputs.iter().map(|x| f64::from(*x)).collect();
    let of = (0..ROWS).map(|row| u16::from(row % 3 == 0)).collect();
    let targets = Targets::Classes { of, count: 2 };
    let samples = Samples::new(vec![d], Inputs::Real(inputs), targets).unwrap();
    let rate = 0.5;
    let training = Personal {
        learner: Arc::new(Network::mlp(d, &[hidden], 2)),
        rule: Arc::new(FedAvg { mu: 0.0, fine_tune: false }),
        solver: Solver { length: Length::Steps(1), batch: None, optimiser: Optimiser::PLAIN },
        rates: Rates::constant(rate),
        server: ServerStep::Plain { step: 1.0 },
        sampling: Sampling::KeepOld,
        participation: 1.0,
        own_solvers: Vec::new(),
        solver_of: BTreeMap::new(),
        start: None,
    };
    let length: usize = training.blocks().iter().sum();
    let method = training.over(Terms {
        uplinks: vec![Uplink::new(Codec::Exact, UpRule::Plain, length).unwrap()],
        own_uplinks: BTreeMap::new(),
        downlink: Downlink::exact(length),
        memories: FirstMemories::Zero,
        weights: Weights::Samples,
        budget: Budget::Rounds(1),
        privacy: Privacy::default(),
    });
    let mut spy = Spy::new(Arc::new(Erased(method, BindRows)), ClientData::Samples(samples));
    // Directions of unit length, thresholds at the quantile of one row in 200, then the head.
    let mut w: Vec<f32> = Vec::new();
    for direction in normal(hidden * d, 10).chunks_exact(d) {
        let norm = direction.iter().map(|x| x * x).sum::<f64>().sqrt();
        w.extend(direction.iter().map(|x| (x / norm) as f32));
    }
    w.extend(vec![-2.576; hidden]);
    w.extend(normal(2 * hidden, 11).iter().map(|x| *x as f32));
    w.resize(length, 0.0);
    let Ok(told) = spy.round(&w, Some(rate), 0u8, length) else { return 0 };
    let mut read = vec![false; ROWS];
    let (weights, rest) = told.split_at(hidden * d);
    for (unit, intercept) in weights.chunks_exact(d).zip(rest) {
        let guess: Vec<f64> = unit.iter().map(|x| f64::from(x / intercept)).collect();
        note(&mut read, &rows, &guess, 1e-3);
    }
    count(&read)
}

#[test]
fn steep_weights_and_traps() {
    let read = [None, GROUP].map(steep);
    println!("steep weights: {read:?} of {ROWS} rows in {ROUNDS} rounds");
    assert!(read[0] > 180 && read[1] == 0, "{read:?}");
    let read = trapped();
    println!("traps in a network: {read} of {ROWS} rows in one round");
    assert!(read > 15, "{read}");
}
