//! Predictions of a regression: numbers, or probabilities and classes.

use super::{GradientFit, LOGISTIC};
use crate::failure::Result;
use crate::family::{FitUse, ModelUse, Predicted, Predictions};
use crate::load::read_any;
use serde_json::{Value, json};
use whimbrel_core::ClientData;
use whimbrel_data::{Features, Input, read_libsvm};
use whimbrel_models::convex::Problem;

impl FitUse for GradientFit {
    /// A number, or the probability of the second class and the likelier class, for each row.
    fn predict(&self, run: &ModelUse<'_>, rows: &Input) -> Result<Predicted> {
        let object = run.model;
        let names = run.columns()?;
        let weights = run.numbers("weights")?;
        let intercept = object.get("intercept").and_then(Value::as_bool).unwrap_or(false);
        if weights.len() != names.len() + usize::from(intercept) {
            return Err(run.broken("`weights` and `columns` do not match"));
        }
        let logistic = object.get("kind").and_then(Value::as_str) == Some(LOGISTIC);
        let problem = if logistic {
            Problem::logistic(0.0, intercept)?
        } else {
            Problem::least_squares(0.0, intercept)?
        };
        let mut data = read_rows(rows, &names, run)?;
        if let Some(standardization) = run.standardization()? {
            match &mut data {
                ClientData::Table(table) => standardization.apply_table(table)?,
                ClientData::Labelled(labelled) => standardization.apply(labelled)?,
                ClientData::Stream(_) | ClientData::Samples(_) | ClientData::Cells(_) => {}
            }
        }
        let examples = problem.bind_features(&data)?;
        let mut found = vec![0.0; examples.rows()];
        problem.predict(&weights, &examples, &mut found)?;
        let rows = found.len();
        if !logistic {
            let mean = found.iter().sum::<f64>() / rows as f64;
            return Ok(Predicted {
                columns: vec![("prediction".into(), Predictions::Wide(found))],
                figures: vec![("mean_prediction", json!(mean))],
                words: format!("mean prediction {mean:.6}"),
            });
        }
        let names = run.names("classes").filter(|names| names.len() == 2);
        let names = names.unwrap_or_else(|| vec!["-1".into(), "1".into()]);
        let share = found.iter().filter(|p| **p >= 0.5).count() as f64 / rows as f64;
        let words = format!("{:.1} % in class {}", 100.0 * share, names[1]);
        let of = found.iter().map(|p| usize::from(*p >= 0.5)).collect();
        let columns = vec![
            ("label".into(), Predictions::Labels { of, names }),
            ("probability".into(), Predictions::Wide(found)),
        ];
        Ok(Predicted { columns, figures: vec![("share", json!(share))], words })
    }
}

fn read_rows(file: &Input, names: &[String], run: &ModelUse<'_>) -> Result<ClientData> {
    if let (true, Some(file)) = (run.libsvm, file.file()) {
        return Ok(ClientData::Labelled(read_libsvm(file, Some(names.len()))?));
    }
    let data = read_any(file, &run.csv_options())?;
    Ok(ClientData::Table(data.table(&data.features(&Features::Listed(names))?)?))
}
