//! Methods over local training: mixtures of learners and the methods they are compared with.
//!
//! Reference: Marfoq, Neglia, Bellet, Kameni, Vidal, *Federated multi-task learning under a mixture
//! of distributions*, NeurIPS 2021, Algorithms 1 to 3. All of them are federated surrogate optimisation
//! (Algorithm 3): a client minimises a *partial first-order surrogate* of its loss, exactly in its
//! personal state (`v`: mixture weights, a personal model, a head) and by gradient steps in the shared
//! vector (`u`); the server averages `u`. A method is a [`LocalRule`]: one file each.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `u^k` | `w` | the shared vector: all components, concatenated |
//! | `v_t^k` | [`Own`] | the client's personal state |
//! | `g_t^k(u, v)` | [`LocalRule::begin`] | the surrogate and the models trained on it |
//! | `omega_t = n_t/n` | weights | `weights = "samples"` |
//! | `eta_k` | [`Rates`] | the local step |
//!
//! The oracle's value is the local *change* `u_t - u`, so that every channel can carry it.
//!
//! Reduces to
//! - `fedavg`: `fedmix` with one component, bit for bit; `fedprox` with `mu = 0`, bit for bit.
//!
//! Departures from the paper: Algorithm 2 prints sums over a batch, here the gradient is the mean;
//! clients that are not sampled count with the old model by default (the authors' statement).

mod apfl;
mod clustered;
mod decentralised;
mod ditto;
mod ensemble;
mod evaluate;
mod fedavg;
mod fedmix;
mod fedrep;
mod local;
mod mocha;
mod per_client;
mod pfedme;
mod rule;
mod scaffold;
mod server;
mod start;
mod work;

pub use apfl::Apfl;
pub use clustered::{CLUSTER, Clustered, ClusteredClients, Linkage};
pub use decentralised::{DecentralisedPersonal, Scaling};
pub use ditto::Ditto;
pub use ensemble::Ensemble;
pub use fedavg::FedAvg;
pub use fedmix::{FedMix, Weighing};
pub use fedrep::FedRep;
pub use local::Local;
pub use mocha::{Mocha, MochaClients};
pub use per_client::{PerClient, PerClientRule};
pub use pfedme::PFedMe;
pub use rule::{Adaptation, LocalRule, Own, Round, RuleValue, Shape, ToTrain};
pub use scaffold::Scaffold;
pub use server::{Adaptive, FedOpt, Sampling, ServerState, ServerStep};
pub use start::{START_SUMS, StartSums};
pub use whimbrel_nn::{Length, Solver};
pub use work::{Rates, Work};

use crate::federated::{
    Computed, Context, ExchangeKind, Federated, Local as LocalTask, Member, Oracle, Publish,
    Received, Terms, Told, aggregate,
};
use crate::measures;
use crate::settings::{add_sums, largest_norm};
use start::{start_sums, sums_of_targets};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_codec::Scalar;
use whimbrel_core::erased::for_readable;
use whimbrel_core::method::{Artifact, Declaration};
use whimbrel_core::{ClientData, Error, Key, Result, Samples, Spread, vector, wire};
use whimbrel_nn::{Learner, Role, Room};

/// Advice for a run that has not converged.
const REMEDY: &str = "run more rounds, or use a smaller step";

/// The name of the tensor of the shared vector.
pub const PARAMETERS: &str = "parameters";

/// Local training over channels: a whole method.
pub type PersonalMethod = Federated<Personal>;

/// Hyper-parameters.
pub struct Personal {
    pub learner: Arc<dyn Learner>,
    pub rule: Arc<dyn LocalRule>,
    pub solver: Solver,
    /// The local step of every round.
    pub rates: Rates,
    pub server: ServerStep,
    pub sampling: Sampling,
    /// The planned mean probability of taking part.
    pub participation: f64,
    /// Solvers of single clients.
    pub own_solvers: Vec<OwnSolver>,
    /// The number of a client's solver, from 1, by id; other clients use `solver`.
    pub solver_of: BTreeMap<u32, u8>,
    /// Rows and [sums](StartSums) of an earlier stage: clients then send none when they enrol.
    pub start: Option<Vec<f64>>,
}

/// A solver of single clients.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnSolver {
    pub solver: Solver,
    /// The factor of the common step.
    pub step_factor: f64,
}

/// The global state.
#[derive(Clone, Debug)]
pub struct Global {
    pub w: Vec<f32>,
    pub server: ServerState,
    /// `1 + ||w_0||`, the unit in which growth is measured.
    pub scale: f64,
}

/// A client's message at enrolment: the sums of its targets and of their squares, where they are
/// numbers, then the sums from which the learner starts.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    sums: Vec<f64>,
}

/// The pooled summaries, from which the shared vector starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gathered<'a> {
    /// The variance of all targets, where they are numbers.
    pub variance: f64,
    /// Sums over all clients for [`Learner::start_from`].
    pub sums: &'a [f64],
}

wire!(Global { w, server, scale });
wire!(Summary { sums });

