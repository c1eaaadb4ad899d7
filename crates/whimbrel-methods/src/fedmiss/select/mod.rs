//! The choice of rank and ridge by federated cross-validation: a stage before the fit.
//!
//! Clients hide a share of their observed cells; the stage does not use the cells that the job holds
//! out. In each split the candidates of [`candidates`] are fitted one after the other by FedMissEM with
//! full batches and exact messages. Then every client receives all fits of the split and answers with
//! sums over the deviances of its hidden cells and over their products, which give the standard error
//! of every difference, paired by cell. A client that does not answer is left out of that split for all
//! candidates.
//!
//! The chosen model is then fitted to all cells; the next stage starts from that fit. Factors have
//! several optima, so the best of several starts (the fit of the last split, and random ones) is
//! delivered.
//!
//! [`Select::baselines`] is the same stage with two simpler models and one split without hidden cells,
//! judged by the job's held-out cells.
//!
//! Cost: at most [`candidates_max`] fits per split, of at most `rounds` rounds each and usually far
//! fewer, since each starts from the nearest fit. A round costs as much as one of a fit with full
//! batches.

pub mod candidates;
mod delivery;
mod starts;
mod state;

pub use candidates::{Candidate, Given, Scores, Search, candidates_max};
pub use delivery::{BASELINES, BASELINES_KIND, KIND, Selection};
pub use state::Splits;
use state::{Down, Fold, Server, Table, Up};

use super::{BindCells, Client, FedMiss, Phase, Positions, Summary, UNANSWERED_MAX};
use crate::no_evaluation::no_evaluation;
use crate::settings::check_sums;
use whimbrel_core::method::{
    Allowance, Artifact, Bind, Cohort, Declaration, Disclosure, Done, Exposure, Next, Place,
    Sender, Status,
};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{Cell, ClientData, ClientId, Error, Key, Method, Result};
use whimbrel_models::lowrank::{Delivered, Factors, LAMBDA_EFFECTS, LowRank, Observed, Settings};

/// Default limit of a candidate's rounds: validation scores settle long before the fit converges.
pub const ROUNDS: u32 = 40;
/// A fit ends once the relative change of the completed table is below this, which changes a deviance
/// by about its square.
const SETTLED: f64 = 3e-4;
/// The same for starts, which are compared by their final objectives: before convergence the order of
/// two starts may still change.
const CONVERGED: f64 = 1e-8;
/// Fits of the chosen model to all cells, where it has factors: one random start in two or three
/// ends in a worse optimum.
const REFITS: u32 = 4;

/// A ridge that suppresses row effects.
const NO_EFFECT: f64 = 1e12;

/// The stage before the fit.
pub struct Select {
    /// The model, whose rank and ridge count only where the job fixes them.
    settings: Settings,
    task: Task,
    given: Given,
    /// Fits of the chosen model to all cells.
    refits: u32,
    rounds: u32,
    seed: u64,
}

/// The purpose of a stage.
enum Task {
    /// A choice of rank and ridge.
    Choose(Search),
    /// The deviances of simpler models on the job's held-out cells.
    Compare(Vec<Candidate>),
    /// The best of several starts of one model.
    Start(Candidate),
}

impl Select {
    fn disclosures(&self) -> Vec<Disclosure> {
        let Ok(fit) = self.first_fit() else { return Vec::new() };
        let mut all = fit.disclosures();
        // The stage has no evaluations.
        all.retain(|one| one.message != "answer");
        all.push(Disclosure {
            message: "up",
            meaning: "after each trial: sums over how well cells kept out were predicted (deviances and their products)".into(),
            bytes_max: 16 + 8 * Scores::length(candidates_max(self.settings.effects.0.len())),
            exposure: Exposure::Aggregate,
        });
        all
    }

