//! The report of a completed table: totals, heat maps, coverage, and comparison with simpler models.

use super::completed::Completed;
use super::observed::{Observations, ObservedTable};
use super::totals::Total;
use crate::files::figure;
use whimbrel_core::Cell;
use whimbrel_core::declare::{Exhibit, Heat, HeatMap, Lines, Rows, Section, Series, SeriesPoint};
use whimbrel_methods::fedmiss::select::{Candidate, Selection};
use whimbrel_models::lowrank::{Delivered, KIND, Observed, Scores};

/// Most rows and columns of a heat map.
const BLOCKS_MAX: usize = 200;
/// Nominal levels at which coverage is checked.
const LEVELS: [f64; 10] = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95];
/// Relative difference below which deviances count as equal.
const EQUAL: f64 = 0.005;

/// Mean deviances of the fit and of simpler models on held-out cells.
pub struct Comparison {
    /// Deviance of the fit; `None` without evaluation.
    pub fitted: Option<f64>,
    /// Deviances of the simpler models by name.
    pub simpler: Vec<(String, f64)>,
}

impl Comparison {
    fn best_simpler(&self) -> Option<&(String, f64)> {
        self.simpler.iter().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The name of the best model.
    pub fn best(&self) -> Option<&str> {
        let (fitted, (name, simpler)) = (self.fitted?, self.best_simpler()?);
        // A fit of rank 0 equals one of the simpler models up to rounding.
        Some(if (1.0 - 1e-9) * fitted <= *simpler { KIND } else { name })
    }

    /// The comparison in words.
    pub fn verdict(&self) -> Option<String> {
        let fitted = self.fitted.filter(|deviance| deviance.is_finite())?;
        let (name, best) = self.best_simpler().filter(|(_, deviance)| deviance.is_finite())?;
        let name = match name.as_str() {
            "row_column_effects" => "row and column effects".to_owned(),
            "effects_alone" => "the effects without factors".to_owned(),
            name => name.replace('_', " "),
        };
        let excess = fitted / best - 1.0;
        let percent = 100.0 * excess.abs();
        if excess <= -EQUAL {
            return Some(format!(
                "on held-out cells this fit has deviance {fitted:.4}, {percent:.1} % below the best \
                 simpler model ({name}, {best:.4})"
            ));
        }
        let (does, worse) = if excess < EQUAL {
            ("as well", String::new())
        } else {
            ("better", format!(" ({percent:.1} % worse)"))
        };
        Some(format!(
            "on held-out cells a simpler model does {does}: {name}, deviance {best:.4} against \
             {fitted:.4} of this fit{worse}"
        ))
    }
}

/// The section of the report; without totals and maps if the clients' cells are unknown.
pub fn section(
    table: &Completed,
    facts: Option<&ObservedTable>,
    column_totals: Option<&[Total]>,
    verdict: Option<&str>,
    selection: Option<&Selection>,
) -> Section {
    let mut exhibits = Vec::new();
    exhibits.extend(facts.map(|facts| heat(table, &facts.seen)));
    exhibits.extend(verdict.map(|text| Exhibit::Text { text: sentence(text) }));
    exhibits.extend(column_totals.map(|all| totals(table, all)));
    exhibits.extend(calibration(table, facts.filter(|_| !table.personal)));
    exhibits.extend(selection.map(tried));
    Section { title: "Completed table".into(), exhibits }
}

/// Totals of the columns.
fn totals(table: &Completed, totals: &[Total]) -> Exhibit {
    let point = |(label, own): (&String, &Total)| SeriesPoint {
        label: label.clone(),
        value: own.total,
        interval: (own.missing > 0).then_some(own.interval),
        note: format!("observed {}", figure(own.observed, 4)),
        count: own.missing,
    };
    Exhibit::Series(Series {
        title: "Totals per column".into(),
        caption: "Observed cells, and the mean of the imputations for missing cells".into(),
        counted: "missing cells".into(),
        points: table.columns.iter().zip(totals).map(point).collect(),
    })
}

/// Heat maps of means over blocks of cells.
fn heat(table: &Completed, seen: &Observations) -> Exhibit {
    let (rows, columns) = (table.rows.len(), table.columns.len());
    let (down, across) = (rows.min(BLOCKS_MAX), columns.min(BLOCKS_MAX));
    let mut observed = vec![(0.0, 0u32); down * across];
    let mut completed = observed.clone();
    let add = |sum: &mut (f64, u32), value: f64| {
        sum.0 += value;
        sum.1 += 1;
    };
    for row in 0..rows {
        for column in 0..columns {
            let block = row * down / rows * across + column * across / columns;
            let value = seen.value(row, column);
            if let Some(value) = value {
                add(&mut observed[block], value);
            }
            add(&mut completed[block], value.unwrap_or_else(|| table.mean(row, column)));
        }
    }
    // Four digits suffice for a colour.
    let rounded = |x: f64| format!("{x:.3e}").parse().unwrap_or(x);
    let map = |title: &str, caption: &str, sums: &[(f64, u32)]| HeatMap {
        title: title.into(),
        caption: caption.into(),
        values: sums
            .iter()
            .map(|&(sum, count)| (count > 0).then(|| rounded(sum / f64::from(count))))
            .collect(),
    };
    let first = "Blocks without observations are empty";
    Exhibit::Heat(Heat {
        rows: down,
        columns: across,
        shape: [rows, columns],
        names: [table.rows.clone(), table.columns.clone()],
        maps: vec![
            map("Observed", first, &observed),
            map("Completed", "Observed values, and estimates of the missing cells", &completed),
        ],
    })
}

/// Coverage of held-out cells by level, cross-checked. With personal effects, and on a network, only
/// the coverage at the level that the clients evaluated is known.
fn calibration(table: &Completed, facts: Option<&ObservedTable>) -> Option<Exhibit> {
    let points: Vec<[f64; 2]> = match facts.filter(|facts| !facts.held_out.is_empty()) {
        None => table
            .fit
            .calibration
            .as_ref()?
            .coverage
            .map(|known| [0.9, known.share])
            .into_iter()
            .collect(),
        Some(facts) => {
            let family = table.fit.model.family();
            let scores = scores(table, facts)?;
            let point = |level| Some([level, scores.coverage(family, level)?.share]);
            LEVELS.into_iter().filter_map(point).collect()
        }
    };
    (!points.is_empty()).then(|| {
        Exhibit::Lines(Lines {
            title: "Coverage of the intervals".into(),
            caption: format!("Intervals: {}", table.intervals_without_effects()),
            axis: "level of the interval".into(),
            bounds: Some([0.4, 1.0]),
            lines: vec![
                ("share of held-out cells covered".into(), points),
                ("nominal".into(), vec![[0.4, 0.4], [1.0, 1.0]]),
            ],
        })
    })
}

/// The scores by which the clients calibrated the intervals.
fn scores(table: &Completed, facts: &ObservedTable) -> Option<Scores> {
    let (fit, model) = (&table.fit, &table.fit.model);
    let delivered = Delivered { factors: fit.factors.clone(), ceiling: fit.ceiling.clone() };
    let in_units = |cells: &[Cell]| cells.iter().map(|c| model.in_units_of_fit(c)).collect();
    let mut scores = Scores::default();
    for [fitted, held_out] in facts.clients() {
        let data = Observed { cells: in_units(fitted), held_out: in_units(held_out) };
        for cell in &data.held_out {
            let (row, column) = (cell.row as usize, cell.column as usize);
            let at = (model.position(cell), fit.point(row, column, 0.0).observations);
            scores.add_held_out(model.family(), at, cell.value, fit.mean(row, column));
        }
        let mut add = |cell: &Cell, others: u32, mean: f64| {
            scores.add_thinned(model.family(), (model.position(cell), others), cell.value, mean);
        };
        delivered.thinned(model, &data, (fit.clients, 0.0), &mut add).ok()?;
    }
    Some(scores)
}

/// The candidates of cross-validation.
fn tried(selection: &Selection) -> Exhibit {
    let rows = selection.tried.iter().map(|(candidate, deviance, error, _)| {
        let chosen = if *candidate == selection.chosen { " (chosen)" } else { "" };
        vec![
            format!("{}{chosen}", candidate.rank),
            figure(candidate.lambda, 3),
            ridges(candidate),
            figure(*deviance, 5),
            figure(*error, 3),
        ]
    });
    let heads =
        ["rank", "lambda", "ridge on effects", "deviance per validation cell", "standard error"];
    Exhibit::Table(Rows {
        title: format!(
            "Cross-validation over {} candidates chose rank {}",
            selection.tried.len(),
            selection.chosen.rank
        ),
        heads: heads.map(String::from).to_vec(),
        rows: rows.collect(),
        collapsed: true,
        swatches: false,
    })
}

/// The ridges on the effects: one, or one for each term.
fn ridges(candidate: &Candidate) -> String {
    match &candidate.term_ridges[..] {
        [] => figure(candidate.lambda_effects, 3),
        own => own.iter().map(|ridge| figure(*ridge, 3)).collect::<Vec<_>>().join(", "),
    }
}

/// The text with a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase).into_iter().flatten();
    first.chain(letters).chain(['.']).collect()
}
