//! Evaluations of FedEM.

use super::{Em, Form, FrameKind, Global, Own, Step};
use crate::federated::{
    Answered, Context, ExchangeKind, Figures, Judge, Score, Scores, Split, Terms, optional,
};
use crate::measures;
use whimbrel_core::declare::{Better, Measure, Role, Unit};
use whimbrel_core::method::Metric;
use whimbrel_core::{Error, Result, vector, wire};
use whimbrel_models::{MixtureModel, Rows};

/// A fit counts as worse than one component from this many nats per row on.
const BASELINE_MARGIN: f64 = 1e-3;
/// The warning about fits whose likelihood depends on `reg_covar`.
const NARROW: &str = "covariances with the width of reg_covar alone: {}, as of rows that share a value; declare \
                      columns of few values in [schema], or use fewer components";
/// The key of a client's mean responsibilities.
pub const SHARES: &str = "shares";

/// The question: statistic and likelihood at these parameters.
#[derive(Clone, Debug)]
pub struct Ask {
    s_hat: Vec<f64>,
    theta: Vec<f64>,
}

/// A client's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    statistic: Vec<f64>,
    log_likelihood: f64,
}

wire!(Ask { s_hat, theta });
wire!(Answer { statistic, log_likelihood });

impl<M: MixtureModel> Judge for Em<M> {
    type Ask = Ask;
    type Answer = Answer;

    fn ask(&self, global: &Global, _: &Terms) -> Result<Ask> {
        Ok(Ask { s_hat: global.s_hat.clone(), theta: global.theta.clone() })
    }

    fn answer(
        &self,
        ask: &Ask,
        _: &Own,
        data: &Split<M::Data>,
        terms: &Terms,
    ) -> Result<Answered<Self>> {
        let group = terms.privacy.min_group;
        let theta = self.model.from_vector(&ask.theta)?;
        let mut statistic = vec![0.0; self.model.statistic_len()];
        if ask.s_hat.len() != statistic.len() {
            return Err(Error::peer("a question about a statistic of another length"));
        }
        let window = self.model.window(&data.train, 0, self.model.rows(&data.train))?;
        let train = window.as_ref().unwrap_or(&data.train);
        let found = self.model.expect_supported(&theta, train, Rows::All, group, &mut statistic)?;
        let log_likelihood = found.log_likelihood;
        let parts = data.scores(|rows| {
            let mut unused = vec![0.0; statistic.len()];
            let group = terms.privacy.group_of_part(self.model.rows(rows));
            let found = self.model.expect_supported(&theta, rows, Rows::All, group, &mut unused)?;
            Ok(vec![found.log_likelihood - self.initial.log_scale()])
        })?;
        // h_i(Ŝ_k), or s̄_i(T(Ŝ_k)) in the lean form                           (C.4, App. E.7)
        let mut limit = statistic.clone();
        if self.form != Form::Lean {
            vector::axpy(&mut limit, -1.0, &ask.s_hat);
        }
        let answer = Answer { statistic, log_likelihood };
        Ok(Answered { answer, memory_limit: Some(limit), parts })
    }

    fn scores(&self) -> Scores {
        let (key, name) = ("log_likelihood", "log-likelihood per row");
        let each = vec![Score { key, name, better: Better::Up, share: false }];
        let addends = 1 + self.model.statistic_len();
        Scores { each, addends, ..Scores::default() }
    }

    fn figures(&self, answer: &Answer, weight: f64) -> Figures {
        let loss = Metric::loss(self.initial.log_scale() - answer.log_likelihood);
        let shares = answer.statistic.iter().copied().take(self.model.components()).collect();
        let each = [&answer.log_likelihood].into_iter().chain(&answer.statistic);
        Figures {
            own: vec![loss, Metric::list(SHARES, shares)],
            addends: each.map(|x| weight * x).collect(),
        }
    }

