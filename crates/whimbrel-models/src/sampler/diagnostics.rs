//! Convergence diagnostics of parallel chains: effective sample size and split R-hat.
//!
//! Both follow Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), without ranks.

use whimbrel_core::math;

/// The effective sample size of these chains for estimating the mean.
///
/// Autocorrelations are pooled over chains of equal length and summed in pairs by Geyer's initial monotone
/// sequence. A constant chain counts as one draw; NaN for fewer than four draws.
pub fn effective_sample_size<C: AsRef<[f64]>>(chains: &[C]) -> f64 {
    let Some(pooled) = Pooled::new(chains) else { return f64::NAN };
    let (m, n) = (chains.len() as f64, pooled.n as f64);
    if pooled.total <= 0.0 {
        return m;
    }
    let correlation =
        |lag: usize| 1.0 - (pooled.within - pooled.covariance(chains, lag)) / pooled.total;
    let mut smallest = 1.0 + correlation(1);
    let mut sum = smallest;
    for pair in 1..pooled.n / 2 {
        let next = correlation(2 * pair) + correlation(2 * pair + 1);
        if next <= 0.0 || smallest <= 0.0 {
            break;
        }
        smallest = next.min(smallest);
        sum += smallest;
    }
    // Antithetic chains exceed their length, but the estimate is capped.
    let time = (2.0 * sum - 1.0).max(std::f64::consts::LN_10 / math::ln(m * n));
    m * n / time
}

/// Split R-hat: the ratio of the standard deviation over all half-chains to that within one; near 1 for
/// mixed chains, infinite for constant ones. NaN for fewer than eight draws.
pub fn split_r_hat<C: AsRef<[f64]>>(chains: &[C]) -> f64 {
    let halves: Vec<&[f64]> = chains
        .iter()
        .flat_map(|chain| {
            let (chain, half) = (chain.as_ref(), chain.as_ref().len() / 2);
            [&chain[..half], &chain[chain.len() - half..]]
        })
        .collect();
    match Pooled::new(&halves) {
        None => f64::NAN,
        Some(pooled) if pooled.total == 0.0 => f64::INFINITY,
        Some(pooled) => (pooled.total / pooled.within).sqrt(),
    }
}

/// Moments of chains of equal length.
struct Pooled {
    n: usize,
    means: Vec<f64>,
    /// The mean of the chains' variances.
    within: f64,
    /// The variance over all chains: `within (n - 1) / n` and the variance of the means.
    total: f64,
}

impl Pooled {
    fn new<C: AsRef<[f64]>>(chains: &[C]) -> Option<Self> {
        let n = chains.first()?.as_ref().len();
        assert!(chains.iter().all(|chain| chain.as_ref().len() == n), "chains of unequal length");
        if n < 4 {
            return None;
        }
        let means: Vec<f64> =
            chains.iter().map(|chain| chain.as_ref().iter().sum::<f64>() / n as f64).collect();
        let mut pooled = Self { n, means, within: 0.0, total: 0.0 };
        let biased = pooled.covariance(chains, 0);
        pooled.within = biased * n as f64 / (n - 1) as f64;
        let m = chains.len() as f64;
        let centre = pooled.means.iter().sum::<f64>() / m;
        let spread: f64 = pooled.means.iter().map(|mean| (mean - centre) * (mean - centre)).sum();
        pooled.total = biased + if m > 1.0 { spread / (m - 1.0) } else { 0.0 };
        Some(pooled)
    }

    /// The mean over chains of the autocovariance at a lag, each divided by `n`.
    fn covariance<C: AsRef<[f64]>>(&self, chains: &[C], lag: usize) -> f64 {
        let one = |(chain, mean): (&C, &f64)| {
            let chain = chain.as_ref();
            let pairs = chain.iter().zip(&chain[lag..]);
            pairs.map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>()
        };
        let all: f64 = chains.iter().zip(&self.means).map(one).sum();
        all / (self.n * chains.len()) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Key;

    /// `x_t = a x_{t-1} + sqrt(1 - a^2) xi_t`, whose time is `(1 + a) / (1 - a)`.
    fn autoregressive(a: f64, n: usize, seed: u64) -> Vec<f64> {
        let mut stream = Key::root(seed).stream();
        let mut x = stream.normal();
        (0..n)
            .map(|_| {
                x = a * x + (1.0 - a * a).sqrt() * stream.normal();
                x
            })
            .collect()
    }

    #[test]
    fn autoregressive_chains_are_worth_what_theory_says() {
        // The truncated sum over about 3 times the correlation time `t` has a relative standard
        // deviation of about sqrt(6 t / (m n)): at most 5 % here. Four of them are 20 %.
        for a in [-0.5, 0.0, 0.6, 0.9] {
            let chains: Vec<_> = (0..4).map(|seed| autoregressive(a, 10_000, seed)).collect();
            let expected = 40_000.0 * (1.0 - a) / (1.0 + a);
            let found = effective_sample_size(&chains);
            assert!((found / expected - 1.0).abs() < 0.2, "{a}: {found}, not {expected}");
            let r_hat = split_r_hat(&chains);
            assert!((r_hat - 1.0).abs() < 0.01, "{a}: {r_hat}");
        }
    }

    #[test]
    fn chains_in_different_places_or_on_the_move_have_not_mixed() {
        let mut chains: Vec<_> = (0..4).map(|seed| autoregressive(0.5, 1000, seed)).collect();
        chains[3].iter_mut().for_each(|x| *x += 3.0);
        // Means 0, 0, 0, 3: B / n = 2.25 over W = 1.
        assert!(split_r_hat(&chains) > 1.5);
        assert!(effective_sample_size(&chains) < 20.0);
        let drift: Vec<f64> = (0..100).map(f64::from).collect();
        assert!(split_r_hat(&[drift]) > 2.0);
    }

    #[test]
    fn short_and_constant_chains() {
        assert!(effective_sample_size(&[[1.0, 2.0, 3.0]]).is_nan());
        assert!(effective_sample_size::<Vec<f64>>(&[]).is_nan());
        assert_eq!(effective_sample_size(&[[2.0; 10], [2.0; 10]]), 2.0);
        assert_eq!(split_r_hat(&[[2.0; 10]]), f64::INFINITY);
        assert!(split_r_hat(&[[2.0; 7]]).is_nan());
        assert!(split_r_hat(&[[1.0; 10], [2.0; 10]]).is_infinite());
    }
}
