//! FedSOUK: a model whose personal part has a posterior, sampled on the client by a Markov kernel.
//!
//! Reference: Kotelevskii, Vono, Moulines, Durmus, *FedPop: a Bayesian approach for personalised
//! federated learning*, 2022, Algorithm 1 and supplement S1 and S2. With the Langevin kernel it is
//! FedSOUL.
//!
//! | paper | here | meaning |
//! |---|---|---|
//! | `phi` | first part of `theta` | shared parameters: layers below a head, the noise if it is learned |
//! | `beta` | last part of `theta` | the parameters of the prior of personal parts |
//! | `z^(i)` | [`Own::chains`] | the client's personal part; never leaves the client |
//! | `Q_{gamma_k, theta_k}` | [`Chains::kernel`] | the kernel that moves `z` |
//! | `M` | [`Chains::steps`] | steps in a round |
//! | `D_phi`, `D_beta` | the oracle's value | means over the steps of `-grad ln p` |
//! | `C_i` | the uplink | applied to `D_phi`; `D_beta` is sent exactly |
//! | `eta_k` | [`Steps`] | the server's step |
//! | `Pi_Theta` | [`Radius`] | a ball for each part |
//!
//! The server moves by the *sum* over clients, each divided by its participation probability.
//!
//! Departures from the paper: the means omit the first [`Chains::burn_in`] steps of a round (0 in the
//! paper); chains of absent clients do not move; the server adds the gradients of the priors of `phi` and
//! `beta` once (the same mean, less noise); steps may differ between coordinates of `beta`, and log-scales
//! and the logarithm of a learned noise move by at most one half per round; a full Gaussian moves by
//! natural gradients, with the same limit along each axis ([`Schedule::Auto`]); an annealed linear
//! representation may continue an earlier stage with more features ([`Soul::strongest`]).

mod evaluate;
mod exact;
mod model;
mod pace;
mod posterior;
mod predictive;
mod start;
mod steps;

pub use model::{Noise, Part, Personalised};
pub use predictive::{Predictive, Spread};
pub use steps::{Decay, Rate, Schedule, Steps};

use crate::federated::{
    Computed, Context, ExchangeKind, Federated, Member, Oracle, Publish, Received, Terms, Told,
    aggregate,
};
use crate::personal::bind_samples;
use crate::settings::{add_sums, largest_norm};
use posterior::Posterior;
use std::borrow::Cow;
use whimbrel_codec::Scalar;
use whimbrel_core::method::{Artifact, Declaration};
use whimbrel_core::{ClientData, Error, Key, Result, Samples, math, vector, wire};
use whimbrel_models::prior::{Prior, Shape};
use whimbrel_models::sampler::{ChainState, Kernel};

/// Names of tensors.
const SHARED: &str = "parameters";
const PRIOR: &str = "prior";
const SAMPLES: &str = "samples";

/// Addresses of draws, under the client's key of the round.
const CHAINS: u64 = 0xC4A1;
const KEPT: u64 = 0x5A3B;

/// The complete method.
pub type SoulMethod = Federated<Soul>;

/// Hyper-parameters.
pub struct Soul {
    /// The model and its personal part.
    pub model: Personalised,
    /// The prior of personal parts.
    pub prior: Prior,
    /// Its first scale.
    pub prior_scale: f64,
    pub chains: Chains,
    pub steps: Steps,
    /// The projection of the parameters.
    pub radius: Radius,
    /// The priors of `phi` and of `beta`.
    pub precision: Precision,
    /// Whether the mean of all iterates is delivered, weighted by their steps (Theorem S2).
    pub average: bool,
    /// Rounds of the whole run: the length of schedules.
    pub rounds: u32,
    /// Rounds of earlier stages.
    pub rounds_before: u32,
    /// `phi_0` from an earlier stage; `None` for the learner's start.
    pub start: Option<Vec<f32>>,
    /// Whether the noise falls from 1 to its value over the first half of the rounds.
    pub anneal: bool,
    /// The planned mean probability of participation.
    pub participation: f64,
}

/// The Markov chains of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Chains {
    /// The kernel, with its friction in units of the critical one; `None` for means in closed form.
    pub kernel: Option<Kernel>,
    /// `M`.
    pub steps: u32,
    /// The first steps of a round, which the means omit.
    pub burn_in: u32,
    /// Parallel chains of a client.
    pub count: u32,
    /// Samples per minibatch; `None` for full batches.
    pub batch: Option<u32>,
    /// `gamma_k`.
    pub gamma: Rate,
    /// Kept samples per chain.
    pub kept: u32,
    /// Steps from one kept sample to the next; `None` for the chain's relaxation time.
    pub thin: Option<u32>,
}

