//! Names, ids and standings of a run's clients.

use crate::registry::{ClientList, Standing};
use std::collections::{BTreeSet, HashMap};
use whimbrel_core::{ClientId, Error, Result};

/// The clients of a run.
#[derive(Default)]
pub(super) struct Roster {
    /// Names by id; an id is assigned once.
    pub names: Vec<String>,
    by_name: HashMap<String, ClientId>,
    /// Standings as last read from the registry.
    pub standings: HashMap<String, Standing>,
    /// Number of unredeemed invitations that leave the name to the client.
    pub unnamed: usize,
    /// Clients that have fetched the model.
    pub finished: BTreeSet<String>,
}

impl Roster {
    /// The ids assigned by earlier processes.
    pub fn read(list: &ClientList) -> Result<Self> {
        let mut roster = Self::default();
        let mut numbered = Vec::new();
        for client in &list.clients {
            if client.finished {
                roster.finished.insert(client.name.clone());
            }
            numbered.extend(client.id.map(|id| (ClientId(id), client.name.clone())));
        }
        numbered.sort_unstable();
        for (at, (id, name)) in numbered.into_iter().enumerate() {
            if id.0 as usize != at {
                let what = format!("client number {at} is missing");
                return Err(Error::storage("federation.json", what));
            }
            roster.add(name, id);
        }
        Ok(roster)
    }

    /// Adds a client with the next id.
    pub fn add(&mut self, name: String, id: ClientId) {
        self.by_name.insert(name.clone(), id);
        self.names.push(name);
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// All ids in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = ClientId> + use<> {
        (0..self.names.len() as u32).map(ClientId)
    }

    pub fn name(&self, id: ClientId) -> &str {
        self.names.get(id.0 as usize).map_or("?", |name| name)
    }

    pub fn id(&self, name: &str) -> Option<ClientId> {
        self.by_name.get(name).copied()
    }

    pub fn standing(&self, name: &str) -> Option<Standing> {
        self.standings.get(name).copied()
    }

    /// Names of expected clients without an id.
    pub fn without_id(&self) -> Vec<String> {
        let expected = self.standings.iter().filter(|(_, s)| **s == Standing::Expected);
        let names = expected.map(|(name, _)| name);
        names.filter(|name| !self.by_name.contains_key(*name)).cloned().collect()
    }
}
