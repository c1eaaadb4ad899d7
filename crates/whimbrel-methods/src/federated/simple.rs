//! The smallest method: a shared vector, a value that each client computes at it, and a step.

use super::{
    Answered, Computed, Context, ExchangeKind, Figures, FirstMemories, Judge, Member, Oracle,
    Publish, Received, Split, Terms, aggregate, mean_loss,
};
use crate::settings::{Budget, Weights, largest_norm};
use std::borrow::Cow;
use std::collections::BTreeMap;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{Downlink, UpRule, Uplink, gradient_alpha};
use whimbrel_core::declare::Measure;
use whimbrel_core::method::{Artifact, Declaration, Metric};
use whimbrel_core::{ClientData, Error, Key, Result, Table, vector};

/// A federated method in four functions, over a vector that all clients share.
///
/// Each round the server sends the vector, the clients compute their values at it, and the server
/// moves by the weighted mean of these values. Sampling, lost uploads, compression with memories or
/// error feedback, and measured traffic come with the simulator (`whimbrel::Simulate`, whose page has an
/// example). A method with client states, further broadcast values or personal models implements
/// `Oracle` and `Judge` of `whimbrel::parts::methods::federated` instead.
pub trait Simple: Send + Sync + 'static {
    /// The first vector, for rows with this number of columns; targets are the last one. It is called several
    /// times and must return equal vectors.
    fn start(&self, columns: usize) -> Vec<f64>;
    /// A client's value at the shared vector; all randomness comes from `key`. A value that is not
    /// finite ends the run with an error.
    fn value(&self, at: &[f64], rows: &Table, key: Key) -> Vec<f64>;
    /// Moves the shared vector by the estimated mean of the clients' values; rounds count from 0.
    fn step(&self, at: &mut [f64], mean: &[f64], round: u32);
    /// A client's loss. Evaluations report the weighted mean over clients as `objective`.
    fn loss(&self, at: &[f64], rows: &Table) -> f64;
}

/// A [`Simple`] method as an [`Oracle`].
pub struct Plain<S> {
    pub method: S,
    /// The number of columns of the rows.
    pub columns: usize,
}

impl Terms {
    /// Terms for vectors of this length over an uplink codec. An unbiased codec gets a memory, a
    /// biased one error feedback. The downlink is exact, and clients are weighted by their rows.
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
            privacy: Default::default(),
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

    fn declare(&self, terms: &Terms) -> Declaration {
        let bytes = 16 * self.method.start(self.columns).len() + 64;
        let disclosures = vec![
            aggregate("summary", "the number of rows", bytes),
            aggregate(
                "up",
                &format!(
                    "each round: averages over the rows at the current model{}",
                    terms.compressed()
                ),
                bytes,
            ),
            aggregate("answer", "at evaluations: its loss", bytes),
        ];
        let measures = vec![Measure::objective("The mean loss")];
        Declaration { disclosures, measures, ..Declaration::default() }
    }

    fn bind(&self, data: &ClientData) -> Result<(Table, u64)> {
        match data {
            ClientData::Table(table) if table.width() == self.columns => {
                Ok((table.clone(), table.rows() as u64))
            }
            _ => Err(Error::data(format!("expected rows of {} numbers", self.columns))),
        }
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

    fn published<'a>(&self, global: &'a Vec<f64>, _: ExchangeKind) -> Cow<'a, [f64]> {
        global.into()
    }

    fn local(
        &self,
        received: &Received<'_, Self>,
        (): &(),
        data: &Table,
        key: Key,
    ) -> Result<Computed<Self>> {
        let value = self.method.value(&received.state, data, key);
        if value.len() != received.state.len() {
            let (found, length) = (value.len(), received.state.len());
            return Err(Error::config(format!(
                "`value` returned {found} numbers for a vector of {length}"
            )));
        }
        Ok(Computed::new((), value))
    }

    fn step(
        &self,
        global: &mut Vec<f64>,
        mean: Vec<f64>,
        context: &Context,
        publish: Publish<'_, f64>,
    ) -> Result<f64> {
        self.method.step(global, &mean, context.k);
        *global = publish(std::mem::take(global))?;
        Ok(vector::norm2_squared(&mean))
    }

    fn magnitude(&self, global: &Vec<f64>, local2: f64) -> f64 {
        1.0 + largest_norm([vector::norm2_squared(global), local2])
    }

    fn artifact(&self, global: &Vec<f64>) -> Result<Artifact> {
        Ok(Artifact::new("simple").with("parameters", &[global.len()], global.clone()))
    }
}

impl<S: Simple> Judge for Plain<S> {
    type Ask = Vec<f64>;
    type Answer = f64;

    fn ask(&self, global: &Vec<f64>, _: &Terms) -> Result<Vec<f64>> {
        Ok(global.clone())
    }

    fn answer(
        &self,
        ask: &Vec<f64>,
        (): &(),
        data: &Split<Table>,
        _: &Terms,
    ) -> Result<Answered<Self>> {
        if ask.len() != self.method.start(self.columns).len() {
            return Err(Error::peer("a question about a vector of another length"));
        }
        let answer = self.method.loss(ask, &data.train);
        Ok(Answered { answer, memory_limit: None, parts: Vec::new() })
    }

    fn figures(&self, loss: &f64, weight: f64) -> Figures {
        Figures::of_loss(*loss, weight)
    }

    fn conclude(&self, _: &Vec<f64>, sums: &[f64], total: f64, _: &Context) -> Result<Vec<Metric>> {
        Ok(vec![mean_loss(sums, total)])
    }
}
