//! FedMissEM at work: the optimum of soft-impute, stationary points of counts, noise that vanishes,
//! and objectives that never increase.

use std::sync::Arc;
use whimbrel_codec::channel::{Auto, DownRule, Downlink, Feedback, Memories, UpRule};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::method::MetricValue;
use whimbrel_core::wire::put_varint;
use whimbrel_core::{
    Cell, Cells, ClientData, ClientId, DynMethod, Erased, Key, Probability, Wire, linalg, math,
    vector,
};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Protocol, Simulator};
use whimbrel_methods::fedmiss::{
    BindCells, Client, Copies, FedMiss, Peer, Positions, Server, StepRule,
};
use whimbrel_methods::settings::Batch;
use whimbrel_methods::step::Schedule;
use whimbrel_models::lowrank::{Effects, Factors, Family, LowRank, LowRankFit, Settings, Term};
use whimbrel_testkit::method::{MethodUnderTest, laws};
use whimbrel_testkit::{gap, pairs};

pub const ROWS: usize = 18;
pub const COLUMNS: usize = 11;

/// A rank-2 table with noise; each client observed some cells, and a few are observed twice.
pub fn clients(family: Family, count: usize, per_client: usize, key: Key) -> Vec<ClientData> {
    let mut stream = key.stream();
    let mut normal = |n: usize| (0..n).map(|_| stream.normal()).collect::<Vec<f64>>();
    let (u, v) = (normal(2 * ROWS), normal(2 * COLUMNS));
    let one = |c: usize| {
        let mut stream = key.child(1 + c as u64).stream();
        let chosen = stream.choose(ROWS * COLUMNS, per_client + 8);
        let mut cell = |at: usize| {
            let (row, column) = (at / COLUMNS, at % COLUMNS);
            let theta = 0.7 * (u[2 * row] * v[2 * column] + u[2 * row + 1] * v[2 * column + 1]);
            let mean = family.mean(theta + 0.5);
            let value = family.draw(mean, 0.3, &mut stream);
            Cell { row: row as u32, column: column as u32, value }
        };
        let cells: Vec<Cell> = chosen.into_iter().map(&mut cell).collect();
        let (held_out, observed) = cells.split_at(8);
        client([ROWS, COLUMNS], observed.to_vec(), held_out.to_vec())
    };
    (0..count).map(one).collect()
}

/// A client with these cells of a table.
pub fn client(sizes: [usize; 2], observed: Vec<Cell>, held_out: Vec<Cell>) -> ClientData {
    let labels = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>().into();
    let [rows, columns] = sizes.map(labels);
    ClientData::Cells(Cells::new(rows, columns, observed, held_out).unwrap())
}

pub fn cells_of(data: &ClientData) -> &Cells {
    match data {
        ClientData::Cells(cells) => cells,
        _ => panic!("cells"),
    }
}

pub fn dither(levels: u32) -> Codec {
    Codec::dithering(levels, Norm::P(2), None).unwrap()
}

pub fn cohort(p: f64) -> Participation {
    match p {
        1.0 => Participation::Everyone,
        p => Participation::Bernoulli(Probability::new(p).unwrap()),
    }
}

#[derive(Clone)]
pub struct Setup {
    pub settings: Settings,
    pub step: StepRule,
    pub copies: Copies,
    pub batch: Batch,
    pub codec: Codec,
    pub rule: UpRule<Auto>,
    pub open_memories: bool,
    pub personal: bool,
    pub participation: f64,
    pub rounds: u32,
}

impl Setup {
    pub fn ranked(family: Family, rank: usize, lambda: f64) -> Self {
        let new = Self::new(family);
        Self { settings: Settings { rank, lambda, ..new.settings }, ..new }
    }

    pub fn with_effects(family: Family) -> Self {
        let new = Self::new(family);
        Self { settings: Settings { effects: Effects::row_column(), ..new.settings }, ..new }
    }

    pub fn new(family: Family) -> Self {
        let settings = Settings { rank: 3, lambda: 0.3, ..Settings::new(ROWS, COLUMNS, family) };
        Self {
            settings,
            step: StepRule::Auto,
            copies: Copies::Auto,
            batch: Batch::Full,
            codec: Codec::Exact,
            rule: UpRule::Memory { alpha: None },
            open_memories: true,
            personal: false,
            participation: 1.0,
            rounds: 300,
        }
    }

