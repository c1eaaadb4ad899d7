//! Which models are tried, in which order, and which one is taken: plain arithmetic on validation
//! scores, without any federation.
//!
//! Three steps: rank 0 with a path of ridges on the effects; rank `PATH_RANK` with a path of
//! ridges on the factors; the other ranks with the best of these ridges. Of all that was tried the
//! one-standard-error rule takes one, see [`Search::choose`].

use whimbrel_core::{Error, Result, Wire};
use whimbrel_models::lowrank::{Effects, Settings};

/// The rank at which ridges are compared: the ridge matters more than the rank, since it alone can
/// leave out what a rank has too much.
const PATH_RANK: usize = 3;
/// The ranks that are tried: each about one and a half times the one before.
const RANKS: [usize; 5] = [1, 2, 3, 5, 8];
/// Ridges on the factors, each half of the one before: from half of `lambda_max`, the smallest at
/// which rank 0 is optimal, to a sixty-fourth, where cross-validation stopped gaining on real counts.
const HALVINGS: i32 = 6;
/// Ridges on the effects, as multiples of the job's: rows with a handful of small counts want a
/// stronger one.
const EFFECTS_MULTIPLES: [f64; 5] = [1.0, 4.0, 16.0, 64.0, 256.0];
/// The most candidates that are tried; the first is columns alone.
pub const CANDIDATES_MAX: usize = 1 + EFFECTS_MULTIPLES.len() + HALVINGS as usize + RANKS.len();

/// A model that is tried.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// Main effects.
    pub effects: Effects,
    /// `r`.
    pub rank: usize,
    /// Ridge on the factors; 0 where there are none.
    pub lambda: f64,
    /// Ridge on the main effects.
    pub lambda_effects: f64,
}

impl Candidate {
    /// The model of these settings with what the candidate says.
    pub fn of(&self, settings: &Settings) -> Settings {
        let Self { effects, rank, lambda, lambda_effects } = *self;
        Settings { effects, rank, lambda, lambda_effects, ..settings.clone() }
    }

    /// As four numbers, in which it travels and is stored.
    pub fn numbers(&self) -> [f64; 4] {
        let Self { effects, rank, lambda, lambda_effects } = *self;
        [f64::from(effects as u8), rank as f64, lambda, lambda_effects]
    }

    /// Back from the numbers.
    pub fn from_numbers(numbers: &[f64]) -> Option<Self> {
        let &[effects, rank, lambda, lambda_effects] = numbers else { return None };
        let all = [Effects::None, Effects::Row, Effects::Column, Effects::RowColumn];
        let effects = all.into_iter().find(|known| f64::from(*known as u8) == effects)?;
        Some(Self { effects, rank: rank as usize, lambda, lambda_effects })
    }

    /// How complex it is, the ridges aside: by rank, then by effects.
    fn complexity(&self) -> (usize, u8) {
        (self.rank, self.effects as u8)
    }
}

impl Wire for Candidate {
    fn put(&self, out: &mut Vec<u8>) {
        self.numbers().iter().for_each(|number| number.put(out));
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        let numbers: Result<Vec<f64>> = (0..4).map(|_| f64::take(from)).collect();
        Self::from_numbers(&numbers?).ok_or_else(|| Error::peer("a candidate of no known effects"))
    }
}

/// How the candidates did on cells that their fits had not seen: sums over the validation cells.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Scores {
    /// How many candidates.
    count: usize,
    /// The number of cells, then the sum of each candidate's deviances, then the sums of the
    /// products of two candidates' deviances, lower triangle.
    sums: Vec<f64>,
}

impl Scores {
    /// How many sums there are for so many candidates.
    pub fn length(count: usize) -> usize {
        1 + count + count * (count + 1) / 2
    }

    /// The sums over some cells of which each candidate's deviances are given.
    pub fn of(deviances: &[Vec<f64>]) -> Vec<f64> {
        let mut sums = vec![deviances.first().map_or(0, Vec::len) as f64];
        sums.extend(deviances.iter().map(|d| d.iter().sum::<f64>()));
        for (i, a) in deviances.iter().enumerate() {
            let product = |b: &Vec<f64>| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            sums.extend(deviances[..=i].iter().map(product));
        }
        sums
    }

