//! The candidates of a selection, the comparison of their scores, and the choice.

use whimbrel_methods::fedmiss::select::{Candidate, Given, Scores, Search, Splits, candidates_max};
use whimbrel_testkit::pairs;

fn search() -> Search {
    Search {
        terms: 2,
        rank_max: 50,
        lambda_effects: 1e-3,
        given: Given { lambda_effects: true, ..Given::default() },
    }
}

fn with(given: Given) -> Search {
    Search { given, ..search() }
}

/// Runs a search with known mean deviances over a hundred cells: equal ones, so that differences have no
/// error, or with noise in two cells that makes the error of a difference 3.6 times the difference.
fn tried(
    search: &Search,
    lambda_max: f64,
    noise: bool,
    mean: impl Fn(Candidate) -> f64,
) -> (Vec<Candidate>, Scores) {
    let deviances = |c: &Candidate| {
        let above = mean(c.clone()) - 1.0;
        let factor = |i: usize| match i {
            _ if !noise => 1.0,
            0 => 300.0,
            1 => -200.0,
            _ => 0.0,
        };
        (0..100).map(|i| 1.0 + above * factor(i)).collect()
    };
    let mut all = search.without_factors();
    loop {
        let sums = Scores::of(&all.iter().map(deviances).collect::<Vec<Vec<f64>>>());
        assert_eq!(sums.len(), Scores::length(all.len()));
        let scores = Scores::new(&[sums]);
        assert_eq!(scores.count(), all.len());
        let next = search.next(&all, &scores, lambda_max);
        if next.is_empty() {
            assert!(all.len() <= candidates_max(search.terms));
            return (all, scores);
        }
        all.extend(next);
    }
}

#[test]
fn ridges_are_compared_at_one_rank_and_ranks_at_the_best_ridge() {
    // Best at rank 5 and an eighth of the largest ridge.
    let mean = |c: Candidate| match c.rank {
        0 => 3.0,
        r => 1.0 + 0.1 * (r as f64 - 5.0).abs() + (c.lambda - 0.125).abs(),
    };
    let (all, scores) = tried(&search(), 1.0, false, mean);
    let order: Vec<(usize, f64)> = all.iter().map(|c| (c.rank, c.lambda)).collect();
    assert_eq!(order[..3], [(0, 0.0), (3, 0.5), (3, 0.25)]);
    assert_eq!(order[7..], [1, 2, 5, 8].map(|rank| (rank, 0.125)));
    let chosen = &all[search().choose(&all, &scores).unwrap()];
    assert_eq!((chosen.rank, chosen.lambda), (5, 0.125));
}

#[test]
fn what_the_job_gives_is_not_searched() {
    let given = with(Given { rank: Some(4), ..search().given });
    for lambda_max in [0.0, 1.0] {
        let (all, scores) = tried(&given, lambda_max, false, |c| 1.5 + c.rank as f64);
        assert!(all.iter().all(|c| [0, 4].contains(&c.rank)));
        let chosen = &all[given.choose(&all, &scores).unwrap()];
        assert_eq!(chosen.rank, 4, "it is taken even where factors do not pay");
    }
    let given = with(Given { lambda: Some(0.7), ..search().given });
    let (all, _) = tried(&given, 1.0, false, |c| 9.0 - c.rank as f64);
    let ranks: Vec<usize> = all.iter().map(|c| c.rank).collect();
    assert_eq!(ranks, [0, 3, 1, 2, 5, 8]);
    assert!(all[1..].iter().all(|c| c.lambda == 0.7));
    let small = Search { rank_max: 2, ..search() };
    assert!(tried(&small, 1.0, false, |_| 1.5).0.iter().all(|c| c.rank <= 2));
    let free = tried(&search(), 0.0, false, |_| 1.5).0;
    assert!(free.iter().all(|c| c.rank == 0), "factors cannot pay");
}

#[test]
fn the_simplest_within_one_standard_error_is_taken() {
    let mean = |c: Candidate| match c.rank {
        0 => 1.4,
        rank => 1.2 + 0.01 * (rank as f64 - 2.0).abs(),
    };
    for (noise, chosen) in [(false, 2), (true, 0)] {
        let (all, scores) = tried(&search(), 1.0, noise, mean);
        assert_eq!(all[search().choose(&all, &scores).unwrap()].rank, chosen);
    }
    // Ridges are the best, however noisy.
    let given = with(Given { rank: Some(3), ..search().given });
    let (all, scores) = tried(&given, 1.0, true, |c| 2.0 + (c.lambda - 0.0625).abs());
    assert_eq!(all[given.choose(&all, &scores).unwrap()].lambda, 0.0625);
    assert_eq!(search().choose(&[], &Scores::new(&[])), None);
}

