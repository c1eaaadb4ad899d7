//! A standalone picture for a README: one figure of several runs, by rounds.

use super::axis::{AxisSpec, Scale};
use super::line::LineChart;
use super::{px, style};
use crate::curves::{self, Against};
use crate::format::escape;
use crate::group;
use crate::view::RunView;
use whimbrel_core::Measure;

/// A standalone SVG file with a background, readable on light and dark pages. `subtitle` is one line
/// under the title, such as the data and the codec.
pub fn hero(title: &str, subtitle: &str, runs: &[RunView], measure: &Measure) -> String {
    let lines = curves::metric(&group::groups(runs), measure);
    let (series, x) = curves::series(&lines, Against::Round, Scale::Log);
    let mut chart = LineChart::new(title, x, AxisSpec::new(&*measure.title, Scale::Log), series);
    chart.name_ends = true;
    chart.size = [860.0, 400.0];
    chart.head = 86.0;
    chart.font = 13.0;
    let (body, frame, ..) = chart.draw();
    // The background is slightly larger than the chart.
    let [width, height] = [chart.size[0] + 32.0, chart.size[1] + 20.0];
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-16 -10 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\"><title>{title}</title>\
         <desc>{desc}</desc><style>{css}</style><rect x=\"-15.5\" y=\"-9.5\" \
         width=\"{inner_width}\" height=\"{inner_height}\" rx=\"10\" fill=\"#ffffff\" \
         stroke=\"#d9dce1\"/><text class=\"h1\" x=\"8\" y=\"24\">{title}</text><text class=\"note\" \
         x=\"8\" y=\"46\">{subtitle}</text><text class=\"note\" x=\"{left}\" y=\"74\" \
         text-anchor=\"end\">{y}</text>{body}</svg>\n",
        inner_width = width - 1.0,
        inner_height = height - 1.0,
        title = escape(title),
        y = escape(&measure.title),
        desc = escape(&chart.describe()),
        subtitle = escape(subtitle),
        css = style::standalone_css(),
        left = px(frame.left - 7.0),
    )
}
