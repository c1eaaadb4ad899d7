//! A summary of a file: shape, columns, missing cells, clients.

use crate::dataset::{Kind, MISSING_CODE};
use crate::defect::BadRow;
use crate::split::classes_present;
use crate::{Dataset, Result};
use std::fmt;
use whimbrel_core::text::counted;

/// The summary of a file; its [`Display`](fmt::Display) is a table of text.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// The file.
    pub name: String,
    pub rows: usize,
    pub columns: Vec<ColumnSummary>,
    /// The clients' sizes, if a client column was named.
    pub clients: Option<ClientSizes>,
    /// Rows whose number of cells is not the header's.
    pub ragged_rows: usize,
    /// Unreadable cells; they count as missing, too.
    pub unreadable_cells: usize,
    /// The first ragged or unreadable rows, at most [`LISTED_MAX`](crate::LISTED_MAX).
    pub bad_rows: Vec<BadRow>,
}

/// The summary of one column.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnSummary {
    /// A column of numbers.
    Number {
        name: String,
        /// Cells without a usable value.
        missing: usize,
        /// Minimum, mean and maximum; `None` if all cells are missing.
        range: Option<(f64, f64, f64)>,
    },
    /// A column of text.
    Text {
        name: String,
        /// Cells without a usable value.
        missing: usize,
        /// The distinct values and how often each occurs, the most frequent first.
        values: Vec<(String, usize)>,
    },
}

/// Rows per client.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientSizes {
    /// The column that names the client.
    pub column: String,
    /// Each client and its rows, sorted by name.
    pub sizes: Vec<(String, usize)>,
    /// Rows without a client.
    pub rows_without: usize,
    /// The distribution of the sizes.
    pub bins: Vec<SizeBin>,
}

/// The number of clients whose number of rows lies in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeBin {
    pub from: usize,
    pub to: usize,
    pub clients: usize,
}

/// Summarises a dataset and, if a column names the client, the clients' sizes.
pub fn inspect(data: &Dataset, client_column: Option<&str>) -> Result<Inspection> {
    let columns = (0..data.columns().len()).map(|c| summarise(data, c)).collect();
    let clients = client_column.map(|column| client_sizes(data, column)).transpose()?;
    Ok(Inspection {
        name: data.name().into(),
        rows: data.rows(),
        columns,
        clients,
        ragged_rows: data.ragged.len(),
        unreadable_cells: data.bad.iter().map(|b| b.count).sum(),
        bad_rows: data.unreadable_rows(),
    })
}

fn summarise(data: &Dataset, column: usize) -> ColumnSummary {
    let name = data.columns()[column].name.clone();
    match data.columns()[column].kind {
        Kind::Number => {
            let present = (0..data.rows()).filter_map(|row| data.number(row, column));
            let (mut count, mut low, mut high, mut mean) = (0usize, f64::MAX, f64::MIN, 0.0);
            for x in present {
                count += 1;
                low = low.min(x);
                high = high.max(x);
                // A running mean cannot overflow where a sum can.
                mean += x / count as f64 - mean / count as f64;
            }
            let range = (count > 0).then_some((low, mean, high));
            ColumnSummary::Number { name, missing: data.rows() - count, range }
        }
        Kind::Text => {
            let text = &data.texts[data.slots[column]];
            let mut values: Vec<(String, usize)> =
                text.names.iter().map(|n| (n.clone(), 0)).collect();
            let mut missing = 0;
            for &code in &text.codes {
                match code {
                    MISSING_CODE => missing += 1,
                    code => values[code as usize].1 += 1,
                }
            }
            values.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
            ColumnSummary::Text { name, missing, values }
        }
    }
}

fn client_sizes(data: &Dataset, column: &str) -> Result<ClientSizes> {
    let classes = classes_present(data, data.column(column)?);
    let sizes: Vec<(String, usize)> =
        classes.into_iter().map(|(name, rows)| (name, rows.len())).collect();
    let rows_without = data.rows() - sizes.iter().map(|(_, n)| n).sum::<usize>();
    let bins = bins(&sizes);
    Ok(ClientSizes { column: column.into(), sizes, rows_without, bins })
}

/// Up to eight ranges of equal width; one if all clients have equally many rows.
fn bins(sizes: &[(String, usize)]) -> Vec<SizeBin> {
    const BINS_MAX: usize = 8;
    let counts = sizes.iter().map(|(_, n)| *n);
    let (Some(low), Some(high)) = (counts.clone().min(), counts.clone().max()) else {
        return Vec::new();
    };
    let width = (high - low + 1).div_ceil(BINS_MAX);
    let mut bins: Vec<SizeBin> = (low..=high)
        .step_by(width)
        .map(|from| SizeBin { from, to: (from + width - 1).min(high), clients: 0 })
        .collect();
    for n in counts {
        bins[(n - low) / width].clients += 1;
    }
    bins
}

impl ColumnSummary {
    pub fn name(&self) -> &str {
        match self {
            Self::Number { name, .. } | Self::Text { name, .. } => name,
        }
    }

