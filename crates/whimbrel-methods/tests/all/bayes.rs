//! FedSOUK: the battery in every runner, its steps against the closed form, and where it ends.

use crate::federation::{bernoulli, equal_terms, simulator_of};
use std::cmp::Ordering;
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, UpRule, Uplink};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::linalg::{cholesky, solve_lower, solve_lower_transposed};
use whimbrel_core::method::Artifact;
use whimbrel_core::{
    ClientData, ClientId, DynMethod, Erased, Inputs, Key, Result, Samples, Targets,
};
use whimbrel_engine::{Faults, Participation, Protocol};
use whimbrel_methods::bayes::{
    Chains, Decay, Noise, Own, Part, Personalised, Precision, Radius, Rate, Schedule, Soul,
    SoulMethod, Steps,
};
use whimbrel_methods::federated::{
    BindRows, Context, ExchangeKind, Member, Oracle, Received, Terms,
};
use whimbrel_models::prior::{Prior, Shape};
use whimbrel_models::sampler::Kernel;
use whimbrel_nn::{Learner, LinearRepresentation, Logistic, Network};
use whimbrel_testkit::method::{MethodUnderTest, laws};
use whimbrel_testkit::pairs;
use whimbrel_testkit::runners::runners_agree;

const RAW: usize = 5;
const LATENT: usize = 2;
const NOISE: f64 = 0.3;

struct Setup {
    learner: Arc<dyn Learner>,
    part: Part,
    noise: Noise,
    shape: Shape,
    chains: Chains,
    rounds: u32,
    decay: Decay,
    participation: f64,
    codec: Codec,
    average: bool,
}

fn chains(kernel: Option<Kernel>) -> Chains {
    Chains {
        kernel,
        steps: 6,
        burn_in: 2,
        count: 1,
        batch: None,
        gamma: Rate::Share(1.0),
        kept: 4,
        thin: Some(2),
    }
}

impl Setup {
    fn new(kernel: Option<Kernel>) -> Self {
        Self {
            learner: Arc::new(LinearRepresentation::new(RAW, LATENT)),
            part: Part::Head,
            noise: Noise::Known(NOISE),
            shape: Shape::Diagonal,
            chains: chains(kernel),
            rounds: 6,
            decay: Decay { exponent: 0.6, from: 0.5 },
            participation: 1.0,
            codec: Codec::Exact,
            average: false,
        }
    }

    fn soul(&self) -> Soul {
        let model = Personalised::new(self.learner.clone(), self.part, self.noise).unwrap();
        let prior = Prior::new(model.personal(), self.shape).unwrap();
        Soul {
            model,
            prior,
            prior_scale: 0.7,
            chains: self.chains.clone(),
            steps: Steps {
                phi: Schedule::Auto,
                beta: Schedule::Auto,
                decay: self.decay,
                gamma_exponent: 0.0,
                rounds: self.rounds,
            },
            radius: Radius { phi: None, beta: None },
            precision: Precision { phi: 0.0, beta: 0.0 },
            average: self.average,
            rounds: self.rounds,
            rounds_before: 0,
            start: None,
            anneal: false,
            participation: self.participation,
        }
    }

    fn terms(&self, blocks: &[usize]) -> Terms {
        let d = blocks.iter().sum();
        let uplink = Uplink::new(self.codec.clone(), UpRule::Plain, d).unwrap();
        let uplink = uplink.with_blocks(blocks).unwrap().with_exact_last();
        equal_terms(uplink, Downlink::exact(d), self.rounds)
    }

    fn method(&self) -> SoulMethod {
        let soul = self.soul();
        let terms = self.terms(&soul.blocks());
        soul.over(terms)
    }

    /// `theta` after all rounds.
    fn run(&self, data: &[ClientData], seed: u64) -> Vec<f64> {
        self.try_run(data, seed).unwrap()
    }

