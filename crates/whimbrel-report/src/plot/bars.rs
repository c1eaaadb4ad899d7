//! Bars with names, and histograms.

use super::axis::{Axis, Label, Tick};
use super::{PlotArea, open, px};
use crate::format::{escape, number, shorten};

/// Horizontal bars: one row per name, one bar per kind in each.
#[derive(Clone, Debug)]
pub struct Bars {
    pub title: String,
    /// The value axis's name and unit.
    pub label: String,
    /// Names of the kinds of bar, such as up and down; there are two colours.
    pub kinds: Vec<String>,
    /// A name and one value per kind for each row.
    pub rows: Vec<(String, Vec<f64>)>,
}

/// The longest name in front of a bar.
const NAME: usize = 18;
const ROW: f64 = 19.0;

impl Bars {
    /// The chart as an `<svg>` element, as tall as its rows.
    pub fn svg(&self) -> String {
        let longest = self.rows.iter().map(|(name, _)| name.chars().count().min(NAME)).max();
        let size = [380.0, ROW * self.rows.len() as f64 + 64.0];
        let left = 14.0 + 6.4 * longest.unwrap_or(0) as f64;
        let frame = PlotArea { left, top: 20.0, width: 366.0 - left, height: size[1] - 62.0 };
        let x = self.axis();
        let mut svg = self.key(&frame);
        svg += "<g class=\"grid\">";
        svg += &frame.x_axis(&x, &self.label);
        svg += "</g>";
        for (index, (name, values)) in self.rows.iter().enumerate() {
            let top = frame.top + ROW * index as f64;
            svg += &format!(
                "<text class=\"tick\" x=\"{}\" y=\"{}\" dy=\".33em\" text-anchor=\"end\">{}</text>",
                px(left - 7.0),
                px(top + 0.5 * ROW),
                escape(&shorten(name, NAME)),
            );
            let thick = (ROW - 5.0) / values.len().max(1) as f64;
            for (kind, &value) in values.iter().enumerate() {
                let length = x.position(value).unwrap_or(0.0) * frame.width;
                let what = self.kinds.get(kind).map_or("", String::as_str);
                svg += &format!(
                    "<rect class=\"bar k{kind}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\">\
                     <title>{}, {}: {} {}</title></rect>",
                    px(left),
                    px(top + 2.5 + thick * kind as f64),
                    px(length),
                    px(thick - 1.0),
                    escape(name),
                    escape(what),
                    number(value, 4),
                    escape(&self.label),
                );
            }
        }
        open("bars", "", size, &self.title, &self.describe()) + &svg + "</svg>"
    }

    fn axis(&self) -> Axis {
        let values = || self.rows.iter().flat_map(|(_, values)| values).copied();
        let most = values().filter(|v| v.is_finite()).fold(0.0, f64::max);
        Axis::between([0.0, if most > 0.0 { most } else { 1.0 }], 5)
    }

    /// The kinds' names above the first bar.
    fn key(&self, frame: &PlotArea) -> String {
        let mut at = frame.left;
        let mut svg = String::new();
        for (kind, name) in self.kinds.iter().enumerate() {
            svg += &format!(
                "<rect class=\"bar k{kind}\" x=\"{}\" y=\"4\" width=\"12\" height=\"8\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"12\">{}</text>",
                px(at),
                px(at + 17.0),
                escape(name),
            );
            at += 33.0 + 6.4 * name.chars().count() as f64;
        }
        svg
    }

    fn describe(&self) -> String {
        let rows = self.rows.iter().map(|(name, values)| {
            let values: Vec<String> = values.iter().map(|value| number(*value, 3)).collect();
            format!("{name}: {}", values.join(" and "))
        });
        let kinds = self.kinds.join(" and ");
        format!("{kinds}, in {}. {}", self.label, rows.collect::<Vec<_>>().join("; "))
    }
}

/// A histogram.
#[derive(Clone, Debug)]
pub struct Histogram {
    pub title: String,
    /// The value axis's name and unit.
    pub label: String,
    /// The counted objects, in the plural.
    pub counted: String,
    /// The values; non-finite ones are left out.
    pub values: Vec<f64>,
    /// 0 for a solid, 1 for an outlined histogram.
    pub kind: usize,
}

