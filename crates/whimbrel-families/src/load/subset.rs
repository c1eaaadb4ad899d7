//! Random subsets of the data.

use super::Loaded;
use crate::failure::Result;
use crate::job::{KeptClients, Subset};
use whimbrel_core::{ClientData, Key};
use whimbrel_data::Parts;

/// Random streams of subsets.
const ROWS: u64 = 0x5AB5;
const CLIENTS: u64 = 0x5ABC;

/// Keeps some clients, in order.
pub(super) fn keep<T>(clients: &mut Vec<T>, kept: Option<KeptClients>, key: Key) {
    let all = clients.len();
    let count = match kept {
        None => return,
        Some(KeptClients::Number(count)) => count.min(all),
        Some(KeptClients::Share(share)) => ((share * all as f64).round() as usize).clamp(1, all),
    };
    let mut is_kept = vec![false; all];
    for client in key.child(CLIENTS).stream().choose(all, count) {
        is_kept[client] = true;
    }
    let mut is_kept = is_kept.into_iter();
    clients.retain(|_| is_kept.next().unwrap_or_default());
}

/// Keeps the job's shares of rows and clients.
pub(super) fn take(loaded: &mut Loaded, subset: &Subset, key: Key) -> Result<()> {
    if let Some(KeptClients::Number(asked)) = subset.clients
        && asked > loaded.clients.len()
    {
        loaded.warnings.push(format!(
            "keep_clients = {asked}, but there are {}: all are kept",
            loaded.clients.len()
        ));
    }
    let all = loaded.clients.len();
    keep(&mut loaded.clients, subset.clients, key);
    keep(&mut loaded.rows, subset.clients, key);
    if loaded.clients.len() < all {
        loaded.notes.push(format!("{} of {all} clients are used", loaded.clients.len()));
    }
    if subset.rows < 1.0 {
        for (name, data) in &mut loaded.clients {
            *data = some_rows(data, subset.rows, key.child(ROWS), name)?;
        }
    }
    Ok(())
}

/// A share of a client's training rows and of its given test rows.
fn some_rows(data: &ClientData, share: f64, key: Key, name: &str) -> Result<ClientData> {
    let rows = data.rows();
    let train = Parts::draw(rows, 0.0, 1.0 - share, key, name).train;
    let kept = Parts { train, ..Parts::default() }.apply(data)?;
    let (ClientData::Samples(all), ClientData::Samples(mut kept)) = (data, kept.clone()) else {
        return Ok(kept);
    };
    let part = |part: &Option<Box<whimbrel_core::Samples>>, tag: u64| {
        part.as_deref().map(|part| {
            let rows = Parts::draw(part.len(), 0.0, 1.0 - share, key.child(tag), name).train;
            Box::new(part.at(&rows))
        })
    };
    kept.held_out.validation = part(&all.held_out.validation, 1);
    kept.held_out.test = part(&all.held_out.test, 2);
    Ok(ClientData::Samples(kept))
}
