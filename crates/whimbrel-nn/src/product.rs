//! Matrix products `C = A B` with samples along the columns of B: the forward pass of dense and
//! convolutional layers, and the derivative of their inputs.
//!
//! A is packed once ([`pack`]), eight rows at a time; B is packed block by block, thirty-two columns side
//! by side, directly from its [`Columns`], so that the patches of a convolution are never stored. Every
//! element of C is one chain of fused multiply-adds in the order of k, for any block size.

use crate::lanes::{Lanes, lanes_kernel};

/// Rows of A in a packed strip.
const ROWS: usize = 8;
/// Columns of B in a packed panel.
const WIDE: usize = 32;
/// Columns of B packed at a time.
const BLOCK: usize = 256;
/// Rows of B packed at a time, as long as one channel has no more taps.
const DEPTH: usize = 384;

/// The window of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub size: usize,
    pub stride: usize,
    /// Width of the border of zeros.
    pub padding: usize,
}

impl Window {
    pub const POINT: Self = Self { size: 1, stride: 1, padding: 0 };

    /// Number of outputs along an axis of this length; `None` if the window does not fit.
    pub fn outputs(self, inputs: usize) -> Option<usize> {
        (inputs + 2 * self.padding).checked_sub(self.size).map(|room| room / self.stride + 1)
    }

    /// The input read by a tap of the window for an output; `None` in the border.
    #[inline(always)]
    pub fn input(self, output: usize, tap: usize, inputs: usize) -> Option<usize> {
        let at = (output * self.stride + tap).wrapping_sub(self.padding);
        (at < inputs).then_some(at)
    }

    /// The output for which a tap reads an input; `None` if there is none.
    #[inline(always)]
    pub fn output(self, input: usize, tap: usize, outputs: usize) -> Option<usize> {
        let at = (input + self.padding).wrapping_sub(tap);
        (at.is_multiple_of(self.stride) && at / self.stride < outputs).then_some(at / self.stride)
    }
}

/// The matrix B. Rows are channels and taps of a window; columns are pixels and samples.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    pub values: &'a [f32],
    pub channels: usize,
    /// Distance between channels in `values`.
    pub stride: usize,
    /// The window over the pixels; `None` for the pixels themselves.
    pub patches: Option<Patches>,
}

/// A window over the pixels of a map, or its transpose.
#[derive(Clone, Copy)]
pub(crate) struct Patches {
    pub window: Window,
    /// Whether columns are the window's inputs, and `values` its outputs.
    pub transposed: bool,
    /// Rows and columns of the source map.
    pub from: [usize; 2],
    /// Columns of the result's map.
    pub to_columns: usize,
    /// Samples, a multiple of 16.
    pub samples: usize,
}

impl Columns<'_> {
    fn taps(&self) -> usize {
        self.patches.map_or(1, |patches| patches.window.size * patches.window.size)
    }

    /// Number of columns from this one on that are contiguous for every tap.
    #[inline(always)]
    fn run(&self, column: usize) -> usize {
        self.patches.map_or(usize::MAX, |patches| patches.samples - column % patches.samples)
    }

    /// The offset, within each channel, of the run of columns from `column` on for a tap.
    #[inline(always)]
    fn place(&self, column: usize, tap: usize) -> Option<usize> {
        let Some(Patches { window, transposed, from, to_columns, samples }) = self.patches else {
            return Some(column);
        };
        let (pixel, sample) = (column / samples, column % samples);
        let (row, tap_row) = (pixel / to_columns, tap / window.size);
        let (column, tap_column) = (pixel % to_columns, tap % window.size);
        let [row, column] = if transposed {
            [window.output(row, tap_row, from[0])?, window.output(column, tap_column, from[1])?]
        } else {
            [window.input(row, tap_row, from[0])?, window.input(column, tap_column, from[1])?]
        };
        Some((row * from[1] + column) * samples + sample)
    }
}

/// The matrix A, with row i, channel c and tap t at `i row + c channel + t`.
#[derive(Clone, Copy)]
pub(crate) struct Factor<'a> {
    pub values: &'a [f32],
    pub rows: usize,
    pub channels: usize,
    pub taps: usize,
    pub row: usize,
    pub channel: usize,
}

impl<'a> Factor<'a> {
    /// A row-major matrix.
    pub fn matrix(values: &'a [f32], rows: usize, columns: usize) -> Self {
        Self { values, rows, channels: columns, taps: 1, row: columns, channel: 1 }
    }

    /// The transpose: rows and channels exchanged.
    pub fn transposed(self) -> Self {
        let Self { rows, channels, row, channel, .. } = self;
        Self { rows: channels, channels: rows, row: channel, channel: row, ..self }
    }

