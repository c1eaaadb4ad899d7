//! `[schema.COLUMN]`: declared columns.

use super::{DataSource, Job};
use whimbrel_data::{ColumnType, Declared};
use whimbrel_job::form::{Form, TEXT};
use whimbrel_job::key::Section;
use whimbrel_job::reader::{Read, Reader, Source, Value};
use whimbrel_job::writer::Writer;
use whimbrel_job::{choices, list, number, table};
use whimbrel_methods::pooled::MAGNITUDE_MAX;

choices! {
    /// The word of `type`.
    pub enum TypeWord {
        /// numbers; Gaussian within a component of a mixture
        Number = "number",
        /// non-negative integers; Poisson within a component of a mixture
        Count = "count",
        /// two values; 1, true, yes, t and y mean yes in any case, of other values the larger number or the
        /// second text in byte order
        YesNo = "yes-no",
        /// one of the `levels`
        Category = "category",
    }
}

/// The keys of a column.
pub(crate) struct ColumnKeys {
    kind: TypeWord,
    levels: Option<Vec<String>>,
    unit: Option<String>,
    min: Option<f64>,
    max: Option<f64>,
}

impl Default for ColumnKeys {
    fn default() -> Self {
        Self { kind: TypeWord::Number, levels: None, unit: None, min: None, max: None }
    }
}

table! {
    pub(crate) COLUMN: ColumnKeys = "schema.COLUMN",
        "A table for each declared column. `check`, `run` and every client at `join` compare all cells with it; \
         the offer to clients contains it. Columns without a declaration hold numbers; text columns without one are \
         factors of a regression and categories of a description, and are dropped by a mixture. `min` and `max` must come from \
         knowledge of the quantity: limits that are computed from rows reveal two of them, also under `epsilon`.",
        example "[data]\nsource = \"csv\"\npath = \"wards.csv\"\nclient = \"ward\"\n\n\
                 [schema.age]\nunit = \"years\"\nmin = 0\nmax = 120\n\n\
                 [schema.arm]\ntype = \"category\"\nlevels = [\"control\", \"treated\"]\n"
    {
        /// type of the column
        kind: TYPE = "type", TypeWord::FORM, default;
        /// values of a category in the order of their numbers; others are errors
        levels: LEVELS = "levels", LEVEL_LIST, unset "the values in the file: numbers ascending, text in byte order",
            only (&["category"], "only a category has levels");
        /// unit of a number or count, for messages
        unit: UNIT = "unit", TEXT, unset "none",
            only (&["number", "count"], "only numbers and counts have a unit");
        /// least possible value
        min: MIN = "min", LIMIT, unset "unknown",
            only (&["number", "count"], "only numbers and counts have limits");
        /// largest possible value
        max: MAX = "max", LIMIT, unset "unknown",
            only (&["number", "count"], "only numbers and counts have limits");
    }
}

const LIMIT: Form<f64> = number!("a number", |x| x.is_finite());
const LEVEL_LIST: Form<Vec<String>> = list!(TEXT, "a list of two or more different texts");

pub(crate) static SECTION: Section = COLUMN.section;

/// More rows of a client than its sums are planned for.
const ROWS_MAX: f64 = 4_294_967_296.0;

/// Reads all tables below `[schema]`.
pub(super) fn read(value: &Value<'_>) -> Read<Vec<Declared>> {
    let all: Vec<Read<Declared>> =
        value.entries()?.into_iter().map(|(name, v)| column(name, &v.table(&SECTION)?)).collect();
    all.into_iter().collect()
}