    /// Of the candidates that every fold has scored, from the sums of each fold.
    pub fn new(folds: &[Vec<f64>]) -> Self {
        let counts = |sums: &Vec<f64>| (0..).find(|k| Self::length(k + 1) > sums.len());
        let count = folds.iter().filter_map(counts).min().unwrap_or(0);
        let mut sums = vec![0.0; Self::length(count)];
        for fold in folds.iter().filter(|_| count > 0) {
            let all = counts(fold).unwrap_or(0);
            let products = &fold[1 + all..][..count * (count + 1) / 2];
            let part = fold[..=count].iter().chain(products);
            sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        Self { count, sums }
    }

    /// How many candidates.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Validation cells.
    pub fn cells(&self) -> f64 {
        self.sums[0]
    }

    /// A candidate's mean deviance.
    pub fn mean(&self, i: usize) -> f64 {
        self.sums[1 + i] / self.cells().max(1.0)
    }

    /// The standard error of a candidate's mean deviance.
    pub fn standard_error(&self, i: usize) -> f64 {
        self.error(self.mean(i), self.product(i, i))
    }

    /// The standard error of the difference of two means, paired cell by cell.
    pub fn difference_error(&self, i: usize, j: usize) -> f64 {
        let squares = self.product(i, i) + self.product(j, j) - 2.0 * self.product(i, j);
        self.error(self.mean(i) - self.mean(j), squares)
    }

    fn product(&self, i: usize, j: usize) -> f64 {
        let (i, j) = (i.max(j), i.min(j));
        self.sums[1 + self.count + i * (i + 1) / 2 + j]
    }

    fn error(&self, mean: f64, squares: f64) -> f64 {
        let n = self.cells().max(1.0);
        ((squares / n - mean * mean).max(0.0) / n).sqrt()
    }

    /// The candidate with the smallest mean among some.
    pub fn best(&self, among: impl Iterator<Item = usize>) -> Option<usize> {
        among.min_by(|a, b| self.mean(*a).total_cmp(&self.mean(*b)))
    }
}

/// What there is to choose from.
#[derive(Clone, PartialEq, Debug)]
pub struct Search {
    /// Main effects; with both kinds, columns alone are tried too.
    pub effects: Effects,
    /// The largest rank that the table allows.
    pub rank_max: usize,
    /// The job's rank, where it gives one.
    pub rank: Option<usize>,
    /// The job's ridge, where it gives one.
    pub lambda: Option<f64>,
    /// The ridge on main effects: the job's, or where the path of them starts.
    pub lambda_effects: f64,
    /// Whether there is such a path.
    pub search_effects: bool,
}

impl Search {
    /// The candidates of rank 0: the first step.
    pub fn without_factors(&self) -> Vec<Candidate> {
        let plain =
            |effects, lambda_effects| Candidate { effects, rank: 0, lambda: 0.0, lambda_effects };
        let columns = (self.effects == Effects::RowColumn)
            .then(|| plain(Effects::Column, self.lambda_effects));
        let tried = if self.search_effects { EFFECTS_MULTIPLES.len() } else { 1 };
        let ridges = EFFECTS_MULTIPLES[..tried].iter().map(|m| m * self.lambda_effects);
        columns.into_iter().chain(ridges.map(|ridge| plain(self.effects, ridge))).collect()
    }

    /// The candidates of the steps after it, given all that was tried and how it did.
    pub fn next(&self, tried: &[Candidate], scores: &Scores, lambda_max: f64) -> Vec<Candidate> {
        let first = self.rank.unwrap_or(PATH_RANK.min(self.rank_max));
        let all = 0..tried.len();
        let factors = all.clone().filter(|i| tried[*i].rank > 0);
        let Some(best) = scores.best(factors) else {
            // What the job gives is tried in any case; else only where factors can pay.
            if first == 0 || (self.rank.is_none() && lambda_max <= 0.0) {
                return Vec::new();
            }
            let own = all.filter(|i| tried[*i].effects == self.effects);
            let plain = scores.best(own).map_or(self.lambda_effects, |i| tried[i].lambda_effects);
            return self.path(first, lambda_max, plain);
        };
        let is_new = |rank: &usize| *rank <= self.rank_max && *rank != first;
        let others = RANKS.into_iter().filter(is_new);
        let over = self.rank.is_some() || tried.iter().any(|c| c.rank > 0 && c.rank != first);
        if over {
            Vec::new()
        } else {
            others.map(|rank| Candidate { rank, ..tried[best] }).collect()
        }
    }

    /// One rank, from strong to weak ridges.
    fn path(&self, rank: usize, lambda_max: f64, lambda_effects: f64) -> Vec<Candidate> {
        let at = |lambda| Candidate { effects: self.effects, rank, lambda, lambda_effects };
        match self.lambda {
            Some(lambda) => vec![at(lambda)],
            None if lambda_max <= 0.0 => vec![at(0.0)],
            None => (1..=HALVINGS).map(|k| at(lambda_max * 0.5f64.powi(k))).collect(),
        }
    }

