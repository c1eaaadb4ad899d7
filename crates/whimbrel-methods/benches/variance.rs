//! An inner round of VR-FedEM against a round of FedEM with as many conditional expectations: a
//! problem of the shape of MNIST's 20 principal components (70,000 rows x 20 columns, 10
//! components with one covariance, 100 clients, all of them taking part), one-level dithering.
//!
//! The two take turns, round by round, so that what else runs on the machine meets both; printed
//! are the least and the median time of a round. Arguments are minibatches `b` in place of the usual.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use whimbrel_codec::channel::{Downlink, UpRule, Uplink, em_alpha};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::{ClientData, DynMethod, Erased, Key, Result, Table};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Simulator};
use whimbrel_methods::fedem::{
    Batch, Budget, Em, Estimator, FedEm, FirstMemories, Form, FrameKind, Weights,
};
use whimbrel_methods::federated::{BindRows, Terms};
use whimbrel_methods::mixture::{MixtureInitial, MixtureStart};
use whimbrel_methods::step::Schedule;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};

const CLIENTS: usize = 100;
const ROWS: usize = 700;
const COLUMNS: usize = 20;
const COMPONENTS: usize = 10;
/// Rounds that are timed, of each.
const TIMED: usize = 400;

fn main() -> Result<()> {
    println!("milliseconds a round, least (median) of {TIMED} taken in turn");
    println!("{:>5}  {:>22}  {:>22}  {:>6}", "b", "fedem, 2b rows", "vr-fedem, twice b", "ratio");
    let given: Vec<u32> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    for b in if given.is_empty() { vec![2, 20, 100] } else { given } {
        let fedem = method(Estimator::Minibatch, 2 * b)?;
        // One full pass, then inner rounds only.
        let reduced = method(Estimator::Spider { inner: u32::MAX }, b)?;
        let data = federation(&*fedem)?;
        let (mut fedem, mut reduced) = (open(fedem, data.clone())?, open(reduced, data)?);
        let (mut plain, mut inner) = (Vec::new(), Vec::new());
        for _ in 0..TIMED {
            plain.push(timed(&mut fedem)?);
            inner.push(timed(&mut reduced)?);
        }
        let ((least, median), (least_vr, median_vr)) = (figures(plain), figures(inner));
        println!(
            "{b:>5}  {:>22}  {:>22}  {:>6.2}",
            format!("{least:.3} ({median:.3})"),
            format!("{least_vr:.3} ({median_vr:.3})"),
            least_vr / least
        );
    }
    Ok(())
}

fn method(estimator: Estimator, size: u32) -> Result<Arc<Erased<FedEm<Gmm>, BindRows>>> {
    let model = Gmm::new(GmmSettings::new(COMPONENTS, COLUMNS, Covariance::Tied))?;
    let q = model.statistic_len();
    let codec = Codec::dithering(1, Norm::P(2), None)?;
    let alpha = em_alpha(codec.omega(q).expect("dithering is unbiased"));
    let fit = FedEm {
        terms: Terms {
            budget: Budget::Rounds(u32::MAX),
            privacy: Default::default(),
            weights: Weights::Samples,
            memories: FirstMemories::Oracle,
            uplinks: vec![Uplink::new(codec, UpRule::Memory { alpha }, q)?],
            own_uplinks: BTreeMap::new(),
            downlink: Downlink::exact(Form::Pair.published_len(&model)),
        },
        oracle: Em {
            initial: MixtureInitial::plain(MixtureStart::Moments),
            step: Schedule::constant(0.001)?.into(),
            frame: FrameKind::Raw,
            estimator,
            batch: Batch::Sample { size, replacement: true, local_steps: 1 },
            form: Form::Pair,
            private: None,
            model,
        },
    };
    Ok(Arc::new(Erased(fit, BindRows)))
}

fn federation(method: &dyn DynMethod) -> Result<Arc<Federation>> {
    let columns: Vec<String> = (0..COLUMNS).map(|j| format!("x{j}")).collect();
    let one = |i: usize| {
        let mut stream = Key::root(5).child(i as u64).stream();
        let mut values = vec![0.0; ROWS * COLUMNS];
        stream.fill_normal(&mut values);
        for (row, x) in values.chunks_exact_mut(COLUMNS).enumerate() {
            x[row % COMPONENTS] += 4.0;
        }
        method.bind(&ClientData::Table(Table::new(columns.clone(), values)?))
    };
    Ok(Arc::new(Federation::new(
        (0..CLIENTS).map(|i| format!("{i:02}")).collect(),
        (0..CLIENTS).map(one).collect::<Result<_>>()?,
    )))
}

/// Past the first statistic, the memories and the full pass.
fn open(method: Arc<dyn DynMethod>, federation: Arc<Federation>) -> Result<Simulator> {
    let (keys, everyone) = (StageKeys::new(1, 0), Participation::Everyone);
    let mut simulator = Simulator::start(method, federation, keys, everyone, Faults::default())?;
    for _ in 0..4 {
        simulator.step()?;
    }
    Ok(simulator)
}

fn timed(simulator: &mut Simulator) -> Result<Duration> {
    let clock = Instant::now();
    simulator.step()?;
    Ok(clock.elapsed())
}

/// The least and the median, in milliseconds.
fn figures(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let millis = |time: Duration| 1e3 * time.as_secs_f64();
    (millis(times[0]), millis(times[times.len() / 2]))
}
