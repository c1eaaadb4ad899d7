//! Which models are tried, in which order, and which one is taken: plain arithmetic on validation
//! scores, without any federation.
//!
//! Ridges are shares of `lambda_max`, the smallest at which rank 0 is optimal: real counts are
//! overdispersed by factors from 1 to several hundred, and the ridge they want moves with that
//! factor, as `lambda_max` does.

use whimbrel_core::{Error, Result as Outcome, Wire, wire};
use whimbrel_models::lowrank::{Effects, Settings};

/// The rank at which ridges are compared.
const PATH_RANK: usize = 3;
/// Larger ranks, tried as long as they help.
const WIDER: [usize; 2] = [5, 8];
/// Smaller ranks, tried as long as they do little harm.
const NARROWER: [usize; 2] = [2, 1];
/// Shares of `lambda_max`.
const SHARES: [f64; 6] = [0.5, 0.25, 0.12, 0.06, 0.03, 0.015];
/// Multiples of the usual ridge on main effects, each this many times the one before, tried at rank
/// 0 as long as they help: rows with a handful of small counts want a stronger one.
const EFFECTS_STEP: f64 = 4.0;
const EFFECTS_MAX: usize = 7;
/// They help when the score falls by this share at least.
const EFFECTS_GAIN: f64 = 1e-3;
/// A path ends where the score is this much above its best, or twice in a row above it.
const PATH_WORSE: f64 = 1.05;
/// Smaller ranks are pursued up to this ratio to the best.
const NARROWER_WORSE: f64 = 1.05;
/// By how many standard errors a low rank must beat rank 0.
pub const BEAT: f64 = 2.0;
/// The same on small tables, whose folds are less independent than their errors say.
pub const BEAT_SMALL: f64 = 3.0;
/// Within how many standard errors of the best the simplest is taken.
const WITHIN: f64 = 1.0;
/// Beyond this ratio to the best score rank 0 does not stand, whatever the errors: where a few large
/// counts make up the deviance they are as large as any difference, and excuse everything. Between
/// low ranks and ridges errors alone count: there the weaker ridge is the one that extrapolates.
const FAR: f64 = 1.5;
/// A low rank that does not clearly beat rank 0 has a say beside it where its score is below this
/// share of that of rank 0.
const HOPEFUL: f64 = 0.98;

/// The most candidates a search tries: columns alone, one path at rank 0, one at another, two ridges
/// for each other rank.
pub const CANDIDATES_MAX: usize =
    1 + EFFECTS_MAX + SHARES.len() + 2 * (WIDER.len() + NARROWER.len());

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
}

impl Wire for Candidate {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.effects as u8);
        (self.rank as u32).put(out);
        self.lambda.put(out);
        self.lambda_effects.put(out);
    }
    fn take(from: &mut &[u8]) -> Outcome<Self> {
        let effects = match u8::take(from)? {
            0 => Effects::None,
            1 => Effects::Row,
            2 => Effects::Column,
            3 => Effects::RowColumn,
            other => return Err(Error::peer(format!("{other} stands for no kind of effects"))),
        };
        let (rank, lambda) = (u32::take(from)? as usize, f64::take(from)?);
        Ok(Self { effects, rank, lambda, lambda_effects: f64::take(from)? })
    }
}

/// How a candidate did on cells that its fit had not seen.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    /// The model.
    pub candidate: Candidate,
    /// Validation cells, over all folds.
    pub cells: f64,
    /// The sum of their deviances.
    pub deviance: f64,
    /// The sum of their squares.
    pub squares: f64,
    /// For each earlier trial, the sum of the squared differences of the deviances, cell by cell.
    pub gaps: Vec<f64>,
    /// Rounds that its fits took.
    pub rounds: u32,
}

wire!(Trial { candidate, cells, deviance, squares, gaps, rounds });

impl Trial {
    /// Nothing known yet; so many trials came before.
    pub fn new(candidate: Candidate, before: usize) -> Self {
        let gaps = vec![0.0; before];
        Self { candidate, cells: 0.0, deviance: 0.0, squares: 0.0, gaps, rounds: 0 }
    }

    /// Adds what a client says: cells, the sum of their deviances, of the squares, and the gaps.
    pub fn add(&mut self, sums: &[f64]) {
        let own = [&mut self.cells, &mut self.deviance, &mut self.squares];
        let own = own.into_iter().chain(&mut self.gaps);
        own.zip(sums).for_each(|(own, sum)| *own += sum);
    }

