//! Splits text into records and fields (RFC 4180) with a bounded buffer.
//!
//! Beyond the RFC: a byte-order mark is skipped, lines may end in LF alone, blank lines are
//! skipped, and a quote inside an unquoted field is an ordinary character.

use crate::source::read_full;
use crate::{Error, Result};
use std::io::Read;
use std::ops::Range;

/// A record longer than this is taken for an unclosed quote.
const RECORD_BYTES_MAX: usize = 16 << 20;
const BUFFER_BYTES: usize = 1 << 18;

/// A reader of consecutive records.
pub(crate) struct Records<'a> {
    name: &'a str,
    source: Box<dyn Read + 'a>,
    delimiter: u8,
    buffer: Vec<u8>,
    /// The bytes read and not yet consumed are `buffer[from..to]`.
    from: usize,
    to: usize,
    ended: bool,
    next_line: u64,
    fields: Vec<Field>,
}

/// One record; its fields borrow the reader's buffer.
pub(crate) struct Record<'r> {
    /// The first line, counted from 1.
    pub(crate) line: u64,
    bytes: &'r [u8],
    fields: &'r [Field],
}

#[derive(Clone)]
struct Field {
    /// Without the quotes and surrounding blanks.
    span: Range<u32>,
    /// Quotes inside are doubled.
    escaped: bool,
}

enum Cut {
    /// The record, its line end included, takes this many bytes and spans this many lines.
    Whole {
        bytes: usize,
        lines: u64,
    },
    Incomplete,
    /// Text follows a closing quote on this line of the record.
    Broken {
        line: u64,
    },
}

impl<'a> Records<'a> {
    /// Without a delimiter, the first line decides.
    pub(crate) fn new(
        name: &'a str,
        source: Box<dyn Read + 'a>,
        delimiter: Option<u8>,
    ) -> Result<Self> {
        let mut records = Self {
            name,
            source,
            delimiter: delimiter.unwrap_or(b','),
            buffer: vec![0; BUFFER_BYTES],
            from: 0,
            to: 0,
            ended: false,
            next_line: 1,
            fields: Vec::new(),
        };
        records.refill()?;
        let start = &records.buffer[..records.to];
        if start.starts_with(b"\xef\xbb\xbf") {
            records.from = 3;
        } else if let Some((what, hint)) = foreign(start) {
            return Err(Error::format(name, what).hint(hint));
        }
        if delimiter.is_none() {
            records.delimiter = records.detected_delimiter();
        }
        Ok(records)
    }

    /// The most frequent delimiter outside quotes on the next line; ties prefer `,`, then `;`.
    fn detected_delimiter(&self) -> u8 {
        let mut counts = [0usize; 3];
        let mut quoted = false;
        let text = &self.buffer[self.from..self.to];
        let first = text.iter().position(|b| !b"\r\n".contains(b)).unwrap_or(text.len());
        for &byte in &text[first..] {
            match byte {
                b'"' => quoted = !quoted,
                b'\n' if !quoted => break,
                b',' if !quoted => counts[0] += 1,
                b';' if !quoted => counts[1] += 1,
                b'\t' if !quoted => counts[2] += 1,
                _ => {}
            }
        }
        let [comma, semicolon, tab] = counts;
        if comma >= semicolon && comma >= tab {
            b','
        } else if semicolon >= tab {
            b';'
        } else {
            b'\t'
        }
    }

    pub(crate) fn delimiter(&self) -> u8 {
        self.delimiter
    }

    /// The next record; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Record<'_>>> {
        loop {
            if !self.skip_blank_lines()? {
                return Ok(None);
            }
            let rest = &self.buffer[self.from..self.to];
            match cut(rest, self.delimiter, self.ended, &mut self.fields) {
                Cut::Whole { bytes, lines } => {
                    let record = Record {
                        line: self.next_line,
                        bytes: &self.buffer[self.from..self.from + bytes],
                        fields: &self.fields,
                    };
                    self.from += bytes;
                    self.next_line += lines;
                    return Ok(Some(record));
                }
                Cut::Incomplete if self.ended || rest.len() >= RECORD_BYTES_MAX => {
                    let what = if self.ended {
                        "a quoted cell is never closed"
                    } else {
                        "this row is longer than 16 MiB, as when a quoted cell is never closed"
                    };
                    return Err(Error::format(self.name, what)
                        .at_line(self.next_line)
                        .hint("close it with \", and write a quote inside a quoted cell twice"));
                }
                Cut::Incomplete => self.refill()?,
                Cut::Broken { line } => {
                    let hint = if self.name.ends_with(".toml") {
                        "this seems to be a job file: name a file of rows"
                    } else {
                        "write a quote inside a quoted cell twice"
                    };
                    return Err(Error::format(self.name, "text follows a closing quote")
                        .at_line(self.next_line + line)
                        .hint(hint));
                }
            }
        }
    }

    /// Skips blank lines; false at the end of the text.
    fn skip_blank_lines(&mut self) -> Result<bool> {
        loop {
            match &self.buffer[self.from..self.to] {
                [b'\n', ..] => self.from += 1,
                [b'\r', b'\n', ..] => self.from += 2,
                [] | [b'\r'] if !self.ended => {
                    self.refill()?;
                    continue;
                }
                [] | [b'\r'] => return Ok(false),
                _ => return Ok(true),
            }
            self.next_line += 1;
        }
    }

    /// Moves the remaining bytes to the front and appends more; a full buffer grows.
    fn refill(&mut self) -> Result<()> {
        self.buffer.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        if self.to == self.buffer.len() {
            self.buffer.resize(2 * self.to, 0);
        }
        let read = read_full(&mut *self.source, &mut self.buffer[self.to..])
            .map_err(|e| Error::storage(self.name, &e))?;
        self.to += read;
        self.ended = self.to < self.buffer.len();
        Ok(())
    }
}