impl Personal {
    fn shape(&self) -> Shape<'_> {
        Shape::new(&*self.learner)
    }

    /// The lengths of the tensors that are published.
    pub fn blocks(&self) -> Vec<usize> {
        self.rule.blocks(&self.shape())
    }

    /// The whole method over these channels.
    pub fn over(self, terms: Terms) -> PersonalMethod {
        Federated { oracle: self, terms }
    }

    /// The shared vector at the start.
    fn first(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<Summary>>>,
        key: Key,
    ) -> Result<Vec<f32>> {
        let of_targets = sums_of_targets(&*self.learner);
        let mut rows = 0.0;
        let mut total = vec![0.0; self.sums_len()];
        for member in roster {
            let Member { id, summary, rows: own, .. } = member?;
            rows += own as f64;
            add_sums(id, &summary.sums, &mut total)?;
        }
        if rows == 0.0 {
            return Err(Error::data("there is no client to start with"));
        }
        if let Some(start) = &self.start {
            (rows, total) = (start[0], start[1..].to_vec());
        }
        let (targets, sums) = total.split_at(of_targets);
        let variance = match *targets {
            [sum, squares] => (squares / rows - (sum / rows) * (sum / rows)).max(0.0),
            _ => 0.0,
        };
        self.rule.start(&self.shape(), &Gathered { variance, sums }, key)
    }

    /// The number of sums in a summary.
    fn sums_len(&self) -> usize {
        let len = sums_of_targets(&*self.learner) + self.learner.start_sums_len();
        if self.start.is_some() { 0 } else { len }
    }

    /// The indices of running statistics in one model.
    fn statistics(&self) -> impl Iterator<Item = usize> {
        let mut at = 0;
        self.learner.tensors().iter().flat_map(move |tensor| {
            let from = at;
            at += tensor.len();
            from..if tensor.role == Role::Statistic { at } else { from }
        })
    }

    /// The content of a summary, in words.
    fn summary_content(&self) -> String {
        if self.start.is_some() {
            return "the number of samples".into();
        }
        let sums = self.learner.start_sums_told();
        let targets = "; the sum of the targets and of their squares";
        if self.learner.classifies() { sums.to_owned() } else { format!("{sums}{targets}") }
    }

    fn summary_bytes(&self) -> usize {
        16 + 8 * self.sums_len()
    }

    /// The local training for a received message.
    fn work_on<'a>(
        &'a self,
        received: &Received<'_, Self>,
        samples: &'a Samples,
        key: Key,
    ) -> Result<Work<'a>> {
        let rate = *received.note.ok_or_else(no_step)?;
        let (solver, factor) = self.solver(*received.private)?;
        Ok(Work::new(&*self.learner, solver, samples, factor * rate, key))
    }

    /// A client's round: its next personal state, and the change of the shared vector.
    fn local_round(&self, work: &mut Work<'_>, w: &[f32], own: &Own) -> Result<(Own, Vec<f32>)> {
        let mut round = self.rule.begin(work, w, own)?;
        work.train_all(&mut round, w)?;
        self.rule.end(work, w, round)
    }

    /// A client's solver, and its factor of the common step.
    fn solver(&self, number: u8) -> Result<(&Solver, f64)> {
        let Some(at) = usize::from(number).checked_sub(1) else { return Ok((&self.solver, 1.0)) };
        let own = self.own_solvers.get(at).map(|own| (&own.solver, own.step_factor));
        own.ok_or_else(|| Error::peer("a message names a solver that the job does not have"))
    }

    fn work<'a>(&'a self, samples: &'a Samples, rate: f64, key: Key) -> Work<'a> {
        Work::new(&*self.learner, &self.solver, samples, rate, key)
    }
}

fn no_step() -> Error {
    Error::peer("a message names no local step")
}

/// A client's samples in the learner's layout; refuses data that the learner cannot take.
pub(crate) fn bind_samples(learner: &dyn Learner, data: &ClientData) -> Result<Samples> {
    let ClientData::Samples(samples) = data else {
        return Err(Error::data("the rows carry no targets; a learner needs one per row"));
    };
    learner.check(samples)?;
    let (inputs, targets) = (samples.inputs.clone(), samples.targets.clone());
    Samples::new(samples.shape.clone(), inputs, targets)
}

impl Oracle for Personal {
    type Number = f32;
    type Data = Samples;
    type Own = Own;
    type Global = Global;
    type Summary = Summary;
    /// The number of the client's solver.
    type Record = u8;
    /// The local step.
    type Note = f64;
    type Private = u8;

    fn declare(&self, terms: &Terms) -> Declaration {
        let whole = 4 * self.blocks().iter().sum::<usize>() + 32;
        let sent = format!("{}{}", self.rule.sent(), terms.compressed());
        let mut disclosures = vec![
            aggregate("summary", &self.summary_content(), self.summary_bytes()),
            aggregate("up", &sent, terms.upload_bytes(whole)),
            evaluate::disclosure(),
        ];
        if terms.opens() {
            disclosures.push(aggregate(
                "up",
                "once: the first such change",
                terms.opening_bytes(whole),
            ));
        }
        let settled = measures::update_relative(REMEDY);
        let (measures, batch) =
            (vec![evaluate::objective(), settled], self.learner.clients_at_once());
        Declaration { disclosures, measures, batch, ..Declaration::default() }
    }