    /// The mean deviance.
    pub fn mean(&self) -> f64 {
        self.deviance / self.cells.max(1.0)
    }

    /// The standard error of the mean deviance.
    pub fn standard_error(&self) -> f64 {
        standard_error(self.cells, self.deviance, self.squares)
    }
}

/// Of a mean, from the count, the sum and the sum of squares.
fn standard_error(n: f64, sum: f64, squares: f64) -> f64 {
    let n = n.max(1.0);
    let mean = sum / n;
    ((squares / n - mean * mean).max(0.0) / n).sqrt()
}

/// What there is to search.
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
    /// The ridge on main effects: the job's, or where the search for one starts.
    pub lambda_effects: f64,
    /// Whether it is searched.
    pub search_effects: bool,
}

impl Search {
    /// The next candidate, given the trials so far; none once the search is over. `lambda_max` is
    /// looked at only after rank 0 was tried.
    pub fn next(&self, trials: &[Trial], lambda_max: f64) -> Option<Candidate> {
        let score = |candidate: Candidate| {
            let known = trials.iter().find(|trial| trial.candidate == candidate);
            known.map(Trial::mean).ok_or(candidate)
        };
        // Scores move when a client gets lost, and the search may then turn elsewhere.
        self.walk(&score, lambda_max).err().filter(|_| trials.len() < CANDIDATES_MAX)
    }

    /// The search from its beginning; it breaks off with the first candidate that has no score.
    fn walk(
        &self,
        score: &dyn Fn(Candidate) -> Result<f64, Candidate>,
        lambda_max: f64,
    ) -> Result<(), Candidate> {
        let lambda_effects = self.walk_effects(score)?;
        let ridges = self.ridges(lambda_max);
        // What the job gives is tried in any case; else only where factors can pay.
        let first = self.rank.unwrap_or(PATH_RANK.min(self.rank_max));
        if first == 0 || (self.rank.is_none() && lambda_max <= 0.0) {
            return Ok(());
        }
        let effects = self.effects;
        let at = |rank, i: usize| Candidate { effects, rank, lambda: ridges[i], lambda_effects };
        // One rank, from strong to weak ridges, until it gets worse.
        let (mut best, mut ridge) = (f64::INFINITY, 0);
        for i in 0..ridges.len() {
            let found = score(at(first, i))?;
            if found < best {
                (best, ridge) = (found, i);
            } else if found > PATH_WORSE * best || i > ridge + 1 {
                break;
            }
        }
        if self.rank.is_some() {
            return Ok(());
        }
        // More factors want as strong a ridge or a stronger one.
        for rank in WIDER.into_iter().filter(|rank| (first + 1..=self.rank_max).contains(rank)) {
            let tried = [ridge.saturating_sub(1), ridge];
            let found = best_of(&tried, |i| score(at(rank, i)))?;
            if found.0 >= best {
                break;
            }
            (best, ridge) = found;
        }
        // Fewer want as weak a ridge or a weaker one.
        for rank in NARROWER.into_iter().filter(|rank| *rank < first) {
            let tried = [ridge, (ridge + 1).min(ridges.len() - 1)];
            let found = best_of(&tried, |i| score(at(rank, i)))?;
            if found.0 > NARROWER_WORSE * best {
                break;
            }
            best = best.min(found.0);
        }
        Ok(())
    }

    /// Candidates of rank 0: the effects of the job, with ever stronger ridges until it gets worse,
    /// and, with both kinds, columns alone, since column means can beat row and column effects. The
    /// best ridge on the effects.
    fn walk_effects(
        &self,
        score: &dyn Fn(Candidate) -> Result<f64, Candidate>,
    ) -> Result<f64, Candidate> {
        let plain =
            |effects, lambda_effects| Candidate { effects, rank: 0, lambda: 0.0, lambda_effects };
        if self.effects == Effects::RowColumn {
            score(plain(Effects::Column, self.lambda_effects))?;
        }
        let tried = if self.search_effects { EFFECTS_MAX } else { 1 };
        let (mut lambda, mut best) = (self.lambda_effects, (f64::INFINITY, self.lambda_effects));
        for _ in 0..tried {
            let found = score(plain(self.effects, lambda))?;
            if found >= (1.0 - EFFECTS_GAIN) * best.0 {
                break;
            }
            best = (found, lambda);
            lambda *= EFFECTS_STEP;
        }
        Ok(best.1)
    }

