//! Declarations of figures. Summary, metrics file, terminal, report, dashboard, comparison and
//! Prometheus follow from them and know no figure by name.
//!
//! [`Measure`] declares a figure of an evaluation. [`Exhibit`] is a figure or table that a family
//! fills for the report of a finished run.

use crate::method::MetricValue;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Text from the source or from a run's folder.
type Text = Cow<'static, str>;

/// Most names in a warning.
const NAMED_MAX: usize = 8;

/// A figure of evaluations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// The key in `metrics.jsonl`.
    pub key: Text,
    /// The title of its curve.
    pub title: Text,
    /// The name in tables and on the terminal.
    pub name: Text,
    /// The meaning, on one line.
    pub caption: Text,
    pub unit: Unit,
    /// The default axis of its curve.
    pub scale: Scale,
    pub better: Better,
    pub over_clients: OverClients,
    pub over_seeds: OverSeeds,
    /// Digits in a table of results.
    pub digits: u8,
    pub role: Role,
    /// Whether its last value is a key of `summary.json`.
    pub summary: bool,
    /// Whether it is a result: a column of the terminal's table, a tile of report and dashboard.
    pub headline: bool,
    /// Whether it has a curve over the run.
    pub curve: bool,
    /// Whether each client has its own value, stored in `clients.csv`.
    pub per_client: bool,
    /// The warning if its last value, or an entry of its last list, is not zero; `{}` is replaced
    /// by the value, or by the names of all such entries.
    pub warning: Option<Text>,
    /// Names of the things that a list numbers from 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Text>,
    /// Whether the warning makes the run end as degenerate.
    pub defect: bool,
    /// The value of a converged run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
}

/// The value of a measure at which a run counts as converged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    pub at_most: f64,
    /// The advice for a run that ends above it.
    pub remedy: Text,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A number without a unit.
    #[default]
    Plain,
    Count,
    Bits,
    /// A fraction from 0 to 1.
    Share,
}

/// The scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    #[default]
    Linear,
    /// Logarithmic; values that are not positive are left out.
    Log,
}

/// The better direction of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    Up,
    Down,
    #[default]
    Neither,
}

/// Pooling of a figure over clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverClients {
    /// None: the figure belongs to the server.
    #[default]
    Server,
    /// The mean with the weights of the objective.
    Weighted,
    /// The mean with equal weights.
    Mean,
    /// The mean over all rows.
    Rows,
    /// The mean weighted by training rows.
    TrainingRows,
    Sum,
    Percentile(u8),
}

impl OverClients {
    /// The text for reports; empty for figures of the server.
    pub fn words(self) -> String {
        match self {
            Self::Server => String::new(),
            Self::Weighted => "weighted mean over clients".into(),
            Self::Mean => "mean over clients".into(),
            Self::Rows => "mean over all rows".into(),
            Self::TrainingRows => "mean over clients, by training rows".into(),
            Self::Sum => "sum over clients".into(),
            Self::Percentile(p) => format!("{p}th percentile over clients"),
        }
    }
}

/// Pooling of a figure over seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverSeeds {
    /// The mean, for counts.
    Mean,
    /// Mean and standard deviation.
    #[default]
    Spread,
    /// Mean and standard deviation of log10.
    LogSpread,
}

/// The purpose of a figure beyond display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    #[default]
    Shown,
    /// The objective; gaps to a reference are measured in it.
    Objective,
    /// Zero at the optimum: reports count the bits to reach levels of it.
    Excess,
    /// A horizontal axis, like rounds and bits.
    Axis,
    /// A list of numbers with one curve each.
    List,
}

impl Measure {
    /// A figure of the server with a curve on a linear axis, outside the tables of results.
    pub fn new(
        key: impl Into<Text>,
        title: impl Into<Text>,
        name: impl Into<Text>,
        caption: impl Into<Text>,
    ) -> Self {
        Self {
            key: key.into(),
            title: title.into(),
            name: name.into(),
            caption: caption.into(),
            unit: Unit::Plain,
            scale: Scale::Linear,
            better: Better::Neither,
            over_clients: OverClients::Server,
            over_seeds: OverSeeds::Spread,
            digits: 3,
            role: Role::Shown,
            summary: false,
            headline: false,
            curve: true,
            per_client: false,
            warning: None,
            labels: Vec::new(),
            defect: false,
            goal: None,
        }
    }

    /// The objective: the mean over clients with the objective's weights.
    pub fn objective(caption: impl Into<Text>) -> Self {
        let new = Self::new("objective", "Objective", "objective", caption).result(7);
        new.role(Role::Objective).better(Better::Down).clients(OverClients::Weighted)
    }

