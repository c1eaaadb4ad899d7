//! Loops over one row of the completed table. Column factors are transposed, one component after the
//! other, so that every loop has unit stride.

use super::family::THETA_MAX;
use whimbrel_core::kernel;
use whimbrel_core::math::exp;
use whimbrel_core::vector::{axpy_inline, dot_inline};

kernel! {
    /// `theta_l = base + b_l + sum_k u_k v_kl`
    pub fn row_theta(out: &mut [f64], base: f64, b: &[f64], u: &[f64], vt: &[f64]) {
        let columns = out.len();
        for (out, b) in out.iter_mut().zip(b) {
            *out = base + b;
        }
        for (u, v) in u.iter().zip(vt.chunks_exact(columns)) {
            axpy_inline(out, *u, v);
        }
    }
}

kernel! {
    /// Replaces natural parameters by Poisson means.
    pub fn poisson_means(theta: &mut [f64]) {
        for t in theta {
            *t = exp(boxed(*t));
        }
    }
}

kernel! {
    /// Replaces natural parameters by Bernoulli means.
    pub fn bernoulli_means(theta: &mut [f64]) {
        for t in theta {
            *t = 1.0 / (1.0 + exp(-boxed(*t)));
        }
    }
}

kernel! {
    /// `h = mean - s`
    pub fn row_field(h: &mut [f64], mean: &[f64], s: &[f64]) {
        for ((h, mean), s) in h.iter_mut().zip(mean).zip(s) {
            *h = mean - s;
        }
    }
}

kernel! {
    /// `d = mean - s` with `s` clipped to `[low, high]`; returns the number of entries outside
    /// `[out_low, out_high]`.
    pub fn row_slopes(
        d: &mut [f64],
        mean: &[f64],
        s: &[f64],
        low: f64,
        high: f64,
        out_low: f64,
        out_high: f64,
    ) -> u64 {
        let mut clipped = 0;
        for ((d, mean), s) in d.iter_mut().zip(mean).zip(s) {
            let inside = if *s < low { low } else { *s };
            let inside = if inside > high { high } else { inside };
            *d = mean - inside;
            clipped += u64::from((*s < out_low) | (*s > out_high));
        }
        clipped
    }
}

kernel! {
    /// `d *= weight`, `w *= weight`
    pub fn weigh(d: &mut [f64], w: &mut [f64], weight: &[f64]) {
        for ((d, w), weight) in d.iter_mut().zip(w).zip(weight) {
            *d *= weight;
            *w *= weight;
        }
    }
}

kernel! {
    /// Replaces means by Bernoulli variances.
    pub fn bernoulli_variances(mean: &mut [f64]) {
        for m in mean {
            *m *= 1.0 - *m;
        }
    }
}

kernel! {
    /// Gradient `g_k = <d, x_k>` and packed curvature `h_km = <w x_k, x_m>` over one row.
    pub fn row_system(
        d: &[f64],
        w: &[f64],
        x: &[f64],
        scratch: &mut [f64],
        g: &mut [f64],
        h: &mut [f64],
    ) {
        let columns = d.len();
        let mut at = 0;
        for (k, (g, x_k)) in g.iter_mut().zip(x.chunks_exact(columns)).enumerate() {
            *g = dot_inline(d, x_k);
            for ((wx, w), x) in scratch.iter_mut().zip(w).zip(x_k) {
                *wx = w * x;
            }
            for x_m in x.chunks_exact(columns).take(k + 1) {
                h[at] = dot_inline(scratch, x_m);
                at += 1;
            }
        }
    }
}

kernel! {
    /// Adds one row to every column's gradient `d z_k` and packed curvature `w z_k z_m`.
    pub fn add_to_columns(d: &[f64], w: &[f64], z: &[f64], g: &mut [f64], h: &mut [f64]) {
        let columns = d.len();
        let mut packed = h.chunks_exact_mut(columns);
        for (k, (z_k, g)) in z.iter().zip(g.chunks_exact_mut(columns)).enumerate() {
            axpy_inline(g, *z_k, d);
            for (z_m, h) in z.iter().take(k + 1).zip(&mut packed) {
                axpy_inline(h, z_k * z_m, w);
            }
        }
    }
}

#[inline(always)]
fn boxed(theta: f64) -> f64 {
    let theta = if theta < -THETA_MAX { -THETA_MAX } else { theta };
    if theta > THETA_MAX { THETA_MAX } else { theta }
}
