//! Federations whose clients share a linear representation.
//!
//! Collins, Hassani, Mokhtari and Shakkottai (*Exploiting shared representations for personalized
//! federated learning*, 2021), as FedSOUL's supplement uses it (S3.1): `V` has `latent` orthonormal
//! rows, client `i` has `u_i ~ N(0, I/latent)`, a sample has `x ~ N(0, I)` and
//! `y = u_i^T V x + noise e`, `e ~ N(0, 1)`. Most clients have few samples.
//!
//! The draws of client `i` depend on the key and `i` only.

use crate::split::client_name;
use crate::{Error, Result};
use whimbrel_core::{Inputs, Key, Samples, Stream, Targets, vector};

/// A federation with a shared representation to draw. Default: the supplement's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RepresentationSpec {
    /// Default 100.
    pub clients: usize,
    /// The length of an input; default 20.
    pub raw: usize,
    /// The number of latent features; default 2.
    pub latent: usize,
    /// The first clients, with few samples.
    pub small: SmallClients,
    /// Samples of each other client; default 10.
    pub large: usize,
    /// The standard deviation of the noise; default 0.1.
    pub noise: f64,
}

/// Clients with few samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SmallClients {
    /// Their share of all clients; default 0.9.
    pub share: f64,
    /// Samples of each; default 5.
    pub samples: usize,
}

impl Default for SmallClients {
    fn default() -> Self {
        Self { share: 0.9, samples: 5 }
    }
}

/// The law of a drawn federation.
#[derive(Debug, Clone, PartialEq)]
pub struct RepresentationTruth {
    /// `V`, one row for each latent feature.
    pub representation: Vec<f64>,
    /// `V^T u_i`: each client's linear predictor.
    pub predictors: Vec<Vec<f64>>,
    /// The standard deviation of the noise.
    pub noise: f64,
}

impl Default for RepresentationSpec {
    fn default() -> Self {
        let small = SmallClients::default();
        Self { clients: 100, raw: 20, latent: 2, small, large: 10, noise: 0.1 }
    }
}

impl RepresentationSpec {
    /// Draws the representation and each client's head and samples.
    pub fn draw(&self, key: Key) -> Result<(Vec<(String, Samples)>, RepresentationTruth)> {
        self.check()?;
        let representation = self.orthonormal(&mut key.child(tag::REPRESENTATION).stream())?;
        let few = (self.small.share * self.clients as f64).round() as usize;
        let (mut clients, mut predictors) = (Vec::new(), Vec::new());
        for i in 0..self.clients {
            let mut stream = key.child(tag::CLIENTS).child(i as u64).stream();
            let mut predictor = vec![0.0; self.raw];
            for row in representation.chunks_exact(self.raw) {
                let u = stream.normal() / (self.latent as f64).sqrt();
                vector::axpy(&mut predictor, u, row);
            }
            let count = if i < few { self.small.samples } else { self.large };
            clients.push((client_name(i, self.clients), self.samples(&predictor, count, stream)?));
            predictors.push(predictor);
        }
        let truth = RepresentationTruth { representation, predictors, noise: self.noise };
        Ok((clients, truth))
    }

    fn samples(&self, predictor: &[f64], count: usize, mut stream: Stream) -> Result<Samples> {
        let (mut inputs, mut targets) = (Vec::with_capacity(count * self.raw), Vec::new());
        for _ in 0..count {
            let mut y = self.noise * stream.normal();
            for w in predictor {
                let x = stream.normal() as f32;
                y += w * f64::from(x);
                inputs.push(x);
            }
            targets.push(y as f32);
        }
        Ok(Samples::new(vec![self.raw], Inputs::Real(inputs), Targets::Values(targets))?)
    }

