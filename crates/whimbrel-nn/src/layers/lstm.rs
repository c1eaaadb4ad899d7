//! Long short-term memory (Hochreiter and Schmidhuber, 1997; with forget gates).
//!
//! | symbol | here | meaning |
//! |---|---|---|
//! | i, f, g, o | four quarters of `gates` | input, forget, cell and output gates, in PyTorch's order |
//! | c_t | `cells` | `f c_{t-1} + i g` |
//! | h_t | outputs | `o tanh(c_t)` |
//!
//! There is one intercept per gate, where PyTorch adds two. The inputs of all steps enter by one matrix
//! product, as do the derivatives of the weights; recurrent weights are packed once per pass.

use super::pointwise::add_row_sums;
use crate::elementary::{sigmoid, tanh};
use crate::layer::{Backward, Forward, Layer, Pass, Shape, fill_uniform};
use crate::outer::{Strips, Sums, add_outer};
use crate::product::{Columns, Factor, PANELS, Start, Target, pack, product};
use crate::{Role, Tensor};
use whimbrel_core::{Key, kernel};

/// A layer of LSTM cells over all steps of a sequence.
pub(crate) struct Lstm {
    pub name: &'static str,
    pub inputs: usize,
    pub hidden: usize,
    pub steps: usize,
}

impl Lstm {
    /// Input weights, recurrent weights, intercepts.
    fn parts<'a>(&self, w: &'a [f32]) -> [&'a [f32]; 3] {
        let (input, rest) = w.split_at(4 * self.hidden * self.inputs);
        let (recurrent, intercepts) = rest.split_at(4 * self.hidden * self.hidden);
        [input, recurrent, intercepts]
    }

    /// Length of the largest packed factor.
    fn packed(&self) -> usize {
        let gates = (4 * self.hidden).next_multiple_of(8);
        gates * self.inputs.next_multiple_of(8).max(self.hidden.next_multiple_of(8))
    }
}

impl Layer for Lstm {
    fn output(&self) -> Shape {
        Shape { channels: self.hidden, rows: self.steps, columns: 1 }
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (name, gates) = (self.name, 4 * self.hidden);
        let tensor = |part: &str, shape: &[usize]| {
            Tensor::new(format!("{name}.{part}"), shape, Role::Weight)
        };
        vec![
            tensor("weight_ih", &[gates, self.inputs]),
            tensor("weight_hh", &[gates, self.hidden]),
            tensor("bias", &[gates]),
        ]
    }

    fn start(&self, key: Key, w: &mut [f32]) {
        fill_uniform(key, 1.0 / (self.hidden as f64).sqrt(), w);
    }

    /// Gates, cells and the cells' hyperbolic tangents.
    fn kept(&self, padded: usize) -> usize {
        6 * self.hidden * self.steps * padded
    }

    fn work(&self, padded: usize) -> usize {
        PANELS + self.packed() + (4 * self.steps + 2) * self.hidden * padded
    }

    fn forward(&self, pass: Pass, Forward { w, x, y, kept, work }: Forward<'_>) {
        let (n, hidden) = (pass.padded, self.hidden);
        let row = self.steps * n;
        let (gates, rest) = kept.split_at_mut(4 * hidden * row);
        let (cells, tanhs) = rest.split_at_mut(hidden * row);
        let (panels, work) = work.split_at_mut(PANELS);
        let (packed, work) = work.split_at_mut(self.packed());
        let last = &mut work[..hidden * n];
        let [input, recurrent, intercepts] = self.parts(w);

        // W x_t + b for all t
        pack_all(Factor::matrix(input, 4 * hidden, self.inputs), packed);
        let b = Columns { values: x, channels: self.inputs, stride: row, patches: None };
        let c = Target::new(gates, 4 * hidden, row);
        product(packed, b, Start::Rows(intercepts), c, panels);

        pack_all(Factor::matrix(recurrent, 4 * hidden, hidden), packed);
        for t in 0..self.steps {
            if t > 0 {
                // + U h_{t-1}
                let b = Columns { values: last, channels: hidden, stride: n, patches: None };
                let c = Target { stride: row, ..Target::new(&mut gates[t * n..], 4 * hidden, n) };
                product(packed, b, Start::Keep, c, panels);
            }
            let (i, rest) = gates.split_at_mut(hidden * row);
            let (f, rest) = rest.split_at_mut(hidden * row);
            let (g, o) = rest.split_at_mut(hidden * row);
            for unit in 0..hidden {
                let at = unit * row + t * n;
                let (before, cell) = cells[unit * row..][..row].split_at_mut(t * n);
                let before = before.len().checked_sub(n).map(|from| &before[from..]);
                step(
                    [&mut i[at..][..n], &mut f[at..][..n], &mut g[at..][..n], &mut o[at..][..n]],
                    before,
                    &mut cell[..n],
                    &mut tanhs[at..][..n],
                    &mut last[unit * n..][..n],
                );
                y[at..][..n].copy_from_slice(&last[unit * n..][..n]);
            }
        }
    }

