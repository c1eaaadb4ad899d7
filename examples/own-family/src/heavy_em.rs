//! EM with heavy-ball momentum on the mean field, over any channels:
//! `v <- m v + H`, `S <- S + gamma v`, with `H` the estimate of `sum (n_i/N) s_i(T(S)) - S`.
//!
//! Reduces to: FedEM in the form that sends `S` down, with `m = 0`.

use std::borrow::Cow;
use whimbrel::parts::core::declare::{Better, Measure, Role};
use whimbrel::parts::core::method::{Artifact, Declaration, Disclosure, Exposure, Metric};
use whimbrel::parts::core::sum::ExactSum;
use whimbrel::parts::core::{ClientData, Error, Key, Result, vector, wire};
use whimbrel::parts::methods::federated::{
    Answered, Computed, Context, ExchangeKind, Federated, Figures, Judge, Member, Oracle, Publish,
    Received, Scores, Split, Terms,
};
use whimbrel::parts::methods::step::Schedule;
use whimbrel::parts::models::{LatentModel, Rows};

/// The complete method.
pub type HeavyEm<M> = Federated<Heavy<M>>;

/// Hyper-parameters.
pub struct Heavy<M> {
    /// The model.
    pub model: M,
    /// `m`.
    pub momentum: f64,
    /// `gamma_k`.
    pub schedule: Schedule,
}

/// The global state.
#[derive(Clone, PartialEq, Debug)]
pub struct Global {
    /// `S`.
    s: Vec<f64>,
    /// `v`.
    velocity: Vec<f64>,
    /// Parameters of the first statistic.
    first: Vec<f64>,
    repairs: u64,
}

/// A client's answer: its statistic and likelihood at the delivered parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    statistic: Vec<f64>,
    log_likelihood: f64,
}

wire!(Global { s, velocity, first, repairs });
wire!(Answer { statistic, log_likelihood });

impl<M: LatentModel> Heavy<M> {
    fn theta(&self, s: &[f64]) -> Result<(M::Parameters, u32)> {
        let maximum = self.model.maximize(s, &[])?;
        Ok((maximum.theta, maximum.repairs))
    }
}

impl<M: LatentModel> Oracle for Heavy<M> {
    type Number = f64;
    type Data = M::Data;
    type Own = ();
    type Global = Global;
    /// The mean of the rows.
    type Summary = Vec<f64>;
    type Record = ();
    type Note = ();
    type Private = ();

    /// Clients send their statistics at the pooled mean, exactly, once.
    const FIRST_EXCHANGE: bool = true;

    fn declare(&self, _: &Terms) -> Declaration {
        let q = 8 * self.model.statistic_len() + 32;
        let sums = |message, meaning: &str, bytes_max| Disclosure {
            message,
            meaning: meaning.into(),
            bytes_max,
            exposure: Exposure::Aggregate,
        };
        let up = "its mean weight and weighted mean, compressed; exactly in the first round";
        let answer = "at evaluations: the same, exactly, and its mean log-likelihood";
        let disclosures = vec![
            sums("summary", "the number of rows and their mean", q),
            sums("up", up, 2 * q),
            sums("answer", answer, q + 16),
        ];
        let measures = vec![
            Measure::objective("The mean negative log-likelihood, up to a constant"),
            Measure::new("field_norm2", "Mean field", "‖h‖²", "‖Σ (n_i/N) s_i(T(S)) − S‖²")
                .log()
                .better(Better::Down)
                .role(Role::Excess)
                .result(3),
            Measure::new("repairs", "Repairs", "repairs", "Values that left the domain of T")
                .summary(),
        ];
        Declaration { disclosures, measures, ..Declaration::default() }
    }

    fn bind(&self, data: &ClientData) -> Result<(M::Data, u64)> {
        let data = self.model.bind(data)?;
        let rows = self.model.rows(&data) as u64;
        Ok((data, rows))
    }

    fn enroll(&self, data: &M::Data, _: Key) -> Result<((), Vec<f64>)> {
        Ok(((), self.model.moments(data)?))
    }

    fn start(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<Vec<f64>>>>,
        _: &Terms,
        _: Key,
    ) -> Result<Global> {
        let (mut total, mut sum) = (0.0, ExactSum::new(self.model.coordinates_len()));
        for member in roster {
            let Member { id, weight, summary, .. } = member?;
            if summary.len() != sum.len() {
                return Err(Error::peer(format!("client {id} sent a mean of another length")));
            }
            sum.add(&summary, weight)?;
            total += weight;
        }
        let mut first = sum.value();
        vector::scale(&mut first, 1.0 / total);
        let zeros = vec![0.0; self.model.statistic_len()];
        Ok(Global { s: zeros.clone(), velocity: zeros, first, repairs: 0 })
    }

