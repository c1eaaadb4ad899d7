//! Lines of metrics, against rounds, epochs or bits, averaged over seeds.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use whimbrel_core::Measure;
use whimbrel_core::declare;

use crate::declared::GAP;
use crate::format::bit_unit;
use crate::group::{Group, geometric, mean_sd};
use crate::plot::{AxisSpec, Scale, Series};
use crate::view::{RunView, number};

/// The horizontal coordinate.
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

/// One line with all horizontal coordinates.
pub(crate) struct Curve {
    pub label: String,
    pub style: usize,
    /// At most a few hundred.
    pub points: Vec<Point>,
    /// The number of values that each scale cannot show, before thinning.
    left_out: [usize; 2],
}

/// One evaluated round of a run, or of several seeds.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    /// One per [`Against`]; NaN if unknown.
    pub x: [f64; 4],
    linear: Mark,
    log: Mark,
    left_out: [usize; 2],
}

/// The value and deviation drawn at a point.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    /// The mean over seeds on a linear axis, the geometric mean on a log axis; NaN without one.
    pub y: f64,
    /// The standard deviation over seeds, of log10 on a log axis.
    pub sd: Option<f64>,
}

impl Point {
    /// The point of a round from the values of its seeds. Non-positive values are left out of the mean
    /// of logarithms; a value that is not finite leaves no mean.
    fn new(x: [f64; 4], values: &[f64]) -> Self {
        let nothing = Mark { y: f64::NAN, sd: None };
        let mark = |(y, sd)| Mark { y, sd };
        let linear = mean_sd(values).map_or(nothing, mark);
        let positive: Vec<f64> = values.iter().copied().filter(|&v| Scale::Log.draws(v)).collect();
        let log = match (values.iter().all(|v| v.is_finite()), geometric(&positive)) {
            (true, Some(mean_sd)) => mark(mean_sd),
            _ => nothing,
        };
        let drawn = if log.y.is_nan() { 0 } else { positive.len() };
        let left_out = [usize::from(!Scale::Linear.draws(linear.y)), values.len() - drawn];
        Self { x, linear, log, left_out }
    }

    pub fn on(&self, scale: Scale) -> Mark {
        match scale {
            Scale::Linear => self.linear,
            Scale::Log => self.log,
        }
    }
}

impl Mark {
    fn band(self, scale: Scale) -> [f64; 2] {
        let sd = self.sd.unwrap_or(0.0);
        match scale {
            Scale::Linear => [self.y - sd, self.y + sd],
            Scale::Log => [self.y / 10f64.powf(sd), self.y * 10f64.powf(sd)],
        }
    }
}

/// The lines of a metric, one per group with a finite value.
pub(crate) fn metric(groups: &[Group], metric: &Measure) -> Vec<Curve> {
    let drawn = |curve: &Curve| curve.points.iter().any(|point| point.linear.y.is_finite());
    let scale = match metric.scale {
        declare::Scale::Log => Scale::Log,
        declare::Scale::Linear => Scale::Linear,
    };
    of_key(groups, &metric.key, scale).into_iter().filter(drawn).collect()
}

/// The lines of a metric by its key, one per group, thinned for one scale.
pub(crate) fn of_key(groups: &[Group], key: &str, scale: Scale) -> Vec<Curve> {
    let line = |(style, group): (usize, &Group)| {
        Curve::new(group.label.clone(), style, course(group, key), scale)
    };
    groups.iter().enumerate().map(line).collect()
}

/// The same lines over the second half of the longest one's rounds.
pub(crate) fn second_half(curves: &[Curve]) -> Vec<Curve> {
    let round = |point: &Point| point.x[Against::Round as usize];
    let most = curves.iter().flat_map(|curve| &curve.points).map(round).fold(0.0, f64::max);
    let late = |point: &&Point| round(point) >= most / 2.0;
    let half = |curve: &Curve| Curve {
        label: curve.label.clone(),
        style: curve.style,
        points: curve.points.iter().filter(late).copied().collect(),
        left_out: [0, 0],
    };
    let halves = curves.iter().map(half);
    halves.filter(|curve| curve.points.len() > 1).collect()
}

/// All points of a group's line.
pub(crate) fn course(group: &Group, key: &str) -> Vec<Point> {
    points(group, |run, row| value(run, row, key))
}

