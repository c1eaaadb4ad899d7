//! States, messages and the result of a choice.

use whimbrel_core::method::Artifact;
use whimbrel_core::{Error, Result, Shared, Wire, sum::ExactSum, wire};

/// A client's message at enrolment.
#[derive(Clone, Debug)]
pub struct Summary {
    pub(super) rows: u64,
    pub(super) validation: u64,
    pub(super) moments: Vec<f64>,
    /// Cluster centres and sizes for each start from clusters of each number of components.
    pub(super) centres: Vec<(Vec<f64>, Vec<f64>)>,
}

wire!(Summary { rows, validation, moments, centres });

/// The running candidates: the number of the model, and its parameters.
#[derive(Clone)]
pub struct Down {
    pub(super) candidates: Shared<Vec<(u32, Vec<f64>)>>,
}

wire!(Down { ; candidates });

/// Sums over clients.
#[derive(Clone, Debug)]
pub struct Fold {
    pub(super) lengths: Vec<u32>,
    pub(super) sums: ExactSum,
    pub(super) rows: u64,
    pub(super) validation: u64,
}

wire!(Fold { lengths, sums, rows, validation });

/// The server's state.
#[derive(Clone, Debug)]
pub struct Server {
    pub(super) round: u32,
    pub(super) rows: u64,
    pub(super) validation: u64,
    pub(super) moments: Vec<f64>,
    pub(super) slots: Vec<Slot>,
    pub(super) ran_on: bool,
}

wire!(Server { round, rows, validation, moments, slots, ran_on });

impl Server {
    /// The candidates whose EM continues.
    pub(super) fn running(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, slot)| matches!(slot.phase, CandidateState::Short | CandidateState::Long))
    }
}

/// One candidate in progress.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    pub(super) model: u32,
    pub(super) start: u32,
    pub(super) theta: Vec<f64>,
    pub(super) phase: CandidateState,
    pub(super) steps: u32,
    pub(super) repairs: u32,
    /// Whether it ran to convergence, to be compared with other numbers of components.
    pub(super) compared: bool,
    pub(super) validation: f64,
    /// Mean log-likelihoods: at the start, and at the last three steps.
    pub(super) first: f64,
    before: f64,
    previous: f64,
    pub(super) last: f64,
}

wire!(Slot {
    model,
    start,
    theta,
    phase,
    steps,
    repairs,
    compared,
    validation,
    first,
    before,
    previous,
    last,
});

/// The stage of a candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CandidateState {
    #[default]
    Short,
    Long,
    Done,
    Failed,
}

impl Wire for CandidateState {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u8).put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self> {
        let phases = [Self::Short, Self::Long, Self::Done, Self::Failed];
        let phase = phases.get(usize::from(u8::take(from)?)).copied();
        phase.ok_or_else(|| Error::peer("unknown state of a candidate"))
    }
}

impl Slot {
    pub(super) fn new(model: u32, start: u32, theta: Option<Vec<f64>>) -> Self {
        let phase = if theta.is_some() { CandidateState::Short } else { CandidateState::Failed };
        Self { model, start, phase, theta: theta.unwrap_or_default(), ..Self::default() }
    }

    /// Records the mean log-likelihoods at the parameters that were sent out.
    pub(super) fn observe(&mut self, log_likelihood: f64, validation: f64) {
        if self.steps == 0 {
            [self.first, self.before, self.previous] = [log_likelihood; 3];
        } else {
            (self.before, self.previous) = (self.previous, self.last);
        }
        (self.last, self.validation) = (log_likelihood, validation);
        self.steps += 1;
    }

    /// The gain of the last step, as a share of the gain of all.
    pub(super) fn gained_share(&self) -> f64 {
        match self.steps {
            0 | 1 => f64::INFINITY,
            _ => (self.last - self.previous) / (self.last - self.first).max(f64::MIN_POSITIVE),
        }
    }

    /// The mean log-likelihood that is still to be gained, by Aitken's rule; infinite where gains do
    /// not decrease.
    pub(super) fn remains(&self) -> f64 {
        let (gain, gain_before) = (self.last - self.previous, self.previous - self.before);
        if gain <= 0.0 {
            return 0.0;
        }
        let rate = gain / gain_before;
        if rate.is_finite() && (0.0..1.0).contains(&rate) {
            return gain * rate / (1.0 - rate);
        }
        f64::INFINITY
    }
}

/// The result of one candidate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    pub components: u32,
    /// The number of the start, from 1.
    pub start: u32,
    pub steps: u32,
    pub parameters: u32,
    /// Mean log-likelihood of the training rows.
    pub log_likelihood: f64,
    pub bic: f64,
    /// Whether it ran to convergence: BICs are compared among these.
    pub compared: bool,
    /// Mean log-likelihood of the validation rows.
    pub validation: Option<f64>,
    /// Whether covariances or weights were clipped.
    pub clipped: bool,
    /// Whether there was no start, or EM left the domain of its arithmetic.
    pub failed: bool,
    /// Whether the fit starts from it.
    pub chosen: bool,
}

/// The compared candidates and the chosen one.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The candidates, by components, then by start.
    pub candidates: Vec<Candidate>,
}

const KIND: &str = "choice";
/// Numbers per candidate in the artifact.
const WIDTH: usize = 12;

impl Choice {
    pub(super) fn artifact(&self, theta: &[f64]) -> Artifact {
        let flag = |yes: bool| f64::from(u8::from(yes));
        let numbers = |c: &Candidate| {
            [
                f64::from(c.components),
                f64::from(c.start),
                f64::from(c.steps),
                c.log_likelihood,
                c.bic,
                c.validation.unwrap_or(0.0),
                flag(c.validation.is_some()),
                flag(c.clipped),
                flag(c.failed),
                flag(c.chosen),
                flag(c.compared),
                f64::from(c.parameters),
            ]
        };
        let table: Vec<f64> = self.candidates.iter().flat_map(numbers).collect();
        Artifact::new(KIND).with("theta", &[theta.len()], theta.to_vec()).with(
            "candidates",
            &[self.candidates.len(), WIDTH],
            table,
        )
    }

    /// The result of a choice among delivered artifacts, where there was one.
    pub fn of(delivered: &[Artifact]) -> Option<Self> {
        let artifact = delivered.iter().find(|artifact| artifact.kind == KIND)?;
        let table = artifact.tensor("candidates")?;
        let candidate = |n: &[f64]| Candidate {
            components: n[0] as u32,
            start: n[1] as u32,
            steps: n[2] as u32,
            log_likelihood: n[3],
            bic: n[4],
            validation: (n[6] != 0.0).then_some(n[5]),
            clipped: n[7] != 0.0,
            failed: n[8] != 0.0,
            chosen: n[9] != 0.0,
            compared: n[10] != 0.0,
            parameters: n[11] as u32,
        };
        Some(Self { candidates: table.values.chunks_exact(WIDTH).map(candidate).collect() })
    }

    /// The candidate that the fit starts from.
    pub fn chosen(&self) -> Result<&Candidate> {
        let chosen = self.candidates.iter().find(|candidate| candidate.chosen);
        chosen.ok_or_else(|| Error::internal("no candidate was chosen"))
    }

    /// A placeholder for the stage's artifact, for a mixture of so many components.
    pub fn stand_in(components: u32) -> Artifact {
        let candidate = Candidate { components, start: 1, chosen: true, ..Candidate::default() };
        let mut artifact = Self { candidates: vec![candidate] }.artifact(&[]);
        // Without parameters the fit makes its own start.
        artifact.tensors.retain(|tensor| tensor.name != "theta");
        artifact
    }
}