    /// Which candidate is taken. For each rank and kind of effects the ridges with the smallest mean
    /// deviance stand; of these it is the simplest whose mean is within one standard error of the
    /// best one's, the error being that of the difference (Hastie, Tibshirani, Friedman, *The
    /// Elements of Statistical Learning*, 7.10). Where the job gives the rank it is one of that rank.
    pub fn choose(&self, tried: &[Candidate], scores: &Scores) -> Option<usize> {
        let allowed = |i: &usize| self.rank.is_none_or(|rank| tried[*i].rank == rank);
        let allowed = (0..tried.len()).filter(allowed);
        let complexity = |i: usize| tried[i].complexity();
        let stands = |i: &usize| {
            let alike = allowed.clone().filter(|j| complexity(*j) == complexity(*i));
            scores.best(alike) == Some(*i)
        };
        let best = scores.best(allowed.clone())?;
        let is_close =
            |i: &usize| scores.mean(*i) - scores.mean(best) <= scores.difference_error(*i, best);
        allowed.clone().filter(stands).filter(is_close).min_by_key(|i| complexity(*i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search() -> Search {
        Search {
            effects: Effects::RowColumn,
            rank_max: 50,
            rank: None,
            lambda: None,
            lambda_effects: 1e-3,
            search_effects: false,
        }
    }

    /// Runs a search whose mean deviances over a hundred cells are known: all of them alike, so that
    /// differences have no error, or with a noise in two cells that makes the error of a difference
    /// 3.6 times the difference.
    fn tried(
        search: &Search,
        lambda_max: f64,
        noise: bool,
        mean: impl Fn(Candidate) -> f64,
    ) -> (Vec<Candidate>, Scores) {
        let deviances = |c: &Candidate| {
            let above = mean(*c) - 1.0;
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
                assert!(all.len() <= CANDIDATES_MAX);
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
        assert_eq!(order[..4], [(0, 0.0), (0, 0.0), (3, 0.5), (3, 0.25)]);
        assert_eq!(order[8..], [1, 2, 5, 8].map(|rank| (rank, 0.125)));
        assert_eq!(all[0].effects, Effects::Column);
        let chosen = all[search().choose(&all, &scores).unwrap()];
        assert_eq!((chosen.rank, chosen.lambda), (5, 0.125));
    }

    #[test]
    fn what_the_job_gives_is_not_searched() {
        let given = Search { rank: Some(4), ..search() };
        for lambda_max in [0.0, 1.0] {
            let (all, scores) = tried(&given, lambda_max, false, |c| 1.5 + c.rank as f64);
            assert!(all.iter().all(|c| [0, 4].contains(&c.rank)));
            let chosen = all[given.choose(&all, &scores).unwrap()];
            assert_eq!(chosen.rank, 4, "it is taken even where factors do not pay");
        }
        let given = Search { lambda: Some(0.7), ..search() };
        let (all, _) = tried(&given, 1.0, false, |c| 9.0 - c.rank as f64);
        let ranks: Vec<usize> = all.iter().map(|c| c.rank).collect();
        assert_eq!(ranks, [0, 0, 3, 1, 2, 5, 8]);
        assert!(all[2..].iter().all(|c| c.lambda == 0.7));
        let small = Search { rank_max: 2, ..search() };
        assert!(tried(&small, 1.0, false, |_| 1.5).0.iter().all(|c| c.rank <= 2));
        let free = tried(&search(), 0.0, false, |_| 1.5).0;
        assert!(free.iter().all(|c| c.rank == 0), "factors cannot pay");
    }

    #[test]
    fn the_simplest_within_one_standard_error_is_taken() {
        let mean = |c: Candidate| match (c.rank, c.effects) {
            (0, Effects::Column) => 2.0,
            (0, _) => 1.4,
            (rank, _) => 1.2 + 0.01 * (rank as f64 - 2.0).abs(),
        };
        for (noise, chosen) in [(false, (2, Effects::RowColumn)), (true, (0, Effects::Column))] {
            let (all, scores) = tried(&search(), 1.0, noise, mean);
            assert_eq!(
                all[search().choose(&all, &scores).unwrap()].complexity(),
                (chosen.0, chosen.1 as u8)
            );
        }
        // Ridges are the best, however noisy.
        let given = Search { rank: Some(3), ..search() };
        let (all, scores) = tried(&given, 1.0, true, |c| 2.0 + (c.lambda - 0.0625).abs());
        assert_eq!(all[given.choose(&all, &scores).unwrap()].lambda, 0.0625);
        assert_eq!(search().choose(&[], &Scores::new(&[])), None);
    }

    #[test]
    fn factors_take_the_best_ridge_on_effects() {
        let search = Search { search_effects: true, ..search() };
        let mean = |c: Candidate| 2.0 + (c.lambda_effects - 0.016).abs() + 0.1 * c.lambda;
        let (all, scores) = tried(&search, 1.0, false, mean);
        assert!(all[6..].iter().all(|c| c.rank > 0 && c.lambda_effects == 0.016));
        assert_eq!(all[search.choose(&all, &scores).unwrap()].lambda_effects, 0.016);
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
}
