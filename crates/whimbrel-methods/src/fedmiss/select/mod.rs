//! Choosing rank and ridge by federated cross-validation: a stage before the fit.
//!
//! Clients hide a share of their own observed cells (never those that the job holds out, which the
//! stage does not look at), the candidates of [`search`] are fitted one after the other by FedMissEM
//! with full batches and exact messages, and after each fit everyone sends the sum of the deviances
//! of its hidden cells, the sum of their squares, and the sums of squared differences to the
//! candidates before: enough for the standard error of any difference, paired cell by cell.
//!
//! Then the model that was chosen is fitted to all cells, and delivered: the fit that follows starts
//! there. Factors have several optima, so it is fitted from several starts (the fit of the last
//! fold, and random ones), and the one with the lowest objective is taken.
//!
//! Cost: at most [`CANDIDATES_MAX`] fits per fold, of at most `rounds` rounds each and usually far
//! fewer, since each starts from the fit nearest to it; 1 fold of 10 % from 20,000 observed cells
//! on, 2 of 20 % from 10,000 on, 4 from 1,000 on, 5 below. A round sends every residual and is as long as one
//! of a fit with full batches.

mod delivery;
pub mod search;
mod state;
mod warm;

pub use delivery::{KIND, Selection};
use search::{BEAT, BEAT_SMALL};
pub use search::{CANDIDATES_MAX, Candidate, Choice, Rule, Search, Trial, choose};
pub use state::{Client, Down, Fold, Folds, Refit, Server, Up};

use super::roll::{Answers, Roll};
use super::{BindCells, FedMiss, Phase, Positions, Summary};
use whimbrel_core::method::{
    Artifact, Bind, Cohort, Disclosure, Evaluate, Exposure, Metric, Next, Sender,
};
use whimbrel_core::{Cell, ClientData, ClientId, Error, Key, Method, Result};
use whimbrel_models::lowrank::{Delivered, Effects, Factors, LowRank, Observed, Settings};

/// Rounds that a candidate's fit may take, unless the caller says otherwise.
pub const ROUNDS: u32 = 40;
/// A fit is over once the completed table moves by less than this share of itself.
const SETTLED: f64 = 3e-4;
/// A search goes to ranks that leave at least so many observations for each number in the factors:
/// below that, cross-validation on a small table takes chance for structure.
const OBSERVATIONS_PER_NUMBER: f64 = 2.5;
/// Fits of the chosen model to all cells, where it has factors.
const REFITS: u32 = 4;
/// The share of a low rank that scores better than rank 0 by 2 % at least, but not clearly so.
pub const SHARE: f64 = 1.0 / 3.0;
/// So many folds are those of a small table.
const SMALL_FOLDS: u32 = 5;
/// What the job gives; the rest is searched.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Given {
    /// The rank.
    pub rank: Option<usize>,
    /// The ridge on the factors.
    pub lambda: Option<f64>,
    /// Whether the ridge on main effects is that of the settings, not only where its search starts.
    pub lambda_effects: bool,
    /// Whether each client has an effect of its own: then every candidate is fitted and judged with
    /// them.
    pub personal: bool,
}

/// The stage.
pub struct Select {
    /// The model whose rank and ridge are wanted; those of the job where it gives one.
    settings: Settings,
    search: Search,
    personal: bool,
    rounds: u32,
    seed: u64,
}

impl Select {
    /// A selection for this table: of its rank or its ridge or both; `settings` says the rest. Cells
    /// are dealt to folds by `seed`.
    pub fn new(settings: Settings, given: Given, rounds: u32, seed: u64) -> Result<Self> {
        if settings.effects == Effects::None {
            return Err(Error::config("an automatic rank or lambda starts from main effects")
                .hint("set effects = \"row+column\""));
        }
        if rounds == 0 {
            return Err(Error::config("a selection needs a round at least"));
        }
        let rank_max = settings.rows.min(settings.columns).saturating_sub(1);
        let Given { rank, lambda, lambda_effects, personal } = given;
        let search = Search {
            effects: settings.effects,
            rank_max,
            rank,
            lambda,
            lambda_effects: settings.lambda_effects,
            search_effects: !lambda_effects,
        };
        let select = Self { settings, search, personal, rounds, seed };
        select.fit(&select.candidate(rank.unwrap_or(0), lambda.unwrap_or(0.0)))?;
        Ok(select)
    }

