//! The choice of a mixture before it is fitted: its start and its number of components.
//!
//! *Starts* come from federated k-means and, every second one, from the pooled moments: k-means minimises
//! the inertia and not the likelihood, and its solutions differ less. They are compared by emEM
//! (Biernacki, Celeux and Govaert, 2003, section 3): a short run of EM from each, ended once a step gains at
//! most 0.1 % of the run's gain. The best [`FINALISTS`] and the first
//! then run until the remaining gain of EM, estimated by Aitken's rule (Böhning et al., 1994), is below
//! [`REMAINS_MAX`] nats in total, and the parameters of the highest likelihood are the start of the fit:
//! a job with one start has the first one, so more starts are not worse. *Numbers of components* are
//! compared by BIC (Schwarz, 1978), `-2 sum ln p + p ln n`, of the best start of each. Everyone
//! takes part in every exact EM step; a client sends only sums over its rows for every running
//! candidate. Validation rows are scored, too, but do not affect the choice.

mod state;

pub use state::{Candidate, Choice, Down, Fold, Server, Summary};

use crate::federated::{BindRows, Split, aggregate};
use crate::kmeans::{Centres, Points};
use crate::no_evaluation::no_evaluation;
use crate::settings::{Privacy, Weights, check_figures, check_sums};
use state::{CandidateState, Slot};
use whimbrel_core::method::{
    Allowance, Artifact, Bind, Cohort, Declaration, Disclosure, Done, Next, Sender, Status,
};
use whimbrel_core::{
    ClientData, ClientId, Error, Key, Method, Result, Shared, sum::ExactSum, vector,
};
use whimbrel_models::{Maximum, MixtureModel, Rows};

/// A short run ends at a step that gains at most this share of the run's gain.
const SHORT_SHARE: f64 = 0.001;
/// Most steps of a short run.
const SHORT_MAX: u32 = 200;
/// The largest remaining gain of total log-likelihood where BICs are compared; a difference of BIC
/// below 2 is "not worth more than a bare mention" (Kass and Raftery, 1995).
pub const REMAINS_MAX: f64 = 0.1;
/// The best short runs that are continued, beside the first.
pub const FINALISTS: usize = 3;
/// Most steps of a long run.
const LONG_MAX: u32 = 1000;
/// Restarts of the server's k-means for the first start, as for a single start.
const RESTARTS: u64 = 10;

/// The stage before the fit.
pub struct MixtureChoice<M: MixtureModel> {
    /// One mixture for each number of components.
    pub models: Vec<M>,
    /// Starts of each mixture.
    pub starts: u32,
    /// Whether every second start, from the first on, comes from clusters of the clients' rows; the
    /// others come from moments alone.
    pub clusters: bool,
    /// The fewest rows of a cluster.
    pub rows_min: usize,
    /// Rules on what messages may reveal.
    pub privacy: Privacy,
    /// Added to negative log-densities to state them in the units of the data.
    pub log_scale: f64,
}

impl<M: MixtureModel> Bind<MixtureChoice<M>> for BindRows {
    fn bind(&self, stage: &MixtureChoice<M>, data: &ClientData) -> Result<Split<M::Data>> {
        let model = stage.first()?;
        Split::bind(data, |rows| {
            let data = model.bind(rows)?;
            let count = model.rows(&data) as u64;
            Ok((data, count))
        })
    }
}

impl<M: MixtureModel> MixtureChoice<M> {
    /// The first mixture, for everything that is independent of the number of components.
    fn first(&self) -> Result<&M> {
        self.models.first().ok_or_else(|| Error::internal("a choice without mixtures"))
    }

    fn model(&self, slot: &Slot) -> &M {
        &self.models[slot.model as usize]
    }

    /// The length of one candidate's answer: statistic, mean log-likelihood, that of validation rows.
    fn answer_len(&self, slot: &Slot) -> usize {
        self.model(slot).statistic_len() + 2
    }