    /// Length of the packed matrix.
    pub fn packed(&self) -> usize {
        self.rows.next_multiple_of(ROWS) * self.channels * self.taps
    }
}

/// Working memory of a product for the panels of B.
pub(crate) const PANELS: usize = (DEPTH + 64) * BLOCK;

/// The initial value of C.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    Zero,
    /// One number per row.
    Rows(&'a [f32]),
    Keep,
}

/// Packs A: for every strip of eight rows, and every channel and tap, its eight numbers; missing rows are
/// zero.
pub(crate) fn pack(a: Factor<'_>, packed: &mut [f32]) {
    let depth = a.channels * a.taps;
    for (strip, packed) in packed.chunks_exact_mut(ROWS * depth.max(1)).enumerate() {
        let first = strip * ROWS;
        let rows = (a.rows - first).min(ROWS);
        for (channel, packed) in packed.chunks_exact_mut(ROWS * a.taps).enumerate() {
            for (tap, eight) in packed.chunks_exact_mut(ROWS).enumerate() {
                let from = first * a.row + channel * a.channel + tap;
                if rows == ROWS && a.row == 1 {
                    eight.copy_from_slice(&a.values[from..from + ROWS]);
                    continue;
                }
                eight[rows..].fill(0.0);
                for (i, x) in eight[..rows].iter_mut().enumerate() {
                    *x = a.values[from + i * a.row];
                }
            }
        }
    }
}

/// The matrix C.
pub(crate) struct Target<'a> {
    pub values: &'a mut [f32],
    pub rows: usize,
    /// Columns, a multiple of 16.
    pub columns: usize,
    /// Distance between rows.
    pub stride: usize,
    /// Whether negative results are set to zero.
    pub positive: bool,
}

impl<'a> Target<'a> {
    /// Rows of this length, one after the other.
    pub fn new(values: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self { values, rows, columns, stride: columns, positive: false }
    }
}

/// Working memory of [`packed_product`] for a matrix of these sizes or its transpose.
pub(crate) fn packed_work(rows: usize, channels: usize, taps: usize) -> usize {
    let packed = |rows: usize, channels: usize| rows.next_multiple_of(ROWS) * channels * taps;
    PANELS + packed(rows, channels).max(packed(channels, rows))
}

/// `C = start + A B`, with A packed first.
pub(crate) fn packed_product(
    a: Factor<'_>,
    b: Columns<'_>,
    start: Start<'_>,
    c: Target<'_>,
    work: &mut [f32],
) {
    let (panels, packed) = work.split_at_mut(PANELS);
    let packed = &mut packed[..a.packed()];
    pack(a, packed);
    product(packed, b, start, c, panels);
}

lanes_kernel! {
    /// `C = start + A B`, with A packed and `panels` as working memory.
    pub(crate) fn product(
        a: &[f32], b: Columns<'_>, start: Start<'_>, c: Target<'_>, panels: &mut [f32]
    ) = product_of
}

/// # Safety
/// The instructions of `L` must be available: call only from a [`lanes_kernel!`].
#[inline(always)]
unsafe fn product_of<L: Lanes>(
    a: &[f32],
    b: Columns<'_>,
    start: Start<'_>,
    c: Target<'_>,
    panels: &mut [f32],
) {
    let (taps, depth) = (b.taps(), b.channels * b.taps());
    assert!(c.columns.is_multiple_of(16) && panels.len() >= PANELS && taps <= 64);
    assert!(c.rows == 0 || c.values.len() >= (c.rows - 1) * c.stride + c.columns);
    assert!(a.len() >= c.rows.next_multiple_of(ROWS) * depth);
    if let Start::Rows(rows) = start {
        assert!(rows.len() >= c.rows);
    }
    let channels_at_once = (DEPTH / taps).max(1);
    for from in (0..c.columns).step_by(BLOCK) {
        let columns = (c.columns - from).min(BLOCK);
        for first in (0..b.channels).step_by(channels_at_once) {
            let channels = (b.channels - first).min(channels_at_once);
            pack_panels(b, [first, channels], [from, columns], panels);
            let start = if first == 0 { start } else { Start::Keep };
            let positive = c.positive && first + channels == b.channels;
            let k = channels * taps;
            for row in (0..c.rows).step_by(ROWS) {
                let strip = &a[row * depth + first * taps * ROWS..][..k * ROWS];
                let rows = (c.rows - row).min(ROWS);
                let of_rows = match start {
                    Start::Rows(values) => Start::Rows(&values[row..row + rows]),
                    other => other,
                };
                for column in (0..columns).step_by(WIDE) {
                    let panel = &panels[column * k..][..WIDE * k];
                    let wide = columns - column >= WIDE;
                    // SAFETY: `strip` and `panel` are slices of `8 k` and `32 k` numbers, and the asserts
                    // above place the tile's rows and columns within C; instructions by contract.
                    unsafe {
                        let at = c.values.as_mut_ptr().add(row * c.stride + from + column);
                        let tile = Tile {
                            a: strip.as_ptr(),
                            b: panel.as_ptr(),
                            k,
                            c: at,
                            stride: c.stride,
                            rows,
                            start: of_rows,
                            positive,
                        };
                        tile.all::<L>(wide);
                    }
                }
            }
        }
    }
}

