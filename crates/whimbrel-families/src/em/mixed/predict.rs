//! Predictions of a mixture over a mixed table, with imputation of missing cells.

use super::keys::{MixedKeys, NUMERICS};
use crate::failure::Result;
use crate::family::{ModelUse, Predicted, Predictions};
use crate::job::DataSource;
use crate::usage::{mixture_columns, texts};
use serde_json::{Value, json};
use std::sync::Arc;
use whimbrel_core::Table;
use whimbrel_data::{CsvOptions, Dataset, Input, MixedColumn};
use whimbrel_models::mixed::{
    ColumnKind, Filled, Mixed, MixedParameters, MixedPrediction, MixedSettings, Numeric,
};

/// Nominal coverage of the intervals of missing numbers and counts.
pub(super) const COVERAGE: f64 = 0.9;

/// Rows as read, and their cells in the model's columns.
pub(super) struct Rows {
    pub data: Arc<Dataset>,
    pub table: Table,
}

/// Reads rows for a mixture over these columns; with `verbatim`, the other columns are read as text.
pub(super) fn read_rows(
    run: &ModelUse<'_>,
    file: &Input,
    columns: &[MixedColumn],
    verbatim: bool,
) -> Result<Rows> {
    let options = run.csv_options();
    let client = match &run.job.data.source {
        DataSource::Csv(csv) => csv.partition.columns().first().map(|name| (*name).clone()),
        _ => None,
    };
    let leveled = columns.iter().filter(|column| !column.levels.is_empty());
    let mut text: Vec<String> = leveled.map(|column| column.name.clone()).chain(client).collect();
    if verbatim {
        let found = file.read(&options)?;
        let others = found.columns().iter().map(|column| &column.name);
        text.extend(others.filter(|name| columns.iter().all(|c| c.name != **name)).cloned());
    }
    let data = file.read(&CsvOptions { text, ..options })?;
    Ok(Rows { table: data.mixed_table(columns)?, data })
}

/// The likeliest level, the first of ties.
pub(super) fn likeliest(probabilities: &[f64]) -> usize {
    let better = |best, l| if probabilities[l] > probabilities[best] { l } else { best };
    (1..probabilities.len()).fold(0, better)
}

pub(super) fn predict(keys: &MixedKeys, run: &ModelUse<'_>, file: &Input) -> Result<Predicted> {
    let (model, theta, columns) = load_model(keys, run)?;
    let Rows { table, .. } = read_rows(run, file, &columns, false)?;
    let bound = model.data_from_rows(&table.values)?;
    let found = model.predict(&theta, &bound, COVERAGE)?;
    let (k, rows) = (model.components(), table.rows());
    let mean = found.log_density.iter().sum::<f64>() / rows as f64;
    let log_density = found.log_density.clone();
    let mut out = mixture_columns(&found.labels, log_density, &found.responsibilities, k);
    let width = columns.len();
    for (at, column) in columns.iter().enumerate() {
        let cells: Vec<f64> = table.values.iter().skip(at).step_by(width).copied().collect();
        if cells.iter().any(|x| x.is_nan()) {
            out.extend(completed(column, at, cells, &found));
        }
    }
    let gaps = found.filled.len();
    Ok(Predicted {
        columns: out,
        figures: vec![("mean_log_density", json!(mean)), ("filled_cells", json!(gaps))],
        words: match gaps {
            0 => format!("mean log-density {mean:.6}"),
            _ => format!(
                "mean log-density {mean:.6}; {gaps} missing cells imputed, with 90 % intervals"
            ),
        },
    })
}

/// A completed column: numbers and counts with interval limits, levels with the probability of the
/// likeliest level.
fn completed(
    column: &MixedColumn,
    at: usize,
    cells: Vec<f64>,
    found: &MixedPrediction,
) -> Vec<(String, Predictions)> {
    let (mut low, mut value, mut high) = (cells.clone(), cells.clone(), cells);
    let mut surety = vec![1.0; value.len()];
    for filled in &found.filled {
        match filled {
            Filled::Scalar { place: (row, j), mean, interval, .. } if *j == at => {
                (low[*row], value[*row], high[*row]) = (interval[0], *mean, interval[1]);
            }
            Filled::Levels { place: (row, j), probabilities } if *j == at => {
                let best = likeliest(probabilities);
                (value[*row], surety[*row]) = (best as f64, probabilities[best]);
            }
            _ => {}
        }
    }
    let name = &column.name;
    if column.levels.is_empty() {
        return vec![
            (name.clone(), Predictions::Wide(value)),
            (format!("{name}_low"), Predictions::Wide(low)),
            (format!("{name}_high"), Predictions::Wide(high)),
        ];
    }
    let of = value.iter().map(|level| *level as usize).collect();
    vec![
        (name.clone(), Predictions::Labels { of, names: column.levels.clone() }),
        (format!("{name}_p"), Predictions::Wide(surety)),
    ]
}

/// The mixture of a run, and its columns.
pub(super) fn load_model(
    keys: &MixedKeys,
    run: &ModelUse<'_>,
) -> Result<(Mixed, MixedParameters, Vec<MixedColumn>)> {
    let names = run.columns()?;
    let kinds = run.names("column_kinds");
    let levels = run.model.get("column_levels").and_then(Value::as_array);
    let levels: Option<Vec<Vec<String>>> =
        levels.and_then(|levels| levels.iter().map(texts).collect());
    let (Some(kinds), Some(levels)) = (kinds, levels) else {
        return Err(run.broken("`column_kinds` and `column_levels` must be lists"));
    };
    if kinds.len() != names.len() || levels.len() != names.len() {
        return Err(
            run.broken("`columns`, `column_kinds` and `column_levels` must have the same length")
        );
    }
    let numeric = match run.model.get("numeric").and_then(Value::as_str) {
        Some(word) if word == NUMERICS.name(&Numeric::Full) => Numeric::Full,
        _ => Numeric::Diagonal,
    };
    let mut columns = Vec::new();
    let mut forms = Vec::new();
    for ((name, kind), levels) in names.into_iter().zip(&kinds).zip(levels) {
        let count = kind == "count";
        forms.push(match levels.len() {
            0 if count => ColumnKind::Count,
            0 => ColumnKind::Number,
            levels => ColumnKind::Levels(levels),
        });
        columns.push(MixedColumn { name, count, levels });
    }
    let tensors = run.tensors()?;
    let of = |name: &str| tensors.tensor(name).map_or(&[][..], |tensor| &tensor.values);
    let settings = MixedSettings {
        components: of("weights").len(),
        columns: forms,
        numeric,
        ..keys.settings.clone()
    };
    let model = Mixed::new(settings)?;
    let theta = model.parameters(
        of("weights"),
        of("means"),
        of("covariances"),
        of("rates"),
        of("levels"),
    )?;
    Ok((model, theta, columns))
}
