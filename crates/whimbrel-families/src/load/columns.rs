//! Notes on the columns that are used and left out.

use super::Loaded;
use crate::job::{Csv, Partition};
use whimbrel_data::{Dataset, Described, Identifier, Input, Kind};

/// Reasons why columns are not features.
const CLIENT: &str = "the client";
const TARGET: &str = "the target";
/// Most columns named in a note.
const NAMED_MAX: usize = 20;

/// Notes the columns that are used and left out, with reasons; warns of used columns that look like
/// identifiers.
pub(super) fn say(loaded: &mut Loaded, data: &Dataset, csv: &Csv, role: Option<&str>) {
    let (mut used, mut left_out, mut suspects) = (Vec::new(), Vec::new(), Vec::new());
    for (at, column) in data.columns().iter().enumerate() {
        let name = format!("{:?}", column.name);
        let why = reason(data, at, csv, role);
        // Rows in memory have clients and targets without columns of the user.
        if matches!(csv.path, Input::Rows(_)) && [CLIENT, TARGET].contains(&why) {
            continue;
        }
        if !loaded.columns.contains(&column.name) {
            left_out.push(format!("{name} ({why})"));
            continue;
        }
        if data.identifier(at).is_some() {
            suspects.push(name.clone());
        }
        used.push(name);
    }
    loaded.notes.push(said(&used, &left_out));
    if !suspects.is_empty() {
        loaded.warnings.push(format!(
            "used as numbers, although they look like identifiers: {}; list the columns to use in \
             `columns`",
            listed(&suspects)
        ));
    }
}

/// Notes the columns of a file without names: all except `left_out` are used.
pub(super) fn say_all(loaded: &mut Loaded, left_out: &[&str]) {
    let used = match &loaded.columns[..] {
        [first, .., last] => format!("all {}, {first:?} to {last:?}", loaded.columns.len()),
        [only] => format!("{only:?}"),
        [] => return,
    };
    let left_out: Vec<String> = left_out.iter().map(|&what| what.into()).collect();
    loaded.notes.push(said(&[used], &left_out));
}

/// Notes the classes of the targets.
pub(super) fn say_classes(loaded: &mut Loaded) {
    if !loaded.classes.is_empty() {
        let (count, names) = (loaded.classes.len(), quoted(&loaded.classes));
        loaded.notes.push(format!("{count} classes found in the targets: {names}"));
    }
}

/// Names in quotation marks.
pub(super) fn quoted(names: &[String]) -> String {
    listed(&names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>())
}

/// Notes the columns of a file with the cells of a table.
pub(super) fn of_cells(header: &[String], csv: &Csv, described: &Described) -> String {
    let in_memory = matches!(csv.path, Input::Rows(_));
    let (mut used, mut left_out) = (Vec::new(), Vec::new());
    for name in header {
        let part = match &csv.partition {
            Partition::Column(client) if client == name => Some("client"),
            _ if csv.cells.row.contains(name) => Some("row"),
            _ if csv.cells.column.contains(name) => Some("column"),
            _ if csv.cells.value.as_ref() == Some(name) => Some("value"),
            _ if described.factors.contains(name) => Some("effect"),
            _ if described.covariates.contains(name) => Some("covariate"),
            _ => None,
        };
        let is_wide = csv.cells.value.is_none();
        match (part, &csv.columns) {
            (Some("client"), _) if in_memory => {}
            (Some(part), _) => used.push(format!("{name:?} ({part})")),
            (None, Some(columns)) if is_wide && !columns.contains(name) => {
                left_out.push(format!("{name:?} (not in `columns`)"));
            }
            (None, _) if is_wide => used.push(format!("{name:?}")),
            (None, _) => left_out.push(format!("{name:?} (neither row, column nor value)")),
        }
    }
    said(&used, &left_out)
}

fn said(used: &[String], left_out: &[String]) -> String {
    let used = format!("columns used: {}", listed(used));
    match left_out {
        [] => used,
        some => format!("{used}; left out: {}", listed(some)),
    }
}

fn reason(data: &Dataset, at: usize, csv: &Csv, role: Option<&str>) -> &'static str {
    let column = &data.columns()[at];
    let is = |name: Option<&str>| name == Some(column.name.as_str());
    let split = match &csv.partition {
        Partition::Column(client) if is(Some(client)) => Some(CLIENT),
        other if other.columns().contains(&&column.name) => Some("splits the rows"),
        _ => None,
    };
    match split {
        Some(split) => split,
        None if is(csv.target.as_deref()) => TARGET,
        None if is(csv.label.as_deref()) => "the label",
        None if is(role) => "train, validation or test",
        None if csv.columns.is_some() => "not in `columns`",
        None if !column.named => "has no name",
        None if column.kind == Kind::Text => "text",
        None if data.identifier(at) == Some(Identifier::OfRows) => {
            "looks like an identifier: distinct whole numbers"
        }
        None => "not used",
    }
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