    /// Sets a log axis and pools seeds by logarithms.
    #[must_use]
    pub fn log(mut self) -> Self {
        self.scale = Scale::Log;
        self.over_seeds = OverSeeds::LogSpread;
        self
    }

    /// Sets the unit; counts are pooled over seeds by the mean.
    #[must_use]
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        if matches!(unit, Unit::Count | Unit::Bits) {
            self.over_seeds = OverSeeds::Mean;
        }
        self
    }

    /// Sets the better direction.
    #[must_use]
    pub fn better(mut self, better: Better) -> Self {
        self.better = better;
        self
    }

    /// Sets the pooling over clients.
    #[must_use]
    pub fn clients(mut self, over_clients: OverClients) -> Self {
        self.over_clients = over_clients;
        self
    }

    /// Sets the purpose.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Adds it to `summary.json`.
    #[must_use]
    pub fn summary(mut self) -> Self {
        self.summary = true;
        self
    }

    /// Makes it a result with this number of digits: in the summary, the terminal's table and the
    /// tiles.
    #[must_use]
    pub fn result(mut self, digits: u8) -> Self {
        self.digits = digits;
        self.headline = true;
        self.summary()
    }

    /// Removes its curve.
    #[must_use]
    pub fn without_curve(mut self) -> Self {
        self.curve = false;
        self
    }

    /// Sets the warning if it does not end at zero.
    #[must_use]
    pub fn warning(mut self, text: impl Into<Text>) -> Self {
        self.warning = Some(text.into());
        self
    }

    /// Sets a warning that makes the run degenerate; the text states the problem and a remedy.
    #[must_use]
    pub fn defect(self, text: impl Into<Text>) -> Self {
        Self { defect: true, ..self.warning(text) }
    }

    /// Sets the names of the things that a list numbers.
    #[must_use]
    pub fn labels(mut self, names: Vec<String>) -> Self {
        self.labels = names.into_iter().map(Text::from).collect();
        self
    }

    /// Sets the value of a converged run, and the advice for others.
    #[must_use]
    pub fn goal(mut self, at_most: f64, remedy: impl Into<Text>) -> Self {
        self.goal = Some(Goal { at_most, remedy: remedy.into() });
        self
    }

    /// Adds a value per client.
    #[must_use]
    pub fn per_client(mut self) -> Self {
        self.per_client = true;
        self
    }
}

impl Measure {
    /// The warnings of a run that ended with this value.
    pub fn warnings(&self, last: &MetricValue) -> Vec<String> {
        let values = match last {
            MetricValue::Number(value) => std::slice::from_ref(value),
            MetricValue::List(values) => values,
            MetricValue::Missing => &[],
        };
        let wrong = values.iter().filter(|value| **value != 0.0);
        if !self.labels.is_empty() {
            let named = wrong.filter_map(|at| self.labels.get((*at as usize).checked_sub(1)?));
            let names: Vec<&str> = named.map(|name| &**name).collect();
            let text = self.warning.iter().filter(|_| !names.is_empty());
            return text.map(|text| text.replace("{}", &listed(&names))).collect();
        }
        // Three digits of what is no count.
        let shown = |value: &f64| match value.fract() {
            0.0 => *value,
            _ => format!("{value:.2e}").parse().unwrap_or(*value),
        };
        let said = self.warning.iter().flat_map(|text| {
            wrong.clone().map(move |value| text.replace("{}", &shown(value).to_string()))
        });
        said.collect()
    }
}

/// The first names, and the number of the others.
fn listed(names: &[&str]) -> String {
    let (shown, more) = names.split_at(names.len().min(NAMED_MAX));
    match more.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A titled section of a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// The title; sections of several runs with one title are shown together.
    pub title: String,
    pub exhibits: Vec<Exhibit>,
}

/// A figure, table or sentence of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Exhibit {
    Text {
        text: String,
    },
    Table(Rows),
    /// The entries of a list metric, one curve each over the run.
    Entries {
        /// The metric's key.
        key: String,
        /// The order in which entries are numbered; empty for theirs.
        order: Vec<usize>,
    },
    Lines(Lines),
    Histogram {
        title: String,
        /// The label of the value axis.
        axis: String,
        /// The counted things, in the plural.
        counted: String,
        values: Vec<f64>,
    },
    /// Heat maps of one matrix on one colour scale.
    Heat(Heat),
    /// One value per label, with intervals, a smooth curve and counts.
    Series(Series),
    /// Points in the plane with ellipses.
    Scatter(Scatter),
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// The caption; may be empty.
    pub title: String,
    /// Column headers.
    pub heads: Vec<String>,
    /// Cells by row; the first cell of a row is its header.
    pub rows: Vec<Vec<String>>,
    /// Whether it is collapsed at first.
    pub collapsed: bool,
    /// Whether rows are components, with their colours of a [`Scatter`].
    pub swatches: bool,
}

