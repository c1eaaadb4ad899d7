//! Line charts: several series over one pair of axes, with optional bands.

use super::axis::{Axis, AxisSpec};
use super::{PlotArea, open, px, style};
use crate::format::{escape, number, shorten};

/// One line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    pub label: String,
    /// The index of the style.
    pub style: usize,
    /// Points in drawing order.
    pub points: Vec<[f64; 2]>,
    /// Low and high around each point, or empty.
    pub band: Vec<[f64; 2]>,
    /// The number of values not shown; `None`: the number of points that cannot be drawn.
    pub left_out: Option<usize>,
}

/// A chart of lines.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// The title of the text alternative.
    pub title: String,
    pub x: AxisSpec,
    pub y: AxisSpec,
    /// The lines; the first is drawn last, on top.
    pub series: Vec<Series>,
    /// A horizontal reference line and its name.
    pub reference: Option<(f64, String)>,
    /// Whether lines are named at their right ends.
    pub name_ends: bool,
    /// For small multiples: the highlighted line, and the id of the group of all lines, which are faint
    /// in the background (drawn once, by the first multiple).
    pub focus: Option<(usize, String)>,
    /// Width and height in pixels before scaling.
    pub size: [f64; 2],
    /// Space above the axes, for a heading.
    pub head: f64,
    /// Font size of ticks and names in pixels.
    pub font: f64,
    /// Attributes for the `svg` element (each with a leading space), for scripts.
    pub extra: String,
}

/// Widths of a digit and of a bold letter as fractions of the font size, in wide system fonts.
const DIGIT: f64 = 0.57;
const LETTER: f64 = 0.65;
/// The longest name shown at a line's end.
const NAME: usize = 16;

impl LineChart {
    /// A chart of the report's usual size.
    pub fn new(title: impl Into<String>, x: AxisSpec, y: AxisSpec, series: Vec<Series>) -> Self {
        Self {
            title: title.into(),
            x,
            y,
            series,
            reference: None,
            name_ends: false,
            focus: None,
            size: [380.0, 262.0],
            head: 20.0,
            font: 11.5,
            extra: String::new(),
        }
    }

    /// The chart as an `<svg>` element.
    pub fn svg(&self) -> String {
        let (body, frame, x, y) = self.draw();
        // The tooltip script needs the axes.
        let data = format!(
            "{} data-frame=\"{} {} {} {}\" data-x=\"{:e} {:e} {:?}\" data-y=\"{:e} {:e} {:?}\"",
            self.extra,
            px(frame.left),
            px(frame.top),
            px(frame.width),
            px(frame.height),
            x.low,
            x.high,
            x.scale,
            y.low,
            y.high,
            y.scale,
        );
        open("lines", &data, self.size, &self.title, &self.describe()) + &body + "</svg>"
    }

    /// The content of the element, without the element.
    pub(crate) fn draw(&self) -> (String, PlotArea, Axis, Axis) {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let level = self.reference.iter().map(|(value, _)| *value);
        let x = Axis::fit(&self.x, points().map(|point| point[0]), 6, 0.0);
        let y_values = points().map(|point| point[1]).chain(level);
        let y = Axis::fit(&self.y, y_values.chain(self.band_values()), 6, 0.05);

        let names = if self.name_ends {
            let longest = self.series.iter().map(|s| s.label.chars().count().min(NAME)).max();
            longest.unwrap_or(0) as f64 * LETTER * self.font + 12.0
        } else {
            14.0
        };
        let left = 14.0 + DIGIT * self.font * y.label_width();
        let frame = PlotArea {
            left,
            top: self.head,
            width: (self.size[0] - left - names).max(40.0),
            height: (self.size[1] - self.head - 40.0).max(40.0),
        };

        let mut svg = frame.axes(&x, &y, &self.x.label);
        let reference = self
            .reference
            .as_ref()
            .and_then(|(value, name)| Some((frame.y(y.position(*value)?), name)));
        if let Some((at, _)) = reference {
            let (left, right) = (px(frame.left), px(frame.right()));
            svg += &format!("<path class=\"ref\" d=\"M{left} {}H{right}\"/>", px(at));
        }
        let mut ends = Vec::new();
        let mut hidden = 0;
        if let Some((place, id)) = &self.focus {
            svg += &match place {
                0 => format!("<g class=\"ghosts\" id=\"{id}\">{}</g>", self.ghosts(&frame, &x, &y)),
                _ => format!("<use class=\"ghosts\" href=\"#{id}\"/>"),
            };
        }
        let drawn = |place: &usize| self.focus.as_ref().is_none_or(|(focus, _)| focus == place);
        for place in (0..self.series.len()).rev().filter(drawn) {
            let series = &self.series[place];
            let places = Places::of(series, &frame, &x, &y);
            hidden += series.left_out.unwrap_or(places.hidden);
            svg += &places.svg(series);
            if let Some(&end) = places.runs.last().and_then(|run| run.last()) {
                ends.push((end, series));
            }
        }
        if self.name_ends {
            svg += &end_names(ends, &frame);
        }
        if let Some((at, name)) = reference {
            svg += &format!(
                "<text class=\"note over\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                px(frame.x(0.5)),
                px(at - 6.0),
                escape(name),
            );
        }
        if hidden > 0 {
            let values = if hidden == 1 { "value" } else { "values" };
            let why = match self.y.scale {
                super::Scale::Log => "zero, negative or not finite: not drawn",
                super::Scale::Linear => "not finite: not drawn",
            };
            svg += &format!(
                "<text class=\"note\" x=\"{}\" y=\"{}\">{hidden} {values} {why}</text>",
                px(frame.left),
                px(frame.top - 6.0),
            );
        }
        (svg, frame, x, y)
    }

