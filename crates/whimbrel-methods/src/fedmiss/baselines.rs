//! What simpler models do on the held-out cells: a stage beside the fit, so that a report can say
//! where one of them wins.
//!
//! Two of them: means of columns over all clients (from sums and counts per column, sent at
//! enrolment), and row and column effects over all clients (FedMissEM of rank 0 with full batches
//! and exact messages).

use super::{BindCells, FedMiss, Phase, UNANSWERED_MAX};
use crate::settings::check_sums;
use whimbrel_core::method::{Artifact, Bind, Cohort, Disclosure, Exposure, Next, Sender};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Cell, ClientData, ClientId, Error, Key, Method, Result, vector, wire};
use whimbrel_models::lowrank::{Effects, Factors, LowRank, Observed, Settings};

/// The kind of the artifact.
pub const KIND: &str = "baselines";
/// The simpler models, as they are named in the artifact.
pub const NAMES: [&str; 2] = ["column_means", "row_column_effects"];
/// Rounds that the effects may take: Newton steps over all of them at once settle in a few.
pub const ROUNDS: u32 = 200;
/// The effects are done once the completed table moves by less than this share of itself: a
/// hundredth of a percent of any deviance.
const SETTLED: f64 = 1e-5;

/// The stage.
pub struct Baselines {
    fit: FedMiss,
}

impl Baselines {
    /// Baselines of this table; rank, ridge and effects of the settings do not matter.
    pub fn new(settings: Settings, rounds: u32) -> Result<Self> {
        let settings = Settings { rank: 0, lambda: 0.0, effects: Effects::RowColumn, ..settings };
        Ok(Self { fit: FedMiss::exact(LowRank::new(settings)?, rounds) })
    }

    fn columns(&self) -> usize {
        self.fit.model.columns()
    }

    /// The number of held-out cells, and the sum of their deviances under each model.
    fn score(&self, down: &Down, data: &Observed) -> Result<Vec<f64>> {
        let theta = down.fit.state.state().unwrap_or_default();
        let effects = Factors::from_vector(&self.fit.model, theta)?;
        if down.means.len() != self.columns() || !vector::all_finite(&down.means) {
            return Err(Error::peer("the server sent means of other columns"));
        }
        let family = self.fit.model.family();
        let mut sums = vec![data.held_out.len() as f64, 0.0, 0.0];
        for cell in &data.held_out {
            let (row, column) = (cell.row as usize, cell.column as usize);
            let means = [down.means[column], family.mean(effects.theta(row, column))];
            for (sum, mean) in sums[1..].iter_mut().zip(means) {
                *sum += family.judged_deviance(cell.value, mean);
            }
        }
        Ok(sums)
    }
}

/// Sums and counts of the values of each column.
#[derive(Clone, Debug, PartialEq)]
struct ColumnSums {
    sums: Vec<f64>,
    counts: Vec<f64>,
}

impl ColumnSums {
    fn of(cells: &[Cell], columns: usize) -> Self {
        let mut out = Self { sums: vec![0.0; columns], counts: vec![0.0; columns] };
        for cell in cells {
            out.sums[cell.column as usize] += cell.value;
            out.counts[cell.column as usize] += 1.0;
        }
        out
    }

    /// Means; that of everything where a column has nothing.
    fn means(&self) -> Vec<f64> {
        let all = self.sums.iter().sum::<f64>() / self.counts.iter().sum::<f64>().max(1.0);
        let mean = |(sum, count): (&f64, &f64)| if *count > 0.0 { sum / count } else { all };
        self.sums.iter().zip(&self.counts).map(mean).collect()
    }
}

/// What a client says at enrolment.
#[derive(Clone, Debug)]
pub struct Summary {
    fit: super::Summary,
    columns: ColumnSums,
}

/// The global state.
#[derive(Clone, Debug)]
pub struct Server {
    fit: super::Server,
    columns: ColumnSums,
    /// Exchanges in a row that nobody answered.
    unanswered: u32,
    /// Held-out cells and deviances, once known.
    sums: Vec<f64>,
}

/// The message to a client: the fit's, and at the end the means of the columns.
#[derive(Clone, Debug)]
pub struct Down {
    fit: super::Down,
    means: Vec<f64>,
}

/// The message from a client: residuals, or at the end sums of deviances.
#[derive(Clone, Debug)]
pub struct Up {
    fit: Option<super::Up>,
    sums: Vec<f64>,
}

/// The uploads of one exchange.
#[derive(Clone, Debug)]
pub struct Fold {
    fit: super::Fold,
    sums: ExactSum,
}

wire!(ColumnSums { sums, counts });
wire!(Summary { fit, columns });
wire!(Server { fit, columns, unanswered, sums });
wire!(Down { fit, means });
wire!(Up { fit, sums });
wire!(Fold { fit, sums });

impl Bind<Baselines> for BindCells {
    fn bind(&self, method: &Baselines, data: &ClientData) -> Result<Observed> {
        method.fit.model.bind(data)
    }
}

impl Method for Baselines {
    type Data = Observed;
    type Server = Server;
    type Peer = super::Peer;
    type Client = super::Client;
    type Summary = Summary;
    type Down = Down;
    type Up = Up;
    type Broadcast = ();
    type Fold = Fold;