impl Default for Chains {
    fn default() -> Self {
        Self {
            kernel: Some(Kernel::Ula),
            steps: 10,
            burn_in: 0,
            count: 1,
            batch: None,
            gamma: Rate::Auto,
            kept: 200,
            thin: None,
        }
    }
}

/// The radii of the balls around zero that `phi` and `beta` are projected to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Radius {
    /// `None`: a hundred times the start.
    pub phi: Option<f64>,
    pub beta: Option<f64>,
}

/// The precisions of Gaussian priors of `phi` and `beta` around zero; 0 for a flat prior.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Precision {
    pub phi: f64,
    pub beta: f64,
}

/// The global state.
#[derive(Clone, Debug)]
pub struct Global {
    /// `(phi, beta)`.
    pub theta: Vec<f32>,
    /// The mean of all iterates; empty without averaging.
    pub mean: Vec<f64>,
    /// The sum of its weights.
    pub weight: f64,
    /// The radii of the balls.
    pub radii: (f64, f64),
    /// The curvature of the summed loss in `phi` for heads of length one, if the model knows it.
    pub curvature: Option<f64>,
    /// `||theta_0||`, the unit of the divergence watch.
    pub scale: f64,
    /// Completed rounds of the run.
    pub rounds: u32,
}

/// A client's state; never leaves the client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Own {
    /// The current states of its chains.
    pub chains: Vec<ChainState>,
    /// Kept samples, chain after chain.
    pub samples: Vec<Vec<f32>>,
    /// Rounds of participation.
    pub rounds: u32,
    /// The last estimate of the largest curvature of its losses, for a noise of one.
    pub curvature: f64,
}

/// Broadcast part of the message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Note {
    /// The noise's standard deviation, unless it is learned.
    noise: f64,
    /// The factor of `gamma`.
    gamma: f64,
    keep: bool,
}

/// A client's message at enrolment: sums that determine the start.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    sums: Vec<f64>,
}

wire!(Global { theta, mean, weight, radii, curvature, scale, rounds });
wire!(Own { chains, samples, rounds, curvature });
wire!(Note { noise, gamma, keep });
wire!(Summary { sums });

impl Soul {
    /// The lengths of the published tensors; the last is `beta`.
    pub fn blocks(&self) -> Vec<usize> {
        let mut blocks = self.model.blocks();
        blocks.push(self.prior.parameters());
        blocks
    }

    /// The complete method over these channels.
    pub fn over(self, terms: Terms) -> SoulMethod {
        Federated { oracle: self, terms }
    }