    fn try_run(&self, data: &[ClientData], seed: u64) -> Result<Vec<f64>> {
        let method: Arc<dyn DynMethod> = Arc::new(Erased(self.method(), BindRows));
        let participation = if self.participation < 1.0 {
            bernoulli(self.participation)
        } else {
            Participation::Everyone
        };
        let mut simulator = simulator_of(method, data, seed, participation, Faults::default());
        while simulator.step()?.is_some() {}
        let artifact = simulator.machine().artifact().unwrap();
        Ok(self.soul().theta_of(&artifact).unwrap().iter().map(|x| f64::from(*x)).collect())
    }
}

/// Clients with heads of their own on one representation.
fn clients(count: usize, rows: usize) -> Vec<ClientData> {
    let mut stream = Key::root(5).stream();
    let truth: Vec<f64> = (0..RAW * LATENT).map(|_| stream.normal()).collect();
    let client = |_| {
        let head: Vec<f64> = (0..LATENT).map(|_| 0.5 + 0.7 * stream.normal()).collect();
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for _ in 0..rows {
            let row: Vec<f32> = (0..RAW).map(|_| stream.normal() as f32).collect();
            let feature =
                |v: &[f64]| row.iter().zip(v).map(|(x, v)| f64::from(*x) * v).sum::<f64>();
            let mean: f64 = truth.chunks(RAW).zip(&head).map(|(v, z)| z * feature(v)).sum();
            y.push((mean + NOISE * stream.normal()) as f32);
            x.extend(row);
        }
        ClientData::Samples(Samples::new(vec![RAW], Inputs::Real(x), Targets::Values(y)).unwrap())
    };
    (0..count).map(client).collect()
}

/// The same rows, with the sign of the target as class.
fn classes(data: &[ClientData]) -> Vec<ClientData> {
    let classed = |data: &ClientData| {
        let ClientData::Samples(samples) = data else { unreachable!() };
        let Targets::Values(y) = &samples.targets else { unreachable!() };
        let of = y.iter().map(|y| u16::from(*y > 0.0)).collect();
        let targets = Targets::Classes { of, count: 2 };
        let samples = Samples::new(samples.shape.clone(), samples.inputs.clone(), targets);
        ClientData::Samples(samples.unwrap())
    };
    data.iter().map(classed).collect()
}

#[test]
fn every_kernel_prior_and_part_passes_the_battery_in_every_runner() {
    let (numbers, dither) = (clients(6, 9), Codec::dithering(4, Norm::P(2), None).unwrap());
    let labels = classes(&numbers);
    let of = |name: &str| Setup::new(Some(Kernel::named(name).unwrap()));
    let several = Chains { count: 2, batch: Some(4), ..chains(Some(Kernel::Ula)) };
    let whole = |learner: Arc<dyn Learner>| Setup {
        learner,
        part: Part::All,
        noise: Noise::None,
        ..of("ula")
    };
    let mlp: Arc<dyn Learner> = Arc::new(Network::mlp(RAW, &[4], 2));
    for (name, setup) in [
        ("ula", of("ula")),
        ("in closed form", Setup::new(None)),
        ("preconditioned", of("preconditioned-ula")),
        ("underdamped", of("underdamped")),
        ("mala", of("mala")),
        ("hmc", of("hmc")),
        ("full prior", Setup { shape: Shape::Full, ..of("ula") }),
        ("mixture", Setup { shape: Shape::Mixture { components: 2 }, ..of("ula") }),
        ("learned noise", Setup { noise: Noise::Learned(1.0), average: true, ..of("ula") }),
        ("minibatches, two chains", Setup { chains: several, ..of("ula") }),
        ("dithered", Setup { codec: dither, participation: 0.5, ..of("ula") }),
        ("logistic", whole(Arc::new(Logistic::new(RAW, true)))),
        ("head of a network", Setup { part: Part::Head, ..whole(mlp.clone()) }),
        ("network", whole(mlp)),
    ] {
        let data = if setup.noise == Noise::None { &labels } else { &numbers };
        let method = Erased(setup.method(), BindRows);
        laws(&MethodUnderTest { name, method: &method, data, exchanges: 4 });
        runners_agree(name, method, data);
    }
}

