//! `[model]` with `kind = "low-rank"`: a table of rank `r` behind entries with noise.

use super::model::{KIND, ModelKind};
use super::{DataSource, Job, Model, Partition};
use whimbrel_job::choices;
use whimbrel_job::key::{Key, Word};
use whimbrel_job::reader::{Read, Reader, Shape, Source, Value};
use whimbrel_job::writer::{Writer, number, text};
use whimbrel_models::lowrank;

/// A low-rank table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRank {
    /// What entries are.
    pub family: Family,
    /// The noise of Gaussian entries.
    pub variance: Variance,
    /// The rank of the table; `None`: chosen by cross-validation.
    pub rank: Option<usize>,
    /// The penalty on the factors; `None`: chosen by cross-validation.
    pub lambda: Option<f64>,
    /// Main effects beside the factors.
    pub effects: Effects,
    /// The penalty on main and personal effects; `None`: chosen where rank or lambda is, or there are
    /// no effects.
    pub lambda_effects: Option<f64>,
    /// Whether each client has an effect of its own, which it keeps.
    pub personal: bool,
}

choices! {
    /// What entries are.
    pub enum Family {
        Gaussian = "gaussian": "any numbers, with normal noise",
        Poisson = "poisson": "counts; the table holds logarithms of their means",
        Bernoulli = "bernoulli": "0 or 1; the table holds log-odds",
    }
}

choices! {
    /// The noise of Gaussian entries.
    pub enum Variance {
        Unit = "unit": "variance 1",
        Estimated = "estimated": "from the residuals; it widens intervals and leaves the fit as it is",
    }
}

choices! {
    /// Main effects.
    pub enum Effects {
        None = "none": "the factors alone",
        Row = "row": "a number for each row",
        Column = "column": "a number for each column",
        RowColumn = "row+column": "a number for each row and each column",
    }
}

impl Effects {
    /// Whether rows have one.
    pub fn of_rows(self) -> bool {
        matches!(self, Self::Row | Self::RowColumn)
    }

    /// Whether columns have one.
    pub fn of_columns(self) -> bool {
        matches!(self, Self::Column | Self::RowColumn)
    }
}

const ALONE: &[&str] = &["low-rank"];
const WHY: &str = "only low-rank tables have it";
const CHOSEN: Word =
    Word { name: "auto", doc: "chosen by cross-validation over all clients, before the fit" };

pub(crate) static FAMILY: Key = Key::required("family", "", "what the table's entries are")
    .words(Family::WORDS)
    .only(ALONE, WHY);
pub(super) static VARIANCE: Key =
    Key::default("variance", "", "\"estimated\"", "the noise of Gaussian entries")
        .words(Variance::WORDS)
        .only(ALONE, WHY);
pub(crate) static RANK: Key = Key::default(
    "rank",
    "an integer of at least 0 or \"auto\"",
    "\"auto\"",
    "the rank of the table, main effects apart; below both of its sides",
)
.words(&[CHOSEN])
.only(ALONE, WHY);
pub(crate) static LAMBDA: Key = Key::default(
    "lambda",
    "a number of at least 0 or \"auto\"",
    "\"auto\"",
    "the ridge penalty on the factors, of each client: the sum over clients weighs on the table's \
     singular values",
)
.words(&[CHOSEN])
.only(ALONE, WHY);
pub(crate) static EFFECTS: Key = Key::optional(
    "effects",
    "",
    "\"row+column\" where `rank` or `lambda` is \"auto\", else \"none\"",
    "main effects beside the factors; a choice of the rank starts from them",
)
.words(Effects::WORDS)
.only(ALONE, WHY);
pub(super) static LAMBDA_EFFECTS: Key = Key::optional(
    "lambda_effects",
    "a positive number",
    "chosen where `rank` or `lambda` is \"auto\", else 1e-3",
    "the ridge penalty on main and personal effects: a row of zeros would otherwise have the \
     logarithm of zero",
)
.only(ALONE, WHY);
pub(super) static PERSONAL: Key = Key::default(
    "personal",
    "true or false",
    "false",
    "whether each client has an effect of its own, which never leaves it: experts and beginners \
     then count differently",
)
.only(ALONE, WHY);