    fn backward(&self, pass: Pass, Backward { w, x, y, kept, dy, dx, dw, work }: Backward<'_>) {
        let (n, hidden) = (pass.padded, self.hidden);
        let row = self.steps * n;
        let (gates, rest) = kept.split_at(4 * hidden * row);
        let (cells, tanhs) = rest.split_at(hidden * row);
        let (panels, work) = work.split_at_mut(PANELS);
        let (packed, work) = work.split_at_mut(self.packed());
        let (d_gates, work) = work.split_at_mut(4 * hidden * row);
        let (d_last, work) = work.split_at_mut(hidden * n);
        let d_cells = &mut work[..hidden * n];
        let [input, recurrent, _] = self.parts(w);

        pack_all(Factor::matrix(recurrent, 4 * hidden, hidden).transposed(), packed);
        d_last.fill(0.0);
        d_cells.fill(0.0);
        for t in (0..self.steps).rev() {
            let (di, rest) = d_gates.split_at_mut(hidden * row);
            let (df, rest) = rest.split_at_mut(hidden * row);
            let (dg, d_o) = rest.split_at_mut(hidden * row);
            for unit in 0..hidden {
                let at = unit * row + t * n;
                let gate = |k: usize| &gates[k * hidden * row + at..][..n];
                step_back(
                    [gate(0), gate(1), gate(2), gate(3)],
                    (t > 0).then(|| &cells[at - n..][..n]),
                    &tanhs[at..][..n],
                    [&dy[at..][..n], &d_last[unit * n..][..n]],
                    &mut d_cells[unit * n..][..n],
                    [
                        &mut di[at..][..n],
                        &mut df[at..][..n],
                        &mut dg[at..][..n],
                        &mut d_o[at..][..n],
                    ],
                );
            }
            if t > 0 {
                // dh_{t-1} = U^T dz_t
                let values = &d_gates[t * n..];
                let b = Columns { values, channels: 4 * hidden, stride: row, patches: None };
                product(packed, b, Start::Zero, Target::new(d_last, hidden, n), panels);
            }
        }

        let (of_input, rest) = dw.split_at_mut(4 * hidden * self.inputs);
        let (of_recurrent, intercepts) = rest.split_at_mut(4 * hidden * hidden);
        add_row_sums(d_gates, row, intercepts);
        let a = Strips { values: d_gates, rows: 4 * hidden, stride: row };
        let b = Strips { values: x, rows: self.inputs, stride: row };
        add_outer(a, b, row, Sums { values: of_input, row: self.inputs, column: 1 });
        // h_{t-1} lies one step before dz_t.
        let a = Strips { values: &d_gates[n..], rows: 4 * hidden, stride: row };
        let b = Strips { values: y, rows: hidden, stride: row };
        add_outer(a, b, row - n, Sums { values: of_recurrent, row: hidden, column: 1 });
        if let Some(dx) = dx {
            pack_all(Factor::matrix(input, 4 * hidden, self.inputs).transposed(), packed);
            let b = Columns { values: d_gates, channels: 4 * hidden, stride: row, patches: None };
            product(packed, b, Start::Zero, Target::new(dx, self.inputs, row), panels);
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::lstm(pass, self, w, x)
    }
}

fn pack_all(a: Factor<'_>, packed: &mut [f32]) {
    pack(a, &mut packed[..a.packed()]);
}

kernel! {
    /// One step of one unit: replaces sums by gates, and sets the cell, its hyperbolic tangent and the
    /// output.
    fn step(
        gates: [&mut [f32]; 4],
        before: Option<&[f32]>,
        cell: &mut [f32],
        tanhs: &mut [f32],
        h: &mut [f32],
    ) {
        let [i, f, g, o] = gates;
        let n = cell.len();
        let (i, f, g, o) = (&mut i[..n], &mut f[..n], &mut g[..n], &mut o[..n]);
        let (tanhs, h) = (&mut tanhs[..n], &mut h[..n]);
        for s in 0..n {
            i[s] = sigmoid(i[s]);
            f[s] = sigmoid(f[s]);
            g[s] = tanh(g[s]);
            o[s] = sigmoid(o[s]);
            cell[s] = i[s] * g[s];
        }
        if let Some(before) = before {
            for ((cell, f), before) in cell.iter_mut().zip(&*f).zip(before) {
                *cell += f * before;
            }
        }
        for s in 0..n {
            tanhs[s] = tanh(cell[s]);
            h[s] = o[s] * tanhs[s];
        }
    }
}

kernel! {
    /// The derivatives of the gates' sums, and of the cell before in `d_cell`.
    fn step_back(
        gates: [&[f32]; 4],
        before: Option<&[f32]>,
        tanhs: &[f32],
        d_outputs: [&[f32]; 2],
        d_cell: &mut [f32],
        d_gates: [&mut [f32]; 4],
    ) {
        let n = d_cell.len();
        let [i, f, g, o] = gates.map(|gate| &gate[..n]);
        let [dh, dh_later] = d_outputs.map(|d| &d[..n]);
        let [di, df, dg, d_o] = d_gates.map(|d| &mut d[..n]);
        let tanhs = &tanhs[..n];
        for s in 0..n {
            let dh = dh[s] + dh_later[s];
            let dc = d_cell[s] + dh * o[s] * (1.0 - tanhs[s] * tanhs[s]);
            d_o[s] = dh * tanhs[s] * o[s] * (1.0 - o[s]);
            di[s] = dc * g[s] * i[s] * (1.0 - i[s]);
            dg[s] = dc * i[s] * (1.0 - g[s] * g[s]);
            df[s] = dc * f[s] * (1.0 - f[s]);
            d_cell[s] = dc * f[s];
        }
        match before {
            Some(before) => {
                for (df, before) in df.iter_mut().zip(before) {
                    *df *= before;
                }
            }
            None => df.fill(0.0),
        }
    }
}

/// The last step of a sequence.
pub(crate) struct LastStep {
    pub channels: usize,
    pub steps: usize,
}

impl Layer for LastStep {
    fn output(&self) -> Shape {
        Shape::flat(self.channels)
    }

    fn forward(&self, pass: Pass, Forward { x, y, .. }: Forward<'_>) {
        let (n, row) = (pass.padded, self.steps * pass.padded);
        for (x, y) in x.chunks_exact(row).zip(y.chunks_exact_mut(n)) {
            y.copy_from_slice(&x[row - n..]);
        }
    }

    fn backward(&self, pass: Pass, Backward { dy, dx, .. }: Backward<'_>) {
        let Some(dx) = dx else { return };
        let (n, row) = (pass.padded, self.steps * pass.padded);
        dx.fill(0.0);
        for (dx, dy) in dx.chunks_exact_mut(row).zip(dy.chunks_exact(n)) {
            dx[row - n..].copy_from_slice(dy);
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, _w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::last_step(pass, self, x)
    }
}