impl<'r> Record<'r> {
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    /// One field; `scratch` holds a field whose doubled quotes were replaced.
    #[inline]
    pub(crate) fn field<'s>(&'s self, i: usize, scratch: &'s mut Vec<u8>) -> &'s [u8] {
        let field = &self.fields[i];
        let raw = &self.bytes[field.span.start as usize..field.span.end as usize];
        if !field.escaped {
            return raw;
        }
        scratch.clear();
        let mut previous_quote = false;
        for &byte in raw {
            previous_quote = byte == b'"' && !previous_quote;
            if !previous_quote {
                scratch.push(byte);
            }
        }
        scratch
    }
}

/// Cuts one record off the front of `text`.
fn cut(text: &[u8], delimiter: u8, ended: bool, fields: &mut Vec<Field>) -> Cut {
    fields.clear();
    let mut at = 0;
    let mut lines = 1;
    loop {
        let start = skip_blanks(text, at, delimiter);
        let (span, escaped) = if text.get(start) == Some(&b'"') {
            let Some((close, escaped)) = closing_quote(text, start + 1) else {
                return Cut::Incomplete;
            };
            lines += text[start + 1..close].iter().filter(|&&b| b == b'\n').count() as u64;
            at = skip_blanks(text, close + 1, delimiter);
            if text[at..].starts_with(b"\r\n") || (ended && text[at..] == *b"\r") {
                at += 1;
            }
            (start + 1..close, escaped)
        } else {
            at = start + field_length(&text[start..], delimiter);
            (start..trim_end(text, start, at), false)
        };
        fields.push(Field { span: span.start as u32..span.end as u32, escaped });
        match text.get(at) {
            Some(&b) if b == delimiter => at += 1,
            Some(b'\n') => return Cut::Whole { bytes: at + 1, lines },
            None if ended => return Cut::Whole { bytes: at, lines },
            None => return Cut::Incomplete,
            Some(b'\r') if at + 1 == text.len() => return Cut::Incomplete,
            Some(_) => return Cut::Broken { line: lines - 1 },
        }
    }
}

/// The length of an unquoted field: up to the delimiter, the line's end, or the end of `text`.
/// Eight bytes at a time: a byte of `x` is zero if `(x - 1) & !x` has its high bit set, and the
/// lowest such bit is always right.
#[inline]
fn field_length(text: &[u8], delimiter: u8) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let zeros = |x: u64| x.wrapping_sub(ONES) & !x & HIGHS;
    let (words, rest) = text.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let ends = zeros(word ^ (ONES * u64::from(delimiter))) | zeros(word ^ (ONES * 10));
        if ends != 0 {
            return 8 * i + ends.trailing_zeros() as usize / 8;
        }
    }
    let end = rest.iter().position(|&b| b == delimiter || b == b'\n');
    end.map_or(text.len(), |i| 8 * words.len() + i)
}

#[inline]
fn skip_blanks(text: &[u8], mut at: usize, delimiter: u8) -> usize {
    while at < text.len() && (text[at] == b' ' || (text[at] == b'\t' && delimiter != b'\t')) {
        at += 1;
    }
    at
}

#[inline]
fn trim_end(text: &[u8], start: usize, mut end: usize) -> usize {
    while end > start && matches!(text[end - 1], b' ' | b'\t' | b'\r') {
        end -= 1;
    }
    end
}

/// The place of the closing quote of the field that starts at `from`, and whether the field holds
/// doubled quotes.
fn closing_quote(text: &[u8], from: usize) -> Option<(usize, bool)> {
    let mut at = from;
    let mut escaped = false;
    loop {
        at += text[at..].iter().position(|&b| b == b'"')?;
        if text.get(at + 1) != Some(&b'"') {
            return Some((at, escaped));
        }
        escaped = true;
        at += 2;
    }
}

/// Whether the first file of a zip archive is a NumPy array: its name follows the head of 30 bytes.
fn is_npz(start: &[u8]) -> bool {
    let length = start.get(26..28).map_or(0, |n| usize::from(u16::from_le_bytes([n[0], n[1]])));
    start.get(30..30 + length).is_some_and(|name| name.ends_with(b".npy"))
}

/// Recognises other file formats: the problem and a hint.
fn foreign(start: &[u8]) -> Option<(&'static str, &'static str)> {
    if start.starts_with(b"PK\x03\x04") && is_npz(start) {
        Some((
            "this is a NumPy archive (.npz), not CSV",
            "save one array with numpy.save and read it with source = \"npy\"",
        ))
    } else if start.starts_with(b"PK\x03\x04") {
        Some(("this is a zip archive or an Excel workbook, not CSV", "export the sheet as CSV"))
    } else if start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff") {
        Some(("this is UTF-16 text, not UTF-8", "save the file as UTF-8"))
    } else if start.starts_with(b"\x93NUMPY") {
        Some(("this is a NumPy array, not CSV", "read it with source = \"npy\""))
    } else if start.starts_with(b"PAR1") {
        Some(("this is a Parquet file, not CSV", "read it with source = \"parquet\""))
    } else if start.starts_with(b"ARROW1") {
        Some(("this is an Arrow file, not CSV", "read it with source = \"parquet\""))
    } else if start.starts_with(b"SQLite format 3\0") {
        Some((
            "this is an SQLite database, not CSV",
            "in a job, query it with source = \"sql\"; elsewhere, export the rows of a query as CSV",
        ))
    } else {
        None
    }
}
