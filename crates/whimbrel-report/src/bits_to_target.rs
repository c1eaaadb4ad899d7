//! Bits that each job needs to reach given distances from the optimum.

use crate::curves::{self, Against, Point};
use crate::declared;
use crate::format::{bits, escape, number};
use crate::group::{Group, groups};
use crate::plot::Scale;
use crate::plot::style::swatch;
use crate::table::text_table;
use crate::view::RunView;
use whimbrel_core::declare::Role;

/// The levels of the report's table.
pub const LEVELS: [f64; 4] = [1e-1, 1e-2, 1e-3, 1e-4];

/// The text for a level that was not reached.
const NEVER: &str = "never";

/// Bits, up and down, that jobs needed to reach each level.
#[derive(Clone, Debug, PartialEq)]
pub struct BitsToReach {
    /// The quantity, such as `excess loss` or `gap to reference`.
    pub quantity: String,
    /// The levels that some job reached, in the given order.
    pub levels: Vec<f64>,
    pub rows: Vec<Reached>,
}

/// The row of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Reached {
    /// The job's name, as elsewhere in the report.
    pub label: String,
    /// Bits up and down (means over seeds) until the first evaluated round at or below each level;
    /// `None` without such a round.
    pub bits: Vec<Option<f64>>,
    style: usize,
}

/// The bits in both directions of each job until its first evaluated round with an excess loss at or
/// below each of `levels`. Over seeds, the excess is the geometric mean at rounds that all seeds have.
/// If no run has an excess loss, the gap to the reference is used.
///
/// `None` if no job reaches any level. Jobs without bits, such as pooled ones, have no row.
pub fn bits_to_reach(runs: &[RunView], levels: &[f64]) -> Option<BitsToReach> {
    of_groups(&groups(runs), levels)
}

pub(crate) fn of_groups(groups: &[Group], levels: &[f64]) -> Option<BitsToReach> {
    let measures = declared::measures(groups);
    let excess = measures.iter().filter(|measure| measure.role == Role::Excess);
    let gap = measures.iter().filter(|measure| measure.key == declared::GAP);
    let (quantity, courses) = excess.chain(gap).find_map(|measure| {
        let course = |group| Course::new(curves::course(group, &measure.key));
        let courses: Vec<Course> = groups.iter().map(course).collect();
        let has_value = courses.iter().any(|course| !course.0.is_empty());
        has_value.then(|| (measure.name.to_string(), courses))
    })?;
    let reached = |level: f64| courses.iter().any(|course| course.bits_until(level).is_some());
    let levels: Vec<f64> = levels.iter().copied().filter(|&level| reached(level)).collect();
    let rows = groups.iter().zip(&courses).enumerate().filter(|(_, (_, c))| !c.0.is_empty()).map(
        |(style, (group, course))| Reached {
            label: group.label.clone(),
            bits: levels.iter().map(|&level| course.bits_until(level)).collect(),
            style,
        },
    );
    let rows = rows.collect();
    (!levels.is_empty()).then_some(BitsToReach { quantity, levels, rows })
}

impl BitsToReach {
    /// The table for a terminal; in brackets, the ratio to the best job.
    pub fn text(&self) -> String {
        let first = format!("bits to {}", self.quantity);
        let levels: Vec<String> = self.levels.iter().map(|level| format!("{level:e}")).collect();
        let heads: Vec<&str> = std::iter::once(&first).chain(&levels).map(String::as_str).collect();
        let cell = |row: &Reached, place: usize| {
            let times = self.times_best(row, place).map_or(String::new(), |t| format!(" ({t})"));
            row.bits[place].map_or(NEVER.into(), |value| bits(value) + &times)
        };
        let line = |row: &Reached| {
            let cells = (0..self.levels.len()).map(|place| cell(row, place));
            std::iter::once(row.label.clone()).chain(cells).collect()
        };
        text_table(&heads, &self.rows.iter().map(line).collect::<Vec<_>>())
    }

    /// The table of the page, with ratios in separate elements so that bits align.
    pub(crate) fn html(&self, swatches: bool) -> String {
        let ratio = |place: usize, text: &str| {
            let some = self.rows.iter().any(|row| self.times_best(row, place).is_some());
            if some { format!("<span class=\"times\">{text}</span>") } else { String::new() }
        };
        let heads: String = (0..self.levels.len())
            .map(|place| {
                let level = power(self.levels[place]);
                format!("<th scope=\"col\">{level}{}</th>", ratio(place, ""))
            })
            .collect();
        let cell = |row: &Reached, place: usize| {
            let never = || format!("<span class=\"quiet\">{NEVER}</span>");
            let text = row.bits[place].map_or_else(never, bits);
            let times = ratio(place, &self.times_best(row, place).unwrap_or_default());
            let level = power(self.levels[place]);
            format!("<td><span class=\"level\">{level}</span><span>{text}{times}</span></td>")
        };
        let line = |row: &Reached| {
            let cells: String = (0..self.levels.len()).map(|place| cell(row, place)).collect();
            let swatch = if swatches { swatch(row.style) } else { String::new() };
            format!("<tr><th scope=\"row\">{swatch}{}</th>{cells}</tr>\n", escape(&row.label))
        };
        let rows: String = self.rows.iter().map(line).collect();
        format!(
            "<table class=\"runs reach\"><thead><tr><th scope=\"col\">run</th>{heads}</tr></thead>\
             <tbody>{rows}</tbody></table>\n"
        )
    }

