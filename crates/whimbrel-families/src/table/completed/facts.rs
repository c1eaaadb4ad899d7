//! What was observed of a table.

use super::Observations;
use std::sync::Arc;
use whimbrel_core::{Cell, Cells, ClientData};

/// What all clients observed of a table, kept while the fit has their cells.
#[derive(Clone, Debug)]
pub struct TableFacts {
    /// Labels of the rows.
    pub rows: Arc<[String]>,
    /// Labels of the columns.
    pub columns: Arc<[String]>,
    /// Cells of the fit.
    pub fitted: Vec<Cell>,
    /// Cells kept out of it.
    pub held_out: Vec<Cell>,
}

impl TableFacts {
    /// Gathers the clients' cells; none where they hold something else.
    pub fn of(clients: &[(String, ClientData)]) -> Option<Self> {
        let cells: Option<Vec<&Cells>> = clients
            .iter()
            .map(|(_, data)| match data {
                ClientData::Cells(cells) => Some(cells),
                _ => None,
            })
            .collect();
        let cells = cells?;
        let first = cells.first()?;
        Some(Self {
            rows: Arc::clone(&first.rows),
            columns: Arc::clone(&first.columns),
            fitted: cells.iter().flat_map(|c| &c.observed).copied().collect(),
            held_out: cells.iter().flat_map(|c| &c.held_out).copied().collect(),
        })
    }

    /// Everything observed, kept out or not.
    pub fn observations(&self) -> Observations {
        Observations::new(&self.fitted).with_held_out(&self.held_out)
    }
}