/// `-ln p(y | phi, beta)` of one client, in closed form: `y ~ N(A m, s^2 I + A S A^T)`, `A = X phi^T`.
fn marginal(theta: &[f64], samples: &Samples) -> f64 {
    let (Inputs::Real(x), Targets::Values(y)) = (&samples.inputs, &samples.targets) else {
        unreachable!()
    };
    let (phi, beta) = theta.split_at(RAW * LATENT);
    let (mean, logs) = beta.split_at(LATENT);
    let n = y.len();
    let features: Vec<Vec<f64>> = x
        .chunks(RAW)
        .map(|x| {
            let feature = |v: &[f64]| x.iter().zip(v).map(|(x, v)| f64::from(*x) * v).sum();
            phi.chunks(RAW).map(feature).collect()
        })
        .collect();
    let mut covariance = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..n {
            let terms = features[i].iter().zip(&features[j]).zip(logs);
            covariance[i * n + j] = terms.map(|((a, b), l)| a * b * (2.0 * l).exp()).sum::<f64>()
                + if i == j { NOISE * NOISE } else { 0.0 };
        }
    }
    cholesky(&mut covariance, n).unwrap();
    let mut rest: Vec<f64> = (0..n)
        .map(|i| {
            let fitted: f64 = features[i].iter().zip(mean).map(|(a, m)| a * m).sum();
            f64::from(y[i]) - fitted
        })
        .collect();
    solve_lower(&covariance, n, &mut rest);
    let square: f64 = rest.iter().map(|r| r * r).sum();
    let determinant: f64 = (0..n).map(|i| covariance[i * n + i].ln()).sum();
    0.5 * square + determinant
}

fn objective(theta: &[f64], data: &[ClientData]) -> f64 {
    let each = data.iter().map(|data| match data {
        ClientData::Samples(samples) => marginal(theta, samples),
        _ => unreachable!(),
    });
    each.sum()
}

const CONTEXT: Context = Context {
    kind: ExchangeKind::Round,
    round: 0,
    k: 0,
    total: 20.0,
    rows: 1000,
    clients: 20,
    cohort: 0.0,
};

#[test]
fn steps_in_closed_form_are_gradients_of_the_marginal_posterior() {
    let data = clients(20, 12);
    let setup = Setup::new(None);
    let soul = setup.soul();
    let terms = setup.terms(&soul.blocks());
    let mut roster = data.iter().enumerate().map(|(i, client)| {
        let (bound, rows) = soul.bind(client)?;
        let (_, summary) = soul.enroll(&bound, Key::root(0))?;
        Ok(Member { id: ClientId(i as u32), weight: 1.0, rows, summary })
    });
    let start = soul.start(&mut roster, &terms, Key::root(1)).unwrap();
    let mut stream = Key::root(9).stream();
    let theta: Vec<f32> = start.theta.iter().map(|x| x + 0.3 * stream.normal() as f32).collect();
    let mut sum = vec![0.0; theta.len()];
    for client in &data {
        let (bound, _) = soul.bind(client).unwrap();
        let note = soul.tell(&start, &(), &CONTEXT).note;
        let state = (&theta[..]).into();
        let received = Received {
            kind: ExchangeKind::Round,
            state,
            note: note.as_ref(),
            private: &(),
            min_group: None,
        };
        let computed = soul.local(&received, &Own::default(), &bound, Key::root(2)).unwrap();
        sum.iter_mut().zip(computed.value).for_each(|(sum, x)| *sum += f64::from(x));
    }
    let wide: Vec<f64> = theta.iter().map(|x| f64::from(*x)).collect();
    let size = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    for at in 0..wide.len() {
        // Central differences of a smooth function: their error is of order h^2 and 1e-16/h.
        let h = 1e-5;
        let (mut above, mut below) = (wide.clone(), wide.clone());
        above[at] += h;
        below[at] -= h;
        let difference = (objective(&above, &data) - objective(&below, &data)) / (2.0 * h);
        assert!((sum[at] - difference).abs() < 1e-6 * size, "{at}: {} {difference}", sum[at]);
    }
}

