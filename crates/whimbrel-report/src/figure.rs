//! One quantity over the course of a run, as drawn on the page.

use serde_json::{Value, json};

use crate::curves::{self, Against, Curve, Mark, Point};
use crate::format::escape;
use crate::plot::style::swatch;
use crate::plot::{AxisSpec, LineChart, Scale};

/// A quantity drawn against each possible coordinate; the page's switches choose the visible drawing.
pub(crate) struct Figure<'a> {
    pub title: &'a str,
    pub caption: &'a str,
    /// Whether some line is a mean over seeds.
    pub seeds: bool,
    /// Whether there is a drawing with a log axis.
    pub log: bool,
    pub bounds: Option<[f64; 2]>,
    pub reference: Option<f64>,
    pub name_ends: bool,
}

impl Figure<'_> {
    pub fn html(&self, curves: &[Curve], against: &[Against]) -> String {
        let mean = match (self.seeds, self.log) {
            (false, _) => "",
            (true, false) => "; mean over seeds",
            (true, true) => {
                "<span class=\"if-log\">; geometric mean over seeds, ± 1 sd of log10</span>\
                 <span class=\"if-linear\">; mean over seeds, ± 1 sd</span>"
            }
        };
        let mut html = format!(
            "<figure data-live><figcaption><h3>{}</h3><p>{}{mean}{}</p></figcaption>\n",
            escape(self.title),
            escape(self.caption),
            escape(&coinciding(curves)),
        );
        for &x in against {
            for &(scale, class) in self.scales() {
                html += &variant(x, class, &self.chart(curves, x, scale));
            }
        }
        html + &self.data(curves, against) + "</figure>\n"
    }

    /// The scales of the vertical axis and the classes under which the page shows them.
    fn scales(&self) -> &'static [(Scale, &'static str)] {
        if self.log {
            &[(Scale::Log, "y-log"), (Scale::Linear, "y-linear")]
        } else {
            &[(Scale::Linear, "y-log y-linear")]
        }
    }

    /// One small drawing per line, with all other lines faint in the background.
    pub fn multiples(&self, curves: &[Curve], against: &[Against]) -> String {
        let one = |place: usize, curve: &Curve| {
            let mut html = format!(
                "<figure><figcaption>{}{}</figcaption>\n",
                swatch(curve.style),
                escape(&curve.label)
            );
            for &x in against {
                for &(scale, class) in self.scales() {
                    let mut chart = self.chart(curves, x, scale);
                    chart.size = [250.0, 190.0];
                    chart.name_ends = false;
                    chart.focus = Some((place, format!("all-{}-{scale:?}", x.key())));
                    html += &variant(x, class, &chart);
                }
            }
            html + "</figure>\n"
        };
        let all: String =
            curves.iter().enumerate().map(|(place, curve)| one(place, curve)).collect();
        format!(
            "<h3 class=\"multiples-head\">{}, one run at a time</h3>\n<div \
             class=\"multiples\">\n{all}</div>\n",
            escape(self.title)
        )
    }

    fn chart(&self, curves: &[Curve], against: Against, scale: Scale) -> LineChart {
        let (series, x) = curves::series(curves, against, scale);
        let y = AxisSpec { bounds: self.bounds, ..AxisSpec::new(self.title, scale) };
        let mut chart = LineChart::new(self.title, x, y, series);
        chart.name_ends = self.name_ends;
        chart.reference = self.reference.map(|value| (value, "reference".into()));
        chart.extra = format!(" data-key=\"{}\"", against.key());
        chart
    }

    /// The points for the tooltip, as JSON without `<`.
    fn data(&self, curves: &[Curve], against: &[Against]) -> String {
        let unit = |a: Against| match a {
            Against::Round | Against::Epoch => (1.0, a.words().to_string()),
            Against::BitsUp | Against::BitsBoth => curves::bits_axis(curves, a),
        };
        let object = |value: &dyn Fn(Against) -> Value| -> Value {
            Value::Object(against.iter().map(|&a| (a.key().to_string(), value(a))).collect())
        };
        let series: Vec<Value> = curves
            .iter()
            .map(|curve| {
                let x = object(&|a| {
                    let value = |x: f64| short(x / unit(a).0);
                    curve.points.iter().map(|point| value(point.x[a as usize])).collect()
                });
                let linear = marks(curve, Scale::Linear);
                let log = if self.log { marks(curve, Scale::Log) } else { Value::Null };
                let (label, style) = (&curve.label, curve.style);
                json!({ "label": label, "style": style, "x": x, "Linear": linear, "Log": log })
            })
            .collect();
        let units = object(&|a| json!(unit(a).1));
        let text = json!({ "units": units, "series": series }).to_string();
        format!("<script type=\"application/json\">{}</script>\n", text.replace('<', "\\u003c"))
    }
}

