//! Outer loops of vr-fedem: their length and minibatches where a job leaves them to the theorem.

use super::Common;
use crate::spec::{Batch as BatchKey, MethodKind};
use whimbrel_codec::channel::{UpRule, Uplink, em_alpha};
use whimbrel_methods::spider::{Spider, usual_batch, usual_inner};

/// Puts numbers in place of `inner = "auto"` and `batch = "auto"`.
pub(super) fn settle(common: &mut Common, uplinks: &[Uplink]) {
    if common.job.method.kind != MethodKind::VrFedem {
        return;
    }
    let (omega, rows) = (omega(uplinks), rows_mean(common));
    let method = &mut common.job.method;
    let inner = *method.inner.get_or_insert_with(|| usual_inner(rows, omega));
    if let BatchKey::Auto { replacement, local_steps } = method.batch {
        method.batch = BatchKey::Mini { rows: usual_batch(inner, omega), replacement, local_steps };
    }
}

/// What the step of vr-fedem depends on; none for other methods.
pub(super) fn spider(common: &Common, uplinks: &[Uplink]) -> Option<Spider> {
    let inner = common.job.method.inner?;
    let alpha = |uplink: &Uplink| match uplink.rule() {
        UpRule::Memory { alpha } => *alpha,
        UpRule::Plain | UpRule::Feedback => em_alpha(one_omega(uplink)),
    };
    Some(Spider {
        inner,
        batch: common.batch().expectations(rows_mean(common) as u64) as f64,
        omega: omega(uplinks),
        alpha: uplinks.iter().map(alpha).fold(1.0, f64::min),
        clients: common.names.len() as f64,
    })
}

/// The largest variance constant of the uplinks in use.
pub(super) fn omega(uplinks: &[Uplink]) -> f64 {
    uplinks.iter().map(one_omega).fold(0.0, f64::max)
}

/// For a biased codec `1/delta - 1`, with `delta` its contraction.
fn one_omega(uplink: &Uplink) -> f64 {
    let contraction = || uplink.codec().contraction(uplink.dimension());
    uplink.omega().or_else(|| Some(1.0 / contraction()? - 1.0)).unwrap_or(0.0)
}

/// The loops in use.
pub(super) fn note(common: &Common) -> Option<String> {
    let inner = common.job.method.inner?;
    let rows = match common.job.method.batch {
        BatchKey::Mini { rows, .. } => format!("{rows} rows"),
        BatchKey::Full | BatchKey::Auto { .. } => "all rows".into(),
    };
    let mean = rows_mean(common);
    Some(format!(
        "outer loops of {inner} rounds, minibatches of {rows} (a client has {mean:.1} on average)"
    ))
}

pub(super) fn warning(common: &Common) -> Option<String> {
    let idle = common.job.method.inner.is_some() && common.job.method.batch == BatchKey::Full;
    idle.then(|| {
        "full batches have no variance to reduce: vr-fedem is then fedem at twice the work".into()
    })
}

/// `m`: the rows of a client, on average.
fn rows_mean(common: &Common) -> f64 {
    common.total_rows.unwrap_or(0) as f64 / common.names.len().max(1) as f64
}