    /// The largest rank that so many observations can tell anything about.
    fn rank_max(&self, observations: u64) -> u32 {
        let each = (self.settings.rows + self.settings.columns) as f64;
        let most = observations as f64 / (OBSERVATIONS_PER_NUMBER * each).max(1.0);
        (most as usize).min(self.search.rank_max) as u32
    }

    fn search_up_to(&self, rank_max: u32) -> Search {
        Search { rank_max: rank_max as usize, ..self.search.clone() }
    }

    /// FedMissEM for a candidate: full batches, exact both ways, no memories.
    fn fit(&self, candidate: &Candidate) -> Result<FedMiss> {
        let model = LowRank::new(candidate.of(&self.settings))?;
        Ok(FedMiss { personal: self.personal, ..FedMiss::exact(model, self.rounds) })
    }

    /// The job's effects with factors of this rank.
    fn candidate(&self, rank: usize, lambda: f64) -> Candidate {
        let Settings { effects, lambda_effects, .. } = self.settings;
        Candidate { effects, rank, lambda, lambda_effects }
    }

    /// The fit of rank 0, for what all fits do alike.
    fn plain(&self) -> Result<FedMiss> {
        self.fit(&self.candidate(0, 0.0))
    }

    /// The fit of the trial in progress.
    fn fit_of(&self, server: &Server) -> Result<FedMiss> {
        match server.trials.get(server.at as usize) {
            Some(trial) => self.fit(&trial.candidate),
            None => Err(Error::internal("the selection has lost its place")),
        }
    }

    fn position(&self, cell: &Cell) -> u64 {
        u64::from(cell.row) * self.settings.columns as u64 + u64::from(cell.column)
    }

    /// A client's cells as a fold has them: those of the fit, and those it hides.
    fn split(&self, folds: Folds, fold: u32, data: &Observed) -> Observed {
        let numbers = data.cells.iter().map(|cell| self.position(cell));
        let hidden = folds.hidden(fold, self.seed, numbers);
        let of = |wanted: bool| -> Vec<Cell> {
            let kept = data.cells.iter().zip(&hidden).filter(|(_, hidden)| **hidden == wanted);
            kept.map(|(cell, _)| *cell).collect()
        };
        Observed { cells: of(false), held_out: of(true) }
    }

    /// What the client would say at enrolment if it had only the cells that a fold leaves it. The
    /// sum of all its values stands for that of those: it only sets where a fit starts.
    fn reduced(&self, folds: Folds, fold: u32, summary: &Summary) -> Summary {
        let cells = &summary.cells.0;
        let hidden = folds.hidden(fold, self.seed, cells.iter().copied());
        let kept = cells.iter().zip(&hidden).filter(|(_, hidden)| !**hidden);
        let kept: Vec<u64> = kept.map(|(cell, _)| *cell).collect();
        let sum = summary.sum * kept.len() as f64 / cells.len().max(1) as f64;
        Summary { cells: Positions(kept), sum }
    }

    /// Deviances of the hidden cells, and what the client says about them.
    fn score(&self, client: &Client, down: &Down, data: &Observed) -> Result<(Client, Up)> {
        let fit = self.fit(&down.candidate)?;
        let (_, theta) = fit.downlink.receive(&client.fit.down, &down.fit.state)?;
        let factors = Factors::from_vector(&fit.model, &theta)?;
        let family = fit.model.family();
        let part = self.split(down.folds, down.fold, data);
        let effect = match self.personal {
            true => fit.personal_effect(&factors, &client.fit, &part, down.fit.clients),
            false => 0.0,
        };
        let table = Delivered::finished(&fit.model, factors, down.fit.finish.as_ref())?;
        let deviance = |cell: &Cell| {
            let theta = table.theta(cell.row as usize, cell.column as usize) + effect;
            family.judged_deviance(cell.value, family.mean(theta))
        };
        let new: Vec<f64> = part.held_out.iter().map(deviance).collect();
        let mut next = client.clone();
        if next.fold != down.fold {
            (next.fold, next.deviances) = (down.fold, Vec::new());
        }
        next.deviances.truncate(down.at as usize);
        if next.deviances.len() < down.at as usize {
            // It came later or missed a candidate: it has nothing to compare this one with.
            return Ok((next, Up { fit: None, sums: Vec::new() }));
        }
        let squares =
            |other: &[f64]| -> f64 { new.iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum() };
        let mut sums = vec![new.len() as f64, new.iter().sum(), new.iter().map(|d| d * d).sum()];
        sums.extend(next.deviances.iter().map(|old| squares(old)));
        next.deviances.push(new);
        Ok((next, Up { fit: None, sums }))
    }

