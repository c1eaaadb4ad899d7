//! The frame of the complete-data Fisher information at given parameters, for differences of
//! statistics.
//!
//! With `(a, b, C)` component k's block of a difference (weight, first, second moments) and
//! `Sigma_k = L L'`, the coordinates in the frame are
//!
//! - `a / sqrt(pi)`,
//! - `L^-1 (b - mu a) / sqrt(pi)`,
//! - `[L^-1 (C - mu b' - b mu' + a mu mu') L^-T - a I] / sqrt(pi)`, the lower triangle, its diagonal
//!   times `1/sqrt(2)`; column by column where covariances are diagonal.
//!
//! They are the orthonormalised complete-data score (Hermite statistics): under the model, the second
//! moment of a row's coordinates is the identity. Known and tied covariances have the first two lines
//! only; a tied `Sigma` has no block in the statistic.
//!
//! Differences of parameters have the same metric. In the coordinates of `to_vector`, with
//! `W = L^-1` and `G = dW L`, it is `sqrt(pi) d ln pi`, `sqrt(pi) W dmu` and `sqrt(pi) G`, the diagonal
//! times `sqrt(2)`; a tied covariance is every row's, so without `sqrt(pi)`.

use super::parameters::{Factors, GmmParameters};
use crate::lane::LANES;
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
use whimbrel_core::linalg::{invert_lower, matmul, pack, packed_index, packed_len, unpack};
use whimbrel_core::vector::dot_inline;
use whimbrel_core::{Frame, kernel};

/// The frame for differences of statistics.
pub(super) struct FisherFrame {
    columns: usize,
    /// `sqrt(pi_k)`.
    roots: Vec<f64>,
    means: Vec<f64>,
    scale: Scale,
}

/// Square roots of the covariances.
enum Scale {
    /// One for all components; the statistic has no second moments.
    Shared(Triangle),
    /// Standard deviations, component after component.
    Diagonal(Vec<f64>),
    /// One per component.
    Full(Vec<Triangle>),
}

/// `L`, `L^-1` and their transposes, row-major.
struct Triangle {
    l: Vec<f64>,
    l_transposed: Vec<f64>,
    inverse: Vec<f64>,
    inverse_transposed: Vec<f64>,
}

impl FisherFrame {
    pub(super) fn at(theta: &GmmParameters) -> Self {
        let d = theta.columns();
        let triangle = |k: usize| Triangle::new(&theta.inverse()[k].lower, d);
        let scale = match theta.factors {
            Factors::Shared { .. } => Scale::Shared(triangle(0)),
            Factors::Diagonal { .. } => {
                Scale::Diagonal(theta.variances().iter().map(|v| v.sqrt()).collect())
            }
            Factors::Full { .. } => Scale::Full((0..theta.components()).map(triangle).collect()),
        };
        let roots = theta.weights().iter().map(|w| w.sqrt()).collect();
        Self { columns: d, roots, means: theta.means().to_vec(), scale }
    }

    /// Weight, first and second moments of a vector, by component.
    fn parts<'a>(&self, x: &'a mut [f64]) -> (&'a mut [f64], &'a mut [f64], &'a mut [f64]) {
        let (a, rest) = x.split_at_mut(self.roots.len());
        let (b, second) = rest.split_at_mut(self.means.len());
        (a, b, second)
    }
}

impl Frame for FisherFrame {
    fn forward(&self, x: &mut [f64]) {
        let d = self.columns;
        let (a, b, second) = self.parts(x);
        let (mut centred, mut room) = (vec![0.0; d], vec![0.0; d * d]);
        for (k, root) in self.roots.iter().enumerate() {
            let (a, b, mean) = (&mut a[k], &mut b[k * d..][..d], &self.means[k * d..][..d]);
            for j in 0..d {
                centred[j] = b[j] - mean[j] * *a;
            }
            match &self.scale {
                Scale::Shared(triangle) => matvec_lower(b, &triangle.inverse, &centred),
                Scale::Diagonal(deviations) => {
                    let deviations = &deviations[k * d..][..d];
                    let second = &mut second[k * d..][..d];
                    for j in 0..d {
                        // C - 2 mu b + mu^2 a, with b = centred + mu a.
                        let c = second[j] - mean[j] * (centred[j] + b[j]);
                        let unit = c / (deviations[j] * deviations[j]) - *a;
                        second[j] = unit * FRAC_1_SQRT_2 / root;
                        b[j] = centred[j] / deviations[j];
                    }
                }
                Scale::Full(triangles) => {
                    let triangle = &triangles[k];
                    let packed = &mut second[k * packed_len(d)..][..packed_len(d)];
                    for i in 0..d {
                        for j in 0..=i {
                            packed[packed_index(i, j)] -= mean[i] * b[j] + centred[i] * mean[j];
                        }
                    }
                    triangle.both_sides(packed, &mut room, Side::Inverse);
                    for i in 0..d {
                        let at = packed_index(i, i);
                        packed[at] = (packed[at] - *a) * FRAC_1_SQRT_2;
                    }
                    packed.iter_mut().for_each(|x| *x /= root);
                    matvec_lower(b, &triangle.inverse, &centred);
                }
            }
            b.iter_mut().for_each(|x| *x /= root);
            *a /= root;
        }
    }