impl LowRank {
    pub(super) fn read(reader: &Reader<'_>) -> Read<Self> {
        let own = [&KIND, &FAMILY, &VARIANCE, &RANK, &LAMBDA, &EFFECTS, &LAMBDA_EFFECTS, &PERSONAL];
        reader.refuse_all_but(&own, "has no meaning for low-rank: it is for other models");
        let family = reader.read(&FAMILY, |v| v.choice());
        let variance = reader.read(&VARIANCE, |v| v.choice());
        let rank = reader.read(&RANK, |v| match chosen(&v)? {
            true => Ok(None),
            false => v.integer(0..=u64::from(u32::MAX)).map(|rank| Some(rank as usize)),
        });
        let lambda = reader.read(&LAMBDA, |v| match chosen(&v)? {
            true => Ok(None),
            false => v.number(|x| x >= 0.0).map(Some),
        });
        let chooses = matches!(rank, Ok(None)) || matches!(lambda, Ok(None));
        let effects = reader.optional(&EFFECTS, |v| match v.choice()? {
            Effects::None if chooses => Err(v.fail(
                "an automatic rank or lambda starts from main effects",
                "write effects = \"row+column\", or give rank and lambda as numbers",
            )),
            effects => Ok(effects),
        });
        let usual = if chooses { Effects::RowColumn } else { Effects::None };
        let effects = effects.map(|effects| effects.unwrap_or(usual));
        let lambda_effects = reader.optional(&LAMBDA_EFFECTS, |v| v.number(|x| x > 0.0));
        let personal = reader.read(&PERSONAL, |v| v.boolean());
        if matches!(family, Ok(Family::Poisson | Family::Bernoulli)) {
            reader.refuse_if_given(&VARIANCE, "is the noise of Gaussian entries only");
        }
        let no_effects = matches!((&effects, &personal), (Ok(Effects::None), Ok(false)));
        if no_effects {
            reader
                .refuse_if_given(&LAMBDA_EFFECTS, "has no meaning without `effects` or `personal`");
        }
        let usual = (!chooses && !no_effects).then_some(lowrank::LAMBDA_EFFECTS);
        let (rank, effects) = (rank?, effects?);
        if rank == Some(0) && effects == Effects::None {
            return reader.read(&RANK, |v| {
                Err(v.fail(
                    "rank 0 without effects leaves nothing to fit",
                    "give effects = \"row+column\", or a rank of at least 1",
                ))
            });
        }
        Ok(Self {
            family: family?,
            variance: variance?,
            rank,
            lambda: lambda?,
            effects,
            lambda_effects: lambda_effects?.or(usual),
            personal: personal?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer) {
        let auto = || text(CHOSEN.name);
        out.put(&FAMILY, text(self.family.name()));
        if self.family == Family::Gaussian {
            out.put(&VARIANCE, text(self.variance.name()));
        }
        out.put(&RANK, self.rank.map_or_else(auto, |rank| rank.to_string()));
        out.put(&LAMBDA, self.lambda.map_or_else(auto, number));
        out.put(&EFFECTS, text(self.effects.name()));
        if let Some(lambda_effects) = self.lambda_effects {
            out.put(&LAMBDA_EFFECTS, number(lambda_effects));
        }
        out.put(&PERSONAL, self.personal.to_string());
    }

    pub(super) fn describe(&self) -> String {
        let rank = self.rank.map_or("chosen".to_owned(), |rank| rank.to_string());
        let effects = match self.effects {
            Effects::None => String::new(),
            effects => format!(", {} effects", effects.name()),
        };
        format!("{}, {}, rank {rank}{effects}", ModelKind::LowRank.name(), self.family.name())
    }
}

/// Whether a key is left to cross-validation.
fn chosen(value: &Value<'_>) -> Read<bool> {
    match value.shape() {
        Shape::Text => match value.text()?.as_str() {
            "auto" => Ok(true),
            other => Err(value.unknown_word(other)),
        },
        _ => Ok(false),
    }
}

impl Job {
    /// What a table with gaps needs of `[data]`, and what only such a table can use.
    pub(super) fn check_table(&self, source: &Source<'_>) {
        let report = |key: &str, what: String, hint: &str| {
            source.report_at(&["data", key], what, hint);
        };
        let csv = match &self.data.source {
            DataSource::Csv(csv) => Some(csv),
            _ => None,
        };
        let Model::LowRank(_) = self.model else {
            let of_tables = csv.and_then(|csv| csv.cells.first_given());
            if let Some(key) = of_tables {
                let what =
                    format!("`{key}` is for tables with gaps, and {} has none", self.model.name());
                report(key, what, "take it out, or write kind = \"low-rank\" in [model]");
            }
            if matches!(self.data.partition(), Some(Partition::Rows { .. })) {
                let what = "by = \"rows\" deals out the rows of a table with gaps".to_owned();
                report("split", what, "write by = \"iid\": every row is an example of its own");
            }
            return;
        };
        let Some(csv) = csv else {
            let what = "a low-rank table is read from a csv file".to_owned();
            return report("source", what, "write source = \"csv\"");
        };
        if csv.target.is_some() || csv.label.is_some() || csv.standardize {
            let key = match (&csv.target, &csv.label) {
                (Some(_), _) => "target",
                (_, Some(_)) => "label",
                _ => "standardize",
            };
            report(key, format!("`{key}` has no meaning for a table with gaps"), "take it out");
        }
        match &csv.partition {
            Partition::Pooled
            | Partition::Column(_)
            | Partition::Iid { .. }
            | Partition::Rows { .. } => {}
            Partition::Dirichlet { .. } | Partition::Clusters { .. } => report(
                "split",
                "cells of a table have no class and no neighbours to split by".to_owned(),
                "write by = \"rows\" (whole rows) or by = \"iid\" (single cells)",
            ),
        }
        if csv.cells.value.is_some() && csv.columns.is_some() {
            let what = "`columns` lists the columns of a wide table, and `value` says that the \
                        file is long";
            report("columns", what.to_owned(), "keep one of the two");
        }
    }
}
