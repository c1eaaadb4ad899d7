//! The candidate models, their order, and the choice among them: arithmetic on validation scores,
//! without any federation.
//!
//! Three steps: rank 0 with a path of ridges on the effects; rank `PATH_RANK` with a path of
//! ridges on the factors; the other ranks with the best of these ridges. Where each term of the
//! effects has its own ridge the first step is longer: starting from the best common ridge, the ridge
//! of every term is varied with the others fixed, the best ones are combined, and both are repeated in
//! smaller steps. The one-standard-error rule chooses among all candidates, see [`Search::choose`].

use whimbrel_core::{Error, Result, Wire};
use whimbrel_models::lowrank::Settings;

/// The rank at which ridges are compared: the ridge matters more than the rank, since it can remove
/// superfluous components.
const PATH_RANK: usize = 3;
/// The candidate ranks: each about one and a half times the one before.
const RANKS: [usize; 5] = [1, 2, 3, 5, 8];
/// Ridges on the factors, each half of the one before: from half of `lambda_max`, the smallest at
/// which rank 0 is optimal, to a sixty-fourth, where cross-validation stopped gaining on real counts.
const HALVINGS: i32 = 6;
/// Ridges on the effects, as multiples of the job's: rows with a handful of small counts need a
/// stronger one.
const EFFECTS_MULTIPLES: [f64; 5] = [1.0, 4.0, 16.0, 64.0, 256.0];
/// The same where each term has its own ridge: from no shrinkage to full shrinkage, for counts of any
/// size.
const COMMON_MULTIPLES: [f64; 6] = [1.0, 16.0, 256.0, 4096.0, 65536.0, 1048576.0];
/// Factors of the ridge of a term in both passes: the steps of that path, and in between.
const TERM_MULTIPLES: [&[f64]; 2] = [&[0.0625, 0.25, 4.0, 16.0], &[0.25, 4.0]];

/// The most candidates, by the number of the effects' terms.
pub fn candidates_max(terms: usize) -> usize {
    let own: usize = TERM_MULTIPLES.iter().map(|multiples| terms * multiples.len() + 1).sum();
    COMMON_MULTIPLES.len() + own + HALVINGS as usize + RANKS.len()
}

/// A candidate model.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// `r`.
    pub rank: usize,
    /// Ridge on the factors; 0 where there are none.
    pub lambda: f64,
    /// Ridge on the main effects.
    pub lambda_effects: f64,
    /// Ridges of the single terms, where each has its own; otherwise empty.
    pub term_ridges: Vec<f64>,
}

impl Candidate {
    /// These settings with the candidate's rank and ridges.
    pub fn of(&self, settings: &Settings) -> Settings {
        Settings {
            rank: self.rank,
            lambda: self.lambda,
            lambda_effects: self.lambda_effects,
            term_ridges: self.term_ridges.clone(),
            ..settings.clone()
        }
    }

    /// Its form in messages and artifacts.
    pub fn numbers(&self) -> Vec<f64> {
        let first = [self.rank as f64, self.lambda, self.lambda_effects];
        first.iter().chain(&self.term_ridges).copied().collect()
    }

    pub fn from_numbers(numbers: &[f64]) -> Option<Self> {
        let [rank, lambda, lambda_effects, term_ridges @ ..] = numbers else { return None };
        Some(Self {
            rank: *rank as usize,
            lambda: *lambda,
            lambda_effects: *lambda_effects,
            term_ridges: term_ridges.to_vec(),
        })
    }

    /// The same with the ridge of one term multiplied.
    fn with_ridge(&self, t: usize, multiple: f64) -> Self {
        let mut changed = self.clone();
        changed.term_ridges[t] *= multiple;
        changed
    }
}

impl Wire for Candidate {
    fn put(&self, out: &mut Vec<u8>) {
        self.numbers().put(out);
    }
    fn take(from: &mut &[u8]) -> Result<Self> {
        Self::from_numbers(&Vec::take(from)?).ok_or_else(|| Error::peer("a candidate cut short"))
    }
}

/// Validation scores: sums over cells that the fits had not seen.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Scores {
    count: usize,
    /// The number of cells, the sums of each candidate's deviances, and the sums of products of two
    /// candidates' deviances (lower triangle).
    sums: Vec<f64>,
}

impl Scores {
    /// The number of sums for this number of candidates.
    pub fn length(count: usize) -> usize {
        1 + count + count * (count + 1) / 2
    }

    /// The sums over cells, from each candidate's deviances there.
    pub fn of(deviances: &[Vec<f64>]) -> Vec<f64> {
        let mut sums = vec![deviances.first().map_or(0, Vec::len) as f64];
        sums.extend(deviances.iter().map(|d| d.iter().sum::<f64>()));
        for (i, a) in deviances.iter().enumerate() {
            let product = |b: &Vec<f64>| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            sums.extend(deviances[..=i].iter().map(product));
        }
        sums
    }