    pub fn method(&self) -> Arc<Erased<FedMiss, BindCells>> {
        let method = FedMiss {
            step: self.step,
            batch: self.batch,
            copies: self.copies,
            codecs: vec![self.codec.clone()],
            rule: self.rule,
            open_memories: self.open_memories,
            personal: self.personal,
            participation: self.participation,
            ..FedMiss::exact(LowRank::new(self.settings.clone()).unwrap(), self.rounds)
        };
        method.check().unwrap();
        Arc::new(Erased(method, BindCells))
    }
}

pub fn given(gamma: f64) -> StepRule {
    StepRule::Given(Schedule::constant(gamma).unwrap())
}

pub fn cells(size: u32) -> Batch {
    Batch::Sample { size, replacement: false, local_steps: 1 }
}

/// A simulation before its first exchange.
pub fn begun(
    method: Arc<dyn DynMethod>,
    data: &[ClientData],
    seed: u64,
    participation: Participation,
    faults: Faults,
) -> Simulator {
    let names = (0..data.len()).map(|i| format!("{i:03}")).collect();
    let bound = data.iter().map(|d| method.bind(d).unwrap()).collect();
    let federation = Arc::new(Federation::new(names, bound));
    Simulator::start(method, federation, StageKeys::new(seed, 0), participation, faults).unwrap()
}

/// A simulation with everyone in every round, after its last exchange.
pub fn finished(method: Arc<dyn DynMethod>, data: &[ClientData]) -> Simulator {
    let mut simulator = begun(method, data, 1, Participation::Everyone, Faults::default());
    while simulator.step().unwrap().is_some() {}
    simulator
}

pub fn server(simulator: &Simulator) -> &Server {
    simulator.machine().server().downcast_ref().unwrap()
}

/// The last state, and the named metric after each round.
pub fn run(
    setup: &Setup,
    data: &[ClientData],
    participation: Participation,
    metric: Option<&str>,
) -> (Server, Vec<f64>) {
    let mut simulator = begun(setup.method(), data, 1, participation, Faults::default());
    let mut values = Vec::new();
    while let Some(done) = simulator.step().unwrap() {
        if let (Some(name), Some(_)) = (metric, done.round) {
            let (metrics, _) = simulator.evaluate().unwrap();
            match metrics.iter().find(|m| m.name == name).unwrap().value {
                MetricValue::Number(value) => values.push(value),
                _ => panic!("{name} is not a number"),
            }
        }
    }
    (server(&simulator).clone(), values)
}

pub fn all_cells(data: &[ClientData]) -> Vec<Cell> {
    data.iter().flat_map(|d| cells_of(d).observed.clone()).collect()
}

pub fn held_out(data: &[ClientData]) -> Vec<Cell> {
    data.iter().flat_map(|d| cells_of(d).held_out.clone()).collect()
}

/// Proximal gradient with full singular value decompositions, to convergence: the optimum of
/// `(1/2) sum_observed (y - theta)^2 + threshold |theta|_*`.
pub fn soft_impute(cells: &[Cell], threshold: f64) -> (Vec<f64>, f64) {
    let at = |cell: &Cell| cell.row as usize * COLUMNS + cell.column as usize;
    let mut counts = [0.0f64; ROWS * COLUMNS];
    cells.iter().for_each(|cell| counts[at(cell)] += 1.0);
    let longest = counts.iter().fold(0.0f64, |a, b| a.max(*b));
    let mut theta = vec![0.0; ROWS * COLUMNS];
    let (mut change, mut nuclear) = (f64::INFINITY, 0.0);
    while change > 1e-13 {
        let mut moved = theta.clone();
        for cell in cells {
            moved[at(cell)] += (cell.value - theta[at(cell)]) / longest;
        }
        let next;
        (next, nuclear) = shrunk(&moved, threshold / longest);
        change = gap(&next, &theta);
        theta = next;
    }
    let fit: f64 = cells.iter().map(|cell| (cell.value - theta[at(cell)]).powi(2)).sum();
    (theta, 0.5 * fit + threshold * nuclear)
}

