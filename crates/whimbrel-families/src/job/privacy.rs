//! `[privacy]`: rules on what the messages of a client and the fitted model may reveal.

use super::{Batch, Federation, Job};
use crate::family::KeepsGroups;
use whimbrel_job::form::{BOOLEAN, POSITIVE, SEED};
use whimbrel_job::key::Section;
use whimbrel_job::reader::{Read, Reader, Source};
use whimbrel_job::writer::Writer;
use whimbrel_job::{form, integer, number, table};

/// `[privacy]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Privacy {
    /// Fewest rows behind each block of a message; `None`: the rule does not apply.
    pub min_group: Option<u32>,
    /// Whether uploads are summed under masks; `None`: as the job is served, and not in a simulation.
    pub masks: Option<bool>,
    /// Fewest clients in a masked sum; `None`: 3.
    pub min_cohort: Option<u32>,
    /// Clients that may share their secrets with the server; `None`: none.
    pub colluders: Option<u32>,
    /// `None`: no differential privacy.
    pub epsilon: Option<f64>,
    /// `None`: from the number of rows or clients.
    pub delta: Option<f64>,
    pub unit: PrivacyUnit,
    /// `None`: the model's.
    pub clip: Option<f64>,
    /// `q` of Poisson sampling; `None`: all rows.
    pub sampling: Option<f64>,
    /// `None`: a secret.
    pub noise_seed: Option<u64>,
}

/// The unit that noise hides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PrivacyUnit {
    #[default]
    Row,
    Client,
}

/// Fewest groups of the smallest size in a minibatch, for each block of a message.
const BATCH_GROUPS: u32 = 4;

table! {
    PRIVACY: Privacy = "privacy",
        "Rules on what the messages of a client and the fitted model may reveal. The table is optional.",
        example "[privacy]\nmin_group = 5\n"
    {
        /// fewest rows that may determine a block of a message (the statistic of a component, a
        /// gradient): the sum of the rows' weights in it is at least this many times the largest. A client of a
        /// Gaussian mixture computes with surrogates for groups of at least this many neighbouring rows; others
        /// leave components with fewer rows out and withhold other blocks. Values of a column that fewer rows
        /// have are kept back. `whimbrel serve` writes 5 if the method can keep the rule; 1 switches
        /// it off
        min_group: MIN_GROUP = "min_group", integer!(u32, 1 to 1000000),
            unset "5 on a network if the method can keep the rule, none in a simulation";
        /// sums uploads under masks, so that the server learns only the sum over the clients of a round;
        /// numbers of rows are not masked, and figures of single clients are missing. Needs a grid in `[uplink]` (of 32 bits by default
        /// under `epsilon`), except for `newton` and `describe`, and an exact downlink; a round takes three exchanges.
        /// `whimbrel serve` writes true for `newton`, whose result is the same, if there are three clients or
        /// more, no `deadline_s` and no `baseline`
        masks: MASKS = "masks", BOOLEAN, unset "true on a network for `newton` where possible, otherwise false";
        /// fewest clients in a masked sum; a round with fewer does not count
        min_cohort: MIN_COHORT = "min_cohort", integer!(u32, 3 to 1000000),
            unset "3 under masks, two thirds of the clients under masks and epsilon";
        /// clients whose shares of the noise do not count, since they may tell the server; needs masks and
        /// `epsilon`
        colluders: COLLUDERS = "colluders", integer!(u32, 0 to 1000000), unset "0 under masks and epsilon";
        /// privacy loss of a run under differential privacy: the server adds Gaussian noise to each round's
        /// sum of clipped contributions, or under masks each client a share of it. The number of rounds is fixed beforehand, all
        /// clients take part, messages are exact, and clients are evaluated only if the job asks for it
        epsilon: EPSILON = "epsilon", POSITIVE, unset "no noise";
        /// probability with which the loss may be larger
        delta: DELTA = "delta", DELTAS, default;
        /// unit that the noise hides
        unit: UNIT = "unit", UNITS, default;
        /// largest norm of one unit's contribution; of a row's gradient, or of a client's update. Regressions
        /// and learners need it: it must not depend on the data
        clip: CLIP = "clip", POSITIVE,
            unset "mixtures: 1.5 sqrt(q) for rows and 0.7 sqrt(q / mean rows) for clients, with q the \
                   length of the statistic";
        /// probability with which each row enters a round's gradient (Poisson sampling), drawn in secret;
        /// needs `epsilon` without masks, unit = "row" and `sgd`
        sampling: SAMPLING = "sampling", number!("a number above 0 and below 1", |x| x > 0.0 && x < 1.0),
            unset "all rows";
        /// seed of the noise, for repeatable experiments; anyone who knows it can remove the noise
        noise_seed: NOISE_SEED = "noise_seed", SEED, unset "a secret, which the run keeps until its end";
    }
}

