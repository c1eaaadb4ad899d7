//! What a method says about its figures, once: summary, metrics file, terminal, report, dashboard,
//! comparison and Prometheus follow from it and know no figure by name.
//!
//! [`Measure`] declares a figure of an evaluation. [`Exhibit`] is a figure or table that a family
//! fills for the report of a finished run.

use crate::method::MetricValue;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A word that is written in the source or was read from a run's folder.
type Text = Cow<'static, str>;

/// A figure that evaluations report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Its key in `metrics.jsonl`.
    pub key: Text,
    /// The title of its curve.
    pub title: Text,
    /// Its name in a table and on one line of a terminal.
    pub name: Text,
    /// What it is, in one line.
    pub caption: Text,
    /// What it counts.
    pub unit: Unit,
    /// The axis it is drawn on first.
    pub scale: Scale,
    /// Which way it should go.
    pub better: Better,
    /// How the clients' figures become one.
    pub over_clients: OverClients,
    /// How the figures of several seeds become one.
    pub over_seeds: OverSeeds,
    /// Digits shown in a table of results.
    pub digits: u8,
    /// What it is for.
    pub role: Role,
    /// Whether its last value is a key of `summary.json`.
    pub summary: bool,
    /// Whether it is among the results: a column of the terminal's table, a tile of the report and
    /// of the dashboard.
    pub headline: bool,
    /// Whether it is drawn over the course of a run.
    pub curve: bool,
    /// Whether each client has its own value, kept in `clients.csv`.
    pub per_client: bool,
    /// What to warn of where its last value, or an entry of its last list, is not zero; `{}` stands
    /// for the value.
    pub warning: Option<Text>,
    /// Whether a run with something to warn of is no success: it then ends as degenerate.
    pub defect: bool,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A number without a unit.
    #[default]
    Plain,
    /// Whole things.
    Count,
    /// Bits.
    Bits,
    /// A share from 0 to 1.
    Share,
}

/// An axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Even steps.
    #[default]
    Linear,
    /// Even factors; values that are not positive are left out.
    Log,
}

/// Which way a figure should go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Larger is better.
    Up,
    /// Smaller is better.
    Down,
    /// Neither.
    #[default]
    Neither,
}

/// How the clients' figures become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverClients {
    /// They do not: it is the server's own.
    #[default]
    Server,
    /// By a mean with the weights of the objective.
    Weighted,
    /// By a mean in which every client counts the same.
    Mean,
    /// By a mean over all rows.
    Rows,
    /// By a mean in which a client counts by its training rows.
    TrainingRows,
    /// By their sum.
    Sum,
    /// By this percentile.
    Percentile(u8),
}

impl OverClients {
    /// In words; empty for the server's own figures.
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

/// How the figures of several seeds become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverSeeds {
    /// By their mean: for counts.
    Mean,
    /// By mean and standard deviation.
    #[default]
    Spread,
    /// By mean and standard deviation of log10.
    LogSpread,
}

/// What a figure is for, beside being shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Nothing else.
    #[default]
    Shown,
    /// What the method optimises; gaps to a reference are measured in it.
    Objective,
    /// Goes to zero at the optimum: levels of it are counted in bits.
    Excess,
    /// A horizontal axis beside rounds and bits.
    Axis,
    /// A list of numbers, one line each.
    List,
}

impl Measure {
    /// A figure of the server that is drawn on a linear axis and goes into no table of results.
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
            defect: false,
        }
    }

    /// What a method minimises: the mean over clients with the objective's weights.
    pub fn objective(caption: impl Into<Text>) -> Self {
        let new = Self::new("objective", "Objective", "objective", caption).result(7);
        new.role(Role::Objective).better(Better::Down).clients(OverClients::Weighted)
    }

    /// Drawn on a log axis, with seeds pooled by their logarithms.
    #[must_use]
    pub fn log(mut self) -> Self {
        self.scale = Scale::Log;
        self.over_seeds = OverSeeds::LogSpread;
        self
    }

    /// In another unit; a count is pooled over seeds by its mean.
    #[must_use]
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        if matches!(unit, Unit::Count | Unit::Bits) {
            self.over_seeds = OverSeeds::Mean;
        }
        self
    }

    /// Should go this way.
    #[must_use]
    pub fn better(mut self, better: Better) -> Self {
        self.better = better;
        self
    }

    /// Pooled over clients in this way.
    #[must_use]
    pub fn clients(mut self, over_clients: OverClients) -> Self {
        self.over_clients = over_clients;
        self
    }

    /// Serves this purpose.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// A key of the summary.
    #[must_use]
    pub fn summary(mut self) -> Self {
        self.summary = true;
        self
    }

    /// Among the results, with this number of digits: in the summary, the terminal's table and the
    /// tiles.
    #[must_use]
    pub fn result(mut self, digits: u8) -> Self {
        self.digits = digits;
        self.headline = true;
        self.summary()
    }

    /// Not drawn as a curve.
    #[must_use]
    pub fn without_curve(mut self) -> Self {
        self.curve = false;
        self
    }

    /// With a warning where it does not end at zero.
    #[must_use]
    pub fn warning(mut self, text: impl Into<Text>) -> Self {
        self.warning = Some(text.into());
        self
    }

    /// Of a fit that failed where it does not end at zero; the text says what is wrong, and what
    /// helps.
    #[must_use]
    pub fn defect(self, text: impl Into<Text>) -> Self {
        Self { defect: true, ..self.warning(text) }
    }

    /// With a value of each client's own.
    #[must_use]
    pub fn per_client(mut self) -> Self {
        self.per_client = true;
        self
    }
}

