//! The clients of a simulation and their duties.

use whimbrel_core::{Bound, ClientId, Error};

/// The clients of a simulation.
pub struct Federation {
    /// Names by id: sorted, or as in a journal.
    pub names: Vec<String>,
    /// Each client's data, bound by the method.
    pub data: Vec<Bound>,
    /// Duties by id; clients beyond the end train.
    pub duties: Vec<Duty>,
}

/// The part of a client in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Duty {
    /// Rounds and evaluations.
    #[default]
    Train,
    /// Evaluations only, for an unseen client or one without training rows: it sends no summary and
    /// is in no cohort.
    Evaluate,
}

impl Federation {
    pub fn new(names: Vec<String>, data: Vec<Bound>) -> Self {
        Self { names, data, duties: Vec::new() }
    }

    pub(crate) fn trains(&self, id: ClientId) -> bool {
        self.duties.get(id.0 as usize).is_none_or(|duty| *duty == Duty::Train)
    }

    /// Clients that are only evaluated.
    pub(crate) fn evaluated(&self) -> Vec<ClientId> {
        let ids = (0..self.duties.len() as u32).map(ClientId);
        ids.filter(|id| !self.trains(*id)).collect()
    }
}

/// Names the client in an error of its data or its arithmetic.
pub(crate) fn in_client(error: Error, name: &str) -> Error {
    let place = format_args!("client `{name}`");
    match error {
        Error::Data { what, hint, .. } => Error::Data { what, client: None, hint }.within(place),
        Error::Numerical { .. } => error.within(place),
        other => other,
    }
}

/// [`in_client`] by id, unless the error already has the id of a client.
pub(crate) fn name(error: Error, names: &[String], id: ClientId) -> Error {
    match error {
        Error::Data { client: Some(_), .. } => rename(error, names),
        other => in_client(other, name_of(names, id)),
    }
}

/// Replaces the id in a data error by the client's name.
pub(crate) fn rename(error: Error, names: &[String]) -> Error {
    match error {
        Error::Data { client: Some(id), .. } => in_client(error, name_of(names, id)),
        other => other,
    }
}

fn name_of(names: &[String], id: ClientId) -> &str {
    names.get(id.0 as usize).map_or("?", |name| name)
}
