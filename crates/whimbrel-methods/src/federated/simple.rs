//! The smallest method: a vector that everyone knows, a value that a client computes at it, a step.

use super::{Context, ExchangeKind, FirstMemories, Judge, Member, Oracle, Received, Terms};
use crate::settings::{Budget, Weights};
use std::borrow::Cow;
use std::collections::BTreeMap;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{Downlink, UpRule, Uplink, gradient_alpha};
use whimbrel_core::declare::Measure;
use whimbrel_core::method::{Artifact, Disclosure, Exposure, Metric};
use whimbrel_core::sum::ExactSum;
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, Table, vector};

/// A method in four functions. [`Plain`] makes an [`Oracle`] of it; what needs more (a state of the
/// client's own, notes, frames, personal models) implements that.
pub trait Simple: Send + Sync + 'static {
    /// The first vector, for rows of this many columns.
    fn start(&self, columns: usize) -> Vec<f64>;
    /// What a client computes at a vector: its part of a mean over clients.
    fn value(&self, at: &[f64], rows: &Table, key: Key) -> Result<Vec<f64>>;
    /// The server moves, by the estimate of that mean; rounds count from 0.
    fn step(&self, at: &mut [f64], mean: &[f64], round: u32);
    /// A client's loss, by which the run is judged.
    fn loss(&self, at: &[f64], rows: &Table) -> f64;
}

/// A [`Simple`] method as an oracle.
pub struct Plain<S> {
    /// The method.
    pub method: S,
    /// Columns of the rows.
    pub columns: usize,
}

impl Terms {
    /// Vectors of this length over a codec, with what it needs: a memory where it is unbiased, error
    /// feedback where it is not; an exact downlink, clients weighted by their rows.
    pub fn over(codec: Codec, dimension: usize, budget: Budget) -> Result<Self> {
        let rule = match codec.omega(dimension) {
            _ if codec.is_exact() => UpRule::Plain,
            Some(omega) => UpRule::Memory { alpha: gradient_alpha(omega) },
            None => UpRule::Feedback,
        };
        Ok(Self {
            uplinks: vec![Uplink::new(codec, rule, dimension)?],
            own_uplinks: BTreeMap::new(),
            downlink: Downlink::exact(dimension),
            memories: FirstMemories::Zero,
            weights: Weights::Samples,
            budget,
        })
    }
}

impl<S: Simple> Oracle for Plain<S> {
    type Number = f64;
    type Data = Table;
    type Own = ();
    type Global = Vec<f64>;
    type Summary = ();
    type Record = ();
    type Note = ();
    type Private = ();

    fn bind(&self, data: &ClientData) -> Result<Table> {
        match data {
            ClientData::Table(table) if table.width() == self.columns => Ok(table.clone()),
            _ => Err(Error::data(format!("rows of {} numbers are expected", self.columns))),
        }
    }

    fn rows(&self, data: &Table) -> u64 {
        data.rows() as u64
    }

    fn enroll(&self, _: &Table, _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<()>>>,
        _: &Terms,
        _: Key,
    ) -> Result<Vec<f64>> {
        for member in roster {
            member?;
        }
        Ok(self.method.start(self.columns))
    }

    fn published<'a>(&self, global: &'a Vec<f64>) -> Cow<'a, [f64]> {
        global.into()
    }

    fn private(&self, _: &Vec<f64>, (): &(), _: &Context) -> ((), ()) {
        ((), ())
    }

    fn local(
        &self,
        received: Received<'_, Self>,
        (): &(),
        data: &Table,
        key: Key,
    ) -> Result<((), Vec<f64>)> {
        Ok(((), self.method.value(&received.state, data, key)?))
    }

    fn rows_used(&self, rows: u64, (): &(), _: ExchangeKind) -> u64 {
        rows
    }

    fn step(&self, global: &mut Vec<f64>, field: Vec<f64>, context: &Context) -> Result<()> {
        self.method.step(global, &field, context.k);
        Ok(())
    }

    fn after_publish(&self, global: &mut Vec<f64>, published: Vec<f64>, _: &Context) -> Result<()> {
        *global = published;
        Ok(())
    }

    fn magnitude(&self, global: &Vec<f64>, local2: f64) -> f64 {
        1.0 + vector::largest([vector::norm2_squared(global), local2]).sqrt()
    }

    fn artifact(&self, global: &Vec<f64>) -> Result<Artifact> {
        Ok(Artifact::new("simple").with("parameters", &[global.len()], global.clone()))
    }

    fn disclosures(&self, _: &Terms) -> Vec<Disclosure> {
        let bytes_max = 16 * self.method.start(self.columns).len() + 64;
        let of = |message, meaning: &str| Disclosure {
            message,
            meaning: meaning.into(),
            bytes_max,
            exposure: Exposure::Aggregate,
        };
        vec![
            of("summary", "the number of rows"),
            of("up", "its value at the shared vector, compressed"),
            of("answer", "at evaluations: its loss"),
        ]
    }
}

impl<S: Simple> Judge for Plain<S> {
    type Ask = Vec<f64>;
    type Answer = f64;

    fn ask(&self, global: &Vec<f64>, _: &Terms) -> Result<Vec<f64>> {
        Ok(global.clone())
    }

    fn answer(&self, ask: &Vec<f64>, (): &(), data: &Table) -> Result<f64> {
        Ok(self.method.loss(ask, data))
    }

    fn check(&self, id: ClientId, answer: &f64) -> Result<()> {
        match answer.is_finite() {
            true => Ok(()),
            false => Err(Error::peer(format!("client {id} sent a loss that is not finite"))),
        }
    }

    fn loss(&self, answer: &f64) -> Option<f64> {
        Some(*answer)
    }

    fn measures(&self) -> Vec<Measure> {
        vec![Measure::objective("The mean loss")]
    }

    fn conclude(
        &self,
        _: &Vec<f64>,
        answers: &mut dyn Iterator<Item = (f64, f64)>,
        _: &Context,
    ) -> Result<Vec<Metric>> {
        let (mut total, mut sum) = (0.0, ExactSum::new(1));
        for (weight, loss) in answers {
            total += weight;
            sum.add(&[loss], weight)?;
        }
        Ok(vec![Metric::number("objective", sum.value()[0] / total)])
    }
}
