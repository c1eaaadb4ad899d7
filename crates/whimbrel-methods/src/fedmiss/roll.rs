//! Sums that everyone should have a part in: asked for again until nobody is missing, or until
//! those who are missing no longer answer.

use whimbrel_core::{ClientId, Error, Result, wire};

/// After so many exchanges in a row that brought nobody new, the sums are those of whoever was
/// heard. A client one in five of whose answers gets lost is missed once in three thousand times.
const QUIET_MAX: u32 = 5;
/// So many exchanges are repeated while nobody at all is heard.
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
pub struct Answer {
    /// Whose.
    pub id: u32,
    /// Empty where the client has nothing to say.
    pub sums: Vec<f64>,
}

/// Who has been heard, by id.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Roll {
    heard: Vec<Answer>,
    /// Exchanges in a row that brought nobody new.
    quiet: u32,
}

wire!(Answers { length, answers });
wire!(Answer { id, sums });
wire!(Roll { heard, quiet });

impl Answers {
    /// None yet; each will be so many sums, none of them negative, or no sums at all.
    pub fn new(length: usize) -> Self {
        Self { length: length as u32, answers: Vec::new() }
    }

    /// Adds one.
    pub fn absorb(&mut self, id: ClientId, sums: Vec<f64>) -> Result<()> {
        let sound = sums.iter().all(|sum| (0.0..=SUM_MAX).contains(sum));
        let whole = sums.is_empty() || sums.len() == self.length as usize;
        if !whole || !sound {
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
    /// Takes an exchange's answers. Gives those of all exchanges once each of the wanted clients
    /// was heard, or once nobody new answers any more; the roll then is empty again.
    pub fn take(&mut self, answers: Answers, wanted: &[u32]) -> Result<Option<Vec<Answer>>> {
        let before = self.heard.len();
        for answer in answers.answers {
            if let Err(at) = self.place(answer.id) {
                self.heard.insert(at, answer);
            }
        }
        self.quiet = if self.heard.len() > before { 0 } else { self.quiet + 1 };
        let complete = wanted.iter().all(|id| self.place(*id).is_ok());
        if !self.heard.is_empty() && (complete || self.quiet >= QUIET_MAX) {
            return Ok(Some(std::mem::take(self).heard));
        }
        if self.quiet > REPEATS_MAX {
            return Err(Error::peer(format!(
                "none of {} clients answered in {REPEATS_MAX} exchanges",
                wanted.len()
            )));
        }
        Ok(None)
    }

    fn place(&self, id: u32) -> std::result::Result<usize, usize> {
        self.heard.binary_search_by_key(&id, |answer| answer.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(ids: &[u32]) -> Answers {
        let mut answers = Answers::new(2);
        for id in ids {
            answers.absorb(ClientId(*id), vec![f64::from(*id), 1.0]).unwrap();
        }
        answers
    }

    fn ids(heard: Option<Vec<Answer>>) -> Option<Vec<u32>> {
        heard.map(|heard| heard.iter().map(|answer| answer.id).collect())
    }

    #[test]
    fn everyone_is_counted_once_whoever_was_missing_when() {
        let mut roll = Roll::default();
        for missing in [&[][..], &[2, 0]] {
            assert_eq!(roll.take(exchange(missing), &[0, 1, 2]).unwrap(), None);
        }
        assert_eq!(ids(roll.take(exchange(&[1, 2]), &[0, 1, 2]).unwrap()), Some(vec![0, 1, 2]));
        assert_eq!(roll, Roll::default());
    }

    #[test]
    fn who_no_longer_answers_is_not_waited_for() {
        let mut roll = Roll::default();
        for heard in [&[][..], &[2], &[2], &[0, 2], &[0], &[2], &[], &[0, 2]] {
            assert_eq!(roll.take(exchange(heard), &[0, 1, 2]).unwrap(), None);
        }
        assert_eq!(ids(roll.take(exchange(&[0, 2]), &[0, 1, 2]).unwrap()), Some(vec![0, 2]));
        assert_eq!(roll, Roll::default());
    }

    #[test]
    fn nobody_at_all_is_an_error_in_the_end() {
        let mut roll = Roll::default();
        let ends = (0..=REPEATS_MAX).find_map(|_| roll.take(exchange(&[]), &[0]).err());
        assert!(ends.unwrap().to_string().contains("none of 1 clients"));
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
