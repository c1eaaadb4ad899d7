//! Kaplan-Meier curves of a description.

use super::keys::DescribeFit;
use super::results::{exact, shown};
use crate::files::p_value;
use serde_json::{Value, json};
use whimbrel_core::declare::{Exhibit, Lines, Rows, Section};
use whimbrel_core::method::Artifact;
use whimbrel_engine::metrics::number;
use whimbrel_methods::describe::Spread;
use whimbrel_models::glm::inference::Test;
use whimbrel_models::survival::{Exits, Point, kaplan_meier, log_rank, median};

/// The counts of all rows, or of one category.
struct Counts {
    events: Spread,
    censored: Spread,
    clients: f64,
}

impl Counts {
    fn of(flat: &[f64]) -> Option<Self> {
        let (clients, spreads) = flat.split_last()?;
        let (events, censored) = spreads.split_at(spreads.len() / 2);
        let (events, censored) = (Spread::from_flat(events), Spread::from_flat(censored));
        let found = Self { events, censored, clients: *clients };
        (found.rows() > 0.0).then_some(found)
    }

    fn rows(&self) -> f64 {
        self.events.total + self.censored.total
    }

    /// Whether no client has merged the bins beside an edge.
    fn is_exact(&self, edge: usize) -> bool {
        [&self.events, &self.censored].iter().all(|spread| spread.low[edge] == spread.high[edge])
    }

    /// Numbers between these edges.
    fn exits(&self, edges: &[usize]) -> Exits {
        let steps = |spread: &Spread| -> Vec<f64> {
            let ends = || edges.iter().map(|edge| spread.low[*edge]);
            ends().zip(std::iter::once(0.0).chain(ends())).map(|(to, from)| to - from).collect()
        };
        Exits { rows: self.rows(), events: steps(&self.events), censored: steps(&self.censored) }
    }
}

/// The curve of all rows, or of one category, at the edges that all its clients have kept.
struct Curve {
    name: String,
    edges: Vec<f64>,
    exits: Exits,
    points: Vec<Point>,
    clients: f64,
    events: f64,
    /// The median with the medians of the band.
    median: [Option<f64>; 3],
}

impl Curve {
    fn of(name: &str, grid: &[f64], counts: &Counts) -> Self {
        let exact: Vec<usize> = (0..grid.len()).filter(|edge| counts.is_exact(*edge)).collect();
        let edges: Vec<f64> = exact.iter().map(|edge| grid[*edge]).collect();
        let exits = counts.exits(&exact);
        let points = kaplan_meier(&exits);
        let at = |of: fn(&Point) -> f64| median(&edges, points.iter().map(of));
        let median = [at(|p| p.survival), at(|p| p.low), at(|p| p.high)];
        let (clients, events) = (counts.clients, counts.events.total);
        Self { name: name.into(), edges, exits, points, clients, events, median }
    }

    /// The largest distance to the curve of exact times that censoring within bins can make.
    fn error(&self) -> f64 {
        self.points.iter().map(|point| point.survival - point.least).fold(0.0, f64::max)
    }

    fn json(&self) -> Value {
        let point = |(point, edge): (&Point, &f64)| {
            json!({
                "time": number(*edge),
                "at_risk": number(point.at_risk),
                "events": number(point.events),
                "censored": number(point.censored),
                "survival": number(point.survival),
                "low": number(point.low),
                "high": number(point.high),
            })
        };
        let points: Vec<Value> = self.points.iter().zip(&self.edges).map(point).collect();
        json!({
            "group": self.name,
            "clients": self.clients as u64,
            "rows": self.exits.rows as u64,
            "events": number(self.events),
            "median": self.median[0],
            "median_low": self.median[1],
            "median_high": self.median[2],
            "binning_error": number(self.error()),
            "points": points,
        })
    }

    /// A step curve.
    fn steps(&self, of: fn(&Point) -> f64) -> Vec<[f64; 2]> {
        let (mut steps, mut level) = (vec![[0.0, 1.0]], 1.0);
        for (point, edge) in self.points.iter().zip(&self.edges) {
            let next = of(point);
            if next.is_finite() {
                steps.extend([[*edge, level], [*edge, next]]);
                level = next;
            }
        }
        steps
    }
}

