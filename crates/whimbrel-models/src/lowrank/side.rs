//! A row or a column as a regression: its unknowns, their design in a cell, and their penalties.

use super::{Factors, LowRank};

/// Rows or columns. A *line* is a row or a column of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Row = 0,
    Column = 1,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::Row, Self::Column];
}

impl LowRank {
    /// Number of unknowns of a line: its factors and, if its side has a main effect, that effect.
    pub(super) fn unknowns(&self, side: Side) -> usize {
        self.rank() + usize::from(self.line_term(side).is_some())
    }

    /// The unknowns of all lines, one line after the other.
    pub(super) fn line_unknowns(&self, side: Side, factors: &Factors) -> Vec<f64> {
        let (r, own) = (self.rank(), [&factors.u, &factors.v][side as usize]);
        let term = self.line_term(side);
        let line = |at: usize| {
            let effect = term.map(|t| factors.effects[t][at]);
            own[at * r..][..r].iter().copied().chain(effect)
        };
        (0..[self.rows(), self.columns()][side as usize]).flat_map(line).collect()
    }

    /// The ridge on each unknown of a line, times `shrink`.
    pub(super) fn ridge(&self, side: Side, shrink: f64) -> Vec<f64> {
        let mut ridge = vec![shrink * self.settings().lambda; self.rank()];
        ridge.extend(self.line_term(side).map(|t| shrink * self.term_ridge(t)));
        ridge
    }

    /// The regressors of a line in a cell: `(v_l, 1)` for a row, `(u_j, 1)` for a column.
    pub(super) fn design(&self, side: Side, factors: &Factors, [j, l]: [usize; 2]) -> Vec<f64> {
        let r = self.rank();
        let mut design = match side {
            Side::Row => factors.v[l * r..][..r].to_vec(),
            Side::Column => factors.u[j * r..][..r].to_vec(),
        };
        design.resize(self.unknowns(side), 1.0);
        design
    }
}