    fn ridges(&self, lambda_max: f64) -> Vec<f64> {
        match self.lambda {
            Some(lambda) => vec![lambda],
            None if lambda_max <= 0.0 => vec![0.0],
            None => SHARES.iter().map(|share| share * lambda_max).collect(),
        }
    }
}

/// The smaller of two scores (which may be one), and where it was found.
fn best_of(
    tried: &[usize; 2],
    mut score: impl FnMut(usize) -> Result<f64, Candidate>,
) -> Result<(f64, usize), Candidate> {
    let (first, second) = (score(tried[0])?, score(tried[1])?);
    Ok(if second < first { (second, tried[1]) } else { (first, tried[0]) })
}

/// What is taken.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice {
    /// The trial whose model is fitted.
    pub trial: usize,
    /// The trial of rank 0 that it is mixed with, where it is not clear which of the two is better.
    pub beside: Option<usize>,
}

/// How a choice is made.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rule {
    /// Whether the job gives the rank: then rank 0 is no choice.
    pub rank_given: bool,
    /// By how many standard errors a low rank must beat rank 0.
    pub beat: f64,
    /// Whether two models may be mixed.
    pub mixes: bool,
}

/// Which trial to take; none where nothing was tried.
///
/// The best model of rank 0 stands unless the best low-rank one beats it by `beat` standard errors of
/// the difference, paired cell by cell, or scores less than two thirds of it. Then it is the simplest
/// (smallest rank, then strongest ridge) within one such error of the best. Where
/// the best low-rank one scores better, but not so clearly, both have a say. At rank 0 the ridge on
/// the effects is the weakest within one error of the best: the usual one, unless another is clearly
/// better.
pub fn choose(trials: &[Trial], rule: Rule) -> Option<Choice> {
    let Rule { rank_given, beat, mixes } = rule;
    let better = |a: &usize, b: &usize| trials[*a].mean().total_cmp(&trials[*b].mean());
    let all = 0..trials.len();
    let plain = all.clone().filter(|i| trials[*i].candidate.rank == 0).min_by(better);
    let low_rank = all.clone().filter(|i| trials[*i].candidate.rank > 0);
    let within = |errors: f64, i: usize, best: usize| {
        let (loss, error) = difference(trials, i, best);
        loss <= errors * error
    };
    let close = |i: usize, best: usize| within(WITHIN, i, best);
    let usual = |best: usize| {
        let same = |i: &usize| {
            let (own, other) = (trials[*i].candidate, trials[best].candidate);
            (own.rank, own.effects) == (other.rank, other.effects) && close(*i, best)
        };
        let ridge = |i: &usize| trials[*i].candidate.lambda_effects;
        all.clone().filter(same).min_by(|a, b| ridge(a).total_cmp(&ridge(b)))
    };
    let alone = |trial| Choice { trial, beside: None };
    let Some(best) = low_rank.clone().min_by(better) else {
        return plain.and_then(usual).map(alone);
    };
    let far = |i: usize| trials[i].mean() > FAR * trials[best].mean();
    let stands = |i: &usize| !rank_given && within(beat, *i, best) && !far(*i);
    if let Some(plain) = plain.filter(stands) {
        let hopeful = trials[best].mean() < HOPEFUL * trials[plain].mean();
        let usual = usual(plain);
        return match mixes && hopeful {
            true => Some(Choice { trial: best, beside: usual }),
            false => usual.map(alone),
        };
    }
    let simplest = low_rank.filter(|i| close(*i, best)).min_by(|a, b| {
        let (a, b) = (&trials[*a].candidate, &trials[*b].candidate);
        a.rank.cmp(&b.rank).then(b.lambda.total_cmp(&a.lambda))
    });
    simplest.map(alone)
}

