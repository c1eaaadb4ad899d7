//! Residual blocks: the sum of two branches.

use super::Chain;
use super::pointwise::{add_to, mask_positive};
use crate::Tensor;
use crate::layer::{Backward, Forward, Layer, Pass, Shape};
use whimbrel_core::Key;

/// `body(x) + shortcut(x)`; without a shortcut, `body(x) + x`.
///
/// Both branches must end in layers whose backward pass does not read their outputs: only the sum
/// is kept.
pub(crate) struct Residual {
    pub body: Chain,
    pub shortcut: Option<Chain>,
    /// Numbers of a sample's inputs.
    pub inputs: usize,
    /// Whether negative sums become zero.
    pub relu: bool,
}

impl Residual {
    fn of_body(&self) -> usize {
        self.body.tensors().iter().map(Tensor::len).sum()
    }
}

impl Layer for Residual {
    fn output(&self) -> Shape {
        self.body.output()
    }

    fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = self.body.tensors();
        tensors.extend(self.shortcut.iter().flat_map(|shortcut| shortcut.tensors()));
        tensors
    }

    fn start(&self, key: Key, w: &mut [f32]) {
        let (body, shortcut) = w.split_at_mut(self.of_body());
        self.body.start(key.child(0), body);
        if let Some(chain) = &self.shortcut {
            chain.start(key.child(1), shortcut);
        }
    }

    fn kept(&self, padded: usize) -> usize {
        self.body.kept(padded) + self.shortcut.as_ref().map_or(0, |chain| chain.kept(padded))
    }

    fn work(&self, padded: usize) -> usize {
        let of_shortcut = self.shortcut.as_ref().map_or(0, |chain| chain.work(padded));
        (self.output().len() + self.inputs) * padded + self.body.work(padded).max(of_shortcut)
    }

    fn mixes_samples(&self) -> bool {
        self.body.mixes_samples()
    }

    fn forward(&self, pass: Pass, Forward { w, x, y, kept, work }: Forward<'_>) {
        let (w_body, w_shortcut) = w.split_at(self.of_body());
        let (kept_body, kept_shortcut) = kept.split_at_mut(self.body.kept(pass.padded));
        let body = Forward { w: w_body, x, y: &mut *y, kept: kept_body, work: &mut *work };
        self.body.forward(pass.child(0), body);
        let Some(chain) = &self.shortcut else { return add_to(y, x, self.relu) };
        let (other, work) = work.split_at_mut(y.len());
        let shortcut = Forward { w: w_shortcut, x, y: &mut *other, kept: kept_shortcut, work };
        chain.forward(pass.child(1), shortcut);
        add_to(y, other, self.relu);
    }

    fn backward(&self, pass: Pass, given: Backward<'_>) {
        let Backward { w, x, y, kept, dy, dx, dw, work } = given;
        if self.relu {
            mask_positive(dy, y);
        }
        let (w_body, w_shortcut) = w.split_at(self.of_body());
        let (dw_body, dw_shortcut) = dw.split_at_mut(self.of_body());
        let (kept_body, kept_shortcut) = kept.split_at(self.body.kept(pass.padded));
        let (copy, work) = work.split_at_mut(dy.len());
        copy.copy_from_slice(dy);
        let (other, work) = work.split_at_mut(x.len());
        let wanted = dx.is_some();
        let dx = dx.unwrap_or(&mut []);
        let body = Backward {
            w: w_body,
            x,
            y,
            kept: kept_body,
            dy: copy,
            dx: wanted.then_some(&mut *dx),
            dw: dw_body,
            work: &mut *work,
        };
        self.body.backward(pass.child(0), body);
        match &self.shortcut {
            Some(chain) => {
                let (w, kept, dw) = (w_shortcut, kept_shortcut, dw_shortcut);
                let of_inputs = wanted.then_some(&mut *other);
                let shortcut = Backward { w, x, y, kept, dy, dx: of_inputs, dw, work };
                chain.backward(pass.child(1), shortcut);
                if wanted {
                    add_to(dx, other, false);
                }
            }
            None if wanted => add_to(dx, dy, false),
            None => {}
        }
    }

    #[cfg(test)]
    fn reference(&self, pass: Pass, w: &[f64], x: &[f64]) -> Vec<f64> {
        super::reference::residual(pass, self, w, x)
    }
}