    fn enroll(&self, data: &Observed, key: Key) -> Result<(super::Client, Summary)> {
        let (client, fit) = self.fit.enroll(data, key)?;
        Ok((client, Summary { fit, columns: ColumnSums::of(&data.cells, self.columns()) }))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Summary)>,
        key: Key,
    ) -> Result<Server> {
        let fit = self.fit.start(&mut roster.map(|(id, summary)| (id, summary.fit)), key)?;
        let columns = ColumnSums::of(&[], self.columns());
        Ok(Server { fit, columns, unanswered: 0, sums: Vec::new() })
    }

    fn admit(&self, server: &mut Server, id: ClientId, summary: &Summary) -> Result<super::Peer> {
        let ColumnSums { sums, counts } = &summary.columns;
        if [sums, counts].iter().any(|list| list.len() != self.columns()) {
            return Err(Error::peer(format!("client {id} sent sums of other columns")));
        }
        check_sums(id, sums)?;
        check_sums(id, counts)?;
        let peer = self.fit.admit(&mut server.fit, id, &summary.fit)?;
        vector::axpy(&mut server.columns.sums, 1.0, sums);
        vector::axpy(&mut server.columns.counts, 1.0, counts);
        Ok(peer)
    }

    fn next(&self, server: &Server) -> Next {
        match server.fit.phase {
            Phase::Over => Next::Stop,
            _ => Next::Round(Cohort::Everyone),
        }
    }

    fn broadcast(&self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn downlink(
        &self,
        server: &Server,
        (): &(),
        peer: &super::Peer,
        key: Key,
    ) -> Result<(super::Peer, Down)> {
        let (peer, fit) = self.fit.downlink(&server.fit, &(), peer, key)?;
        let scores = server.fit.phase == Phase::Calibrate;
        let means = if scores { server.columns.means() } else { Vec::new() };
        Ok((peer, Down { fit, means }))
    }

    fn local_step(
        &self,
        client: &super::Client,
        down: &Down,
        data: &Observed,
        key: Key,
    ) -> Result<(super::Client, Up)> {
        if down.fit.phase == Phase::Calibrate {
            let sums = self.score(down, data)?;
            return Ok((client.clone(), Up { fit: None, sums }));
        }
        let (client, up) = self.fit.local_step(client, &down.fit, data, key)?;
        Ok((client, Up { fit: Some(up), sums: Vec::new() }))
    }

    fn fold(&self, server: &Server) -> Fold {
        Fold { fit: self.fit.fold(&server.fit), sums: ExactSum::new(1 + NAMES.len()) }
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, super::Peer>, up: Up) -> Result<()> {
        match (fold.fit.phase, up.fit) {
            (Phase::Fit, Some(up)) => self.fit.absorb(&mut fold.fit, from, up),
            (Phase::Calibrate, None) => {
                check_sums(from.id, &up.sums)?;
                fold.sums.add(&up.sums, 1.0)
            }
            _ => Err(Error::peer(format!("client {} answered another exchange", from.id))),
        }
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        self.fit.merge(&mut fold.fit, other.fit)?;
        fold.sums.merge(&other.sums)
    }

    fn server_step(&self, mut server: Server, fold: Fold, key: Key) -> Result<Server> {
        match server.fit.phase {
            Phase::Fit => {
                server.fit = self.fit.server_step(server.fit, fold.fit, key)?;
                let moved2 = server.fit.update_norm2.unwrap_or(f64::INFINITY);
                if moved2 <= SETTLED * SETTLED * server.fit.table_norm2 {
                    self.fit.end_rounds(&mut server.fit);
                }
            }
            _ if fold.sums.count() == 0 && server.unanswered < UNANSWERED_MAX => {
                server.unanswered += 1;
            }
            _ => {
                server.sums = fold.sums.value();
                server.fit.phase = Phase::Over;
            }
        }
        Ok(server)
    }

    fn magnitude(&self, server: &Server) -> f64 {
        server.fit.observed_norm2().sqrt()
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let cells = server.sums.first().copied().unwrap_or(0.0);
        let mut out = Artifact::new(KIND);
        out = out.with("held_out_cells", &[], vec![cells]);
        if cells > 0.0 {
            for (name, sum) in NAMES.iter().zip(&server.sums[1..]) {
                out = out.with(name, &[], vec![sum / cells]);
            }
        }
        Ok(out)
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        let mut all = self.fit.disclosures();
        all.retain(|one| one.message != "answer");
        let aggregate = |message, meaning: &str, bytes_max| Disclosure {
            message,
            meaning: meaning.into(),
            bytes_max,
            exposure: Exposure::Aggregate,
        };
        all.extend([
            aggregate(
                "summary",
                "the sum and the number of the values it observed in each column",
                20 + 16 * self.columns(),
            ),
            aggregate(
                "up",
                "at the end: how many cells it holds out, and the sum of their deviances under each simpler model",
                16 + 8 * (1 + NAMES.len()),
            ),
        ]);
        all
    }
}

no_evaluation!(Baselines);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_without_a_value_have_the_mean_of_all() {
        let cell = |column, value| Cell { row: 0, column, value };
        let sums = ColumnSums::of(&[cell(0, 4.0), cell(0, 2.0), cell(2, 9.0)], 3);
        assert_eq!(sums.means(), [3.0, 5.0, 9.0]);
    }
}
