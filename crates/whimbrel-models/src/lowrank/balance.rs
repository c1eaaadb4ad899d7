//! Equal norms for both factors of a component.
//!
//! `(|u_k|^2 + |v_k|^2)/2` is least, with the product as it is, where `|u_k| = |v_k|`. Alternating
//! steps tend to `U^T U = V^T V`, where the sum over components is the nuclear norm of the product.

use super::Factors;

/// Neither factor of a component falls below this norm: from exactly zero none comes back when the
/// table later asks for it.
const FACTOR_MIN: f64 = 1e-7;

/// Gives both factors of each component the same norm; the product stays.
pub(super) fn balance(factors: &mut Factors) {
    let r = factors.rank as usize;
    for k in 0..r {
        let norm = |a: &[f64]| a.iter().skip(k).step_by(r).map(|x| x * x).sum::<f64>().sqrt();
        let (u, v) = (norm(&factors.u), norm(&factors.v));
        if u == 0.0 || v == 0.0 {
            continue;
        }
        let common = (u * v).sqrt().max(FACTOR_MIN);
        factors.u.iter_mut().skip(k).step_by(r).for_each(|x| *x *= common / u);
        factors.v.iter_mut().skip(k).step_by(r).for_each(|x| *x *= common / v);
    }
}