    /// A choice of rank, ridge or both; `settings` and `given` fix the rest. Cells are assigned to splits
    /// by `seed`.
    pub fn new(settings: Settings, given: Given, rounds: u32, seed: u64) -> Result<Self> {
        if settings.effects.is_none() {
            return Err(Error::config("an automatic rank or lambda starts from main effects")
                .hint("set effects = \"row+column\""));
        }
        if rounds == 0 {
            return Err(Error::config("a selection needs at least one round"));
        }
        let Settings { lambda_effects, rows, columns, .. } = settings;
        let terms = settings.effects.0.len();
        let rank_max = rows.min(columns).saturating_sub(1);
        let task = Task::Choose(Search { terms, rank_max, lambda_effects, given });
        let select = Self { settings, task, given, refits: REFITS, rounds, seed };
        let (rank, lambda) = (given.rank.unwrap_or(0), given.lambda.unwrap_or(0.0));
        select.fit(&Candidate { rank, lambda, ..select.first_candidates()[0].clone() })?;
        Ok(select)
    }

    /// The deviances of simpler models on the held-out cells, for reports: column effects with the
    /// default ridge, row and column effects with that of the settings, and the terms of the settings
    /// if they have others.
    pub fn baselines(settings: Settings) -> Result<Self> {
        let own = settings.lambda_effects;
        let (effects, places) = settings.effects.with_lines();
        let of = |ridge: &dyn Fn(usize) -> f64| Candidate {
            rank: 0,
            lambda: 0.0,
            lambda_effects: own,
            term_ridges: (0..places.len()).map(ridge).collect(),
        };
        let of_term = |t: &usize| settings.term_ridges.get(*t).copied().unwrap_or(own);
        let mut models = vec![
            of(&|t| if t == 1 { LAMBDA_EFFECTS } else { NO_EFFECT }),
            of(&|t| if t < 2 { own } else { NO_EFFECT }),
        ];
        if places.len() > 2 {
            models.push(of(&|t| places[t].as_ref().map_or(NO_EFFECT, of_term)));
        }
        let task = Task::Compare(models);
        let settings = Settings { effects, term_ridges: Vec::new(), ..settings };
        Ok(Self { task, ..Self::new(settings, Given::default(), ROUNDS, 0)? })
    }

    /// Fits one model from several starts, each until it has converged and for at most `rounds` rounds,
    /// and delivers the fit of the lowest objective. No cells are hidden. The first start is that of a
    /// fit whose stage draws from the same keys.
    pub fn starts(settings: Settings, given: Given, starts: u32, rounds: u32) -> Result<Self> {
        let candidate = Candidate {
            rank: settings.rank,
            lambda: settings.lambda,
            lambda_effects: settings.lambda_effects,
            term_ridges: settings.term_ridges.clone(),
        };
        let task = Task::Start(candidate);
        let select = Self { settings, task, given, refits: starts, rounds, seed: 0 };
        select.first_fit()?;
        Ok(select)
    }

    fn first_candidates(&self) -> Vec<Candidate> {
        match &self.task {
            Task::Choose(search) => search.without_factors(),
            Task::Compare(models) => models.clone(),
            Task::Start(model) => vec![model.clone()],
        }
    }

    /// The number of sets of cells that are fitted: those of the splits, and all cells.
    fn parts(&self, splits: Splits) -> u32 {
        splits.count + u32::from(!matches!(self.task, Task::Compare(_)))
    }

    /// Whether the stage divides cells in this way.
    fn has(&self, splits: Splits) -> bool {
        match self.task {
            Task::Choose(_) => [0, u64::MAX].map(Splits::for_observations).contains(&splits),
            Task::Compare(_) => splits == Splits::HELD_OUT,
            Task::Start(_) => splits == Splits::NONE,
        }
    }

    /// FedMissEM for a candidate: full batches, exact both ways, no memories.
    fn fit(&self, candidate: &Candidate) -> Result<FedMiss> {
        let model = LowRank::new(candidate.of(&self.settings))?;
        let Given { personal, uncapped, .. } = self.given;
        Ok(FedMiss { personal, ceiling: !uncapped, ..FedMiss::exact(model, self.rounds) })
    }