/// Exact EM of the same model: heads are latent, `phi` solves a least-squares problem.
fn em(mut theta: Vec<f64>, data: &[ClientData], iterations: usize) -> Vec<f64> {
    let d = LATENT;
    for _ in 0..iterations {
        let (phi, beta) = theta.split_at(RAW * d);
        let (mean, logs) = beta.split_at(d);
        // Normal equations of phi: sum_i X^T X (x) E zz^T, and X^T y E z.
        let size = RAW * d;
        let (mut normal, mut right) = (vec![0.0; size * size], vec![0.0; size]);
        let (mut first, mut second) = (vec![0.0; d], vec![0.0; d]);
        for client in data {
            let ClientData::Samples(samples) = client else { unreachable!() };
            let (Inputs::Real(x), Targets::Values(y)) = (&samples.inputs, &samples.targets) else {
                unreachable!()
            };
            let mut precision = vec![0.0; d * d];
            let mut z: Vec<f64> = (0..d).map(|j| mean[j] * (-2.0 * logs[j]).exp()).collect();
            (0..d).for_each(|j| precision[j * d + j] = (-2.0 * logs[j]).exp());
            for (x, y) in pairs(x.chunks(RAW), y) {
                let a: Vec<f64> = phi
                    .chunks(RAW)
                    .map(|v| x.iter().zip(v).map(|(x, v)| f64::from(*x) * v).sum())
                    .collect();
                for i in 0..d {
                    z[i] += a[i] * f64::from(*y) / (NOISE * NOISE);
                    (0..d).for_each(|j| precision[i * d + j] += a[i] * a[j] / (NOISE * NOISE));
                }
            }
            cholesky(&mut precision, d).unwrap();
            solve_lower(&precision, d, &mut z);
            solve_lower_transposed(&precision, d, &mut z);
            let mut moment = vec![0.0; d * d];
            for j in 0..d {
                let mut column = vec![0.0; d];
                column[j] = 1.0;
                solve_lower(&precision, d, &mut column);
                solve_lower_transposed(&precision, d, &mut column);
                (0..d).for_each(|i| moment[i * d + j] = column[i] + z[i] * z[j]);
            }
            for j in 0..d {
                first[j] += z[j] / data.len() as f64;
                second[j] += moment[j * d + j] / data.len() as f64;
            }
            for (x, y) in pairs(x.chunks(RAW), y) {
                for (i, zi) in z.iter().enumerate() {
                    for (r, xr) in x.iter().enumerate() {
                        right[i * RAW + r] += f64::from(*xr) * f64::from(*y) * zi;
                        for j in 0..d {
                            for (s, xs) in x.iter().enumerate() {
                                normal[(i * RAW + r) * size + j * RAW + s] +=
                                    moment[i * d + j] * f64::from(*xr) * f64::from(*xs);
                            }
                        }
                    }
                }
            }
        }
        cholesky(&mut normal, size).unwrap();
        solve_lower(&normal, size, &mut right);
        solve_lower_transposed(&normal, size, &mut right);
        let logs = (0..d).map(|j| 0.5 * (second[j] - first[j] * first[j]).ln()).collect::<Vec<_>>();
        theta = [right, first, logs].concat();
    }
    theta
}

#[test]
fn closed_form_steps_end_where_em_ends() {
    let data = clients(20, 50);
    let constant = Decay { exponent: 0.0, from: 1.0 };
    let setup = Setup { rounds: 4000, decay: constant, ..Setup::new(None) };
    let found = setup.run(&data, 3);
    // EM from the same start: what one round of no length would publish.
    let soul = setup.soul();
    let sums = data.iter().map(|data| match data {
        ClientData::Samples(samples) => setup.learner.start_sums(samples),
        _ => unreachable!(),
    });
    let mut total = vec![0.0; setup.learner.start_sums_len()];
    sums.for_each(|sums| total.iter_mut().zip(sums).for_each(|(sum, x)| *sum += x));
    let start = setup.learner.start_from(&total, Key::root(1)).unwrap();
    let mut theta: Vec<f64> = start[..RAW * LATENT].iter().map(|x| f64::from(*x)).collect();
    theta.extend(soul.prior.start(0.7, Key::root(1)).unwrap());
    let expected = objective(&em(theta, &data, 5_000), &data);
    let objective = objective(&found, &data);
    // 1,000 rows: a hundred-thousandth of a nat each.
    assert!((objective - expected).abs() < 1e-2, "{objective} {expected}");
}