/// Singular values less `tau`, and their sum.
pub fn shrunk(a: &[f64], tau: f64) -> (Vec<f64>, f64) {
    let mut gram = vec![0.0; COLUMNS * COLUMNS];
    for row in a.chunks_exact(COLUMNS) {
        for (i, x) in row.iter().enumerate() {
            vector::axpy(&mut gram[i * COLUMNS..][..COLUMNS], *x, row);
        }
    }
    let eigen = linalg::symmetric_eigen(&gram, COLUMNS).unwrap();
    let (mut out, mut nuclear) = (vec![0.0; a.len()], 0.0);
    for (value, v) in pairs(&eigen.values, eigen.vectors.chunks_exact(COLUMNS)) {
        let sigma = value.max(0.0).sqrt();
        if sigma <= tau || sigma < 1e-9 {
            continue;
        }
        nuclear += sigma - tau;
        for (out, row) in out.chunks_exact_mut(COLUMNS).zip(a.chunks_exact(COLUMNS)) {
            vector::axpy(out, vector::dot(row, v) * (sigma - tau) / sigma, v);
        }
    }
    (out, nuclear)
}

/// `n F` of a Gaussian fit, up to the constant that soft-impute leaves out.
pub fn soft_objective(setup: &Setup, factors: &Factors, cells: &[Cell], n: f64) -> f64 {
    let norm2 = |a: &[f64]| vector::norm2_squared(a);
    let model = LowRank::new(setup.settings.clone()).unwrap();
    let fit: f64 = cells
        .iter()
        .map(|c| (c.value - model.theta(factors, c.row as usize, c.column as usize)).powi(2))
        .sum();
    0.5 * fit + 0.5 * n * setup.settings.lambda * (norm2(&factors.u) + norm2(&factors.v))
}

#[test]
fn full_batches_reach_the_optimum_of_soft_impute() {
    let data = clients(Family::Gaussian, 4, 45, Key::root(11));
    let cells = all_cells(&data);
    for copies in [Copies::Fewest, Copies::Clients] {
        let ranked = Setup::ranked(Family::Gaussian, 9, 0.5);
        let setup = Setup { copies, step: given(1.0), rounds: 1_500, ..ranked };
        let (theta, best) = soft_impute(&cells, 4.0 * 0.5);
        let server = reaches(best, &setup, &data);
        let model = LowRank::new(setup.settings.clone()).unwrap();
        let of = |at| model.theta(&server.factors, at / COLUMNS, at % COLUMNS);
        let gap = vector::largest((0..ROWS * COLUMNS).map(|at| (of(at) - theta[at]).abs()));
        assert!(gap < 1e-5, "{copies:?}: theta is off by {gap}");
    }
}

/// The memories make the noise of minibatches vanish, at the paper's scaling and a long step.
#[test]
fn minibatches_reach_the_optimum_of_soft_impute_too() {
    let data = clients(Family::Gaussian, 4, 60, Key::root(12));
    let cells = all_cells(&data);
    let setup = Setup {
        copies: Copies::Clients,
        step: given(0.3),
        batch: self::cells(20),
        rounds: 3_000,
        ..Setup::ranked(Family::Gaussian, 9, 0.5)
    };
    let (_, best) = soft_impute(&cells, 4.0 * 0.5);
    for open_memories in [true, false] {
        let setup = Setup { open_memories, ..setup.clone() };
        let server = reaches(best, &setup, &data);
        assert!(server.update_norm2.unwrap() < 1e-16, "{:?}", server.update_norm2);
    }
    // Without memories the same job keeps its noise.
    let plain = Setup { rule: UpRule::Plain, ..setup };
    let (server, _) = run(&plain, &data, Participation::Everyone, None);
    assert!(server.update_norm2.unwrap() > 1e-3, "{:?}", server.update_norm2);
}