    /// The key of a start, on a client and on the server. The first start of a single mixture is that
    /// of federated k-means without a choice.
    fn draws(&self, key: Key, model: usize, start: u32) -> Key {
        let key = if self.models.len() == 1 { key } else { key.child(model as u64) };
        if start == 0 { key } else { key.child(u64::from(start)) }
    }

    /// The model and the number of each start.
    fn each_start(&self) -> impl Iterator<Item = (usize, u32)> + use<M> {
        let starts = self.starts;
        (0..self.models.len()).flat_map(move |model| (0..starts).map(move |start| (model, start)))
    }

    /// Whether a start comes from clusters. Of several starts each second one is drawn from the moments:
    /// centres of k-means differ little, since all minimise the inertia and not the likelihood.
    fn is_clustered(&self, start: u32) -> bool {
        self.clusters && start.is_multiple_of(2)
    }

    /// The model and the number of each start from clusters.
    fn each_clustered(&self) -> impl Iterator<Item = (usize, u32)> {
        self.each_start().filter(|(_, start)| self.is_clustered(*start))
    }

    /// First parameters of one start; `None` where the data are too few.
    fn start_of(
        &self,
        model: usize,
        start: u32,
        centres: &Centres,
        moments: &[f64],
        key: Key,
    ) -> Option<Vec<f64>> {
        let (mixture, key) = (&self.models[model], self.draws(key, model, start));
        if !self.is_clustered(start) {
            let start = mixture.initial_from_moments(moments, key).ok();
            return start.map(|theta| mixture.to_vector(&theta));
        }
        let restarts = if start == 0 { RESTARTS } else { 1 };
        centres.start(mixture, moments, restarts, key).ok()
    }

    /// One exact EM step of a candidate, from the mean answer.
    fn step(&self, slot: &mut Slot, moments: &[f64], answer: &[f64], rows: f64) {
        let model = self.model(slot);
        let (statistic, figures) = answer.split_at(model.statistic_len());
        slot.observe(figures[0], figures[1]);
        match model.maximize(statistic, moments) {
            Ok(Maximum { theta, repairs, .. }) => {
                slot.theta = model.to_vector(&theta);
                slot.repairs = repairs;
            }
            Err(_) => slot.phase = CandidateState::Failed,
        }
        let over = match slot.phase {
            CandidateState::Short => slot.steps >= SHORT_MAX || slot.gained_share() <= SHORT_SHARE,
            CandidateState::Long => slot.steps >= LONG_MAX || rows * slot.remains() <= REMAINS_MAX,
            CandidateState::Done | CandidateState::Failed => false,
        };
        if over {
            slot.phase = CandidateState::Done;
        }
    }

    /// After the short runs, starts the long runs: those of the best starts, and of the first, of each
    /// number of components.
    fn run_on(&self, server: &mut Server) {
        if server.ran_on || server.running().next().is_some() {
            return;
        }
        server.ran_on = true;
        for model in 0..self.models.len() as u32 {
            let ranked = ranked(&server.slots, model);
            let first = ranked.iter().copied().find(|at| server.slots[*at].start == 0);
            for at in ranked.iter().copied().take(FINALISTS).chain(first) {
                server.slots[at].phase = CandidateState::Long;
                server.slots[at].compared = true;
            }
        }
    }

    /// `-2 sum ln p + p ln n`.
    fn bic(&self, slot: &Slot, rows: f64) -> f64 {
        let log_likelihood = rows * (slot.last - self.log_scale);
        self.model(slot).free_parameters() as f64 * rows.ln() - 2.0 * log_likelihood
    }

    /// The candidate that the fit starts from.
    fn chosen(&self, server: &Server) -> Option<usize> {
        let models = 0..self.models.len() as u32;
        let best = models.filter_map(|model| best_start(&server.slots, model));
        // The likelihood of a mixture with a clipped covariance is meaningless.
        let rank = |at: usize| {
            let slot = &server.slots[at];
            (slot.repairs > 0, self.bic(slot, server.rows as f64))
        };
        best.min_by(|a, b| {
            let ((clipped_a, a), (clipped_b, b)) = (rank(*a), rank(*b));
            clipped_a.cmp(&clipped_b).then(a.total_cmp(&b))
        })
    }
}

