//! Uploads on a shared grid: rounding, sums, memories, and the grid's own moves.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use whimbrel_codec::channel::{GridNote, UpClient, UpFold, UpRule, UpServer, Uplink};
use whimbrel_codec::grid::{BLOCK, pack, unpack};
use whimbrel_codec::{Codec, Inclusion, Packet, SharedGrid};
use whimbrel_core::{Error, Key, Segment, Wire};
use whimbrel_testkit::pairs;

const MEMORY: UpRule = UpRule::Memory { alpha: 0.75 };

fn uplink(bits: u32, clients: u32, p: f64, rule: UpRule, d: usize) -> Uplink {
    let grid = SharedGrid::new(bits).unwrap().among(clients, Inclusion::Equal(p));
    Uplink::new(Codec::Grid(grid), rule, d).unwrap()
}

/// A federation over one uplink; client `i` weighs `i + 1`.
struct Federation {
    uplink: Uplink,
    server: UpServer,
    ends: Vec<UpClient>,
}

impl Federation {
    fn new(uplink: Uplink, clients: usize) -> Self {
        let mut server = uplink.server();
        server.grid.as_mut().unwrap().squares =
            (1..=clients).map(|weight| (weight * weight) as f64).sum();
        Self { uplink, server, ends: vec![UpClient::default(); clients] }
    }

    fn total(&self) -> f64 {
        (1..=self.ends.len()).sum::<usize>() as f64
    }

    fn note(&self, i: usize, opening: bool) -> GridNote {
        let among = (self.total(), self.ends.len() as u32);
        self.uplink.grid_note(&self.server, i as u32, among, opening).unwrap().unwrap()
    }

    fn open(&self, i: usize, g: &[f64]) -> whimbrel_core::Result<(UpClient, Packet)> {
        let note = self.note(i, true);
        self.uplink.open_on_grid(g, &self.uplink.grid_share(&note, (i + 1) as f64, true)?)
    }

    fn fold(&self, opening: bool) -> UpFold {
        self.uplink.grid_fold(self.total(), self.ends.len() as u32, opening).unwrap().unwrap()
    }

    fn send(&self, i: usize, g: &[f64], key: Key) -> (UpClient, Packet) {
        let key = key.child(i as u64);
        let note = self.note(i, false);
        let share = self.uplink.grid_share(&note, (i + 1) as f64, false).unwrap();
        self.uplink.send_on_grid(&self.ends[i], g, None, &share, key).unwrap()
    }

    /// The uploads of all clients, whose memories stay.
    fn uploads(&self, g: &[Vec<f64>], key: Key) -> UpFold {
        let mut fold = self.fold(false);
        for (i, g) in g.iter().enumerate() {
            let (_, packet) = self.send(i, g, key);
            self.uplink.absorb_on_grid(&mut fold, &packet, (i + 1) as f64).unwrap();
        }
        fold
    }

    /// One round with these clients at the values `g`; returns the estimate and the fold.
    fn round(&mut self, cohort: &[usize], g: &[Vec<f64>], key: Key) -> (Vec<f64>, UpFold) {
        let mut fold = self.fold(false);
        for i in cohort {
            let (end, packet) = self.send(*i, &g[*i], key);
            self.uplink.absorb_on_grid(&mut fold, &packet, (i + 1) as f64).unwrap();
            self.ends[*i] = end;
        }
        let total = self.total();
        (self.uplink.collect(&mut self.server, &[(&fold, None)], total), fold)
    }

    fn follow(&mut self, fold: UpFold, moved: Vec<f64>) {
        let total = self.total();
        let memory: Vec<f64> = self.server.memory_sum.iter().map(|h| h / total).collect();
        self.uplink.follow(&mut self.server, &[fold], self.ends.len() as u32, moved, &memory);
    }

    fn set_levels(&mut self, change: impl Fn(f64) -> f64) {
        let levels = &mut self.server.grid.as_mut().unwrap().levels;
        levels.iter_mut().for_each(|level| *level = change(*level));
    }

    /// `sum (n_i/N) x_i`.
    fn mean(&self, values: &[Vec<f64>]) -> Vec<f64> {
        let total = self.total();
        let at = |j: usize| {
            values.iter().enumerate().map(|(i, x)| (i + 1) as f64 / total * x[j]).sum::<f64>()
        };
        (0..values[0].len()).map(at).collect()
    }
}

fn normals(count: usize, d: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut stream = Key::root(seed).stream();
    (0..count).map(|_| (0..d).map(|_| stream.normal()).collect()).collect()
}

