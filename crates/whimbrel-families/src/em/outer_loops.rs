//! The work behind an upload; for vr-fedem the outer loops, whose length and minibatches a job may
//! leave to the theorem.

use super::EmFit;
use super::mixture::MixtureKeys;
use crate::failure::Result;
use crate::family::refuse;
use crate::plan::{Common, Estimate};
use whimbrel_codec::channel::{UpRule, Uplink, em_alpha};
use whimbrel_methods::fedem::{Batch, Estimator};
use whimbrel_methods::spider::{Spider, auto_batch, auto_inner, usual_inner};

/// The work behind an upload, with `inner = "auto"` and `batch = "auto"` resolved; `q` is the length
/// of the statistic.
pub(super) fn work<K: MixtureKeys>(
    common: &Common,
    asked: &EmFit<K>,
    uplinks: &[Uplink],
    q: usize,
) -> Result<Estimate> {
    if !asked.reduces_variance() {
        return Ok(common.work());
    }
    let (omega, rows) = (omega(uplinks), rows_mean(common));
    let usual = asked.keys.inner.or_else(|| Some(usual_inner(rows?, omega)));
    let Some(usual) = usual else {
        return refuse(
            "inner = \"auto\" needs the number of all rows, which is unknown before clients join",
            "give `inner` in [method], such as inner = 20",
        );
    };
    let batch = common.job.method.batch.settled(Some(auto_batch(usual, omega, q)));
    let inner = match (asked.keys.inner, rows) {
        (None, Some(rows)) => auto_inner(rows, omega, batch.expectations(rows as u64)),
        _ => usual,
    };
    Ok(Estimate { estimator: Estimator::Spider { inner }, batch })
}

/// The constants of vr-fedem's step; `None` for other methods.
pub(super) fn spider(work: &Estimate, common: &Common, uplinks: &[Uplink]) -> Option<Spider> {
    let Estimator::Spider { inner } = work.estimator else { return None };
    let alpha = |uplink: &Uplink| match uplink.rule() {
        UpRule::Memory { alpha } => *alpha,
        UpRule::Plain | UpRule::Feedback => em_alpha(one_omega(uplink)),
    };
    // With an unknown number of rows, a minibatch counts as smaller than the data.
    let rows = rows_mean(common).map_or(u64::MAX, |rows| rows as u64);
    Some(Spider {
        inner,
        batch: work.batch.expectations(rows) as f64,
        omega: omega(uplinks),
        alpha: uplinks.iter().map(alpha).fold(1.0, f64::min),
        clients: common.clients as f64,
    })
}

/// The largest variance constant of the uplinks.
pub(super) fn omega(uplinks: &[Uplink]) -> f64 {
    uplinks.iter().map(one_omega).fold(0.0, f64::max)
}

/// The variance constant; `1/delta - 1` for a biased codec with contraction `delta`.
fn one_omega(uplink: &Uplink) -> f64 {
    let contraction = || uplink.codec().contraction(uplink.dimension());
    uplink.omega().or_else(|| Some(1.0 / contraction()? - 1.0)).unwrap_or(0.0)
}

/// A note on the loops in use.
pub(super) fn note(work: &Estimate) -> Option<String> {
    let Estimator::Spider { inner } = work.estimator else { return None };
    let rows = match work.batch {
        Batch::Full => "all rows".to_owned(),
        Batch::Sample { size: 1, .. } => "1 row".to_owned(),
        Batch::Sample { size, .. } => format!("{size} rows"),
    };
    Some(format!("outer loops of {inner} rounds, minibatches of {rows}"))
}

pub(super) fn warning(work: &Estimate) -> Option<String> {
    let idle = matches!(work, Estimate { estimator: Estimator::Spider { .. }, batch: Batch::Full });
    idle.then(|| "full batches have no variance to reduce: vr-fedem equals fedem here".into())
}

/// `m`: mean number of rows of a client.
fn rows_mean(common: &Common) -> Option<f64> {
    Some(common.total_rows? as f64 / common.clients.max(1) as f64)
}