/// The mean deviance of `a` less that of `b`, and its standard error.
fn difference(trials: &[Trial], a: usize, b: usize) -> (f64, f64) {
    let (ta, tb) = (&trials[a], &trials[b]);
    let sum = ta.deviance - tb.deviance;
    let squares = match a.cmp(&b) {
        std::cmp::Ordering::Equal => 0.0,
        std::cmp::Ordering::Greater => ta.gaps[b],
        std::cmp::Ordering::Less => tb.gaps[a],
    };
    (sum / ta.cells.max(1.0), standard_error(ta.cells, sum, squares))
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

    /// The one trial that is taken where nothing is mixed.
    fn taken(trials: &[Trial], rank_given: bool, beat: f64) -> usize {
        let choice = choose(trials, Rule { rank_given, beat, mixes: false }).unwrap();
        assert_eq!(choice.beside, None);
        choice.trial
    }

    /// Runs a search whose scores are known. So many of a hundred cells carry the differences, each
    /// an equal part: a hundred leave no error, one leaves an error as large as the difference.
    fn tried(search: &Search, carriers: f64, score: impl Fn(Candidate) -> f64) -> Vec<Trial> {
        tried_at(search, 1.0, carriers, score)
    }

    fn tried_at(
        search: &Search,
        lambda_max: f64,
        carriers: f64,
        score: impl Fn(Candidate) -> f64,
    ) -> Vec<Trial> {
        let mut trials: Vec<Trial> = Vec::new();
        while let Some(candidate) = search.next(&trials, lambda_max) {
            let mut trial = Trial::new(candidate, trials.len());
            (trial.cells, trial.deviance) = (100.0, 100.0 * score(candidate));
            let gap = |other: &Trial| (trial.deviance - other.deviance).powi(2) / carriers;
            trial.gaps = trials.iter().map(gap).collect();
            trials.push(trial);
            assert!(trials.len() <= CANDIDATES_MAX);
        }
        trials
    }

    #[test]
    fn a_search_follows_the_scores() {
        // Best at rank 5 and a share of 0.12.
        let score = |c: Candidate| match c.rank {
            0 => 3.0,
            r => 1.0 + 0.1 * (r as f64 - 5.0).abs() + (c.lambda - 0.12).abs(),
        };
        let trials = tried(&search(), 100.0, score);
        let order: Vec<(usize, f64)> =
            trials.iter().map(|t| (t.candidate.rank, t.candidate.lambda)).collect();
        assert_eq!(order[..5], [(0, 0.0), (0, 0.0), (3, 0.5), (3, 0.25), (3, 0.12)]);
        assert!(order.contains(&(5, 0.12)) && order.contains(&(8, 0.25)), "{order:?}");
        assert!(order.contains(&(2, 0.06)) && !order.contains(&(1, 0.12)), "{order:?}");
        assert_eq!(trials[0].candidate.effects, Effects::Column);
        let chosen = trials[taken(&trials, false, BEAT)].candidate;
        assert_eq!((chosen.rank, chosen.lambda), (5, 0.12));
    }

    #[test]
    fn what_the_job_gives_is_not_searched() {
        let given = Search { rank: Some(4), ..search() };
        assert!(
            tried(&given, 100.0, |c| 1.0 + c.lambda)
                .iter()
                .all(|t| [0, 4].contains(&t.candidate.rank))
        );
        let given = Search { lambda: Some(0.7), ..search() };
        let trials = tried(&given, 100.0, |c| 9.0 - c.rank as f64);
        let ranks: Vec<usize> = trials.iter().map(|t| t.candidate.rank).collect();
        assert_eq!(ranks, [0, 0, 3, 5, 8, 2]);
        assert!(trials[2..].iter().all(|t| t.candidate.lambda == 0.7));
        let small = Search { rank_max: 2, ..search() };
        assert!(tried(&small, 100.0, |_| 1.0).iter().all(|t| t.candidate.rank <= 2));
    }

    #[test]
    fn a_given_rank_is_tried_even_where_factors_do_not_pay() {
        let score = |_| 1.0;
        let given = Search { rank: Some(4), ..search() };
        for (lambda_max, lambda) in [(0.0, 0.0), (1.0, 0.5)] {
            let trials = tried_at(&given, lambda_max, 100.0, score);
            let chosen = trials[taken(&trials, true, BEAT)].candidate;
            assert_eq!((chosen.rank, chosen.lambda), (4, lambda));
        }
        let free = tried_at(&search(), 0.0, 100.0, score);
        assert!(free.iter().all(|trial| trial.candidate.rank == 0));
    }

    #[test]
    fn a_stronger_ridge_on_effects_is_tried_while_it_helps_and_taken_where_that_is_clear() {
        let search = Search { search_effects: true, rank: Some(0), ..search() };
        let score = |c: Candidate| match c.effects {
            Effects::Column => 5.0,
            _ => 2.0 + (c.lambda_effects - 0.016).abs(),
        };
        for (carriers, chosen) in [(100.0, 0.016), (0.5, 1e-3)] {
            let trials = tried(&search, carriers, score);
            let ridges: Vec<f64> = trials.iter().map(|t| t.candidate.lambda_effects).collect();
            assert_eq!(ridges, [1e-3, 1e-3, 0.004, 0.016, 0.064]);
            let found = trials[taken(&trials, false, BEAT)].candidate;
            assert_eq!((found.effects, found.lambda_effects), (Effects::RowColumn, chosen));
        }
        // What hardly changes the score is not pursued.
        let flat = tried(&search, 100.0, |c| 2.0 - 1e-4 * c.lambda_effects);
        assert_eq!(flat.len(), 3);
    }

    #[test]
    fn rank_zero_stands_unless_it_is_clearly_beaten() {
        let score = |c: Candidate| if c.rank == 0 { 1.4 } else { 1.0 };
        let unclear = tried(&search(), 1.0, score);
        assert_eq!(unclear[taken(&unclear, false, BEAT)].candidate.rank, 0);
        assert!(unclear[taken(&unclear, true, BEAT)].candidate.rank > 0);
        let clear = tried(&search(), 100.0, score);
        let chosen = clear[taken(&clear, false, BEAT)].candidate;
        assert_eq!((chosen.rank, chosen.lambda), (1, 0.5), "the simplest of equals");
        assert_eq!(choose(&[], Rule { rank_given: false, beat: BEAT, mixes: true }), None);
    }

    #[test]
    fn no_error_excuses_a_rank_zero_that_is_far_behind() {
        // Scores of 24 sites with flocks of up to 234 birds in one month of twelve: four cells in a
        // hundred carry the differences, and rank 1 is ahead by no more than two standard errors.
        let flocks = |c: Candidate| match (c.rank, c.effects) {
            (0, Effects::Column) => 6.33,
            (0, _) => 8.94,
            (rank, _) => 1.8 + 0.7 * rank as f64 + 0.1 * c.lambda,
        };
        let trials = tried(&search(), 4.0, flocks);
        let best = taken(&trials, true, BEAT);
        let (gain, error) = difference(&trials, 0, best);
        assert!(gain > 0.0 && gain < BEAT_SMALL * error);
        assert_eq!(trials[taken(&trials, false, BEAT_SMALL)].candidate.rank, 1);

        // Between low ranks errors do.
        let low = |c: Candidate| [3.0, 1.6, 1.6, 1.0][c.rank.min(3)];
        let trials = tried(&search(), 0.5, low);
        assert_eq!(trials[taken(&trials, false, BEAT)].candidate.rank, 2);
    }

    #[test]
    fn a_low_rank_that_is_better_without_being_clearly_so_has_a_say_beside_rank_zero() {
        let mixed = |score: f64, rank_given, carriers| {
            let score = move |c: Candidate| match (c.rank, c.effects) {
                (0, Effects::Column) => 2.0,
                (0, _) => 1.0,
                (rank, _) => score + 1e-3 * (rank as f64 - 2.0).abs(),
            };
            let trials = tried(&search(), carriers, score);
            let choice = choose(&trials, Rule { rank_given, beat: BEAT, mixes: true }).unwrap();
            let of = |i: usize| trials[i].candidate;
            (of(choice.trial).rank, choice.beside.map(|i| (of(i).rank, of(i).effects)))
        };
        let plain = Some((0, Effects::RowColumn));
        assert_eq!(mixed(0.9, false, 1.0), (2, plain), "the best, not the simplest");
        assert_eq!(mixed(0.99, false, 1.0), (0, None), "too little to hope for");
        assert_eq!(mixed(1.1, false, 1.0), (0, None));
        assert_eq!(mixed(0.9, false, 100.0), (2, None), "clearly better");
        assert_eq!(mixed(0.9, true, 1.0), (2, None), "rank 0 is no choice");
    }

    #[test]
    fn rows_count_where_they_are_better_than_columns_alone() {
        let score =
            |rows: f64| move |c: Candidate| if c.effects == Effects::Column { 2.0 } else { rows };
        for (rows, effects) in [(1.9, Effects::RowColumn), (2.1, Effects::Column)] {
            let trials = tried_at(&search(), 0.0, 1.0, score(rows));
            let chosen = trials[taken(&trials, false, BEAT)].candidate;
            assert_eq!((chosen.rank, chosen.effects), (0, effects));
        }
    }
}
