//! Calibration of predicted probabilities: reliability, entropy, detection.

use whimbrel_core::math;

/// A reliability diagram: samples binned by the probability of the predicted class.
#[derive(Clone, Debug, PartialEq)]
pub struct Reliability {
    bins: Vec<Bin>,
}

/// Sums over the predictions with a probability in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    pub count: f64,
    /// The sum of their probabilities.
    pub confidence: f64,
    pub correct: f64,
}

impl Reliability {
    /// The number of equal intervals of (0, 1] that published figures use (Guo et al., 2017).
    pub const BINS: usize = 15;

    /// An empty diagram with this number of equal intervals of (0, 1].
    pub fn new(bins: usize) -> Self {
        assert!(bins > 0, "no bins");
        Self { bins: vec![Bin::default(); bins] }
    }

    /// Adds one sample with these class probabilities.
    pub fn add(&mut self, probabilities: &[f64], label: usize) {
        let (predicted, confidence) = most_probable(probabilities);
        let last = self.bins.len() - 1;
        let at = (confidence * self.bins.len() as f64).ceil() as usize;
        let bin = &mut self.bins[at.saturating_sub(1).min(last)];
        bin.count += 1.0;
        bin.confidence += confidence;
        bin.correct += f64::from(predicted == label);
    }

    /// The bins, from the least to the most probable.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Number of samples.
    pub fn count(&self) -> f64 {
        self.bins.iter().map(|bin| bin.count).sum()
    }

    /// The mean over samples of `|accuracy - confidence|` in their bin; 0 without samples.
    pub fn expected_calibration_error(&self) -> f64 {
        let gaps = self.bins.iter().map(|bin| (bin.correct - bin.confidence).abs());
        gaps.sum::<f64>() / self.count().max(1.0)
    }
}

/// The most probable class (the first of ties), and its probability.
pub fn most_probable(probabilities: &[f64]) -> (usize, f64) {
    let start = (0, f64::NEG_INFINITY);
    let larger =
        |best: (usize, f64), (k, p): (usize, &f64)| if *p > best.1 { (k, *p) } else { best };
    probabilities.iter().enumerate().fold(start, larger)
}

/// `-sum p ln p`, in nats.
pub fn entropy(probabilities: &[f64]) -> f64 {
    let positive = probabilities.iter().filter(|p| **p > 0.0);
    -positive.map(|p| p * math::ln(*p)).sum::<f64>()
}

/// The probability that a score of the second list exceeds one of the first, ties counted half: the
/// area under the receiver operating characteristic. NaN if a list is empty.
pub fn auroc(inside: &[f64], outside: &[f64]) -> f64 {
    let inside = inside.iter().map(|score| (*score, false));
    let mut all: Vec<(f64, bool)> =
        inside.chain(outside.iter().map(|score| (*score, true))).collect();
    all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut below, mut wins) = (0.0, 0.0);
    for ties in all.chunk_by(|a, b| a.0 == b.0) {
        let out = ties.iter().filter(|(_, outside)| *outside).count() as f64;
        let within = ties.len() as f64 - out;
        wins += out * (below + 0.5 * within);
        below += within;
    }
    wins / (below * outside.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Key;

    #[test]
    fn entropy_by_hand() {
        let ln2 = math::ln(2.0);
        assert!((entropy(&[0.5, 0.5]) - ln2).abs() < 1e-15);
        assert_eq!(entropy(&[1.0, 0.0]), 0.0);
    }

    #[test]
    fn calibration_error_by_hand() {
        let mut all = Reliability::new(10);
        all.add(&[0.85, 0.15], 0);
        all.add(&[0.85, 0.15], 1);
        all.add(&[0.3, 0.7], 1);
        all.add(&[0.0, 1.0], 1);
        // Bins (0.8, 0.9]: |1 - 1.7|; (0.6, 0.7]: |1 - 0.7|; (0.9, 1]: 0; of four samples.
        assert!((all.expected_calibration_error() - (0.7 + 0.3) / 4.0).abs() < 1e-15);
        assert_eq!((all.count(), all.bins()[9].count, all.bins()[6].correct), (4.0, 1.0, 1.0));
        assert_eq!(Reliability::new(3).expected_calibration_error(), 0.0);
    }

    #[test]
    fn labels_drawn_from_the_probabilities_are_calibrated() {
        const N: usize = 20_000;
        let mut stream = Key::root(1).stream();
        let (mut honest, mut overconfident) = (Reliability::new(10), Reliability::new(10));
        for _ in 0..N {
            let p = stream.dirichlet(&[1.0, 1.0, 1.0]);
            let label = stream.categorical(&p);
            honest.add(&p, label);
            let total: f64 = p.iter().map(|p| p * p).sum();
            overconfident.add(&p.iter().map(|p| p * p / total).collect::<Vec<_>>(), label);
        }
        // Each bin's gap has a standard deviation of at most sqrt(n_b) / 2; their sum over at most
        // 10 bins is on average below 10 x 0.8 x sqrt(N / 10) / 2 = 0.009 N, and 0.015 N is beyond
        // five standard deviations of it (2 sqrt(N / 10)) above.
        assert!(honest.expected_calibration_error() < 0.015);
        assert!(overconfident.expected_calibration_error() > 0.1);
    }

    #[test]
    fn auroc_is_the_share_of_ordered_pairs() {
        let mut stream = Key::root(2).stream();
        let mut scores =
            |n: usize, shift: u64| (0..n).map(|_| (stream.below(8) + shift) as f64).collect();
        let (inside, outside): (Vec<f64>, Vec<f64>) = (scores(50, 0), scores(70, 2));
        let mut wins = 0.0;
        for a in &inside {
            for b in &outside {
                wins += f64::from(b > a) + 0.5 * f64::from(a == b);
            }
        }
        assert!((auroc(&inside, &outside) - wins / 3500.0).abs() < 1e-15);
        assert_eq!(auroc(&[1.0, 2.0], &[3.0]), 1.0);
        assert!(auroc(&[], &[1.0]).is_nan() && auroc(&[1.0], &[]).is_nan());
    }
}