    fn inverse(&self, x: &mut [f64]) {
        let d = self.columns;
        let (a, b, second) = self.parts(x);
        let (mut centred, mut room) = (vec![0.0; d], vec![0.0; d * d]);
        for (k, root) in self.roots.iter().enumerate() {
            let (a, b, mean) = (&mut a[k], &mut b[k * d..][..d], &self.means[k * d..][..d]);
            *a *= root;
            b.iter_mut().for_each(|x| *x *= root);
            match &self.scale {
                Scale::Shared(triangle) => matvec_lower(&mut centred, &triangle.l, b),
                Scale::Diagonal(deviations) => {
                    for (j, s) in deviations[k * d..][..d].iter().enumerate() {
                        centred[j] = b[j] * s;
                    }
                }
                Scale::Full(triangles) => matvec_lower(&mut centred, &triangles[k].l, b),
            }
            for j in 0..d {
                b[j] = centred[j] + mean[j] * *a;
            }
            match &self.scale {
                Scale::Shared(_) => {}
                Scale::Diagonal(deviations) => {
                    let deviations = &deviations[k * d..][..d];
                    for (j, x) in second[k * d..][..d].iter_mut().enumerate() {
                        let unit = *x * root / FRAC_1_SQRT_2 + *a;
                        *x = unit * (deviations[j] * deviations[j]) + mean[j] * (centred[j] + b[j]);
                    }
                }
                Scale::Full(triangles) => {
                    let packed = &mut second[k * packed_len(d)..][..packed_len(d)];
                    packed.iter_mut().for_each(|x| *x *= root);
                    for i in 0..d {
                        let at = packed_index(i, i);
                        packed[at] = packed[at] / FRAC_1_SQRT_2 + *a;
                    }
                    triangles[k].both_sides(packed, &mut room, Side::Factor);
                    for i in 0..d {
                        for j in 0..=i {
                            packed[packed_index(i, j)] += mean[i] * b[j] + centred[i] * mean[j];
                        }
                    }
                }
            }
        }
    }
}

/// The frame for differences of the parameters' coordinates.
pub(super) struct CoordinatesFrame(FisherFrame);

impl CoordinatesFrame {
    pub(super) fn at(theta: &GmmParameters) -> Self {
        Self(FisherFrame::at(theta))
    }

    /// Applies the map, or its inverse, to logarithms of weights, means and covariances.
    fn apply(&self, x: &mut [f64], side: Side) {
        let FisherFrame { columns: d, roots, scale, .. } = &self.0;
        let d = *d;
        let (logits, means, covariances) = self.0.parts(x);
        let scaled = |x: &mut f64, by: f64| match side {
            Side::Inverse => *x *= by,
            Side::Factor => *x /= by,
        };
        for (k, root) in roots.iter().enumerate() {
            scaled(&mut logits[k], *root);
            let mean = &mut means[k * d..][..d];
            match scale {
                Scale::Shared(triangle) => triangle.times(mean, side),
                Scale::Full(triangles) => triangles[k].times(mean, side),
                Scale::Diagonal(deviations) => {
                    let deviations = &deviations[k * d..][..d];
                    mean.iter_mut().zip(deviations).for_each(|(m, s)| scaled(m, 1.0 / s));
                }
            }
            mean.iter_mut().for_each(|m| scaled(m, *root));
        }
        match scale {
            // A known covariance has no coordinates.
            Scale::Shared(_) if covariances.is_empty() => {}
            Scale::Shared(triangle) => triangle.logarithmic(covariances, 1.0, side),
            Scale::Diagonal(_) => {
                for (logs, root) in covariances.chunks_exact_mut(d).zip(roots) {
                    logs.iter_mut().for_each(|l| scaled(l, SQRT_2 * root));
                }
            }
            Scale::Full(triangles) => {
                let each = covariances.chunks_exact_mut(packed_len(d)).zip(triangles).zip(roots);
                each.for_each(|((packed, triangle), root)| {
                    triangle.logarithmic(packed, *root, side);
                });
            }
        }
    }
}

impl Frame for CoordinatesFrame {
    fn forward(&self, x: &mut [f64]) {
        self.apply(x, Side::Inverse);
    }
    fn inverse(&self, x: &mut [f64]) {
        self.apply(x, Side::Factor);
    }
}

