//! MNIST's idx files, plain or gzipped: a type, lengths, and big-endian values.

use crate::source::{Source, read_full};
use crate::{ClientRows, Error, Result};
use std::io::Read;
use std::path::Path;
use whimbrel_core::{Inputs, Samples, Table, Targets};

/// Images as rows of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    rows: usize,
    width: usize,
    /// The lengths of one image.
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Images {
    /// The bytes of all images, one after the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes per image.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Transposes every image: EMNIST's files are column-major.
    pub fn transpose(&mut self) -> Result<()> {
        let [height, width] = self.shape[..] else {
            let what = format!("images of lengths {:?} cannot be transposed", self.shape);
            return Err(Error::config(what));
        };
        let mut turned = vec![0; height * width];
        for image in self.bytes.chunks_exact_mut(height * width) {
            for (at, byte) in image.iter().enumerate() {
                turned[at % width * height + at / width] = *byte;
            }
            image.copy_from_slice(&turned);
        }
        self.shape = vec![width, height];
        Ok(())
    }

    /// These images with their targets, as bytes; one channel unless the file has more.
    pub fn samples(&self, rows: &[usize], targets: Targets) -> Result<Samples> {
        let image = |row: &usize| &self.bytes[row * self.width..][..self.width];
        let bytes = rows.iter().flat_map(image).copied().collect();
        let shape = match self.shape[..] {
            [height, width] => vec![1, height, width],
            _ => self.shape.clone(),
        };
        Ok(Samples::new(shape, Inputs::Bytes(bytes), targets)?)
    }

    /// These images as rows of bytes divided by `scale`, with columns `p0`, `p1` and so on.
    pub fn table(&self, rows: impl Iterator<Item = usize>, scale: f64) -> Result<Table> {
        let mut values = Vec::with_capacity(rows.size_hint().0 * self.width);
        for row in rows {
            let image = &self.bytes[row * self.width..][..self.width];
            values.extend(image.iter().map(|byte| f64::from(*byte) / scale));
        }
        Ok(Table::new((0..self.width).map(|j| format!("p{j}")).collect(), values)?)
    }
}

/// Whether a file begins like an idx file of a known type.
pub fn is_idx(path: impl AsRef<Path>) -> bool {
    let mut lead = [0; 4];
    let opened = Source::File(path.as_ref()).open();
    let read = opened.is_ok_and(|mut file| matches!(read_full(&mut file, &mut lead), Ok(4)));
    read && matches!(lead, [0, 0, BYTE | INT, 1..=DIMENSIONS_MAX])
}

/// One client per number, named after it.
pub fn by_number(numbers: &[i32], what: &str) -> Vec<ClientRows> {
    let digits = numbers.iter().map(|n| n.to_string().len()).max().unwrap_or(1);
    let mut clients = std::collections::BTreeMap::<i32, Vec<usize>>::new();
    for (row, number) in numbers.iter().enumerate() {
        clients.entry(*number).or_default().push(row);
    }
    // Zero-padded, so that byte order is numeric order.
    let name = |number: i32| format!("{what}-{number:0digits$}");
    clients.into_iter().map(|(n, rows)| ClientRows { name: name(n), rows }).collect()
}

const BYTE: u8 = 0x08;
const INT: u8 = 0x0C;
const DIMENSIONS_MAX: u8 = 4;

/// The content of a file: type, lengths, and values as bytes.
struct Content {
    kind: u8,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Reads images: bytes in two dimensions or more, the first of which counts the images.
pub fn read_idx_images<'a>(source: impl Into<Source<'a>>) -> Result<Images> {
    let source = source.into();
    let name = &*source.name();
    let Content { kind, shape, bytes } = read(name, source)?;
    if kind != BYTE || shape.len() < 2 {
        let what = format!("it holds {}, not images", describe(kind, &shape));
        return Err(Error::format(name, what).hint("images are bytes in three dimensions"));
    }
    let (rows, width) = (shape[0], shape[1..].iter().product());
    if rows == 0 || width == 0 {
        return Err(Error::format(name, "it holds no images"));
    }
    Ok(Images { rows, width, shape: shape[1..].to_vec(), bytes })
}

/// Reads one integer for each of `rows` images: a list (`column` 0), or one column of a table with
/// several numbers per image.
pub fn read_idx_numbers<'a>(
    source: impl Into<Source<'a>>,
    rows: usize,
    column: usize,
) -> Result<Vec<i32>> {
    let source = source.into();
    let name = &*source.name();
    let Content { kind, shape, bytes } = read(name, source)?;
    let width = match shape[..] {
        [_] => 1,
        [_, width] if width > 0 => width,
        _ => {
            let what = format!("it holds {}, not a list of numbers", describe(kind, &shape));
            return Err(Error::format(name, what));
        }
    };
    if shape[0] != rows {
        let what = format!("it has numbers for {} images, but there are {rows}", shape[0]);
        return Err(Error::format(name, what));
    }
    if column >= width {
        let what = format!("it has {width} numbers for each image; number {column} does not exist");
        return Err(Error::format(name, what).hint("columns are counted from 0"));
    }
    let all: Vec<i32> = match kind {
        BYTE => bytes.iter().map(|byte| i32::from(*byte)).collect(),
        _ => bytes.as_chunks().0.iter().map(|four| i32::from_be_bytes(*four)).collect(),
    };
    Ok(all.into_iter().skip(column).step_by(width).collect())
}

fn read(name: &str, source: Source<'_>) -> Result<Content> {
    let mut file = source.open()?;
    let mut lead = [0; 4];
    exact(name, &mut file, &mut lead)?;
    let [0, 0, kind, dimensions] = lead else {
        let what = "this is not an idx file: it does not begin with two zero bytes";
        return Err(Error::format(name, what));
    };
    if !matches!(kind, BYTE | INT) || !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        let what =
            format!("values of type {kind:#04x} in {dimensions} dimensions are not supported");
        return Err(
            Error::format(name, what).hint("supported are bytes (0x08) and integers (0x0c)")
        );
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let mut length = [0; 4];
        exact(name, &mut file, &mut length)?;
        shape.push(u32::from_be_bytes(length) as usize);
    }
    let size: usize = if kind == BYTE { 1 } else { 4 };
    let promised = shape.iter().try_fold(size, |all, n| all.checked_mul(*n));
    let Some(promised) = promised.filter(|all| *all < usize::MAX) else {
        let what = format!("the header promises {shape:?} values, more than can be addressed");
        return Err(Error::format(name, what));
    };
    // The buffer grows as bytes arrive: a false header allocates nothing.
    let mut bytes = Vec::new();
    let broken = |e: std::io::Error| Error::storage(name, &e);
    file.by_ref().take(promised as u64).read_to_end(&mut bytes).map_err(broken)?;
    let more = read_full(&mut file, &mut [0]).map_err(broken)?;
    if bytes.len() != promised || more > 0 {
        let found = if more > 0 { "more".into() } else { bytes.len().to_string() };
        let what = format!("the header promises {promised} bytes of values, but {found} follow");
        return Err(Error::format(name, what));
    }
    Ok(Content { kind, shape, bytes })
}

fn exact(name: &str, file: &mut dyn Read, out: &mut [u8]) -> Result<()> {
    match read_full(file, out).map_err(|e| Error::storage(name, &e))? {
        got if got == out.len() => Ok(()),
        _ => Err(Error::format(name, "the file ends inside its header")),
    }
}

fn describe(kind: u8, shape: &[usize]) -> String {
    let kind = if kind == BYTE { "bytes" } else { "integers" };
    let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("{} {kind}", shape.join(" x "))
}
