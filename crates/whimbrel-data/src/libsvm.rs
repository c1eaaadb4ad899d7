//! LIBSVM's text: one row per line, `target index:value index:value ...`, indices ascending; omitted
//! values are zero. Blank lines and comments (from `#` to the line's end) are skipped.

use crate::source::{Source, read_full};
use crate::{Error, Result, parse_number};
use std::io::Read;
use std::path::Path;
use whimbrel_core::{FeatureRows, Labelled};

/// The largest index unless the number of columns is given; larger ones are taken for errors.
const INDEX_MAX: u32 = 1 << 24;
const LINE_BYTES_MAX: usize = 256 << 20;
const BUFFER_BYTES: usize = 1 << 18;

/// Reads text, plain or gzipped, into sparse rows with columns `f1`, `f2` and so on. Targets are
/// kept as written; see [`two_classes`](crate::two_classes). Indices start at 0 if an index 0 occurs,
/// otherwise at 1.
///
/// `columns` is the number of columns; `None`: the largest index. A test set often needs the training
/// set's number, since its last features may never occur.
pub fn read_libsvm<'a>(source: impl Into<Source<'a>>, columns: Option<usize>) -> Result<Labelled> {
    let source = source.into();
    let name = &*source.name();
    let mut rows = Rows::new(name, columns)?;
    each_line(name, source.open()?, |number, text| {
        rows.line = number;
        rows.push(text)
    })?;
    rows.finish()
}

/// Whether the first row of a text file has LIBSVM's form: a number, then only `index:value` pairs.
pub fn is_libsvm(path: impl AsRef<Path>) -> bool {
    let mut head = vec![0; BUFFER_BYTES];
    let Ok(mut file) = Source::File(path.as_ref()).open() else { return false };
    let Ok(length) = read_full(&mut file, &mut head) else { return false };
    let lines = head[..length].split(|b| *b == b'\n');
    let rows = lines.map(|line| line.split(|b| *b == b'#').next().unwrap_or_default());
    let Some(row) = rows.map(<[u8]>::trim_ascii).find(|row| !row.is_empty()) else { return false };
    let mut words = row.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let target = words.next().is_some_and(|word| parse_number(word).is_some());
    let is_pair = |word: &[u8]| {
        let colon = word.iter().position(|b| *b == b':');
        colon.is_some_and(|at| at > 0 && word[..at].iter().all(u8::is_ascii_digit))
    };
    let mut pairs = words.peekable();
    target && pairs.peek().is_some() && pairs.all(is_pair)
}

/// Calls `each` with every line's number, from 1, and text without the line end.
fn each_line(
    name: &str,
    mut source: Box<dyn Read + '_>,
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut filled, mut number) = (0, 0);
    loop {
        let read =
            read_full(&mut *source, &mut buffer[filled..]).map_err(|e| Error::storage(name, &e))?;
        filled += read;
        let ended = filled < buffer.len();
        let mut from = match &buffer[..filled] {
            [0xef, 0xbb, 0xbf, ..] if number == 0 => 3,
            _ => 0,
        };
        while let Some(length) = buffer[from..filled].iter().position(|&b| b == b'\n') {
            number += 1;
            each(number, &buffer[from..from + length])?;
            from += length + 1;
        }
        if ended {
            return if from < filled { each(number + 1, &buffer[from..filled]) } else { Ok(()) };
        }
        buffer.copy_within(from..filled, 0);
        filled -= from;
        if filled == buffer.len() {
            if filled >= LINE_BYTES_MAX {
                let what = "this line is longer than 256 MiB";
                return Err(Error::format(name, what).at_line(number + 1));
            }
            buffer.resize(2 * filled, 0);
        }
    }
}

/// The rows read so far, with the file's indices.
struct Rows<'a> {
    name: &'a str,
    columns: Option<usize>,
    index_max: u32,
    line: u64,
    starts: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<f64>,
    targets: Vec<f64>,
    zero_seen: bool,
    /// The largest index and its line.
    largest: Option<(u32, u64)>,
}

impl<'a> Rows<'a> {
    fn new(name: &'a str, columns: Option<usize>) -> Result<Self> {
        let index_max = match columns {
            Some(n) if n == 0 || n >= u32::MAX as usize => {
                let what = format!("columns = {n} is out of range");
                return Err(Error::config(what).hint("give a number from 1 to 2^32 - 2"));
            }
            Some(n) => n as u32,
            None => INDEX_MAX,
        };
        Ok(Self {
            name,
            columns,
            index_max,
            line: 0,
            starts: vec![0],
            indices: Vec::new(),
            values: Vec::new(),
            targets: Vec::new(),
            zero_seen: false,
            largest: None,
        })
    }

