//! The loops of the unadjusted kernels.

use whimbrel_core::kernel;

kernel! {
    /// `z += h xi - gamma g`
    pub(super) fn langevin(z: &mut [f64], gradient: &[f64], noise: &[f64], gamma: f64, h: f64) {
        for ((z, g), xi) in z.iter_mut().zip(gradient).zip(noise) {
            *z += h * xi - gamma * g;
        }
    }
}

kernel! {
    /// `z += h D^(1/2) xi - gamma D g`; `scales` holds `D` and its root.
    pub(super) fn preconditioned(
        z: &mut [f64],
        gradient: &[f64],
        noise: &[f64],
        scales: (&[f64], &[f64]),
        gamma: f64,
        h: f64,
    ) {
        let moves = gradient.iter().zip(noise).zip(scales.0).zip(scales.1);
        for (z, (((g, xi), d), root)) in z.iter_mut().zip(moves) {
            *z += h * root * xi - gamma * d * g;
        }
    }
}

kernel! {
    /// `z += time D^(1/2) v`; `roots` holds `D^(1/2)`.
    pub(super) fn drift(z: &mut [f64], v: &[f64], roots: &[f64], time: f64) {
        for ((z, v), root) in z.iter_mut().zip(v).zip(roots) {
            *z += time * root * v;
        }
    }
}

kernel! {
    /// `v <- keep (v - half g) + sqrt(1 - keep^2) xi - half g`
    pub(super) fn kick_and_refresh(
        v: &mut [f64],
        gradient: &[f64],
        noise: &[f64],
        half: f64,
        keep: f64,
    ) {
        let spread = ((1.0 - keep) * (1.0 + keep)).sqrt();
        for ((v, g), xi) in v.iter_mut().zip(gradient).zip(noise) {
            *v = keep * (*v - half * g) + spread * xi - half * g;
        }
    }
}
