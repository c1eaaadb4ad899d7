//! Scores on held-out rows, and on the training rows beside them.

use crate::settings::{ROWS_MAX, check_figures, check_rows};
use whimbrel_core::declare::{Better, Measure, OverClients, Unit};
use whimbrel_core::method::Metric;
use whimbrel_core::{ClientData, ClientId, Error, HeldOut, Result, sum::ExactSum, wire};

/// A client's rows, split by purpose.
pub struct Split<D> {
    /// Rows that the model is fitted to.
    pub train: D,
    /// Rows that settings are chosen by.
    pub validation: Option<D>,
    /// Rows that the result is judged by.
    pub test: Option<D>,
    /// Whether the job holds rows out; a client with few rows may hold none out all the same.
    pub asked: bool,
    /// The number of rows of each part, in the order above.
    pub rows: [u64; 3],
}

/// The names of the parts, in the order of an answer.
const PARTS: [(&str, &str); 3] =
    [("train", "Training"), ("validation", "Validation"), ("test", "Test")];
const TRAIN: usize = 0;
const TEST: usize = 2;

/// A mean over rows by which a model is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Score {
    /// The key, after the name of the part.
    pub key: &'static str,
    pub name: &'static str,
    pub better: Better,
    /// Whether it is a share of rows; the bottom decile over clients is then reported, too.
    pub share: bool,
}

/// The scores of a method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scores {
    pub each: Vec<Score>,
    /// Whether clients are weighted by their training rows, instead of the rows of each part.
    pub by_training_rows: bool,
    /// Whether clients that took no part in training can be scored.
    pub unseen: bool,
    /// The number of addends of an answer beside its scores.
    pub addends: usize,
}

impl Default for Scores {
    fn default() -> Self {
        Self { each: Vec::new(), by_training_rows: false, unseen: true, addends: 1 }
    }
}

/// The scores of one part of a client's rows.
#[derive(Clone, Debug, PartialEq)]
pub struct PartScores {
    /// The number of rows; zero if the client has no such part.
    pub rows: u64,
    /// One mean for each declared score.
    pub means: Vec<f64>,
}

wire!(PartScores { rows, means });

impl<D> Split<D> {
    /// Lays out each part of a client's rows by `bind`, which returns them with their number.
    pub(crate) fn bind(
        data: &ClientData,
        bind: impl Fn(&ClientData) -> Result<(D, u64)>,
    ) -> Result<Self> {
        let part = |rows: Option<Box<ClientData>>| match rows {
            Some(rows) => bind(&rows).map(|(data, count)| (Some(data), count)),
            None => Ok((None, 0)),
        };
        let HeldOut { validation, test, asked } = data.held_out();
        let (train, count) = bind(data)?;
        let ((validation, validation_count), (test, test_count)) = (part(validation)?, part(test)?);
        Ok(Self { train, validation, test, asked, rows: [count, validation_count, test_count] })
    }

    /// The scores of each part; empty if the job holds no rows out. A client with too few rows to
    /// hold any out still scores its training rows, so that means over training rows cover everyone.
    pub fn scores(&self, score: impl Fn(&D) -> Result<Vec<f64>>) -> Result<Vec<PartScores>> {
        if !self.asked && self.validation.is_none() && self.test.is_none() {
            return Ok(Vec::new());
        }
        let parts = [Some(&self.train), self.validation.as_ref(), self.test.as_ref()];
        let scored = parts.into_iter().zip(self.rows).map(|(part, rows)| {
            let means = part.map_or(Ok(Vec::new()), &score)?;
            Ok(PartScores { rows, means })
        });
        scored.collect()
    }
}

/// Refuses scores of another form, or that cannot be averaged.
pub(crate) fn check(id: ClientId, rows: u64, scores: usize, parts: &[PartScores]) -> Result<()> {
    let Some(train) = parts.first() else { return Ok(()) };
    check_rows(id, train.rows, rows)?;
    let sound = |part: &PartScores| match part.rows {
        0 => part.means.is_empty(),
        rows => rows <= ROWS_MAX && part.means.len() == scores,
    };
    if parts.len() != PARTS.len() || !parts.iter().all(sound) {
        return Err(Error::peer(format!("client {id} answered with other scores")));
    }
    parts.iter().try_for_each(|part| check_figures(id, &part.means))
}

/// The sums of all clients' scores.
pub(crate) struct Pooled {
    scores: Scores,
    sums: ExactSum,
    /// The test scores of each client with test rows.
    test: Vec<Vec<f64>>,
}

impl Pooled {
    pub fn new(scores: Scores) -> Self {
        let sums = ExactSum::new(scores.parts_len());
        Self { scores, sums, test: Vec::new() }
    }

    /// Adds a client with its number of training rows.
    pub fn add(&mut self, training_rows: u64, parts: &[PartScores]) -> Result<()> {
        self.sums.add(&self.scores.addends_of(training_rows, parts)?, 1.0)?;
        self.test.extend(test_scores(parts));
        Ok(())
    }

