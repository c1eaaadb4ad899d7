//! Differential privacy in a job: defaults, and settings that it forbids.

use super::{Budget, DownRule, Job, MemoryStart, Participation, PrivacyUnit};
use crate::job::method::search::Search;
use whimbrel_codec::channel::UpRule;
use whimbrel_codec::{Codec, SharedGrid};
use whimbrel_engine::Stopping;
use whimbrel_job::reader::Source;
use whimbrel_methods::fedem::FrameKind;
use whimbrel_methods::settings::{Batch, Weights};

/// The default number of rounds under noise.
const ROUNDS: u32 = 80;
/// Bits of the words to which shares of the noise are added.
const SHARES: u32 = 32;

/// Whether a setting is forbidden, its place, the reason and the remedy.
type Rule = (bool, &'static [&'static str], &'static str, &'static str);

impl Job {
    /// The defaults under differential privacy; reports settings that it forbids.
    pub(super) fn settle_privacy(&mut self, source: &Source<'_>) {
        if self.privacy.epsilon.is_none() {
            if self.privacy.sampling.is_some() {
                let what = "`sampling` has no meaning without noise";
                source.report_at(
                    &["privacy", "sampling"],
                    what,
                    "give `epsilon`, or `batch` in [method]",
                );
            }
            return;
        }
        let given = |table: &str, key: &str| source.is_given(&[table, key]);
        let asks_memory =
            ["rule", "memory", "alpha", "start"].iter().any(|key| given("uplink", key));
        if matches!(self.uplink.rule, UpRule::Memory { .. })
            && !asks_memory
            && self.method.channels.is_none()
        {
            (self.uplink.rule, self.uplink.start) = (UpRule::Plain, MemoryStart::Zero);
        }
        if let Budget::Converged(_) = self.method.length {
            self.method.length = Budget::Rounds(ROUNDS);
        }
        if !given("method", "weights") {
            self.method.weights = self.private_weights();
        }
        let shares = self.privacy.is_masked() && !self.method.kind.private.is_empty();
        if shares && !given("uplink", "codec") {
            self.uplink.codec = SharedGrid::new(SHARES).map_or(Codec::Exact, Codec::Grid);
        }
        for (path, what, hint) in self.forbidden() {
            source.report_at(path, what, hint);
        }
    }

    /// Equal weights of rows or of clients, by the protected unit.
    fn private_weights(&self) -> Weights {
        match self.privacy.unit {
            PrivacyUnit::Row => Weights::Samples,
            PrivacyUnit::Client => Weights::Equal,
        }
    }