/// The start of the highest likelihood, if possible among those without clipping.
fn best_start(slots: &[Slot], model: u32) -> Option<usize> {
    ranked(slots, model).first().copied()
}

/// The usable starts: those without clipping first, then by likelihood.
fn ranked(slots: &[Slot], model: u32) -> Vec<usize> {
    let usable =
        |at: &usize| slots[*at].model == model && slots[*at].phase != CandidateState::Failed;
    let mut all: Vec<usize> = (0..slots.len()).filter(usable).collect();
    let clipped = |at: usize| slots[at].repairs > 0;
    all.sort_by(|a, b| {
        clipped(*a).cmp(&clipped(*b)).then(slots[*b].last.total_cmp(&slots[*a].last))
    });
    all
}

impl<M: MixtureModel> Method for MixtureChoice<M> {
    type Data = Split<M::Data>;
    type Server = Server;
    type Peer = (u64, u64);
    type Client = ();
    type Summary = Summary;
    type Down = Down;
    /// Statistic, mean log-likelihood and that of validation rows of each running candidate.
    type Up = Vec<f64>;
    type Broadcast = Shared<Vec<(u32, Vec<f64>)>>;
    type Fold = Fold;

    fn declare(&self) -> Declaration {
        let exchanges = vec![Allowance::rounds(Some(SHORT_MAX + LONG_MAX))];
        Declaration { exchanges, disclosures: self.disclosures(), ..Declaration::default() }
    }

    fn enroll(&self, data: &Split<M::Data>, key: Key) -> Result<((), Summary)> {
        let model = self.first()?;
        let count = model.rows(&data.train);
        let window = model.window(&data.train, 0, count)?;
        let train = window.as_ref().unwrap_or(&data.train);
        let moments = model.moments(train)?;
        let mut centres = Vec::new();
        if self.clusters {
            let points = Points::of(model, train, &moments);
            let each = self.each_clustered().map(|(model, start)| {
                let components = self.models[model].components();
                points.centres(components, self.rows_min, self.draws(key, model, start))
            });
            centres = each.collect::<Result<_>>()?;
        }
        let validation = data.validation.as_ref().map_or(0, |data| model.rows(data));
        Ok(((), Summary { rows: count as u64, validation: validation as u64, moments, centres }))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = (ClientId, Summary)>,
        key: Key,
    ) -> Result<Server> {
        let model = self.first()?;
        let (mut rows, mut moments) = (0.0, ExactSum::new(model.moments_len()));
        let mut centres = vec![Centres::default(); self.each_clustered().count()];
        for (id, summary) in roster {
            self.check_summary(id, &summary)?;
            rows += Weights::Samples.of(id, summary.rows)?;
            moments.add(&summary.moments, summary.rows as f64)?;
            for (all, own) in centres.iter_mut().zip(summary.centres) {
                all.add(model, &summary.moments, own.0, own.1);
            }
        }
        if rows == 0.0 {
            return Err(Error::data("there is no client"));
        }
        let mut mean = moments.value();
        vector::scale(&mut mean, 1.0 / rows);
        let mut slots = Vec::new();
        let mut centres = centres.into_iter();
        for (number, start) in self.each_start() {
            let own = centres.by_ref().take(usize::from(self.is_clustered(start))).next();
            let centres = own.unwrap_or_default().filled(model, &mean);
            let theta = self.start_of(number, start, &centres, &mean, key);
            slots.push(Slot::new(number as u32, start, theta));
        }
        if slots.iter().all(|slot| slot.phase == CandidateState::Failed) {
            let what = "no start was found; the data may hold too few distinct rows";
            return Err(Error::data(what));
        }
        let (rows, validation) = (0, 0);
        Ok(Server { round: 0, rows, validation, moments: mean, slots, ran_on: false })
    }

