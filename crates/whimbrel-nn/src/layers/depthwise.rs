//! Depthwise convolutions: each channel by itself.

use crate::lanes::{Lanes, lanes_kernel};
use crate::layer::{Backward, Forward, Layer, Pass, Shape, fill_normal};
use crate::product::Window;
use crate::{Role, Tensor};
use whimbrel_core::Key;

/// A depthwise convolution without intercepts.
pub(crate) struct Depthwise {
    pub name: String,
    pub input: Shape,
    pub window: Window,
}

/// Maximal number of taps of a window.
const TAPS: usize = 9;

impl Depthwise {
    /// A window of three by three pixels with a border of zeros.
    pub fn new(name: String, input: Shape, stride: usize) -> Self {
        Self { name, input, window: Window { size: 3, stride, padding: 1 } }
    }

    fn map(&self, samples: usize) -> Map {
        let (from, to) = (self.input, self.output());
        let window = self.window;
        Map {
            window,
            from: [from.rows, from.columns],
            to: [to.rows, to.columns],
            transposed: false,
            samples,
        }
    }
}

impl Layer for Depthwise {
    fn output(&self) -> Shape {
        let side = |inputs| self.window.outputs(inputs).unwrap_or(0);
        let Shape { channels, rows, columns } = self.input;
        Shape { channels, rows: side(rows), columns: side(columns) }
    }

    fn tensors(&self) -> Vec<Tensor> {
        let size = self.window.size;
        let shape = [self.input.channels, 1, size, size];
        vec![Tensor::new(format!("{}.weight", self.name), &shape, Role::Weight)]
    }

    fn start(&self, key: Key, w: &mut [f32]) {
        // PyTorch's fan-out of a grouped convolution: the taps of all channels, divided by the channels.
        fill_normal(key, (2.0 / TAPS as f64).sqrt(), w);
    }

    fn forward(&self, pass: Pass, Forward { w, x, y, .. }: Forward<'_>) {
        convolve(self.map(pass.padded), w, x, y);
    }

    fn backward(&self, pass: Pass, Backward { w, x, dy, dx, dw, .. }: Backward<'_>) {
        let map = self.map(pass.padded);
        add_weights(map, x, dy, dw);
        if let Some(dx) = dx {
            let back = Map { from: map.to, to: map.from, transposed: true, ..map };
            convolve(back, w, dy, dx);
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::depthwise(pass, self, w, x)
    }
}

/// A window over the pixels of a channel.
#[derive(Clone, Copy)]
struct Map {
    window: Window,
    /// Rows and columns of the source.
    from: [usize; 2],
    /// Rows and columns of the result.
    to: [usize; 2],
    /// Whether the source holds the window's outputs.
    transposed: bool,
    samples: usize,
}

impl Map {
    fn reads(&self) -> usize {
        self.from[0] * self.from[1] * self.samples
    }

    fn makes(&self) -> usize {
        self.to[0] * self.to[1] * self.samples
    }

