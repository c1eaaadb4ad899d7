//! Held-out rows of each client.

use super::{Loaded, data_key};
use crate::failure::Result;
use crate::job::HeldOut;
use whimbrel_core::{ClientData, Error, Key, Samples};
use whimbrel_data::{BadRow, Dataset, Error as DataError, LISTED_MAX, Parts};

/// Random stream of unseen clients.
const UNSEEN: u64 = 0x0A5E;

/// Holds out shares of every client's rows.
pub(super) fn set_apart(loaded: &mut Loaded, asked: &HeldOut, key: Key) -> Result<()> {
    if asked.validation == 0.0 && asked.test == 0.0 {
        return Ok(());
    }
    for (name, data) in &mut loaded.clients {
        if data.rows() == 0 {
            continue;
        }
        let parts = Parts::draw(data.rows(), asked.validation, asked.test, key, name);
        let given = match data {
            ClientData::Samples(samples) => samples.held_out.test.take(),
            _ => None,
        };
        *data = parts.apply(data)?;
        if let (ClientData::Samples(samples), Some(test)) = (data, given) {
            samples.held_out.test = Some(test);
        }
    }
    Ok(())
}

/// Holds out rows by a column of the file.
pub(super) fn by_role(loaded: &mut Loaded, file: &Dataset, role: &str) -> Result<()> {
    let column = file.column(role)?;
    refuse_other_roles(file, column)?;
    let places = std::mem::take(&mut loaded.places);
    for ((name, data), own) in loaded.clients.iter_mut().zip(&places) {
        let roles = own.rows.iter().map(|row| file.text(*row, column).unwrap_or_default());
        let parts = Parts::by_name(roles).map_err(|e| of(name, e))?;
        if parts.train.is_empty() && !matches!(data, ClientData::Samples(_)) {
            return Err(of(name, Error::data("no row is for training").into()).into());
        }
        *data = parts.apply(data)?;
    }
    Ok(())
}

/// Draws the clients that are only evaluated; at least one client trains.
pub(super) fn draw_unseen(loaded: &mut Loaded, share: f64, key: Key) {
    let clients = loaded.clients.len();
    let count = ((share * clients as f64).round() as usize).min(clients.saturating_sub(1));
    if count == 0 {
        if share > 0.0 {
            let what =
                format!("unseen = {share} of {clients} clients rounds to zero: all clients train");
            loaded.warnings.push(what);
        }
        return;
    }
    loaded.unseen = vec![false; clients];
    for client in key.child(UNSEEN).stream().choose(clients, count) {
        loaded.unseen[client] = true;
    }
    loaded.notes.push(format!("{count} of {clients} clients are only evaluated"));
}

/// Leaves clients that are only evaluated this many training rows.
pub(super) fn shorten_unseen(loaded: &mut Loaded, rows: Option<usize>, key: Key) {
    let Some(rows) = rows else { return };
    for (id, (_, data)) in
        loaded.clients.iter_mut().enumerate().filter(|(id, _)| loaded.unseen[*id])
    {
        if let ClientData::Samples(all) = data
            && all.len() > rows
        {
            let own = key.child(UNSEEN).child(id as u64 + 1);
            let mut kept = own.stream().choose(all.len(), rows);
            kept.sort_unstable();
            let held_out = std::mem::take(&mut all.held_out);
            *all = Samples { held_out, ..all.at(&kept) };
            loaded.rows[id] = Some(rows as u64);
        }
    }
}

/// Refuses rows with an unknown role, by line.
fn refuse_other_roles(file: &Dataset, column: usize) -> Result<()> {
    let wrong = (0..file.rows()).filter_map(|row| {
        let role = file.text(row, column).unwrap_or_default().trim();
        (!Parts::ROLES.contains(&role)).then_some((row, role))
    });
    let reason = |role: &str| match role {
        "" => "the value is missing".into(),
        other => format!("{other:?} is not a role"),
    };
    let wrong: Vec<(usize, &str)> = wrong.collect();
    let listed = wrong.iter().take(LISTED_MAX).map(|(row, role)| BadRow {
        row: row + 1,
        line: file.line(*row),
        reasons: vec![(Some(file.columns()[column].name.clone()), reason(role))],
    });
    let listed: Vec<BadRow> = listed.collect();
    if listed.is_empty() {
        return Ok(());
    }
    let hint = Some("the roles are train, validation and test".into());
    let file = file.name().into();
    Err(DataError::Rows { file, listed, count: wrong.len(), hint }.into())
}

/// Adds the client to an error.
fn of(name: &str, error: whimbrel_data::Error) -> Error {
    Error::data(format!("client {name:?}: {error}"))
}

/// Notes the number of held-out rows, and counts the training rows of each client.
pub(super) fn count(loaded: &mut Loaded) {
    let (mut validation, mut test) = (0, 0);
    for ((_, data), rows) in loaded.clients.iter().zip(&mut loaded.rows) {
        if rows.is_some() && !matches!(data, ClientData::Cells(_)) {
            *rows = Some(data.rows() as u64);
        }
        let held_out = data.held_out();
        validation += held_out.validation.map_or(0, |data| data.rows());
        test += held_out.test.map_or(0, |data| data.rows());
    }
    for (rows, purpose) in [(validation, "validation"), (test, "tests")] {
        if rows > 0 {
            loaded.notes.push(format!("{rows} rows are held out for {purpose}"));
        }
    }
}

/// Holds out rows of one client's file: the same as in a simulation.
pub(crate) fn of_client(
    data: ClientData,
    asked: &HeldOut,
    data_seed: u64,
    name: &str,
) -> Result<ClientData> {
    if asked.validation == 0.0 && asked.test == 0.0 {
        return Ok(data);
    }
    let (rows, key) = (data.rows(), data_key(data_seed));
    Ok(Parts::draw(rows, asked.validation, asked.test, key, name).apply(&data)?)
}
