//! Exhibits of uncertainty: calibration, coverage, entropies, chains. Each is `None` without data.

use whimbrel_core::declare::{Ellipse, Exhibit, Lines, Scatter};
use whimbrel_core::math;
use whimbrel_models::calibration::{Reliability, auroc};
use whimbrel_models::prior::Density;

/// Bins of a histogram of entropies.
const ENTROPY_BINS: usize = 20;

/// Reliability diagram: accuracy against stated probability.
pub fn reliability(reliability: &Reliability) -> Option<Exhibit> {
    let filled = reliability.bins().iter().filter(|bin| bin.count > 0.0);
    let points: Vec<[f64; 2]> =
        filled.map(|bin| [bin.confidence / bin.count, bin.correct / bin.count]).collect();
    let diagonal = ("perfectly calibrated".into(), vec![[0.0, 0.0], [1.0, 1.0]]);
    (!points.is_empty()).then(|| {
        Exhibit::Lines(Lines {
            title: "Reliability".into(),
            caption: format!(
                "Expected calibration error {:.3} over {} samples",
                reliability.expected_calibration_error(),
                reliability.count()
            ),
            axis: "probability of the predicted class".into(),
            bounds: Some([0.0, 1.0]),
            lines: vec![("accuracy".into(), points), diagonal],
        })
    })
}

/// Coverage of intervals against their nominal level.
pub fn coverage(levels: &[[f64; 2]], caption: &str) -> Option<Exhibit> {
    (!levels.is_empty()).then(|| {
        Exhibit::Lines(Lines {
            title: "Coverage of the intervals".into(),
            caption: caption.into(),
            axis: "level of the interval".into(),
            bounds: Some([0.0, 1.0]),
            lines: vec![
                ("coverage".into(), levels.to_vec()),
                ("nominal".into(), vec![[0.0, 0.0], [1.0, 1.0]]),
            ],
        })
    })
}

/// Histograms of predictive entropies, in and out of distribution.
pub fn entropies(inside: &[f64], outside: &[f64], classes: usize) -> Option<Exhibit> {
    let most = math::ln(classes.max(2) as f64);
    (!inside.is_empty() && !outside.is_empty()).then(|| {
        Exhibit::Lines(Lines {
            title: "Predictive entropy".into(),
            caption: format!("Share of samples; AUROC {:.3}", auroc(inside, outside)),
            axis: "entropy (nats)".into(),
            bounds: None,
            lines: vec![
                ("in distribution".into(), outline(inside, most)),
                ("out of distribution".into(), outline(outside, most)),
            ],
        })
    })
}

/// The outline of a histogram over `[0, most]`, in shares.
fn outline(values: &[f64], most: f64) -> Vec<[f64; 2]> {
    let mut counts = [0.0; ENTROPY_BINS];
    for value in values {
        // A NaN counts in the first bin.
        let bin = (value / most * ENTROPY_BINS as f64) as usize;
        counts[bin.min(ENTROPY_BINS - 1)] += 1.0 / values.len() as f64;
    }
    let edge = |bin: usize| most * bin as f64 / ENTROPY_BINS as f64;
    let steps = counts
        .iter()
        .enumerate()
        .flat_map(|(bin, share)| [[edge(bin), *share], [edge(bin + 1), *share]]);
    [[0.0, 0.0]].into_iter().chain(steps).chain([[most, 0.0]]).collect()
}

/// The trace of one coordinate of a client's chain, with the prior's mean.
pub fn trace(client: &str, coordinate: usize, values: &[[f64; 2]], prior: f64) -> Option<Exhibit> {
    let (first, last) = (values.first()?, values.last()?);
    Some(Exhibit::Lines(Lines {
        title: format!("Chain of {client}"),
        caption: format!("Coordinate {}", coordinate + 1),
        axis: "kept sample".into(),
        bounds: None,
        lines: vec![
            ("position".into(), values.to_vec()),
            ("mean of the prior".into(), vec![[first[0], prior], [last[0], prior]]),
        ],
    }))
}

