//! Observed cells of a table.

use std::collections::HashMap;
use whimbrel_core::{Cell, ClientData};

/// The observed cells of all clients.
#[derive(Clone, Debug)]
pub struct ObservedTable {
    pub fitted: Vec<Cell>,
    pub held_out: Vec<Cell>,
    /// All observations, fitted or held out.
    pub seen: Observations,
    /// The end of each client's cells in both lists.
    ends: Vec<[usize; 2]>,
}

impl ObservedTable {
    pub fn new(fitted: Vec<Cell>, held_out: Vec<Cell>) -> Self {
        let seen = Observations::new(&fitted, &held_out);
        let ends = vec![[fitted.len(), held_out.len()]];
        Self { fitted, held_out, seen, ends }
    }

    /// The fitted and held-out cells of each client.
    pub fn clients(&self) -> impl Iterator<Item = [&[Cell]; 2]> {
        let starts = [[0, 0]].into_iter().chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|([a, b], end)| [&self.fitted[a..end[0]], &self.held_out[b..end[1]]])
    }

    /// The clients' cells; `None` for other data.
    pub fn of(clients: &[(String, ClientData)]) -> Option<Self> {
        let (mut fitted, mut held_out) = (Vec::new(), Vec::new());
        let mut ends = Vec::new();
        for (_, data) in clients {
            let ClientData::Cells(cells) = data else { return None };
            fitted.extend_from_slice(&cells.observed);
            held_out.extend_from_slice(&cells.held_out);
            ends.push([fitted.len(), held_out.len()]);
        }
        (!clients.is_empty()).then(|| Self { ends, ..Self::new(fitted, held_out) })
    }
}

/// Values by cell; the mean of repeated observations.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    cells: HashMap<(u32, u32), Seen>,
}

/// The observations of one cell.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    sum: f64,
    count: u32,
    /// Whether one of them was fitted.
    in_fit: bool,
}

impl Observations {
    /// The observations in fitted and held-out cells.
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

    /// The observed value of a cell.
    pub fn value(&self, row: usize, column: usize) -> Option<f64> {
        let seen = self.cells.get(&(row as u32, column as u32))?;
        Some(seen.sum / f64::from(seen.count))
    }

    /// Whether a cell was observed and all its observations were held out.
    pub fn is_held_out(&self, row: usize, column: usize) -> bool {
        self.cells.get(&(row as u32, column as u32)).is_some_and(|seen| !seen.in_fit)
    }

    /// Number of held-out cells.
    pub fn held_out(&self) -> usize {
        self.cells.values().filter(|seen| !seen.in_fit).count()
    }

    /// Number of observed cells.
    pub fn count(&self) -> usize {
        self.cells.len()
    }
}
