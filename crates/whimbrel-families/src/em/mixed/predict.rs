//! Predictions of a mixture over a mixed table, with imputation of missing cells.

use super::keys::{MixedKeys, NUMERICS};
use crate::failure::Result;
use crate::family::{ModelUse, Predicted, Predictions};
use crate::usage::{mixture_columns, texts};
use serde_json::{Value, json};
use whimbrel_data::{CsvOptions, Input, MixedColumn};
use whimbrel_models::mixed::{
    ColumnKind, Filled, Mixed, MixedParameters, MixedPrediction, MixedSettings, Numeric,
};

/// Nominal coverage of the intervals of missing numbers and counts.
const COVERAGE: f64 = 0.9;

pub(super) fn predict(keys: &MixedKeys, run: &ModelUse<'_>, file: &Input) -> Result<Predicted> {
    let (model, theta, columns) = load_model(keys, run)?;
    let leveled = columns.iter().filter(|column| !column.levels.is_empty());
    let text = leveled.map(|column| column.name.clone()).collect();
    let data = file.read(&CsvOptions {
        text,
        spelling: run.job.data.spelling(),
        ..CsvOptions::default()
    })?;
    let table = data.mixed_table(&columns)?;
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
    let mut likeliest = vec![1.0; value.len()];
    for filled in &found.filled {
        match filled {
            Filled::Scalar { place: (row, j), mean, interval } if *j == at => {
                (low[*row], value[*row], high[*row]) = (interval[0], *mean, interval[1]);
            }
            Filled::Levels { place: (row, j), probabilities } if *j == at => {
                let best = (1..probabilities.len()).fold(0, |best, l| {
                    if probabilities[l] > probabilities[best] { l } else { best }
                });
                (value[*row], likeliest[*row]) = (best as f64, probabilities[best]);
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
        (format!("{name}_p"), Predictions::Wide(likeliest)),
    ]
}

/// The mixture of a run, and its columns.
fn load_model(
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
