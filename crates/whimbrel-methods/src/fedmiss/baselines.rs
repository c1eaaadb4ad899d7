//! What simpler models do on the held-out cells: a stage beside the fit, so that a report can say
//! where one of them wins.
//!
//! Four of them: means of columns over all clients (from sums and counts per column, sent at
//! enrolment); row and column effects over all clients (FedMissEM of rank 0 with full batches and
//! exact messages); and what each client would do alone, its own column means and its own row and
//! column effects. Of the last two only sums of deviances leave the client.

use super::roll::{Answers, Roll};
use super::{BindCells, FedMiss, Phase};
use crate::settings::check_sums;
use whimbrel_core::method::{
    Artifact, Bind, Cohort, Disclosure, Evaluate, Exposure, Metric, Next, Sender,
};
use whimbrel_core::{Cell, ClientData, ClientId, Error, Key, Method, Result, vector, wire};
use whimbrel_models::lowrank::{Effects, Factors, LowRank, Observed, Settings, own_effect};

/// The kind of the artifact.
pub const KIND: &str = "baselines";
/// The simpler models, as they are named in the artifact; `client_` is what each does alone.
pub const NAMES: [&str; 4] =
    ["column_means", "row_column_effects", "client_column_means", "client_effects"];
/// Rounds that the effects may take.
pub const ROUNDS: u32 = 200;
/// The effects are done once the completed table moves by less than this share of itself.
const SETTLED: f64 = 1e-5;
/// Sweeps over a client's own rows and columns.
const SWEEPS: usize = 100;
/// They end when no effect moves by more than this.
const SWEEP_SETTLED: f64 = 1e-7;

/// The stage.
pub struct Baselines {
    settings: Settings,
    rounds: u32,
}

impl Baselines {
    /// Baselines of this table; rank, ridge and effects of the settings do not matter.
    pub fn new(settings: Settings, rounds: u32) -> Result<Self> {
        let settings = Settings { rank: 0, lambda: 0.0, effects: Effects::RowColumn, ..settings };
        LowRank::new(settings.clone())?;
        Ok(Self { settings, rounds })
    }

    fn fit(&self) -> Result<FedMiss> {
        let model = LowRank::new(self.settings.clone())?;
        Ok(FedMiss::exact(model, self.rounds))
    }

    /// The number of held-out cells, and the sum of their deviances under each model.
    fn score(&self, fit: &FedMiss, down: &Down, data: &Observed) -> Result<Vec<f64>> {
        let (_, theta) = fit.downlink.receive(&fit.downlink.client(), &down.fit.state)?;
        let everyone = Factors::from_vector(&fit.model, &theta)?;
        if down.means.len() != self.settings.columns || !vector::all_finite(&down.means) {
            return Err(Error::peer("the server sent means of other columns"));
        }
        let family = self.settings.family;
        let own = ColumnSums::of(&data.cells, self.settings.columns).means();
        let alone = own_effects(&self.settings, &data.cells);
        let mut sums = vec![data.held_out.len() as f64, 0.0, 0.0, 0.0, 0.0];
        for cell in &data.held_out {
            let (row, column) = (cell.row as usize, cell.column as usize);
            let means = [
                down.means[column],
                family.mean(everyone.theta(row, column)),
                own[column],
                family.mean(alone.theta(row, column)),
            ];
            for (sum, mean) in sums[1..].iter_mut().zip(means) {
                *sum += family.judged_deviance(cell.value, mean);
            }
        }
        Ok(sums)
    }
}

