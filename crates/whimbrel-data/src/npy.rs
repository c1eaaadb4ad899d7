//! NumPy's `.npy` arrays, formats 1.0 to 3.0: two-dimensional, little-endian numbers.

use crate::source::{Source, open_file, read_full};
use crate::{Dataset, Error, Result};
use std::io::Read;
use whimbrel_core::Table;

/// Whether a file begins like an array.
pub fn is_npy(path: impl AsRef<std::path::Path>) -> bool {
    let mut lead = [0; 6];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut lead));
    read.is_ok() && lead == *b"\x93NUMPY"
}

/// Reads an array as rows with columns `c1`, `c2` and so on. Integers beyond 2^53 are rounded to the
/// nearest `f64`.
pub fn read_npy<'a>(source: impl Into<Source<'a>>) -> Result<Dataset> {
    match source.into() {
        Source::Bytes(name, bytes) => read(name, &mut &bytes[..], bytes.len() as u64),
        Source::File(path) => {
            let name = path.display().to_string();
            let mut file = open_file(path)?;
            let length = file.metadata().map_err(|e| Error::storage(&name, &e))?.len();
            read(&name, &mut file, length)
        }
    }
}

fn read(name: &str, source: &mut dyn Read, length: u64) -> Result<Dataset> {
    let mut reader = Reader { name, source, left: length };
    let header = reader.header()?;
    let (rows, width) = header.shape;
    let count = reader.payload_count(&header)?;
    let mut values = Vec::with_capacity(count);
    let mut chunk = vec![0; 8192 * header.element.bytes];
    while values.len() < count {
        let take = (count - values.len()).min(8192) * header.element.bytes;
        reader.exact(&mut chunk[..take])?;
        header.element.decode(&chunk[..take], &mut values);
    }
    // The hash of the file is kept once its end is read.
    read_full(reader.source, &mut [0]).map_err(|e| Error::storage(name, &e))?;
    if header.column_major && width > 1 {
        values = transpose(&values, rows, width);
    }
    let columns = (1..=width).map(|i| format!("c{i}")).collect();
    if count == 0 {
        return Err(Error::format(name, "the array is empty"));
    }
    Ok(Dataset::from_table(name, Table::new(columns, values)?))
}

struct Reader<'a> {
    name: &'a str,
    source: &'a mut dyn Read,
    left: u64,
}

struct Header {
    element: Element,
    column_major: bool,
    /// Rows and columns.
    shape: (usize, usize),
}