/// Three features, the first two along one axis: heads vary by `4 + 5 = 9` along it and by 1 along another.
#[test]
fn the_strongest_features_have_the_variances_of_the_wide_ones() {
    let learner = Arc::new(LinearRepresentation::new(RAW, 3));
    let wide = Setup { learner, ..Setup::new(None) }.soul();
    let mut phi = vec![0.0; 3 * RAW];
    (phi[1], phi[RAW + 1], phi[2 * RAW + 3]) = (1.0, 1.0, 2.0);
    let prior = [4.0f64, 5.0, 0.25].map(|variance| 0.5 * variance.ln());
    let prior = [0.0; 3].into_iter().chain(prior).collect();
    let delivered = Artifact::new("linear-representation")
        .with_f32("parameters", &[phi.len()], phi)
        .with("prior", &[6], prior);
    let found = wide.strongest(&delivered, 2, 0.5).unwrap().unwrap();
    // sqrt(9)/0.5 and sqrt(1)/0.5
    for (at, x) in found.iter().enumerate() {
        let expected = [(1, 6.0f32), (RAW + 3, 2.0)].iter().find(|(place, _)| *place == at);
        assert!((x.abs() - expected.map_or(0.0, |(_, x)| *x)).abs() < 1e-5, "{found:?}");
    }
    assert_eq!(wide.strongest(&Artifact::default(), 2, 0.5).unwrap(), None);
}

/// The same model with a standard normal prior around a mean: `z = L w`, so that row `j` of the representation
/// becomes `sum_k L_kj phi_k`.
fn whitened(theta: &[f64]) -> Vec<f64> {
    let (phi, beta) = theta.split_at(RAW * LATENT);
    let (mean, rows) = beta.split_at(LATENT);
    let entry = |k: usize, j: usize| match k.cmp(&j) {
        Ordering::Less => 0.0,
        Ordering::Equal => rows[k * (k + 1) / 2 + j].exp(),
        Ordering::Greater => rows[k * (k + 1) / 2 + j],
    };
    let seen = |j: usize, r: usize| (0..LATENT).map(|k| entry(k, j) * phi[k * RAW + r]).sum();
    let mut all: Vec<f64> = (0..RAW * LATENT).map(|at| seen(at / RAW, at % RAW)).collect();
    let mut w: Vec<f64> = Vec::new();
    for (k, mean) in mean.iter().enumerate() {
        let known: f64 = w.iter().enumerate().map(|(j, w)| entry(k, j) * w).sum();
        w.push((mean - known) / entry(k, k));
    }
    all.extend(w);
    all.resize(RAW * LATENT + 2 * LATENT, 0.0);
    all
}

/// Heads on a learned representation can be turned together with it: a full prior fits what a diagonal one does.
#[test]
fn a_full_prior_ends_where_a_diagonal_one_does() {
    let data = clients(20, 50);
    let constant = Decay { exponent: 0.0, from: 1.0 };
    let setup = Setup { rounds: 4000, decay: constant, ..Setup::new(None) };
    let expected = objective(&setup.run(&data, 3), &data);
    let full = Setup { shape: Shape::Full, ..setup };
    let found = objective(&whitened(&full.run(&data, 3)), &data);
    assert!((found - expected).abs() < 1e-2, "{found} {expected}");
}

/// Chains that refuse everything leave a prior without width: the step is to blame.
#[test]
fn a_step_at_which_nothing_is_accepted_is_named() {
    let chains = Chains { gamma: Rate::Fixed(1e6), ..chains(Some(Kernel::Mala)) };
    let setup = Setup { chains, rounds: 300, ..Setup::new(Some(Kernel::Mala)) };
    let said = setup.try_run(&clients(6, 9), 3).unwrap_err().to_string();
    assert!(said.contains("gamma is too large: 0 of 6 moves"), "{said}");
}

