//! FedEM in the Fisher frame: what stays as it was, and what holds that did not.

use crate::federation::*;
use std::sync::Arc;
use whimbrel_codec::channel::{DownRule, Downlink, Memories, UpRule, Uplink, Upload, em_alpha};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::method::MetricValue;
use whimbrel_core::{Erased, Key, Table};
use whimbrel_engine::{Faults, Participation};
use whimbrel_methods::fedem::{
    AutoStep, Batch, Budget, DownNoise, Em, Estimator, FedEm, FirstMemories, Form, FrameKind, Step,
    Weights,
};
use whimbrel_methods::federated::{BindRows, Terms};
use whimbrel_methods::mixture::{MixtureInitial, MixtureStart};
use whimbrel_methods::step::Schedule;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};
use whimbrel_testkit::{gap, relative_gap};

/// Exact channels take no frame: not a bit of a run changes.
#[test]
fn exact_channels_take_no_frame_and_rounding_is_all_that_one_changes() {
    for covariance in [Covariance::Known(TRUTH.to_vec()), Covariance::Diagonal, Covariance::Full] {
        for form in [Form::Pair, Form::State, Form::Lean] {
            for codec in [Codec::Exact, Codec::ExactF32] {
                let run_in = |frame| {
                    let (covariance, codec) = (covariance.clone(), codec.clone());
                    let setup = Setup {
                        covariance,
                        codec,
                        form,
                        frame,
                        gamma: 0.7,
                        rounds: 12,
                        ..Setup::default()
                    };
                    run(&setup, &unequal(6), bernoulli(0.6), Faults::default(), 0).states
                };
                let last = |frame| run_in(frame).pop().unwrap().global;
                let (raw, fisher) = (last(FrameKind::Raw), last(FrameKind::Fisher));
                if codec == Codec::Exact {
                    assert_eq!(raw.s_hat, fisher.s_hat);
                    assert_eq!(raw.theta, fisher.theta);
                }
                // Twelve roundings to 32 bits in either frame, of statistics of order one.
                let apart = gap(&raw.s_hat, &fisher.s_hat);
                assert!(apart < 12.0 * f64::from(f32::EPSILON), "{apart}");
            }
        }
    }
}

/// A sum in the shared frame, inverted once, is the sum of uploads inverted one by one; and groups of
/// clients that happen to compute at the same vector are one group, to rounding.
#[test]
fn one_inversion_of_the_sum_is_one_of_each_upload() {
    let model = gmm(Covariance::Full);
    let MixtureStart::Given(at) = start(&model) else { panic!("a given start") };
    let frame = model.frame(&model.from_vector(&at).unwrap()).unwrap();
    let q = model.statistic_len();
    let uplink = Uplink::new(dither(), UpRule::Memory { alpha: 0.3 }, q).unwrap();
    let (mut shared, mut each) = (uplink.fold(), uplink.fold());
    let mut stream = Key::root(3).stream();
    for i in 0..20 {
        let g: Vec<f64> = (0..q).map(|_| stream.normal()).collect();
        let key = Key::root(4).child(i);
        let (_, packet) = uplink.send(&uplink.client(), &g, Some(&*frame), key).unwrap();
        let upload = Upload::whole(&packet, 1.0 + i as f64);
        uplink.absorb::<f64>(&mut shared, &upload, 0.5).unwrap();
        let upload = Upload { frame: Some(&*frame), ..upload };
        uplink.absorb::<f64>(&mut each, &upload, 0.5).unwrap();
    }
    let (mut a, mut b) = (uplink.server(), uplink.server());
    let once = uplink.collect(&mut a, &[(&shared, Some(&*frame))], 210.0);
    let one_by_one = uplink.collect(&mut b, &[(&each, None)], 210.0);
    assert!(relative_gap(&once, &one_by_one) < 1e-13);
    assert!(relative_gap(&a.memory_sum, &b.memory_sum) < 1e-13);
}

