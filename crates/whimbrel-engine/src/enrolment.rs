//! Enrolment of clients, in parallel.

use crate::keys::StageKeys;
use crate::simulator::{Federation, first_failure, name};
use rayon::prelude::*;
use whimbrel_core::{Bound, ClientId, DynMethod, Opaque, Result};

/// First states and summaries of these clients.
pub(crate) fn enrol(
    method: &dyn DynMethod,
    federation: &Federation,
    keys: StageKeys,
    ids: &[ClientId],
) -> Result<Vec<(Opaque, Vec<u8>)>> {
    let each = ids.par_iter().map(|id| {
        enrol_one(method, &federation.data[id.0 as usize], keys, *id)
            .map_err(|e| name(e, &federation.names, *id))
    });
    first_failure(each.collect())
}

/// The first state and the summary of one client.
pub(crate) fn enrol_one(
    method: &dyn DynMethod,
    data: &Bound,
    keys: StageKeys,
    id: ClientId,
) -> Result<(Opaque, Vec<u8>)> {
    let (client, summary) = method.enroll(data, keys.enrol(id))?;
    Ok((client, without_slack(summary)))
}

/// Frees spare capacity: the summaries of all clients are in memory at once.
pub(crate) fn without_slack(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.shrink_to_fit();
    bytes
}