    /// The first candidate's fit, for everything that all fits have in common.
    fn first_fit(&self) -> Result<FedMiss> {
        self.fit(&self.first_candidates()[0])
    }

    /// The fit of the candidate in progress.
    fn fit_of(&self, server: &Server) -> Result<FedMiss> {
        self.fit(&server.candidates[server.at as usize])
    }

    /// A client's cells in a split: those of the fit, and the hidden ones.
    fn cells_of(&self, splits: Splits, split: u32, data: &Observed) -> Observed {
        if splits == Splits::HELD_OUT {
            return data.clone();
        }
        let columns = self.settings.columns as u64;
        let position = |cell: &Cell| u64::from(cell.row) * columns + u64::from(cell.column);
        let hidden = splits.hidden(split, self.seed, data.cells.iter().map(position));
        let of = |wanted: bool| -> Vec<Cell> {
            let kept = data.cells.iter().zip(&hidden).filter(|(_, hidden)| **hidden == wanted);
            kept.map(|(cell, _)| *cell).collect()
        };
        Observed { cells: of(false), held_out: of(true) }
    }

    /// The client's summary without the cells that a split hides. The sum of values is scaled: it affects
    /// only the start of a fit.
    fn reduced(&self, splits: Splits, split: u32, summary: &Summary) -> Summary {
        if splits == Splits::NONE {
            return summary.clone();
        }
        let cells = &summary.cells.0;
        let hidden = splits.hidden(split, self.seed, cells.iter().copied());
        let kept = cells.iter().zip(&hidden).filter(|(_, hidden)| !**hidden);
        let kept: Vec<u64> = kept.map(|(cell, _)| *cell).collect();
        let sum = summary.sum * kept.len() as f64 / cells.len().max(1) as f64;
        Summary { cells: Positions(kept), sum }
    }

    /// Sums over the deviances of the hidden cells under each table.
    fn score(&self, client: &Client, down: &Down, data: &Observed) -> Result<Vec<f64>> {
        let part = self.cells_of(down.splits, down.split, data);
        let deviances = down.tables.iter().map(|table| {
            let fit = self.fit(&table.candidate)?;
            let family = fit.model.family();
            let delivered = Delivered::received(&fit.model, &table.theta, table.ceiling.as_ref())?;
            let mut effect = 0.0;
            if self.given.personal {
                effect = fit.personal_effect(&delivered.factors, client, &part, down.clients)?;
            }
            let deviance = |cell: &Cell| {
                let theta =
                    delivered.theta(&fit.model, cell.row as usize, cell.column as usize) + effect;
                family.judged_deviance(cell.value, family.mean(theta))
            };
            Ok(part.held_out.iter().map(deviance).collect())
        });
        Ok(Scores::of(&deviances.collect::<Result<Vec<Vec<f64>>>>()?))
    }

    /// Closes a round of a fit; a finished fit is recorded, and the next one begins.
    fn round(&self, mut server: Server, round: super::Fold, key: Key) -> Result<Server> {
        let (fit, at) = (&self.fit_of(&server)?, server.at as usize);
        let was_still = moves_below(CONVERGED, &server.fit);
        server.fit = fit.server_step(server.fit, round, key)?;
        server.rounds[at] += 1;
        let is_settled = match self.task {
            // The first round without a change may reactivate a component.
            Task::Start(_) => was_still && moves_below(CONVERGED, &server.fit),
            _ => moves_below(SETTLED, &server.fit),
        };
        if is_settled {
            fit.end_rounds(&mut server.fit);
        }
        if server.fit.phase != Phase::Calibrate {
            return Ok(server);
        }
        if server.split == server.splits.count {
            return self.refitted(server, fit, key);
        }
        if server.split == 0 && server.candidates[at].rank == 0 {
            server.lambda_maxes.push(starts::lambda_max(fit, &server.fit)?);
        }
        server.found[server.split as usize].push(Table {
            candidate: server.candidates[at].clone(),
            theta: server.fit.factors.to_vector(&fit.model),
            ceiling: server.fit.ceiling.clone(),
        });
        if at + 1 < server.candidates.len() {
            return self.begin(Server { at: server.at + 1, ..server }, key);
        }
        // The phase of the last fit of a split stands for the exchange of scores.
        Ok(server)
    }

