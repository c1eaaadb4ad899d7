//! From the columns of a table to the design of a regression: contrasts of factors, interactions,
//! complete cases.

use super::{Family, Rows};
use whimbrel_core::{Error, Result, Table};

/// The columns of a table and their parts in a regression.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Design {
    /// Names of the table's columns.
    pub columns: Vec<String>,
    pub target: usize,
    /// Names of the target's classes; empty for numbers.
    pub classes: Vec<String>,
    /// The column that is 1 for an event and 0 for a censored time.
    pub event: Option<usize>,
    pub offset: Option<usize>,
    pub weights: Option<usize>,
    /// Factors of the weights by class; empty: 1.
    pub class_weights: Vec<f64>,
    pub intercept: bool,
    pub terms: Vec<Term>,
}

/// A term: a column, or the product of several.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    pub name: String,
    pub factors: Vec<Factor>,
}

/// A column of a term.
#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    pub column: usize,
    /// Levels by number; empty for numbers.
    pub levels: Vec<String>,
    /// The level without a coefficient.
    pub reference: usize,
}

impl Factor {
    fn width(&self) -> usize {
        self.levels.len().saturating_sub(1).max(1)
    }

    /// The levels that have coefficients.
    fn coded(&self) -> impl Iterator<Item = usize> {
        (0..self.levels.len()).filter(move |level| *level != self.reference)
    }
}

impl Term {
    /// Number of columns of the design.
    pub fn width(&self) -> usize {
        self.factors.iter().map(Factor::width).product()
    }

    /// Products of the factors' contrasts, the first factor fastest.
    fn products<T: Clone>(
        &self,
        one: T,
        number: impl Fn(&Factor, &T) -> T,
        level: impl Fn(&Factor, usize, &T) -> T,
    ) -> Vec<T> {
        self.factors.iter().fold(vec![one], |before, factor| {
            if factor.levels.is_empty() {
                return before.iter().map(|x| number(factor, x)).collect();
            }
            factor
                .coded()
                .flat_map(|at| before.iter().map(|x| level(factor, at, x)).collect::<Vec<_>>())
                .collect()
        })
    }
}

impl Term {
    /// Appends the columns of a row; only products allocate.
    fn fill(&self, row: &[f64], out: &mut Vec<f64>) {
        let is_at = |factor: &Factor, level: usize| row[factor.column] == level as f64;
        match &self.factors[..] {
            [one] if one.levels.is_empty() => out.push(row[one.column]),
            [one] => out.extend(one.coded().map(|level| f64::from(u8::from(is_at(one, level))))),
            _ => out.extend(self.products(
                1.0,
                |factor, x| x * row[factor.column],
                |factor, level, x| if is_at(factor, level) { *x } else { 0.0 },
            )),
        }
    }
}

impl Design {
    /// Number of columns without the intercept.
    pub fn width(&self) -> usize {
        self.terms.iter().map(Term::width).sum()
    }

    /// Names of the columns without the intercept: `age`, `arm[T.drug]`, `arm[T.drug]:age`.
    pub fn names(&self) -> Vec<String> {
        let joined = |before: &String, name: String| {
            if before.is_empty() { name } else { format!("{before}:{name}") }
        };
        let each = self.terms.iter().flat_map(|term| {
            term.products(
                String::new(),
                |factor, before| joined(before, self.columns[factor.column].clone()),
                |factor, at, before| {
                    let (name, level) = (&self.columns[factor.column], &factor.levels[at]);
                    joined(before, format!("{name}[T.{level}]"))
                },
            )
        });
        each.collect()
    }

    /// The columns of levels that no complete row has, from the columns' means and deviations: they have no
    /// coefficient. Any other column must vary, and so must one of each term.
    pub fn absent(&self, means: &[f64], scales: &[f64]) -> Result<Vec<usize>> {
        let (names, mut from, mut absent) = (self.names(), 0, Vec::new());
        for term in &self.terms {
            let own = from..from + term.width();
            from = own.end;
            let has_levels = term.factors.iter().any(|factor| !factor.levels.is_empty());
            let varies = |j: &usize| scales[*j] > 1e-14 * means[*j].abs();
            let is_absent = |j: &usize| has_levels && means[*j] == 0.0;
            let fixed: Vec<usize> = own.clone().filter(|j| !varies(j)).collect();
            let refused = fixed.iter().find(|j| fixed.len() == own.len() || !is_absent(j));
            if let Some(j) = refused {
                let what = format!("{:?} has the same value in all complete rows", names[*j]);
                let hint = "list the other columns with `columns` in [data]";
                return Err(Error::data(what).hint(hint));
            }
            absent.extend(fixed);
        }
        Ok(absent)
    }

