//! What was observed of a table.

use std::collections::HashMap;
use whimbrel_core::{Cell, ClientData};

/// What all clients observed of a table, kept while the fit has their cells.
#[derive(Clone, Debug)]
pub struct ObservedTable {
    /// Cells of the fit.
    pub fitted: Vec<Cell>,
    /// Cells kept out of it.
    pub held_out: Vec<Cell>,
    /// Everything observed, kept out or not.
    pub seen: Observations,
}

impl ObservedTable {
    /// Of these cells.
    pub fn new(fitted: Vec<Cell>, held_out: Vec<Cell>) -> Self {
        let seen = Observations::new(&fitted, &held_out);
        Self { fitted, held_out, seen }
    }

    /// Gathers the clients' cells; none where they hold something else.
    pub fn of(clients: &[(String, ClientData)]) -> Option<Self> {
        let (mut fitted, mut held_out) = (Vec::new(), Vec::new());
        for (_, data) in clients {
            let ClientData::Cells(cells) = data else { return None };
            fitted.extend_from_slice(&cells.observed);
            held_out.extend_from_slice(&cells.held_out);
        }
        (!clients.is_empty()).then(|| Self::new(fitted, held_out))
    }
}

/// Values by cell: the mean where a cell was observed several times.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    cells: HashMap<(u32, u32), Seen>,
}

/// What was observed of one cell.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    sum: f64,
    count: u32,
    /// Whether the fit had one of them.
    in_fit: bool,
}

impl Observations {
    /// Of cells that the fit had or may have had, and of cells that were kept out of it.
    pub fn new(fitted: &[Cell], held_out: &[Cell]) -> Self {
        let mut all = Self::default();
        let fitted = fitted.iter().map(|cell| (cell, true));
        for (cell, in_fit) in fitted.chain(held_out.iter().map(|cell| (cell, false))) {
            let seen = all.cells.entry((cell.row, cell.column)).or_default();
            seen.sum += cell.value;
            seen.count += 1;
            seen.in_fit |= in_fit;
        }
        all
    }

    /// What was observed of a cell.
    pub fn value(&self, row: usize, column: usize) -> Option<f64> {
        let seen = self.cells.get(&(row as u32, column as u32))?;
        Some(seen.sum / f64::from(seen.count))
    }

    /// Whether a cell was observed, and all that was observed of it was kept out of the fit.
    pub fn is_held_out(&self, row: usize, column: usize) -> bool {
        self.cells.get(&(row as u32, column as u32)).is_some_and(|seen| !seen.in_fit)
    }

    /// How many cells of the table were kept out of the fit.
    pub fn held_out(&self) -> usize {
        self.cells.values().filter(|seen| !seen.in_fit).count()
    }

    /// How many cells of the table were observed.
    pub fn count(&self) -> usize {
        self.cells.len()
    }
}