    /// Means over all rows of each part that is not empty, and the bottom decile over clients.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.scores.metrics(&self.sums.value());
        metrics.extend(self.scores.deciles(&self.test));
        metrics
    }

    /// Means over clients that are only evaluated: their test rows, and the rows that they adapt to.
    pub fn metrics_of_unseen(&self) -> Vec<Metric> {
        let (scores, sums) = (&self.scores, self.sums.value());
        let test = scores.means(&sums, TEST).map(|(s, mean)| Metric::number(unseen_key(s), mean));
        let train = scores.means(&sums, TRAIN);
        let train = train.map(|(s, mean)| Metric::number(unseen_train_key(s), mean));
        test.chain(train).collect()
    }
}

impl Scores {
    /// The number of addends of a client's scores: for each part its weight, then its weighted means.
    pub(crate) fn parts_len(&self) -> usize {
        PARTS.len() * (1 + self.each.len())
    }

    /// The addends of a client's scores. Without training rows the client is weighted by the rows of
    /// each part.
    pub(crate) fn addends_of(&self, training_rows: u64, parts: &[PartScores]) -> Result<Vec<f64>> {
        let mut addends = vec![0.0; self.parts_len()];
        let places = addends.chunks_exact_mut(1 + self.each.len());
        for (sums, part) in places.zip(parts).filter(|(_, part)| part.rows > 0) {
            let counts = self.by_training_rows && training_rows > 0;
            let weight = if counts { training_rows } else { part.rows } as f64;
            if part.means.len() != self.each.len() {
                return Err(Error::peer("a client answered with other scores"));
            }
            sums[0] = weight;
            sums[1..].iter_mut().zip(&part.means).for_each(|(sum, mean)| *sum = weight * mean);
        }
        Ok(addends)
    }

    /// Means over all rows of each part that is not empty, from the sums of all addends.
    pub(crate) fn metrics(&self, sums: &[f64]) -> Vec<Metric> {
        let mut metrics = Vec::new();
        for (place, (part, _)) in PARTS.iter().enumerate() {
            let means = self.means(sums, place);
            metrics.extend(means.map(|(score, mean)| Metric::number(key(part, score), mean)));
        }
        metrics
    }

    /// The bottom decile of each share over the clients' test scores.
    pub(crate) fn deciles(&self, test: &[Vec<f64>]) -> Vec<Metric> {
        let shares = self.each.iter().enumerate().filter(|(_, score)| score.share);
        let decile = |(place, score): (usize, &Score)| {
            let decile = bottom_decile(test.iter().map(|means| means[place]).collect())?;
            Some(Metric::number(decile_key(score), decile))
        };
        shares.filter_map(decile).collect()
    }

    /// The means over one part; none if it is empty.
    fn means<'a>(
        &'a self,
        sums: &'a [f64],
        place: usize,
    ) -> impl Iterator<Item = (&'a Score, f64)> {
        let sums = &sums[place * (1 + self.each.len())..];
        let (weight, sums) = (sums[0], &sums[1..]);
        let each = self.each.iter().zip(sums).filter(move |_| weight > 0.0);
        each.map(move |(score, sum)| (score, sum / weight))
    }
}

/// A client's scores of its test rows, if it has any.
pub(crate) fn test_scores(parts: &[PartScores]) -> Option<Vec<f64>> {
    parts.get(TEST).filter(|part| part.rows > 0).map(|part| part.means.clone())
}

/// One client's scores.
pub(crate) fn own(scores: &[Score], parts: &[PartScores]) -> Vec<Metric> {
    let each = PARTS.iter().zip(parts).flat_map(|((part, _), found)| {
        let pairs = scores.iter().zip(&found.means);
        pairs.map(|(score, mean)| Metric::number(key(part, score), *mean))
    });
    each.collect()
}

/// The figures of all parts.
pub(crate) fn measures(scores: &Scores) -> Vec<Measure> {
    let mut all = Vec::new();
    let over = if scores.by_training_rows { OverClients::TrainingRows } else { OverClients::Rows };
    // Held-out rows come first.
    for (place, (part, title)) in PARTS.iter().enumerate().rev() {
        for score in &scores.each {
            let name = score.name;
            let caption = format!("{title} rows");
            let measure = Measure::new(
                key(part, score),
                format!("{title} {name}"),
                format!("{part} {name}"),
                caption,
            );
            let measure = measure.clients(over).better(score.better).per_client().summary();
            let measure = if score.share { measure.unit(Unit::Share) } else { measure };
            all.push(if place == TEST { measure.result(4) } else { measure });
            if place == TEST && score.share {
                let decile = Measure::new(
                    decile_key(score),
                    format!("{title} {name}, bottom decile"),
                    format!("{part} {name}, p10"),
                    format!("{title} rows"),
                );
                let decile = decile.clients(OverClients::Percentile(10)).unit(Unit::Share);
                all.push(decile.better(score.better).result(4));
            }
        }
    }
    for score in &scores.each {
        let name = score.name;
        let of_unseen = |key, title: &str, short: &str| {
            let caption = "Clients that took no part in training";
            let measure =
                Measure::new(key, format!("{title} {name}"), format!("{short} {name}"), caption);
            let measure = measure.clients(over).better(score.better).summary();
            if score.share { measure.unit(Unit::Share) } else { measure }
        };
        let test = of_unseen(unseen_key(score), "Unseen clients: test", "unseen");
        all.push(if score.share { test.result(4) } else { test });
        all.push(of_unseen(unseen_train_key(score), "Unseen clients: training", "unseen train"));
    }
    all
}

