//! `imputation.json`: a completed table made small, for pictures.

use super::{Completed, Observations};
use serde_json::{Value, json};
use std::sync::Arc;
use whimbrel_core::{Cell, Cells, ClientData};
use whimbrel_engine::metrics::number;
use whimbrel_models::lowrank::Scores;

/// The heat map has at most so many blocks on each side.
const BLOCKS_MAX: usize = 200;
/// Levels at which intervals are checked.
const LEVELS: [f64; 10] = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95];

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

/// A model judged by the cells that were kept out.
#[derive(Clone, Debug, PartialEq)]
pub struct Contender {
    /// Its name.
    pub name: String,
    /// Its mean deviance there.
    pub deviance: f64,
    /// Whether it is the model of the run.
    pub fitted: bool,
}

/// The content of `imputation.json`; without totals and maps where nobody has seen the clients'
/// cells.
pub fn imputation_json(
    table: &Completed,
    facts: Option<&TableFacts>,
    personal: bool,
    contenders: &[Contender],
) -> Value {
    let contenders: Vec<Value> = contenders
        .iter()
        .map(|c| json!({ "name": c.name, "deviance": number(c.deviance), "fitted": c.fitted }))
        .collect();
    let mut view = json!({
        "calibration": calibration(table, facts.filter(|_| !personal)),
        "contenders": contenders,
        "intervals": table.intervals_without_effects(personal),
    });
    if let Some(facts) = facts {
        let seen = facts.observations();
        view["columns"] = column_totals(table, &seen).into();
        view["heat"] = heat(table, &seen);
    }
    view
}

/// The total of each column: observed cells as observed, the others as estimated.
fn column_totals(table: &Completed, seen: &Observations) -> Vec<Value> {
    let total = |column: usize| {
        let (mut observed, mut estimated, mut missing) = (0.0, 0.0, 0u64);
        for row in 0..table.rows.len() {
            match seen.value(row, column) {
                Some(value) => observed += value,
                None => {
                    estimated += table.estimate(row, column).mean;
                    missing += 1;
                }
            }
        }
        json!({
            "label": table.columns[column],
            "estimated_total": number(observed + estimated),
            "observed_total": number(observed),
            "missing": missing,
        })
    };
    (0..table.columns.len()).map(total).collect()
}

/// Means over blocks of cells.
fn heat(table: &Completed, seen: &Observations) -> Value {
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
            add(&mut completed[block], value.unwrap_or_else(|| table.estimate(row, column).mean));
        }
    }
    let means = |sums: &[(f64, u32)]| -> Vec<Value> {
        let mean = |&(sum, count): &(f64, u32)| match count {
            0 => Value::Null,
            n => number(rounded(sum / f64::from(n))),
        };
        sums.iter().map(mean).collect()
    };
    json!({
        "rows": down, "columns": across, "shape": [rows, columns],
        "observed": means(&observed), "completed": means(&completed),
    })
}

/// Four digits are enough for a colour.
fn rounded(x: f64) -> f64 {
    format!("{x:.3e}").parse().unwrap_or(x)
}

/// How often intervals of each level hold held-out cells, each checked against the others. Without
/// cells that the table alone explains (personal effects and, on a network, cells stay with their
/// clients), only the level that the clients counted is known.
fn calibration(table: &Completed, facts: Option<&TableFacts>) -> Vec<Value> {
    let point = |level: f64, covered: f64| json!({ "nominal": level, "covered": number(covered) });
    let Some(facts) = facts.filter(|facts| !facts.held_out.is_empty()) else {
        let found = table.fit.calibration.as_ref().and_then(|c| c.coverage);
        return found.map(|covered| point(0.9, covered)).into_iter().collect();
    };
    let mut scores = Scores::default();
    for cell in &facts.held_out {
        let (row, column) = (cell.row as usize, cell.column as usize);
        let position = (row * facts.columns.len() + column) as u64;
        let mean = table.fit.mean(row, column);
        scores.add_held_out(table.fit.model.family(), position, cell.value, mean);
    }
    LEVELS.into_iter().filter_map(|level| Some(point(level, scores.coverage(level)?))).collect()
}