/// What is identified: `phi mu` and `phi S phi^T`.
fn identified(theta: &[f64]) -> Vec<f64> {
    let (phi, beta) = theta.split_at(RAW * LATENT);
    let (mean, logs) = beta.split_at(LATENT);
    let v = |j: usize, r: usize| phi[j * RAW + r];
    let mut all: Vec<f64> =
        (0..RAW).map(|r| (0..LATENT).map(|j| mean[j] * v(j, r)).sum()).collect();
    for r in 0..RAW {
        for s in 0..RAW {
            all.push((0..LATENT).map(|j| (2.0 * logs[j]).exp() * v(j, r) * v(j, s)).sum());
        }
    }
    all
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    pairs(a, b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

/// Two runs with draws of their own are apart by `sqrt(2)` of the Monte-Carlo error in the mean, so a run
/// is within three times their distance of the limit unless 34 coordinates conspire; ULA's bias at a tenth
/// of `1/L` adds at most a twentieth of the posterior's variance to `phi S phi^T`, which is below 1 % of it
/// with 50 rows.
#[test]
fn sampled_steps_end_where_those_in_closed_form_end() {
    let data = clients(20, 50);
    let decay = Decay { exponent: 0.8, from: 0.3 };
    let exact = Setup { rounds: 1500, decay, ..Setup::new(None) }.run(&data, 3);
    let exact = identified(&exact);
    let size = distance(&exact, &vec![0.0; exact.len()]);
    let sampled =
        Chains { gamma: Rate::Share(0.1), steps: 20, burn_in: 0, ..chains(Some(Kernel::Ula)) };
    let dither = Codec::dithering(8, Norm::P(2), None).unwrap();
    for (codec, participation) in [(Codec::Exact, 1.0), (dither, 0.5)] {
        let kernel = Some(Kernel::Ula);
        let chains = sampled.clone();
        let setup =
            Setup { rounds: 1500, decay, chains, codec, participation, ..Setup::new(kernel) };
        let [one, two] = [3, 4].map(|seed| identified(&setup.run(&data, seed)));
        let apart = distance(&one, &two);
        assert!(apart < 0.2 * size, "noise hides everything: {apart} of {size}");
        assert!(distance(&one, &exact) < 3.0 * apart + 0.01 * size, "{}", distance(&one, &exact));
        assert!(distance(&two, &exact) < 3.0 * apart + 0.01 * size, "{}", distance(&two, &exact));
    }
}

/// Classes ten deviations apart: where a chain is sure its potential is nearly flat, and a step by the curvature
/// there takes it to places where it is not.
#[test]
fn chains_of_separated_classes_stay_stable() {
    let mut stream = Key::root(21).stream();
    let of: Vec<u16> = (0..300).map(|row| row % 2).collect();
    let x = of.iter().flat_map(|class| [f64::from(*class) * 10.0 - 2.0, 3.0]);
    let x: Vec<f32> = x.map(|x| (x + stream.normal()) as f32).collect();
    let targets = Targets::Classes { of, count: 2 };
    let samples = Samples::new(vec![2], Inputs::Real(x), targets).unwrap();
    let data = vec![ClientData::Samples(samples)];
    let setup = Setup {
        learner: Arc::new(Logistic::new(2, true)),
        part: Part::All,
        noise: Noise::None,
        rounds: 100,
        ..Setup::new(Some(Kernel::Ula))
    };
    let theta = setup.run(&data, 1);
    assert!(theta.iter().all(|x| x.is_finite()), "{theta:?}");
}

/// A minibatch of one row in five is five times as curved, and its gradients at two places differ by more than the
/// curvature between them.
#[test]
fn automatic_steps_hold_for_minibatches_and_preconditioners() {
    let data = clients(20, 5);
    for (kernel, batch) in
        [(Kernel::Ula, Some(1)), (Kernel::Ula, Some(2)), (Kernel::PreconditionedUla, None)]
    {
        let chains = Chains { gamma: Rate::Auto, batch, ..chains(Some(kernel)) };
        let theta = Setup { chains, rounds: 100, ..Setup::new(Some(kernel)) }.run(&data, 2);
        assert!(theta.iter().all(|x| x.is_finite()), "{kernel:?} {batch:?}: {theta:?}");
    }
}
