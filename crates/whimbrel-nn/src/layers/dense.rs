//! Dense layers: `y = W x + b`.

use super::pointwise::{add_row_sums, mask_positive};
use crate::layer::{Backward, Forward, Layer, Pass, Shape, fill_normal, fill_uniform};
use crate::outer::{Strips, Sums, add_outer};
use crate::product::{Columns, Factor, Start, Target, packed_product, packed_work};
use crate::{Role, Tensor};
use whimbrel_core::Key;

/// Every output is an affine function of all inputs.
pub(crate) struct Dense {
    pub name: String,
    pub inputs: usize,
    pub outputs: usize,
    /// Whether negative outputs are set to zero.
    pub relu: bool,
    pub role: Role,
    /// The standard deviation of normal weights with zero intercepts; otherwise weights and intercepts
    /// are uniform within `1 / sqrt(inputs)`.
    pub deviation: Option<f64>,
}

impl Dense {
    /// An inner layer with rectified outputs.
    pub fn inner(name: impl Into<String>, inputs: usize, outputs: usize) -> Self {
        Self { name: name.into(), inputs, outputs, relu: true, role: Role::Weight, deviation: None }
    }

    /// The last layer of a network.
    pub fn head(name: impl Into<String>, inputs: usize, outputs: usize) -> Self {
        Self { name: name.into(), inputs, outputs, relu: false, role: Role::Head, deviation: None }
    }

    fn factor<'a>(&self, w: &'a [f32]) -> Factor<'a> {
        Factor::matrix(&w[..self.outputs * self.inputs], self.outputs, self.inputs)
    }
}

impl Layer for Dense {
    fn output(&self) -> Shape {
        Shape::flat(self.outputs)
    }

    fn tensors(&self) -> Vec<Tensor> {
        let name = &self.name;
        vec![
            Tensor::new(format!("{name}.weight"), &[self.outputs, self.inputs], self.role),
            Tensor::new(format!("{name}.bias"), &[self.outputs], self.role),
        ]
    }

    fn start(&self, key: Key, w: &mut [f32]) {
        match self.deviation {
            Some(deviation) => {
                let (weights, intercepts) = w.split_at_mut(self.outputs * self.inputs);
                fill_normal(key, deviation, weights);
                intercepts.fill(0.0);
            }
            None => fill_uniform(key, 1.0 / (self.inputs as f64).sqrt(), w),
        }
    }

    fn work(&self, _padded: usize) -> usize {
        packed_work(self.outputs, self.inputs, 1)
    }

    fn forward(&self, pass: Pass, Forward { w, x, y, work, .. }: Forward<'_>) {
        let n = pass.padded;
        let b = Columns { values: x, channels: self.inputs, stride: n, patches: None };
        let c = Target { positive: self.relu, ..Target::new(y, self.outputs, n) };
        let start = Start::Rows(&w[self.outputs * self.inputs..]);
        packed_product(self.factor(w), b, start, c, work);
    }

    fn backward(&self, pass: Pass, Backward { w, x, y, dy, dx, dw, work, .. }: Backward<'_>) {
        let n = pass.padded;
        if self.relu {
            mask_positive(dy, y);
        }
        let (weights, intercepts) = dw.split_at_mut(self.outputs * self.inputs);
        add_row_sums(dy, n, intercepts);
        let a = Strips { values: dy, rows: self.outputs, stride: n };
        let b = Strips { values: x, rows: self.inputs, stride: n };
        add_outer(a, b, n, Sums { values: weights, row: self.inputs, column: 1 });
        if let Some(dx) = dx {
            let b = Columns { values: dy, channels: self.outputs, stride: n, patches: None };
            let c = Target::new(dx, self.inputs, n);
            packed_product(self.factor(w).transposed(), b, Start::Zero, c, work);
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::dense(pass, w, x, [self.inputs, self.outputs], self.relu)
    }
}
