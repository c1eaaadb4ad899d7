//! From metrics to lines: what is drawn, against what, and the mean over seeds.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::format::bit_unit;
use crate::group::{Group, mean_sd};
use crate::plot::{AxisSpec, Scale, Series};
use crate::view::{RunView, number};

/// A quantity that is drawn over the course of a run.
pub(crate) struct Metric {
    /// Its key in `metrics.jsonl`; `gap` is the objective minus the reference.
    pub key: &'static str,
    /// Its short name.
    pub title: &'static str,
    /// What it is, in one line.
    pub caption: &'static str,
    /// Whether it is drawn on a log axis first.
    pub log: bool,
}

const fn positive(key: &'static str, title: &'static str, caption: &'static str) -> Metric {
    Metric { key, title, caption, log: true }
}

const fn signed(key: &'static str, title: &'static str, caption: &'static str) -> Metric {
    Metric { key, title, caption, log: false }
}

/// The squared norm of the mean field.
pub(crate) const FIELD: Metric = positive("field_norm2", "‖h‖²", "Squared norm of the mean field");

/// Every quantity a report may draw, in order; those without a value are left out.
pub(crate) const METRICS: [Metric; 12] = [
    positive("gap", "Objective gap", "Objective minus that of the reference"),
    FIELD,
    positive("update_norm2", "‖H‖²", "Squared norm of the server’s update direction"),
    signed("objective", "Objective", "What the method minimises, over all clients’ rows"),
    positive("memory_gap2", "Memory gap", "Mean over clients of ‖Vᵢ − hᵢ‖²"),
    positive("excess_loss", "Excess loss", "Loss minus that of the best known parameter"),
    positive("train_loss", "Training loss", "Mean over the training rows"),
    positive("test_loss", "Test loss", "Mean over the test rows"),
    signed("train_accuracy", "Training accuracy", "Fraction of training rows that are right"),
    signed("test_accuracy", "Test accuracy", "Fraction of test rows that are right"),
    signed("test_accuracy_p10", "Test accuracy, bottom decile", "Over clients"),
    signed("repairs", "Repairs", "Parameters brought back into the domain of T"),
];

/// What a horizontal axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    Round,
    Epoch,
    BitsUp,
    BitsBoth,
}

impl Against {
    pub const ALL: [Self; 4] = [Self::Round, Self::Epoch, Self::BitsUp, Self::BitsBoth];

    /// The name used for classes and data in the page.
    pub fn key(self) -> &'static str {
        ["round", "epoch", "up", "both"][self as usize]
    }

    /// The words of the switch.
    pub fn words(self) -> &'static str {
        ["rounds", "epochs", "bits up", "bits both ways"][self as usize]
    }

    fn value(self, row: &Map<String, Value>) -> f64 {
        match self {
            Self::Round => number(row, "round"),
            Self::Epoch => number(row, "epoch"),
            Self::BitsUp => number(row, "bits_up"),
            Self::BitsBoth => {
                number(row, "bits_up").zip(number(row, "bits_down")).map(|(up, down)| up + down)
            }
        }
        .unwrap_or(f64::NAN)
    }
}

/// One line, with every horizontal coordinate it may be drawn against.
pub(crate) struct Curve {
    pub label: String,
    pub style: usize,
    pub points: Vec<Point>,
}

#[derive(Clone, Copy)]
pub(crate) struct Point {
    /// One per [`Against`], in bits where bits are counted; NaN where unknown.
    pub x: [f64; 4],
    pub y: f64,
    /// The standard deviation over seeds.
    pub sd: Option<f64>,
}

/// The lines of a metric: one per group that has a finite value of it.
pub(crate) fn metric(groups: &[Group], metric: &Metric) -> Vec<Curve> {
    let drawn = |curve: &Curve| curve.points.iter().any(|point| point.y.is_finite());
    groups
        .iter()
        .enumerate()
        .map(|(style, group)| Curve {
            label: group.label.clone(),
            style,
            points: thin(points(group, |run, row| value(run, row, metric.key))),
        })
        .filter(drawn)
        .collect()
}