    /// The ratio of a row's bits to the fewest, as text; `None` for the best row.
    fn times_best(&self, row: &Reached, place: usize) -> Option<String> {
        let best = self.rows.iter().filter_map(|row| row.bits[place]).min_by(f64::total_cmp)?;
        let bits = row.bits[place].filter(|&bits| bits > best && best > 0.0)?;
        Some(format!("× {}", number(bits / best, 2)))
    }
}

/// The rounds of a job with a value and bits.
struct Course(Vec<Point>);

impl Course {
    fn new(points: Vec<Point>) -> Self {
        let known =
            |point: &Point| point.on(Scale::Linear).y.is_finite() && bits_at(point).is_finite();
        Self(points.into_iter().filter(known).collect())
    }

    fn bits_until(&self, level: f64) -> Option<f64> {
        let below = |point: &&Point| {
            let geometric = point.on(Scale::Log).y;
            // No seed has a positive value: all are at the optimum to rounding.
            geometric.is_nan() || geometric <= level
        };
        self.0.iter().find(below).map(bits_at)
    }
}

fn bits_at(point: &Point) -> f64 {
    point.x[Against::BitsBoth as usize]
}

/// A level as HTML, with powers of ten as superscripts.
fn power(level: f64) -> String {
    let text = format!("{level:e}");
    match text.strip_prefix("1e") {
        Some(exponent) => format!("10<sup>{}</sup>", exponent.replace('-', "−")),
        None => text.replace('-', "−"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declared::tests::some;
    use serde_json::{Value, json};

    /// A run that is evaluated every ten rounds and sends `bits` up and as many down in each.
    fn run(name: &str, seed: u64, bits: u64, key: &str, values: &[f64]) -> RunView {
        let row = |(place, value): (usize, &f64)| {
            let sent = bits * 10 * place as u64;
            let row =
                json!({ "round": 10 * place, "bits_up": sent, "bits_down": sent, key: value });
            row.as_object().unwrap().clone()
        };
        let rows = values.iter().enumerate().map(row).collect();
        RunView { name: name.into(), seed, rows, measures: some(), ..RunView::default() }
    }

    #[test]
    fn first_rounds_at_or_below_a_level_are_counted() {
        let runs = [
            run("sgd", 1, 3_200, "excess_loss", &[0.5, 0.1, 0.02, 0.01, 0.002]),
            run("mcm", 1, 100, "excess_loss", &[0.5, 0.2, 0.04, 0.009, 0.03]),
            run("artemis", 1, 100, "excess_loss", &[0.5, 0.3, 0.2, 0.09, 0.08]),
            run("pooled", 1, 100, "objective", &[0.5, 0.3]),
        ];
        let table = bits_to_reach(&runs, &LEVELS).unwrap();
        insta::assert_snapshot!(table.text(), @r"
        bits to excess loss            1e-1             1e-2
        -------------------  --------------  ---------------
        sgd                  64 kbit (× 16)  192 kbit (× 32)
        mcm                          4 kbit           6 kbit
        artemis              6 kbit (× 1.5)            never
        ");
        assert!(table.html(true).contains("64 kbit<span class=\"times\">× 16</span>"));
    }

    #[test]
    fn seeds_reach_a_level_by_their_geometric_mean() {
        // At the second row the geometric mean is 0.01, the arithmetic one 0.05.
        let mut runs = [
            run("mcm", 1, 5, "excess_loss", &[1.0, 0.1, 1e-3]),
            run("mcm", 2, 5, "excess_loss", &[1.0, 0.001, 1e-5, 1e-9]),
        ];
        let table = bits_to_reach(&runs, &[1.1e-2, 1e-6]).unwrap();
        assert_eq!((table.levels, table.rows[0].bits.clone()), (vec![1.1e-2], vec![Some(100.0)]));
        // A seed without a number is not a seed that arrived.
        runs[0].rows[1].insert("excess_loss".into(), Value::Null);
        let table = bits_to_reach(&runs, &[1.1e-2]).unwrap();
        assert_eq!(table.rows[0].bits, [Some(200.0)]);
    }

    #[test]
    fn rounding_below_the_optimum_counts_as_there() {
        let values = [1.0, -1e-17];
        let runs = [run("sgd", 1, 5, "excess_loss", &values)];
        assert_eq!(bits_to_reach(&runs, &[1e-4]).unwrap().rows[0].bits, [Some(100.0)]);
    }

    #[test]
    fn gaps_stand_in_for_excess() {
        let mut runs = [run("fedem", 1, 5, "objective", &[3.0, 2.55, 2.505])];
        assert_eq!(bits_to_reach(&runs, &LEVELS), None);
        runs[0].reference_objective = Some(2.5);
        let table = bits_to_reach(&runs, &LEVELS).unwrap();
        assert_eq!(table.quantity, "gap to reference");
        assert_eq!(table.levels, [1e-1, 1e-2]);
        assert_eq!(table.rows[0].bits, [Some(100.0), Some(200.0)]);
        runs[0].rows.iter_mut().for_each(|row| row.retain(|key, _| key != "bits_down"));
        assert_eq!(bits_to_reach(&runs, &LEVELS), None);
    }
}
