//! Use of a finished fit outside the run: a new client's personal effect, and factors of new rows.

use super::interval::CLASSES;
use super::newton::{Case, regression};
use super::side::Side;
use super::uncertainty::{ErrorPart, ErrorSource, Regression, Uncertainty, share};
use super::{Delivered, Factors, Family, LowRank, LowRankFit, Observed, Parameter};
use std::borrow::Cow;
use whimbrel_core::{Cell, Error, Key, Result, vector};

/// Bound on personal effects in absolute value: a client's counts differ from the others by a factor of
/// at most `e^2`, so that the server's step size is safe without knowledge of the effects.
pub const PERSONAL_MAX: f64 = 2.0;

/// The personal effect: minimises `sum_i [psi(theta_i + e) - y_i e] + (ridge/2) e^2` over
/// `|e| <= PERSONAL_MAX`, starting from `start`.
pub fn own_effect(
    family: Family,
    cells: impl Iterator<Item = (f64, f64)>,
    ridge: f64,
    start: f64,
) -> Result<f64> {
    let terms: Vec<Case> = cells.map(|(offset, y)| Case { z: vec![1.0], offset, y }).collect();
    // The objective is convex in e, so clipping its minimiser gives the constrained one.
    let effect = regression(family, &terms, &[ridge], vec![start])?[0];
    Ok(effect.clamp(-PERSONAL_MAX, PERSONAL_MAX))
}

/// A row added after the run.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRow {
    /// `u`, then the coefficients of terms with one coefficient per row.
    pub own: Vec<f64>,
    /// Their prior precisions.
    pub prior: Vec<f64>,
    /// Their [posterior](super::Posteriors::each).
    pub posterior: Vec<f64>,
    /// The largest fitted `theta` of its cells; minus infinity without cells.
    pub ceiling: f64,
    pub observations: u32,
}

impl LowRankFit {
    /// A new client's personal effect `e`, from its cells of known rows; its table is `theta + e`.
    pub fn own_effect(&self, cells: &[Cell]) -> Result<f64> {
        cells.iter().try_for_each(|cell| self.check(cell))?;
        let theta = |cell: &Cell| self.below_ceiling(cell.row as usize, cell.column as usize);
        let cells = cells.iter().map(|cell| (theta(cell), self.model.in_units_of_fit(cell).value));
        let ridge = f64::from(self.clients) * self.model.settings().lambda_effects;
        own_effect(self.model.family(), cells, ridge, 0.0)
    }

    /// Fits a new row to its cells `(column, value)`, with all other parameters fixed and the penalties of
    /// the fit. `offset` is added to every `theta`: the client's personal effect, or 0.
    pub fn new_row(&self, cells: &[(u32, f64)], offset: f64) -> Result<NewRow> {
        let model = &self.model;
        let mut terms = Vec::with_capacity(cells.len());
        for (column, y) in cells {
            let cell = Cell { row: 0, column: *column, value: *y };
            self.check(&cell)?;
            let y = model.in_units_of_fit(&cell).value;
            terms.push(model.case(&self.factors, None, *column as usize, y, offset));
        }
        let (ridge, x) = (model.row_ridge(self.clients), model.fit_row(&terms, self.clients)?);
        let sure = match &self.uncertainty {
            Some(sure) => Cow::Borrowed(sure),
            None => Cow::Owned(Uncertainty::of_priors(model, &self.factors)?),
        };
        let prior = model.row_prior(&sure);
        let mut own = Regression::new(prior.len());
        let mut ceiling = f64::NEG_INFINITY;
        for term in &terms {
            let theta = term.offset + vector::dot(&term.z, &x);
            let mean = model.family().mean(theta);
            let noise = self.group_of(mean, u32::MAX).variance(model.family(), mean);
            own.add(&term.z, 1, [model.family().variance(mean), noise]);
            ceiling = ceiling.max(theta - offset);
        }
        let posterior = own.posterior(model.family(), &x, &ridge, &prior)?;
        Ok(NewRow { own: x, prior, posterior, ceiling, observations: cells.len() as u32 })
    }

    /// The row effect of a new row; 0 if the model has no row effects.
    pub fn new_row_effect(&self, row: &NewRow) -> f64 {
        // Row effects come first among the terms with coefficients per row.
        self.model.line_term(Side::Row).map_or(0.0, |_| row.own[self.model.rank()])
    }

    /// The parameter of a new row's cell without its error, at most the ceilings of its own cells and of
    /// the column, plus a client's personal effect.
    pub fn new_row_point(&self, row: &NewRow, column: usize, effect: f64) -> Parameter {
        let design = self.model.row_design(&self.factors, column);
        let elsewhere = self.model.elsewhere(&self.factors, None, column);
        let mut theta = elsewhere + vector::dot(&row.own, &design);
        if let Some(ceiling) = &self.ceiling {
            theta = theta.min(ceiling.columns[column].max(row.ceiling));
        }
        let theta = self.model.family().boxed(theta + effect);
        Parameter { unit: self.model.unit(column), ..Parameter::exact(theta, u32::MAX) }
    }

    /// The parts of the error of a new row's `theta` in a column; `number` identifies the row.
    pub fn new_row_error_parts(
        &self,
        row: &NewRow,
        number: usize,
        column: usize,
    ) -> Vec<ErrorPart> {
        let design = self.model.row_design(&self.factors, column);
        let own = share(ErrorSource::NewRow(number), &row.posterior, &row.prior, &design);
        let u = &row.own[..self.model.rank()];
        let beside =
            self.uncertainty.iter().flat_map(|sure| sure.parts_beside(&self.model, u, column));
        std::iter::once(own).chain(beside).collect()
    }