    /// Settings that differential privacy forbids: place, reason and remedy.
    fn forbidden(&self) -> Vec<(&'static [&'static str], String, &'static str)> {
        let forbidden = self.unbounded_unit().into_iter();
        let rules = self.channel_rules().into_iter().chain(self.length_rules());
        let rules = rules.chain(self.row_rules()).filter(|(applies, ..)| *applies);
        forbidden.chain(rules.map(|(_, path, what, hint)| (path, what.to_owned(), hint))).collect()
    }

    /// A method for which the influence of the protected unit has no bound.
    fn unbounded_unit(&self) -> Option<(&'static [&'static str], String, &'static str)> {
        let (name, units) = (self.method.name(), self.method.kind.private);
        let (what, hint) = if units.contains(&self.privacy.unit) {
            return None;
        } else if units.is_empty() {
            (
                format!("nothing bounds the influence of a row or a client on {name}"),
                "use kind = \"fedem\" or \"sgd\" in [method]",
            )
        } else {
            (
                format!("{name} takes several local steps, so that no bound of a row is known"),
                "write unit = \"client\" in [privacy]",
            )
        };
        Some((&["method", "kind"], what, hint))
    }

    fn channel_rules(&self) -> [Rule; 7] {
        let shares = self.privacy.is_masked();
        [
            (
                matches!(self.uplink.rule, UpRule::Memory { .. }),
                &["uplink", "rule"],
                "memories do not combine with noise: the server can subtract noise that enters a memory, \
                 and noise outside the memories accumulates",
                "write rule = \"plain\"",
            ),
            (
                self.uplink.rule == UpRule::Feedback,
                &["uplink", "rule"],
                "noise follows the exact sum of plain uploads",
                "write rule = \"plain\", without `channels`",
            ),
            (
                !self.uplink.own.is_empty() || !(self.uplink.codec.is_exact() || shares),
                &["uplink", "codec"],
                "a codec's error is not bounded by the norm of a contribution",
                "take `codec` and `for` out",
            ),
            (
                shares && matches!(&self.uplink.codec, Codec::Grid(grid) if grid.bits() != SHARES),
                &["uplink", "codec"],
                "shares of the noise are added to words of 32 bits",
                "write codec = { kind = \"grid\", bits = 32 } in [uplink]",
            ),
            (
                self.privacy.colluders.is_some() && !shares,
                &["privacy", "colluders"],
                "`colluders` has no meaning without shares of the noise",
                "write masks = true, or take it out",
            ),
            (
                self.uplink.frame == Some(FrameKind::Raw),
                &["uplink", "frame"],
                "rows are clipped in the frame of the Fisher information",
                "take `frame` out",
            ),
            (
                !self.downlink.is_exact() || self.downlink.rule != DownRule::Exact,
                &["downlink"],
                "rows are clipped at the state that the server knows",
                "take [downlink] out",
            ),
        ]
    }

    /// Rules about rounds and about repeated fits.
    fn length_rules(&self) -> [Rule; 4] {
        [
            (
                matches!(self.method.length, Budget::Epochs(_)),
                &["method", "epochs"],
                "the noise depends on the number of rounds, which is fixed beforehand",
                "give `rounds` instead",
            ),
            (
                self.method.stop != Stopping::default(),
                &["method", "stop"],
                "a stopping rule looks at the rows and would spend the budget",
                "take `stop` out",
            ),
            (
                self.method.search != Search::default(),
                &["method", "search"],
                "each candidate of a search would spend the budget",
                "take `search` out",
            ),
            (
                self.seeds.is_some_and(|seeds| seeds > 1),
                &["seeds"],
                "each seed would spend the budget",
                "take `seeds` out",
            ),
        ]
    }

    /// Rules about the rows of a round, their weights and their preparation.
    fn row_rules(&self) -> [Rule; 6] {
        let (rows, shares) = (self.privacy.unit == PrivacyUnit::Row, self.privacy.is_masked());
        [
            (
                self.method.participation != Participation::default(),
                &["method", "participation"],
                "the server knows the cohort: sampling clients does not add privacy, only noise",
                "take `participation` out",
            ),
            (
                rows && self.method.batch != Batch::Full,
                &["method", "batch"],
                "the noise is computed for all rows, and minibatches of a fixed size have no tight bound",
                "write batch = \"full\"; `sampling` in [privacy] draws rows of `sgd` with such a bound",
            ),
            (
                self.privacy.sampling.is_some() && (!rows || shares),
                &["privacy", "sampling"],
                "sampled rows have a bound for unit = \"row\" and noise that the server adds",
                "take `sampling` out",
            ),
            (
                self.method.weights != self.private_weights(),
                &["method", "weights"],
                "every unit must weigh the same",
                "take `weights` out",
            ),
            (
                self.data.preparation().asks_clients(),
                &["data", "standardize"],
                "means and scales of columns are computed from the rows, without noise",
                "declare `min` and `max` in [schema] and write limits = true in [data.prepare] instead",
            ),
            (
                self.privacy.groups().is_some(),
                &["privacy", "min_group"],
                "what a client withholds depends on its rows in a way that the noise does not cover",
                "take `min_group` out: the noise protects single rows",
            ),
        ]
    }
}
