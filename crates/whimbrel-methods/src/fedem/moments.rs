//! The pooled moments of a mixture by one exchange of exact sums: no client sends its own moments
//! where a grid, under masks or not, hides the terms of sums.

use crate::federated::{
    Answered, Computed, Context, ExchangeKind, Judge, Member, Oracle, Publish, Received, Split,
    Terms, aggregate,
};
use crate::mixture::Mixture;
use std::borrow::Cow;
use whimbrel_core::method::{Artifact, Declaration, Metric};
use whimbrel_core::{ClientData, ClientId, Error, Key, Result, vector};

/// The method; its result is the tensor `moments`.
pub struct Moments<M> {
    pub model: M,
}

impl<M: Mixture> Oracle for Moments<M> {
    type Number = f64;
    type Data = M::Data;
    type Own = ();
    /// The pooled moments; empty before the exchange.
    type Global = Vec<f64>;
    type Summary = ();
    type Record = ();
    type Note = ();
    type Private = ();

    fn has_first_exchange(&self) -> bool {
        true
    }

    fn declare(&self, _: &Terms) -> Declaration {
        let bytes = 8 * self.model.moments_len() + 64;
        let disclosures = vec![
            aggregate("summary", "the number of its rows", 64),
            aggregate("up", "once: the mean moments of its rows", bytes),
        ];
        Declaration { disclosures, ..Declaration::default() }
    }

    fn bind(&self, data: &ClientData) -> Result<(M::Data, u64)> {
        let data = self.model.bind(data)?;
        let rows = self.model.rows(&data) as u64;
        Ok((data, rows))
    }

    fn enroll(&self, _: &M::Data, _: Key) -> Result<((), ())> {
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
        Ok(Vec::new())
    }

    fn published<'a>(&self, global: &'a Vec<f64>, _: ExchangeKind) -> Cow<'a, [f64]> {
        global.into()
    }

    fn local(
        &self,
        _: &Received<'_, Self>,
        (): &(),
        data: &M::Data,
        _: Key,
    ) -> Result<Computed<Self>> {
        Ok(Computed::new((), self.model.moments(data)?))
    }

    fn opened(&self, global: &mut Vec<f64>, mean: Vec<f64>, _: &Context) -> Result<()> {
        *global = mean;
        Ok(())
    }

    fn step(&self, _: &mut Vec<f64>, _: Vec<f64>, _: &Context, _: Publish<'_, f64>) -> Result<f64> {
        Err(Error::internal("moments take one exchange"))
    }

    fn magnitude(&self, global: &Vec<f64>, _: f64) -> f64 {
        1.0 + vector::norm2_squared(global).sqrt()
    }

    fn artifact(&self, global: &Vec<f64>) -> Result<Artifact> {
        if global.len() != self.model.moments_len() {
            return Err(Error::peer("too few clients sent their moments: the round was void"));
        }
        Ok(Artifact::new(MOMENTS).with(MOMENTS, &[global.len()], global.clone()))
    }
}

/// The kind and the tensor of the result.
pub const MOMENTS: &str = "moments";

/// There is nothing to evaluate.
impl<M: Mixture> Judge for Moments<M> {
    type Ask = ();
    type Answer = ();

    fn ask(&self, _: &Vec<f64>, _: &Terms) -> Result<()> {
        Ok(())
    }

    fn answer(&self, (): &(), (): &(), _: &Split<M::Data>, _: &Terms) -> Result<Answered<Self>> {
        Ok(Answered { answer: (), memory_limit: None, parts: Vec::new() })
    }

    fn own(&self, _: ClientId, (): &()) -> Result<Vec<Metric>> {
        Ok(Vec::new())
    }

    fn conclude(
        &self,
        _: &Vec<f64>,
        _: &mut dyn Iterator<Item = (f64, ())>,
        _: &Context,
    ) -> Result<Vec<Metric>> {
        Ok(Vec::new())
    }
}
