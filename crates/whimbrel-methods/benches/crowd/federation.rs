//! The crowd of the benchmarks: 100,000 clients of 20 rows x 20 columns, a mixture of 10
//! components with one covariance (a statistic of 210 numbers), and FedEM over it with 1-level
//! dithering, memories and a tenth of the clients per round.

use rayon::prelude::*;
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, UpRule, Uplink, em_alpha};
use whimbrel_codec::{Codec, Norm};
use whimbrel_core::{ClientData, DynMethod, Erased, Key, Probability, Result, Table};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Protocol, Simulator};
use whimbrel_methods::fedem::{
    Batch, Budget, Em, Estimator, FedEm, FirstMemories, Form, FrameKind,
};
use whimbrel_methods::federated::{BindRows, Terms};
use whimbrel_methods::mixture::{MixtureInitial, MixtureStart};
use whimbrel_methods::step::Schedule;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};

const COMPONENTS: usize = 10;
const COLUMNS: usize = 20;

/// The method, for as many rounds as anyone asks.
pub fn method(
    estimator: Estimator,
    batch: Batch,
    step: f64,
) -> Result<Arc<Erased<FedEm<Gmm>, BindRows>>> {
    let model = Gmm::new(GmmSettings::new(COMPONENTS, COLUMNS, Covariance::Tied))?;
    let q = model.statistic_len();
    let codec = Codec::dithering(1, Norm::P(2), None)?;
    let alpha = em_alpha(codec.omega(q).expect("dithering is unbiased"));
    let fit = FedEm {
        terms: Terms {
            memories: FirstMemories::Oracle,
            uplinks: vec![Uplink::new(codec, UpRule::Memory { alpha }, q)?],
            downlink: Downlink::exact(Form::Pair.published_len(&model)),
            ..Terms::over(Codec::Exact, q, Budget::Rounds(u32::MAX))?
        },
        oracle: Em {
            initial: MixtureInitial::plain(MixtureStart::Moments),
            step: Schedule::constant(step)?.into(),
            frame: FrameKind::Raw,
            estimator,
            batch,
            form: Form::Pair,
            moments: None,
            private: None,
            model,
        },
    };
    Ok(Arc::new(Erased(fit, BindRows)))
}

/// Clients with so many rows, around the centres of components that `centre` names by client and row.
pub fn federation(
    method: &dyn DynMethod,
    clients: usize,
    rows: usize,
    centre: impl Fn(usize, usize) -> usize + Sync,
) -> Result<Arc<Federation>> {
    let columns: Vec<String> = (0..COLUMNS).map(|j| format!("x{j}")).collect();
    let one = |i: usize| {
        let mut stream = Key::root(5).child(i as u64).stream();
        let mut values = vec![0.0; rows * COLUMNS];
        stream.fill_normal(&mut values);
        for (row, x) in values.chunks_exact_mut(COLUMNS).enumerate() {
            x[centre(i, row) % COMPONENTS] += 4.0;
        }
        method.bind(&ClientData::Table(Table::new(columns.clone(), values)?))
    };
    Ok(Arc::new(Federation::new(
        (0..clients).map(|i| format!("{i:06}")).collect(),
        (0..clients).into_par_iter().map(one).collect::<Result<_>>()?,
    )))
}

/// The crowd with its openings done: the next step is the first round.
#[allow(dead_code, reason = "not of every benchmark")]
pub fn open(clients: usize) -> Result<Simulator> {
    let method = method(Estimator::Minibatch, Batch::Full, 0.01)?;
    let federation = federation(&*method, clients, 20, |i, row| i + row % 2)?;
    let participation = Participation::Bernoulli(Probability::new(0.1)?);
    let keys = StageKeys::new(1, 0);
    let mut simulator =
        Simulator::start(method, federation, keys, participation, Faults::default())?;
    while simulator.machine().next_is_round()? == Some(false) {
        simulator.step()?;
    }
    Ok(simulator)
}