/// The mean of 20,000 decoded uploads is the upload, entry by entry within five standard errors (14
/// entries: a false alarm in one of a hundred thousand seeds); its squared error in the frame's norm is
/// at most `omega`.
#[test]
fn a_codec_stays_unbiased_in_the_frame_with_its_omega() {
    let model = gmm(Covariance::Full);
    let MixtureStart::Given(at) = start(&model) else { panic!("a given start") };
    let frame = model.frame(&model.from_vector(&at).unwrap()).unwrap();
    let q = model.statistic_len();
    let uplink = Uplink::new(dither(), UpRule::Memory { alpha: 1.0 }, q).unwrap();
    let mut stream = Key::root(30).stream();
    let g: Vec<f64> = (0..q).map(|_| stream.normal()).collect();
    let (mut sum, mut squares, mut error2) = (vec![0.0; q], vec![0.0; q], 0.0);
    let mut framed = g.clone();
    frame.forward(&mut framed);
    let norm2: f64 = framed.iter().map(|x| x * x).sum();
    let n = 20_000;
    for i in 0..n {
        let key = Key::root(31).child(i);
        // With alpha = 1 the client's memory is what was sent.
        let sent = uplink.send(&uplink.client(), &g, Some(&*frame), key).unwrap().0.kept;
        let mut miss: Vec<f64> = sent.iter().zip(&g).map(|(s, g)| s - g).collect();
        frame.forward(&mut miss);
        error2 += miss.iter().map(|x| x * x).sum::<f64>();
        for j in 0..q {
            sum[j] += sent[j];
            squares[j] += sent[j] * sent[j];
        }
    }
    let n = n as f64;
    for j in 0..q {
        let (mean, square) = (sum[j] / n, squares[j] / n);
        let error = ((square - mean * mean) / n).sqrt();
        assert!((mean - g[j]).abs() < 5.0 * error, "{j}: {mean} for {}", g[j]);
    }
    assert!(error2 / n <= uplink.omega().unwrap() * norm2 * 1.01, "{}", error2 / n / norm2);
}

/// An ill-conditioned mixture on clients of these sizes: three components in four columns, two of them
/// nearly equal, all far from zero.
fn ill_conditioned(sizes: &[usize]) -> Vec<Table> {
    let mut stream = Key::root(71).stream();
    sizes
        .iter()
        .enumerate()
        .map(|(i, rows)| {
            let values = (0..*rows).flat_map(|_| {
                // Clients differ in their shares.
                let shares = [1.0 + (i % 3) as f64, 2.0, 1.0 + (i % 2) as f64];
                let k = stream.categorical(&shares) as f64;
                let z: Vec<f64> = (0..4).map(|_| stream.normal()).collect();
                let x = 30.0 + 3.0 * k + z[0];
                let y = x + (0.02 + 0.02 * k) * z[1];
                [x, y, 500.0 - 40.0 * k * k + 10.0 * z[2] + 5.0 * z[0], 0.01 * z[3] + 0.02 * k]
            });
            let values: Vec<f64> = values.collect();
            Table::new(["a", "b", "c", "d"].map(String::from).to_vec(), values).unwrap()
        })
        .collect()
}

struct Fit {
    objective: f64,
    repairs: f64,
    lost: usize,
}

fn fit(
    tables: &[Table],
    covariance: Covariance,
    codec: Codec,
    step: Step,
    frame: FrameKind,
) -> Fit {
    let settings = GmmSettings { want_moments: true, ..GmmSettings::new(3, 4, covariance) };
    let compresses = codec != Codec::Exact;
    let settings = GmmSettings { centred: compresses && frame == FrameKind::Fisher, ..settings };
    let model = Gmm::new(settings).unwrap();
    let q = model.statistic_len();
    let alpha = em_alpha(codec.omega(q).unwrap());
    // A start that is near no solution: equal weights, means on a line, the spread of the columns.
    let means: Vec<f64> =
        (0..3).flat_map(|k| [31.0 + 2.5 * k as f64, 31.0 + 2.5 * k as f64, 450.0, 0.02]).collect();
    let matrix = [4.0, 3.9, 0.0, 0.0, 3.9, 4.0, 0.0, 0.0, 0.0, 0.0, 4e3, 0.0, 0.0, 0.0, 0.0, 1e-3];
    let variances = [4.0, 4.0, 4e3, 1e-3];
    let given = match model.settings().covariance {
        Covariance::Full => matrix.repeat(3),
        Covariance::Tied => matrix.to_vec(),
        _ => variances.repeat(3),
    };
    let theta = model.parameters(&[0.3, 0.3, 0.4], &means, &given).unwrap();
    let method = FedEm {
        terms: Terms {
            budget: Budget::Rounds(1500),
            privacy: Default::default(),
            weights: Weights::Samples,
            memories: FirstMemories::Oracle,
            uplinks: vec![Uplink::new(codec, UpRule::Memory { alpha }, q).unwrap()],
            own_uplinks: Default::default(),
            downlink: Downlink::exact(Form::Pair.published_len(&model)),
        },
        oracle: Em {
            initial: MixtureInitial::plain(MixtureStart::Given(model.to_vector(&theta))),
            step,
            estimator: Estimator::Minibatch,
            batch: Batch::Full,
            form: Form::Pair,
            moments: None,
            private: None,
            frame,
            model,
        },
    };
    let method = Arc::new(Erased(method, BindRows));
    let mut simulator = simulator(method, tables, Participation::Everyone, Faults::default());
    loop {
        match simulator.step() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            // A run that gives up has collapsed.
            Err(_) => return Fit { objective: f64::INFINITY, repairs: f64::INFINITY, lost: 0 },
        }
    }
    let metrics = simulator.evaluate().unwrap().0;
    let lost = match metrics.iter().find(|m| m.name == "lost").map(|m| &m.value) {
        Some(MetricValue::List(lost)) => lost.len(),
        _ => 0,
    };
    let [objective, repairs] = ["objective", "repairs"].map(|name| figure(&mut simulator, name));
    Fit { objective, repairs, lost }
}