/// The weights of a run's components, one line each.
pub(crate) fn weights(run: &RunView) -> Vec<Curve> {
    let weights = |row: &Map<String, Value>| row.get("weights").and_then(Value::as_array).cloned();
    let components = run.rows.iter().filter_map(weights).map(|w| w.len()).max().unwrap_or(0);
    (0..components)
        .map(|component| {
            let of = |_: &RunView, row: &Map<String, Value>| {
                Some(weights(row)?.get(component)?.as_f64().unwrap_or(f64::NAN))
            };
            let group = Group { label: String::new(), runs: vec![run] };
            let points = thin(points(&group, of));
            Curve { label: format!("{}", component + 1), style: component, points }
        })
        .collect()
}

/// Lines against one coordinate, and its axis. Bits are in one unit for all lines, and on a log
/// axis when one line is much longer than another (points before the first bit are then dropped).
pub(crate) fn series(curves: &[Curve], against: Against) -> (Vec<Series>, AxisSpec) {
    let in_bits = matches!(against, Against::BitsUp | Against::BitsBoth);
    let (unit, label) = if in_bits { bits_axis(curves, against) } else { (1.0, String::new()) };
    let log = in_bits && unlike(curves, against);
    let series = curves.iter().map(|curve| {
        let kept = || curve.points.iter().filter(|point| !log || point.x[against as usize] > 0.0);
        let banded = curve.points.iter().any(|point| point.sd.is_some());
        let band = kept().filter(|_| banded).map(|point| {
            let sd = point.sd.unwrap_or(0.0);
            [point.y - sd, point.y + sd]
        });
        Series {
            label: curve.label.clone(),
            style: curve.style,
            points: kept().map(|point| [point.x[against as usize] / unit, point.y]).collect(),
            band: band.collect(),
        }
    });
    let label = if in_bits { label } else { against.words().to_string() };
    let scale = if log { Scale::Log } else { Scale::Linear };
    (series.collect(), AxisSpec::new(label, scale))
}

/// The divisor and the label of an axis in bits.
pub(crate) fn bits_axis(curves: &[Curve], against: Against) -> (f64, String) {
    let most = ends(curves, against).fold(0.0, f64::max);
    let (unit, name) = bit_unit(most);
    let way = if against == Against::BitsUp { "up" } else { "up and down" };
    (unit, format!("{name} {way}"))
}

/// Whether the longest line is more than eight times the shortest.
fn unlike(curves: &[Curve], against: Against) -> bool {
    let positive = || ends(curves, against).filter(|end| *end > 0.0);
    positive().fold(0.0, f64::max) > 8.0 * positive().fold(f64::INFINITY, f64::min)
}

fn ends(curves: &[Curve], against: Against) -> impl Iterator<Item = f64> {
    curves.iter().map(move |curve| {
        curve.points.iter().map(|point| point.x[against as usize]).fold(0.0, f64::max)
    })
}

/// `None` where the row does not speak of the metric, NaN where it does without a number.
fn value(run: &RunView, row: &Map<String, Value>, key: &str) -> Option<f64> {
    let read = |key: &str| row.get(key).map(|value| value.as_f64().unwrap_or(f64::NAN));
    match key {
        "gap" => Some(read("objective")? - run.reference_objective?),
        key => read(key),
    }
}

