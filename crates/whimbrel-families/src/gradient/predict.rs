//! A fitted regression on new rows: values, or probabilities and classes.

use super::LOGISTIC;
use crate::failure::Result;
use crate::family::{ModelUse, Predicted, Predictions};
use crate::load::read_any;
use serde_json::{Value, json};
use whimbrel_core::ClientData;
use whimbrel_data::{Features, Input, Standardization, read_libsvm};
use whimbrel_models::convex::Problem;

/// A value, or the probability of the second class and the likelier class, of each row.
pub(super) fn predict(run: &ModelUse<'_>, file: &Input) -> Result<Predicted> {
    let object = run.model;
    let numbers = |value: &Value| -> Option<Vec<f64>> {
        value.as_array()?.iter().map(Value::as_f64).collect()
    };
    let names = run.columns()?;
    let weights = run.numbers("weights")?;
    let intercept = object.get("intercept").and_then(Value::as_bool).unwrap_or(false);
    if weights.len() != names.len() + usize::from(intercept) {
        return Err(run.broken("`weights` and `columns` do not fit each other"));
    }
    let logistic = object.get("kind").and_then(Value::as_str) == Some(LOGISTIC);
    let problem = if logistic {
        Problem::logistic(0.0, intercept)?
    } else {
        Problem::least_squares(0.0, intercept)?
    };
    let mut data = read_rows(file, &names, run.libsvm)?;
    if let Some(done) = object.get("standardization") {
        let list = |key: &str| done.get(key).and_then(numbers);
        let (Some(means), Some(scales)) = (list("means"), list("scales")) else {
            return Err(run.broken("`standardization` must hold `means` and `scales`"));
        };
        let standardization = Standardization { columns: names, means, scales, constant: 0 };
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
        let words = format!("mean prediction {mean:.6}");
        return Ok(Predicted {
            columns: vec![("prediction".into(), Predictions::Wide(found))],
            figures: vec![("mean_prediction", json!(mean))],
            words,
        });
    }
    let classes = object.get("classes").and_then(Value::as_array);
    let class = |second: bool| match classes.and_then(|c| c.get(usize::from(second))) {
        Some(Value::String(name)) => name.clone(),
        _ => (if second { "1" } else { "-1" }).into(),
    };
    let share = found.iter().filter(|p| **p >= 0.5).count() as f64 / rows as f64;
    let words = format!("{:.1} % in class {}", 100.0 * share, class(true));
    let of = found.iter().map(|p| usize::from(*p >= 0.5)).collect();
    let labels = Predictions::Labels { of, names: vec![class(false), class(true)] };
    let columns = vec![("label".into(), labels), ("probability".into(), Predictions::Wide(found))];
    Ok(Predicted { columns, figures: vec![("share", json!(share))], words })
}

fn read_rows(file: &Input, names: &[String], libsvm: bool) -> Result<ClientData> {
    if let (true, Some(file)) = (libsvm, file.file()) {
        return Ok(ClientData::Labelled(read_libsvm(file, Some(names.len()))?));
    }
    let data = read_any(file, None)?;
    Ok(ClientData::Table(data.table(&data.features(&Features::Listed(names))?)?))
}