/// Width and height of a histogram in pixels before scaling.
const SIZE: [f64; 2] = [380.0, 210.0];

impl Histogram {
    /// The chart as an `<svg>` element.
    pub fn svg(&self) -> String {
        let values: Vec<f64> =
            self.values.iter().copied().filter(|value| value.abs() <= 1e300).collect();
        let bins = Bins::of(&values);
        let x = Axis::between([bins.low, bins.high], 5);
        let most = bins.counts.iter().copied().max().unwrap_or(0);
        let mut y = Axis::between([0.0, most.max(1) as f64], 4);
        y.ticks.retain(|tick| tick.value.fract() == 0.0);
        if most <= 1 {
            y.ticks = vec![Tick { value: 1.0, label: Label::Text("1".into()) }];
        }
        let left = 14.0 + 6.4 * y.label_width();
        let frame =
            PlotArea { left, top: 22.0, width: SIZE[0] - left - 14.0, height: SIZE[1] - 64.0 };
        let mut svg = frame.axes(&x, &y, &self.label);
        svg += &format!("<text class=\"axis\" x=\"4\" y=\"12\">{}</text>", escape(&self.counted));
        let step = frame.width / bins.counts.len() as f64;
        for (index, &count) in bins.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let top = frame.y(count as f64 / most as f64);
            let edge = |place: usize| number(bins.edge(place), 4);
            svg += &format!(
                "<rect class=\"bar k{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\">\
                 <title>{} to {} {}: {count} {}</title></rect>",
                self.kind,
                px(frame.left + step * index as f64 + 0.5),
                px(top),
                px((step - 1.0).max(0.5)),
                px(frame.bottom() - top),
                edge(index),
                edge(index + 1),
                escape(&self.label),
                escape(&self.counted),
            );
        }
        open("bars", "", SIZE, &self.title, &self.describe(&values)) + &svg + "</svg>"
    }

    fn describe(&self, values: &[f64]) -> String {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        match (sorted.first(), sorted.get(sorted.len() / 2), sorted.last()) {
            (Some(low), Some(middle), Some(high)) => format!(
                "{} {}; smallest {}, median {}, largest {}, in {}",
                sorted.len(),
                self.counted,
                number(*low, 3),
                number(*middle, 3),
                number(*high, 3),
                self.label
            ),
            _ => format!("no {}", self.counted),
        }
    }
}

struct Bins {
    low: f64,
    high: f64,
    counts: Vec<usize>,
}

impl Bins {
    /// About the square root of the number of values, at most 24 bins, over their range.
    fn of(values: &[f64]) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            return Self { low: 0.0, high: 1.0, counts: vec![0] };
        }
        if high - low <= 1e-6 * high.abs().max(low.abs()) {
            let half = if low == 0.0 && high == 0.0 { 0.5 } else { 0.05 * low.abs() };
            let mut counts = vec![0; 5];
            counts[2] = values.len();
            return Self { low: low - half, high: high + half, counts };
        }
        let bins = ((values.len() as f64).sqrt().ceil() as usize).clamp(1, 24);
        let mut counts = vec![0; bins];
        for value in values {
            let place = ((value - low) / (high - low) * bins as f64) as usize;
            counts[place.min(bins - 1)] += 1;
        }
        Self { low, high, counts }
    }

    fn edge(&self, place: usize) -> f64 {
        let along = place as f64 / self.counts.len() as f64;
        self.low * (1.0 - along) + self.high * along
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_every_value() {
        for values in [vec![], vec![3.0], vec![2.0; 7], (0..100).map(f64::from).collect()] {
            assert_eq!(Bins::of(&values).counts.iter().sum::<usize>(), values.len());
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let rows = vec![("a".into(), vec![2.0]), ("b".into(), vec![4.0])];
        let bars = Bars { title: "t".into(), label: "kbit".into(), kinds: vec!["up".into()], rows };
        let svg = bars.svg();
        let lengths: Vec<f64> = svg
            .split("height=\"13\"")
            .filter_map(|piece| {
                piece.rsplit_once("width=\"")?.1.trim_matches(['"', ' ']).parse().ok()
            })
            .collect();
        assert_eq!(lengths.len(), 2);
        assert!((lengths[1] - 2.0 * lengths[0]).abs() < 0.2);
    }
}
