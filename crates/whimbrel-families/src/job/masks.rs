//! Masked sums in a job: settings that they forbid.

use super::{DownRule, Job, Participation, Privacy, Step};
use whimbrel_codec::Codec;
use whimbrel_job::reader::Source;

/// The default of `min_cohort`.
const MIN_COHORT: u32 = 3;

impl Privacy {
    /// The fewest of these clients in a sum, if uploads are masked. Shares of noise are the smaller the
    /// more clients must survive.
    pub fn least_masked(&self, clients: usize) -> Option<u32> {
        let default = match self.epsilon {
            None => MIN_COHORT,
            Some(_) => MIN_COHORT.max((2 * clients as u32).div_ceil(3)),
        };
        self.is_masked().then(|| self.min_cohort.unwrap_or(default))
    }
}

impl Job {
    /// Reports settings that masked sums forbid.
    pub(super) fn check_masks(&self, source: &Source<'_>) {
        if !self.privacy.is_masked() {
            if self.privacy.min_cohort.is_some() {
                let what = "`min_cohort` has no meaning without masks";
                source.report_at(&["privacy", "min_cohort"], what, "write masks = true");
            }
            return;
        }
        if self.privacy.colluders.is_some() && self.privacy.epsilon.is_none() {
            let what = "`colluders` has no meaning without noise";
            source.report_at(&["privacy", "colluders"], what, "take it out, or write epsilon");
        }
        let bits = match &self.uplink.codec {
            Codec::Grid(grid) => Some(grid.bits()),
            _ => None,
        };
        let exact = self.downlink.is_exact() && self.downlink.rule == DownRule::Exact;
        let grid = match self.privacy.epsilon {
            None => {
                "write codec = { kind = \"grid\", bits = 16 } in [uplink]; sgd takes it as kind = \"qsgd\" in [method]"
            }
            Some(_) => {
                "write codec = { kind = \"grid\", bits = 32 } in [uplink]; sgd takes it as kind = \"qsgd\" in [method]"
            }
        };
        let refused: [(bool, &[&str], &str, &str); 5] = [
            (
                bits.is_none() && !self.fit.sends_exact_sums(),
                &["privacy", "masks"],
                "masked sums are sums of integers on a grid that all clients share",
                grid,
            ),
            (
                bits.is_some_and(|bits| bits != 16 && bits != 32),
                &["uplink", "codec"],
                "masks hide words of 16 or 32 bits",
                "write bits = 16 or bits = 32",
            ),
            (
                !exact,
                &["downlink"],
                "masks depend on the message to all clients, which must not differ between them",
                "take [downlink] out, and use a method without a compressed downlink",
            ),
            (
                self.method.step == Step::Theory,
                &["method", "step"],
                "the theorems' constants are maxima and variances of single clients, which sums hide",
                "write another `step`, or take it out",
            ),
            (
                matches!(self.method.participation, Participation::PerClient { .. }),
                &["method", "participation"],
                "under masks all clients take part with one probability",
                "write participation = 1",
            ),
        ];
        for (_, path, what, hint) in refused.into_iter().filter(|(applies, ..)| *applies) {
            source.report_at(path, what, hint);
        }
    }
}