/// The clients' posterior means over the learned prior, in the two coordinates of largest variance; a
/// histogram for one coordinate.
pub fn prior_and_means(prior: &Density, means: &[Vec<f64>]) -> Option<Exhibit> {
    let title = "Learned prior and clients' posterior means";
    let [i, j] = match means.first()?.len() {
        0 => return None,
        1 => {
            return Some(Exhibit::Histogram {
                title: title.into(),
                axis: "posterior mean".into(),
                counted: "clients".into(),
                values: means.iter().map(|mean| mean[0]).collect(),
            });
        }
        d => widest(means, d),
    };
    let ellipses = prior.marginals(i, j).into_iter().map(|part| Ellipse {
        label: format!("prior, weight {:.2}", part.weight),
        mean: part.mean,
        covariance: part.covariance,
    });
    Some(Exhibit::Scatter(Scatter {
        title: title.into(),
        caption: "Points are clients; ellipses show one and two standard deviations of the prior"
            .into(),
        axes: [i, j].map(|at| format!("coordinate {}", at + 1)),
        points: means.iter().map(|mean| [mean[i], mean[j]]).collect(),
        ellipses: ellipses.collect(),
    }))
}

/// The two coordinates with the largest variance over clients, in order.
fn widest(means: &[Vec<f64>], d: usize) -> [usize; 2] {
    let variance = |at: usize| {
        let centre = means.iter().map(|mean| mean[at]).sum::<f64>() / means.len() as f64;
        means.iter().map(|mean| (mean[at] - centre).powi(2)).sum::<f64>()
    };
    let mut order: Vec<(f64, usize)> = (0..d).map(|at| (variance(at), at)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let [(_, i), (_, j)] = [order[0], order[1]];
    [i.min(j), i.max(j)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Key;
    use whimbrel_models::prior::{Prior, Shape};

    fn lines(exhibit: Option<Exhibit>) -> Lines {
        match exhibit {
            Some(Exhibit::Lines(lines)) => lines,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_reliability_diagram_shows_filled_bins() {
        let mut seen = Reliability::new(10);
        assert_eq!(reliability(&seen), None);
        seen.add(&[0.9, 0.1], 0);
        seen.add(&[0.9, 0.1], 1);
        let shown = lines(reliability(&seen));
        assert_eq!(shown.lines[0].1, [[0.9, 0.5]]);
        assert_eq!(shown.caption, "Expected calibration error 0.400 over 2 samples");
    }

    #[test]
    fn outlines_hold_every_sample() {
        let most = math::ln(10.0);
        let shown = lines(entropies(&[0.0, 0.1, f64::NAN], &[1.0, most, most + 1e-12], 10));
        for (_, points) in &shown.lines {
            let area: f64 = points.windows(2).map(|p| (p[1][0] - p[0][0]) * p[0][1]).sum();
            assert!((area * ENTROPY_BINS as f64 / most - 1.0).abs() < 1e-12, "{area}");
            assert_eq!(points.last().unwrap(), &[most, 0.0]);
        }
        assert!(shown.caption.contains("AUROC"));
        assert_eq!(entropies(&[], &[1.0], 10), None);
    }

    #[test]
    fn means_are_shown_where_they_differ_most() {
        let prior = Prior::new(3, Shape::Mixture { components: 2 }).unwrap();
        let beta = prior.start(0.5, Key::root(1)).unwrap();
        let density = prior.at(&beta).unwrap();
        let means = [vec![1.0, 0.1, -3.0], vec![-1.0, 0.1, 3.0]];
        let Some(Exhibit::Scatter(shown)) = prior_and_means(&density, &means) else { panic!() };
        assert_eq!(shown.axes, ["coordinate 1", "coordinate 3"]);
        assert_eq!(shown.points, [[1.0, -3.0], [-1.0, 3.0]]);
        assert_eq!(shown.ellipses.len(), 2);
        assert!((shown.ellipses[0].covariance[0][0] - 0.25).abs() < 1e-15);
        assert_eq!(prior_and_means(&density, &[]), None);
        let single = Prior::new(1, Shape::Full).unwrap().at(&[0.0, 0.0]).unwrap();
        let one = prior_and_means(&single, &[vec![2.0]]);
        assert!(matches!(one, Some(Exhibit::Histogram { values, .. }) if values == [2.0]));
    }

    #[test]
    fn a_trace_stands_beside_the_mean_of_the_prior() {
        let shown = lines(trace("7", 0, &[[1.0, 0.5], [9.0, 0.2]], -0.1));
        assert_eq!(shown.lines[1].1, [[1.0, -0.1], [9.0, -0.1]]);
        assert_eq!(trace("7", 0, &[], 0.0), None);
        assert_eq!(lines(coverage(&[[0.9, 0.88]], "")).lines[0].1, [[0.9, 0.88]]);
        assert_eq!(coverage(&[], ""), None);
    }
}