    /// Rows drawn from a Gaussian law and made orthonormal one after the other.
    fn orthonormal(&self, stream: &mut Stream) -> Result<Vec<f64>> {
        let mut rows: Vec<Vec<f64>> = Vec::new();
        while rows.len() < self.latent {
            let mut row: Vec<f64> = (0..self.raw).map(|_| stream.normal()).collect();
            // Twice, since one pass leaves rounding errors.
            for _ in 0..2 {
                for before in &rows {
                    let along = vector::dot(&row, before);
                    vector::axpy(&mut row, -along, before);
                }
            }
            let length = vector::norm2_squared(&row).sqrt();
            vector::scale(&mut row, 1.0 / length);
            rows.push(row);
        }
        Ok(rows.concat())
    }

    fn check(&self) -> Result<()> {
        let Self { clients, raw, latent, small, large, noise } = *self;
        if clients == 0 || raw == 0 || small.samples == 0 || large == 0 {
            return Err(Error::config("a federation without clients, inputs or samples is empty")
                .hint("`clients`, `raw`, `samples` of `small` and `large` are positive"));
        }
        if latent == 0 || latent > raw {
            let what = format!("{latent} latent features of inputs of {raw} numbers");
            return Err(Error::config(what).hint("`latent` is at least 1 and at most `raw`"));
        }
        if !((0.0..=1.0).contains(&small.share) && noise > 0.0 && noise.is_finite()) {
            return Err(Error::config("`share` of `small` is in [0, 1], `noise` positive"));
        }
        Ok(())
    }
}

/// Key tags.
mod tag {
    pub const REPRESENTATION: u64 = 1;
    pub const CLIENTS: u64 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(share: f64) -> RepresentationSpec {
        let small = SmallClients { share, samples: 5 };
        RepresentationSpec { small, ..Default::default() }
    }

    #[test]
    fn rows_are_orthonormal_and_predictors_lie_in_their_span() {
        let spec = RepresentationSpec { latent: 3, ..RepresentationSpec::default() };
        let (clients, truth) = spec.draw(Key::root(4)).unwrap();
        let rows: Vec<&[f64]> = truth.representation.chunks_exact(spec.raw).collect();
        for (i, a) in rows.iter().enumerate() {
            for (j, b) in rows.iter().enumerate() {
                let wanted = f64::from(u8::from(i == j));
                assert!((vector::dot(a, b) - wanted).abs() < 1e-14);
            }
        }
        for predictor in &truth.predictors {
            let inside: f64 = rows.iter().map(|row| vector::dot(row, predictor).powi(2)).sum();
            assert!((inside - vector::norm2_squared(predictor)).abs() < 1e-12);
        }
        assert_eq!(clients.iter().filter(|(_, samples)| samples.len() == 5).count(), 90);
        assert_eq!(clients[99].1.len(), 10);
    }

    #[test]
    fn a_clients_samples_do_not_depend_on_how_many_clients_there_are() {
        let few = RepresentationSpec { clients: 10, ..small(1.0) };
        let many = RepresentationSpec { clients: 20, ..few };
        let (few, many) = (few.draw(Key::root(1)).unwrap(), many.draw(Key::root(1)).unwrap());
        assert_eq!(few.0[9].1, many.0[9].1);
    }

    #[test]
    fn residuals_have_the_noises_variance() {
        // 1000 x 10 residuals: the variance estimate has a relative deviation of 0.014; 5 sigma.
        let spec = RepresentationSpec { clients: 1000, ..small(0.0) };
        let (clients, truth) = spec.draw(Key::root(2)).unwrap();
        let mut sum = 0.0;
        for ((_, samples), predictor) in clients.iter().zip(&truth.predictors) {
            let (Inputs::Real(x), Targets::Values(y)) = (&samples.inputs, &samples.targets) else {
                unreachable!()
            };
            for (x, y) in x.chunks_exact(spec.raw).zip(y) {
                let f: f64 = x.iter().zip(predictor).map(|(x, w)| f64::from(*x) * w).sum();
                sum += (f64::from(*y) - f).powi(2);
            }
        }
        assert!((sum / 1e4 / 0.01 - 1.0).abs() < 0.07, "{sum}");
    }
}