/// Copies the rows of some channels and the columns of a block to panels of [`WIDE`] columns.
#[inline(always)]
fn pack_panels(b: Columns<'_>, channels: [usize; 2], columns: [usize; 2], panels: &mut [f32]) {
    let ([first, channels], [from, columns]) = (channels, columns);
    let taps = b.taps();
    let k = channels * taps;
    let mut column = 0;
    while column < columns {
        // The columns of one pixel are contiguous in every channel.
        let run = b.run(from + column).min(columns - column);
        for tap in 0..taps {
            let place = b.place(from + column, tap);
            for channel in 0..channels {
                let row = (channel * taps + tap) * WIDE;
                let source =
                    place.map(|place| &b.values[(first + channel) * b.stride + place..][..run]);
                for part in (0..run).step_by(16) {
                    let to = column + part;
                    let panel = &mut panels[to / WIDE * WIDE * k + row + to % WIDE..][..16];
                    match source {
                        Some(source) => panel.copy_from_slice(&source[part..][..16]),
                        None => panel.fill(0.0),
                    }
                }
            }
        }
        column += run;
    }
}

/// A strip of A, a panel of B, and the place of their product in C.
#[derive(Clone, Copy)]
struct Tile<'a> {
    a: *const f32,
    b: *const f32,
    k: usize,
    c: *mut f32,
    stride: usize,
    rows: usize,
    start: Start<'a>,
    positive: bool,
}

impl Tile<'_> {
    /// The whole tile, in parts that fit the registers.
    ///
    /// # Safety
    /// The contract of [`Self::part`] must hold for every part of the tile.
    #[inline(always)]
    unsafe fn all<L: Lanes>(self, wide: bool) {
        // SAFETY: the parts lie within the tile, for which the contract holds.
        unsafe {
            match (L::MANY, wide) {
                (true, true) => self.part::<L, 8, 2>(0, 0),
                (true, false) => self.part::<L, 8, 1>(0, 0),
                _ => {
                    for column in [0, 16] {
                        self.part::<L, 4, 1>(0, column);
                        if self.rows > 4 {
                            self.part::<L, 4, 1>(4, column);
                        }
                        if !wide {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Computes R rows and 16 V columns of the tile, from `row` and `column` on.
    ///
    /// # Safety
    /// The instructions of `L` must be available; `a` must be valid for `8 k` numbers, `b` for `32 k`, and
    /// `c` for the existing rows and columns of the part.
    #[inline(always)]
    unsafe fn part<L: Lanes, const R: usize, const V: usize>(self, row: usize, column: usize) {
        let rows = (self.rows - row).min(R);
        // SAFETY: rows of C are accessed up to `rows`; `a` and `b` advance by 8 and 32 numbers in each of
        // `k` steps and are read within them; instructions by contract.
        unsafe {
            let c = self.c.add(row * self.stride + column);
            let mut sums = [[L::zero(); V]; R];
            match self.start {
                Start::Zero => {}
                Start::Rows(values) => {
                    for (sums, value) in sums.iter_mut().zip(&values[row..]) {
                        *sums = [L::splat(*value); V];
                    }
                }
                Start::Keep => {
                    for (i, sums) in sums.iter_mut().enumerate().take(rows) {
                        for (v, sum) in sums.iter_mut().enumerate() {
                            *sum = L::load(c.add(i * self.stride + 16 * v));
                        }
                    }
                }
            }
            let (mut a, mut b) = (self.a.add(row), self.b.add(column));
            for _ in 0..self.k {
                let mut vectors = [L::zero(); V];
                for (v, vector) in vectors.iter_mut().enumerate() {
                    *vector = L::load(b.add(16 * v));
                }
                for (i, sums) in sums.iter_mut().enumerate() {
                    let x = L::splat(*a.add(i));
                    for (sum, vector) in sums.iter_mut().zip(vectors) {
                        *sum = x.fma(vector, *sum);
                    }
                }
                a = a.wrapping_add(ROWS);
                b = b.wrapping_add(WIDE);
            }
            for (i, sums) in sums.iter().enumerate().take(rows) {
                for (v, sum) in sums.iter().enumerate() {
                    let sum = if self.positive { sum.positive() } else { *sum };
                    sum.store(c.add(i * self.stride + 16 * v));
                }
            }
        }
    }
}