/// The entries of a list-valued metric, one line each, in this order.
pub(crate) fn entries(run: &RunView, key: &str, order: &[usize]) -> Vec<Curve> {
    let list = |row: &Map<String, Value>| row.get(key).and_then(Value::as_array).cloned();
    let count = run.rows.iter().filter_map(list).map(|w| w.len()).max().unwrap_or(0);
    (0..count)
        .map(|place| {
            let entry = if order.len() == count { order[place] } else { place };
            let of = |_: &RunView, row: &Map<String, Value>| {
                Some(list(row)?.get(entry)?.as_f64().unwrap_or(f64::NAN))
            };
            let group = Group { label: String::new(), runs: vec![run] };
            Curve::new((place + 1).to_string(), place, points(&group, of), Scale::Linear)
        })
        .collect()
}

impl Curve {
    /// A line thinned so that its peaks on `scale` are kept.
    fn new(label: String, style: usize, points: Vec<Point>, scale: Scale) -> Self {
        let left_out =
            [0, 1].map(|scale| points.iter().map(|point| point.left_out[scale]).sum::<usize>());
        Self { label, style, points: thin(points, scale), left_out }
    }
}

/// Lines against one coordinate, and its axis; `scale` is that of the vertical axis. All lines share
/// one unit of bits. If one line is much longer than another, bits are on a log axis, without the
/// points before the first bit.
pub(crate) fn series(curves: &[Curve], against: Against, scale: Scale) -> (Vec<Series>, AxisSpec) {
    let in_bits = matches!(against, Against::BitsUp | Against::BitsBoth);
    let (unit, label) = if in_bits { bits_axis(curves, against) } else { (1.0, String::new()) };
    let log = in_bits && unlike(curves, against);
    let series = curves.iter().map(|curve| {
        let kept = || curve.points.iter().filter(|point| !log || point.x[against as usize] > 0.0);
        let banded = curve.points.iter().any(|point| point.on(scale).sd.is_some());
        let place = |point: &Point| [point.x[against as usize] / unit, point.on(scale).y];
        Series {
            label: curve.label.clone(),
            style: curve.style,
            points: kept().map(place).collect(),
            band: kept().filter(|_| banded).map(|point| point.on(scale).band(scale)).collect(),
            left_out: Some(curve.left_out[scale as usize]),
        }
    });
    let label = if in_bits { label } else { against.words().to_string() };
    let x_scale = if log { Scale::Log } else { Scale::Linear };
    (series.collect(), AxisSpec::new(label, x_scale))
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

/// `None` if the row lacks the metric, NaN if its value is not a number.
fn value(run: &RunView, row: &Map<String, Value>, key: &str) -> Option<f64> {
    let read = |key: &str| row.get(key).map(|value| value.as_f64().unwrap_or(f64::NAN));
    match key {
        GAP => Some(read(run.objective_key()?)? - run.reference_objective?),
        key => read(key),
    }
}

/// One point per round that all seeds have, without leading rounds in which the quantity is `null`.
fn points<F>(group: &Group, value: F) -> Vec<Point>
where
    F: Fn(&RunView, &Map<String, Value>) -> Option<f64>,
{
    let of = |run: &RunView| -> Vec<([f64; 4], f64)> {
        let point = |row| Some((Against::ALL.map(|against| against.value(row)), value(run, row)?));
        run.rows.iter().filter_map(point).skip_while(|(_, y)| y.is_nan()).collect()
    };
    if let [run] = group.runs[..] {
        return of(run).into_iter().map(|(x, y)| Point::new(x, &[y])).collect();
    }
    let mut rounds: BTreeMap<u64, Vec<([f64; 4], f64)>> = BTreeMap::new();
    for run in &group.runs {
        for point in of(run).into_iter().filter(|(x, _)| x[0].is_finite()) {
            rounds.entry(point.0[0].max(0.0) as u64).or_default().push(point);
        }
    }
    rounds
        .into_values()
        .filter(|seeds| seeds.len() == group.runs.len())
        .map(|seeds| {
            let mean = |axis| seeds.iter().map(|(x, _)| x[axis]).sum::<f64>() / seeds.len() as f64;
            let values: Vec<f64> = seeds.iter().map(|(_, y)| *y).collect();
            Point::new(std::array::from_fn(mean), &values)
        })
        .collect()
}

/// At most about 400 points, 600 if values are missing: the lowest and the highest of each stretch,
/// to keep peaks, and one that cannot be drawn, to keep gaps.
fn thin(points: Vec<Point>, scale: Scale) -> Vec<Point> {
    const MOST: usize = 400;
    if points.len() <= MOST {
        return points;
    }
    let stretch = points.len().div_ceil(MOST / 2);
    let last = points.len() - 1;
    let mut kept = vec![0];
    for start in (0..points.len()).step_by(stretch) {
        let height = |place: &usize| points[*place].on(scale).y;
        let by_value = |a: &usize, b: &usize| height(a).total_cmp(&height(b));
        let places = start..(start + stretch).min(points.len());
        let drawn = || places.clone().filter(|place| scale.draws(height(place)));
        kept.extend([drawn().min_by(by_value), drawn().max_by(by_value)].into_iter().flatten());
        kept.extend(places.clone().find(|place| !scale.draws(height(place))));
    }
    kept.push(last);
    kept.sort_unstable();
    kept.dedup();
    kept.into_iter().map(|place| points[place]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declared::tests::some;
    use crate::group::groups;
    use serde_json::json;

    fn field() -> Measure {
        some().remove(2)
    }

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
        let curves = metric(&groups(&runs), &field());
        let (series, _) = series(&curves, Against::Round, Scale::Linear);
        assert_eq!(series[0].points, [[0.0, 2.0], [1.0, 3.0]]);
        let sd = 2f64.sqrt();
        assert_eq!(series[0].band, [[2.0 - sd, 2.0 + sd], [3.0 - sd, 3.0 + sd]]);
    }

    #[test]
    fn on_log_axes_seeds_are_averaged_by_their_logarithms() {
        let runs = [run(1, &[1e-1, 1e-3, 0.0, -1.0]), run(2, &[1e-3, 1e-7, 1e-4, 0.0])];
        let curves = metric(&groups(&runs), &field());
        let (series, _) = series(&curves, Against::Round, Scale::Log);
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
        // log10 is -1 and -3, then -3 and -7; their deviations are the roots of 2 and 8.
        for (place, mean, sd) in [(0, 1e-2, 2f64.sqrt()), (1, 1e-5, 8f64.sqrt())] {
            assert!(close(series[0].points[place][1], mean));
            let [low, high] = series[0].band[place];
            assert!(close(low, mean / 10f64.powf(sd)) && close(high, mean * 10f64.powf(sd)));
        }
        // One seed is left of the third round, none of the fourth: three values are left out.
        assert_eq!(series[0].points[2][1], 1e-4);
        assert!(series[0].points[3][1].is_nan());
        assert_eq!(series[0].left_out, Some(3));
    }

    #[test]
    fn values_that_thinning_drops_still_count_as_left_out() {
        let values: Vec<f64> = (0..4_000).map(|k| if k % 8 == 0 { 0.0 } else { 1.0 }).collect();
        let curves = metric(&groups(&[run(1, &values)]), &field());
        let (series, _) = series(&curves, Against::Round, Scale::Log);
        assert!(series[0].points.len() <= 602);
        assert_eq!(series[0].left_out, Some(500));
    }

    #[test]
    fn a_quantity_that_starts_later_is_not_missing_before() {
        let mut run = run(1, &[1.0, 2.0, 3.0]);
        run.rows[0].insert("field_norm2".into(), Value::Null);
        let curves = metric(&groups(std::slice::from_ref(&run)), &field());
        let (lines, _) = series(&curves, Against::Round, Scale::Log);
        assert_eq!((lines[0].points[0], lines[0].left_out), ([1.0, 2.0], Some(0)));
    }

    #[test]
    fn thinning_keeps_ends_and_peaks() {
        let mut values = vec![1.0; 5_000];
        values[1234] = 50.0;
        values[1235] = 0.0;
        values[4321] = 1e-7;
        let curves = metric(&groups(&[run(1, &values)]), &field());
        let points = &curves[0].points;
        assert!(points.len() <= 420);
        assert_eq!((points[0].x[0], points[points.len() - 1].x[0]), (0.0, 4999.0));
        let kept = |y: f64| points.iter().any(|point| point.linear.y == y);
        assert!(kept(50.0) && kept(0.0) && kept(1e-7));
    }

    #[test]
    fn entries_follow_the_given_order() {
        let row = json!({ "round": 0, "weights": [0.5, 0.2, 0.3] }).as_object().unwrap().clone();
        let run = RunView { rows: vec![row], ..RunView::default() };
        let shown = |order: &[usize]| -> Vec<f64> {
            entries(&run, "weights", order).iter().map(|curve| curve.points[0].linear.y).collect()
        };
        assert_eq!(shown(&[2, 1, 0]), [0.3, 0.2, 0.5]);
        assert_eq!(shown(&[]), [0.5, 0.2, 0.3]);
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
        let curves = metric(&groups(&runs), &field());
        let (lines, axis) = series(&curves, Against::BitsUp, Scale::Log);
        assert_eq!((axis.scale, axis.label.as_str()), (Scale::Log, "Mbit up"));
        assert_eq!(lines[1].points[0], [10.0, 1.0]);
        let (_, axis) = series(&curves[..1], Against::BitsUp, Scale::Log);
        assert_eq!((axis.scale, axis.label.as_str()), (Scale::Linear, "bit up"));
    }
}
