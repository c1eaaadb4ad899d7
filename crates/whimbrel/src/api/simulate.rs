//! A method of a program's own over the channels, participation and evaluations that all methods have.

use super::rows::Rows;
use super::settings::Codec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use whimbrel::core::method::Artifact;
use whimbrel::core::{ClientData, Erased, Probability};
use whimbrel::engine::runner::Traffic;
use whimbrel::engine::{
    Chain, Ending, Faults, Limits, Observer, Participation, Row, Stage, StageMethod, Stopping, run,
};
use whimbrel::families::failure::Result;
use whimbrel::families::job::codec::parse_codec;
use whimbrel::methods::federated::{BindRows, Federated, Plain, Simple, Terms};
use whimbrel::methods::settings::Budget;

/// Evaluations of a run.
const EVALUATIONS: u32 = 100;

/// A simulation of a [`Simple`] method.
#[must_use = "nothing runs until `run`"]
pub struct Simulate<S> {
    method: S,
    codec: Codec,
    rounds: u32,
    participation: f64,
    seed: u64,
}

/// What it left.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Simulated {
    /// The shared vector at the end.
    pub parameters: Vec<f64>,
    /// The evaluations.
    pub history: Vec<Row>,
    /// Bytes both ways.
    pub traffic: Traffic,
}

impl<S: Simple> Simulate<S> {
    /// This many rounds of everyone, exactly.
    pub fn new(method: S, rounds: u32) -> Self {
        Self { method, rounds, codec: Codec::exact(), participation: 1.0, seed: 1 }
    }

    /// How what clients send is compressed.
    pub fn uplink(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    /// The probability with which a client takes part in a round.
    pub fn participation(self, participation: f64) -> Self {
        Self { participation, ..self }
    }

    /// The seed of everything drawn.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Runs it over the rows that these clients hold; targets are their last column.
    pub fn run(self, clients: &[Rows]) -> Result<Simulated> {
        let clients = super::rows::tables(clients)?;
        let columns = clients.first().map_or(0, |(_, table)| table.width());
        let dimension = self.method.start(columns).len();
        let codec = parse_codec(&self.codec.to_string())?;
        let terms = Terms::over(codec, dimension, Budget::Rounds(self.rounds))?;
        let oracle = Plain { method: self.method, columns };
        let method = StageMethod::Server(Arc::new(Erased(Federated { oracle, terms }, BindRows)));
        let participation = match self.participation {
            1.0 => Participation::Everyone,
            p => Participation::Bernoulli(Probability::new(p)?),
        };
        let chain =
            Alone { method, participation, every: self.rounds.div_ceil(EVALUATIONS).max(1) };
        let calm = AtomicBool::new(false);
        let limits = Limits {
            folder: None,
            resume: false,
            checkpoint_every: Duration::MAX,
            interrupt: &calm,
        };
        let data: Vec<(String, ClientData)> =
            clients.into_iter().map(|(name, table)| (name, ClientData::Table(table))).collect();
        let mut history = History(Vec::new());
        let outcome = run(&chain, data, self.seed, &limits, &mut history)?;
        if let Ending::Failed(error) = outcome.ending {
            return Err(error.into());
        }
        let model = outcome.delivered.last().and_then(|model| model.tensor("parameters"));
        let parameters = model.map(|tensor| tensor.values.clone()).unwrap_or_default();
        Ok(Simulated { parameters, history: history.0, traffic: outcome.traffic })
    }
}

/// One stage.
struct Alone {
    method: StageMethod,
    participation: Participation,
    every: u32,
}

impl Chain for Alone {
    fn len(&self) -> usize {
        1
    }

    fn build(&self, _: usize, _: &[Artifact]) -> whimbrel::core::Result<Stage> {
        Ok(Stage {
            name: "fit",
            method: self.method.clone(),
            participation: self.participation.clone(),
            faults: Faults::default(),
            evaluate_every: Some(self.every),
            stopping: Stopping::default(),
        })
    }
}

struct History(Vec<Row>);

impl Observer for History {
    fn row(&mut self, row: &Row) {
        self.0.push(row.clone());
    }
}
