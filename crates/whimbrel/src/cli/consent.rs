//! Sizes of a client's messages, in words for its user.

use whimbrel_codec::Codec;
use whimbrel_codec::channel::Uplink;
use whimbrel_core::Key;
use whimbrel_core::math::normal_quantile;
use whimbrel_core::method::Exposure;
use whimbrel_engine::{Agreement, Consent};
use whimbrel_families::failure::Result;
use whimbrel_families::plan::Plan;
use whimbrel_report::format;

/// Bytes for people: the estimate of a round under the job's codec, the largest bound of a message.
pub fn message_sizes(plan: &Plan, limits: &Consent) -> Result<String> {
    let bytes = |count: u64| format::bytes(8.0 * count as f64);
    let agreements = plan.agreements(limits)?;
    let largest = |a: &Agreement| a.sizes.summary.max(a.sizes.up).max(a.sizes.answer);
    let most = bytes(agreements.iter().map(largest).max().unwrap_or(0));
    let most = format!("at most {most} per message");
    let stages = plan.disclosures()?;
    let mut all = stages.iter().flat_map(|stage| &stage.disclosures);
    let text = if all.any(|d| d.exposure == Exposure::Rows) {
        "some of your rows leave, and messages computed from them:"
    } else {
        "your rows stay here; messages computed from them leave:"
    };
    let fit = agreements.last().filter(|fit| fit.rounds() > 0);
    let (Some(fit), Some(each)) = (fit, typical_bytes(plan.uplink())?) else {
        return Ok(format!("{text} {most}"));
    };
    let each = each.min(fit.sizes.up);
    let is_bounded = fit.kinds.iter().all(|kind| kind.bounded);
    let total = each.saturating_mul(fit.rounds().into());
    let total = if is_bounded { format!(", {} in all", bytes(total)) } else { String::new() };
    let each = bytes(each);
    Ok(format!("{text} about {each} per round of the fit{total}, evaluations apart; {most}"))
}

/// Bytes of a compressed upload, an estimate: those of a Gaussian vector; `None` without compression.
fn typical_bytes(uplink: &Uplink) -> Result<Option<u64>> {
    let dimension = uplink.dimension();
    let bytes = match uplink.codec() {
        Codec::Exact => return Ok(None),
        // The grid's step depends on other clients; the bits of a word do not.
        Codec::Grid(grid) => (dimension * grid.bits() as usize).div_ceil(8),
        codec => {
            // Quantiles in the order of a golden-ratio sequence: no run of them is sorted.
            let golden = |i: usize| ((i as f64 + 0.5) * 0.618_033_988_749_895).fract();
            let x: Vec<f64> = (0..dimension).map(|i| normal_quantile(golden(i))).collect();
            codec.encode(&x, Key::root(0))?.len()
        }
    };
    Ok(Some(bytes as u64))
}