/// Row and column effects of a client's own cells, by turns over rows and columns.
fn own_effects(settings: &Settings, cells: &[Cell]) -> Factors {
    let Settings { rows, columns, family, lambda_effects, .. } = *settings;
    let total: f64 = cells.iter().map(|cell| cell.value).sum();
    let mut out = Factors {
        rank: 0,
        intercept: family.link(total / cells.len().max(1) as f64),
        row_effects: vec![0.0; rows],
        column_effects: vec![0.0; columns],
        u: Vec::new(),
        v: Vec::new(),
    };
    let mut lines = [vec![Vec::new(); rows], vec![Vec::new(); columns]];
    for (i, cell) in cells.iter().enumerate() {
        lines[0][cell.row as usize].push(i);
        lines[1][cell.column as usize].push(i);
    }
    for _ in 0..SWEEPS {
        let mut moved = 0f64;
        for (side, lines) in lines.iter().enumerate() {
            for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
                let old = if side == 0 { out.row_effects[at] } else { out.column_effects[at] };
                let theta =
                    |i: &usize| out.theta(cells[*i].row as usize, cells[*i].column as usize) - old;
                let theta: Vec<f64> = line.iter().map(theta).collect();
                let y: Vec<f64> = line.iter().map(|i| cells[*i].value).collect();
                let new = own_effect(family, &theta, &y, lambda_effects, old);
                moved = moved.max((new - old).abs());
                if side == 0 {
                    out.row_effects[at] = new;
                } else {
                    out.column_effects[at] = new;
                }
            }
        }
        if moved < SWEEP_SETTLED {
            break;
        }
    }
    out
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

    fn add(&mut self, other: &Self) {
        vector::axpy(&mut self.sums, 1.0, &other.sums);
        vector::axpy(&mut self.counts, 1.0, &other.counts);
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
    roll: Roll,
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
    fit: Option<super::Fold>,
    scores: Answers,
}

wire!(ColumnSums { sums, counts });
wire!(Summary { fit, columns });
wire!(Server { fit, columns, roll, sums });
wire!(Down { fit, means });
wire!(Up { fit, sums });
wire!(Fold { fit, scores });

