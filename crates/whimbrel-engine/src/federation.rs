//! The clients of a simulation and what each is there for.

use whimbrel_core::{Bound, ClientId, Error};

/// The clients of a simulation.
pub struct Federation {
    /// Names by id: sorted, or as a journal numbers them.
    pub names: Vec<String>,
    /// Each client's data, bound by the method.
    pub data: Vec<Bound>,
    /// What each client is there for, by id; those beyond the end train.
    pub duties: Vec<Duty>,
}

/// What a client is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Duty {
    /// It takes part in rounds and in evaluations.
    #[default]
    Train,
    /// It is only evaluated (an unseen client, or one without training rows): it sends no summary,
    /// is in no cohort, and is asked at evaluations.
    Evaluate,
}

impl Federation {
    /// Clients that all train.
    pub fn new(names: Vec<String>, data: Vec<Bound>) -> Self {
        Self { names, data, duties: Vec::new() }
    }

    pub(crate) fn trains(&self, id: ClientId) -> bool {
        self.duties.get(id.0 as usize).is_none_or(|duty| *duty == Duty::Train)
    }

    /// Those who are only evaluated.
    pub(crate) fn evaluated(&self) -> Vec<ClientId> {
        let ids = (0..self.duties.len() as u32).map(ClientId);
        ids.filter(|id| !self.trains(*id)).collect()
    }
}

/// Errors below the engine know ids; people know names. What went wrong on a client is the client's.
pub(crate) fn name(error: Error, names: &[String], id: ClientId) -> Error {
    match error {
        Error::Numerical { what, round } => {
            let name = names.get(id.0 as usize).map_or("?", |n| n);
            Error::Numerical { what: format!("client `{name}`: {what}"), round }
        }
        other => rename(other.of_client(id), names),
    }
}

pub(crate) fn rename(error: Error, names: &[String]) -> Error {
    match error {
        Error::Data { what, client: Some(id) } => {
            let name = names.get(id.0 as usize).map_or("?", |n| n);
            Error::data(format!("client `{name}`: {what}"))
        }
        other => other,
    }
}