/// Multiplication by the factor `L` or by its inverse.
#[derive(Clone, Copy)]
enum Side {
    Factor,
    Inverse,
}

impl Triangle {
    /// From the packed inverse factor.
    fn new(packed: &[f64], d: usize) -> Self {
        let mut inverse = vec![0.0; d * d];
        for i in 0..d {
            inverse[i * d..=i * d + i].copy_from_slice(&packed[packed_index(i, 0)..][..=i]);
        }
        let mut l = inverse.clone();
        invert_lower(&mut l, d);
        let (l_transposed, inverse_transposed) = (transposed(&l, d), transposed(&inverse, d));
        Self { l, l_transposed, inverse, inverse_transposed }
    }

    /// `x = A x`, with `A` the factor or its inverse.
    fn times(&self, x: &mut [f64], side: Side) {
        let a = match side {
            Side::Factor => &self.l,
            Side::Inverse => &self.inverse,
        };
        let before = x.to_vec();
        matvec_lower(x, a, &before);
    }

    /// Between a change of `L^-1`, its diagonal in logarithms, and `scale dL^-1 L` with the diagonal
    /// times `sqrt(2)`.
    fn logarithmic(&self, packed: &mut [f64], scale: f64, side: Side) {
        let d = self.l.len().isqrt();
        let (mut change, mut product) = (vec![0.0; d * d], vec![0.0; d * d]);
        // Factors of the entries before and after the product.
        let diagonal = |i: usize| self.inverse[i * (d + 1)];
        let into = |i: usize, j: usize| match side {
            Side::Inverse if i == j => diagonal(i),
            Side::Inverse => 1.0,
            Side::Factor if i == j => 1.0 / (SQRT_2 * scale),
            Side::Factor => 1.0 / scale,
        };
        let out = |i: usize, j: usize| match side {
            Side::Inverse if i == j => SQRT_2 * scale,
            Side::Inverse => scale,
            Side::Factor if i == j => 1.0 / diagonal(i),
            Side::Factor => 1.0,
        };
        for i in 0..d {
            for j in 0..=i {
                change[i * d + j] = packed[packed_index(i, j)] * into(i, j);
            }
        }
        let by = match side {
            Side::Inverse => &self.l,
            Side::Factor => &self.inverse,
        };
        matmul(&mut product, &change, by, d, d, d);
        for i in 0..d {
            for j in 0..=i {
                packed[packed_index(i, j)] = product[i * d + j] * out(i, j);
            }
        }
    }

    /// `packed = A packed A'`, with `A` the factor or its inverse.
    fn both_sides(&self, packed: &mut [f64], room: &mut [f64], side: Side) {
        let d = self.l.len().isqrt();
        let (a, a_transposed) = match side {
            Side::Factor => (&self.l, &self.l_transposed),
            Side::Inverse => (&self.inverse, &self.inverse_transposed),
        };
        let mut square = unpack(packed, d);
        matmul(room, a, &square, d, d, d);
        matmul(&mut square, room, a_transposed, d, d, d);
        packed.copy_from_slice(&pack(&square, d));
    }
}

fn transposed(a: &[f64], d: usize) -> Vec<f64> {
    (0..d).flat_map(|j| (0..d).map(move |i| a[i * d + j])).collect()
}

kernel! {
    /// `out = A x` for a lower triangular `A`, to the bit what [`matvec`] gives: zeros above the diagonal
    /// are skipped in whole groups of lanes.
    ///
    /// [`matvec`]: whimbrel_core::linalg::matvec
    fn matvec_lower(out: &mut [f64], a: &[f64], x: &[f64]) {
        let d = x.len();
        for (i, out) in out.iter_mut().enumerate() {
            let end = (i + 1).next_multiple_of(LANES).min(d);
            *out = dot_inline(&a[i * d..][..end], &x[..end]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::{Key, linalg::matvec};

    #[test]
    fn zeros_of_a_triangle_are_skipped_without_a_trace() {
        for d in [1, 3, 8, 20, 33] {
            let mut stream = Key::root(3).child(d as u64).stream();
            let mut l: Vec<f64> = (0..d * d).map(|_| stream.normal()).collect();
            (0..d).for_each(|i| l[i * d + i + 1..(i + 1) * d].fill(0.0));
            let x: Vec<f64> = (0..d).map(|_| stream.normal()).collect();
            let (mut whole, mut lower) = (vec![0.0; d], vec![0.0; d]);
            matvec(&mut whole, &l, &x);
            matvec_lower(&mut lower, &l, &x);
            let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&whole), bits(&lower), "d = {d}");
        }
    }
}