/// The sets of lines with equal points, in words.
fn coinciding(curves: &[Curve]) -> String {
    let points = |curve: &Curve| -> Vec<[u64; 2]> {
        let bits = |p: &Point| [p.x[Against::Round as usize], p.on(Scale::Linear).y];
        curve.points.iter().map(|point| bits(point).map(f64::to_bits)).collect()
    };
    let all: Vec<Vec<[u64; 2]>> = curves.iter().map(points).collect();
    let mut text = String::new();
    for (first, own) in all.iter().enumerate().filter(|(at, own)| !all[..*at].contains(own)) {
        let same = (first..all.len()).filter(|at| all[*at] == *own);
        let names: Vec<&str> = same.map(|at| curves[at].label.as_str()).collect();
        if let [names @ .., last] = &names[..]
            && !names.is_empty()
        {
            text += &format!("; {} and {last} coincide", names.join(", "));
        }
    }
    text
}

fn variant(against: Against, class: &str, chart: &LineChart) -> String {
    format!("<div class=\"variant x-{} {class}\">{}</div>\n", against.key(), chart.svg())
}

/// The values of a line on a scale and, over seeds, their deviations.
fn marks(curve: &Curve, scale: Scale) -> Value {
    let all = || curve.points.iter().map(|point| point.on(scale));
    let y: Value = all().map(|mark: Mark| short(mark.y)).collect();
    let banded = all().any(|mark| mark.sd.is_some());
    let sd: Option<Vec<Value>> =
        banded.then(|| all().map(|mark| mark.sd.map_or(Value::Null, short)).collect());
    json!({ "y": y, "sd": sd })
}

/// Six digits, more than a tooltip shows.
fn short(value: f64) -> Value {
    format!("{value:.5e}").parse::<f64>().map_or(Value::Null, |value| json!(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declared::tests::some;
    use crate::group::groups;
    use crate::view::RunView;
    use serde_json::json;

    fn run(name: &str, scale: f64) -> RunView {
        RunView {
            name: name.into(),
            rows: (0..4)
                .map(|k| json!({ "round": k, "field_norm2": scale / f64::from(k + 1) }))
                .map(|row| row.as_object().unwrap().clone())
                .collect(),
            ..RunView::default()
        }
    }

    #[test]
    fn lines_with_equal_points_are_named() {
        let measure = some().remove(2);
        let said = |runs: &[RunView]| coinciding(&curves::metric(&groups(runs), &measure));
        let runs = [run("a", 1.0), run("b", 2.0), run("c", 1.0), run("d", 1.0), run("e", 2.0)];
        assert_eq!(said(&runs), "; a, c and d coincide; b and e coincide");
        assert_eq!(said(&runs[..2]), "");
    }

    #[test]
    fn small_multiples_draw_all_lines_once() {
        let runs = ["a", "b", "c"].map(|name| run(name, 1.0));
        let measure = some().remove(2);
        let curves = curves::metric(&groups(&runs), &measure);
        let figure = Figure {
            title: "h",
            caption: "",
            seeds: false,
            log: true,
            bounds: None,
            reference: None,
            name_ends: true,
        };
        let html = figure.multiples(&curves, &[Against::Round]);
        assert_eq!(html.matches("<figure>").count(), 3);
        // Two scales: the lines of each are drawn by the first figure and referred to by two.
        assert_eq!(html.matches("<g class=\"ghosts\" id=").count(), 2);
        assert_eq!(html.matches("<use class=\"ghosts\" href=\"#all-round-Log\"/>").count(), 2);
    }
}
