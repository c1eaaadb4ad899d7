//! Fits of completed data sets, pooled by Rubin's rules.

use super::results::aligned;
use crate::failure::Result;
use crate::family::refuse;
use crate::files::figure;
use crate::files::p_value;
use serde_json::{Map, Value, json};
use whimbrel_engine::metrics::number;
use whimbrel_models::glm::inference::Pooled;

/// The part of a run's summary that is pooled.
struct Fitted {
    terms: Vec<String>,
    /// Estimate and standard error of each term.
    estimates: Vec<(f64, f64)>,
    /// Rows, degrees of freedom, kind of errors.
    base: (u64, f64, String),
}

/// Pools the coefficients of runs, given by folder and `summary.json`. Returns a JSON object and its
/// table in words.
pub fn pool(runs: &[(String, Map<String, Value>)]) -> Result<(Value, String)> {
    let fits = runs.iter().map(|(name, run)| read(name, run)).collect::<Result<Vec<_>>>()?;
    let (Some(first), true) = (fits.first(), fits.len() > 1) else {
        return refuse("pooling needs two or more runs", "name the run of each completed data set");
    };
    for ((name, _), fit) in runs.iter().zip(&fits) {
        if fit.terms != first.terms || fit.base != first.base {
            let what = format!("{name} fits another model than {}, or other rows", runs[0].0);
            let hint = "pooled runs have the same job, but for the missing cells of their data";
            return refuse(what, hint);
        }
    }
    let each = first.terms.iter().enumerate().map(|(at, term)| {
        let of_term: Vec<(f64, f64)> = fits.iter().map(|fit| fit.estimates[at]).collect();
        Pooled::of(term, &of_term, first.base.1)
    });
    let all: Vec<Pooled> = each.collect();
    let object = json!({
        "imputations": fits.len(),
        "rows_used": first.base.0,
        "errors": first.base.2,
        "coefficients": all.iter().map(as_json).collect::<Vec<_>>(),
    });
    let heads =
        ["term", "estimate", "se", "t", "df", "p", "2.5 %", "97.5 %", "missing information"];
    let mut cells = vec![heads.map(String::from).to_vec()];
    cells.extend(all.iter().map(cells_of));
    let (count, rows, errors) = (fits.len(), first.base.0, &first.base.2);
    let headline = format!("{count} completed data sets of {rows} rows; {errors} errors");
    Ok((object, format!("{headline}\n{}", aligned(&cells))))
}

fn read(name: &str, run: &Map<String, Value>) -> Result<Fitted> {
    let listed = run.get("coefficients").and_then(Value::as_array);
    let row = |row: &Value| {
        let number = |key: &str| row[key].as_f64();
        Some((row["term"].as_str()?.to_owned(), (number("estimate")?, number("se")?)))
    };
    let found = listed.and_then(|rows| rows.iter().map(row).collect::<Option<Vec<_>>>());
    let converged = run.get("ending").and_then(Value::as_str) == Some("converged");
    let (Some(found), true) = (found, converged) else {
        let what = format!("{name} has no converged regression with standard errors");
        return refuse(what, "pool runs of kind = \"glm\" or \"cox\" by newton");
    };
    let (terms, estimates) = found.into_iter().unzip();
    let of = |key: &str| run.get(key).cloned().unwrap_or_default();
    let base = (
        of("rows_used").as_u64().unwrap_or(0),
        of("df_residual").as_f64().unwrap_or(f64::INFINITY),
        of("errors").as_str().unwrap_or_default().to_owned(),
    );
    Ok(Fitted { terms, estimates, base })
}

fn as_json(pooled: &Pooled) -> Value {
    let row = &pooled.coefficient;
    json!({
        "term": row.term,
        "estimate": number(row.estimate),
        "se": number(row.se),
        "statistic": number(row.statistic),
        "df": number(pooled.degrees),
        "p": number(row.p),
        "low": number(row.low),
        "high": number(row.high),
        "missing_information": number(pooled.missing),
    })
}

fn cells_of(pooled: &Pooled) -> Vec<String> {
    let row = &pooled.coefficient;
    let mut cells = vec![row.term.clone()];
    cells.extend([row.estimate, row.se, row.statistic, pooled.degrees].map(|x| figure(x, 5)));
    cells.push(p_value(row.p));
    cells.extend([row.low, row.high, pooled.missing].map(|x| figure(x, 5)));
    cells
}