    /// Goes on after a round of a fit.
    fn settle(&self, mut server: Server, fit: &FedMiss, key: Key) -> Result<Server> {
        let trial = &mut server.trials[server.at as usize];
        trial.rounds += 1;
        let moved2 = server.fit.update_norm2.unwrap_or(f64::INFINITY);
        if moved2 <= SETTLED * SETTLED * server.fit.table_norm2 {
            fit.end_rounds(&mut server.fit);
        }
        let over = server.fit.phase == Phase::Calibrate;
        if over && server.fold == 0 && trial.candidate == self.candidate(0, 0.0) {
            server.lambda_max = warm::lambda_max(fit, &server.fit);
        }
        // Of a fit to all cells nothing is judged.
        match over && server.fold == server.folds.count {
            true => self.refitted(server, fit, key),
            false => Ok(server),
        }
    }

    /// Keeps the better of the fits to all cells, and goes on with the next one or with none. The one
    /// of rank 0 comes first where there is one to mix with.
    fn refitted(&self, mut server: Server, fit: &FedMiss, key: Key) -> Result<Server> {
        let Choice { trial, beside } = self.chosen(&server.trials, server.folds)?;
        if beside == Some(server.at as usize) {
            server.plain = Some(server.fit.factors.clone());
            server.at = trial as u32;
            return self.begin(server, key);
        }
        server.refits += 1;
        let objective = warm::objective(fit, &server.fit);
        if server.best.as_ref().is_none_or(|best| objective < best.objective) {
            server.best = Some(Refit { objective, factors: server.fit.factors.clone() });
        }
        // Without factors there is one optimum. With personal effects the server does not know the
        // objective: the fit of the last fold was judged, and its optimum is taken.
        let starts = if fit.model.rank() == 0 || self.personal { 1 } else { REFITS };
        if server.refits < starts {
            return self.begin(server, key);
        }
        if let Some(best) = &server.best {
            server.fit.factors = best.factors.clone();
        }
        server.fit.phase = Phase::Over;
        Ok(server)
    }

    /// Takes the scores of a trial and turns to the next one.
    fn record(&self, mut server: Server, scores: Answers, key: Key) -> Result<Server> {
        let voters = server.voters();
        let Some(heard) = server.roll.take(scores, &voters)? else { return Ok(server) };
        // Differences between trials are over the same cells or they mean nothing.
        server.scored.push(heard);
        if server.voters().is_empty() {
            return Err(Error::peer("no client is left that has scored every candidate"));
        }
        server.tally();
        server.found.push(server.fit.factors.clone());
        server.at += 1;
        if server.at as usize == server.trials.len() {
            // The search goes by the first fold; the others try the same candidates.
            let next = match server.fold {
                0 => self.search_up_to(server.rank_max).next(&server.trials, server.lambda_max),
                _ => None,
            };
            match next {
                Some(candidate) => server.trials.push(Trial::new(candidate, server.trials.len())),
                None => {
                    server.fold += 1;
                    server.at = 0;
                    server.scored.clear();
                    server.settled = server.trials.clone();
                    match server.fold == server.folds.count {
                        true => {
                            let Choice { trial, beside } =
                                self.chosen(&server.trials, server.folds)?;
                            server.at = beside.unwrap_or(trial) as u32;
                        }
                        false => server.found.clear(),
                    }
                }
            }
        }
        self.begin(server, key)
    }

