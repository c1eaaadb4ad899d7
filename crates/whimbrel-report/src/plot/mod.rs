//! SVG pictures from plain values.
//!
//! Every chart is a struct with public fields and a method `svg` that returns a scalable `<svg>`
//! element. Colours come from classes (`s0` ... `s7`) that [`style::palette_css`] defines for light and
//! dark pages; each class also has a dash pattern and a marker, so that colour is never the only
//! signal. Values that cannot be drawn (not finite, or not positive on a log axis) leave a gap in the
//! line and are counted above the plot.

pub mod axis;
pub mod bars;
pub mod hero;
pub mod line;
pub mod scatter;
pub mod style;

pub use axis::{Axis, AxisSpec, Scale};
pub use bars::{Bars, Histogram};
pub use line::{LineChart, Series};
pub use scatter::ScatterChart;

/// A coordinate in tenths of a pixel, without a trailing `.0`.
pub(crate) fn px(value: f64) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    // `+ 0.0` turns a negative zero into zero.
    format!("{}", rounded + 0.0)
}

/// The opening tag and the text alternative of a chart.
pub(crate) fn open(class: &str, extra: &str, size: [f64; 2], title: &str, desc: &str) -> String {
    use crate::format::escape;
    format!(
        "<svg class=\"plot {class}\" viewBox=\"0 0 {} {}\" role=\"img\"{extra}><title>{}</title>\
         <desc>{}</desc>",
        px(size[0]),
        px(size[1]),
        escape(title),
        escape(desc),
    )
}

/// The area inside the axes of a chart, in pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlotArea {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl PlotArea {
    pub fn x(&self, fraction: f64) -> f64 {
        self.left + fraction * self.width
    }

    pub fn y(&self, fraction: f64) -> f64 {
        self.top + (1.0 - fraction) * self.height
    }

    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// Gridlines, tick labels and the baseline; the horizontal axis's label under its right end.
    pub fn axes(&self, x: &Axis, y: &Axis, x_label: &str) -> String {
        let mut svg = String::from("<g class=\"grid\">");
        for tick in &y.ticks {
            if let Some(at) = y.position(tick.value) {
                let at = px(self.y(at));
                svg += &format!(
                    "<path d=\"M{} {at}H{}\"/><text class=\"tick\" x=\"{}\" y=\"{at}\" \
                     dy=\".33em\" text-anchor=\"end\">{}</text>",
                    px(self.left),
                    px(self.right()),
                    px(self.left - 7.0),
                    tick.label.svg(),
                );
            }
        }
        if y.exponent != 0 {
            let power = axis::Label::Power(y.exponent).svg();
            let (at, up) = (px(self.left), px(self.top - 9.0));
            svg += &format!("<text class=\"tick\" x=\"{at}\" y=\"{up}\">× {power}</text>");
        }
        svg += &self.x_axis(x, x_label);
        svg + "</g>"
    }

    /// The horizontal axis alone: ticks under the baseline.
    pub fn x_axis(&self, x: &Axis, label: &str) -> String {
        let base = px(self.bottom());
        let mut svg =
            format!("<path class=\"base\" d=\"M{} {base}H{}\"/>", px(self.left), px(self.right()));
        for tick in &x.ticks {
            if let Some(at) = x.position(tick.value) {
                let at = px(self.x(at));
                svg += &format!(
                    "<path class=\"base\" d=\"M{at} {base}v4\"/><text class=\"tick\" x=\"{at}\" \
                     y=\"{}\" text-anchor=\"middle\">{}</text>",
                    px(self.bottom() + 17.0),
                    tick.label.svg(),
                );
            }
        }
        let power = match x.exponent {
            0 => String::new(),
            k => format!(" × {}", axis::Label::Power(k).svg()),
        };
        svg + &format!(
            "<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}{power}</text>",
            px(self.right()),
            px(self.bottom() + 33.0),
            crate::format::escape(label),
        )
    }
}
