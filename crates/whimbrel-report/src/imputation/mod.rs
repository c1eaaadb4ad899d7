//! The part of a report that is about a completed table: totals, the table itself, how far its
//! intervals can be trusted, and whether a simpler model would have done.

mod heat;
mod loess;
mod totals;
mod view;

pub use view::{Calibration, ColumnTotal, Contender, HeatView, ImputationView};

use crate::format::{MISSING, escape, number};
use crate::group::Group;
use crate::plot::style::swatch;
use crate::plot::{AxisSpec, LineChart, Scale, Series};
use crate::sections::{part_name, section};
use serde_json::{Map, Value};

/// Deviances that are this near are the same.
const SAME: f64 = 0.005;

/// A simpler model that is at most this much worse is said to do as well.
const AS_GOOD: f64 = 0.02;

/// The section, one part for each job.
pub(crate) fn completed_tables(groups: &[Group]) -> String {
    let mut html = String::new();
    for group in groups {
        let Some(view) = &group.runs[0].imputation else { continue };
        html += "<div class=\"part\">\n";
        html += &part_name(groups, group);
        html += &totals_figure(view);
        html += "<div class=\"charts\">\n";
        html += &calibration(view);
        html += &view.heat.as_ref().map_or(String::new(), heat::heat_maps);
        html += "</div>\n";
        html += &contenders(&view.contenders);
        html += &selection(&group.runs[0].summary);
        html += "</div>\n";
    }
    section("Completed table", html)
}

fn totals_figure(view: &ImputationView) -> String {
    let svg = totals::totals(&view.columns);
    if svg.is_empty() {
        return svg;
    }
    let whiskers =
        if view.columns.iter().any(|c| c.lower.is_some()) { ", with 90 % intervals" } else { "" };
    format!(
        "<figure class=\"wide\"><figcaption><h3>Totals per column</h3><p>Observed cells as observed, \
         missing ones as estimated{whiskers}; the curve is a local regression (LOESS) over {} of \
         the columns at a time</p></figcaption>{svg}</figure>\n",
        escape(&format!("{:.0} %", 100.0 * loess::SPAN)),
    )
}

/// Nominal against actual coverage.
fn calibration(view: &ImputationView) -> String {
    let points: Vec<[f64; 2]> = view
        .calibration
        .iter()
        .filter(|c| (0.0..=1.0).contains(&c.nominal) && (0.0..=1.0).contains(&c.covered))
        .map(|c| [c.nominal, c.covered])
        .collect();
    if points.is_empty() {
        return String::new();
    }
    let axis = |label: &str| AxisSpec {
        label: label.into(),
        scale: Scale::Linear,
        bounds: Some([0.4, 1.0]),
    };
    let line = |label: &str, points: Vec<[f64; 2]>, style| Series {
        label: label.into(),
        points,
        style,
        ..Series::default()
    };
    let series = vec![line("covered", points, 0), line("ideal", vec![[0.4, 0.4], [1.0, 1.0]], 6)];
    let title = "Intervals on cells kept out";
    let chart = LineChart::new(title, axis("level of the interval"), axis(""), series);
    let origin = match view.intervals.as_str() {
        "" => String::new(),
        words => format!(". Intervals: {}", escape(words)),
    };
    format!(
        "<figure><figcaption><h3>Are the intervals honest?</h3><p>{} share of kept-out cells inside, \
         {} what the level promises{origin}</p></figcaption>{}</figure>\n",
        swatch(0),
        swatch(6),
        chart.svg(),
    )
}