/// The largest gradient of `F` in effects and factors.
pub fn gradient(setup: &Setup, factors: &Factors, cells: &[Cell], n: f64) -> f64 {
    let Settings { family, rank: r, lambda, lambda_effects, .. } = setup.settings;
    let model = LowRank::new(setup.settings.clone()).unwrap();
    let mut du: Vec<f64> = factors.u.iter().map(|u| lambda * u).collect();
    let mut dv: Vec<f64> = factors.v.iter().map(|v| lambda * v).collect();
    let terms = factors.effects.iter();
    let mut terms: Vec<Vec<f64>> =
        terms.map(|own| own.iter().map(|a| lambda_effects * a).collect()).collect();
    let mut dmu = 0.0;
    for cell in cells {
        let (j, l) = (cell.row as usize, cell.column as usize);
        let slope = (family.mean(model.theta(factors, j, l)) - cell.value) / n;
        dmu += slope;
        for (term, own) in model.terms().iter().zip(&mut terms) {
            own[if term.name == "row" { j } else { l }] += slope;
        }
        for k in 0..r {
            du[j * r + k] += slope * factors.v[l * r + k];
            dv[l * r + k] += slope * factors.u[j * r + k];
        }
    }
    let intercept = if terms.is_empty() { 0.0 } else { dmu };
    let norms = terms.iter().chain([&du, &dv]).map(|own| vector::norm_inf(own));
    vector::largest(norms.chain([intercept.abs()]))
}

/// A run with everyone ends at the optimum of soft-impute.
pub fn reaches(best: f64, setup: &Setup, data: &[ClientData]) -> Server {
    let (server, _) = run(setup, data, Participation::Everyone, None);
    let found = soft_objective(setup, &server.factors, &all_cells(data), data.len() as f64);
    let name = (setup.copies, setup.step, data.len());
    assert!((found - best).abs() <= 1e-8 * best, "{name:?}: {found} for {best}");
    server
}

#[test]
fn every_family_and_kind_of_effects_ends_at_a_stationary_point() {
    for family in Family::ALL {
        let data = clients(family, 4, 60, Key::root(13));
        let cells = all_cells(&data);
        for (effects, rank) in [
            (Effects::none(), 3),
            (Effects::of(vec![Term::row()]), 2),
            (Effects::of(vec![Term::column()]), 1),
            (Effects::row_column(), 2),
            (Effects::row_column(), 0),
        ] {
            let mut setup = Setup { rounds: 1_000, ..Setup::ranked(family, rank, 0.1) };
            setup.settings.effects = effects.clone();
            setup.settings.lambda_effects = 0.02;
            let (server, _) = run(&setup, &data, Participation::Everyone, None);
            let largest = gradient(&setup, &server.factors, &cells, 4.0);
            assert!(largest < 1e-6, "{family:?} {effects:?} rank {rank}: {largest}");
        }
    }
}

#[test]
fn with_everyone_and_no_noise_the_objective_never_increases() {
    for family in Family::ALL {
        let data = clients(family, 4, 60, Key::root(14));
        for (personal, copies, effects) in [
            (false, Copies::Fewest, Effects::none()),
            (false, Copies::Clients, Effects::row_column()),
            (true, Copies::Fewest, Effects::row_column()),
            (true, Copies::Clients, Effects::of(vec![Term::row()])),
        ] {
            let mut setup = Setup { personal, copies, rounds: 60, ..Setup::new(family) };
            setup.settings.effects = effects;
            let (server, values) = run(&setup, &data, Participation::Everyone, Some("objective"));
            assert_eq!(server.repairs, 0);
            for pair in values.windows(2) {
                let rise = pair[1] - pair[0];
                assert!(rise <= 1e-12 * pair[0].abs(), "{family:?} {personal}: rises by {rise}");
            }
            assert!(values[59] < values[0], "{family:?}: nothing was gained");
        }
    }
}

/// A client with three times the counts of the others has an effect near ln 3 above theirs.
#[test]
fn personal_effects_tell_experts_from_beginners() {
    let mut data = clients(Family::Poisson, 4, 100, Key::root(15));
    if let ClientData::Cells(cells) = &mut data[2] {
        cells.observed.iter_mut().for_each(|cell| cell.value *= 3.0);
    }
    let setup = Setup { personal: true, rounds: 400, ..Setup::with_effects(Family::Poisson) };
    let simulator = finished(setup.method(), &data);
    let effect = |c: usize| simulator.clients()[c].downcast_ref::<Client>().unwrap().effect;
    let others = (effect(0) + effect(1) + effect(3)) / 3.0;
    let gap = effect(2) - others;
    assert!((gap - math::ln(3.0)).abs() < 0.25, "{gap}");
}

