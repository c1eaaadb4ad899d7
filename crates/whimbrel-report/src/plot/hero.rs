//! Standalone pictures for README and book.

use super::axis::{AxisSpec, Scale};
use super::line::{LineChart, Series};
use super::style;
use crate::curves::{self, Against};
use crate::format::escape;
use crate::group;
use crate::view::RunView;
use whimbrel_core::Measure;
use whimbrel_core::declare::{self, Lines};

/// One figure of several runs by rounds, as a standalone SVG file. `subtitle` is one line under the
/// title, such as the data and the codec.
pub fn hero(title: &str, subtitle: &str, runs: &[RunView], measure: &Measure) -> String {
    let scale = match measure.scale {
        declare::Scale::Log => Scale::Log,
        declare::Scale::Linear => Scale::Linear,
    };
    let lines = curves::metric(&group::groups(runs), measure);
    let (series, x) = curves::series(&lines, Against::Round, scale);
    picture(subtitle, LineChart::new(title, x, AxisSpec::new(&*measure.title, scale), series))
}

/// Lines of a report as a standalone SVG file.
pub fn standalone_lines(title: &str, subtitle: &str, lines: &Lines) -> String {
    let series = lines.lines.iter().enumerate().map(|(style, (label, points))| Series {
        label: label.clone(),
        style,
        points: points.clone(),
        ..Series::default()
    });
    let axis =
        |label: &str| AxisSpec { bounds: lines.bounds, ..AxisSpec::new(label, Scale::Linear) };
    picture(subtitle, LineChart::new(title, axis(&lines.axis), axis(""), series.collect()))
}

/// A chart with a background, readable on light and dark pages.
fn picture(subtitle: &str, mut chart: LineChart) -> String {
    chart.name_ends = true;
    chart.size = [860.0, 400.0];
    chart.head = 86.0;
    chart.font = 13.0;
    let (body, ..) = chart.draw();
    // The background is slightly larger than the chart.
    let [width, height] = [chart.size[0] + 32.0, chart.size[1] + 20.0];
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-16 -10 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\"><title>{title}</title>\
         <desc>{desc}</desc><style>{css}</style><rect x=\"-15.5\" y=\"-9.5\" \
         width=\"{inner_width}\" height=\"{inner_height}\" rx=\"10\" fill=\"#ffffff\" \
         stroke=\"#d9dce1\"/><text class=\"h1\" x=\"8\" y=\"24\">{title}</text><text class=\"note\" \
         x=\"8\" y=\"46\">{subtitle}</text><text class=\"note\" x=\"8\" y=\"74\">{y}</text>{body}\
         </svg>\n",
        inner_width = width - 1.0,
        inner_height = height - 1.0,
        title = escape(&chart.title),
        y = escape(&chart.y.label),
        desc = escape(&chart.describe()),
        subtitle = escape(subtitle),
        css = style::standalone_css(),
    )
}