impl Measure {
    /// What to say of a run that ended with this value.
    pub fn warnings(&self, last: &MetricValue) -> Vec<String> {
        let values = match last {
            MetricValue::Number(value) => std::slice::from_ref(value),
            MetricValue::List(values) => values,
            MetricValue::Missing => &[],
        };
        let wrong = values.iter().filter(|value| **value != 0.0);
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

/// A titled part of a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Its title; parts of several runs under one title stand together.
    pub title: String,
    /// What it shows, in order.
    pub exhibits: Vec<Exhibit>,
}

/// A figure, table or sentence of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Exhibit {
    /// A sentence.
    Text {
        /// It.
        text: String,
    },
    /// A table.
    Table(Rows),
    /// The entries of a list among the metrics, one line each over the course of the run.
    Entries {
        /// The metric's key.
        key: String,
        /// In which order entries are numbered; empty for their own.
        order: Vec<usize>,
    },
    /// Lines in the plane.
    Lines(Lines),
    /// How values are spread.
    Histogram {
        /// The figure's title.
        title: String,
        /// The value axis.
        axis: String,
        /// What is counted, in the plural.
        counted: String,
        /// The values.
        values: Vec<f64>,
    },
    /// Maps of one matrix on one scale of colours.
    Heat(Heat),
    /// One value per label, with intervals, a smooth curve and counts beneath.
    Series(Series),
    /// Points in the plane with ellipses.
    Scatter(Scatter),
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// What it shows; empty for none.
    pub title: String,
    /// Heads of the columns.
    pub heads: Vec<String>,
    /// Cells, row after row; the first of a row names it.
    pub rows: Vec<Vec<String>>,
    /// Whether it is unfolded only when asked for.
    pub collapsed: bool,
    /// Whether rows are numbered components, with the colours they have in a [`Scatter`].
    pub swatches: bool,
}

/// Lines in the plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    /// The figure's title.
    pub title: String,
    /// What it shows.
    pub caption: String,
    /// The horizontal axis's label.
    pub axis: String,
    /// The range of both axes, where they have one in common.
    pub bounds: Option<[f64; 2]>,
    /// Names and points; the second line is drawn as a reference.
    pub lines: Vec<(String, Vec<[f64; 2]>)>,
}

/// Maps of one matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// Blocks downwards.
    pub rows: usize,
    /// Blocks across.
    pub columns: usize,
    /// How many rows and columns the matrix has.
    pub shape: [usize; 2],
    /// Names of its rows and of its columns; empty where it has none.
    pub names: [Vec<String>; 2],
    /// The maps, side by side.
    pub maps: Vec<HeatMap>,
}

/// One map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeatMap {
    /// Its title.
    pub title: String,
    /// What it shows.
    pub caption: String,
    /// Mean of each block, row after row; none where there is nothing.
    pub values: Vec<Option<f64>>,
}

/// One value per label.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The figure's title.
    pub title: String,
    /// What it shows.
    pub caption: String,
    /// What the counts beneath are of; empty for none.
    pub counted: String,
    /// The values, in order.
    pub points: Vec<SeriesPoint>,
}

/// One value of a [`Series`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesPoint {
    /// Its label.
    pub label: String,
    /// Its value.
    pub value: f64,
    /// Its interval.
    pub interval: Option<[f64; 2]>,
    /// What is said of it on demand.
    pub note: String,
    /// The count beneath.
    pub count: u64,
}

/// Points in the plane with ellipses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scatter {
    /// The figure's title.
    pub title: String,
    /// What it shows.
    pub caption: String,
    /// The names of the two axes.
    pub axes: [String; 2],
    /// The points.
    pub points: Vec<[f64; 2]>,
    /// The ellipses.
    pub ellipses: Vec<Ellipse>,
}

/// An ellipse of one and two standard deviations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ellipse {
    /// What is said of it.
    pub label: String,
    /// Its centre.
    pub mean: [f64; 2],
    /// Its shape.
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