    fn published<'a>(&self, global: &'a Global, kind: ExchangeKind) -> Cow<'a, [f64]> {
        match kind {
            ExchangeKind::FirstState => (&global.first).into(),
            _ => (&global.s).into(),
        }
    }

    /// `s_i(T(S)) - S`, or the statistic itself in the first exchange.
    fn local(
        &self,
        received: &Received<'_, Self>,
        (): &(),
        data: &M::Data,
        _: Key,
    ) -> Result<Computed<Self>> {
        let mut statistic = vec![0.0; self.model.statistic_len()];
        if received.kind == ExchangeKind::FirstState {
            let theta = self.model.from_vector(&received.state)?;
            self.model.expect(&theta, data, Rows::All, &mut statistic)?;
        } else {
            let (theta, _) = self.theta(&received.state)?;
            self.model.expect(&theta, data, Rows::All, &mut statistic)?;
            vector::axpy(&mut statistic, -1.0, &received.state);
        }
        Ok(Computed::new((), statistic))
    }

    fn opened(&self, global: &mut Global, mean: Vec<f64>, context: &Context) -> Result<()> {
        if context.kind == ExchangeKind::FirstState {
            global.s = mean;
        }
        Ok(())
    }

    fn step(
        &self,
        global: &mut Global,
        field: Vec<f64>,
        context: &Context,
        publish: Publish<'_, f64>,
    ) -> Result<f64> {
        // v <- m v + H, S <- S + gamma v
        vector::scale(&mut global.velocity, self.momentum);
        vector::axpy(&mut global.velocity, 1.0, &field);
        vector::axpy(&mut global.s, self.schedule.at(context.k), &global.velocity);
        global.repairs += u64::from(self.theta(&global.s)?.1);
        global.s = publish(std::mem::take(&mut global.s))?;
        Ok(vector::norm2_squared(&field))
    }

    fn magnitude(&self, global: &Global, local2: f64) -> f64 {
        1.0 + vector::largest([vector::norm2_squared(&global.s), local2]).sqrt()
    }

    fn artifact(&self, global: &Global) -> Result<Artifact> {
        let mu = self.model.to_vector(&self.theta(&global.s)?.0);
        let artifact = Artifact::new("t-location");
        Ok(artifact.with("location", &[mu.len()], mu))
    }
}

impl<M: LatentModel> Judge for Heavy<M> {
    type Ask = Vec<f64>;
    type Answer = Answer;

    fn ask(&self, global: &Global, _: &Terms) -> Result<Vec<f64>> {
        Ok(self.model.to_vector(&self.theta(&global.s)?.0))
    }

    fn answer(
        &self,
        ask: &Vec<f64>,
        (): &(),
        data: &Split<M::Data>,
        _: &Terms,
    ) -> Result<Answered<Self>> {
        let theta = self.model.from_vector(ask)?;
        let mut statistic = vec![0.0; self.model.statistic_len()];
        let log_likelihood = self.model.expect(&theta, &data.train, Rows::All, &mut statistic)?;
        let answer = Answer { statistic, log_likelihood };
        Ok(Answered { answer, memory_limit: None, parts: Vec::new() })
    }

    fn scores(&self) -> Scores {
        Scores { addends: 1 + self.model.statistic_len(), ..Scores::default() }
    }

    fn figures(&self, answer: &Answer, weight: f64) -> Figures {
        let each = [&answer.log_likelihood].into_iter().chain(&answer.statistic);
        Figures {
            own: vec![Metric::loss(-answer.log_likelihood)],
            addends: each.map(|x| weight * x).collect(),
        }
    }

    fn conclude(
        &self,
        global: &Global,
        sums: &[f64],
        total: f64,
        _: &Context,
    ) -> Result<Vec<Metric>> {
        let mut field = sums[1..].to_vec();
        vector::scale(&mut field, 1.0 / total);
        vector::axpy(&mut field, -1.0, &global.s);
        Ok(vec![
            Metric::number("objective", -sums[0] / total),
            Metric::number("field_norm2", vector::norm2_squared(&field)),
            Metric::number("repairs", global.repairs as f64),
        ])
    }
}
