//! Rows of numbers, counts and levels, with missing cells.

use super::split::split;
use super::tables::TableRows;
use super::{Loaded, tables};
use crate::failure::Result;
use crate::job::Csv;
use whimbrel_core::{ClientData, Key};
use whimbrel_data::ColumnType;

/// The columns with levels; these are read as text.
pub(crate) fn leveled(types: &[(String, ColumnType)]) -> impl Iterator<Item = &String> {
    let has_levels = |kind: &ColumnType| !matches!(kind, ColumnType::Number | ColumnType::Count);
    types.iter().filter(move |(_, kind)| has_levels(kind)).map(|(name, _)| name)
}

pub(super) fn from_csv(
    csv: &Csv,
    types: &[(String, ColumnType)],
    role: Option<&str>,
    key: Key,
) -> Result<Loaded> {
    let leveled: Vec<&String> = leveled(types).collect();
    let (data, set_apart) = tables::read_with(csv, role, &leveled)?;
    let except: Vec<&str> = set_apart.iter().map(String::as_str).collect();
    let found = data.mixed_columns(csv.columns.as_deref(), types, &except)?;
    let table = data.mixed_table(&found)?;
    let unsplit = TableRows { data: &data, features: None, standardize: false };
    let (places, _) = split(&csv.partition, &unsplit, key)?;
    let each = places.iter().map(|client| (client.name.clone(), table.at(&client.rows))).collect();
    let mut loaded = Loaded { places, ..Loaded::of(each, ClientData::Table, csv.path.hash()?) };
    loaded.levels = found.into_iter().map(|column| column.levels).collect();
    let gaps = table.values.iter().filter(|x| x.is_nan()).count();
    if gaps > 0 {
        let share = 100.0 * gaps as f64 / table.values.len() as f64;
        loaded.notes.push(format!("{gaps} cells are missing ({share:.1} %)"));
    }
    tables::described(&mut loaded, &data, csv, role)?;
    Ok(loaded)
}
