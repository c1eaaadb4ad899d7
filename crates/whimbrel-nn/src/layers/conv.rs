//! Convolutions over all channels, as matrix products over the patches of a window.

use super::pointwise::{add_row_sums, mask_positive};
use crate::layer::{Backward, Forward, Layer, Pass, Shape, fill_normal, fill_uniform};
use crate::outer::{Strips, Sums, add_outer};
use crate::product::{
    Columns, Factor, Patches, Start, Target, Window, packed_product, packed_work,
};
use crate::{Role, Tensor};
use whimbrel_core::Key;

/// Length of the runs whose outer products are summed at a time.
const RUN: usize = 1024;

/// A convolution with square windows.
pub(crate) struct Conv {
    pub name: String,
    pub input: Shape,
    pub output: Shape,
    pub window: Window,
    /// Whether there is an intercept per channel. If so, weights and intercepts start uniform within
    /// `1 / sqrt(fan in)`; otherwise normal with variance `2 / fan out` (He et al., 2015).
    pub bias: bool,
    /// Whether negative outputs are set to zero.
    pub relu: bool,
}

impl Conv {
    /// A convolution without intercepts or rectification, as before a batch norm.
    ///
    /// The window must fit the input.
    pub fn new(name: String, input: Shape, channels: usize, window: Window) -> Self {
        let side = |inputs| window.outputs(inputs).unwrap_or(0);
        let output = Shape { channels, rows: side(input.rows), columns: side(input.columns) };
        Self { name, input, output, window, bias: false, relu: false }
    }

    fn taps(&self) -> usize {
        self.window.size * self.window.size
    }

    fn weights(&self) -> usize {
        self.output.channels * self.input.channels * self.taps()
    }

    fn factor<'a>(&self, w: &'a [f32]) -> Factor<'a> {
        let (channels, taps) = (self.input.channels, self.taps());
        let (rows, row) = (self.output.channels, channels * taps);
        Factor { values: &w[..self.weights()], rows, channels, taps, row, channel: taps }
    }

    fn patches(&self, transposed: bool, samples: usize) -> Option<Patches> {
        let (from, to) =
            if transposed { (self.output, self.input) } else { (self.input, self.output) };
        (self.window != Window::POINT).then_some(Patches {
            window: self.window,
            transposed,
            from: [from.rows, from.columns],
            to_columns: to.columns,
            samples,
        })
    }

    /// Adds the derivative of the weights.
    fn add_weights(&self, n: usize, x: &[f32], dy: &[f32], dw: &mut [f32]) {
        let (from, to) = (self.input, self.output);
        let (x_stride, dy_stride) = (from.pixels() * n, to.pixels() * n);
        let taps = self.taps();
        let mut add = |x_at: usize, dy_at: usize, length: usize, tap: usize| {
            let a = Strips { values: &dy[dy_at..], rows: to.channels, stride: dy_stride };
            let b = Strips { values: &x[x_at..], rows: from.channels, stride: x_stride };
            let c = Sums { values: &mut dw[tap..], row: from.channels * taps, column: taps };
            add_outer(a, b, length, c);
        };
        if self.window == Window::POINT {
            return add(0, 0, dy_stride, 0);
        }
        // With stride 1, neighbouring pixels form one contiguous run.
        let at_once = if self.window.stride == 1 { (RUN / n).max(1) } else { 1 };
        for row in 0..to.rows {
            for first in (0..to.columns).step_by(at_once) {
                let end = (first + at_once).min(to.columns);
                for tap in 0..taps {
                    let (tap_row, tap_column) = (tap / self.window.size, tap % self.window.size);
                    let input = |column| self.window.input(column, tap_column, from.columns);
                    let Some(x_row) = self.window.input(row, tap_row, from.rows) else { continue };
                    let Some(low) = (first..end).find(|c| input(*c).is_some()) else { continue };
                    let high = (low..end).take_while(|c| input(*c).is_some()).count() + low;
                    let x_column = input(low).unwrap_or(0);
                    let x_at = (x_row * from.columns + x_column) * n;
                    add(x_at, (row * to.columns + low) * n, (high - low) * n, tap);
                }
            }
        }
    }
}

impl Layer for Conv {
    fn output(&self) -> Shape {
        self.output
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (name, size) = (&self.name, self.window.size);
        let shape = [self.output.channels, self.input.channels, size, size];
        let mut tensors = vec![Tensor::new(format!("{name}.weight"), &shape, Role::Weight)];
        if self.bias {
            let shape = [self.output.channels];
            tensors.push(Tensor::new(format!("{name}.bias"), &shape, Role::Weight));
        }
        tensors
    }

    fn start(&self, key: Key, w: &mut [f32]) {
        if self.bias {
            let fan_in = self.input.channels * self.taps();
            fill_uniform(key, 1.0 / (fan_in as f64).sqrt(), w);
        } else {
            let fan_out = self.output.channels * self.taps();
            fill_normal(key, (2.0 / fan_out as f64).sqrt(), w);
        }
    }

    fn work(&self, _padded: usize) -> usize {
        packed_work(self.output.channels, self.input.channels, self.taps())
    }

    fn forward(&self, pass: Pass, Forward { w, x, y, work, .. }: Forward<'_>) {
        let n = pass.padded;
        let b = Columns {
            values: x,
            channels: self.input.channels,
            stride: self.input.pixels() * n,
            patches: self.patches(false, n),
        };
        let c = Target::new(y, self.output.channels, self.output.pixels() * n);
        let c = Target { positive: self.relu, ..c };
        let start = if self.bias { Start::Rows(&w[self.weights()..]) } else { Start::Zero };
        packed_product(self.factor(w), b, start, c, work);
    }

    fn backward(&self, pass: Pass, Backward { w, x, y, dy, dx, dw, work, .. }: Backward<'_>) {
        let n = pass.padded;
        let stride = self.output.pixels() * n;
        if self.relu {
            mask_positive(dy, y);
        }
        let (weights, intercepts) = dw.split_at_mut(self.weights());
        if self.bias {
            add_row_sums(dy, stride, intercepts);
        }
        self.add_weights(n, x, dy, weights);
        if let Some(dx) = dx {
            let patches = self.patches(true, n);
            let b = Columns { values: dy, channels: self.output.channels, stride, patches };
            let c = Target::new(dx, self.input.channels, self.input.pixels() * n);
            packed_product(self.factor(w).transposed(), b, Start::Zero, c, work);
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::conv(pass, self, w, x)
    }
}