impl Reader<'_> {
    fn header(&mut self) -> Result<Header> {
        let mut lead = [0; 8];
        if self.left < 8 {
            return Err(self.error("this is not a .npy file: it is too short to be one"));
        }
        self.exact(&mut lead)?;
        if lead[..6] != *b"\x93NUMPY" {
            return Err(self
                .error("this is not a .npy file: it does not begin with NumPy's mark")
                .hint("write it with numpy.save; an .npz archive must be unpacked first"));
        }
        let length = match lead[6] {
            1 => {
                let mut bytes = [0; 2];
                self.exact(&mut bytes)?;
                u64::from(u16::from_le_bytes(bytes))
            }
            2 | 3 => {
                let mut bytes = [0; 4];
                self.exact(&mut bytes)?;
                u64::from(u32::from_le_bytes(bytes))
            }
            other => {
                return Err(self.error(format!(
                    "format {other}.{} is not supported; 1.0, 2.0 and 3.0 are",
                    lead[7]
                )));
            }
        };
        if length > self.left {
            return Err(self.error("the file ends inside its header"));
        }
        let mut text = vec![0; length as usize];
        self.exact(&mut text)?;
        let text = std::str::from_utf8(&text).map_err(|_| self.error("the header is not text"))?;
        self.parse_header(text)
    }

    fn parse_header(&self, text: &str) -> Result<Header> {
        let damaged = |key: &str| self.error(format!("the header has no readable {key:?}"));
        let descr = entry(text, "descr").ok_or_else(|| damaged("descr"))?;
        let order = entry(text, "fortran_order").ok_or_else(|| damaged("fortran_order"))?;
        let shape = entry(text, "shape").and_then(tuple).ok_or_else(|| damaged("shape"))?;
        let column_major = match order.split([',', '}']).next().map(str::trim) {
            Some("True") => true,
            Some("False") => false,
            _ => return Err(damaged("fortran_order")),
        };
        if descr.starts_with('[') {
            return Err(self
                .error("this is a structured array, which has no single type of number")
                .hint("save a plain two-dimensional array"));
        }
        let quoted = descr.strip_prefix('\'').and_then(|rest| rest.split('\'').next());
        let element = self.element(quoted.ok_or_else(|| damaged("descr"))?)?;
        let shape = match shape[..] {
            [rows, width] => (rows, width),
            [_] => {
                let hint = "save it as rows by columns: one column is x.reshape(-1, 1)";
                return Err(self.error("the array has 1 dimension").hint(hint));
            }
            _ => {
                let what = format!("the array has {} dimensions", shape.len());
                return Err(self.error(what).hint("save it as rows by columns"));
            }
        };
        Ok(Header { element, column_major, shape })
    }

    fn element(&self, descr: &str) -> Result<Element> {
        let right = "convert it first: numpy.save(file, array.astype('<f8'))";
        if descr.starts_with('>') {
            let what = format!("the numbers are big-endian ({descr})");
            return Err(self.error(what).hint(right));
        }
        let code = descr.trim_start_matches(['<', '|', '=']);
        let (kind, bytes) = match code {
            "f8" | "f4" => (Sort::Float, &code[1..]),
            "i8" | "i4" | "i2" | "i1" => (Sort::Signed, &code[1..]),
            "u8" | "u4" | "u2" | "u1" | "b1" => (Sort::Unsigned, &code[1..]),
            "O" => {
                let what = "this is an array of Python objects, which is never loaded";
                return Err(self.error(what).hint(right));
            }
            _ => {
                let what = format!("elements of type {descr:?} are not supported");
                return Err(self.error(what).hint(right));
            }
        };
        let bytes = usize::from(bytes.as_bytes()[0] - b'0');
        Ok(Element { sort: kind, bytes })
    }

    /// The number of values after the header, checked against the file's length.
    fn payload_count(&self, header: &Header) -> Result<usize> {
        let (rows, width) = header.shape;
        let count = rows.checked_mul(width);
        let bytes = count.and_then(|n| n.checked_mul(header.element.bytes));
        match (count, bytes) {
            (Some(count), Some(bytes)) if bytes as u64 == self.left => Ok(count),
            _ => {
                let promised = match bytes {
                    Some(bytes) => format!("{bytes} bytes"),
                    None => "more bytes than can be addressed".into(),
                };
                let left = self.left;
                Err(self.error(format!(
                    "the header promises {rows} x {width} numbers ({promised}), but {left} bytes follow"
                )))
            }
        }
    }

    fn exact(&mut self, out: &mut [u8]) -> Result<()> {
        let got = read_full(self.source, out).map_err(|e| Error::storage(self.name, &e))?;
        if got < out.len() {
            return Err(self.error("the file ends too early"));
        }
        self.left = self.left.saturating_sub(got as u64);
        Ok(())
    }

    fn error(&self, what: impl Into<String>) -> Error {
        Error::format(self.name, what)
    }
}

#[derive(Clone, Copy)]
struct Element {
    sort: Sort,
    bytes: usize,
}

#[derive(Clone, Copy)]
enum Sort {
    Float,
    Signed,
    Unsigned,
}

impl Element {
    fn decode(self, bytes: &[u8], out: &mut Vec<f64>) {
        match (self.sort, self.bytes) {
            (Sort::Float, 8) => each(bytes, f64::from_le_bytes, out),
            (Sort::Float, _) => each(bytes, |b| f64::from(f32::from_le_bytes(b)), out),
            (Sort::Signed, 8) => each(bytes, |b| i64::from_le_bytes(b) as f64, out),
            (Sort::Signed, 4) => each(bytes, |b| f64::from(i32::from_le_bytes(b)), out),
            (Sort::Signed, 2) => each(bytes, |b| f64::from(i16::from_le_bytes(b)), out),
            (Sort::Signed, _) => each(bytes, |b| f64::from(i8::from_le_bytes(b)), out),
            (Sort::Unsigned, 8) => each(bytes, |b| u64::from_le_bytes(b) as f64, out),
            (Sort::Unsigned, 4) => each(bytes, |b| f64::from(u32::from_le_bytes(b)), out),
            (Sort::Unsigned, 2) => each(bytes, |b| f64::from(u16::from_le_bytes(b)), out),
            (Sort::Unsigned, _) => each(bytes, |[b]| f64::from(b), out),
        }
    }
}

fn each<const N: usize>(bytes: &[u8], decode: impl Fn([u8; N]) -> f64, out: &mut Vec<f64>) {
    out.extend(bytes.as_chunks::<N>().0.iter().map(|&b| decode(b)));
}

/// The text after `'key':` in a Python dictionary.
fn entry<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let quoted = format!("'{key}'");
    let after = &text[text.find(&quoted)? + quoted.len()..];
    Some(after.trim_start().strip_prefix(':')?.trim_start())
}

/// The numbers of a Python tuple.
fn tuple(text: &str) -> Option<Vec<usize>> {
    let inside = text.strip_prefix('(')?.split(')').next()?;
    let parts = inside.split(',').map(str::trim).filter(|p| !p.is_empty());
    parts.map(|p| p.parse().ok()).collect()
}

fn transpose(values: &[f64], rows: usize, width: usize) -> Vec<f64> {
    (0..rows).flat_map(|r| (0..width).map(move |c| values[c * rows + r])).collect()
}
