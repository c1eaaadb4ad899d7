//! Predictions of a regression: means, or probabilities and classes.

use super::RegressionFit;
use crate::failure::Result;
use crate::family::{FitUse, ModelUse, Predicted, Predictions, refuse};
use crate::usage::texts;
use serde_json::{Value, json};
use whimbrel_core::Table;
use whimbrel_data::{CsvOptions, Input, MixedColumn};
use whimbrel_models::glm::{Family, Model, Rows, Scaling};

impl FitUse for RegressionFit {
    /// The mean of each row, or the probabilities of the classes; NaN for rows with missing cells.
    fn predict(&self, run: &ModelUse<'_>, rows: &Input) -> Result<Predicted> {
        let columns = run.columns()?;
        let levels = run.model.get("column_levels").and_then(Value::as_array);
        let levels: Option<Vec<Vec<String>>> =
            levels.and_then(|levels| levels.iter().map(texts).collect());
        let Some(levels) = levels.filter(|levels| levels.len() == columns.len()) else {
            return Err(run.broken("`column_levels` must have a list for each column"));
        };
        if self.keys.by_client {
            return refuse(
                "each client keeps its own intercept, so a prediction needs it",
                "fit without by_client to predict",
            );
        }
        let model = self.model(run.job, &columns, &levels)?;
        let theta = run.numbers("coefficients")?;
        if theta.len() != model.parameters() {
            return Err(run.broken("`coefficients` and `columns` do not match"));
        }
        let table = read(rows, &model, &levels, run)?;
        let fixed = run.numbers("fixed")?;
        let absent: Vec<usize> = fixed.iter().filter_map(|at| model.column(*at as usize)).collect();
        let table = without_levels(table, &model, &absent)?;
        let complete = model.design.rows(&table, model.family, false)?;
        let k = model.design.width();
        let plain = Scaling { means: vec![0.0; k], scales: vec![1.0; k] };
        let etas = model.predict(&complete, &plain, &theta);
        Ok(predicted(&model, etas, &complete, table.rows()))
    }
}

/// The rows with the features of the model; other columns are missing.
fn read(rows: &Input, model: &Model, levels: &[Vec<String>], run: &ModelUse<'_>) -> Result<Table> {
    let design = &model.design;
    let mut places: Vec<usize> =
        design.terms.iter().flat_map(|term| &term.factors).map(|factor| factor.column).collect();
    places.extend(design.offset);
    places.sort_unstable();
    places.dedup();
    let column = |at: &usize| MixedColumn {
        name: design.columns[*at].clone(),
        count: false,
        levels: levels[*at].clone(),
    };
    let used: Vec<MixedColumn> = places.iter().map(column).collect();
    let text = used.iter().filter(|c| !c.levels.is_empty()).map(|c| c.name.clone()).collect();
    let data = rows.read(&CsvOptions { text, ..run.csv_options() })?;
    let found = data.mixed_table(&used)?;
    let width = design.columns.len();
    let mut values = vec![f64::NAN; data.rows() * width];
    for row in 0..found.rows() {
        for (at, x) in places.iter().zip(found.row(row)) {
            values[row * width + at] = *x;
        }
    }
    Ok(Table::new(design.columns.clone(), values)?)
}

/// The table without the rows whose levels have no coefficient: their predictions are missing.
fn without_levels(mut table: Table, model: &Model, absent: &[usize]) -> Result<Table> {
    if absent.is_empty() {
        return Ok(table);
    }
    let complete = model.design.rows(&table, model.family, false)?;
    let (width, k) = (table.width(), model.design.width());
    for (row, x) in complete.kept.iter().zip(complete.x.chunks_exact(k)) {
        if absent.iter().any(|at| x[*at] != 0.0) {
            table.values[*row as usize * width..][..width].fill(f64::NAN);
        }
    }
    Ok(table)
}

fn predicted(model: &Model, etas: Vec<Vec<f64>>, rows: &Rows, count: usize) -> Predicted {
    let spread = |values: &[f64]| {
        let mut all = vec![f64::NAN; count];
        rows.kept.iter().zip(values).for_each(|(at, x)| all[*at as usize] = *x);
        Predictions::Wide(all)
    };
    let missing = count - rows.len();
    let gaps = match missing {
        0 => String::new(),
        n => format!("; {n} rows with missing cells or unknown levels have no prediction"),
    };
    if let Family::Multinomial { .. } = model.family {
        let shares = model.shares(etas);
        let classes = &model.design.classes;
        let columns =
            classes.iter().zip(&shares).map(|(class, p)| (format!("p_{class}"), spread(p)));
        let words = format!("probabilities of {} classes{gaps}", classes.len());
        return Predicted {
            columns: columns.collect(),
            figures: vec![("missing", json!(missing))],
            words,
        };
    }
    let means: Vec<f64> = etas[0].iter().map(|eta| model.family.mean(*eta)).collect();
    let mean = means.iter().sum::<f64>() / means.len().max(1) as f64;
    let name = match model.family {
        Family::Binomial => "probability",
        Family::Cox => "relative_hazard",
        _ => "prediction",
    };
    Predicted {
        columns: vec![(name.into(), spread(&means))],
        figures: vec![("mean_prediction", json!(mean)), ("missing", json!(missing))],
        words: format!("mean {name} {mean:.6}{gaps}"),
    }
}