    fn conclude(
        &self,
        global: &Global,
        sums: &[f64],
        total: f64,
        context: &Context,
    ) -> Result<Vec<Metric>> {
        let theta = self.model.from_vector(&global.theta)?;
        let likelihood = sums[0] / total;
        let mut mean = sums[1..].to_vec();
        vector::scale(&mut mean, 1.0 / total);
        let baseline = self.model.baseline(&mean, &global.moments(context.total));
        let baseline_gap = baseline.map(|baseline| -likelihood - baseline);
        // h(Ŝ_k) = Σ (n_i/N) s̄_i(T(Ŝ_k)) − Ŝ_k                                          (6)
        let norm2 = vector::norm2_squared(&mean);
        let mut field = mean;
        vector::axpy(&mut field, -1.0, &global.s_hat);
        let field2 = vector::norm2_squared(&field);
        let started = context.kind == ExchangeKind::Round;
        let objective = self.model.penalty(&theta) + self.initial.log_scale() - likelihood;
        // Components are counted from one, as in predictions.
        let numbers = |components: &[u32]| components.iter().map(|k| f64::from(*k) + 1.0).collect();
        let mut metrics = vec![
            Metric::number("objective", objective),
            optional("field_norm2", started.then_some(field2)),
            optional("field_relative", started.then(|| (field2 / norm2).sqrt())),
            Metric::number("repairs", global.repairs as f64),
            Metric::list("weights", self.model.weights(&theta)),
        ];
        if !global.dead.is_empty() {
            metrics.push(Metric::list("dead", numbers(&global.dead)));
        }
        if started {
            metrics.push(Metric::number("clipped", f64::from(global.clipped)));
            metrics.push(Metric::list("lost", numbers(&global.lost)));
            let narrow = self.model.narrow(&global.s_hat, &global.moments(context.total));
            let narrow = Some(narrow).filter(|narrow| *narrow > global.clipped);
            metrics.extend(narrow.map(|count| Metric::number("narrow", f64::from(count))));
            let gap = baseline_gap.filter(|gap| *gap > BASELINE_MARGIN);
            metrics.extend(gap.map(|gap| Metric::number("baseline_gap", gap)));
        }
        Ok(metrics)
    }
}

impl<M: MixtureModel> Em<M> {
    /// The figures of an evaluation.
    pub(super) fn measures(&self) -> Vec<Measure> {
        let remedy = self.remedy();
        let number =
            |key, title, name, caption| Measure::new(key, title, name, caption).without_curve();
        let list = |key, title, name, caption| number(key, title, name, caption).role(Role::List);
        let worse = "Nats per row by which one component of the same kind is better";
        let shares = "Mean responsibilities of the components for a client's rows";
        vec![
            Measure::objective("Penalised negative log-likelihood per row, which is minimised"),
            measures::field(),
            measures::field_relative(self.to_converge()),
            measures::repairs().warning("{} values had to be clipped to stay in the domain of T"),
            Measure::new("weights", "Mixture weights", "weights", "One line per component")
                .unit(Unit::Share)
                .role(Role::List),
            list("dead", "Lost components", "lost components", "Numbers from one")
                .warning("component {} lost its weight on the way"),
            number("clipped", "Clipped covariances", "clipped", "Of the delivered model")
                .unit(Unit::Count)
                .defect(format!("{{}} of the model's covariances had to be clipped: {remedy}")),
            number("narrow", "Covariances without width", "narrow", "Of the delivered model")
                .unit(Unit::Count)
                .warning(NARROW),
            list("lost", "Components without weight", "lost", "Of the delivered model")
                .defect(format!("component {{}} has no weight: {remedy}")),
            number("baseline_gap", "Worse than one component", "baseline gap", worse).defect(
                format!(
                    "one component is better by {{}} nats per row: run more rounds, or {remedy}"
                ),
            ),
            list(SHARES, "Shares of components", "shares", shares).per_client(),
        ]
    }

    /// The advice for a fit that has not converged.
    fn to_converge(&self) -> String {
        let noise = self.noise();
        format!("{noise}run more rounds (`rounds` in [method])")
    }

    /// The advice for a degenerate fit.
    pub(super) fn remedy(&self) -> String {
        format!("{}{}", self.noise(), self.model.remedy())
    }

    /// The advice against noise.
    fn noise(&self) -> &'static str {
        match &self.step {
            Step::Given(schedule) if schedule.at(0) < 1.0 => "leave step = \"auto\", or ",
            Step::Auto(auto) if auto.omega > 0.0 => match self.frame {
                FrameKind::Raw => "write frame = \"fisher\" in [uplink] or use more levels, or ",
                FrameKind::Fisher => "use more levels, or ",
            },
            Step::Auto(auto) if auto.p < 1.0 => "let more clients take part, or ",
            _ => "",
        }
    }
}