    fn bind(&self, data: &ClientData) -> Result<(Samples, u64)> {
        let samples = bind_samples(&*self.learner, data)?;
        let rows = samples.len() as u64;
        Ok((samples, rows))
    }

    fn enroll(&self, data: &Samples, key: Key) -> Result<(Own, Summary)> {
        let sums = match self.start {
            Some(_) => Vec::new(),
            None => start_sums(&*self.learner, data),
        };
        Ok((self.rule.enroll(&self.shape(), key), Summary { sums }))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<Summary>>>,
        _: &Terms,
        key: Key,
    ) -> Result<Global> {
        let w = self.first(roster, key)?;
        let scale = 1.0 + f32::norm2_squared(&w).sqrt();
        Ok(Global { server: self.server.state(w.len()), w, scale })
    }

    fn admit(&self, _: &mut Global, member: &Member<&Summary>) -> Result<u8> {
        Ok(self.solver_of.get(&member.id.0).copied().unwrap_or(0))
    }

    fn published<'a>(&self, global: &'a Global, _: ExchangeKind) -> Cow<'a, [f32]> {
        (&global.w).into()
    }

    fn tell(&self, _: &Global, solver: &u8, context: &Context) -> Told<Self> {
        Told { record: *solver, note: Some(self.rates.at(context.k)), private: *solver }
    }

    fn round_kind(&self, _: &Own, _: ExchangeKind, rate: Option<&f64>, _: &u8) -> Result<usize> {
        self.rates.check(*rate.ok_or_else(no_step)?).map(|()| 0)
    }

    fn local(
        &self,
        received: &Received<'_, Self>,
        own: &Own,
        data: &Samples,
        key: Key,
    ) -> Result<Computed<Self>> {
        let mut work = self.work_on(received, data, key)?;
        let (own, value) = self.local_round(&mut work, &received.state, own)?;
        Ok(Computed::new(own, value))
    }

    /// The learner trains the models of all clients together.
    fn locals(
        &self,
        tasks: &[LocalTask<'_, Self>],
        threads: &dyn Spread,
    ) -> Vec<Result<Computed<Self>>> {
        let begun = tasks.iter().map(|task| {
            let mut work = self.work_on(&task.received, task.data, task.key)?;
            let round = self.rule.begin(&mut work, &task.received.state, task.own)?;
            Ok((&*task.received.state, work, round))
        });
        for_readable(begun, |mut begun| {
            let trainings = begun.iter_mut();
            let mut trainings: Vec<_> =
                trainings.map(|(w, work, round)| work.training(round.trainees(w))).collect();
            let trained = self.learner.local_steps(&mut trainings, &mut Room::default());
            drop(trainings);
            let end = |(w, mut work, round): (&[f32], Work<'_>, Round)| {
                trained.clone()?;
                round.check()?;
                let (own, value) = self.rule.end(&mut work, w, round)?;
                Ok(Computed::new(own, value))
            };
            threads.map(begun, end)
        })
    }

    fn rows_used(&self, rows: u64, solver: &u8, _: ExchangeKind) -> u64 {
        self.solver(*solver).map_or(0, |(solver, _)| solver.rows_used(rows))
    }

    fn step(
        &self,
        global: &mut Global,
        mut field: Vec<f64>,
        context: &Context,
        publish: Publish<'_, f32>,
    ) -> Result<f64> {
        let norm2 = vector::norm2_squared(&field);
        self.sampling.scale(&mut field, self.participation, context);
        // Running statistics are averaged under every server step.
        let mut statistics = Vec::new();
        if !matches!(self.server, ServerStep::Plain { .. } | ServerStep::Scaffold { .. }) {
            let mean = |i: usize| (i, (f64::from(global.w[i]) + field[i]) as f32);
            statistics.extend(self.statistics().map(mean));
        }
        self.server.apply(global, &field, self.participation);
        statistics.into_iter().for_each(|(i, mean)| global.w[i] = mean);
        global.w = publish(std::mem::take(&mut global.w))?;
        Ok(norm2)
    }

    fn magnitude(&self, global: &Global, local2: f64) -> f64 {
        1.0 + largest_norm([f32::norm2_squared(&global.w), local2]) / global.scale
    }

    fn client_artifact(&self, own: &Own) -> Option<Artifact> {
        (!own.is_empty()).then(|| own.artifact(self.learner.name()))
    }

    fn artifact(&self, global: &Global) -> Result<Artifact> {
        let artifact = Artifact::new(self.learner.name());
        Ok(artifact.with_f32(PARAMETERS, &[global.w.len()], global.w.clone()))
    }
}