/// Survival of the description, for the summary and the report.
pub(super) fn survival(
    fit: &DescribeFit,
    levels: &[String],
    found: &Artifact,
) -> Option<(Value, Section)> {
    let grid = &found.tensor("times")?.values;
    let counts = |at: usize| Counts::of(&found.tensor(&format!("curve.{at}"))?.values);
    let all = Curve::of("all", grid, &counts(0)?);
    let each = levels.iter().enumerate();
    let groups: Vec<(&String, Counts)> =
        each.filter_map(|(at, name)| Some((name, counts(1 + at)?))).collect();
    let shared: Vec<usize> = (0..grid.len())
        .filter(|edge| groups.iter().all(|(_, group)| group.is_exact(*edge)))
        .collect();
    let exits: Vec<Exits> = groups.iter().map(|(_, group)| group.exits(&shared)).collect();
    let test = log_rank(&exits);
    let groups: Vec<Curve> =
        groups.iter().map(|(name, group)| Curve::of(name, grid, group)).collect();
    let curves: Vec<&Curve> = std::iter::once(&all).chain(&groups).collect();
    let json = json!({
        "time": fit.time,
        "event": fit.event,
        "by": fit.by,
        "curves": curves.iter().map(|curve| curve.json()).collect::<Vec<_>>(),
        "log_rank": test.as_ref().map(|test| json!({
            "statistic": number(test.statistic),
            "df": number(test.degrees),
            "p": number(test.p),
        })),
    });
    let exhibits = vec![
        Exhibit::Text { text: words(&all, grid.len(), test.as_ref()) },
        Exhibit::Table(medians(&curves)),
        Exhibit::Lines(drawn(fit, &all, &groups)),
        Exhibit::Table(life_table(&curves)),
    ];
    Some((json, Section { title: "Survival".into(), exhibits }))
}

fn words(all: &Curve, grid: usize, test: Option<&Test>) -> String {
    let test = test.map_or_else(String::new, |test| {
        let (statistic, df) = (shown(test.statistic), test.degrees);
        format!("; log-rank test: chi-squared {statistic} with {df} df, p {}", p_value(test.p))
    });
    let merged = match grid - all.edges.len() {
        0 => String::new(),
        n => {
            format!("; at {n} of {grid} edges some clients merged bins, and the curve skips these")
        }
    };
    format!(
        "Kaplan-Meier curves of times rounded up to the edges of the grid: censoring within bins makes \
         them at most {} too high{merged}{test}",
        shown(all.error())
    )
}

fn medians(curves: &[&Curve]) -> Rows {
    let time = |edge: Option<f64>| edge.map_or_else(|| "not reached".into(), shown);
    let row = |curve: &&Curve| {
        let mut cells = vec![curve.name.clone(), exact(curve.clients), exact(curve.exits.rows)];
        cells.push(shown(curve.events));
        cells.extend(curve.median.map(time));
        cells
    };
    let heads = ["group", "clients", "rows", "events", "median", "2.5 %", "97.5 %"];
    Rows {
        title: "Survival".into(),
        heads: heads.map(String::from).to_vec(),
        rows: curves.iter().map(row).collect(),
        ..Rows::default()
    }
}

fn drawn(fit: &DescribeFit, all: &Curve, groups: &[Curve]) -> Lines {
    let mut lines: Vec<(String, Vec<[f64; 2]>)> = Vec::new();
    let curve = |curve: &Curve| (curve.name.clone(), curve.steps(|p| p.survival));
    if let Some((first, others)) = groups.split_first() {
        // The second line is drawn as a reference.
        lines.extend([curve(first), curve(all)]);
        lines.extend(others.iter().map(curve));
    } else {
        let mut band = all.steps(|p| p.low);
        band.extend(all.steps(|p| p.high).into_iter().rev());
        lines.extend([curve(all), ("95 % band".into(), band)]);
    }
    let time = fit.time.as_deref().unwrap_or_default();
    let by = fit.by.as_ref().map_or_else(String::new, |by| format!(", by {by}"));
    Lines {
        title: "Kaplan-Meier".into(),
        caption: format!("Share without an event by {time}{by}"),
        axis: time.into(),
        bounds: None,
        lines,
    }
}

fn life_table(curves: &[&Curve]) -> Rows {
    let mut rows = Vec::new();
    for curve in curves {
        for (point, edge) in curve.points.iter().zip(&curve.edges) {
            let Point { at_risk, events, censored, survival, low, high, .. } = *point;
            let mut row = vec![curve.name.clone(), shown(*edge)];
            row.extend([at_risk, events, censored, survival, low, high].map(shown));
            rows.push(row);
        }
    }
    let heads = ["group", "time", "at risk", "events", "censored", "survival", "2.5 %", "97.5 %"];
    Rows {
        title: "Life table".into(),
        heads: heads.map(String::from).to_vec(),
        rows,
        collapsed: true,
        ..Rows::default()
    }
}