/// Compressed minibatches with two thirds of the clients: the automatic step is stable, and the
/// field decreases by orders of magnitude.
#[test]
fn the_automatic_step_is_stable_under_every_kind_of_noise() {
    for family in Family::ALL {
        let data = clients(family, 5, 80, Key::root(16));
        for (codec, size, p) in [
            (dither(1), 10, 1.0),
            (dither(4), 20, 0.6),
            (Codec::sparse(0.25).unwrap(), 80, 1.0),
            (Codec::Exact, 4, 1.0),
        ] {
            let name = format!("{family:?} {} {size} {p}", codec.name());
            let setup = Setup {
                codec,
                batch: cells(size),
                participation: p,
                rounds: 3_000,
                ..Setup::with_effects(family)
            };
            let (server, _) = run(&setup, &data, cohort(p), None);
            let field = server.update_norm2.unwrap();
            assert!(field < 1e-8, "{name}: |H|^2 = {field:.1e}");
        }
    }
}

/// Lost uploads and late joiners do not move the fixed point.
#[test]
fn lost_uploads_and_late_joiners_leave_the_optimum_where_it_is() {
    let data = clients(Family::Poisson, 5, 60, Key::root(17));
    let cells = all_cells(&data);
    let setup = Setup {
        batch: self::cells(20),
        codec: dither(4),
        rounds: 4_000,
        participation: 0.7,
        ..Setup::with_effects(Family::Poisson)
    };
    let faults = Faults {
        lost: 0.2,
        late: [(ClientId(1), 30), (ClientId(4), 100)].into_iter().collect(),
        ..Faults::default()
    };
    let mut simulator = begun(setup.method(), &data, 3, cohort(0.7), faults);
    while simulator.step().unwrap().is_some() {}
    let server = server(&simulator);
    assert_eq!((server.clients, server.observations), (5, 300));
    let largest = gradient(&setup, &server.factors, &cells, 5.0);
    assert!(largest < 1e-6, "{largest}");
    assert!(memory_gap(&simulator) < 1e-12);
}

/// The distance of the server's sum of memories from the sum over clients.
pub fn memory_gap(simulator: &Simulator) -> f64 {
    let (machine, server) = (simulator.machine(), server(simulator));
    let mut sum = vec![0.0; server.union.len()];
    for id in machine.enrolled() {
        let peer = machine.peer(id).unwrap().downcast_ref::<Peer>().unwrap();
        let client = simulator.clients()[id.0 as usize].downcast_ref::<Client>().unwrap();
        for (place, value) in pairs(&peer.places, &client.up.kept) {
            sum[*place as usize] += value;
        }
    }
    gap(&sum, &server.up.memory_sum)
}