    /// `phi` and `beta`.
    pub(crate) fn parts<'a>(&self, theta: &'a [f32]) -> (&'a [f32], Vec<f64>) {
        let (phi, beta) = theta.split_at(self.model.shared());
        (phi, beta.iter().map(|b| f64::from(*b)).collect())
    }

    /// The round of the run, from zero.
    fn round(&self, context: &Context) -> u32 {
        self.rounds_before.saturating_add(context.k)
    }

    /// The noise of round `k`: `1^(1-t) noise^t`, `t` from 0 to 1 over the first half of the rounds.
    fn noise_at(&self, k: u32) -> f64 {
        let value = self.model.noise_value();
        let half = f64::from(self.rounds) / 2.0;
        if self.anneal && f64::from(k) < half && value < 1.0 {
            math::exp(f64::from(k) / half * math::ln(value))
        } else {
            value
        }
    }

    /// Whether clients keep samples in round `k`: in the last round; under partial participation in the
    /// last `5/p` rounds, so that nearly every client takes part in one of them.
    fn keeps(&self, k: u32) -> bool {
        let window = if self.participation < 1.0 {
            (5.0 / self.participation.max(1e-9)).ceil().min(1e9) as u32
        } else {
            1
        };
        k.saturating_add(window) >= self.rounds
    }

    fn note(&self, k: u32) -> Note {
        let gamma = self.steps.gamma_factor(k);
        Note { noise: self.noise_at(k), gamma, keep: self.keeps(k) }
    }

    /// The posterior of a client's personal part.
    fn posterior<'a>(
        &'a self,
        theta: &[f32],
        noise: f64,
        data: &'a Samples,
    ) -> Result<Posterior<'a>> {
        let len = self.model.shared() + self.prior.parameters();
        if theta.len() != len || !theta.iter().all(|x| x.is_finite()) {
            return Err(Error::peer(format!("a message must hold {len} finite parameters")));
        }
        let (phi, beta) = self.parts(theta);
        let gaussian = !matches!(self.prior.shape(), Shape::Mixture { .. });
        Posterior::new(&self.model, phi, (self.prior.at(&beta)?, gaussian), noise, data)
    }

    /// First states of the chains: draws of the prior, or its mean for a single chain.
    fn first_chains(&self, posterior: &Posterior<'_>, key: Key) -> Vec<ChainState> {
        let mut stream = key.child(CHAINS).stream();
        let mut chain = |_| {
            let mut z = posterior.density().mean();
            if self.chains.count > 1 {
                posterior.density().draw(&mut stream, &mut z);
            }
            ChainState::at(z)
        };
        (0..self.chains.count).map(&mut chain).collect()
    }

    /// Samples of the posterior, chain after chain, after `burn_in` steps; moves the chains. Without
    /// thinning every step is kept.
    fn sample(
        &self,
        own: &mut Own,
        posterior: &mut Posterior<'_>,
        (factor, burn_in, thins): (f64, u32, bool),
        key: Key,
    ) -> Result<Vec<Vec<f32>>> {
        let narrow = |z: &[f64]| z.iter().map(|z| *z as f32).collect::<Vec<f32>>();
        let mut kept = Vec::new();
        let Some(kernel) = self.chains.kernel else {
            let mut stream = key.child(KEPT).stream();
            for _ in 0..self.chains.kept * self.chains.count {
                kept.push(narrow(&posterior.exact()?.draw(&mut stream)));
            }
            return Ok(kept);
        };
        let mut pace = self.pace(kernel, own, posterior, factor)?;
        let thin = if thins { pace.thin } else { 1 };
        for (c, chain) in own.chains.iter_mut().enumerate() {
            let mut stream = key.child(KEPT).child(c as u64).stream();
            posterior.draw_minibatches(self.chains.batch, key.child(KEPT).child(c as u64));
            for step in 1..=burn_in.saturating_add(self.chains.kept.saturating_mul(thin)) {
                pace.step(chain, posterior, &mut stream)?;
                if step > burn_in && (step - burn_in).is_multiple_of(thin) {
                    kept.push(narrow(&chain.position));
                }
            }
        }
        Ok(kept)
    }
}

impl Oracle for Soul {
    type Number = f32;
    type Data = Samples;
    type Own = Own;
    type Global = Global;
    type Summary = Summary;
    type Record = ();
    type Note = Note;
    type Private = ();

    fn declare(&self, terms: &Terms) -> Declaration {
        let whole = 4 * self.blocks().iter().sum::<usize>() + 32;
        let sums = self.model.learner.start_sums_told();
        let mut disclosures = vec![
            aggregate("summary", sums, 16 + 8 * self.model.learner.start_sums_len()),
            aggregate("up", SENT, terms.upload_bytes(whole)),
            evaluate::disclosure(),
        ];
        if terms.opens() {
            disclosures.push(aggregate(
                "up",
                "once: the first such gradients",
                terms.opening_bytes(whole),
            ));
        }
        Declaration { disclosures, measures: self.measures(), ..Declaration::default() }
    }

    fn bind(&self, data: &ClientData) -> Result<(Samples, u64)> {
        let samples = bind_samples(&*self.model.learner, data)?;
        let rows = samples.len() as u64;
        Ok((samples, rows))
    }

    fn enroll(&self, data: &Samples, _: Key) -> Result<(Own, Summary)> {
        Ok((Own::default(), Summary { sums: self.model.learner.start_sums(data) }))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<Summary>>>,
        _: &Terms,
        key: Key,
    ) -> Result<Global> {
        let (mut sums, mut clients) = (vec![0.0; self.model.learner.start_sums_len()], 0u32);
        for member in roster {
            let Member { id, summary, .. } = member?;
            clients += 1;
            add_sums(id, &summary.sums, &mut sums)?;
        }
        if clients == 0 {
            return Err(Error::data("there is no client to start with"));
        }
        self.start_from(&sums, key)
    }

