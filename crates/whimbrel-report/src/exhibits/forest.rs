//! Forest plot: a line per label, with its value and interval.

use super::series::{widths, words};
use crate::format::{escape, shorten};
use crate::plot::{Axis, AxisSpec, PlotArea, Scale, open, px};
use whimbrel_core::declare::Series;

/// Height of a line, in pixels.
const LINE: f64 = 24.0;
/// Most lines.
const LINES: usize = 60;

/// The figure, as wide as the page or a narrow screen; values beyond the first [`LINES`] are in the
/// table only.
pub fn figure(series: &Series) -> String {
    widths(series, [40, 18].map(|letters| move |width: f64| svg(series, width, letters)))
}

fn svg(series: &Series, width: f64, letters_max: usize) -> String {
    let shown = &series.points[..series.points.len().min(LINES)];
    let ends = |at: usize| shown.iter().filter_map(move |point| Some(point.interval?[at]));
    let values = shown.iter().map(|point| point.value).chain(ends(0)).chain(ends(1)).chain([0.0]);
    let values: Vec<f64> = values.collect();
    if shown.is_empty() || !values.iter().all(|value| value.abs() <= 1e300) {
        return String::new();
    }
    let x = Axis::fit(
        &AxisSpec::new("", Scale::Linear),
        values.into_iter(),
        (width / 145.0).max(4.0) as usize,
        0.04,
    );
    let label = |text: &str| shorten(text, letters_max);
    let letters = shown.iter().map(|point| label(&point.label).chars().count()).max().unwrap_or(0);
    let left = 24.0 + 7.0 * letters as f64;
    let height = LINE * shown.len() as f64;
    let frame = PlotArea { left, top: 8.0, width: width - left - 16.0, height };
    let mut svg = format!("<g class=\"grid\">{}", frame.x_axis(&x, ""));
    let across = |value: f64| x.position(value).map(|at| px(frame.x(at)));
    if let Some(zero) = across(0.0) {
        svg += &format!("<path class=\"base\" d=\"M{zero} {}V{}\"/>", px(8.0), px(frame.bottom()));
    }
    for (line, point) in shown.iter().enumerate() {
        let y = px(8.0 + LINE * (line as f64 + 0.5));
        svg += &format!(
            "<text class=\"tick\" x=\"{}\" y=\"{y}\" dy=\".33em\" text-anchor=\"end\">{}</text>",
            px(left - 10.0),
            escape(&label(&point.label)),
        );
        let ends = point.interval.and_then(|[low, high]| Some((across(low)?, across(high)?)));
        if let Some((low, high)) = ends {
            svg += &format!("<path class=\"whisker\" d=\"M{low} {y}H{high}\"/>");
        }
        if let Some(at) = across(point.value) {
            svg += &format!(
                "<circle class=\"dot\" cx=\"{at}\" cy=\"{y}\" r=\"3.4\"><title>{}</title></circle>",
                escape(&words(point)),
            );
        }
    }
    let about = shown.iter().map(words).collect::<Vec<_>>().join("; ");
    let head = open("totals s0", "", [width, height + 36.0], &series.title, &about);
    head + &svg + "</g></svg>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::declare::SeriesPoint;

    #[test]
    fn a_line_per_term_with_its_interval() {
        let point = |label: &str, value: f64| SeriesPoint {
            label: label.into(),
            value,
            interval: Some([value - 1.0, value + 1.0]),
            ..SeriesPoint::default()
        };
        let points = vec![point("age", 2.0), point("arm[T.<drug>]", -3.0)];
        let html = figure(&Series { points, ..Series::default() });
        assert_eq!((html.matches("<circle").count(), html.matches("whisker").count()), (4, 4));
        assert!(html.contains("arm[T.&lt;drug&gt;]") && !html.contains("LOESS"));
        let infinite = vec![point("age", f64::INFINITY)];
        assert_eq!(figure(&Series { points: infinite, ..Series::default() }), "");
    }
}