    /// Records the scores of a split and begins the next one, or further candidates.
    fn record(&self, mut server: Server, scores: &ExactSum, key: Key) -> Result<Server> {
        if scores.count() == 0 {
            server.unanswered += 1;
            if server.unanswered > UNANSWERED_MAX {
                return Err(Error::peer("no client sent scores of the candidates"));
            }
            return Ok(server);
        }
        server.unanswered = 0;
        server.sums[server.split as usize] = scores.value();
        server.split += 1;
        let Task::Choose(search) = &self.task else {
            server.fit.phase = Phase::Over;
            return Ok(server);
        };
        if server.split == server.splits.count {
            // At most as many numbers in the factors as cells.
            let each = (self.settings.rows + self.settings.columns) as u64;
            let most = server.fresh[server.splits.count as usize].observations / each.max(1);
            let rank_max = search.rank_max.min(most as usize);
            let search = Search { rank_max, ..search.clone() };
            let scores = Scores::new(&server.sums);
            // The path of ridges on the factors starts where they vanish beside the best effects.
            if let Some(plain) = scores.best(0..server.lambda_maxes.len()) {
                server.lambda_max = server.lambda_maxes[plain];
            }
            let next = search.next(&server.candidates, &scores, server.lambda_max);
            if next.is_empty() {
                server.at = self.chosen(&server) as u32;
                return self.begin(server, key);
            }
            server.candidates.extend(next);
            server.rounds.resize(server.candidates.len(), 0);
            server.split = 0;
        }
        server.at = server.found[server.split as usize].len() as u32;
        self.begin(server, key)
    }

    /// Keeps the better of the fits to all cells, and begins the next one or ends the stage.
    fn refitted(&self, mut server: Server, fit: &FedMiss, key: Key) -> Result<Server> {
        server.refits += 1;
        let objective = starts::objective(fit, &server.fit);
        if server.best.as_ref().is_none_or(|(best, _)| objective < *best) {
            server.best = Some((objective, server.fit.factors.clone()));
        }
        // Without factors there is one optimum. With personal effects the server does not know the
        // objective, and delivers the refit of the last split's fit.
        let starts = if fit.model.rank() == 0 || self.given.personal { 1 } else { self.refits };
        if server.refits < starts {
            return self.begin(server, key);
        }
        server.fit.phase = Phase::Over;
        Ok(server)
    }

    /// The best candidate by the scores so far; the first one before there are any.
    fn chosen(&self, server: &Server) -> usize {
        let Task::Choose(search) = &self.task else { return 0 };
        let scores = Scores::new(&server.sums);
        search.choose(&server.candidates[..scores.count()], &scores).unwrap_or(0)
    }

    /// Prepares the fit of the candidate in progress.
    fn begin(&self, mut server: Server, key: Key) -> Result<Server> {
        let fit = self.fit_of(&server)?;
        let fresh = &server.fresh[server.split as usize];
        let all_cells = server.split == server.splits.count;
        let random = || {
            let mean = if fit.model.terms().is_empty() {
                fresh.s_hat.iter().sum::<f64>() / fresh.s_hat.len() as f64
            } else {
                fit.model.family().mean(fresh.factors.intercept)
            };
            Factors::start(&fit.model, mean, key.child(u64::from(server.refits)))
        };
        let last = server.found.last().filter(|_| server.refits == 0);
        let factors = match (all_cells, last) {
            (true, Some(last)) => {
                Factors::from_vector(&fit.model, &last[server.at as usize].theta)?
            }
            (true, None) => random(),
            (false, _) => {
                let found = &server.found[server.split as usize];
                starts::nearest(&fit.model, &self.settings, found, random())?
            }
        };
        server.fit = starts::restart(&fit, fresh, factors);
        Ok(server)
    }
}