impl Bind<Baselines> for BindCells {
    fn bind(&self, method: &Baselines, data: &ClientData) -> Result<Observed> {
        method.fit()?.model.bind(data)
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
        let (client, fit) = self.fit()?.enroll(data, key)?;
        let columns = ColumnSums::of(&data.cells, self.settings.columns);
        Ok((client, Summary { fit, columns }))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Summary)>,
        key: Key,
    ) -> Result<Server> {
        let fit = self.fit()?.start(&mut roster.map(|(id, summary)| (id, summary.fit)), key)?;
        let columns = ColumnSums::of(&[], self.settings.columns);
        Ok(Server { fit, columns, roll: Roll::default(), sums: Vec::new() })
    }

    fn admit(&self, server: &mut Server, id: ClientId, summary: &Summary) -> Result<super::Peer> {
        let lists = [&summary.columns.sums, &summary.columns.counts];
        if lists.iter().any(|l| l.len() != self.settings.columns || !vector::all_finite(l)) {
            return Err(Error::peer(format!("client {id} sent sums of other columns")));
        }
        lists.iter().try_for_each(|list| check_sums(id, list))?;
        let peer = self.fit()?.admit(&mut server.fit, id, &summary.fit)?;
        server.columns.add(&summary.columns);
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
        let (peer, fit) = self.fit()?.downlink(&server.fit, &(), peer, key)?;
        let scoring = server.fit.phase == Phase::Calibrate;
        let means = if scoring { server.columns.means() } else { Vec::new() };
        Ok((peer, Down { fit, means }))
    }

    fn local_step(
        &self,
        client: &super::Client,
        down: &Down,
        data: &Observed,
        key: Key,
    ) -> Result<(super::Client, Up)> {
        let fit = self.fit()?;
        if down.fit.phase == Phase::Calibrate {
            let sums = self.score(&fit, down, data)?;
            return Ok((client.clone(), Up { fit: None, sums }));
        }
        let (client, up) = fit.local_step(client, &down.fit, data, key)?;
        Ok((client, Up { fit: Some(up), sums: Vec::new() }))
    }

    fn fold(&self, server: &Server) -> Fold {
        let fit = self.fit().ok().filter(|_| server.fit.phase == Phase::Fit);
        let scores = Answers::new(if fit.is_some() { 0 } else { 1 + NAMES.len() });
        Fold { fit: fit.map(|fit| fit.fold(&server.fit)), scores }
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, super::Peer>, up: Up) -> Result<()> {
        match (&mut fold.fit, up.fit) {
            (Some(fit), Some(up)) => self.fit()?.absorb(fit, from, up),
            (None, None) => fold.scores.absorb(from.id, up.sums),
            _ => Err(Error::peer(format!("client {} answered another exchange", from.id))),
        }
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        if let (Some(fit), Some(other)) = (&mut fold.fit, other.fit) {
            self.fit()?.merge(fit, other)?;
        }
        fold.scores.merge(other.scores);
        Ok(())
    }

    fn server_step(&self, mut server: Server, fold: Fold, key: Key) -> Result<Server> {
        match (server.fit.phase, fold.fit) {
            (Phase::Over, _) => {}
            (Phase::Fit, Some(round)) => {
                server.fit = self.fit()?.server_step(server.fit, round, key)?;
                let moved2 = server.fit.update_norm2.unwrap_or(f64::INFINITY);
                if moved2 <= SETTLED * SETTLED * server.fit.table_norm2 {
                    server.fit.phase = Phase::Calibrate;
                }
            }
            _ => {
                let everyone = server.fit.member_ids();
                if let Some(heard) = server.roll.take(fold.scores, &everyone)? {
                    server.sums = vec![0.0; 1 + NAMES.len()];
                    for answer in heard.iter().filter(|answer| !answer.sums.is_empty()) {
                        vector::axpy(&mut server.sums, 1.0, &answer.sums);
                    }
                    server.fit.phase = Phase::Over;
                }
            }
        }
        Ok(server)
    }

    fn magnitude(&self, server: &Server) -> f64 {
        server.fit.observed_norm2().sqrt()
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let cells = server.sums.first().copied().unwrap_or(0.0);
        let mut out = Artifact { kind: KIND.into(), tensors: Vec::new() };
        out = out.with("held_out_cells", &[], vec![cells]);
        if cells > 0.0 {
            for (name, sum) in NAMES.iter().zip(&server.sums[1..]) {
                out = out.with(name, &[], vec![sum / cells]);
            }
        }
        Ok(out)
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        let Ok(fit) = self.fit() else { return Vec::new() };
        let mut all = fit.disclosures();
        all.retain(|one| one.message != "answer");
        let aggregate = |message, meaning: &str, bytes_max| Disclosure {
            message,
            meaning: meaning.into(),
            bytes_max,
            exposure: Exposure::Aggregate,
        };
        let columns = self.settings.columns;
        all.extend([
            aggregate(
                "summary",
                "the sum and the number of the values it observed in each column",
                20 + 16 * columns,
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

/// Nothing to ask: what the stage finds is its result.
impl Evaluate for Baselines {
    type Ask = ();
    type Answer = ();

    fn ask(&self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn answer(&self, _: &super::Client, (): &(), _: &Observed) -> Result<()> {
        Ok(())
    }

    fn loss(&self, (): &()) -> Option<f64> {
        None
    }

    fn conclude(
        &self,
        _: &Server,
        _: &mut dyn Iterator<Item = (ClientId, ())>,
    ) -> Result<Vec<Metric>> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_models::lowrank::Family;

    #[test]
    fn own_effects_of_a_multiplicative_table_are_its_margins() {
        // 6 x 4 means 2^(row + column)/4, one cell missing: without noise the effects are exact.
        let settings = Settings { lambda_effects: 0.0, ..Settings::new(6, 4, Family::Poisson) };
        let mean = |row: u32, column: u32| f64::from(1 << (row + column)) / 4.0;
        let all = (0..24).map(|i| (i / 4, i % 4)).filter(|at| *at != (2, 1));
        let cells = all.map(|(row, column)| Cell { row, column, value: mean(row, column) });
        let found = own_effects(&settings, &cells.collect::<Vec<_>>());
        let guess = Family::Poisson.mean(found.theta(2, 1));
        assert!((guess - mean(2, 1)).abs() < 1e-5, "{guess}");
    }

    #[test]
    fn columns_without_a_value_have_the_mean_of_all() {
        let cell = |column, value| Cell { row: 0, column, value };
        let sums = ColumnSums::of(&[cell(0, 4.0), cell(0, 2.0), cell(2, 9.0)], 3);
        assert_eq!(sums.means(), [3.0, 5.0, 9.0]);
    }
}
