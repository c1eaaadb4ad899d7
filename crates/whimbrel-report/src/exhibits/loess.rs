//! Locally estimated scatterplot smoothing (LOESS): at each point, a weighted line through its nearest
//! neighbours, as in Cleveland (1979), without robustness iterations.

/// The share of points in each local fit.
pub const SPAN: f64 = 0.35;

/// The fewest points of a local fit.
pub const NEIGHBOURS_MIN: usize = 5;

/// The smooth curve at each of `x` (ascending); `None` with fewer than five points.
pub fn loess(x: &[f64], y: &[f64], span: f64) -> Option<Vec<f64>> {
    let n = x.len();
    if n < NEIGHBOURS_MIN || y.len() != n {
        return None;
    }
    let near = ((span * n as f64).round() as usize).clamp(NEIGHBOURS_MIN, n);
    let mut first = 0;
    let curve = (0..n).map(|at| {
        // The window of the `near` nearest points only ever moves to the right.
        while first + near < n && x[first + near] - x[at] < x[at] - x[first] {
            first += 1;
        }
        let window = first..first + near;
        local_line(&x[window.clone()], &y[window], x[at])
    });
    Some(curve.collect())
}

/// The value at `at` of the line fitted with tricube weights.
fn local_line(x: &[f64], y: &[f64], at: f64) -> f64 {
    let reach = x.iter().map(|x| (x - at).abs()).fold(0.0, f64::max) * (1.0 + 1e-9);
    let weight = |x: f64| match reach {
        0.0 => 1.0,
        _ => {
            let u = (x - at).abs() / reach;
            (1.0 - u * u * u).powi(3)
        }
    };
    let (mut w0, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, y) in x.iter().zip(y) {
        let (w, d) = (weight(*x), x - at);
        w0 += w;
        wx += w * d;
        wy += w * y;
        wxx += w * d * d;
        wxy += w * d * y;
    }
    let spread = w0 * wxx - wx * wx;
    // All weight at one place: its mean.
    if spread <= 1e-12 * w0 * wxx { wy / w0 } else { (wxx * wy - wx * wxy) / spread }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_its_own_smooth() {
        let x: Vec<f64> = (0..40).map(|i| f64::from(i) + 0.3 * f64::from(i % 3)).collect();
        let y: Vec<f64> = x.iter().map(|x| 3.0 - 2.0 * x).collect();
        let smooth = loess(&x, &y, SPAN).unwrap();
        assert_eq!(smooth.len(), y.len());
        for (smooth, y) in smooth.iter().zip(&y) {
            assert!((smooth - y).abs() < 1e-9, "{smooth} {y}");
        }
    }

    /// The local sum over a window is solved by hand: three points at distance 0, 1 and 2 of five.
    #[test]
    fn weights_are_tricube() {
        let smooth = local_line(&[-1.0, 0.0, 2.0], &[0.0, 1.0, 0.0], 0.0);
        let near = (1.0f64 - 0.125).powi(3);
        // With weights (near, 1, 0) the line through (-1, 0) and (0, 1) is exact.
        assert!(near > 0.0 && (smooth - 1.0).abs() < 1e-6, "{smooth}");
    }

    #[test]
    fn noise_is_smoothed_and_few_points_are_not() {
        let x: Vec<f64> = (0..100).map(f64::from).collect();
        let y: Vec<f64> = (0..100).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let smooth = loess(&x, &y, SPAN).unwrap();
        assert!(smooth[10..90].iter().all(|v| v.abs() < 0.1), "{smooth:?}");
        assert!(loess(&x[..4], &y[..4], SPAN).is_none());
        assert_eq!(loess(&[2.0; 5], &[1.0, 2.0, 3.0, 1.0, 3.0], SPAN).unwrap()[0], 2.0);
    }
}