    /// What is taken, by the scores so far.
    fn chosen(&self, trials: &[Trial], folds: Folds) -> Result<Choice> {
        let rule = Rule {
            rank_given: self.search.rank.is_some(),
            beat: if folds.count >= SMALL_FOLDS { BEAT_SMALL } else { BEAT },
            // A client's own effect belongs to one model.
            mixes: !self.personal,
        };
        choose(trials, rule).ok_or_else(|| Error::internal("nothing was tried"))
    }

    /// Sets up the fit of the trial in progress.
    fn begin(&self, mut server: Server, key: Key) -> Result<Server> {
        let fit = self.fit_of(&server)?;
        let candidate = &server.trials[server.at as usize].candidate;
        let fresh = &server.fresh[server.fold as usize];
        let all = server.fold == server.folds.count;
        let factors = match server.found.get(server.at as usize).filter(|_| all) {
            Some(found) if server.refits == 0 => found.clone(),
            Some(found) => {
                let mean = fit.model.family().mean(found.intercept);
                Factors::start(&fit.model, mean, key.fold(u64::from(server.refits)))
            }
            None => warm::start(&fit.model, candidate, &server, key),
        };
        server.fit = warm::restart(&fit, fresh, factors);
        Ok(server)
    }
}

impl Bind<Select> for BindCells {
    fn bind(&self, method: &Select, data: &ClientData) -> Result<Observed> {
        method.plain()?.model.bind(data)
    }
}

impl Method for Select {
    type Data = Observed;
    type Server = Server;
    type Peer = Vec<super::Peer>;
    type Client = Client;
    type Summary = Summary;
    type Down = Down;
    type Up = Up;
    type Broadcast = ();
    type Fold = Fold;