    fn admit(&self, server: &mut Server, id: ClientId, summary: &Summary) -> Result<(u64, u64)> {
        self.check_summary(id, summary)?;
        Weights::Samples.of(id, summary.rows)?;
        server.rows += summary.rows;
        server.validation += summary.validation;
        Ok((summary.rows, summary.validation))
    }

    fn rows(&self, peer: &(u64, u64)) -> Option<u64> {
        Some(peer.0)
    }

    fn status(&self, server: &Server) -> Status {
        let runs = server.running().next().is_some();
        let next = if runs { Next::Round(Cohort::Everyone) } else { Next::Stop };
        let norms2 = server.slots.iter().map(|slot| vector::norm2_squared(&slot.theta));
        Status::new(next, norms2.sum::<f64>().sqrt())
    }

    fn open(&self, server: &Server, _: &[ClientId]) -> Result<(Self::Broadcast, Fold)> {
        let running = server.running().map(|(_, slot)| (slot.model, slot.theta.clone()));
        let broadcast = Shared::new(&running.collect());
        let lengths: Vec<u32> =
            server.running().map(|(_, slot)| self.answer_len(slot) as u32).collect();
        let sums = ExactSum::new(lengths.iter().sum::<u32>() as usize);
        Ok((broadcast, Fold { lengths, sums, rows: 0, validation: 0 }))
    }

    fn downlink(
        &self,
        _: &Server,
        broadcast: &Self::Broadcast,
        peer: &(u64, u64),
        _: Key,
    ) -> Result<((u64, u64), Down)> {
        Ok((*peer, Down { candidates: broadcast.clone() }))
    }

    fn local_step(
        &self,
        (): &(),
        down: &Down,
        data: &Split<M::Data>,
        _: Key,
    ) -> Result<Done<Self>> {
        let mut answers = Vec::new();
        let candidates = down.candidates.get()?;
        if candidates.len() > self.models.len() * self.starts as usize {
            return Err(Error::peer("more candidates than in the job"));
        }
        for (model, theta) in &*candidates {
            let model = self.models.get(*model as usize);
            let model = model.ok_or_else(|| Error::peer("a candidate outside the job"))?;
            let theta = model.from_vector(theta)?;
            let window = model.window(&data.train, 0, model.rows(&data.train))?;
            let mut statistic = vec![0.0; model.statistic_len()];
            let train = window.as_ref().unwrap_or(&data.train);
            let mut expect = |data, group| {
                model.expect_supported(&theta, data, Rows::All, group, &mut statistic)
            };
            let kept = match &data.validation {
                Some(rows) => {
                    let group = self.privacy.group_of_part(model.rows(rows));
                    expect(rows, group)?.log_likelihood
                }
                None => 0.0,
            };
            let mean = expect(train, self.privacy.min_group)?.log_likelihood;
            answers.extend_from_slice(&statistic);
            answers.extend([mean, kept]);
        }
        Ok(Done::new((), answers))
    }

    fn absorb(
        &self,
        fold: &mut Fold,
        from: Sender<'_, (u64, u64)>,
        mut answers: Vec<f64>,
    ) -> Result<()> {
        if answers.len() != fold.sums.len() {
            let what = format!("client {} sent sums of another length", from.id);
            return Err(Error::peer(what));
        }
        check_figures(from.id, &answers)?;
        let (rows, validation) = *from.peer;
        // The score of validation rows is weighted by these, everything else by training rows.
        let mut end = 0;
        for length in &fold.lengths {
            end += *length as usize;
            answers[end - 1] *= validation as f64 / rows as f64;
        }
        fold.sums.add(&answers, rows as f64)?;
        fold.rows += rows;
        fold.validation += validation;
        Ok(())
    }