    /// All lines, without style.
    fn ghosts(&self, frame: &PlotArea, x: &Axis, y: &Axis) -> String {
        let line = |series: &Series| {
            let places = Places::of(series, frame, x, y);
            let runs = places.runs.iter().map(|run| polyline(run.iter().copied()));
            format!("<path d=\"{}\"/>", runs.collect::<String>())
        };
        self.series.iter().map(line).collect()
    }

    /// Band edges that widen the axis; on a log axis without low edges near or below zero.
    fn band_values(&self) -> impl Iterator<Item = f64> {
        self.series.iter().flat_map(|series| {
            series.band.iter().zip(&series.points).flat_map(|(&[low, high], &[_, y])| {
                let deep = self.y.scale == super::Scale::Log && low < 0.1 * y;
                [if deep { y } else { low }, high]
            })
        })
    }

    /// First and last values of each line, in words.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("Against {}. ", self.x.label);
        for series in &self.series {
            let shown = || series.points.iter().filter(|p| p.iter().all(|v| v.is_finite()));
            text += &match (shown().next(), shown().next_back()) {
                (Some([x0, y0]), Some([x1, y1])) => format!(
                    "{}: {} at {}, {} at {}. ",
                    series.label,
                    number(*y0, 3),
                    number(*x0, 3),
                    number(*y1, 3),
                    number(*x1, 3)
                ),
                _ => format!("{}: no values. ", series.label),
            };
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// A series in pixels: runs of consecutive points that can be drawn.
struct Places {
    runs: Vec<Vec<[f64; 2]>>,
    /// The low and high edges of the band, by run.
    bands: Vec<Vec<[f64; 2]>>,
    hidden: usize,
}

impl Places {
    fn of(series: &Series, frame: &PlotArea, x: &Axis, y: &Axis) -> Self {
        let mut places = Self { runs: vec![vec![]], bands: vec![vec![]], hidden: 0 };
        for (index, &[at, value]) in series.points.iter().enumerate() {
            let (Some(px), Some(py)) = (x.position(at), y.position(value)) else {
                places.hidden += 1;
                if places.runs.last().is_some_and(|run| !run.is_empty()) {
                    places.runs.push(vec![]);
                    places.bands.push(vec![]);
                }
                continue;
            };
            let (Some(run), Some(band)) = (places.runs.last_mut(), places.bands.last_mut()) else {
                continue;
            };
            run.push([frame.x(px), frame.y(py)]);
            if let Some(&[low, high]) = series.band.get(index) {
                let low = y.position(low).unwrap_or(if low < value { 0.0 } else { py });
                let high = y.position(high).unwrap_or(if high > value { 1.0 } else { py });
                band.push([frame.y(low), frame.y(high)]);
            }
        }
        if places.runs.last().is_some_and(Vec::is_empty) {
            places.runs.pop();
            places.bands.pop();
        }
        places
    }

    fn svg(&self, series: &Series) -> String {
        let mut line = String::new();
        let mut bands = String::new();
        for (run, band) in self.runs.iter().zip(&self.bands) {
            line += &polyline(run.iter().copied());
            if !band.is_empty() {
                let edge = |side: usize| run.iter().zip(band).map(move |(p, b)| [p[0], b[side]]);
                let back: Vec<[f64; 2]> = edge(1).collect();
                let outline = polyline(edge(0).chain(back.into_iter().rev()));
                bands += &format!("<path class=\"band\" d=\"{outline}Z\"/>");
            }
        }
        let all: Vec<[f64; 2]> = self.runs.concat();
        let marks: String = marked(all.len(), series.style)
            .map(|index| style::marker(series.style, all[index][0], all[index][1]))
            .collect();
        format!(
            "<g class=\"{}\">{bands}<path class=\"line\" d=\"{line}\"{}/><path class=\"mark\" \
             d=\"{marks}\"/></g>",
            style::class(series.style),
            style::dash(series.style),
        )
    }
}

/// A path through points; a single point is a dot.
fn polyline(points: impl Iterator<Item = [f64; 2]>) -> String {
    points
        .enumerate()
        .map(|(index, [x, y])| {
            let verb = if index == 0 { 'M' } else { 'L' };
            format!("{verb}{} {}", px(x), px(y))
        })
        .collect()
}

/// The points with a marker: all of a few, otherwise some, shifted by style so that markers of
/// coinciding lines differ.
fn marked(points: usize, style: usize) -> impl Iterator<Item = usize> {
    let stride = if points <= 8 { 1 } else { points.div_ceil(5) };
    let shift = if points <= 8 { 0 } else { (style % 4) * stride / 4 };
    let last = points.checked_sub(1);
    (shift..points.saturating_sub(stride / 3)).step_by(stride).chain(last)
}

/// Names beside the ends of lines, without overlaps.
fn end_names(mut ends: Vec<([f64; 2], &Series)>, frame: &PlotArea) -> String {
    const APART: f64 = 14.0;
    ends.sort_by(|a, b| a.0[1].total_cmp(&b.0[1]));
    let mut floor = f64::NEG_INFINITY;
    for ([_, at], _) in &mut ends {
        *at = at.max(floor);
        floor = *at + APART;
    }
    let mut ceiling = frame.bottom();
    for ([_, at], _) in ends.iter_mut().rev() {
        *at = at.min(ceiling);
        ceiling = *at - APART;
    }
    ends.iter()
        .map(|([end, at], series)| {
            format!(
                "<g class=\"{}\"><text class=\"end\" x=\"{}\" y=\"{}\" dy=\".33em\">{}</text></g>",
                style::class(series.style),
                px(end + 8.0),
                px(*at),
                escape(&shorten(&series.label, NAME)),
            )
        })
        .collect()
}