    fn push(&mut self, text: &[u8]) -> Result<()> {
        let mut tokens = Tokens { text };
        let Some(first) = tokens.next() else { return Ok(()) };
        self.targets.push(self.target(first)?);
        let mut last: Option<u32> = None;
        for token in tokens {
            let (index, value) = self.pair(token)?;
            if let Some(last) = last.filter(|last| *last >= index) {
                let what = if last == index { "occurs twice" } else { "follows a larger one" };
                let what = format!("index {index} {what}");
                return Err(self.error(&what, token).hint("indices must ascend within a row"));
            }
            last = Some(index);
            self.zero_seen |= index == 0;
            // Written zeros are dropped.
            if value != 0.0 {
                self.indices.push(index);
                self.values.push(value);
            }
        }
        if last > self.largest.map(|(index, _)| index) {
            self.largest = last.map(|index| (index, self.line));
        }
        self.starts.push(self.values.len());
        Ok(())
    }

    fn target(&self, token: &[u8]) -> Result<f64> {
        match parse_number(token) {
            Some(x) if x.is_finite() => Ok(x),
            Some(_) => Err(self.error("the target is not a finite number", token)),
            None if token.contains(&b':') => Err(self
                .error("the line has no target", token)
                .hint("a line is a number, then pairs index:value")),
            None if token.contains(&b',') => {
                let error = self.error("the row has several targets", token);
                Err(error.hint("sets with several labels per row are not supported"))
            }
            None => Err(self.error("the target is not a number", token)),
        }
    }

    #[inline]
    fn pair(&self, token: &[u8]) -> Result<(u32, f64)> {
        let mut index = 0u64;
        let mut at = 0;
        // Ten digits cannot overflow, and suffice for every index allowed.
        while at < token.len().min(10) && token[at].is_ascii_digit() {
            index = index * 10 + u64::from(token[at] - b'0');
            at += 1;
        }
        if at == 0 || token.get(at) != Some(&b':') {
            return Err(self.not_a_pair(token));
        }
        if index > u64::from(self.index_max) {
            return Err(self.too_large(index, token));
        }
        let value = match &token[at + 1..] {
            [digit @ b'0'..=b'9'] => f64::from(digit - b'0'),
            text => match parse_number(text) {
                Some(x) if x.is_finite() => x,
                Some(_) => return Err(self.error("the value is not a finite number", token)),
                None => return Err(self.error("the value is not a number", token)),
            },
        };
        Ok((index as u32, value))
    }

    #[cold]
    fn not_a_pair(&self, token: &[u8]) -> Error {
        if token.starts_with(b"qid:") {
            let error = self.error("the row belongs to a ranking query", token);
            return error.hint("ranking sets are not supported; remove the qid tokens");
        }
        let error = self.error("this is not a pair index:value", token);
        error.hint("an index is an integer of at most ten digits")
    }

    #[cold]
    fn too_large(&self, index: u64, token: &[u8]) -> Error {
        let error = self.error(&format!("index {index} is above {}", self.index_max), token);
        error.hint(match self.columns {
            Some(n) => format!("the job has {n} columns"),
            None => "if there are so many columns, give their number".into(),
        })
    }

    fn finish(self) -> Result<Labelled> {
        if self.targets.is_empty() {
            return Err(Error::format(self.name, "the file holds no rows"));
        }
        let first = u32::from(!self.zero_seen);
        let width = match (self.columns, self.largest) {
            (Some(n), Some((index, line))) if (index - first) as usize >= n => {
                let what = format!(
                    "index {index} is beyond {n} columns, counted from 0 since an index 0 occurs"
                );
                return Err(Error::format(self.name, what).at_line(line));
            }
            (Some(n), _) => n,
            (None, Some((index, _))) => (index - first) as usize + 1,
            (None, None) => {
                let error = Error::format(self.name, "no row has a feature");
                return Err(error.hint("if that is intended, give the number of columns"));
            }
        };
        let mut columns = self.indices;
        columns.iter_mut().for_each(|index| *index -= first);
        let rows = FeatureRows::Sparse { starts: self.starts, columns, values: self.values };
        let names = (1..=width).map(|j| format!("f{j}")).collect();
        Ok(Labelled::new(names, rows, self.targets)?)
    }

    #[cold]
    fn error(&self, what: &str, token: &[u8]) -> Error {
        const SHOWN: usize = 40;
        let shown = String::from_utf8_lossy(&token[..token.len().min(SHOWN)]);
        let dots = if token.len() > SHOWN { "..." } else { "" };
        Error::format(self.name, format!("{what}: {:?}", format!("{shown}{dots}")))
            .at_line(self.line)
    }
}

/// Tokens between blanks, up to a comment.
struct Tokens<'t> {
    text: &'t [u8],
}

impl<'t> Iterator for Tokens<'t> {
    type Item = &'t [u8];

    #[inline]
    fn next(&mut self) -> Option<&'t [u8]> {
        let blank = |b: u8| matches!(b, b' ' | b'\t' | b'\r');
        let start = self.text.iter().position(|&b| !blank(b))?;
        let rest = &self.text[start..];
        let length = rest.iter().position(|&b| blank(b) || b == b'#').unwrap_or(rest.len());
        let (token, after) = rest.split_at(length);
        self.text = after;
        (!token.is_empty()).then_some(token)
    }
}