    fn check(&self, cell: &Cell) -> Result<()> {
        if cell.row as usize >= self.model.rows() || cell.column as usize >= self.model.columns() {
            return Err(Error::data(format!(
                "cell ({}, {}) lies outside the fitted table",
                cell.row, cell.column
            )));
        }
        self.model.family().check(cell.value).map_err(|wanted| {
            let name = self.model.family().name();
            Error::data(format!("{} is not {wanted}, as the {name} family needs", cell.value))
        })
    }
}

/// The key of the subsamples of rows.
const THIN: u64 = 0x7417;

impl Delivered {
    /// Predicts each held-out cell of a client from subsamples of the observed cells of its row, with all
    /// other parameters fixed. Both lists are sorted by row, and `effect` is the client's personal effect.
    /// Calls `visit` with the cell, the size of the subsample and the predicted mean.
    pub fn thinned(
        &self,
        model: &LowRank,
        data: &Observed,
        (clients, effect): (u32, f64),
        visit: &mut dyn FnMut(&Cell, u32, f64),
    ) -> Result<()> {
        for cell in &data.held_out {
            let first = data.cells.partition_point(|other| other.row < cell.row);
            let count = data.cells[first..].partition_point(|other| other.row == cell.row);
            let row = &data.cells[first..][..count];
            for class in 0..CLASSES - 1 {
                // Sizes of the class, less than the number of cells.
                let (fewest, most) = (1usize << class, (2usize << class) - 1);
                let most = most.min(row.len().saturating_sub(1));
                if most < fewest {
                    break;
                }
                let address = [u64::from(cell.row), u64::from(cell.column), u64::from(class)];
                let mut stream = address.into_iter().fold(Key::root(THIN), Key::child).stream();
                let kept = fewest + stream.below((most - fewest + 1) as u64) as usize;
                let kept: Vec<&Cell> =
                    stream.choose(row.len(), kept).into_iter().map(|i| &row[i]).collect();
                let mean = self.predicted(model, cell, &kept, (clients, effect))?;
                visit(cell, kept.len() as u32, mean);
            }
        }
        Ok(())
    }

    /// The mean of a cell after fitting its row to `others`.
    fn predicted(
        &self,
        model: &LowRank,
        cell: &Cell,
        others: &[&Cell],
        (clients, effect): (u32, f64),
    ) -> Result<f64> {
        let case = |cell: &Cell| {
            let (row, column) = (cell.row as usize, cell.column as usize);
            model.case(&self.factors, Some(row), column, cell.value, effect)
        };
        let others: Vec<Case> = others.iter().map(|cell| case(cell)).collect();
        let x = model.fit_row(&others, clients)?;
        let theta = |case: &Case| case.offset + vector::dot(&case.z, &x);
        let mut own = theta(&case(cell));
        if let Some(ceiling) = &self.ceiling {
            let highest = others.iter().map(theta).fold(f64::NEG_INFINITY, f64::max);
            own = own.min((ceiling.columns[cell.column as usize] + effect).max(highest));
        }
        Ok(model.family().mean(own))
    }
}

impl LowRank {
    /// Terms with coefficients per row.
    fn row_terms(&self) -> impl Iterator<Item = usize> {
        (0..self.terms().len()).filter(|t| self.terms()[*t].is_of_row())
    }

    /// Number of coefficients of such a term per row.
    fn term_width(&self, t: usize) -> usize {
        self.terms()[t].shape(1, self.columns())[1]
    }

    /// The regressors of a row's own parameters in a column: `v_l`, then those of its terms.
    fn row_design(&self, factors: &Factors, column: usize) -> Vec<f64> {
        let r = self.rank();
        let mut design = factors.v[column * r..][..r].to_vec();
        for t in self.row_terms() {
            let (class, count, weight) = self.terms()[t].column_class(self.columns(), column);
            let first = design.len();
            design.resize(first + count, 0.0);
            design[first + class] = weight;
        }
        design
    }

    /// Intercept plus all terms without coefficients per row. For an unknown row (`None`), covariates are
    /// taken as average and class effects as zero.
    fn elsewhere(&self, factors: &Factors, row: Option<usize>, column: usize) -> f64 {
        let terms = self.terms().iter().enumerate().filter(|(_, term)| !term.is_of_row());
        let known = terms.filter(|(_, term)| row.is_some() || term.ignores(Side::Row));
        known.fold(factors.intercept, |sum, (t, _)| {
            sum + self.term_value(factors, t, [row.unwrap_or(0), column])
        })
    }

    /// A cell as an observation of its row's regression.
    fn case(
        &self,
        factors: &Factors,
        row: Option<usize>,
        column: usize,
        y: f64,
        effect: f64,
    ) -> Case {
        let offset = self.elsewhere(factors, row, column) + effect;
        Case { z: self.row_design(factors, column), offset, y }
    }

    /// Fits a row's own parameters to its cells.
    fn fit_row(&self, cells: &[Case], clients: u32) -> Result<Vec<f64>> {
        let ridge = self.row_ridge(clients);
        regression(self.family(), cells, &ridge, vec![0.0; ridge.len()])
    }

    /// The penalties on a row's own parameters.
    fn row_ridge(&self, clients: u32) -> Vec<f64> {
        let n = f64::from(clients);
        let mut ridge = vec![n * self.settings().lambda; self.rank()];
        for t in self.row_terms() {
            ridge.resize(ridge.len() + self.term_width(t), n * self.term_ridge(t));
        }
        ridge
    }

    /// The prior precisions of a row's own parameters.
    fn row_prior(&self, sure: &Uncertainty) -> Vec<f64> {
        let mut prior = sure.lines[0].prior.clone();
        for t in self.row_terms().filter(|t| Some(*t) != self.line_term(Side::Row)) {
            prior.resize(prior.len() + self.term_width(t), sure.terms[t].prior[0]);
        }
        prior
    }
}
