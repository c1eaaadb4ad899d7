//! Stages of a few exchanges of sums: column statistics, principal components, moments of a mixture.

use super::{Answered, OPENINGS_MAX, Pooled, opening};
use crate::federated::aggregate;
use whimbrel_core::method::{Artifact, Declaration, Next, Status};
use whimbrel_core::{ClientData, Error, Key, Result, wire};

/// A result that is a function of sums over all rows.
pub trait Totals: Send + Sync + 'static {
    /// A client's rows.
    type Data: Send + Sync + 'static;

    /// Checks and lays out one client's rows.
    fn read(&self, data: &ClientData) -> Result<Self::Data>;
    fn rows(&self, data: &Self::Data) -> u64;
    /// The sums in words.
    fn meaning(&self) -> String;
    /// The number of sums in each exchange.
    fn lengths(&self) -> Vec<usize>;
    /// The most sums in an exchange, whatever earlier stages deliver.
    fn length_max(&self) -> usize {
        self.lengths().into_iter().max().unwrap_or(0)
    }
    /// A client's sums, given the totals of the exchanges before.
    fn sums(&self, before: &[Vec<f64>], data: &Self::Data) -> Result<Vec<f64>>;
    /// The result, from the totals of all exchanges.
    fn settle(&self, totals: &[Vec<f64>]) -> Result<Artifact>;
}

/// The stage of such a result.
pub struct Stage<T>(pub T);

/// The server's state.
#[derive(Clone, Debug, Default)]
pub struct TotalsState {
    totals: Vec<Vec<f64>>,
    /// Exchanges without answers.
    missed: u32,
}

wire!(TotalsState { totals, missed });

impl<T: Totals> Pooled for Stage<T> {
    type Data = T::Data;
    type State = TotalsState;
    /// The totals so far.
    type Ask = Vec<Vec<f64>>;

    fn declare(&self) -> Declaration {
        let lengths = self.0.lengths();
        let most = self.0.length_max();
        let mut sums = opening("sums", 0);
        sums.most = sums.most.map(|most| most + lengths.len() as u32);
        let disclosures = vec![
            aggregate("summary", "the number of rows", 32),
            aggregate("up", &self.0.meaning(), 8 * most + 10),
        ];
        Declaration { exchanges: vec![sums], disclosures, ..Declaration::default() }
    }

    fn read(&self, data: &ClientData) -> Result<T::Data> {
        self.0.read(data)
    }

    fn rows(&self, data: &T::Data) -> u64 {
        self.0.rows(data)
    }

    fn start(&self, _: Key) -> Result<TotalsState> {
        Ok(TotalsState::default())
    }

    fn status(&self, found: &TotalsState) -> Status {
        let over = found.totals.len() >= self.0.lengths().len();
        Status::new(if over { Next::Converged } else { Next::Uncounted }, 1.0)
    }

    fn ask(&self, found: &TotalsState) -> Result<Vec<Vec<f64>>> {
        Ok(found.totals.clone())
    }

    fn length(&self, before: &Vec<Vec<f64>>) -> usize {
        self.0.lengths().get(before.len()).copied().unwrap_or(0)
    }

    fn sums(&self, before: &Vec<Vec<f64>>, data: &T::Data) -> Result<Vec<f64>> {
        let lengths = self.0.lengths();
        let fits = before.iter().zip(&lengths).all(|(totals, length)| totals.len() == *length);
        if before.len() >= lengths.len() || !fits {
            return Err(Error::peer("the server asks for other sums than the job's"));
        }
        self.0.sums(before, data)
    }

    fn step(&self, found: &mut TotalsState, answered: Option<Answered<'_>>) -> Result<()> {
        match answered {
            Some(answered) => found.totals.push(answered.sums.to_vec()),
            None => found.missed += 1,
        }
        if found.missed >= OPENINGS_MAX {
            return Err(Error::peer("too few clients sent their sums"));
        }
        Ok(())
    }

    fn artifact(&self, found: &TotalsState) -> Result<Artifact> {
        if found.totals.len() < self.0.lengths().len() {
            return Err(Error::peer("too few clients sent their sums"));
        }
        self.0.settle(&found.totals)
    }
}