fn unseen_key(score: &Score) -> String {
    format!("unseen_{}", score.key)
}

fn unseen_train_key(score: &Score) -> String {
    format!("unseen_train_{}", score.key)
}

fn key(part: &str, score: &Score) -> String {
    format!("{part}_{}", score.key)
}

fn decile_key(score: &Score) -> String {
    format!("{}_{}_p10", PARTS[TEST].0, score.key)
}

/// The smallest value that at least a tenth of the values do not exceed.
fn bottom_decile(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().div_ceil(10).saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSS: Score = Score { key: "loss", name: "loss", better: Better::Down, share: false };
    const RIGHT: Score =
        Score { key: "accuracy", name: "accuracy", better: Better::Up, share: true };

    fn part(rows: u64, means: &[f64]) -> PartScores {
        PartScores { rows, means: means.to_vec() }
    }

    #[test]
    fn parts_are_pooled_over_rows_and_the_decile_over_clients() {
        let both = Scores { each: vec![LOSS, RIGHT], ..Scores::default() };
        let mut pooled = Pooled::new(both.clone());
        let none = part(0, &[]);
        pooled.add(10, &[part(10, &[1.0, 0.5]), none.clone(), part(1, &[2.0, 0.0])]).unwrap();
        pooled.add(30, &[part(30, &[3.0, 0.9]), none, part(3, &[4.0, 1.0])]).unwrap();
        pooled.add(5, &[]).unwrap();
        let expected = [
            ("train_loss", 2.5),
            ("train_accuracy", 0.8),
            ("test_loss", 3.5),
            ("test_accuracy", 0.75),
            ("test_accuracy_p10", 0.0),
        ];
        assert_eq!(pooled.metrics(), expected.map(|(key, value)| Metric::number(key, value)));
        let unseen = pooled.metrics_of_unseen();
        assert_eq!(unseen[1], Metric::number("unseen_accuracy", 0.75));
        assert_eq!(unseen[3], Metric::number("unseen_train_accuracy", 0.8));
        let declared = measures(&both);
        assert!(unseen.iter().all(|metric| declared.iter().any(|m| m.key == metric.name)));
        assert!(expected.iter().all(|(key, _)| declared.iter().any(|m| m.key == *key)));
    }

    #[test]
    fn a_client_with_too_few_rows_to_keep_any_out_tells_of_its_training_rows() {
        let rows = [7, 0, 0];
        let split = |asked| Split { train: (), validation: None, test: None, asked, rows };
        let scores = |asked| split(asked).scores(|()| Ok(vec![0.5])).unwrap();
        assert_eq!(scores(true), [part(7, &[0.5]), part(0, &[]), part(0, &[])]);
        assert!(scores(false).is_empty(), "no client keeps rows out");
    }

    #[test]
    fn clients_may_count_by_their_training_rows() {
        let mut pooled =
            Pooled::new(Scores { each: vec![RIGHT], by_training_rows: true, ..Scores::default() });
        pooled.add(10, &[part(10, &[1.0]), part(0, &[]), part(100, &[0.5])]).unwrap();
        pooled.add(30, &[part(30, &[1.0]), part(0, &[]), part(100, &[0.9])]).unwrap();
        assert_eq!(pooled.metrics()[1], Metric::number("test_accuracy", 0.8));
        pooled.add(0, &[part(0, &[]), part(0, &[]), part(10, &[0.3])]).unwrap();
        assert_eq!(pooled.metrics()[1], Metric::number("test_accuracy", 35.0 / 50.0));
    }

    #[test]
    fn scores_of_another_form_are_refused() {
        let id = ClientId(3);
        let train = part(10, &[1.0]);
        assert!(check(id, 10, 1, &[]).is_ok());
        assert!(check(id, 10, 1, &[train.clone(), part(0, &[]), part(2, &[0.5])]).is_ok());
        for parts in [
            vec![train.clone()],
            vec![part(9, &[1.0]), part(0, &[]), part(2, &[0.5])],
            vec![train.clone(), part(0, &[1.0]), part(2, &[0.5])],
            vec![train.clone(), part(0, &[]), part(2, &[0.5, 1.0])],
            vec![train.clone(), part(0, &[]), part(2, &[f64::NAN])],
            vec![train, part(0, &[]), part(u64::MAX, &[0.5])],
        ] {
            assert!(check(id, 10, 1, &parts).is_err(), "{parts:?}");
        }
    }

    #[test]
    fn the_decile_is_one_of_the_values() {
        assert_eq!(bottom_decile(vec![]), None);
        assert_eq!(bottom_decile(vec![3.0]), Some(3.0));
        assert_eq!(bottom_decile((1..=20).rev().map(f64::from).collect()), Some(2.0));
        assert_eq!(bottom_decile((1..=21).map(f64::from).collect()), Some(3.0));
    }
}