form! {
    DELTAS: Option<f64>, "a number between 0 and 1, or \"auto\"" {
        /// N^-1.1 for N rows or clients
        "auto" => None,
    }
    number number!("a number between 0 and 1", |x| x > 0.0 && x < 1.0) => Some;
}

form! {
    UNITS: PrivacyUnit {
        /// one row
        "row" => PrivacyUnit::Row,
        /// all rows of one client
        "client" => PrivacyUnit::Client,
    }
}

pub(crate) static SECTION: Section = PRIVACY.section;

impl Job {
    /// The smallest group of the job as it is served. Noise protects single rows, and
    /// what is withheld would depend on them.
    fn served_group(&self) -> Option<u32> {
        let keeps = self.privacy.epsilon.is_none() && self.fit.keeps_groups(self).is_ok();
        self.privacy.min_group.or(keeps.then_some(Privacy::SERVED_GROUP))
    }

    /// The job as `whimbrel serve` offers it: with a smallest group, and under masks if its fit is served
    /// so and nothing in the job forbids it.
    pub fn served(&self) -> Self {
        let mut served = self.clone();
        served.privacy.min_group = self.served_group();
        let mut masked = served.clone();
        masked.privacy.masks = Some(true);
        let is_whole = |federation: &Federation| {
            let clients = federation.clients.count();
            federation.deadline_s.is_none()
                && masked
                    .privacy
                    .least_masked(clients)
                    .is_some_and(|least| clients >= least as usize)
        };
        let is_silent = self.privacy.masks.is_none() && self.fit.is_served_masked();
        if is_silent
            && self.federation.as_ref().is_some_and(is_whole)
            && Self::parse(&masked.to_toml(), "job.toml").is_ok()
        {
            return masked;
        }
        served
    }
}

impl Privacy {
    /// The group that `whimbrel serve` writes into a job that gives none.
    const SERVED_GROUP: u32 = 5;

    pub fn is_masked(&self) -> bool {
        self.masks == Some(true)
    }

    /// The smallest group, if it restricts messages.
    pub fn groups(&self) -> Option<u32> {
        self.min_group.filter(|group| *group > 1)
    }

    /// Whether minibatches hold enough rows for a smallest group behind each of these blocks.
    pub(crate) fn keeps_in_batches(
        &self,
        batch: &Batch<Option<u32>>,
        blocks: usize,
    ) -> KeepsGroups {
        let group = self.groups().unwrap_or(Self::SERVED_GROUP);
        let least = u64::from(BATCH_GROUPS * group) * blocks as u64;
        match batch.size().flatten() {
            Some(size) if u64::from(size) < least => Err(
                "a minibatch of fewer than four groups of rows for each block of a message (each \
                 component of a mixture) would seldom hold a group behind it; `batch` is too small",
            ),
            _ => Ok(()),
        }
    }

    pub(crate) fn read(reader: &Reader<'_>) -> Read<Self> {
        PRIVACY.read(reader)
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        if *self != Self::default() {
            out.table(&SECTION);
            if self.epsilon.is_none() {
                out.skip(&[&DELTA, &UNIT]);
            }
            PRIVACY.write(self, out);
        }
    }

    /// Refuses the rule where the method cannot keep it.
    pub(crate) fn check(&self, keeps: KeepsGroups, source: &Source<'_>) {
        if let (Some(_), Err(why)) = (self.groups(), keeps) {
            let hint = "take it out, or write min_group = 1";
            source.report_at(&["privacy", "min_group"], format!("no smallest group: {why}"), hint);
        }
    }
}
