//! Simulations of methods that a program defines.

use super::rows::{Rows, tables};
use super::settings::Codec;
use std::sync::Arc;
use whimbrel_codec::channel::{UpRule, Uplink};
use whimbrel_codec::{Codec::Grid, Inclusion};
use whimbrel_core::{ClientData, Erased, Error, Probability};
use whimbrel_engine::{Ending, Limits, Observer, Participation, Row, Stage, StageMethod, run};
use whimbrel_families::failure::Result;
use whimbrel_families::job::codec::parse_codec;
use whimbrel_methods::federated::{BindRows, Federated, Plain, Simple, Terms};
use whimbrel_methods::settings::Budget;

/// The number of evaluations of a simulation.
const EVALUATIONS: u32 = 100;

/// A simulation of a [`Simple`] method with a compressed uplink, participation, evaluations and byte
/// counts. The downlink is exact; an unbiased codec has a memory, as in `diana`.
///
/// ```
/// use whimbrel::{Codec, Key, Rows, Simple, Simulate, Table};
///
/// /// The mean of all rows, by gradient steps on half the mean squared distance.
/// struct Mean;
///
/// impl Simple for Mean {
///     fn start(&self, columns: usize) -> Vec<f64> {
///         vec![0.0; columns]
///     }
///     // A client's gradient.
///     fn value(&self, at: &[f64], rows: &Table, _: Key) -> Vec<f64> {
///         let mut gradient = vec![0.0; at.len()];
///         for i in 0..rows.rows() {
///             for ((g, m), x) in gradient.iter_mut().zip(at).zip(rows.row(i)) {
///                 *g += (m - x) / rows.rows() as f64;
///             }
///         }
///         gradient
///     }
///     fn step(&self, at: &mut [f64], mean: &[f64], _round: u32) {
///         at.iter_mut().zip(mean).for_each(|(m, g)| *m -= 0.5 * g);
///     }
///     fn loss(&self, at: &[f64], rows: &Table) -> f64 {
///         let square = |i| at.iter().zip(rows.row(i)).map(|(m, x)| (m - x) * (m - x)).sum::<f64>();
///         (0..rows.rows()).map(square).sum::<f64>() / rows.rows() as f64
///     }
/// }
///
/// let clients = [Rows::from_rows([[1.0], [3.0]]), Rows::from_rows([[5.0], [7.0]])];
/// let done = Simulate::new(Mean, 60).uplink(Codec::dithering(4)).run(&clients)?;
/// assert!((done.parameters[0] - 4.0).abs() < 1e-3);
/// # Ok::<(), whimbrel::Error>(())
/// ```
#[must_use = "a simulation does nothing until `run`"]
pub struct Simulate<S> {
    method: S,
    codec: Codec,
    feedback: bool,
    rounds: u32,
    participation: f64,
    seed: u64,
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Simulated {
    /// The shared vector at the end.
    pub parameters: Vec<f64>,
    /// The mean loss over clients, weighted by their rows, at each evaluation, with its round: at most
    /// about 100 evaluations, the first at round 0.
    pub losses: Vec<(u32, f64)>,
    /// Bits sent by clients.
    pub bits_up: u64,
    /// Bits sent to clients.
    pub bits_down: u64,
}

impl<S: Simple> Simulate<S> {
    /// A simulation of this many rounds, with all clients and without compression.
    pub fn new(method: S, rounds: u32) -> Self {
        let codec = Codec::exact();
        Self { method, rounds, codec, feedback: false, participation: 1.0, seed: 1 }
    }

    /// The codec of messages from clients.
    pub fn uplink(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    /// Error feedback on the uplink instead of a memory; biased codecs (`top_k`, `sign`) need it.
    pub fn feedback(self) -> Self {
        Self { feedback: true, ..self }
    }

    /// The probability that a client takes part in a round.
    pub fn participation(self, probability: f64) -> Self {
        Self { participation: probability, ..self }
    }

    /// The seed of all random draws.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Runs the method over the rows of these clients; targets are the last column.
    pub fn run(self, clients: &[Rows]) -> Result<Simulated> {
        if self.rounds == 0 {
            return Err(Error::config("a simulation needs at least one round").into());
        }
        let participation =
            Probability::new(self.participation).map_err(|error| error.within("participation"))?;
        let clients = tables(clients)?;
        let columns = clients.first().map_or(0, |(_, table)| table.width());
        let dimension = self.method.start(columns).len();
        let codec = match parse_codec(&self.codec.to_string())? {
            Grid(grid) => {
                Grid(grid.among(clients.len() as u32, Inclusion::Equal(self.participation)))
            }
            codec => codec,
        };
        if codec.omega(dimension).is_none() && !self.feedback {
            let what =
                format!("{} is biased: without error feedback the fixed point moves", codec.name());
            let hint = "add `.feedback()`, or use an unbiased codec such as `Codec::dithering`";
            return Err(Error::config(what).hint(hint).into());
        }
        let mut terms = Terms::over(codec.clone(), dimension, Budget::Rounds(self.rounds))?;
        if self.feedback {
            terms.uplinks = vec![Uplink::new(codec, UpRule::Feedback, dimension)?];
        }
        let oracle = Plain { method: self.method, columns };
        let method = StageMethod::Server(Arc::new(Erased(Federated { oracle, terms }, BindRows)));
        let chain = vec![Stage {
            participation: Participation::Bernoulli(participation),
            evaluate_every: Some(self.rounds.div_ceil(EVALUATIONS).max(1)),
            ..Stage::new("fit", method)
        }];
        let data: Vec<(String, ClientData)> =
            clients.into_iter().map(|(name, table)| (name, ClientData::Table(table))).collect();
        let mut losses = Losses(Vec::new());
        let outcome = run(&chain, data, self.seed, &Limits::default(), &mut losses)?;
        if let Ending::Failed(error) = outcome.ending {
            return Err(error.into());
        }
        let model = outcome.delivered.last().and_then(|model| model.tensor("parameters"));
        Ok(Simulated {
            parameters: model.map(|tensor| tensor.values.clone()).unwrap_or_default(),
            losses: losses.0,
            bits_up: 8 * outcome.traffic.up,
            bits_down: 8 * outcome.traffic.down,
        })
    }
}

struct Losses(Vec<(u32, f64)>);

impl Observer for Losses {
    fn row(&mut self, row: &Row) {
        self.0.extend(row.number("objective").map(|loss| (row.round, loss)));
    }
}