fn distance2(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The estimate is unbiased and its variance within `omega` of the addends, at the levels that the rule
/// asks for. Means of 2,000 draws deviate by more than six standard errors in one of 5e8 coordinates.
#[test]
fn sums_are_unbiased_with_variance_below_omega() {
    const DRAWS: u64 = 2000;
    let (n, d) = (3, BLOCK + 40);
    for (bits, rule) in [(8, UpRule::Plain), (16, UpRule::Plain), (16, MEMORY)] {
        let mut federation = Federation::new(uplink(bits, n as u32, 1.0, rule, d), n);
        let g = normals(n, d, 5);
        // The grid adapts to these values, by at most seven levels a round.
        for round in 0..12 {
            let fold = federation.uploads(&g, Key::root(round));
            federation.follow(fold, vec![0.0; d]);
        }
        let wanted = federation.mean(&g);
        let (mut mean, mut squares) = (vec![0.0; d], vec![0.0; d]);
        for draw in 0..DRAWS {
            let fold = federation.uploads(&g, Key::root(1000 + draw));
            let estimate =
                federation.uplink.collect(&mut federation.server.clone(), &[(&fold, None)], 6.0);
            for (j, value) in estimate.iter().enumerate() {
                mean[j] += value / DRAWS as f64;
                squares[j] += (value - wanted[j]).powi(2) / DRAWS as f64;
            }
        }
        for j in 0..d {
            let error = (squares[j] / DRAWS as f64).sqrt().max(1e-15);
            assert!((mean[j] - wanted[j]).abs() < 6.0 * error, "{bits} bits, {j}");
        }
        let addends: f64 = g
            .iter()
            .enumerate()
            .map(|(i, g)| distance2(g, &vec![0.0; d]) * ((i + 1) as f64 / 6.0).powi(2))
            .sum();
        let variance: f64 = squares.iter().sum();
        let omega = federation.uplink.omega().unwrap();
        assert!(variance <= omega * addends, "{bits} bits: {variance} of {}", omega * addends);
        // Not by a grid that is needlessly fine: one step less would be below a sixteenth.
        assert!(variance > omega * addends / 16.0, "{bits} bits: {variance}");
    }
}

#[test]
fn both_ends_decode_the_same_value_and_bytes_are_counted() {
    for (bits, d) in [(8, 1), (11, 70), (16, BLOCK), (29, BLOCK + 1), (32, 3 * BLOCK - 5)] {
        let mut federation =
            Federation::new(uplink(bits, 1, 1.0, UpRule::Memory { alpha: 1.0 }, d), 1);
        federation.set_levels(|_| -4.0);
        let g = normals(1, d, u64::from(bits));
        let (estimate, _) = federation.round(&[0], &g, Key::root(3));
        assert_eq!(estimate, federation.ends[0].kept);
        let (_, packet) = federation.send(0, &g[0], Key::root(3));
        assert_eq!(packet.len(), (bits as usize * d).div_ceil(8) + 16 * d.div_ceil(BLOCK));
        let (_, opening) = federation.open(0, &g[0]).unwrap();
        assert_eq!(opening.len(), 8 * d);
    }
}

/// Adding words modulo their widths and absorbing the sum is absorbing each upload.
#[test]
fn a_sum_of_uploads_is_an_upload_of_sums() {
    let (n, d) = (5, 2 * BLOCK + 7);
    for (bits, opening) in [(8, false), (16, false), (32, false), (16, true)] {
        let mut federation = Federation::new(uplink(bits, n as u32, 1.0, MEMORY, d), n);
        federation.set_levels(|_| -6.0);
        let g = normals(n, d, 9);
        let (mut one_by_one, mut sums): (UpFold, Vec<Segment>) =
            (federation.fold(opening), Vec::new());
        let mut at_once = federation.fold(opening);
        for (i, g) in g.iter().enumerate() {
            let packet = if opening {
                federation.open(i, g).unwrap().1
            } else {
                federation.send(i, g, Key::root(2)).1
            };
            federation.uplink.absorb_on_grid(&mut one_by_one, &packet, 1.0).unwrap();
            federation.uplink.absorb_sender(&mut at_once, 1.0).unwrap();
            let segments = federation.uplink.segments(&packet, opening).unwrap();
            if sums.is_empty() {
                sums = segments;
                continue;
            }
            for (sum, segment) in sums.iter_mut().zip(&segments) {
                let mask = u64::MAX >> (64 - sum.width);
                for (sum, word) in sum.words.iter_mut().zip(&segment.words) {
                    *sum = sum.wrapping_add(*word) & mask;
                }
            }
        }
        federation.uplink.absorb_words(&mut at_once, &pack(&sums)).unwrap();
        assert!(at_once == one_by_one, "{bits} bits, opening: {opening}");
        assert_eq!(UpFold::from_bytes(&at_once.to_bytes()).unwrap(), at_once);
        // As one client's upload, eight-bit sums are out of range.
        let alone =
            federation.uplink.absorb_on_grid(&mut federation.fold(opening), &pack(&sums), 1.0);
        assert_eq!(alone.is_err(), bits == 8);
    }
}

/// Least squares with weights, samples of the clients and unequal probabilities: the server's memory
/// is the sum of the clients', and the run converges although the grid is 10,000 times too fine once.
#[test]
fn memories_agree_and_clips_heal() {
    let (n, d, rounds) = (10, 30, 300);
    let curvature = normals(n, d, 31);
    let optimum = normals(n, d, 32);
    let gradient = |i: usize, x: &[f64]| -> Vec<f64> {
        let each = x.iter().zip(&curvature[i]).zip(&optimum[i]);
        each.map(|((x, a), o)| (0.2 + 0.8 * a.abs().min(1.0)) * (x - o)).collect()
    };
    let unequal =
        Inclusion::Each { each: (0..n).map(|i| 0.5 + 0.05 * i as f64).collect(), others: 0.5 };
    for (inclusion, too_fine) in [
        (Inclusion::Equal(1.0), false),
        (Inclusion::Equal(1.0), true),
        (unequal.clone(), false),
        (unequal, true),
    ] {
        let grid = SharedGrid::new(16).unwrap().among(n as u32, inclusion.clone());
        let alpha = 1.0 / (1.0 + grid.omega());
        let uplink = Uplink::new(Codec::Grid(grid), UpRule::Memory { alpha }, d).unwrap();
        let mut federation = Federation::new(uplink, n);
        let mut x = vec![0.0; d];
        let mut norm2 = 0.0;
        for round in 0..rounds {
            let key = Key::root(40).child(round);
            let g: Vec<_> = (0..n).map(|i| gradient(i, &x)).collect();
            norm2 = distance2(&federation.mean(&g), &vec![0.0; d]);
            if too_fine && round == 60 {
                federation.set_levels(|level| level - 10_000f64.log2());
            }
            let drawn =
                |i: &usize| key.child(*i as u64).uniform() < inclusion.of(*i as u32, n as u32);
            let cohort: Vec<usize> = (0..n).filter(drawn).collect();
            let (estimate, fold) = federation.round(&cohort, &g, key);
            let moved: Vec<f64> = estimate.iter().map(|g| -0.5 * g).collect();
            x.iter_mut().zip(&moved).for_each(|(x, by)| *x += by);
            federation.follow(fold, moved);
            let memories: Vec<Vec<f64>> = federation
                .ends
                .iter()
                .map(|end| if end.kept.is_empty() { vec![0.0; d] } else { end.kept.clone() })
                .collect();
            let mean = federation.mean(&memories);
            for (a, b) in pairs(&mean, &federation.server.memory_sum) {
                assert!((a - b / 55.0).abs() < 1e-13, "round {round}: {a} and {b}");
            }
        }
        assert!(norm2 < 1e-20, "{inclusion:?}, too fine once: {too_fine}: {norm2:e}");
    }
}

#[test]
fn formats_are_frozen() {
    const X: [f64; 8] = [0.5, -1.25, 0.0, 3.0, -0.001, 0.75, 2.0, -0.3];
    let hex = |packet: &Packet| whimbrel_core::wire::hex(packet.bytes());
    let mut federation = Federation::new(uplink(12, 2, 1.0, MEMORY, 8), 2);
    federation.set_levels(|_| -7.5);
    let (_, packet) = federation.send(1, &X, Key::root(1));
    assert_eq!(hex(&packet), "2b60f9000010000004ab60fece92df06000000000000000000000000");
    let (_, opening) = federation.open(0, &X).unwrap();
    assert_eq!(
        hex(&opening),
        "abaaaa0a00000000555555e5ffffffff00000000000000000000004000000000e689faffffffffff0000001000000000abaaaa2a000000009a9999f9ffffffff",
    );
    assert_eq!(
        whimbrel_core::wire::hex(&federation.note(1, false).to_bytes()),
        "0000000000000840020000000001f9ffffff",
    );
}

#[test]
fn grids_that_overflow_are_refused_with_a_hint() {
    let new = |bits: u32, clients, p| {
        let grid = SharedGrid::new(bits).unwrap().among(clients, Inclusion::Equal(p));
        Uplink::new(Codec::Grid(grid), MEMORY, 4)
    };
    for (bits, clients, p, cap) in
        [(16, 4681, 1.0, 7), (16, 1057, 0.5, 31), (8, 18, 1.0, 7), (8, 4, 0.9, 31)]
    {
        assert_eq!(new(bits, clients, p).unwrap().grid().unwrap().cap(0).unwrap(), cap);
        let message = new(bits, clients + 1, p).unwrap_err().to_string();
        assert!(message.contains(&format!("hint: write bits = {}", bits + 1)), "{message}");
        // A late joiner may be one too many.
        assert!(new(bits, clients, p).unwrap().check_enrolled(clients + 1).is_err());
    }
    assert!(SharedGrid::new(7).is_err() && SharedGrid::new(33).is_err());
    assert!(new(16, 0, 1.0).is_err());
    let grid = SharedGrid::new(16).unwrap().among(3, Inclusion::Equal(1.0));
    assert!(Uplink::new(Codec::Grid(grid), UpRule::Feedback, 4).is_err());
}

/// Opening values that no sum can hold are the client's error; at the limit they still fit.
#[test]
fn opening_values_are_checked_against_overflow() {
    let federation = Federation::new(uplink(16, 2, 1.0, MEMORY, 1), 2);
    // The client weighs a third of all.
    let limit = 3.0 * (i64::MAX / 2) as f64 * 2f64.powi(-30);
    assert!(federation.open(0, &[0.99 * limit]).is_ok());
    let error = federation.open(0, &[-1.01 * limit]).unwrap_err();
    assert!(matches!(error, Error::Numerical { .. }), "{error}");
    assert!(federation.open(0, &[f64::NAN]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn arbitrary_bytes_are_refused_or_within_the_grid(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        bits in 8u32..=32,
        d in 0usize..40,
        fits in any::<bool>(),
        opening in any::<bool>(),
    ) {
        let uplink = uplink(bits, 1, 1.0, MEMORY, d);
        if fits {
            bytes.resize(if opening { 8 * d } else { (bits as usize * d).div_ceil(8) + 16 * d.div_ceil(BLOCK) }, 0);
        }
        let mut fold = uplink.grid_fold(1.0, 1, opening).unwrap().unwrap();
        let packet = Packet::from_bytes(bytes);
        match uplink.absorb_on_grid(&mut fold, &packet, 1.0) {
            Ok(()) => {
                let estimate = uplink.collect(&mut uplink.server(), &[(&fold, None)], 1.0);
                prop_assert!(estimate.iter().all(|v| v.is_finite()));
            }
            Err(error) => prop_assert!(matches!(error, Error::Peer { .. }), "{error}"),
        }
    }

    #[test]
    fn segments_survive_their_bytes(
        words in proptest::collection::vec(any::<u64>(), 0..40),
        width in 8u32..=64,
    ) {
        let words: Vec<u64> = words.iter().map(|word| word & (u64::MAX >> (64 - width))).collect();
        let shape = [(width, words.len()), (64, 2)];
        let segments = vec![Segment { width, words }, Segment { width: 64, words: vec![1, u64::MAX] }];
        prop_assert_eq!(unpack(&pack(&segments), &shape).unwrap(), segments);
    }

    #[test]
    fn hostile_notes_are_refused_or_harmless(
        total in any::<f64>(),
        enrolled in any::<u32>(),
        inclusion in any::<Option<f64>>(),
        exponents in proptest::collection::vec(-1100i32..1100, 0..3),
        opening in any::<bool>(),
    ) {
        let uplink = uplink(16, 3, 1.0, MEMORY, 5);
        let note = GridNote { total, enrolled, inclusion, exponents };
        let Ok(note) = uplink.grid_share(&note, 2.0, opening) else { return Ok(()) };
        let (end, g) = (UpClient { kept: vec![0.5; 5] }, [1e200, -1.0, 0.0, 1e-200, 3.0]);
        let sent = if opening {
            uplink.open_on_grid(&g, &note)
        } else {
            uplink.send_on_grid(&end, &g, None, &note, Key::root(1))
        };
        let internal = matches!(sent, Err(Error::Internal { .. }));
        prop_assert!(!internal);
    }
}