    fn published<'a>(&self, global: &'a Global, _: ExchangeKind) -> Cow<'a, [f32]> {
        (&global.theta).into()
    }

    fn tell(&self, _: &Global, (): &(), context: &Context) -> Told<Self> {
        Told { record: (), note: Some(self.note(self.round(context))), private: () }
    }

    /// The note is that of some round.
    fn round_kind(&self, _: &Own, _: ExchangeKind, note: Option<&Note>, (): &()) -> Result<usize> {
        let is_known = note.is_some_and(|note| (0..=self.rounds).any(|k| self.note(k) == *note));
        let wrong = || Error::peer("a noise or a chain step that does not fit the job");
        is_known.then_some(0).ok_or_else(wrong)
    }

    fn local(
        &self,
        received: &Received<'_, Self>,
        own: &Own,
        data: &Samples,
        key: Key,
    ) -> Result<Computed<Self>> {
        let note = *received.note.ok_or_else(|| Error::peer("a message names no noise"))?;
        let mut posterior = self
            .posterior(&received.state, note.noise, data)
            .map_err(|error| explained(error, &own.chains))?;
        let mut own = own.clone();
        if own.chains.is_empty() {
            own.chains = self.first_chains(&posterior, key);
        }
        own.rounds += 1;
        // Moves are counted anew in every round.
        own.chains.iter_mut().for_each(|chain| (chain.proposed, chain.accepted) = (0, 0));
        let (shared, personal) = (self.model.shared(), self.model.personal());
        // D_phi, then D_beta.
        let mut field = vec![0.0; shared + self.prior.parameters()];
        let (d_phi, d_beta) = field.split_at_mut(shared);
        match self.chains.kernel {
            None => {
                let exact = posterior.exact()?;
                let points = exact.points();
                let weight = 1.0 / points.len() as f64;
                for z in &points {
                    posterior.add_gradients(z, weight, d_phi, d_beta);
                }
                own.chains = vec![ChainState::at(exact.draw(&mut key.child(CHAINS).stream()))];
            }
            Some(kernel) => {
                let mut pace = self.pace(kernel, &mut own, &mut posterior, note.gamma)?;
                let means = self.chains.steps.saturating_sub(self.chains.burn_in).max(1);
                let weight = 1.0 / f64::from(means * self.chains.count.max(1));
                for (c, chain) in own.chains.iter_mut().enumerate() {
                    if chain.position.len() != personal {
                        return Err(Error::peer("a chain of another length than the model's"));
                    }
                    let key = key.child(CHAINS).child(c as u64);
                    let mut stream = key.stream();
                    posterior.draw_minibatches(self.chains.batch, key);
                    for step in 1..=self.chains.steps {
                        // z_m ~ Q(z_{m-1}, .)
                        pace.step(chain, &mut posterior, &mut stream)?;
                        if step > self.chains.burn_in {
                            posterior.add_gradients(&chain.position, weight, d_phi, d_beta);
                        }
                    }
                }
            }
        }
        if note.keep {
            own.samples = self.sample(&mut own, &mut posterior, (note.gamma, 0, true), key)?;
        }
        Ok(Computed::new(own, field.iter().map(|x| *x as f32).collect()))
    }

    fn rows_used(&self, rows: u64, (): &(), _: ExchangeKind) -> u64 {
        let each = self.chains.batch.map_or(rows, |batch| u64::from(batch).min(rows));
        each * u64::from(self.chains.steps * self.chains.count)
    }

    fn step(
        &self,
        global: &mut Global,
        mut field: Vec<f64>,
        context: &Context,
        publish: Publish<'_, f32>,
    ) -> Result<f64> {
        let norm2 = vector::norm2_squared(&field);
        // theta <- Proj(theta - eta (sum_i D_i/p_i + grad of the priors))
        let shared = self.model.shared();
        let sum = f64::from(context.clients);
        for (place, (field, theta)) in field.iter_mut().zip(&global.theta).enumerate() {
            let Precision { phi, beta } = self.precision;
            let precision = if place < shared { phi } else { beta };
            *field = sum * *field + precision * f64::from(*theta);
        }
        let moves = self.steps.moves(self, global, &field, context)?;
        for (theta, by) in global.theta.iter_mut().zip(&moves) {
            *theta = (f64::from(*theta) + by) as f32;
        }
        let (phi, beta) = global.theta.split_at_mut(shared);
        let norm = f32::norm2_squared(phi).sqrt();
        if norm > global.radii.0 {
            phi.iter_mut().for_each(|x| *x = (f64::from(*x) * global.radii.0 / norm) as f32);
        }
        let mut projected: Vec<f64> = beta.iter().map(|b| f64::from(*b)).collect();
        self.prior.project(&mut projected, global.radii.1);
        beta.iter_mut().zip(&projected).for_each(|(beta, by)| *beta = *by as f32);
        global.rounds = self.round(context) + 1;
        if self.average {
            let weight = self.steps.factor(self.round(context));
            global.weight += weight;
            for (mean, theta) in global.mean.iter_mut().zip(&global.theta) {
                *mean += weight / global.weight * (f64::from(*theta) - *mean);
            }
        }
        global.theta = publish(std::mem::take(&mut global.theta))?;
        Ok(norm2)
    }

    fn magnitude(&self, global: &Global, local2: f64) -> f64 {
        1.0 + largest_norm([f32::norm2_squared(&global.theta), local2]) / global.scale
    }

    fn client_artifact(&self, own: &Own) -> Option<Artifact> {
        (!own.samples.is_empty()).then(|| self.artifact_of(&own.samples))
    }

    fn artifact(&self, global: &Global) -> Result<Artifact> {
        let theta = self.delivered(global);
        let (phi, beta) = self.parts(&theta);
        let artifact = Artifact::new(self.model.learner.name());
        let artifact = artifact.with_f32(SHARED, &[phi.len()], phi.to_vec());
        Ok(artifact.with(PRIOR, &[beta.len()], beta))
    }
}

