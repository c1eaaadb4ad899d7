//! Delimited text to [`Dataset`], in bounded extra memory.
//!
//! A column holds numbers if most of its non-missing cells are numbers, and text otherwise. The
//! kinds are guessed from the first rows; if the whole file disagrees, it is read again. If
//! semicolons separate the cells, a comma in a number is the decimal point.

use crate::column_checks::decimal_comma;
use crate::dataset::{Categories, Column, Dataset, Kind, MISSING_CODE, slots};
use crate::defect::{BadCells, Ragged, Why};
use crate::number::{Cell, classify};
use crate::record::{Record, Records};
use crate::source::Source;
use crate::{Error, Result};
use std::collections::HashMap;

/// Rows from which the kinds of columns are guessed.
const GUESS_ROWS: usize = 1000;

/// Options of [`read_csv`] and of [`Input::read`](crate::Input::read).
#[derive(Debug, Clone, Default)]
pub struct CsvOptions {
    /// The delimiter; `None`: `,`, `;` or tab, detected from the first line.
    pub delimiter: Option<u8>,
    /// Columns to read as text even if they hold numbers: a client `007` keeps its zeros.
    pub text: Vec<String>,
    /// Columns that are needed, if the source can leave others unread; `None`: all.
    pub only: Option<Vec<String>>,
    pub spelling: Spelling,
}

/// The spelling of numbers and gaps in a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spelling {
    /// Cells without a value, beside empty ones, `NA` and `NaN`.
    pub na: Vec<String>,
    /// The mark between groups of three digits.
    pub thousands: Option<u8>,
}

impl Spelling {
    /// Classifies a cell by its own rules; `None` if none applies.
    fn classify(&self, text: &[u8]) -> Option<Cell> {
        if self.na.iter().any(|na| na.as_bytes() == text) {
            return Some(Cell::Missing);
        }
        let mark = self
            .thousands
            .filter(|mark| text.contains(mark) || *mark == b'.' && text.contains(&b','))?;
        let whole = text.strip_prefix(b"-").unwrap_or(text);
        let is_decimal = |b: &u8| b".,".contains(b) && *b != mark;
        let end = whole.iter().position(is_decimal).unwrap_or(whole.len());
        let mut groups = whole[..end].split(|b| *b == mark);
        let digits = |group: &[u8]| group.iter().all(u8::is_ascii_digit);
        let first = groups.next().is_some_and(|g| (1..=3).contains(&g.len()) && digits(g));
        let rest = groups.all(|group| group.len() == 3 && digits(group));
        let joined: Vec<u8> = text.iter().copied().filter(|b| *b != mark).collect();
        let number = || decimal_comma(&joined).map_or_else(|| classify(&joined), Cell::Number);
        (first && rest).then(number)
    }
}

/// Reads delimited text, plain or gzipped. The first line must name the columns.
pub fn read_csv<'a>(source: impl Into<Source<'a>>, options: &CsvOptions) -> Result<Dataset> {
    let source = source.into();
    let name = &*source.name();
    let layout = Layout::find(source, name, options)?;
    let all_numbers = vec![Kind::Number; layout.names.len()];
    let guess = layout.kinds(&layout.scan(source, name, all_numbers, GUESS_ROWS)?.tallies);
    let mut scan = layout.scan(source, name, guess, usize::MAX)?;
    let kinds = layout.kinds(&scan.tallies);
    if kinds != scan.kinds {
        scan = layout.scan(source, name, kinds, usize::MAX)?;
    }
    scan.marks.refuse_both(name, &scan.kinds, &layout.columns(&scan.kinds))?;
    if scan.rows == 0 {
        return Err(Error::format(name, "there are no rows below the header"));
    }
    if gives_sizes(&layout.names, scan.rows) {
        let what = "the first line gives the file's sizes, not the names of its columns";
        let hint =
            "scikit-learn writes such files: replace the first line by the names of the columns";
        return Err(Error::format(name, what).at_line(layout.line).hint(hint));
    }
    let mut data = Dataset::new(name, layout.columns(&scan.kinds), scan.rows, scan.numbers);
    data.texts = scan.texts.into_iter().map(|t| t.categories.into()).collect();
    (data.bad, data.ragged, data.lines) = (scan.bad, scan.ragged, scan.lines);
    Ok(data)
}

/// The layout of a file, from its first line.
struct Layout {
    delimiter: u8,
    /// The line of the header.
    line: u64,
    /// The names in the header; some may be empty.
    names: Vec<String>,
    /// Whether the column is text by request.
    forced: Vec<bool>,
    spelling: Spelling,
}

impl Layout {
    fn find(source: Source<'_>, name: &str, options: &CsvOptions) -> Result<Self> {
        if options.delimiter.is_some_and(|given| b"\"\r\n".contains(&given)) {
            return Err(Error::config("a quote or a line end cannot delimit cells"));
        }
        let mut records = Records::new(name, source.open()?, options.delimiter)?;
        let delimiter = records.delimiter();
        let Some(first) = records.next()? else {
            return Err(Error::format(name, "the file is empty")
                .hint("the first line must name the columns"));
        };
        let names = header_names(name, &first)?;
        let forced = names.iter().map(|n| options.text.contains(n)).collect();
        let spelling = options.spelling.clone();
        Ok(Self { delimiter, line: first.line, names, forced, spelling })
    }

