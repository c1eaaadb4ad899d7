//! Clients by name: participation, simulated losses and late joins.

use crate::failure::{AtKey, Result};
use crate::family::refuse;
use crate::job::{Job, Participation as ParticipationKey};
use std::collections::{BTreeMap, BTreeSet};
use whimbrel_core::{ClientId, Probability};
use whimbrel_engine::{Faults, Participation};

/// The clients that names in a job refer to.
pub struct Roster<'a> {
    pub(super) names: &'a [String],
    pub clients: usize,
}

/// The participation that a job asks for.
pub(super) fn participation(key: &ParticipationKey, roster: &Roster<'_>) -> Result<Participation> {
    Ok(match key {
        ParticipationKey::Probability(p) if *p >= 1.0 => Participation::Everyone,
        ParticipationKey::Probability(p) => Participation::Bernoulli(Probability::new(*p)?),
        ParticipationKey::Size(size) => {
            if *size > roster.clients {
                let what = format!("a cohort of {size} out of {} clients", roster.clients);
                return refuse(what, "a cohort has at most all clients").at("method.participation");
            }
            Participation::Fixed(*size as u32)
        }
        ParticipationKey::PerClient { default, clients } => {
            for name in clients.keys() {
                roster.id_of(name, "method.participation.clients")?;
            }
            let own = |id| roster.names.get(id).and_then(|name| clients.get(name));
            let each = (0..roster.clients).map(|id| Probability::new(*own(id).unwrap_or(default)));
            let others = Probability::new(*default)?;
            Participation::PerClient { each: each.collect::<whimbrel_core::Result<_>>()?, others }
        }
    })
}

/// The losses and late joins that a job simulates.
pub(super) fn faults(job: &Job, roster: &Roster<'_>) -> Result<Faults> {
    let mut drops: BTreeMap<u32, BTreeSet<ClientId>> = BTreeMap::new();
    for dropout in &job.simulation.drops {
        for name in &dropout.clients {
            let id = roster.id_of(name, "simulation.drops")?;
            drops.entry(dropout.round).or_default().insert(id);
        }
    }
    let mut late = BTreeMap::new();
    for join in &job.simulation.late {
        late.insert(roster.id_of(&join.client, "simulation.late")?, join.round);
    }
    if late.len() == roster.clients && roster.clients > 0 {
        return refuse("all clients join late: none is left to start", "leave one out of `late`")
            .at("simulation.late");
    }
    Ok(Faults { lost: job.simulation.lost, drops, late, replay: None })
}

impl Roster<'_> {
    /// The id of a client; `key` is the job key that names it, for the error.
    pub fn id_of(&self, name: &str, key: &'static str) -> Result<ClientId> {
        if let Some(at) = self.names.iter().position(|n| n == name) {
            return Ok(ClientId(at as u32));
        }
        if self.names.is_empty() && self.clients > 0 {
            let what = format!("`{key}` names client `{name}`, but clients choose their own names");
            return refuse(what, "list the clients by name in [federation]").at(key);
        }
        let some: Vec<&str> = self.names.iter().take(5).map(String::as_str).collect();
        let more = if self.names.len() > some.len() { ", ..." } else { "" };
        let what = format!("`{key}` names client `{name}`, which the data do not have");
        refuse(what, format!("the clients are {}{more}", some.join(", "))).at(key)
    }
}