impl Bind<Select> for BindCells {
    fn bind(&self, method: &Select, data: &ClientData) -> Result<Observed> {
        method.first_fit()?.model.bind(data)
    }
}

impl Method for Select {
    type Data = Observed;
    type Server = Server;
    /// One record for each split, and one for all cells.
    type Peer = Vec<super::Peer>;
    type Client = Client;
    type Summary = Summary;
    type Down = Down;
    type Up = Up;
    /// The shared part of a round's messages; `None` where fits are scored.
    type Broadcast = Option<super::Broadcast>;
    type Fold = Fold;

    fn declare(&self) -> Declaration {
        // The number of candidates depends on the data.
        let scores = Allowance { name: "scores", ..Allowance::rounds(None) };
        let exchanges = vec![Allowance::rounds(None), scores];
        Declaration { exchanges, disclosures: self.disclosures(), ..Declaration::default() }
    }

    fn enroll(&self, data: &Observed, key: Key) -> Result<(Client, Summary)> {
        self.first_fit()?.enroll(data, key)
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Summary)>,
        key: Key,
    ) -> Result<Server> {
        let roster: Vec<(ClientId, Summary)> = roster.collect();
        let observations = roster.iter().map(|(_, summary)| summary.cells.0.len() as u64).sum();
        let splits = match &self.task {
            Task::Choose(_) => Splits::for_observations(observations),
            Task::Compare(_) => Splits::HELD_OUT,
            Task::Start(_) => Splits::NONE,
        };
        let fit = self.first_fit()?;
        let fresh = (0..self.parts(splits)).map(|split| {
            let part =
                |(id, summary): &(ClientId, Summary)| (*id, self.reduced(splits, split, summary));
            fit.start(&mut roster.iter().map(part), key)
        });
        let fresh: Vec<super::Server> = fresh.collect::<Result<_>>()?;
        let candidates = self.first_candidates();
        Ok(Server {
            splits,
            split: 0,
            at: 0,
            fit: fresh[0].clone(),
            fresh,
            lambda_maxes: Vec::new(),
            lambda_max: 0.0,
            rounds: vec![0; candidates.len()],
            candidates,
            found: vec![Vec::new(); splits.count as usize],
            sums: vec![Vec::new(); splits.count as usize],
            unanswered: 0,
            best: None,
            refits: 0,
        })
    }

    fn admit(
        &self,
        server: &mut Server,
        id: ClientId,
        summary: &Summary,
    ) -> Result<Vec<super::Peer>> {
        let fit = self.first_fit()?;
        let part = |split: u32| self.reduced(server.splits, split, summary);
        let parts: Vec<Summary> = (0..self.parts(server.splits)).map(part).collect();
        let current = (server.fit.phase != Phase::Over).then(|| part(server.split));
        // Checked before any split moves: a refused summary leaves the state as it was.
        parts.iter().chain(&current).try_for_each(|part| fit.check_summary(id, part))?;
        let splits = server.fresh.iter_mut().zip(&parts);
        let peers = splits.map(|(one, part)| fit.admit(one, id, part)).collect::<Result<_>>()?;
        if let Some(part) = current {
            fit.admit(&mut server.fit, id, &part)?;
        }
        Ok(peers)
    }

    fn place(&self, _: &Client, down: &Down) -> Result<Place> {
        Ok(usize::from(down.fit.is_none()).into())
    }

    fn status(&self, server: &Server) -> Status {
        let next = match server.fit.phase {
            Phase::Over => Next::Stop,
            _ => Next::Round(Cohort::Everyone),
        };
        // Each candidate starts anew, and a fit that diverges ends its round with an error.
        let magnitude = if server.fit.table_norm2.is_finite() { 1.0 } else { f64::INFINITY };
        Status::new(next, magnitude)
    }

    fn open(&self, server: &Server, _: &[ClientId]) -> Result<(Self::Broadcast, Fold)> {
        let broadcast = match server.fit.phase {
            Phase::Calibrate | Phase::Over => None,
            Phase::Memory | Phase::Fit => Some(self.fit_of(server)?.broadcast(&server.fit)?),
        };
        let scores = server.fit.phase == Phase::Calibrate;
        let count = if scores { server.found[server.split as usize].len() } else { 0 };
        let fit = self.first_fit().ok().filter(|_| server.fit.phase == Phase::Fit);
        let fit = fit.map(|fit| fit.fold(&server.fit));
        let sums = ExactSum::new(Scores::length(count));
        Ok((broadcast, Fold { of: server.split, fit, sums }))
    }

    fn downlink(
        &self,
        server: &Server,
        broadcast: &Self::Broadcast,
        peer: &Vec<super::Peer>,
        key: Key,
    ) -> Result<(Vec<super::Peer>, Down)> {
        let Server { splits, split, .. } = *server;
        let (mut fit, mut tables) = (None, Vec::new());
        match broadcast {
            None => tables.clone_from(&server.found[split as usize]),
            Some(all) => {
                let own = peer_of(peer, split)?;
                let (_, down) = self.fit_of(server)?.downlink(&server.fit, all, own, key)?;
                fit = Some((server.candidates[server.at as usize].clone(), down));
            }
        }
        Ok((peer.clone(), Down { splits, split, clients: server.fit.clients, fit, tables }))
    }

    fn local_step(
        &self,
        client: &Client,
        down: &Down,
        data: &Observed,
        key: Key,
    ) -> Result<Done<Self>> {
        if down.split > down.splits.count || !self.has(down.splits) {
            let what = format!("a message about fold {} of {:?}", down.split, down.splits);
            return Err(Error::peer(what));
        }
        let Some((candidate, round)) = &down.fit else {
            let sums = self.score(client, down, data)?;
            return Ok(Done::new(client.clone(), Up { fit: None, sums }));
        };
        let part = self.cells_of(down.splits, down.split, data);
        let up = self.fit(candidate)?.local_step(client, round, &part, key)?.up;
        Ok(Done::new(client.clone(), Up { fit: Some(up), sums: Vec::new() }))
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Vec<super::Peer>>, up: Up) -> Result<()> {
        let (id, inclusion) = (from.id, from.inclusion);
        match (&mut fold.fit, up.fit) {
            (Some(fit), Some(up)) => {
                let peer = peer_of(from.peer, fold.of)?;
                self.first_fit()?.absorb(fit, Sender { id, inclusion, peer }, up)
            }
            (None, None) => {
                check_sums(id, &up.sums)?;
                fold.sums.add(&up.sums, 1.0)
            }
            _ => Err(Error::peer(format!("client {id} answered another exchange"))),
        }
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        if let (Some(fit), Some(other)) = (&mut fold.fit, other.fit) {
            self.first_fit()?.merge(fit, other)?;
        }
        fold.sums.merge(&other.sums)
    }

    fn server_step(&self, server: Server, fold: Fold, key: Key) -> Result<Server> {
        match (server.fit.phase, fold.fit) {
            (Phase::Over, _) => Ok(server),
            (Phase::Fit, Some(round)) => self.round(server, round, key),
            _ => self.record(server, &fold.sums, key),
        }
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        if matches!(self.task, Task::Compare(_)) {
            return Ok(delivery::baselines(server));
        }
        let chosen = self.chosen(server);
        let fit = self.fit(&server.candidates[chosen])?;
        let over = server.best.as_ref().filter(|_| server.fit.phase == Phase::Over);
        let factors = over.map(|(_, factors)| factors.to_vector(&fit.model));
        Ok(delivery::artifact(server, chosen, factors))
    }
}

/// Whether the relative change of the completed table in the last round is below `share`.
fn moves_below(share: f64, fit: &super::Server) -> bool {
    fit.update_norm2.is_some_and(|moved2| moved2 <= share * share * fit.table_norm2)
}

fn peer_of(peers: &[super::Peer], split: u32) -> Result<&super::Peer> {
    peers.get(split as usize).ok_or_else(|| Error::internal("a client has no record of this split"))
}

no_evaluation!([] Select);
