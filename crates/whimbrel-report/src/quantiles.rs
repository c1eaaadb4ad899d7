//! Quantiles over clients, one line per run: each per-client figure from the lowest client to the
//! highest.

use crate::declared;
use crate::exhibits::figure;
use crate::group::Group;
use crate::plot::{AxisSpec, LineChart, Scale, Series};
use crate::sections::{side_by_side, spread};

/// One chart per per-client figure that at least two runs have.
pub(crate) fn over_clients(groups: &[Group]) -> String {
    if groups.len() < 2 {
        return String::new();
    }
    let measures = declared::measures(groups);
    let charts: String = measures
        .iter()
        .filter(|measure| measure.per_client)
        .filter_map(|measure| {
            let series = groups.iter().enumerate().map(|(style, group)| Series {
                label: group.label.clone(),
                style,
                points: quantiles(group, &measure.key),
                band: Vec::new(),
                left_out: Some(0),
            });
            let series: Vec<Series> = series.filter(|series| series.points.len() > 1).collect();
            (series.len() > 1).then(|| {
                let title = format!("{} over clients", measure.title);
                let x = AxisSpec::new("share of clients", Scale::Linear);
                let y = AxisSpec::new(measure.name.clone(), Scale::Linear);
                let mut chart = LineChart::new(title.clone(), x, y, series);
                chart.name_ends = true;
                figure(&title, "From the lowest client to the highest", &chart.svg())
            })
        })
        .collect();
    side_by_side(charts)
}

/// The most points of a line.
const POINTS: usize = 200;

/// Quantiles (share of clients, value) over the clients of all seeds.
fn quantiles(group: &Group, key: &str) -> Vec<[f64; 2]> {
    let clients = group.runs.iter().flat_map(|run| &run.clients);
    let mut values: Vec<f64> =
        clients.filter_map(|client| client.figures.get(key).copied()).collect();
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let share = |place: usize| (place as f64 + 0.5) / values.len() as f64;
    spread(values.len(), POINTS).map(|place| [share(place), values[place]]).collect()
}