fn auto(codec: &Codec, q: usize) -> Step {
    let omega = codec.omega(q).unwrap();
    let (falls, trusts) = (false, omega > 0.0);
    Step::Auto(AutoStep { omega, p: 1.0, spider: None, downlink: DownNoise::None, falls, trusts })
}

/// The default run ends at exact EM's objective from the same start; in raw coordinates, at the same
/// step, the fit collapses. Equal clients, and one with nine tenths of the rows.
#[test]
fn compressed_fits_hold_where_raw_coordinates_collapse() {
    let (equal, dominant) = ([150; 8], [1080, 15, 15, 15, 15, 20, 20, 20]);
    let codec = Codec::dithering(4, Norm::P(2), Some(32)).unwrap();
    for (name, sizes) in [("equal", equal), ("dominant", dominant)] {
        let tables = ill_conditioned(&sizes);
        for covariance in [Covariance::Full, Covariance::Diagonal, Covariance::Tied] {
            let exact = Schedule::constant(1.0).unwrap().into();
            let run = |codec: &Codec, step, frame| {
                fit(&tables, covariance.clone(), codec.clone(), step, frame)
            };
            let reference = run(&Codec::Exact, exact, FrameKind::Raw);
            let own = run(&codec, auto(&codec, 45), FrameKind::Fisher);
            let gap = own.objective - reference.objective;
            assert!(gap < 0.05, "{name}, {covariance:?}: {gap} nats above exact EM");
            assert_eq!((own.repairs, own.lost), (0.0, 0), "{name}, {covariance:?}");
            if covariance == Covariance::Full {
                let given = Schedule::constant(0.5).unwrap().into();
                let raw = run(&codec, given, FrameKind::Raw);
                let gap = raw.objective - reference.objective;
                assert!(gap > 0.5 && raw.repairs > 10.0, "{name}: raw ends {gap} nats above");
            }
        }
    }
}

/// Compressed downlinks in the frame end at the fixed point, over every kind that has one.
#[test]
fn compressed_downlinks_converge_in_the_frame() {
    let preserved = |memories| DownRule::Preserved { alpha: 0.2, memories };
    let rules = [
        (preserved(Memories::Groups(1)), Form::State),
        (preserved(Memories::Groups(3)), Form::Pair),
        (preserved(Memories::PerClient), Form::Lean),
        (preserved(Memories::PerClient), Form::State),
    ];
    for (rule, form) in rules {
        let setup = Setup {
            form,
            down: Some((dither(), rule)),
            frame: FrameKind::Fisher,
            covariance: Covariance::Full,
            ..dithered(900)
        };
        let tables = tables(10, whimbrel_data::Sizes::Given(vec![60; 10]));
        let trace = run(&setup, &tables, bernoulli(0.75), Faults::default(), 300);
        let fields: Vec<f64> = trace.fields.iter().map(|(_, norm2)| *norm2).collect();
        let falls = fields.windows(2).all(|pair| pair[1] < 0.5 * pair[0]);
        assert!(falls && fields[2] < 1e-6, "{rule:?} {form:?}: {:?}", trace.fields);
    }
}