fn column(name: String, reader: &Reader<'_>) -> Read<Declared> {
    let ColumnKeys { kind: word, levels, unit, min, max } = COLUMN.read(reader)?;
    reader.check_meaning(word.name());
    if let Some(levels) = &levels
        && (levels.len() < 2 || (1..levels.len()).any(|at| levels[..at].contains(&levels[at])))
    {
        let what = format!("column {name:?} needs two or more different levels");
        return Err(reader.fault(&LEVELS, what, "without `levels`, those of the file are taken"));
    }
    if let (Some(min), Some(max)) = (min, max)
        && min >= max
    {
        let what = format!("`min` of column {name:?} is not below its `max`");
        return Err(reader.fault(&MIN, what, "write, for example, min = 0 and max = 120"));
    }
    let kind = match word {
        TypeWord::Number => ColumnType::Number,
        TypeWord::Count => ColumnType::Count,
        TypeWord::YesNo => ColumnType::YesNo,
        TypeWord::Category => ColumnType::Category(levels.unwrap_or_default()),
    };
    Ok(Declared { name, kind, unit, min, max })
}

/// The keys of a declaration as an inline table.
pub(crate) fn inline(declared: &Declared) -> String {
    let (kind, levels) = match &declared.kind {
        ColumnType::Number => (TypeWord::Number, &[][..]),
        ColumnType::Count => (TypeWord::Count, &[][..]),
        ColumnType::YesNo => (TypeWord::YesNo, &[][..]),
        ColumnType::Category(levels) => (TypeWord::Category, &levels[..]),
    };
    let levels = (!levels.is_empty()).then(|| levels.to_vec());
    let Declared { unit, min, max, .. } = declared.clone();
    let mut out = Writer::default();
    COLUMN.write(&ColumnKeys { kind, levels, unit, min, max }, &mut out);
    out.finish_inline()
}

impl Job {
    /// Types of the columns that are not set apart as client, label or role.
    pub(crate) fn column_types(&self) -> Vec<(String, ColumnType)> {
        let role = self.data.held_out.role.as_ref();
        let apart = |name: &String| match &self.data.source {
            DataSource::Csv(csv) => {
                csv.partition.columns().contains(&name)
                    || [csv.label.as_ref(), role].contains(&Some(name))
            }
            _ => false,
        };
        let used = self.schema.iter().filter(|column| !apart(&column.name));
        used.map(|column| (column.name.clone(), column.kind.clone())).collect()
    }

    /// Limits of columns by name.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (&String, [f64; 2])> {
        self.schema.iter().filter_map(|column| Some((&column.name, column.limits()?)))
    }

    /// Whether numbers outside their limits become the nearest limit: under differential privacy a
    /// failure would tell something about one row.
    pub fn clips(&self) -> bool {
        self.privacy.epsilon.is_some() && self.data.prepare.limits
    }

    pub(super) fn check_schema(&self, source: &Source<'_>) {
        let numbers = self.schema.iter().all(|column| column.kind == ColumnType::Number);
        let known = match &self.data.source {
            DataSource::Csv(_) => true,
            DataSource::Npy(_) | DataSource::Idx(_) | DataSource::Mixture(_) => numbers,
            _ => self.schema.is_empty(),
        };
        if !known {
            let what = "[schema] declares the columns of csv, parquet and sql, and numbers of npy and idx files \
                        and of mixtures";
            source.report_at(&["schema"], what, "take it out, or use source = \"csv\"");
        }
        let exact =
            (self.uplink.is_on_grid() || self.privacy.is_masked()) && !self.data.prepare.limits;
        let large = |column: &&Declared| {
            [column.min, column.max].iter().flatten().any(|x| x * x * ROWS_MAX >= MAGNITUDE_MAX)
        };
        if let Some(column) = self.schema.iter().find(large).filter(|_| exact) {
            let what = format!(
                "squares of column {:?}, summed over the rows of a client, could exceed {MAGNITUDE_MAX:.0e}, \
                 the largest exact sum of a grid",
                column.name
            );
            let hint = "declare narrower limits in a larger unit, or write limits = true in [data.prepare]";
            source.report_at(&["schema", &column.name], what, hint);
        }
    }

    pub(super) fn write_schema(&self, out: &mut Writer) {
        if !self.schema.is_empty() {
            out.table(&Section { name: "schema", ..Section::of(&[]) });
            self.schema.iter().for_each(|column| out.put_named(&column.name, &inline(column)));
        }
    }
}