    fn enroll(&self, data: &Observed, key: Key) -> Result<(Client, Summary)> {
        let (fit, summary) = self.plain()?.enroll(data, key)?;
        Ok((Client { fit, fold: 0, deviances: Vec::new() }, summary))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Summary)>,
        key: Key,
    ) -> Result<Server> {
        let roster: Vec<(ClientId, Summary)> = roster.collect();
        let observations: u64 =
            roster.iter().map(|(_, summary)| summary.cells.0.len() as u64).sum();
        let folds = Folds::for_observations(observations);
        let first = self.search.next(&[], 0.0);
        let first = first.ok_or_else(|| Error::internal("there is nothing to try"))?;
        let fit = self.fit(&first)?;
        let fresh = (0..=folds.count).map(|fold| {
            let part =
                |(id, summary): &(ClientId, Summary)| (*id, self.reduced(folds, fold, summary));
            fit.start(&mut roster.iter().map(part), key)
        });
        let fresh: Vec<super::Server> = fresh.collect::<Result<_>>()?;
        Ok(Server {
            folds,
            fold: 0,
            at: 0,
            fit: fresh[0].clone(),
            fresh,
            lambda_max: 0.0,
            rank_max: self.rank_max(observations),
            trials: vec![Trial::new(first, 0)],
            settled: Vec::new(),
            scored: Vec::new(),
            found: Vec::new(),
            roll: Roll::default(),
            plain: None,
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
        let fit = self.fit_of(server)?;
        let parts: Vec<_> = (0..server.fresh.len() as u32)
            .map(|fold| self.reduced(server.folds, fold, summary))
            .collect();
        let current = (server.fit.phase != Phase::Over)
            .then(|| self.reduced(server.folds, server.fold, summary));
        // Checked before any fold moves: a refused summary leaves the state as it was.
        parts.iter().chain(&current).try_for_each(|part| fit.check_summary(id, part))?;
        let folds = server.fresh.iter_mut().zip(&parts);
        let peers = folds.map(|(one, part)| fit.admit(one, id, part)).collect::<Result<_>>()?;
        if let Some(part) = current {
            fit.admit(&mut server.fit, id, &part)?;
        }
        Ok(peers)
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
        peer: &Vec<super::Peer>,
        key: Key,
    ) -> Result<(Vec<super::Peer>, Down)> {
        let Server { folds, fold, at, .. } = *server;
        let own = peer_of(peer, fold)?;
        let (_, fit) = self.fit_of(server)?.downlink(&server.fit, &(), own, key)?;
        let candidate = server.trials[at as usize].candidate;
        Ok((peer.clone(), Down { folds, fold, at, candidate, fit }))
    }

    fn local_step(
        &self,
        client: &Client,
        down: &Down,
        data: &Observed,
        key: Key,
    ) -> Result<(Client, Up)> {
        let Folds { count, share } = down.folds;
        if down.fold > count || !(share > 0.0 && share <= 1.0) {
            return Err(Error::peer("the server asks about a fold that there is not"));
        }
        if down.fit.phase == Phase::Calibrate {
            return self.score(client, down, data);
        }
        let part = self.split(down.folds, down.fold, data);
        let (_, up) = self.fit(&down.candidate)?.local_step(&client.fit, &down.fit, &part, key)?;
        Ok((client.clone(), Up { fit: Some(up), sums: Vec::new() }))
    }

    fn fold(&self, server: &Server) -> Fold {
        let fit = self.fit_of(server).ok().filter(|_| server.fit.phase == Phase::Fit);
        let scores = Answers::new(if fit.is_some() { 0 } else { 3 + server.at as usize });
        Fold { of: server.fold, fit: fit.map(|fit| fit.fold(&server.fit)), scores }
    }

    fn absorb(&self, fold: &mut Fold, from: Sender<'_, Vec<super::Peer>>, up: Up) -> Result<()> {
        let id = from.id;
        match (&mut fold.fit, up.fit) {
            (Some(fit), Some(up)) => {
                let peer = peer_of(from.peer, fold.of)?;
                let from = Sender { id, inclusion: from.inclusion, peer };
                self.plain()?.absorb(fit, from, up)
            }
            (None, None) => fold.scores.absorb(id, up.sums),
            _ => Err(Error::peer(format!("client {id} answered another exchange"))),
        }
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        if let (Some(fit), Some(other)) = (&mut fold.fit, other.fit) {
            self.plain()?.merge(fit, other)?;
        }
        fold.scores.merge(other.scores);
        Ok(())
    }

    fn server_step(&self, mut server: Server, fold: Fold, key: Key) -> Result<Server> {
        match (server.fit.phase, fold.fit) {
            (Phase::Over, _) => Ok(server),
            (Phase::Fit, Some(round)) => {
                let fit = self.fit_of(&server)?;
                server.fit = fit.server_step(server.fit, round, key)?;
                self.settle(server, &fit, key)
            }
            _ => self.record(server, fold.scores, key),
        }
    }

    fn magnitude(&self, server: &Server) -> f64 {
        // Each candidate starts anew, and a fit that runs away ends its round with an error.
        if server.fit.table_norm2.is_finite() { 1.0 } else { f64::INFINITY }
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let choice = self.chosen(&server.trials, server.folds)?;
        let fit = self.fit(&server.trials[choice.trial].candidate)?;
        let over = server.fit.phase == Phase::Over;
        let factors = over.then(|| server.fit.factors.to_vector(&fit.model));
        Ok(delivery::artifact(server, choice, factors))
    }

    fn disclosures(&self) -> Vec<Disclosure> {
        let Ok(fit) = self.plain() else { return Vec::new() };
        let mut all = fit.disclosures();
        // No evaluation is asked for, and the last exchange of a fit does not happen here.
        all.retain(|one| one.message != "answer");
        all.push(Disclosure {
            message: "up",
            meaning: "after each candidate: sums over the deviances of the cells it hides".into(),
            bytes_max: 16 + 8 * (3 + CANDIDATES_MAX),
            exposure: Exposure::Aggregate,
        });
        all
    }
}

fn peer_of(peers: &[super::Peer], fold: u32) -> Result<&super::Peer> {
    peers.get(fold as usize).ok_or_else(|| Error::internal("a client has no record of this fold"))
}

/// Nothing to ask: what the stage finds is its result.
impl Evaluate for Select {
    type Ask = ();
    type Answer = ();

    fn ask(&self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn answer(&self, _: &Client, (): &(), _: &Observed) -> Result<()> {
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
