//! Distribution functions of normal, chi-squared, Student's and Poisson variables, and the derivatives
//! of `ln Γ`.

use whimbrel_core::math;

/// `Q(a, x)`: the regularised upper incomplete gamma function, by its series or by Legendre's continued
/// fraction (in Lentz's form).
pub(crate) fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let front = math::exp(a * math::ln(x) - x - math::ln_gamma(a));
    if x < a + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
        while term > 1e-16 * sum {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return (1.0 - front * sum).clamp(0.0, 1.0);
    }
    let mut b = x + 1.0 - a;
    let mut c = f64::MAX;
    let mut d = 1.0 / b;
    let mut h = d;
    for i in 1..10_000 {
        let i = f64::from(i);
        let an = -i * (i - a);
        b += 2.0;
        d = 1.0 / (an * d + b);
        c = b + an / c;
        let change = d * c;
        h *= change;
        if (change - 1.0).abs() < 1e-15 {
            break;
        }
    }
    (front * h).clamp(0.0, 1.0)
}

/// `P(X > x)` of a chi-squared variable.
pub fn chi2_tail(x: f64, degrees: f64) -> f64 {
    upper_gamma(0.5 * degrees, 0.5 * x)
}

/// `P(|Z| > |z|)` of a standard normal variable.
pub fn normal_tails(z: f64) -> f64 {
    chi2_tail(z * z, 1.0)
}

/// `P(|T| > |t|)` of a Student variable.
pub fn student_tails(t: f64, degrees: f64) -> f64 {
    incomplete_beta(0.5 * degrees, 0.5, degrees / (degrees + t * t))
}

/// The `t` with `P(|T| > t) = p`, by bisection.
pub fn student_quantile(p: f64, degrees: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while student_tails(high, degrees) > p {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        *if student_tails(middle, degrees) > p { &mut low } else { &mut high } = middle;
    }
    0.5 * (low + high)
}

/// `I_x(a, b)`: the regularised incomplete beta function, by its continued fraction.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let ln_beta = math::ln_gamma(a) + math::ln_gamma(b) - math::ln_gamma(a + b);
    let front = math::exp(a * math::ln(x) + b * math::ln_1p(-x) - ln_beta) / a;
    let (mut c, mut d) = (1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0)));
    let mut h = d;
    for m in 1..10_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = h;
        for term in [even, odd] {
            d = 1.0 / (1.0 + term * d);
            c = 1.0 + term / c;
            h *= c * d;
        }
        if (h - before).abs() < 1e-16 * h.abs() {
            break;
        }
    }
    (front * h).clamp(0.0, 1.0)
}

/// `ψ(x + n) − ψ(x)` and `ψ'(x) − ψ'(x + n)` for a count `n`.
pub(crate) fn digamma_steps(x: f64, n: f64) -> (f64, f64) {
    const SUMMED_MAX: f64 = 1000.0;
    if n > SUMMED_MAX {
        let ((a, b), (c, d)) = (polygamma(x + n), polygamma(x));
        return (a - c, d - b);
    }
    let (mut first, mut second, mut at) = (0.0, 0.0, x);
    while at < x + n - 0.5 {
        first += 1.0 / at;
        second += 1.0 / (at * at);
        at += 1.0;
    }
    (first, second)
}

/// `ψ(x)` and `ψ'(x)`, by recurrence and asymptotic series.
fn polygamma(mut x: f64) -> (f64, f64) {
    let (mut psi, mut slope) = (0.0, 0.0);
    while x < 12.0 {
        psi -= 1.0 / x;
        slope += 1.0 / (x * x);
        x += 1.0;
    }
    let (r, s) = (1.0 / x, 1.0 / (x * x));
    let series = s * (1.0 / 12.0 - s * (1.0 / 120.0 - s * (1.0 / 252.0 - s / 240.0)));
    let slopes = s * (1.0 / 6.0 - s * (1.0 / 30.0 - s * (1.0 / 42.0 - s / 30.0)));
    (psi + math::ln(x) - 0.5 * r - series, slope + r * (1.0 + 0.5 * r + slopes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of scipy.stats and scipy.special 1.17.1.
    #[test]
    fn tails_have_their_known_values() {
        let near = |found: f64, known: f64| {
            assert!((found / known - 1.0).abs() < 1e-12, "{found:e} {known:e}");
        };
        near(normal_tails(1.959963984540054), 0.05);
        near(normal_tails(-9.0), 2.2571768119076647e-19);
        near(chi2_tail(11.0, 3.0), 0.0117258755784214);
        near(student_tails(2.5, 7.0), 0.04099221858575289);
        near(student_tails(-12.0, 40.0), 7.82417130425598e-15);
        near(student_quantile(0.05, 97.0), 1.9847231860139845);
        let (psi, slope) = polygamma(0.3);
        near(psi, -3.502524222200133);
        near(slope, 12.245364546107734);
        let (first, second) = digamma_steps(0.7, 2000.0);
        near(first, 8.821026018654933);
        near(second, 2.833549206700025);
    }
}
