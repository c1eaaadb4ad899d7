//! Two branches that are added.

use super::Chain;
use super::pointwise::{add_to, mask_positive};
use crate::Tensor;
use crate::layer::{Layer, Pass, Shape, Tape};
use whimbrel_core::Key;

/// `body(x) + shortcut(x)`, the shortcut being the inputs themselves where there is no other.
///
/// The branches end in layers whose backward pass does not read their outputs: only the sum is kept.
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

    fn forward(
        &self,
        pass: Pass,
        w: &[f32],
        x: &[f32],
        y: &mut [f32],
        kept: &mut [f32],
        work: &mut [f32],
    ) {
        let (of_body, of_shortcut) = w.split_at(self.of_body());
        let (kept_body, kept_shortcut) = kept.split_at_mut(self.body.kept(pass.padded));
        self.body.forward(pass.child(0), of_body, x, y, kept_body, work);
        match &self.shortcut {
            Some(chain) => {
                let (other, work) = work.split_at_mut(y.len());
                chain.forward(pass.child(1), of_shortcut, x, other, kept_shortcut, work);
                add_to(y, other, self.relu);
            }
            None => add_to(y, x, self.relu),
        }
    }

    fn backward(
        &self,
        pass: Pass,
        w: &[f32],
        tape: Tape<'_>,
        dy: &mut [f32],
        dx: Option<&mut [f32]>,
        dw: &mut [f32],
        work: &mut [f32],
    ) {
        if self.relu {
            mask_positive(dy, tape.y);
        }
        let (w_body, w_shortcut) = w.split_at(self.of_body());
        let (dw_body, dw_shortcut) = dw.split_at_mut(self.of_body());
        let (kept_body, kept_shortcut) = tape.kept.split_at(self.body.kept(pass.padded));
        let (copy, work) = work.split_at_mut(dy.len());
        copy.copy_from_slice(dy);
        let (other, work) = work.split_at_mut(tape.x.len());
        let body = Tape { kept: kept_body, ..tape };
        let wanted = dx.is_some();
        let dx = dx.unwrap_or(&mut []);
        let of_inputs = wanted.then_some(&mut *dx);
        self.body.backward(pass.child(0), w_body, body, copy, of_inputs, dw_body, work);
        match &self.shortcut {
            Some(chain) => {
                let tape = Tape { kept: kept_shortcut, ..tape };
                let of_inputs = wanted.then_some(&mut *other);
                chain.backward(pass.child(1), w_shortcut, tape, dy, of_inputs, dw_shortcut, work);
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
