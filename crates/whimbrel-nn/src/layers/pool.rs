//! Pooling.

use crate::layer::{Backward, Forward, Layer, Pass, Shape};
use whimbrel_core::kernel;

/// The largest of two by two pixels; a last odd row or column is left out.
pub(crate) struct MaxPool {
    pub input: Shape,
    /// Whether negative outputs are set to zero: equivalent to rectifying the inputs, at a quarter of the
    /// cost.
    pub relu: bool,
}

impl MaxPool {
    /// Offsets of the four input pixels of an output.
    fn four(&self, pixel: usize, n: usize) -> [usize; 4] {
        let (rows, columns) = (self.input.rows / 2, self.input.columns / 2);
        let (channel, pixel) = (pixel / (rows * columns), pixel % (rows * columns));
        let row = channel * self.input.rows + 2 * (pixel / columns);
        let first = row * self.input.columns + 2 * (pixel % columns);
        [0, 1, self.input.columns, self.input.columns + 1].map(|next| (first + next) * n)
    }
}

impl Layer for MaxPool {
    fn output(&self) -> Shape {
        let Shape { channels, rows, columns } = self.input;
        Shape { channels, rows: rows / 2, columns: columns / 2 }
    }

    fn forward(&self, pass: Pass, Forward { x, y, .. }: Forward<'_>) {
        let least = if self.relu { 0.0 } else { f32::NEG_INFINITY };
        for (pixel, y) in y.chunks_exact_mut(pass.padded).enumerate() {
            let four = self.four(pixel, pass.padded).map(|at| &x[at..][..pass.padded]);
            largest(four, least, y);
        }
    }

    fn backward(&self, pass: Pass, Backward { x, y, dy, dx, .. }: Backward<'_>) {
        let Some(dx) = dx else { return };
        let n = pass.padded;
        if self.input.rows % 2 + self.input.columns % 2 > 0 {
            dx.fill(0.0);
        }
        for (pixel, (y, dy)) in y.chunks_exact(n).zip(dy.chunks_exact_mut(n)).enumerate() {
            if self.relu {
                super::pointwise::mask_positive(dy, y);
            }
            for at in self.four(pixel, n) {
                take_share(&x[at..][..n], y, dy, &mut dx[at..][..n]);
            }
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, _w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::max_pool(pass, self, x)
    }
}

kernel! {
    fn largest(x: [&[f32]; 4], least: f32, y: &mut [f32]) {
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        let [a, b, c, d] = x;
        for ((((y, a), b), c), d) in y.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *y = larger(larger(larger(larger(least, *a), *b), *c), *d);
        }
    }
}

kernel! {
    /// Routes the derivative to the first of the largest pixels.
    fn take_share(x: &[f32], y: &[f32], dy: &mut [f32], dx: &mut [f32]) {
        for (((x, y), dy), dx) in x.iter().zip(y).zip(dy).zip(dx) {
            let taken = if x == y { *dy } else { 0.0 };
            *dx = taken;
            *dy -= taken;
        }
    }
}

/// The mean of all pixels of a channel.
pub(crate) struct AveragePool {
    pub input: Shape,
}

impl Layer for AveragePool {
    fn output(&self) -> Shape {
        Shape::flat(self.input.channels)
    }

    fn forward(&self, pass: Pass, Forward { x, y, .. }: Forward<'_>) {
        let share = 1.0 / self.input.pixels() as f32;
        let channels = x.chunks_exact(self.input.pixels() * pass.padded);
        for (x, y) in channels.zip(y.chunks_exact_mut(pass.padded)) {
            y.fill(0.0);
            for x in x.chunks_exact(pass.padded) {
                super::pointwise::add_to(y, x, false);
            }
            y.iter_mut().for_each(|y| *y *= share);
        }
    }

    fn backward(&self, pass: Pass, Backward { dy, dx, .. }: Backward<'_>) {
        let Some(dx) = dx else { return };
        let share = 1.0 / self.input.pixels() as f32;
        dy.iter_mut().for_each(|dy| *dy *= share);
        let channels = dx.chunks_exact_mut(self.input.pixels() * pass.padded);
        for (dx, dy) in channels.zip(dy.chunks_exact(pass.padded)) {
            dx.chunks_exact_mut(pass.padded).for_each(|dx| dx.copy_from_slice(dy));
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, _w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::average_pool(pass, self, x)
    }
}