/// An exact minibatch takes its numbers, the key of the draw and a few bytes.
#[test]
fn uploads_are_as_small_as_their_minibatch() {
    let data = clients(Family::Gaussian, 4, 90, Key::root(18));
    let setup =
        Setup { batch: cells(10), open_memories: false, rounds: 5, ..Setup::new(Family::Gaussian) };
    let method = setup.method();
    let everyone = Participation::Everyone;
    let mut simulator = begun(method.clone(), &data, 1, everyone, Faults::default());
    let enrolment = simulator.traffic().up;
    assert!(enrolment < 4 * (90 + 16), "a byte or so per cell: {enrolment}");
    simulator.step().unwrap();
    let round = simulator.traffic().up - enrolment;
    assert!(round <= 4 * (10 * 8 + 16), "{round} bytes of four clients");
    while simulator.step().unwrap().is_some() {}
    let artifact = method.artifact(simulator.machine().server()).unwrap();
    let fit = LowRankFit::from_artifact(&artifact).unwrap();
    assert!(fit.calibration.as_ref().is_some_and(|c| c.calibrated), "{:?}", fit.calibration);
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    type Change = fn(&mut FedMiss);
    let cases: [(Change, &str); 4] = [
        (|m| m.codecs.push(Codec::Sign), "biased"),
        (|m| m.rule = UpRule::Memory { alpha: Some(1.5) }, "not in (0, 1]"),
        (
            |m| m.batch = Batch::Sample { size: 5, replacement: true, local_steps: 1 },
            "without replacement",
        ),
        (
            |m| {
                let degraded = DownRule::Degraded { feedback: Feedback::Off };
                let d = m.model.coordinates_len();
                m.downlink = Downlink::new(Codec::Natural, degraded, d, false).unwrap();
            },
            "degraded",
        ),
    ];
    for (change, says) in cases {
        let mut method = Arc::into_inner(Setup::new(Family::Poisson).method()).unwrap().0;
        change(&mut method);
        let error = method.check().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn values_outside_the_family_are_refused_with_their_place() {
    let mut data = clients(Family::Poisson, 3, 20, Key::root(20));
    if let ClientData::Cells(cells) = &mut data[0] {
        cells.observed[3].value = 2.5;
    }
    let method = Setup::new(Family::Poisson).method();
    let error = method.bind(&data[0]).unwrap_err().to_string();
    assert!(error.contains("2.5 is not a whole number"), "{error}");
    if let ClientData::Cells(cells) = &mut data[1] {
        cells.observed.clear();
    }
    assert!(method.bind(&data[1]).unwrap_err().to_string().contains("no observed cell"));
}

pub fn setups() -> Vec<Setup> {
    Family::ALL
        .into_iter()
        .flat_map(|family| {
            let base = Setup { rounds: 12, ..Setup::new(family) };
            let effects = Setup::with_effects(family).settings;
            let noisy = Setup { codec: dither(1), batch: cells(10), ..base.clone() };
            [
                Setup { open_memories: false, personal: true, settings: effects, ..noisy.clone() },
                Setup { rule: UpRule::Plain, ..base },
                noisy,
            ]
        })
        .collect()
}

#[test]
fn positions_travel_as_differences() {
    let cells = Positions(vec![3, 3, 10, 500, 500_000_000_000]);
    let bytes = cells.to_bytes();
    assert_eq!(bytes.len(), 1 + 1 + 1 + 1 + 2 + 6);
    assert_eq!(Positions::from_bytes(&bytes).unwrap(), cells);
    for cut in 0..bytes.len() {
        assert!(Positions::from_bytes(&bytes[..cut]).is_err());
    }
    let mut beyond = vec![2];
    put_varint(u64::MAX, &mut beyond);
    put_varint(1, &mut beyond);
    assert!(Positions::from_bytes(&beyond).is_err());
}

#[test]
fn battery() {
    for setup in setups() {
        let Settings { family, .. } = setup.settings;
        let data = clients(family, 4, 25, Key::root(21));
        let name = format!("fedmiss, {}, {}", family.name(), setup.codec.name());
        let setup = Setup { rounds: 3, ..setup };
        laws(&MethodUnderTest { name: &name, method: &*setup.method(), data: &data, exchanges: 6 });
    }
}

#[test]
fn a_compressed_downlink_carries_the_factors() {
    let data = clients(Family::Poisson, 4, 60, Key::root(22));
    let cells = all_cells(&data);
    let ranked = Setup::ranked(Family::Poisson, 3, 0.5);
    let setup = Setup { rounds: 3_000, step: given(0.2), ..ranked };
    let mut method = setup.method();
    let (d, blocks) = (method.0.model.coordinates_len(), method.0.model.blocks());
    let rule = DownRule::Preserved { alpha: 0.2, memories: Memories::Groups(1) };
    Arc::get_mut(&mut method).expect("one owner").0.downlink =
        Downlink::new(dither(8), rule, d, false).unwrap().with_blocks(&blocks).unwrap();
    laws(&MethodUnderTest { name: "fedmiss, mcm", method: &*method, data: &data, exchanges: 4 });
    let simulator = finished(method, &data);
    let largest = gradient(&setup, &server(&simulator).factors, &cells, 4.0);
    assert!(largest < 1e-6, "{largest}");
}
