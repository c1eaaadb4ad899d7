//! Points in the plane, and ellipses of one and two standard deviations.

use super::axis::{Axis, AxisSpec, Scale};
use super::{PlotArea, open, px, style};
use crate::format::{escape, number};
use whimbrel_core::declare::{self, Scatter};

/// A picture of a [`Scatter`].
#[derive(Clone, Copy, Debug)]
pub struct ScatterChart<'a>(pub &'a Scatter);

/// Width and height in pixels before scaling.
const SIZE: [f64; 2] = [380.0, 330.0];

/// The most points drawn.
const POINTS: usize = 2_000;

impl ScatterChart<'_> {
    /// The chart as an `<svg>` element. Both axes have the same scale, so that a round ellipse
    /// looks round.
    pub fn svg(&self) -> String {
        let ellipses: Vec<Ellipse> = self.ellipses().collect();
        let frame =
            PlotArea { left: 46.0, top: 22.0, width: SIZE[0] - 60.0, height: SIZE[1] - 64.0 };
        let [x, y] = self.axes(&ellipses, &frame);
        let [across, up] = &self.0.axes;
        let mut svg = frame.axes(&x, &y, across);
        svg += &format!(
            "<text class=\"axis\" x=\"{}\" y=\"12\">{}</text>",
            // Beside a power of ten at the frame's left edge.
            px(if y.exponent == 0 { 4.0 } else { frame.left + 40.0 }),
            crate::format::escape(up)
        );
        svg += &format!("<path class=\"dots\" d=\"{}\"/>", self.dots(&frame, &x, &y));
        let scale = frame.width / (x.high - x.low);
        for ellipse in &ellipses {
            svg += &ellipse.svg(&frame, &x, &y, scale);
        }
        let (title, text) = (&self.0.title, self.describe(&ellipses));
        open("mixture", "", SIZE, title, &text) + &svg + "</svg>"
    }

    fn ellipses(&self) -> impl Iterator<Item = Ellipse<'_>> {
        let numbered = self.0.ellipses.iter().enumerate();
        numbered.filter_map(|(place, ellipse)| Ellipse::new(place, ellipse))
    }

    /// Ranges that contain all points and all ellipses of two standard deviations.
    fn axes(&self, ellipses: &[Ellipse], frame: &PlotArea) -> [Axis; 2] {
        let range = |dimension: usize| {
            let points = self.0.points.iter().map(|point| point[dimension]);
            let edges = ellipses.iter().flat_map(|ellipse| {
                let reach = 2.0 * ellipse.spread[dimension];
                [ellipse.mean[dimension] - reach, ellipse.mean[dimension] + reach]
            });
            let axis = Axis::fit(&AxisSpec::new("", Scale::Linear), points.chain(edges), 5, 0.04);
            [axis.low, axis.high]
        };
        let (across, up) = (range(0), range(1));
        let unit = ((across[1] - across[0]) / frame.width).max((up[1] - up[0]) / frame.height);
        [(across, frame.width), (up, frame.height)].map(|([low, high], length)| {
            let (middle, half) = (0.5 * low + 0.5 * high, 0.5 * unit * length);
            Axis::between([middle - half, middle + half], (length / 45.0) as usize)
        })
    }

    fn dots(&self, frame: &PlotArea, x: &Axis, y: &Axis) -> String {
        let stride = self.0.points.len().div_ceil(POINTS).max(1);
        self.0
            .points
            .iter()
            .step_by(stride)
            .filter_map(|point| Some([x.position(point[0])?, y.position(point[1])?]))
            .map(|[across, up]| format!("M{} {}h0", px(frame.x(across)), px(frame.y(up))))
            .collect()
    }

    fn describe(&self, ellipses: &[Ellipse]) -> String {
        let one = |e: &Ellipse| {
            let [x, y] = e.mean;
            format!("{}: mean ({}, {})", e.label, number(x, 3), number(y, 3))
        };
        let all: Vec<String> = ellipses.iter().map(one).collect();
        format!("{} points. {}", self.0.points.len(), all.join("; "))
    }
}

/// One ellipse.
struct Ellipse<'a> {
    place: usize,
    label: &'a str,
    mean: [f64; 2],
    /// Standard deviations along the coordinate axes.
    spread: [f64; 2],
    /// Standard deviations along the principal axes.
    radii: [f64; 2],
    /// Angle of the first principal axis, in degrees, counter-clockwise.
    angle: f64,
}

impl<'a> Ellipse<'a> {
    /// `None` if a number cannot be drawn or the matrix is not a covariance.
    fn new(place: usize, of: &'a declare::Ellipse) -> Option<Self> {
        let (mean, [[a, b], [c, d]]) = (of.mean, of.covariance);
        let drawable = |values: &[f64]| values.iter().all(|v| v.abs() < 1e150);
        if !drawable(&mean) || !drawable(&[a, b, c, d]) {
            return None;
        }
        // Eigenvalues of [[a, b], [b, d]]: m ± sqrt(((a - d)/2)^2 + b^2); rounding may leave the
        // smaller one below zero.
        let b = 0.5 * (b + c);
        if a < 0.0 || d < 0.0 || b * b > a * d * (1.0 + 1e-9) {
            return None;
        }
        let (middle, half) = (0.5 * (a + d), 0.5 * (a - d));
        let away = half.hypot(b);
        let root = |value: f64| value.max(0.0).sqrt();
        Some(Self {
            place,
            label: &of.label,
            mean,
            spread: [root(a), root(d)],
            radii: [root(middle + away), root(middle - away)],
            angle: 0.5 * b.atan2(half).to_degrees(),
        })
    }

    fn svg(&self, frame: &PlotArea, x: &Axis, y: &Axis, scale: f64) -> String {
        let (Some(across), Some(up)) = (x.position(self.mean[0]), y.position(self.mean[1])) else {
            return String::new();
        };
        let (cx, cy) = (frame.x(across), frame.y(up));
        let outline = |times: f64, class: &str, dash: &str| {
            format!(
                "<ellipse class=\"{class}\" cx=\"{}\" cy=\"{}\" rx=\"{}\" ry=\"{}\" \
                 transform=\"rotate({} {} {})\"{dash}/>",
                px(cx),
                px(cy),
                px(times * self.radii[0] * scale),
                px(times * self.radii[1] * scale),
                // SVG rotates clockwise.
                px(-self.angle),
                px(cx),
                px(cy),
            )
        };
        let dash = style::dash(self.place);
        format!(
            "<g class=\"{}\"><title>{}</title>{}{}<path class=\"mark\" \
             d=\"{}\"/><text class=\"end\" x=\"{}\" y=\"{}\">{}</text></g>",
            style::class(self.place),
            escape(self.label),
            outline(2.0, "line outer", &dash),
            outline(1.0, "line inner", &dash),
            style::marker(self.place, cx, cy),
            px(cx + 6.0),
            px(cy - 6.0),
            self.place + 1,
        )
    }
}