    fn columns(&self, kinds: &[Kind]) -> Vec<Column> {
        let column = |(i, (name, &kind)): (usize, (&String, &Kind))| {
            let named = !name.is_empty();
            let name = if named { name.clone() } else { format!("#{}", i + 1) };
            Column { name, kind, named }
        };
        self.names.iter().zip(kinds).enumerate().map(column).collect()
    }

    fn kinds(&self, tallies: &[Tally]) -> Vec<Kind> {
        let kind = |(&forced, tally): (&bool, &Tally)| {
            if forced || tally.texts > tally.numbers { Kind::Text } else { Kind::Number }
        };
        self.forced.iter().zip(tallies).map(kind).collect()
    }

    fn scan(
        &self,
        source: Source<'_>,
        name: &str,
        kinds: Vec<Kind>,
        rows_max: usize,
    ) -> Result<Scan> {
        let mut records = Records::new(name, source.open()?, Some(self.delimiter))?;
        records.next()?;
        let spelling = self.spelling.clone();
        let mut scan = Scan::new(self.columns(&kinds), self.delimiter == b';', spelling);
        while scan.rows < rows_max
            && let Some(record) = records.next()?
        {
            scan.push(&record);
        }
        scan.numbers.shrink_to_fit();
        Ok(scan)
    }
}

fn header_names(file: &str, first: &Record<'_>) -> Result<Vec<String>> {
    let mut scratch = Vec::new();
    let mut names: Vec<String> = Vec::with_capacity(first.len());
    for i in 0..first.len() {
        let Ok(name) = std::str::from_utf8(first.field(i, &mut scratch)) else {
            let what = format!("the name of column {} is not UTF-8", i + 1);
            return Err(Error::format(file, what)
                .at_line(first.line)
                .hint("save the file as UTF-8"));
        };
        names.push(name.into());
    }
    if let Some(cell) = looks_like_data(&names) {
        return Err(Error::format(file, format!("the header is missing: {cell:?} is a value"))
            .at_line(first.line)
            .hint("the first line must name the columns, as in: client,x,y"));
    }
    let mut seen = HashMap::new();
    for (i, name) in names.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
        if let Some(before) = seen.insert(name, i + 1) {
            let what = format!("columns {before} and {} are both called {name:?}", i + 1);
            return Err(Error::format(file, what).at_line(first.line).hint("rename one of them"));
        }
    }
    Ok(names)
}

/// The cell that marks the first line as data. Some names may be whole numbers (pixels are often
/// called 0, 1, 2), but not all, and none may be a fraction.
fn looks_like_data(names: &[String]) -> Option<&String> {
    let number = |n: &&String| matches!(classify(n.as_bytes()), Cell::Number(_));
    let whole = |n: &String| n.bytes().all(|b| b.is_ascii_digit());
    // Some writers call columns 0, 1, 2, ... or 1, 2, 3, ...; two or three such cells may be data.
    const COUNTED_MIN: usize = 4;
    let mut present = names.iter().filter(|n| !n.is_empty()).peekable();
    if let Some(first) = present.peek().copied()
        && present.clone().all(|n| number(&n))
    {
        let counts_from =
            |start: usize| present.clone().enumerate().all(|(i, n)| *n == (start + i).to_string());
        let counted = names.len() >= COUNTED_MIN && (counts_from(0) || counts_from(1));
        return (!counted).then_some(first);
    }
    names.iter().filter(number).find(|n| !whole(n))
}

/// Whether the header is `rows,features,class,class,...`, as in scikit-learn's bundled files.
fn gives_sizes(names: &[String], rows: usize) -> bool {
    let [first, second, ..] = names else { return false };
    *first == rows.to_string() && second.parse::<usize>().is_ok()
}

/// Counts of a column's numeric and text cells.
#[derive(Clone, Copy, Default)]
struct Tally {
    numbers: usize,
    texts: usize,
}

/// Decimal commas and decimal points of a file that may use either.
struct Marks {
    /// The first line of each, by column; empty if a comma is not a decimal point.
    first: Vec<[Option<u64>; 2]>,
    spelling: Spelling,
}

impl Marks {
    /// Classifies a cell, in which a comma may be the decimal point.
    fn classify(&mut self, text: &[u8], column: usize, line: u64) -> Cell {
        let cell = match self.spelling.classify(text) {
            Some(cell) => return cell,
            None => classify(text),
        };
        let Some([comma, point]) = self.first.get_mut(column) else { return cell };
        match cell {
            Cell::Number(_) if point.is_none() && text.contains(&b'.') => *point = Some(line),
            Cell::Text if let Some(x) = decimal_comma(text) => {
                comma.get_or_insert(line);
                return Cell::Number(x);
            }
            _ => {}
        }
        cell
    }

