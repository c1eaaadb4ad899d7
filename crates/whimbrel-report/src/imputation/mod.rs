//! The part of a report that is about a completed table: totals, the table itself, how far its
//! intervals can be trusted, and whether a simpler model would have done.

mod heat;
mod loess;
mod totals;
mod view;

pub use view::{Calibration, ColumnTotal, Contender, HeatView, ImputationView};

use crate::format::{escape, number};
use crate::group::Group;
use crate::plot::style::swatch;
use crate::plot::{AxisSpec, LineChart, Scale, Series};
use crate::sections::{part_name, section};

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
        Some(other) if other.deviance < fitted.deviance => format!(
            "A simpler model does better on the cells kept out: <strong>{}</strong>, by {}.",
            escape(&other.name),
            percent(1.0 - other.deviance / fitted.deviance),
        ),
        Some(other) if other.deviance <= fitted.deviance * (1.0 + AS_GOOD) => format!(
            "On the cells kept out a simpler model, <strong>{}</strong>, does as well to within {}.",
            escape(&other.name),
            percent(AS_GOOD),
        ),
        Some(other) => format!(
            "On the cells kept out the fitted model beats the best simpler one ({}) by {}.",
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
        assert!(said(1.0).contains("beats the best simpler one (effects) by 33 %"));
        assert!(said(1.49).contains("does as well to within 2 %"));
        assert!(said(2.0).contains("<strong>effects</strong>, by 25 %"));
        assert_eq!(contenders(&[contender("effects", 1.0, false)]), "");
    }
}
