//! One value per label with a smooth curve, and counts below.

use super::loess::{NEIGHBOURS_MIN, SPAN, loess};
use crate::format::{count, escape, number};
use crate::plot::axis::{Label, Tick};
use crate::plot::{Axis, AxisSpec, PlotArea, Scale, open, px};
use whimbrel_core::declare::{Series, SeriesPoint};

/// Widths on a page and on a narrow screen, in pixels.
const WIDTHS: [f64; 2] = [1160.0, 380.0];
/// Height of the values and of the strip of counts, in pixels.
const HEIGHTS: [f64; 2] = [320.0, 130.0];
/// Pixels per label under the axis.
const LABEL: f64 = 90.0;

/// A figure drawn for both widths, of which the page shows one; empty if a value cannot be drawn.
pub(super) fn widths(series: &Series, draw: [impl Fn(f64) -> String; 2]) -> String {
    let [broad, narrow] = [0, 1].map(|at| draw[at](WIDTHS[at]));
    if broad.is_empty() {
        return broad;
    }
    format!(
        "<figure class=\"wide\"><figcaption><h3>{}</h3><p>{}</p></figcaption><div \
         class=\"broad\">{broad}</div><div class=\"narrow\">{narrow}</div></figure>\n",
        escape(&series.title),
        escape(&series.caption),
    )
}

/// The figure; empty if a value cannot be drawn.
pub fn figure(series: &Series) -> String {
    let intervals = series.points.iter().any(|point| point.interval.is_some());
    let whiskers = if intervals { ", with 90 % intervals" } else { "" };
    let smooth = if series.points.len() >= NEIGHBOURS_MIN {
        format!("; the curve is a local regression (LOESS, span {SPAN})")
    } else {
        String::new()
    };
    let caption = format!("{}{whiskers}{smooth}", series.caption);
    let draw = |width: f64| svg(series, width);
    widths(&Series { caption, ..series.clone() }, [draw, draw])
}

fn svg(series: &Series, width: f64) -> String {
    let columns = &series.points[..];
    let drawn = |point: &SeriesPoint| point.value.abs() <= 1e300;
    if columns.is_empty() || !columns.iter().all(drawn) {
        return String::new();
    }
    let x = places(columns, (width / LABEL) as usize);
    let estimated: Vec<f64> = columns.iter().map(|c| c.value).collect();
    let at: Vec<f64> = (0..columns.len()).map(|i| i as f64).collect();
    let smooth = loess(&at, &estimated, SPAN);
    let ends = columns.iter().filter_map(|c| c.interval).flatten();
    let values = estimated.iter().copied().chain(ends).chain([0.0]);
    let y = Axis::fit(&AxisSpec::new("", Scale::Linear), values, 5, 0.04);
    let left = 16.0 + 6.6 * y.label_width().max(4.0);
    let frame = PlotArea { left, top: 22.0, width: width - left - 16.0, height: HEIGHTS[0] - 40.0 };
    let mut svg = frame.axes(&Axis { ticks: Vec::new(), ..x.clone() }, &y, "");
    let spot =
        |i: usize, value: f64| Some((frame.x(x.position(i as f64)?), frame.y(y.position(value)?)));
    for (i, column) in columns.iter().enumerate() {
        let Some([low, high]) = column.interval else { continue };
        if let (Some((x, a)), Some((_, b))) = (spot(i, low), spot(i, high)) {
            svg += &format!("<path class=\"whisker\" d=\"M{} {}V{}\"/>", px(x), px(a), px(b));
        }
    }
    for (i, column) in columns.iter().enumerate() {
        if let Some((x, y)) = spot(i, column.value) {
            svg += &format!(
                "<circle class=\"dot\" cx=\"{}\" cy=\"{}\" r=\"2.6\"><title>{}</title></circle>",
                px(x),
                px(y),
                escape(&words(column)),
            );
        }
    }
    if let Some(smooth) = &smooth {
        let points = smooth.iter().enumerate().filter_map(|(i, v)| spot(i, *v));
        let path: Vec<String> = points.map(|(x, y)| format!("{} {}", px(x), px(y))).collect();
        svg += &format!("<path class=\"line s1\" d=\"M{}\"/>", path.join("L"));
    }
    svg += &counts(series, &x, left, width);
    let size = [width, HEIGHTS[0] + HEIGHTS[1]];
    let text = describe(columns, smooth.is_some());
    open("totals s0", "", size, &series.title, &text) + &svg + "</svg>"
}

