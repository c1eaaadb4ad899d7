//! Splits of cells over clients, and the cells held out of the fit.

use super::CellTable;
use crate::split::{client_name, enough_rows, iid_rows};
use crate::{Error, Result};
use whimbrel_core::{Cell, Key};

/// A client and its observations, in the order of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct CellsOf {
    pub name: String,
    pub cells: Vec<Cell>,
}

/// Key tag of the hold-out.
const HOLD_OUT: u64 = 0x401D;

impl CellTable {
    /// The names in the client column, in order of appearance; none without such a column.
    pub fn client_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.clients.iter().map(|(name, _)| name.as_str())
    }

    /// The cells of each value of the client column, sorted by name in byte order. A client without
    /// observations is left out with a warning.
    pub fn by_client(&mut self) -> Result<Vec<CellsOf>> {
        if self.clients.is_empty() {
            return Err(Error::config(format!("{} names no clients", self.name)));
        }
        let mut parts: Vec<CellsOf> = self
            .clients
            .iter()
            .map(|(name, _)| CellsOf { name: name.clone(), cells: Vec::new() })
            .collect();
        for (cell, &owner) in self.cells.iter().zip(&self.owners) {
            parts[owner as usize].cells.push(*cell);
        }
        for (part, (name, place)) in parts.iter().zip(&self.clients) {
            if part.cells.is_empty() {
                self.warnings.push(format!(
                    "{}: client {name:?} has no observation and is left out; its first line is \
                     {place}",
                    self.name
                ));
            }
        }
        parts.retain(|part| !part.cells.is_empty());
        parts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(parts)
    }

    /// Deals the observations at random; numbers differ by at most one.
    pub fn scattered(&self, clients: usize, key: Key) -> Result<Vec<CellsOf>> {
        let parts = iid_rows(self.cells.len(), clients, key)?;
        let of = |rows: &[usize]| rows.iter().map(|&i| self.cells[i]).collect();
        Ok(parts.into_iter().map(|p| CellsOf { cells: of(&p.rows), name: p.name }).collect())
    }

    /// Deals whole rows of the table at random; numbers of observed rows differ by at most one.
    pub fn by_rows(&self, clients: usize, key: Key) -> Result<Vec<CellsOf>> {
        let mut seen = vec![false; self.rows.len()];
        self.cells.iter().for_each(|cell| seen[cell.row as usize] = true);
        let mut order: Vec<usize> = (0..seen.len()).filter(|&row| seen[row]).collect();
        enough_rows(&self.name, order.len(), clients)?;
        key.stream().shuffle(&mut order);
        let mut owner = vec![0usize; seen.len()];
        for (at, &row) in order.iter().enumerate() {
            owner[row] = at % clients;
        }
        let mut parts: Vec<CellsOf> = (0..clients)
            .map(|i| CellsOf { name: client_name(i, clients), cells: Vec::new() })
            .collect();
        self.cells.iter().for_each(|cell| parts[owner[cell.row as usize]].cells.push(*cell));
        Ok(parts)
    }
}

/// Splits a client's cells into those of the fit and those held out to evaluate it. The draw depends
/// on the key, the client's name and its cells only, so a client draws the same in a simulation and on
/// a network. All observations of a cell stay together. At least one cell stays in the fit.
///
/// `share` holds on average: a fraction of a cell is rounded up with that probability.
pub fn hold_out(
    mut cells: Vec<Cell>,
    share: f64,
    key: Key,
    client: &str,
) -> (Vec<Cell>, Vec<Cell>) {
    let place = |cell: &Cell| (cell.row, cell.column);
    cells.sort_by_key(place);
    let distinct = cells.chunk_by(|a, b| place(a) == place(b)).count();
    let mut stream = named_key(key.child(HOLD_OUT), client).stream();
    let wanted = (share * distinct as f64 + stream.uniform()) as usize;
    let count = wanted.min(distinct.saturating_sub(1));
    let mut hidden = vec![false; distinct];
    stream.choose(distinct, count).into_iter().for_each(|i| hidden[i] = true);
    let (mut observed, mut held_out) = (Vec::new(), Vec::new());
    for (same, hidden) in cells.chunk_by(|a, b| place(a) == place(b)).zip(hidden) {
        if hidden { &mut held_out } else { &mut observed }.extend_from_slice(same);
    }
    (observed, held_out)
}

/// The child key of a name.
pub(crate) fn named_key(key: Key, name: &str) -> Key {
    let words = name.as_bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(key.child(name.len() as u64), Key::child)
}
