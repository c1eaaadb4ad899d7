//! The rows and classes of each client of a job.

use super::Listener;
use serde_json::{Map, Value, json};
use whimbrel_core::{ClientData, Targets};
use whimbrel_families::Job;
use whimbrel_families::failure::Result;
use whimbrel_families::load::{Loaded, load};

/// A client's numbers of training, validation and test rows, and its training rows by class.
pub(crate) struct Held {
    name: String,
    pub(crate) rows: [usize; 3],
    pub(crate) classes: Vec<usize>,
    pub(crate) unseen: bool,
}

pub(crate) fn look(job: &Job, to: &dyn Listener) -> Result<(Loaded, Vec<Held>)> {
    let loaded = load(job)?;
    loaded.warnings.iter().for_each(|words| to.warning(words));
    loaded.notes.iter().for_each(|words| to.note(words));
    let held = (0..loaded.clients.len()).map(|i| Held::of(&loaded, i)).collect();
    Ok((loaded, held))
}

/// The rows and classes of each client, as one JSON object.
pub fn inspect_job(job: &Job, to: &dyn Listener) -> Result<Value> {
    let (loaded, held) = look(job, to)?;
    let clients = held.iter().map(|client| {
        let [train, validation, test] = client.rows;
        let content = json!({
            "rows": train, "validation": validation, "test": test, "unseen": client.unseen,
            "classes": client.classes,
        });
        (client.name.clone(), content)
    });
    let clients: Map<String, Value> = clients.collect();
    Ok(json!({
        "job": job.name, "columns": loaded.columns.len(), "shape": loaded.shape(),
        "classes": loaded.classes, "clients": clients,
    }))
}

impl Held {
    fn of(loaded: &Loaded, id: usize) -> Self {
        let (name, data) = &loaded.clients[id];
        let held_out = data.held_out();
        let part = |data: Option<Box<ClientData>>| data.map_or(0, |data| data.rows());
        let mut classes = vec![0; loaded.classes.len()];
        let mut count = |class: usize| classes.get_mut(class).into_iter().for_each(|n| *n += 1);
        match data {
            ClientData::Samples(samples) => {
                if let Targets::Classes { of, .. } = &samples.targets {
                    of.iter().for_each(|class| count(usize::from(*class)));
                }
            }
            ClientData::Labelled(rows) if loaded.classes.len() == 2 => {
                rows.targets.iter().for_each(|sign| count(usize::from(*sign > 0.0)));
            }
            _ => {}
        }
        Self {
            name: name.clone(),
            rows: [data.rows(), part(held_out.validation), part(held_out.test)],
            classes,
            unseen: loaded.unseen.get(id).copied().unwrap_or_default(),
        }
    }
}