/// One place per column; some are labelled.
fn places(columns: &[SeriesPoint], labels: usize) -> Axis {
    let stride = columns.len().div_ceil(labels).max(1);
    let ticks = (0..columns.len()).step_by(stride).map(|i| Tick {
        value: i as f64,
        label: Label::Text(crate::format::shorten(&columns[i].label, 12)),
    });
    let high = columns.len() as f64 - 0.5;
    Axis { scale: Scale::Linear, low: -0.5, high, ticks: ticks.collect(), exponent: 0 }
}

/// The bars of counts below.
fn counts(series: &Series, x: &Axis, left: f64, width: f64) -> String {
    let columns = &series.points[..];
    let most = columns.iter().map(|c| c.count).max().unwrap_or(0);
    let y = Axis::between([0.0, most.max(1) as f64], 3);
    let top = HEIGHTS[0] + 18.0;
    let frame = PlotArea { left, top, width: width - left - 16.0, height: HEIGHTS[1] - 60.0 };
    let mut svg = format!(
        "<text class=\"axis\" x=\"{}\" y=\"{}\">{}</text>",
        px(left),
        px(top - 8.0),
        escape(&series.counted),
    );
    svg += &frame.axes(x, &y, "");
    let bar = (frame.width / columns.len() as f64 * 0.8).max(0.6);
    for (i, column) in columns.iter().enumerate().filter(|(_, c)| c.count > 0) {
        let (Some(at), Some(high)) = (x.position(i as f64), y.position(column.count as f64)) else {
            continue;
        };
        svg += &format!(
            "<rect class=\"bar gone\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}: {} \
             {}</title></rect>",
            px(frame.x(at) - bar / 2.0),
            px(frame.y(high)),
            px(bar),
            px(frame.bottom() - frame.y(high)),
            escape(&column.label),
            count(column.count),
            escape(&series.counted),
        );
    }
    svg
}

pub(super) fn words(point: &SeriesPoint) -> String {
    let range = point.interval.map(|[low, high]| (number(low, 4), number(high, 4)));
    let range = range.map_or(String::new(), |(low, high)| format!(" ({low} to {high})"));
    let note = if point.note.is_empty() { String::new() } else { format!(", {}", point.note) };
    format!("{}: {}{range}{note}", point.label, number(point.value, 4))
}

fn describe(columns: &[SeriesPoint], smooth: bool) -> String {
    let ends = [columns.first(), columns.last()].into_iter().flatten().map(words);
    let curve = if smooth { "with a smooth curve" } else { "as points" };
    format!("{} points {curve}. {}", columns.len(), ends.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(points: Vec<SeriesPoint>) -> Series {
        Series { points, counted: "missing".into(), ..Series::default() }
    }

    fn point(label: &str, value: f64, count: u64) -> SeriesPoint {
        SeriesPoint { label: label.into(), value, count, ..SeriesPoint::default() }
    }

    #[test]
    fn every_label_has_a_point_and_its_count_a_bar() {
        let points = (0..30).map(|i| point(&format!("<{i}>"), f64::from(i), u64::from(i % 3 == 0)));
        let svg = figure(&series(points.collect()));
        assert_eq!(svg.matches("<circle").count(), 60);
        assert_eq!(svg.matches("class=\"bar gone\"").count(), 20);
        assert!(svg.contains("&lt;3&gt;") && !svg.contains("<3>"));
        assert!(svg.contains("class=\"line s1\""));
    }

    #[test]
    fn few_or_broken_points_do_no_harm() {
        assert_eq!(figure(&series(vec![])), "");
        assert_eq!(figure(&series(vec![point("a", f64::NAN, 0)])), "");
        assert!(!figure(&series(vec![point("a", 0.0, 0)])).contains("class=\"line s1\""));
    }
}