#[test]
fn factors_take_the_best_ridge_on_effects() {
    let search = with(Given::default());
    let mean = |c: Candidate| 2.0 + (c.lambda_effects - 0.016).abs() + 0.1 * c.lambda;
    let (all, scores) = tried(&search, 1.0, false, mean);
    assert!(all[5..].iter().all(|c| c.rank > 0 && c.lambda_effects == 0.016));
    assert_eq!(all[search.choose(&all, &scores).unwrap()].lambda_effects, 0.016);
}

/// Deviances with a different best ridge for each term.
#[test]
fn each_term_finds_its_own_ridge() {
    let given = Given { per_term: true, ..Given::default() };
    let search = Search { terms: 3, given, ..search() };
    let best = [1e-3, 0.256, 64.0];
    let off = |ridge: f64, best: f64| ((ridge / best).ln() / 4f64.ln()).abs();
    let mean = |c: Candidate| {
        let effects: f64 = c.term_ridges.iter().zip(best).map(|(r, best)| off(*r, best)).sum();
        2.0 + 0.01 * effects + 0.1 * c.lambda
    };
    let (all, scores) = tried(&search, 1.0, false, mean);
    let plain = all.iter().filter(|c| c.rank == 0).count();
    assert_eq!(plain, 6 + 3 * 4 + 1 + 3 * 2 + 1);
    let found = &all[search.choose(&all, &scores).unwrap()];
    // The common ridge is 0.256; from there a step of 16 and one of 4 lead each way.
    for (ridge, best) in pairs(&found.term_ridges, best) {
        assert!(off(*ridge, best) <= 1.01, "{found:?}");
    }
    assert!(all[plain..].iter().all(|c| c.term_ridges == found.term_ridges));
}

#[test]
fn errors_of_differences_are_those_of_paired_cells() {
    let deviances = [[1.0, 4.0, 2.0, 9.0], [2.0, 3.0, 2.0, 6.0]];
    let halves: Vec<Vec<f64>> = [0..2, 2..4]
        .map(|half| {
            Scores::of(&deviances.iter().map(|d| d[half.clone()].to_vec()).collect::<Vec<_>>())
        })
        .into();
    let scores = Scores::new(&halves);
    let one = Scores::new(&[halves[0].clone(), Scores::of(&[vec![2.0, 9.0]])]);
    assert_eq!(
        (one.count(), one.mean(0), one.standard_error(0)),
        (1, 4.0, scores.standard_error(0))
    );
    assert_eq!((scores.cells(), scores.mean(0), scores.mean(1)), (4.0, 4.0, 3.25));
    // Differences -1, 1, 0, 3: mean 3/4, variance 11/4 - 9/16.
    let wanted = ((11.0 / 4.0 - 9.0 / 16.0) / 4.0f64).sqrt();
    assert!((scores.difference_error(0, 1) - wanted).abs() < 1e-12);
    assert_eq!(scores.difference_error(1, 0), scores.difference_error(0, 1));
    assert_eq!(scores.difference_error(1, 1), 0.0);
}

#[test]
fn splits_are_disjoint_and_of_their_share() {
    for observations in [500, 50_000] {
        let splits = Splits::for_observations(observations);
        let mut times = vec![0; 5_000];
        for split in 0..splits.count {
            let hidden = splits.hidden(split, 3, 0..5_000);
            // A binomial standard deviation of at most 29: five of them.
            let count = hidden.iter().filter(|hidden| **hidden).count() as f64;
            assert!((count - 5_000.0 * splits.share).abs() < 145.0, "{count}");
            let times = times.iter_mut().zip(&hidden);
            times.for_each(|(times, hidden)| *times += u32::from(*hidden));
        }
        assert!(times.iter().all(|times| *times <= 1));
    }
}

#[test]
fn nobody_hides_everything() {
    let splits = Splits { count: 1, share: 1.0 };
    assert_eq!(splits.hidden(0, 3, [4, 5, 6].into_iter()), [false; 3]);
}