    fn merge(&self, fold: &mut Fold, other: Fold) -> Result<()> {
        fold.rows += other.rows;
        fold.validation += other.validation;
        fold.sums.merge(&other.sums)
    }

    fn server_step(&self, mut server: Server, fold: Fold, _: Key) -> Result<Server> {
        server.round += 1;
        if fold.rows == 0 {
            return Ok(server);
        }
        let sums = fold.sums.value();
        let rows = fold.rows as f64;
        let mut from = 0;
        let running: Vec<usize> = server.running().map(|(at, _)| at).collect();
        for (at, length) in running.into_iter().zip(&fold.lengths) {
            let end = from + *length as usize;
            let mut mean: Vec<f64> = sums[from..end].iter().map(|sum| sum / rows).collect();
            mean[*length as usize - 1] *= rows / (fold.validation.max(1)) as f64;
            self.step(&mut server.slots[at], &server.moments, &mean, server.rows as f64);
            from = end;
        }
        self.run_on(&mut server);
        Ok(server)
    }

    fn without_clients(&self, server: Server) -> Result<Server> {
        Ok(Server { rows: 0, validation: 0, ..server })
    }

    fn artifact(&self, server: &Server) -> Result<Artifact> {
        let chosen =
            self.chosen(server).ok_or_else(|| Error::numerical("EM diverged from every start"))?;
        let candidates = server.slots.iter().enumerate().map(|(at, slot)| Candidate {
            components: self.model(slot).components() as u32,
            start: slot.start + 1,
            steps: slot.steps,
            parameters: self.model(slot).free_parameters() as u32,
            log_likelihood: slot.last - self.log_scale,
            bic: self.bic(slot, server.rows as f64),
            validation: (server.validation > 0).then_some(slot.validation - self.log_scale),
            compared: slot.compared,
            clipped: slot.repairs > 0,
            failed: slot.phase == CandidateState::Failed,
            chosen: at == chosen,
        });
        let choice = Choice { candidates: candidates.collect() };
        Ok(choice.artifact(&server.slots[chosen].theta))
    }
}

impl<M: MixtureModel> MixtureChoice<M> {
    fn disclosures(&self) -> Vec<Disclosure> {
        let numbers = |model: &M| model.components() * (model.point_len() + 1);
        let moments = self.models.first().map_or(0, M::moments_len);
        let (mut clusters, mut centres) = (0, String::new());
        if self.clusters {
            let starts = (0..self.starts).filter(|start| self.is_clustered(*start)).count();
            clusters = self.models.iter().map(numbers).sum::<usize>() * starts;
            centres =
                format!(", and centres and sizes of clusters of at least {} rows", self.rows_min);
        }
        let statistics: usize = self.models.iter().map(|model| model.statistic_len() + 2).sum();
        vec![
            aggregate(
                "summary",
                &format!(
                    "averages over all rows: of the columns, and of their squares or products{centres}"
                ),
                8 * (clusters + moments) + 32 * (1 + self.each_start().count()),
            ),
            aggregate(
                "up",
                "for each candidate and component, averages over all rows of the columns and of their squares or \
                 products, and mean log-likelihoods",
                8 * statistics * self.starts as usize + 16,
            ),
        ]
    }

    fn check_summary(&self, id: ClientId, summary: &Summary) -> Result<()> {
        let starts = self.each_clustered().count();
        let lengths = summary.moments.len() == self.first()?.moments_len();
        if !lengths || summary.centres.len() != starts {
            return Err(Error::peer(format!("client {id} sent a summary of another length")));
        }
        check_sums(id, &summary.moments)?;
        let width = self.first()?.point_len();
        for (centres, counts) in &summary.centres {
            if centres.len() != counts.len() * width {
                return Err(Error::peer(format!("client {id} sent centres without counts")));
            }
            check_sums(id, centres)?;
            check_sums(id, counts)?;
        }
        Ok(())
    }
}

no_evaluation!([M: MixtureModel] MixtureChoice<M>);
