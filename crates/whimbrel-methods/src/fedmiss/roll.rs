//! Sums that everyone must have a part in: asked for again until nobody is missing.

use whimbrel_core::{ClientId, Error, Result, wire};

/// So many exchanges are repeated because somebody was missing.
const REPEATS_MAX: u32 = 1000;
/// Sums above this are no sums of deviances.
const SUM_MAX: f64 = 1e200;

/// What the clients of one exchange sent, by id.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    length: u32,
    answers: Vec<Answer>,
}

/// One client's sums.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    id: u32,
    sums: Vec<f64>,
}

/// Who has been heard, and the sums of theirs.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Roll {
    heard: Vec<u32>,
    sums: Vec<f64>,
    repeats: u32,
}

wire!(Answers { length, answers });
wire!(Answer { id, sums });
wire!(Roll { heard, sums, repeats });

impl Answers {
    /// None yet; each will be so many sums, none of them negative.
    pub fn new(length: usize) -> Self {
        Self { length: length as u32, answers: Vec::new() }
    }

    /// Adds one.
    pub fn absorb(&mut self, id: ClientId, sums: Vec<f64>) -> Result<()> {
        let sound = sums.iter().all(|sum| (0.0..=SUM_MAX).contains(sum));
        if sums.len() != self.length as usize || !sound {
            return Err(Error::peer(format!("client {id} sent sums that no cells have")));
        }
        match self.answers.binary_search_by_key(&id.0, |answer| answer.id) {
            Ok(_) => Err(Error::peer(format!("client {id} was heard twice in one exchange"))),
            Err(at) => {
                self.answers.insert(at, Answer { id: id.0, sums });
                Ok(())
            }
        }
    }

    /// Adds those of others.
    pub fn merge(&mut self, other: Self) {
        self.answers.extend(other.answers);
        self.answers.sort_by_key(|answer| answer.id);
    }
}

impl Roll {
    /// Takes an exchange's answers; the sums over all clients once each of them was heard, after
    /// which the roll is empty again.
    pub fn take(&mut self, answers: &Answers, clients: usize) -> Result<Option<Vec<f64>>> {
        self.sums.resize(answers.length as usize, 0.0);
        for answer in &answers.answers {
            if let Err(at) = self.heard.binary_search(&answer.id) {
                self.heard.insert(at, answer.id);
                self.sums.iter_mut().zip(&answer.sums).for_each(|(sum, one)| *sum += one);
            }
        }
        if self.heard.len() >= clients && clients > 0 {
            return Ok(Some(std::mem::take(self).sums));
        }
        self.repeats += 1;
        if self.repeats > REPEATS_MAX {
            return Err(Error::peer(format!(
                "{} of {clients} clients answered in {REPEATS_MAX} exchanges that need them all",
                self.heard.len()
            )));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_is_counted_once_whoever_was_missing_when() {
        let exchange = |ids: &[u32]| {
            let mut answers = Answers::new(2);
            for id in ids {
                answers.absorb(ClientId(*id), vec![f64::from(*id), 1.0]).unwrap();
            }
            answers
        };
        let mut roll = Roll::default();
        assert_eq!(roll.take(&exchange(&[]), 3).unwrap(), None);
        assert_eq!(roll.take(&exchange(&[2, 0]), 3).unwrap(), None);
        assert_eq!(roll.take(&exchange(&[1, 2]), 3).unwrap(), Some(vec![3.0, 3.0]));
        assert_eq!(roll, Roll::default());
    }

    #[test]
    fn unsound_answers_are_refused() {
        let mut answers = Answers::new(1);
        assert!(answers.absorb(ClientId(0), vec![1.0, 2.0]).is_err());
        assert!(answers.absorb(ClientId(0), vec![f64::NAN]).is_err());
        assert!(answers.absorb(ClientId(0), vec![-1.0]).is_err());
        answers.absorb(ClientId(0), vec![1.0]).unwrap();
        assert!(answers.absorb(ClientId(0), vec![1.0]).is_err());
    }
}
