//! Reads the files of a table.

use super::arrays::{self, kind};
use super::batches::{TableFile, damaged};
use super::folder::{FilePart, parts};
use crate::dataset::Kind;
use crate::number::parse_number;
use crate::typed::{TypedRows, check_rows};
use crate::{CsvOptions, Dataset, Error, Result};
use arrow_array::{Array, RecordBatch};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Reads a Parquet or Arrow file, or a folder of them.
pub fn read_parquet(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Dataset> {
    let (path, name) = (path.as_ref(), path.as_ref().display().to_string());
    let parts = parts(path)?;
    let layout = Layout::of(&name, &parts, options)?;
    let mut rows = TypedRows::new(&name, layout.columns.clone())?;
    for part in &parts {
        let file = part.path.display().to_string();
        // The decoders of damaged files panic in places.
        let read = catch_unwind(AssertUnwindSafe(|| layout.read(part, &file, &mut rows)));
        read.unwrap_or_else(|_| Err(damaged(&file, "its bytes contradict each other")))?;
    }
    rows.finish(layout.others)
}

/// The columns that all files share.
struct Layout {
    columns: Vec<(String, Kind)>,
    /// Number of columns in the files; those of the folders' names follow.
    stored: usize,
    /// Columns that are not needed.
    others: Vec<String>,
}

impl Layout {
    fn of(name: &str, parts: &[FilePart], options: &CsvOptions) -> Result<Self> {
        let is_needed = |column: &str| {
            options.only.as_ref().is_none_or(|only| only.iter().any(|n| n == column))
        };
        let forced = |column: &str| options.text.iter().any(|n| n == column);
        let (mut columns, mut others) = (Vec::<(String, Option<Kind>)>::new(), Vec::new());
        let (mut declared, mut first) = (0usize, "");
        for (number, part) in parts.iter().enumerate() {
            let file = part.path.display().to_string();
            let opened = catch_unwind(AssertUnwindSafe(|| TableFile::open(&part.path)));
            let opened = opened.unwrap_or_else(|_| Err(damaged(&file, "its footer is invalid")))?;
            declared = declared.saturating_add(opened.rows.unwrap_or(0));
            let fields = opened.schema.fields();
            if number == 0 {
                first = part.path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
                let unread = fields.iter().filter(|field| !is_needed(field.name()));
                others = unread.map(|field| field.name().clone()).collect();
            }
            let mut here = Vec::new();
            for field in fields.iter().filter(|field| is_needed(field.name())) {
                let found = kind(field.data_type()).map_err(|holds| {
                    let what = format!("column {:?} holds {holds}", field.name());
                    Error::format(&file, what)
                        .hint("cells are numbers, text or dates; list the others in `columns`")
                })?;
                here.push((field.name().clone(), found.filter(|_| !forced(field.name()))));
            }
            if number == 0 {
                columns = here;
                continue;
            }
            agree(&mut columns, here, &file, first)?;
        }
        check_rows(name, declared)?;
        let settled = |(column, kind): (String, Option<Kind>)| {
            let unknown = if forced(&column) { Kind::Text } else { Kind::Number };
            (column, kind.unwrap_or(unknown))
        };
        let mut columns: Vec<(String, Kind)> = columns.into_iter().map(settled).collect();
        let stored = columns.len();
        let keys = parts.first().map(|part| &part.keys).into_iter().flatten();
        for (at, (key, _)) in keys.enumerate().filter(|(_, (key, _))| is_needed(key)) {
            let mut values = parts.iter().filter_map(|part| part.keys[at].1.as_deref());
            let numeric = values.all(|value| parse_number(value.as_bytes()).is_some());
            let kind = if numeric && !forced(key) { Kind::Number } else { Kind::Text };
            columns.push((key.clone(), kind));
        }
        Ok(Self { columns, stored, others })
    }

    /// Appends the rows of a file.
    fn read(&self, part: &FilePart, file: &str, rows: &mut TypedRows) -> Result<()> {
        let opened = TableFile::open(&part.path)?;
        let places = |name: &String| opened.schema.index_of(name).ok();
        let wanted: Vec<usize> =
            self.columns[..self.stored].iter().filter_map(|(name, _)| places(name)).collect();
        let mut ascending = wanted.clone();
        ascending.sort_unstable();
        let of_batch = |place: &usize| ascending.binary_search(place).unwrap_or_default();
        let order: Vec<usize> = wanted.iter().map(of_batch).collect();
        opened.check_compression(file, &ascending)?;
        let (declared, before) = (opened.rows, rows.rows());
        for batch in opened.batches(&ascending).map_err(|why| damaged(file, &why))? {
            let batch = batch.map_err(|why| damaged(file, &why))?;
            let start = rows.rows();
            rows.extend(batch.num_rows())?;
            for (column, place) in order.iter().enumerate() {
                append(rows, column, start, &batch, *place);
            }
            self.append_keys(part, start, rows);
        }
        let read = rows.rows() - before;
        match declared.filter(|declared| *declared != read) {
            Some(declared) => {
                Err(damaged(file, &format!("it declares {declared} rows and has {read}")))
            }
            None => Ok(()),
        }
    }

    /// Fills the columns of the folders' names from row `start` on.
    fn append_keys(&self, part: &FilePart, start: usize, rows: &mut TypedRows) {
        for (at, (name, kind)) in self.columns.iter().enumerate().skip(self.stored) {
            let key = part.keys.iter().find(|(key, _)| key == name);
            let value = key.and_then(|(_, value)| value.as_deref());
            let number = value.and_then(|value| parse_number(value.as_bytes()));
            for row in start..rows.rows() {
                match kind {
                    Kind::Number => rows.set(row, at, number.unwrap_or(f64::NAN)),
                    Kind::Text => rows.push(at, value),
                }
            }
        }
    }
}

/// Refuses a file whose columns are not those of the files before it.
fn agree(
    columns: &mut [(String, Option<Kind>)],
    here: Vec<(String, Option<Kind>)>,
    file: &str,
    first: &str,
) -> Result<()> {
    let differ = |what: String| {
        Err(Error::format(file, what).hint("all files of a folder have the same columns"))
    };
    if let Some((extra, _)) = here.iter().find(|(name, _)| columns.iter().all(|(n, _)| n != name)) {
        return differ(format!("column {extra:?} is not in {first}"));
    }
    for (name, known) in columns {
        match (here.iter().find(|(n, _)| n == name), &known) {
            (None, _) => return differ(format!("there is no column {name:?}, which {first} has")),
            (Some((_, Some(new))), Some(old)) if new != old => {
                let words = |kind: &Kind| match kind {
                    Kind::Number => "numbers",
                    Kind::Text => "text",
                };
                let (new, old) = (words(new), words(old));
                return differ(format!("column {name:?} holds {new} here and {old} in {first}"));
            }
            (Some((_, new)), _) => *known = known.or(*new),
        }
    }
    Ok(())
}

/// Appends a column of a batch.
fn append(rows: &mut TypedRows, column: usize, start: usize, batch: &RecordBatch, place: usize) {
    let array: &dyn Array = batch.column(place);
    let nulls = array.logical_nulls();
    let is_null = |row: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
    match rows.kind(column) {
        Kind::Number => {
            let Some(number) = arrays::numbers(array) else { return };
            for row in (0..array.len()).filter(|row| !is_null(*row)) {
                rows.set(start + row, column, number(row));
            }
        }
        Kind::Text => {
            let text = arrays::texts(array);
            for row in 0..array.len() {
                let cell = text.as_ref().filter(|_| !is_null(row)).map(|text| text(row));
                rows.push(column, cell.as_deref());
            }
        }
    }
}