/// The fitted model among simpler ones, and a plain sentence about who wins.
fn contenders(list: &[Contender]) -> String {
    let known: Vec<&Contender> = list.iter().filter(|c| c.deviance.is_finite()).collect();
    let best = known.iter().map(|c| c.deviance).fold(f64::INFINITY, f64::min);
    let Some(fitted) = known.iter().find(|c| c.fitted) else { return String::new() };
    let simpler =
        known.iter().filter(|c| !c.fitted).min_by(|a, b| a.deviance.total_cmp(&b.deviance));
    let verdict = match simpler {
        None => String::new(),
        Some(other) if other.deviance < fitted.deviance * (1.0 - SAME) => format!(
            "A simpler model does better on the cells kept out: <strong>{}</strong>. The deviance of \
             this fit is {} higher.",
            escape(&other.name),
            percent(fitted.deviance / other.deviance - 1.0),
        ),
        Some(other) if other.deviance <= fitted.deviance * (1.0 + AS_GOOD) => format!(
            "On the cells kept out a simpler model, <strong>{}</strong>, does as well to within {}.",
            escape(&other.name),
            percent(AS_GOOD),
        ),
        Some(other) => format!(
            "On the cells kept out the deviance of this fit is {1} lower than that of the best \
             simpler model ({0}).",
            escape(&other.name),
            percent(1.0 - fitted.deviance / other.deviance),
        ),
    };
    let rows: String = known
        .iter()
        .map(|c| {
            format!(
                "<tr><th scope=\"row\">{}{}</th><td>{}</td><td>{}</td></tr>\n",
                escape(&c.name),
                if c.fitted { " <span class=\"quiet\">(this run)</span>" } else { "" },
                number(c.deviance, 5),
                number(c.deviance / best, 4),
            )
        })
        .collect();
    format!(
        "<p class=\"verdict\">{verdict}</p>\n<div class=\"scroll\"><table class=\"contenders\">\
         <thead><tr><th scope=\"col\">model</th><th scope=\"col\">deviance per kept-out cell</th><th \
         scope=\"col\">times the best</th></tr></thead><tbody>{rows}</tbody></table></div>\n"
    )
}

/// What cross-validation tried, and what it chose: `selection` of the summary.
fn selection(summary: &Map<String, Value>) -> String {
    let Some(tried) = summary.get("selection").and_then(Value::as_array) else {
        return String::new();
    };
    let figure = |of: &Value, key: &str| of.get(key).and_then(Value::as_f64);
    let chosen = |of: &Value| match figure(of, "share").unwrap_or(0.0) {
        0.0 => String::new(),
        1.0 => " <span class=\"quiet\">(chosen)</span>".into(),
        share => format!(" <span class=\"quiet\">({} of the estimates)</span>", percent(share)),
    };
    let text = |of: &Value, key: &str, digits| {
        figure(of, key).map_or(MISSING.into(), |v| number(v, digits))
    };
    let rows: String = tried
        .iter()
        .map(|of| {
            format!(
                "<tr><th scope=\"row\">{}{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 </tr>\n",
                text(of, "rank", 4),
                chosen(of),
                text(of, "lambda", 3),
                escape(of.get("effects").and_then(Value::as_str).unwrap_or(MISSING)),
                text(of, "lambda_effects", 3),
                text(of, "deviance", 5),
                text(of, "standard_error", 3),
            )
        })
        .collect();
    let rank =
        figure(&Value::Object(summary.clone()), "rank").map_or(MISSING.into(), |r| number(r, 4));
    let mixed = match summary.get("share").and_then(Value::as_f64) {
        Some(share) if share < 1.0 => format!(
            " It is not clear that it is better than rank 0: estimates are {} of the one and {} of the other.",
            percent(share),
            percent(1.0 - share)
        ),
        _ => String::new(),
    };
    format!(
        "<p class=\"verdict\">Cross-validation over {} candidates chose rank {rank}.{mixed}</p>\n<details>\
         <summary>What was tried</summary><div class=\"scroll\"><table class=\"contenders\"><thead>\
         <tr><th scope=\"col\">rank</th><th scope=\"col\">lambda</th><th scope=\"col\">effects</th>\
         <th scope=\"col\">ridge on effects</th><th scope=\"col\">deviance per validation cell</th><th scope=\"col\">standard error</th></tr>\
         </thead><tbody>{rows}</tbody></table></div></details>\n",
        tried.len(),
    )
}

fn percent(share: f64) -> String {
    format!("{} %", number(100.0 * share, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contender(name: &str, deviance: f64, fitted: bool) -> Contender {
        Contender { name: name.into(), deviance, fitted }
    }

    #[test]
    fn the_verdict_follows_the_figures() {
        let said = |fitted: f64| {
            contenders(&[
                contender("low rank", fitted, true),
                contender("column means", 2.0, false),
                contender("effects", 1.5, false),
            ])
        };
        assert!(said(1.0).contains("is 33 % lower than that of the best simpler model (effects)"));
        assert!(said(1.49).contains("does as well to within 2 %"));
        assert!(
            said(2.0).contains("<strong>effects</strong>. The deviance of this fit is 33 % higher")
        );
        assert_eq!(contenders(&[contender("effects", 1.0, false)]), "");
    }
}