    /// The terms that contain a term, by place: products of its columns and others.
    pub fn containing(&self, term: usize) -> Vec<usize> {
        let columns = |at: usize| self.terms[at].factors.iter().map(|factor| factor.column);
        let contains = |at: &usize| {
            let mut others: Vec<usize> = columns(*at).collect();
            let mut take = |column| {
                let found = others.iter().position(|other| *other == column);
                found.map(|place| others.swap_remove(place)).is_some()
            };
            columns(term).all(&mut take) && !others.is_empty()
        };
        (0..self.terms.len()).filter(contains).collect()
    }

    /// Columns of the table that the design reads.
    fn used(&self) -> Vec<usize> {
        let parts = [Some(self.target), self.event, self.offset, self.weights];
        let factors = self.terms.iter().flat_map(|term| &term.factors).map(|f| f.column);
        parts.into_iter().flatten().chain(factors).collect()
    }

    /// The complete rows of a table. `target` is false for new rows, whose target is unknown.
    pub fn rows(&self, table: &Table, family: Family, target: bool) -> Result<Rows> {
        let used: Vec<usize> = if target {
            self.used()
        } else {
            let factors = self.terms.iter().flat_map(|term| &term.factors).map(|f| f.column);
            factors.chain(self.offset).collect()
        };
        if table.width() != self.columns.len() {
            return Err(Error::data("the rows have other columns than the design"));
        }
        let width = self.width();
        let x = Vec::with_capacity(table.rows() * width);
        let mut rows = Rows { width, x, ..Rows::default() };
        for at in 0..table.rows() {
            let row = table.row(at);
            if used.iter().any(|column| row[*column].is_nan()) {
                rows.dropped += 1;
                continue;
            }
            self.terms.iter().for_each(|term| term.fill(row, &mut rows.x));
            rows.kept.push(at as u32);
            rows.offset.extend(self.offset.map(|column| row[column]));
            if target {
                self.check(row, family).map_err(|e| e.within(format!("row {}", at + 1)))?;
                rows.y.push(row[self.target]);
                rows.event.extend(self.event.map(|column| row[column]));
                let weight = self.weight(row);
                rows.constant += weight.unwrap_or(1.0) * family.constant(row[self.target]);
                rows.weight.extend(weight);
            }
        }
        family.order(&mut rows);
        Ok(rows)
    }

    fn weight(&self, row: &[f64]) -> Option<f64> {
        let class = self.class_weights.get(row[self.target] as usize).copied();
        let own = self.weights.map(|column| row[column]);
        class.map(|weight| weight * own.unwrap_or(1.0)).or(own)
    }

    /// The complete rows of a table with a value outside the family's domain.
    pub fn faults(&self, table: &Table, family: Family) -> impl Iterator<Item = (usize, Error)> {
        let used = self.used();
        let is_complete = move |row: &[f64]| used.iter().all(|column| !row[*column].is_nan());
        let complete = (0..table.rows()).filter(move |at| is_complete(table.row(*at)));
        complete.filter_map(move |at| Some((at, self.check(table.row(at), family).err()?)))
    }

    /// Refuses values outside the family's domain.
    fn check(&self, row: &[f64], family: Family) -> Result<()> {
        let (y, name) = (row[self.target], &self.columns[self.target]);
        if let Some(domain) = family.outside(y) {
            let error = Error::data(format!("{y} in column {name:?} is not {domain}"));
            return Err(match family {
                Family::Binomial => error.hint(format!(
                    "if its numbers stand for two classes, write {name:?} = {{ type = \"category\" }} in \
                     [schema]; for more classes family = \"multinomial\" in [model]"
                )),
                Family::Poisson if y > 0.0 => error.hint(
                    "a rate is the count as target, with the logarithm of its exposure as `offset` in [model]",
                ),
                _ => error,
            });
        }
        for (column, positive) in [(self.weights, "weight"), (self.event, "event")] {
            let Some(column) = column else { continue };
            let (x, name) = (row[column], &self.columns[column]);
            let fits = if positive == "event" { x == 0.0 || x == 1.0 } else { x >= 0.0 };
            if !fits {
                return Err(Error::data(format!(
                    "{x} in column {name:?} is not a valid {positive}"
                )));
            }
        }
        Ok(())
    }
}