/// The points of one run; of several seeds, mean and deviation at the rounds that all of them have.
fn points<F>(group: &Group, value: F) -> Vec<Point>
where
    F: Fn(&RunView, &Map<String, Value>) -> Option<f64>,
{
    let of = |run: &RunView| -> Vec<Point> {
        let point = |row: &Map<String, Value>| {
            let x = Against::ALL.map(|against| against.value(row));
            Some(Point { x, y: value(run, row)?, sd: None })
        };
        run.rows.iter().filter_map(point).collect()
    };
    if let [run] = group.runs[..] {
        return of(run);
    }
    let mut rounds: BTreeMap<u64, Vec<Point>> = BTreeMap::new();
    for run in &group.runs {
        for point in of(run).into_iter().filter(|point| point.x[0].is_finite()) {
            rounds.entry(point.x[0].max(0.0) as u64).or_default().push(point);
        }
    }
    rounds
        .into_values()
        .filter(|points| points.len() == group.runs.len())
        .filter_map(|points| {
            let x = std::array::from_fn(|axis| {
                points.iter().map(|point| point.x[axis]).sum::<f64>() / points.len() as f64
            });
            let (y, sd) = mean_sd(&points.iter().map(|point| point.y).collect::<Vec<_>>())?;
            Some(Point { x, y, sd })
        })
        .collect()
}

/// At most about 400 points: the lowest and the highest of each stretch, so that no peak is lost.
fn thin(points: Vec<Point>) -> Vec<Point> {
    const MOST: usize = 400;
    if points.len() <= MOST {
        return points;
    }
    let stretch = points.len().div_ceil(MOST / 2);
    let last = points.len() - 1;
    let mut kept = vec![0];
    for start in (0..points.len()).step_by(stretch) {
        let places = start..(start + stretch).min(points.len());
        let by_value = |a: &usize, b: &usize| points[*a].y.total_cmp(&points[*b].y);
        let (low, high) = (places.clone().min_by(by_value), places.max_by(by_value));
        kept.extend(low.into_iter().chain(high));
    }
    kept.push(last);
    kept.sort_unstable();
    kept.dedup();
    kept.into_iter().map(|place| points[place]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::groups;
    use serde_json::json;

    fn run(seed: u64, values: &[f64]) -> RunView {
        let row = |(round, value): (usize, &f64)| {
            let row = json!({ "round": round, "bits_up": 100 * round, "field_norm2": value });
            row.as_object().unwrap().clone()
        };
        RunView { seed, rows: values.iter().enumerate().map(row).collect(), ..RunView::default() }
    }

    #[test]
    fn seeds_are_averaged_where_all_of_them_are() {
        let runs = [run(1, &[1.0, 2.0, 9.0]), run(2, &[3.0, 4.0])];
        let curves = metric(&groups(&runs), &FIELD);
        let (series, _) = series(&curves, Against::Round);
        assert_eq!(series[0].points, [[0.0, 2.0], [1.0, 3.0]]);
        let sd = 2f64.sqrt();
        assert_eq!(series[0].band, [[2.0 - sd, 2.0 + sd], [3.0 - sd, 3.0 + sd]]);
    }

    #[test]
    fn thinning_keeps_ends_and_peaks() {
        let mut values = vec![1.0; 5_000];
        values[1234] = 50.0;
        values[4321] = -7.0;
        let curves = metric(&groups(&[run(1, &values)]), &FIELD);
        let points = &curves[0].points;
        assert!(points.len() <= 420);
        assert_eq!((points[0].x[0], points[points.len() - 1].x[0]), (0.0, 4999.0));
        assert!(points.iter().any(|p| p.y == 50.0) && points.iter().any(|p| p.y == -7.0));
    }

    #[test]
    fn bits_are_on_a_log_axis_when_lines_are_unlike() {
        let mut long = run(1, &[1.0; 3]);
        long.name = "long".into();
        for row in &mut long.rows {
            let bits = row["bits_up"].as_f64().unwrap();
            row.insert("bits_up".into(), json!(bits * 1e5));
        }
        let runs = [run(1, &[1.0; 3]), long];
        let curves = metric(&groups(&runs), &FIELD);
        let (lines, axis) = series(&curves, Against::BitsUp);
        assert_eq!((axis.scale, axis.label.as_str()), (Scale::Log, "Mbit up"));
        assert_eq!(lines[1].points[0], [10.0, 1.0]);
        let (_, axis) = series(&curves[..1], Against::BitsUp);
        assert_eq!((axis.scale, axis.label.as_str()), (Scale::Linear, "bit up"));
    }
}