    /// The scores of the candidates that every split has scored, from the sums of each split.
    pub fn new(splits: &[Vec<f64>]) -> Self {
        let counts = |sums: &Vec<f64>| (0..).find(|k| Self::length(k + 1) > sums.len());
        let count = splits.iter().filter_map(counts).min().unwrap_or(0);
        let mut sums = vec![0.0; Self::length(count)];
        for split in splits.iter().filter(|_| count > 0) {
            let all = counts(split).unwrap_or(0);
            let products = &split[1 + all..][..count * (count + 1) / 2];
            let part = split[..=count].iter().chain(products);
            sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        Self { count, sums }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of validation cells.
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

    /// The standard error of the difference of two means, paired by cell.
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

/// Settings fixed by the job; the others are searched.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Given {
    pub rank: Option<usize>,
    /// The ridge on the factors.
    pub lambda: Option<f64>,
    /// Whether the ridge on main effects is fixed; otherwise that of the settings starts its path.
    pub lambda_effects: bool,
    /// Whether each term of the effects has its own ridge; ignored where the ridge is fixed.
    pub per_term: bool,
    /// Whether every candidate is fitted and judged with personal effects of the clients.
    pub personal: bool,
    /// Whether estimated counts of candidates are not capped.
    pub uncapped: bool,
}

/// The space of candidates.
#[derive(Clone, PartialEq, Debug)]
pub struct Search {
    /// The number of terms of the main effects.
    pub terms: usize,
    /// The largest rank that the table allows.
    pub rank_max: usize,
    /// The ridge on main effects: the job's, or the start of its path.
    pub lambda_effects: f64,
    pub given: Given,
}

impl Search {
    /// The candidates of rank 0: the first step.
    pub fn without_factors(&self) -> Vec<Candidate> {
        let (own, multiples) = if self.has_own_ridges() {
            (self.terms, &COMMON_MULTIPLES[..])
        } else if self.given.lambda_effects {
            (0, &EFFECTS_MULTIPLES[..1])
        } else {
            (0, &EFFECTS_MULTIPLES[..])
        };
        let plain = |multiple: &f64| {
            let lambda_effects = multiple * self.lambda_effects;
            let term_ridges = vec![lambda_effects; own];
            Candidate { rank: 0, lambda: 0.0, lambda_effects, term_ridges }
        };
        multiples.iter().map(plain).collect()
    }

    fn has_own_ridges(&self) -> bool {
        self.given.per_term && !self.given.lambda_effects
    }

    /// The candidates of the next step, from those tried and their scores.
    pub fn next(&self, tried: &[Candidate], scores: &Scores, lambda_max: f64) -> Vec<Candidate> {
        let own = self.own_ridges(tried, scores);
        if !own.is_empty() {
            return own;
        }
        let first = self.given.rank.unwrap_or(PATH_RANK.min(self.rank_max));
        let factors = (0..tried.len()).filter(|i| tried[*i].rank > 0);
        let Some(best) = scores.best(factors) else {
            // A given rank is tried in any case, others only where factors can improve the fit.
            if first == 0 || (self.given.rank.is_none() && lambda_max <= 0.0) {
                return Vec::new();
            }
            let plain = scores.best(0..tried.len());
            return plain.map_or(Vec::new(), |i| self.path(first, lambda_max, &tried[i]));
        };
        if self.given.rank.is_some() || tried.iter().any(|c| c.rank > 0 && c.rank != first) {
            return Vec::new();
        }
        let is_new = |rank: &usize| *rank <= self.rank_max && *rank != first;
        let others = RANKS.into_iter().filter(is_new);
        others.map(|rank| Candidate { rank, ..tried[best].clone() }).collect()
    }

    /// The next candidates in the search of a ridge for each term; empty once it is over.
    fn own_ridges(&self, tried: &[Candidate], scores: &Scores) -> Vec<Candidate> {
        if !self.has_own_ridges() || tried.iter().any(|c| c.rank > 0) {
            return Vec::new();
        }
        let mut known = COMMON_MULTIPLES.len();
        for multiples in TERM_MULTIPLES {
            let Some(best) = scores.best(0..known) else { return Vec::new() };
            if tried.len() == known {
                let vary = |t| multiples.iter().map(move |m| tried[best].with_ridge(t, *m));
                return (0..self.terms).flat_map(vary).collect();
            }
            let varied = known + self.terms * multiples.len();
            if tried.len() == varied {
                // Each term with its best ridge, found with the others fixed.
                let mut together = tried[best].clone();
                for t in 0..self.terms {
                    let first = known + t * multiples.len();
                    let own = (first..first + multiples.len()).chain([best]);
                    let own = scores.best(own).unwrap_or(best);
                    together.term_ridges[t] = tried[own].term_ridges[t];
                }
                return vec![together];
            }
            known = varied + 1;
        }
        Vec::new()
    }

    /// One rank with the effects of a candidate, from strong to weak ridges on the factors.
    fn path(&self, rank: usize, lambda_max: f64, plain: &Candidate) -> Vec<Candidate> {
        let at = |lambda| Candidate { rank, lambda, ..plain.clone() };
        match self.given.lambda {
            Some(lambda) => vec![at(lambda)],
            None if lambda_max <= 0.0 => vec![at(0.0)],
            None => (1..=HALVINGS).map(|k| at(lambda_max * 0.5f64.powi(k))).collect(),
        }
    }

    /// The chosen candidate: among the best ridges of each rank the simplest whose mean deviance is within
    /// one standard error of the best one's, the error being that of the difference (Hastie, Tibshirani,
    /// Friedman, *The Elements of Statistical Learning*, 7.10). A given rank restricts the choice.
    pub fn choose(&self, tried: &[Candidate], scores: &Scores) -> Option<usize> {
        let allowed = |i: &usize| self.given.rank.is_none_or(|rank| tried[*i].rank == rank);
        let allowed = (0..tried.len()).filter(allowed);
        let stands = |i: &usize| {
            let alike = allowed.clone().filter(|j| tried[*j].rank == tried[*i].rank);
            scores.best(alike) == Some(*i)
        };
        let best = scores.best(allowed.clone())?;
        let is_close =
            |i: &usize| scores.mean(*i) - scores.mean(best) <= scores.difference_error(*i, best);
        allowed.clone().filter(stands).filter(is_close).min_by_key(|i| tried[*i].rank)
    }
}
