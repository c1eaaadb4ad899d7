//! Totals per column with their smooth curve, and the number of missing cells beneath.

use super::loess::{SPAN, loess};
use super::view::ColumnTotal;
use crate::format::{count, escape, number};
use crate::plot::axis::{Label, Tick};
use crate::plot::{Axis, AxisSpec, Frame, Scale, open, px};

/// Width, height of the totals, and height of the strip of missing cells, in pixels.
const SIZE: [f64; 3] = [1160.0, 320.0, 130.0];

/// Column labels under the axis, at most.
const LABELS: usize = 12;

/// The chart as an `<svg>` element; nothing where there are no columns.
pub fn totals(columns: &[ColumnTotal]) -> String {
    let drawn = |total: &ColumnTotal| total.estimated_total.abs() <= 1e300;
    if columns.is_empty() || !columns.iter().all(drawn) {
        return String::new();
    }
    let x = places(columns);
    let estimated: Vec<f64> = columns.iter().map(|c| c.estimated_total).collect();
    let at: Vec<f64> = (0..columns.len()).map(|i| i as f64).collect();
    let smooth = loess(&at, &estimated, SPAN);
    let ends = columns.iter().flat_map(|c| [c.lower, c.upper]).flatten();
    let values = estimated.iter().copied().chain(ends).chain([0.0]);
    let y = Axis::fit(&AxisSpec::new("", Scale::Linear), values, 5, 0.04);
    let left = 16.0 + 6.6 * y.label_width().max(4.0);
    let frame = Frame { left, top: 22.0, width: SIZE[0] - left - 16.0, height: SIZE[1] - 40.0 };
    let mut svg = frame.axes(&Axis { ticks: Vec::new(), ..x.clone() }, &y, "");
    let spot =
        |i: usize, value: f64| Some((frame.x(x.position(i as f64)?), frame.y(y.position(value)?)));
    for (i, column) in columns.iter().enumerate() {
        let (Some(low), Some(high)) = (column.lower, column.upper) else { continue };
        if let (Some((x, a)), Some((_, b))) = (spot(i, low), spot(i, high)) {
            svg += &format!("<path class=\"whisker\" d=\"M{} {}V{}\"/>", px(x), px(a), px(b));
        }
    }
    for (i, column) in columns.iter().enumerate() {
        if let Some((x, y)) = spot(i, column.estimated_total) {
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
    svg += &missing(columns, &x, left);
    let size = [SIZE[0], SIZE[1] + SIZE[2]];
    let title = "Estimated total of each column";
    open("totals s0", "", size, title, &describe(columns, smooth.is_some())) + &svg + "</svg>"
}

/// One place per column, labelled now and then.
fn places(columns: &[ColumnTotal]) -> Axis {
    let stride = columns.len().div_ceil(LABELS).max(1);
    let ticks = (0..columns.len()).step_by(stride).map(|i| Tick {
        value: i as f64,
        label: Label::Text(crate::format::shorten(&columns[i].label, 12)),
    });
    let high = columns.len() as f64 - 0.5;
    Axis { scale: Scale::Linear, low: -0.5, high, ticks: ticks.collect(), exponent: 0 }
}

/// How many cells of each column nobody observed.
fn missing(columns: &[ColumnTotal], x: &Axis, left: f64) -> String {
    let most = columns.iter().map(|c| c.missing).max().unwrap_or(0);
    let spec =
        AxisSpec { bounds: Some([0.0, most.max(1) as f64]), ..AxisSpec::new("", Scale::Linear) };
    let y = Axis::fit(&spec, std::iter::empty(), 3, 0.0);
    let top = SIZE[1] + 18.0;
    let frame = Frame { left, top, width: SIZE[0] - left - 16.0, height: SIZE[2] - 60.0 };
    let mut svg = format!(
        "<text class=\"axis\" x=\"{}\" y=\"{}\">missing cells</text>",
        px(left),
        px(top - 8.0)
    );
    svg += &frame.axes(x, &y, "");
    let width = (frame.width / columns.len() as f64 * 0.8).max(0.6);
    for (i, column) in columns.iter().enumerate().filter(|(_, c)| c.missing > 0) {
        let (Some(at), Some(high)) = (x.position(i as f64), y.position(column.missing as f64))
        else {
            continue;
        };
        svg += &format!(
            "<rect class=\"bar gone\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}: {} \
             missing</title></rect>",
            px(frame.x(at) - width / 2.0),
            px(frame.y(high)),
            px(width),
            px(frame.bottom() - frame.y(high)),
            escape(&column.label),
            count(column.missing),
        );
    }
    svg
}

fn words(column: &ColumnTotal) -> String {
    let range = match (column.lower, column.upper) {
        (Some(low), Some(high)) => format!(" ({} to {})", number(low, 4), number(high, 4)),
        _ => String::new(),
    };
    format!(
        "{}: estimated {}{range}, observed {}, {} missing",
        column.label,
        number(column.estimated_total, 4),
        number(column.observed_total, 4),
        count(column.missing)
    )
}

fn describe(columns: &[ColumnTotal], smooth: bool) -> String {
    let ends = [columns.first(), columns.last()].into_iter().flatten().map(words);
    let curve = if smooth { "with a smooth curve" } else { "as points" };
    format!("{} columns {curve}. {}", columns.len(), ends.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(label: &str, total: f64, missing: u64) -> ColumnTotal {
        let label = label.into();
        ColumnTotal { label, estimated_total: total, missing, ..ColumnTotal::default() }
    }

    #[test]
    fn every_column_has_a_point_and_its_gaps_a_bar() {
        let columns: Vec<ColumnTotal> = (0..30)
            .map(|i| column(&format!("<{i}>"), f64::from(i), u64::from(i % 3 == 0)))
            .collect();
        let svg = totals(&columns);
        assert_eq!(svg.matches("<circle").count(), 30);
        assert_eq!(svg.matches("class=\"bar gone\"").count(), 10);
        assert!(svg.contains("&lt;3&gt;") && !svg.contains("<3>"));
        assert!(svg.contains("class=\"line s1\""));
    }

    #[test]
    fn few_or_broken_columns_do_no_harm() {
        assert_eq!(totals(&[]), "");
        assert_eq!(totals(&[column("a", f64::NAN, 0)]), "");
        assert!(!totals(&[column("a", 0.0, 0)]).contains("class=\"line s1\""));
    }
}
