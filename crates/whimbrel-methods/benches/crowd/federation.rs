//! The crowd of the benchmarks: 100,000 clients of 20 rows x 20 columns, a mixture of 10
//! components with one covariance (a statistic of 210 numbers), and FedEM over it with 1-level
//! dithering, memories and a tenth of the clients per round.

use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::channel::{Downlink, UpRule, Uplink, em_alpha};
use whimbrel_codec::{Codec, Dithering, Norm};
use whimbrel_core::{ClientData, DynMethod, Erased, Key, Probability, Result, Table};
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::{Faults, Federation, Participation, Protocol, Simulator};
use whimbrel_methods::fedem::{
    Batch, Budget, Em, Estimator, FedEm, FirstMemories, Form, FrameKind, Weights,
};
use whimbrel_methods::federated::{BindRows, Terms};
use whimbrel_methods::mixture::{MixtureInitial, MixtureStart};
use whimbrel_methods::step::Schedule;
use whimbrel_models::LatentModel;
use whimbrel_models::gmm::{Covariance, Gmm, GmmSettings};

const COMPONENTS: usize = 10;
const COLUMNS: usize = 20;
const ROWS: usize = 20;
const PARTICIPATION: f64 = 0.1;

/// The method, for as many rounds as anyone asks.
pub fn method() -> Result<Arc<Erased<FedEm<Gmm>, BindRows>>> {
    let model = Gmm::new(GmmSettings::new(COMPONENTS, COLUMNS, Covariance::Tied))?;
    let q = model.statistic_len();
    let codec = Codec::Dithering(Dithering::new(1, Norm::P(2), None)?);
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
            step: Schedule::constant(0.01)?.into(),
            frame: FrameKind::Raw,
            estimator: Estimator::Minibatch,
            batch: Batch::Full,
            form: Form::Pair,
            private: None,
            model,
        },
    };
    Ok(Arc::new(Erased(fit, BindRows)))
}

/// Clients that each hold rows around two of the components' centres.
pub fn federation(method: &dyn DynMethod, clients: usize) -> Result<Arc<Federation>> {
    let columns: Vec<String> = (0..COLUMNS).map(|j| format!("x{j}")).collect();
    let one = |i: usize| {
        let mut stream = Key::root(5).child(i as u64).stream();
        let mut values = vec![0.0; ROWS * COLUMNS];
        stream.fill_normal(&mut values);
        for (row, x) in values.chunks_exact_mut(COLUMNS).enumerate() {
            x[(i + row % 2) % COMPONENTS] += 4.0;
        }
        method.bind(&ClientData::Table(Table::new(columns.clone(), values)?))
    };
    Ok(Arc::new(Federation::new(
        (0..clients).map(|i| format!("{i:06}")).collect(),
        (0..clients).into_par_iter().map(one).collect::<Result<_>>()?,
    )))
}

/// The simulation with its openings done: the next step is the first round.
pub fn open(method: Arc<dyn DynMethod>, federation: Arc<Federation>) -> Result<Simulator> {
    let participation = Participation::Bernoulli(Probability::new(PARTICIPATION)?);
    let keys = StageKeys::new(1, 0);
    let mut simulator =
        Simulator::start(method, federation, keys, participation, Faults::default())?;
    while simulator.machine().next_is_round()? == Some(false) {
        simulator.step()?;
    }
    Ok(simulator)
}
