//! Rows of a source that knows the types of its columns, gathered into a [`Dataset`].

use crate::csv::Interner;
use crate::dataset::{Column, Dataset, Kind, MISSING_CODE, slots};
use crate::defect::{BadCells, Why};
use crate::{Error, Result};

/// Most rows of a source: a column of numbers then takes 2 GiB. A few bytes can declare any number.
const ROWS_MAX: usize = 1 << 28;

/// Rows under construction. Every row is begun by [`extend`](Self::extend); then its texts are appended and
/// its numbers set.
pub(crate) struct TypedRows {
    name: String,
    columns: Vec<Column>,
    slots: Vec<usize>,
    number_width: usize,
    rows: usize,
    numbers: Vec<f64>,
    texts: Vec<Interner>,
    bad: Vec<BadCells>,
}

impl TypedRows {
    /// No rows yet; a name that occurs twice is refused.
    pub(crate) fn new(name: &str, columns: Vec<(String, Kind)>) -> Result<Self> {
        for (i, (column, _)) in columns.iter().enumerate().filter(|(_, (c, _))| !c.is_empty()) {
            if let Some(before) = columns[..i].iter().position(|(known, _)| known == column) {
                let what =
                    format!("columns {} and {} are both called {column:?}", before + 1, i + 1);
                return Err(Error::format(name, what).hint("rename one of them"));
            }
        }
        let column = |(i, (name, kind)): (usize, (String, Kind))| {
            let named = !name.is_empty();
            Column { name: if named { name } else { format!("#{}", i + 1) }, kind, named }
        };
        let columns: Vec<Column> = columns.into_iter().enumerate().map(column).collect();
        let texts = columns.iter().filter(|c| c.kind == Kind::Text).count();
        Ok(Self {
            name: name.into(),
            slots: slots(&columns),
            number_width: columns.len() - texts,
            rows: 0,
            numbers: Vec::new(),
            texts: (0..texts).map(|_| Interner::default()).collect(),
            bad: vec![BadCells::default(); columns.len()],
            columns,
        })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn kind(&self, column: usize) -> Kind {
        self.columns[column].kind
    }

    /// Begins rows, whose numbers are missing.
    pub(crate) fn extend(&mut self, rows: usize) -> Result<()> {
        check_rows(&self.name, self.rows.saturating_add(rows))?;
        self.rows += rows;
        self.numbers.resize(self.rows * self.number_width, f64::NAN);
        Ok(())
    }

    /// Sets a number; NaN is a missing cell, an infinity an unusable one.
    pub(crate) fn set(&mut self, row: usize, column: usize, x: f64) {
        if x.is_infinite() {
            return self.bad[column].push(row, || Why::NotFinite(x.to_string()));
        }
        self.numbers[row * self.number_width + self.slots[column]] = x;
    }

    /// Sets a number; an integer that has too many digits for one is unusable.
    #[cfg(feature = "sql")]
    pub(crate) fn set_integer(&mut self, row: usize, column: usize, x: i64) {
        if x.unsigned_abs() > 1 << f64::MANTISSA_DIGITS {
            return self.bad[column].push(row, || Why::TooLong(x));
        }
        self.set(row, column, x as f64);
    }

    /// Records text in place of a number.
    #[cfg(feature = "sql")]
    pub(crate) fn refuse(&mut self, row: usize, column: usize, text: &str) {
        self.bad[column].push(row, || Why::NotANumber(text.into()));
    }

    /// Appends a text; `None` and the empty text are missing cells.
    pub(crate) fn push(&mut self, column: usize, text: Option<&str>) {
        let column = &mut self.texts[self.slots[column]];
        match text.filter(|text| !text.is_empty()) {
            Some(text) => {
                let is_text = column.push(text.as_bytes());
                debug_assert!(is_text, "a string is UTF-8");
            }
            None => column.categories.codes.push(MISSING_CODE),
        }
    }

    /// The rows; a source without rows is refused. `others` are columns that were not read.
    pub(crate) fn finish(mut self, others: Vec<String>) -> Result<Dataset> {
        if self.rows == 0 {
            return Err(Error::format(&self.name, "there are no rows"));
        }
        self.numbers.shrink_to_fit();
        let mut data = Dataset::new(&self.name, self.columns, self.rows, self.numbers);
        data.texts = self.texts.into_iter().map(|t| t.categories.into()).collect();
        (data.bad, data.others) = (self.bad, others);
        Ok(data)
    }
}

/// Refuses more rows than fit, before they are read.
pub(crate) fn check_rows(name: &str, rows: usize) -> Result<()> {
    if rows <= ROWS_MAX {
        return Ok(());
    }
    let what = format!("{rows} rows are too many: at most {ROWS_MAX} can be read");
    Err(Error::format(name, what).hint("read a part of them, or give each client its own"))
}
