//! A client's observed cells.

use super::LowRank;
use whimbrel_core::{Cell, ClientData, Error, Result};

/// One client's observations, sorted by row and then column.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Cells used by the fit; a cell observed twice occurs twice.
    pub cells: Vec<Cell>,
    /// Held-out cells, for evaluation.
    pub held_out: Vec<Cell>,
}

impl LowRank {
    /// Checks that the client's cells fit the table and the family, and that at least one is observed.
    pub fn bind(&self, data: &ClientData) -> Result<Observed> {
        let ClientData::Cells(cells) = data else {
            return Err(Error::data(
                "a low-rank model is fitted to cells, but these data are rows",
            )
            .hint("name the columns that hold row, column and value in [data]"));
        };
        if cells.rows.len() != self.rows() || cells.columns.len() != self.columns() {
            return Err(Error::data(format!(
                "its table is {} x {}, but the model's is {} x {}",
                cells.rows.len(),
                cells.columns.len(),
                self.rows(),
                self.columns()
            )));
        }
        for cell in cells.observed.iter().chain(&cells.held_out) {
            if let Err(wanted) = self.family().check(cell.value) {
                return Err(Error::data(format!(
                    "row `{}`, column `{}`: {} is not {wanted}, as the {} family needs",
                    cells.rows[cell.row as usize],
                    cells.columns[cell.column as usize],
                    cell.value,
                    self.family().name()
                )));
            }
        }
        if cells.observed.is_empty() {
            return Err(Error::data("it has no observed cell"));
        }
        let standardised = |cells: &[Cell]| cells.iter().map(|c| self.in_units_of_fit(c)).collect();
        Ok(Observed {
            cells: standardised(&cells.observed),
            held_out: standardised(&cells.held_out),
        })
    }
}