    /// Refuses a column with both marks, since one of them would be misread.
    fn refuse_both(&self, name: &str, kinds: &[Kind], columns: &[Column]) -> Result<()> {
        for ((marks, kind), column) in self.first.iter().zip(kinds).zip(columns) {
            if let ([Some(comma), Some(point)], Kind::Number) = (marks, kind) {
                let what = format!(
                    "column {:?} has decimal commas (line {comma}) and decimal points (line {point})",
                    column.name
                );
                return Err(Error::format(name, what).hint("write all of them in one way"));
            }
        }
        Ok(())
    }
}

/// One pass over the rows.
struct Scan {
    marks: Marks,
    kinds: Vec<Kind>,
    slots: Vec<usize>,
    number_width: usize,
    rows: usize,
    tallies: Vec<Tally>,
    numbers: Vec<f64>,
    texts: Vec<Interner>,
    bad: Vec<BadCells>,
    ragged: Vec<Ragged>,
    lines: Vec<(usize, u64)>,
    line_expected: u64,
    scratch: Vec<u8>,
}

impl Scan {
    fn new(columns: Vec<Column>, decimal_comma: bool, spelling: Spelling) -> Self {
        let text_width = columns.iter().filter(|c| c.kind == Kind::Text).count();
        Self {
            marks: Marks {
                first: vec![[None; 2]; if decimal_comma { columns.len() } else { 0 }],
                spelling,
            },
            slots: slots(&columns),
            number_width: columns.len() - text_width,
            rows: 0,
            tallies: vec![Tally::default(); columns.len()],
            numbers: Vec::new(),
            texts: (0..text_width).map(|_| Interner::default()).collect(),
            bad: vec![BadCells::default(); columns.len()],
            ragged: Vec::new(),
            lines: Vec::new(),
            line_expected: 0,
            scratch: Vec::new(),
            kinds: columns.into_iter().map(|c| c.kind).collect(),
        }
    }

    fn push(&mut self, record: &Record<'_>) {
        if record.line != self.line_expected {
            self.lines.push((self.rows, record.line));
        }
        self.line_expected = record.line + 1;
        if record.len() == self.kinds.len() {
            self.push_cells(record);
        } else {
            self.ragged.push(Ragged { row: self.rows, cells: record.len() });
            self.numbers.resize(self.numbers.len() + self.number_width, f64::NAN);
            self.texts.iter_mut().for_each(|t| t.categories.codes.push(MISSING_CODE));
        }
        self.rows += 1;
    }

    fn push_cells(&mut self, record: &Record<'_>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for column in 0..self.kinds.len() {
            let text = record.field(column, &mut scratch);
            let cell = self.marks.classify(text, column, record.line);
            let tally = &mut self.tallies[column];
            match cell {
                Cell::Number(_) | Cell::NotFinite => tally.numbers += 1,
                Cell::Text => tally.texts += 1,
                Cell::Missing => {}
            }
            match (self.kinds[column], cell) {
                (Kind::Number, Cell::Number(x)) => self.numbers.push(x),
                (Kind::Number, _) => {
                    self.numbers.push(f64::NAN);
                    self.note(column, cell, text);
                }
                (Kind::Text, Cell::Missing) => {
                    self.texts[self.slots[column]].categories.codes.push(MISSING_CODE);
                }
                (Kind::Text, _) => {
                    if !self.texts[self.slots[column]].push(text) {
                        self.note(column, cell, text);
                    }
                }
            }
        }
        self.scratch = scratch;
    }

    /// Records why a cell cannot be used.
    fn note(&mut self, column: usize, cell: Cell, text: &[u8]) {
        if cell == Cell::Missing {
            return;
        }
        self.bad[column].push(self.rows, || match (std::str::from_utf8(text), cell) {
            (Err(_), _) => Why::NotUtf8,
            (Ok(text), Cell::NotFinite) => Why::NotFinite(text.into()),
            (Ok(text), _) => Why::NotANumber(text.into()),
        });
    }
}

/// Encodes equal texts as equal codes.
#[derive(Default)]
pub(crate) struct Interner {
    pub(crate) categories: Categories,
    codes: HashMap<Box<[u8]>, u32>,
}

impl Interner {
    /// Appends a cell; false where the text is not UTF-8 (the cell is then missing).
    pub(crate) fn push(&mut self, text: &[u8]) -> bool {
        let Categories { codes, names } = &mut self.categories;
        // Files are often sorted by client: the same text as on the row above is the common case.
        if let Some(&last) = codes.last()
            && names.get(last as usize).is_some_and(|n| n.as_bytes() == text)
        {
            codes.push(last);
            return true;
        }
        if let Some(&code) = self.codes.get(text) {
            codes.push(code);
            return true;
        }
        let Ok(name) = std::str::from_utf8(text) else {
            codes.push(MISSING_CODE);
            return false;
        };
        let code = names.len() as u32;
        names.push(name.into());
        codes.push(code);
        self.codes.insert(text.into(), code);
        true
    }
}
