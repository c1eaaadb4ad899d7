//! Rows of numbers, counts and levels, with missing cells.

use super::split::split;
use super::tables::TableRows;
use super::{Loaded, tables};
use crate::failure::Result;
use crate::job::{Csv, Job};
use whimbrel_core::text::counted;
use whimbrel_core::{ClientData, Error, Key};
use whimbrel_data::{ColumnType, Dataset, Error as DataError, Identifier, Kind, LISTED_MAX};

/// The columns with levels; these are read as text.
pub(crate) fn leveled(types: &[(String, ColumnType)]) -> impl Iterator<Item = &String> {
    let has_levels = |kind: &ColumnType| !matches!(kind, ColumnType::Number | ColumnType::Count);
    types.iter().filter(move |(_, kind)| has_levels(kind)).map(|(name, _)| name)
}

/// The columns of a regression beside its features.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    /// Whether the target is one of several classes even if it is a number.
    pub classes: bool,
    /// Offset, weights and events.
    pub columns: Vec<String>,
    /// Whether the rows may lack a target.
    pub optional: bool,
}

/// The target and the other columns beside the features that `columns` does not list.
pub(crate) fn beside<'a>(
    csv: &'a Csv,
    response: Option<&'a Response>,
) -> impl Iterator<Item = &'a String> {
    let others = response.into_iter().flat_map(|it| &it.columns);
    let others = others.filter(|name| Some(*name) != csv.target.as_ref());
    let more = csv.target.iter().filter(move |_| response.is_some()).chain(others);
    more.filter(|name| csv.columns.as_ref().is_none_or(|columns| !columns.contains(name)))
}

/// The types with that of a target with classes.
pub(crate) fn with_target(
    csv: &Csv,
    types: &[(String, ColumnType)],
    response: Option<&Response>,
) -> Vec<(String, ColumnType)> {
    let mut types = types.to_vec();
    if let (Some(response), Some(target)) = (response, &csv.target)
        && (response.classes || csv.classes.is_some())
        && types.iter().all(|(name, _)| name != target)
    {
        let classes = csv.classes.clone().unwrap_or_default();
        types.push((target.clone(), ColumnType::Category(classes)));
    }
    types
}

/// The columns of a table and their types. In a regression, text without a type is a factor, unless its
/// values are all equal or all distinct.
pub(crate) fn settled(
    data: &Dataset,
    csv: &Csv,
    types: &[(String, ColumnType)],
    response: Option<&Response>,
    except: &[&str],
) -> (Option<Vec<String>>, Vec<(String, ColumnType)>) {
    let mut types = types.to_vec();
    if response.is_none() {
        return (csv.columns.clone(), types);
    }
    let is_typed =
        |types: &[(String, ColumnType)], name: &str| types.iter().any(|(n, _)| n == name);
    let is_used = |at: &usize| {
        let column = &data.columns()[*at];
        let usable = match column.kind {
            Kind::Number => data.identifier(*at) != Some(Identifier::OfRows),
            Kind::Text => (2..data.rows()).contains(&data.distinct(*at)),
        };
        column.named
            && !except.contains(&&*column.name)
            && (usable || is_typed(&types, &column.name))
    };
    let all =
        || (0..data.columns().len()).filter(is_used).map(|at| data.columns()[at].name.clone());
    let mut listed = csv.columns.clone().unwrap_or_else(|| all().collect());
    let more: Vec<String> =
        beside(csv, response).filter(|name| !listed.contains(name)).cloned().collect();
    listed.extend(more);
    for column in data.columns().iter().filter(|column| column.kind == Kind::Text) {
        if listed.contains(&column.name) && !is_typed(&types, &column.name) {
            types.push((column.name.clone(), ColumnType::Category(Vec::new())));
        }
    }
    (Some(listed), types)
}

/// Refuses numbers and dates in text that a regression would take for levels.
fn check_factors(data: &Dataset, factors: &[(String, ColumnType)]) -> Result<()> {
    for (name, _) in factors {
        if let Some(written) = data.written(data.column(name)?) {
            let what = format!("column {name:?} is not a factor: {}", written.remedy());
            let hint = "list the other columns in `columns`; [schema.COLUMN] type = \"category\" \
                        makes its texts levels all the same";
            return Err(Error::data(what).hint(hint).into());
        }
    }
    Ok(())
}

/// Lists the rows, by index, whose values a model refuses.
fn refuse_faults(data: &Dataset, faults: Vec<(usize, Error)>) -> Result<()> {
    let (count, mut remedy) = (faults.len(), None);
    let bad_row = |(row, error): (usize, Error)| {
        let (what, hint) = match error {
            Error::Data { what, hint, .. } => (what, hint),
            other => (other.to_string(), None),
        };
        remedy = hint;
        data.bad_row(row, vec![(None, what)])
    };
    let listed = faults.into_iter().take(LISTED_MAX).map(bad_row).collect();
    match count {
        0 => Ok(()),
        _ => Err(DataError::Rows { file: data.name().into(), listed, count, hint: remedy }.into()),
    }
}

pub(super) fn from_csv(
    csv: &Csv,
    job: &Job,
    types: &[(String, ColumnType)],
    response: Option<&Response>,
    key: Key,
) -> Result<Loaded> {
    let types = with_target(csv, types, response);
    let leveled: Vec<&String> = leveled(&types).collect();
    let (data, set_apart) = tables::read_with(csv, job, &leveled)?;
    let except: Vec<&str> = set_apart.iter().map(String::as_str).collect();
    let known = types;
    let (listed, types) = settled(&data, csv, &known, response, &except);
    check_factors(&data, &types[known.len()..])?;
    let found = data.mixed_columns(listed.as_deref(), &types, &except)?;
    let table = data.mixed_table(&found)?;
    let unsplit = TableRows { data: &data, features: None, standardize: false };
    let (places, _) = split(&csv.partition, &unsplit, key)?;
    let each = places.iter().map(|client| (client.name.clone(), table.at(&client.rows))).collect();
    let mut loaded = Loaded { places, ..Loaded::of(each, ClientData::Table, csv.path.hash()?) };
    loaded.levels = found.into_iter().map(|column| column.levels).collect();
    refuse_faults(&data, job.fit.faults(job, &table, &loaded.levels))?;
    let gaps = table.values.iter().filter(|x| x.is_nan()).count();
    if gaps > 0 {
        let share = 100.0 * gaps as f64 / table.values.len() as f64;
        let are = if gaps == 1 { "is" } else { "are" };
        let mut note = format!("{} {are} missing ({share:.1} %)", counted(gaps, "cell"));
        if response.is_some_and(|response| !response.optional) {
            let rows =
                table.values.chunks(table.width()).filter(|row| row.iter().any(|x| x.is_nan()));
            note += &format!(", {} left out of the fit", counted(rows.count(), "row"));
        }
        loaded.notes.push(note);
    }
    tables::described(&mut loaded, &data, csv, job)?;
    Ok(loaded)
}