    /// The taps that read a pixel for this one, with the offsets of those pixels.
    #[inline(always)]
    fn taps(&self, row: usize, column: usize, found: &mut [(usize, usize); TAPS]) -> usize {
        let Self { window, from, transposed, .. } = *self;
        let place = |at, tap, length| {
            if transposed { window.output(at, tap, length) } else { window.input(at, tap, length) }
        };
        let mut count = 0;
        for tap_row in 0..window.size {
            let Some(row) = place(row, tap_row, from[0]) else { continue };
            for tap_column in 0..window.size {
                let Some(column) = place(column, tap_column, from[1]) else { continue };
                let at = (row * from[1] + column) * self.samples;
                found[count] = (tap_row * window.size + tap_column, at);
                count += 1;
            }
        }
        count
    }
}

lanes_kernel! {
    /// Sets each pixel of `y` to the sum of the taps' weights times the pixels of `x`.
    fn convolve(map: Map, w: &[f32], x: &[f32], y: &mut [f32]) = convolve_of
}

/// # Safety
/// The instructions of `L` must be available: call only from a [`lanes_kernel!`].
#[inline(always)]
unsafe fn convolve_of<L: Lanes>(map: Map, w: &[f32], x: &[f32], y: &mut [f32]) {
    let (reads, makes, n) = (map.reads(), map.makes(), map.samples);
    let taps = map.window.size * map.window.size;
    assert!(n % 16 == 0 && taps <= TAPS);
    let mut found = [(0, 0); TAPS];
    for row in 0..map.to[0] {
        for column in 0..map.to[1] {
            let count = map.taps(row, column, &mut found);
            let found = &found[..count];
            let channels = x.chunks_exact(reads).zip(y.chunks_exact_mut(makes));
            for ((x, y), w) in channels.zip(w.chunks_exact(taps)) {
                let y = &mut y[(row * map.to[1] + column) * n..][..n];
                assert!(found.iter().all(|(_, at)| at + n <= x.len()));
                let (mut at, y) = (0, y.as_mut_ptr());
                // SAFETY: `at` plus the vectors' length is at most `n`, a multiple of 16; the assert above
                // keeps every tap's n samples inside `x`; instructions by contract.
                unsafe {
                    while at + 64 <= n {
                        sum_taps::<L, 4>(found, w, x.as_ptr().add(at), y.add(at));
                        at += 64;
                    }
                    while at < n {
                        sum_taps::<L, 1>(found, w, x.as_ptr().add(at), y.add(at));
                        at += 16;
                    }
                }
            }
        }
    }
}

/// # Safety
/// The instructions of `L` must be available; `y`, and `x` plus each tap's place, must be valid for 16 V
/// numbers.
#[inline(always)]
unsafe fn sum_taps<L: Lanes, const V: usize>(
    taps: &[(usize, usize)],
    w: &[f32],
    x: *const f32,
    y: *mut f32,
) {
    // SAFETY: loads and stores of 16 V numbers at these places, by this function's contract.
    unsafe {
        let mut sums = [L::zero(); V];
        for (tap, at) in taps {
            let w = L::splat(w[*tap]);
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = w.fma(L::load(x.add(at + 16 * v)), *sum);
            }
        }
        for (v, sum) in sums.iter().enumerate() {
            sum.store(y.add(16 * v));
        }
    }
}

lanes_kernel! {
    /// Adds the derivative of the weights.
    fn add_weights(map: Map, x: &[f32], dy: &[f32], dw: &mut [f32]) = add_weights_of
}

/// # Safety
/// The instructions of `L` must be available: call only from a [`lanes_kernel!`].
#[inline(always)]
unsafe fn add_weights_of<L: Lanes>(map: Map, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let (reads, makes, n) = (map.reads(), map.makes(), map.samples);
    let taps = map.window.size * map.window.size;
    assert!(n % 16 == 0 && taps <= TAPS);
    let mut found = [(0, 0); TAPS];
    let channels = x.chunks_exact(reads).zip(dy.chunks_exact(makes));
    for ((x, dy), dw) in channels.zip(dw.chunks_exact_mut(taps)) {
        // SAFETY: `x` and `dy` are slices of `n` numbers, a multiple of 16, read in steps of 16;
        // instructions by contract.
        unsafe {
            let mut sums = [L::zero(); TAPS];
            for (pixel, dy) in dy.chunks_exact(n).enumerate() {
                let (row, column) = (pixel / map.to[1], pixel % map.to[1]);
                let count = map.taps(row, column, &mut found);
                for (tap, at) in &found[..count] {
                    let x = x[*at..][..n].as_ptr();
                    let mut sum = sums[*tap];
                    for s in (0..n).step_by(16) {
                        sum = L::load(x.add(s)).fma(L::load(dy.as_ptr().add(s)), sum);
                    }
                    sums[*tap] = sum;
                }
            }
            for (dw, sum) in dw.iter_mut().zip(sums) {
                *dw += sum.sum();
            }
        }
    }
}
