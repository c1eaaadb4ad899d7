//! Evaluations: each client's posterior predictions on its rows.

use super::{Global, Own, Predictive, Soul, explained};
use crate::federated::{
    Answered, Context, Figures, Judge, Score, Scores, Split, Terms, aggregate, mean_loss,
};
use whimbrel_core::declare::{Better, Measure, OverClients, Unit};
use whimbrel_core::method::{Disclosure, Metric};
use whimbrel_core::{Key, Result, Samples, wire};
use whimbrel_models::sampler::{ChainState, Kernel};

/// The key of the share of accepted moves.
const ACCEPTANCE: &str = "acceptance";

/// The address of draws, the same in all evaluations.
const EVALUATION: u64 = 0xE7A2;
/// Burn-in of a chain that did not train.
const SETTLE: u32 = 1000;

/// The question: the quality of the client's posterior predictions at `theta`.
#[derive(Clone, Debug)]
pub struct Ask {
    theta: Vec<f32>,
    noise: f64,
    gamma: f64,
    /// Whether training is over: samples are then thinned as the delivered ones.
    over: bool,
    /// Always `None`: a byte of the format.
    reserved: Option<()>,
}

/// A client's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The mean loss of its predictions on its training rows.
    loss: f64,
    /// The share of accepted moves in its last round, for adjusted kernels.
    acceptance: Option<f64>,
}

wire!(Ask { theta, noise, gamma, over, reserved });
wire!(Answer { loss, acceptance });

impl Soul {
    /// The figures of an evaluation.
    pub(super) fn measures(&self) -> Vec<Measure> {
        let objective = "The clients’ posterior predictions on their training rows";
        let mut all = vec![Measure::objective(objective)];
        if self.chains.kernel.is_some_and(Kernel::is_adjusted) {
            let caption = "Moves of the chains in each client’s last round";
            let share = Measure::new(ACCEPTANCE, "Accepted moves", "accepted moves", caption);
            let share = share.clients(OverClients::Mean).unit(Unit::Share);
            all.push(share.per_client().result(3));
        }
        all
    }

    /// A client's predictions at `theta`, from samples of its posterior given these rows. The chains of
    /// an untrained client start from the prior.
    pub fn predictive(&self, theta: &[f32], own: &Own, train: &Samples) -> Result<Predictive> {
        self.predictive_at(&self.ask_at(theta.to_vec(), true), own, train)
    }

    fn ask_at(&self, theta: Vec<f32>, over: bool) -> Ask {
        let noise = self.noise_of(&theta, self.rounds);
        Ask { noise, gamma: self.steps.gamma_factor(self.rounds), theta, over, reserved: None }
    }

    fn predictive_at(&self, ask: &Ask, own: &Own, train: &Samples) -> Result<Predictive> {
        let (key, theta) = (Key::root(EVALUATION), &ask.theta[..]);
        let mut own = own.clone();
        let mut posterior = self
            .posterior(theta, ask.noise, train)
            .map_err(|error| explained(error, &own.chains))?;
        let settle = if own.chains.is_empty() { SETTLE } else { 0 };
        if own.chains.is_empty() {
            own.chains = self.first_chains(&posterior, key);
        }
        let pace = (ask.gamma, settle, ask.over);
        let samples = self.sample(&mut own, &mut posterior, pace, key)?;
        Ok(Predictive { phi: self.parts(theta).0.to_vec(), samples, noise: ask.noise })
    }
}

impl Judge for Soul {
    type Ask = Ask;
    type Answer = Answer;

    fn ask(&self, global: &Global, _: &Terms) -> Result<Ask> {
        Ok(self.ask_at(self.delivered(global).into_owned(), global.rounds >= self.rounds))
    }

    fn answer(
        &self,
        ask: &Ask,
        own: &Own,
        data: &Split<Samples>,
        _: &Terms,
    ) -> Result<Answered<Self>> {
        let predictive = self.predictive_at(ask, own, &data.train)?;
        let score = |rows: &Samples| {
            if rows.is_empty() { Vec::new() } else { predictive.score(&self.model, rows) }
        };
        let count = |of: fn(&ChainState) -> u64| own.chains.iter().map(of).sum::<u64>();
        let (proposed, accepted) = (count(|chain| chain.proposed), count(|chain| chain.accepted));
        let answer = Answer {
            loss: score(&data.train).first().copied().unwrap_or(0.0),
            acceptance: (proposed > 0).then(|| accepted as f64 / proposed as f64),
        };
        let parts = data.scores(|rows| Ok(score(rows)))?;
        Ok(Answered { answer, memory_limit: None, parts })
    }

    fn scores(&self) -> Scores {
        let loss = Score { key: "loss", name: "loss", better: Better::Down, share: false };
        let (key, name) = if self.model.learner.classifies() {
            ("accuracy", "accuracy")
        } else {
            ("coverage_90", "coverage of 90 % intervals")
        };
        let second = Score { key, name, better: Better::Up, share: true };
        Scores { each: vec![loss, second], by_training_rows: true, unseen: true, addends: 3 }
    }

    /// The loss; the share of accepted moves, and the number of clients that have one.
    fn figures(&self, answer: &Answer, weight: f64) -> Figures {
        let mut figures = Figures::of_loss(answer.loss, weight);
        figures.own.extend(answer.acceptance.map(|share| Metric::number(ACCEPTANCE, share)));
        let heard = f64::from(u8::from(answer.acceptance.is_some()));
        figures.addends.extend([answer.acceptance.unwrap_or(0.0), heard]);
        figures
    }

    fn conclude(&self, _: &Global, sums: &[f64], total: f64, _: &Context) -> Result<Vec<Metric>> {
        let mut metrics = vec![mean_loss(sums, total)];
        if sums[2] > 0.0 {
            metrics.push(Metric::number(ACCEPTANCE, sums[1] / sums[2]));
        }
        Ok(metrics)
    }
}

/// The disclosure of an answer.
pub(super) fn disclosure() -> Disclosure {
    let meaning = "at evaluations: the mean loss of the predictions here, and of adjusted kernels the share of \
                   accepted moves; with rows kept out, mean loss and accuracy or coverage on each part of \
                   the rows";
    aggregate("answer", meaning, 256)
}