    /// Cells without a usable value.
    pub fn missing(&self) -> usize {
        match self {
            Self::Number { missing, .. } | Self::Text { missing, .. } => *missing,
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_shape(f)?;
        self.write_columns(f)?;
        if let Some(clients) = &self.clients {
            write!(f, "\n{clients}")?;
        }
        self.write_bad_rows(f)
    }
}

impl Inspection {
    fn write_shape(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers =
            self.columns.iter().filter(|c| matches!(c, ColumnSummary::Number { .. })).count();
        let missing: usize = self.columns.iter().map(ColumnSummary::missing).sum();
        writeln!(
            f,
            "{}: {}, {} ({numbers} of numbers, {} of text), {}\n",
            self.name,
            counted(self.rows, "row"),
            counted(self.columns.len(), "column"),
            self.columns.len() - numbers,
            counted(missing, "missing cell"),
        )
    }

    fn write_columns(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.columns.iter().map(|c| c.name().chars().count());
        let wide = names.max().unwrap_or(0).clamp(6, NAME_CHARS_MAX);
        writeln!(
            f,
            "  {:wide$}  {:6}  {:>8}  {:>11}  {:>11}  {:>11}",
            "column", "type", "missing", "min", "mean", "max"
        )?;
        for column in &self.columns {
            let name = clipped(column.name(), wide);
            match column {
                ColumnSummary::Number { missing, range, .. } => {
                    write!(f, "  {name:wide$}  number  {missing:>8}")?;
                    match range {
                        Some((low, mean, high)) => writeln!(
                            f,
                            "  {:>11}  {:>11}  {:>11}",
                            brief(*low),
                            brief(*mean),
                            brief(*high)
                        )?,
                        None => writeln!(f, "  no values")?,
                    }
                }
                ColumnSummary::Text { missing, values, .. } => {
                    writeln!(f, "  {name:wide$}  text    {missing:>8}  {}", value_list(values))?;
                }
            }
        }
        Ok(())
    }

    fn write_bad_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bad_rows.is_empty() {
            return Ok(());
        }
        let cells =
            (self.unreadable_cells > 0).then(|| counted(self.unreadable_cells, "unreadable cell"));
        let rows = (self.ragged_rows > 0)
            .then(|| counted(self.ragged_rows, "row") + " of the wrong length");
        let damage: Vec<String> = cells.into_iter().chain(rows).collect();
        writeln!(f, "\n{}; the first rows:", damage.join(", "))?;
        self.bad_rows.iter().try_for_each(|row| writeln!(f, "  {row}"))
    }
}

impl fmt::Display for ClientSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sizes: Vec<usize> = self.sizes.iter().map(|(_, n)| *n).collect();
        sizes.sort_unstable();
        let at = |i: usize| sizes.get(i).copied().unwrap_or(0);
        let (least, most) = (at(0), at(sizes.len().saturating_sub(1)));
        let clients = counted(sizes.len(), "client");
        if least == most {
            let rows = counted(most, "row");
            writeln!(f, "{clients} (column {:?}), {rows} each\n", self.column)?;
        } else {
            let middle = at((sizes.len() - 1) / 2) + at(sizes.len() / 2);
            let median = brief(middle as f64 / 2.0);
            writeln!(
                f,
                "{clients} (column {:?}), {least} to {most} rows each, median {median}\n",
                self.column
            )?;
        }
        if self.rows_without > 0 {
            writeln!(f, "  {} without a client\n", counted(self.rows_without, "row"))?;
        }
        let wide = most.to_string().len().max(4);
        let tallest = self.bins.iter().map(|b| b.clients).max().unwrap_or(1).max(1);
        writeln!(f, "  {:>1$}  clients", "rows", 2 * wide + 3)?;
        for bin in &self.bins {
            // A bin with any client shows at least one block.
            let blocks = (bin.clients * BAR_CHARS_MAX).div_ceil(tallest);
            let bar = "█".repeat(blocks);
            let space = if blocks > 0 { " " } else { "" };
            writeln!(f, "  {:>wide$} - {:>wide$}  {bar}{space}{}", bin.from, bin.to, bin.clients)?;
        }
        Ok(())
    }
}

const NAME_CHARS_MAX: usize = 24;
const BAR_CHARS_MAX: usize = 40;

fn clipped(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.into();
    }
    text.chars().take(chars_max - 1).chain(['…']).collect()
}

/// At most six significant digits.
fn brief(x: f64) -> String {
    let size = x.abs();
    if x != 0.0 && !(1e-4..1e9).contains(&size) {
        return format!("{x:.3e}");
    }
    let scientific = format!("{size:e}");
    let exponent: i32 = scientific.split('e').nth(1).and_then(|e| e.parse().ok()).unwrap_or(0);
    let text = format!("{x:.*}", usize::try_from(5 - exponent).unwrap_or(0));
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').into();
    }
    text
}

fn value_list(values: &[(String, usize)]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> =
        values.iter().take(SHOWN).map(|(v, n)| format!("{} ({n})", clipped(v, 16))).collect();
    let rest = if values.len() > SHOWN { ", ..." } else { "" };
    format!("{}: {}{rest}", counted(values.len(), "value"), shown.join(", "))
}