/// Lines in the plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    pub title: String,
    pub caption: String,
    /// The label of the horizontal axis.
    pub axis: String,
    /// The common range of both axes, if any.
    pub bounds: Option<[f64; 2]>,
    /// Names and points; the second curve is the reference.
    pub lines: Vec<(String, Vec<[f64; 2]>)>,
}

/// Heat maps of one matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// Number of blocks vertically.
    pub rows: usize,
    /// Number of blocks horizontally.
    pub columns: usize,
    /// Rows and columns of the matrix.
    pub shape: [usize; 2],
    /// Names of rows and of columns; may be empty.
    pub names: [Vec<String>; 2],
    pub maps: Vec<HeatMap>,
}

/// Most clients with a row of their own in a heat map.
const CLIENTS_MAX: usize = 200;

impl Heat {
    /// A heat map of the clients' numbers for each component, rounded to four decimals. Many clients
    /// share rows, which show means.
    pub fn of_components(
        [title, caption]: [String; 2],
        names: &[String],
        components: usize,
        each: &[Option<Vec<f64>>],
    ) -> Self {
        let rows = each.len().min(CLIENTS_MAX);
        let block = |row: usize| &each[row * each.len() / rows..(row + 1) * each.len() / rows];
        let mean = |row: usize, k: usize| {
            let known = || block(row).iter().flatten();
            let mean = known().map(|own| own[k]).sum::<f64>() / known().count() as f64;
            mean.is_finite().then(|| (mean * 1e4).round() / 1e4)
        };
        let values = (0..rows).flat_map(|row| (0..components).map(move |k| (row, k)));
        let values = values.map(|(row, k)| mean(row, k)).collect();
        Self {
            rows,
            columns: components,
            shape: [each.len(), components],
            names: [names.to_vec(), (1..=components).map(|k| k.to_string()).collect()],
            maps: vec![HeatMap { title, caption, values }],
        }
    }
}

/// One heat map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeatMap {
    pub title: String,
    pub caption: String,
    /// The mean of each block, row by row; `None` for an empty block.
    pub values: Vec<Option<f64>>,
}

/// One value per label.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    pub title: String,
    pub caption: String,
    /// The label of the counts; empty for none.
    pub counted: String,
    pub points: Vec<SeriesPoint>,
}

/// One value of a [`Series`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesPoint {
    pub label: String,
    pub value: f64,
    pub interval: Option<[f64; 2]>,
    /// The tooltip.
    pub note: String,
    pub count: u64,
}

/// Points in the plane with ellipses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scatter {
    pub title: String,
    pub caption: String,
    pub axes: [String; 2],
    pub points: Vec<[f64; 2]>,
    pub ellipses: Vec<Ellipse>,
}

/// An ellipse of one and two standard deviations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ellipse {
    /// The tooltip.
    pub label: String,
    pub mean: [f64; 2],
    pub covariance: [[f64; 2]; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_should_be_zero_is_warned_of() {
        let lost = Measure::new("dead", "", "", "").warning("component {} is lost");
        let list = MetricValue::List(vec![2.0, 0.0, 5.0]);
        assert_eq!(lost.warnings(&list), ["component 2 is lost", "component 5 is lost"]);
        let names = ["a", "b", "c", "d", "e"].map(String::from).to_vec();
        let named = lost.clone().labels(names);
        assert_eq!(named.warnings(&list), ["component b, e is lost"]);
        assert!(named.warnings(&MetricValue::List(vec![0.0])).is_empty());
        let share = MetricValue::Number(0.006_765_4);
        assert_eq!(lost.warnings(&share), ["component 0.00677 is lost"]);
        assert!(lost.warnings(&MetricValue::Missing).is_empty());
        assert!(Measure { warning: None, ..lost }.warnings(&list).is_empty());
    }

    #[test]
    fn declarations_say_how_they_are_pooled() {
        let field = Measure::new("field_norm2", "‖h‖²", "‖h‖²", "Squared norm").log().result(3);
        assert_eq!((field.over_seeds, field.summary), (OverSeeds::LogSpread, true));
        let repairs = Measure::new("repairs", "Repairs", "repairs", "").unit(Unit::Count);
        assert_eq!((repairs.over_seeds, repairs.summary), (OverSeeds::Mean, false));
        assert_eq!(OverClients::Percentile(10).words(), "10th percentile over clients");
    }
}