/// The share of accepted moves below which a chain is stuck.
const STUCK: f64 = 0.01;

/// Replaces the error of a degenerate prior by its cause, if there is one: a prior fitted to chains that
/// reject nearly every move has variance zero.
fn explained(error: Error, chains: &[ChainState]) -> Error {
    let count = |of: fn(&ChainState) -> u64| chains.iter().map(of).sum::<u64>();
    let (proposed, accepted) = (count(|chain| chain.proposed), count(|chain| chain.accepted));
    let stuck = proposed > 0 && accepted as f64 <= STUCK * proposed as f64;
    if !(matches!(error, Error::Numerical { .. }) && stuck) {
        return error;
    }
    Error::numerical(format!(
        "gamma is too large: {accepted} of {proposed} moves of the last round were accepted, so the \
         chains are stuck and the prior loses its width; take a smaller gamma, or \"auto\""
    ))
}

/// The disclosure of an upload.
const SENT: &str = "each round: mean gradients, over draws of the personal part, of the losses in the \
                    shared parameters and of the prior in its own; with five rows a few rounds \
                    hold more numbers than the rows, and the rows can be computed from them";

impl Soul {
    /// The delivered parameters.
    pub(crate) fn delivered<'a>(&self, global: &'a Global) -> Cow<'a, [f32]> {
        if self.average && global.weight > 0.0 {
            global.mean.iter().map(|x| *x as f32).collect::<Vec<_>>().into()
        } else {
            (&global.theta).into()
        }
    }

    /// Predictions with these samples of a personal part.
    pub fn predictive_of(&self, theta: &[f32], samples: Vec<Vec<f32>>) -> Predictive {
        let phi = self.parts(theta).0.to_vec();
        Predictive { phi, samples, noise: self.noise_of(theta, self.rounds) }
    }

    /// A client's samples as an artifact.
    pub fn artifact_of(&self, samples: &[Vec<f32>]) -> Artifact {
        let shape = [samples.len(), self.model.personal()];
        Artifact::new(self.model.learner.name()).with_f32(SAMPLES, &shape, samples.concat())
    }

    /// A client's samples from its artifact.
    pub fn samples_of(&self, artifact: &Artifact) -> Vec<Vec<f32>> {
        let found = artifact.narrow.iter().find(|tensor| tensor.name == SAMPLES);
        let width = self.model.personal().max(1);
        found.map_or_else(Vec::new, |t| t.values.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }

    /// `theta` from a model's artifact.
    pub fn theta_of(&self, artifact: &Artifact) -> Option<Vec<f32>> {
        let phi = artifact.narrow.iter().find(|tensor| tensor.name == SHARED)?;
        let beta = artifact.tensor(PRIOR)?;
        let fits =
            phi.values.len() == self.model.shared() && beta.values.len() == self.prior.parameters();
        let beta = beta.values.iter().map(|b| *b as f32);
        fits.then(|| phi.values.iter().copied().chain(beta).collect())
    }
}
