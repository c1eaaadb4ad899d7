//! The largest curvature of a potential around a point, and detection of divergent chains.

use super::Potential;
use whimbrel_core::{Error, Key, Result, vector};

/// Growth of a chain's coordinates after which it is checked again.
pub(super) const GROWTH: f64 = 10.0;
/// Maximal power iterations, and the relative change at which they stop. The inverse of a curvature that
/// is up to half too small is still a stable step.
const ITERATIONS: usize = 30;
const CHANGE: f64 = 1e-2;

/// The largest absolute eigenvalue of the Hessian at `z`, by power iteration on differences of
/// gradients: a lower bound that is close after at most 60 gradients. Its inverse is a stable step of every
/// kernel near `z`. A stochastic potential must use the same minibatch throughout.
pub fn curvature<P: Potential + ?Sized>(potential: &mut P, z: &[f64]) -> f64 {
    within(potential, z, None, 1e-3 * length(z).max(1.0))
}

/// Checks a chain that moved from `before` to `after`, beyond its bound: returns the next bound, or the
/// error of a divergent chain, with steps in the given unit.
///
/// A stable chain far from its start has a wide target; a divergent one has `gamma L > 2` in the direction
/// of its growth. Gradients use all samples, since those of two minibatches differ by more than the
/// curvature between two points.
#[cold]
pub(super) fn checked_bound<P: Potential + ?Sized>(
    potential: &mut P,
    before: &[f64],
    after: &[f64],
    diagonal: Option<&[f64]>,
    [gamma, unit]: [f64; 2],
) -> Result<f64> {
    let mut around = |z: &[f64]| {
        potential.take_all(true);
        let found = within(potential, z, diagonal, 0.1 * length(z).max(1.0));
        potential.take_all(false);
        found
    };
    let reach = vector::norm_inf(after);
    let largest = if reach.is_finite() { around(after) } else { f64::INFINITY };
    if gamma * largest <= 2.0 {
        return Ok(GROWTH * reach);
    }
    let larger = match (largest.is_finite(), around(before)) {
        (true, there) if there.is_finite() => largest.max(there),
        (true, _) => largest,
        (false, there) => there,
    };
    let given = gamma / unit;
    let what = format!("the chain explodes: the step {given} is too large");
    if larger.is_finite() && gamma * larger > 1.0 {
        return Err(Error::numerical(format!(
            "{what} for a curvature of {larger:.3e}; a step of {:.2e} is stable",
            1.0 / (larger * unit)
        )));
    }
    Err(Error::numerical(format!(
        "the potential or its gradient is not finite where the step {given} took the chain"
    )))
}

/// Power iteration on `D H`, with differences over the given radius.
fn within<P: Potential + ?Sized>(
    potential: &mut P,
    z: &[f64],
    diagonal: Option<&[f64]>,
    radius: f64,
) -> f64 {
    let n = z.len();
    let (mut direction, mut at) = (vec![0.0; n], vec![0.0; n]);
    let (mut ahead, mut behind) = (vec![0.0; n], vec![0.0; n]);
    Key::root(0).stream().fill_normal(&mut direction);
    let mut found = 0.0;
    for _ in 0..ITERATIONS {
        let size = length(&direction);
        if size == 0.0 || !size.is_finite() {
            break;
        }
        vector::scale(&mut direction, 1.0 / size);
        at.copy_from_slice(z);
        vector::axpy(&mut at, radius, &direction);
        potential.potential_and_gradient(&at, &mut ahead);
        vector::axpy(&mut at, -2.0 * radius, &direction);
        potential.potential_and_gradient(&at, &mut behind);
        vector::sub_into(&mut direction, &ahead, &behind);
        vector::scale(&mut direction, 0.5 / radius);
        if let Some(diagonal) = diagonal {
            direction.iter_mut().zip(diagonal).for_each(|(v, d)| *v *= d);
        }
        let last = std::mem::replace(&mut found, length(&direction));
        if found.is_nan() || (found - last).abs() <= CHANGE * found {
            break;
        }
    }
    if found.is_nan() { f64::INFINITY } else { found }
}

fn length(z: &[f64]) -> f64 {
    vector::norm2_squared(z).sqrt()
}
