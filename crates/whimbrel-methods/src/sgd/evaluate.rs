//! Evaluations of a gradient method.

use super::{Global, Gradient, Reference};
use crate::federated::{
    Answered, Context, Figures, Judge, Score, Scores, Split, Terms, aggregate, optional,
};
use crate::measures;
use whimbrel_core::declare::{Better, Measure, Role};
use whimbrel_core::method::{Disclosure, Metric};
use whimbrel_core::{Error, Result, vector, wire};
use whimbrel_models::Rows;
use whimbrel_models::convex::Examples;

/// The largest relative excess loss of a converged run.
const EXCESS_MAX: f64 = 1e-6;
/// The share of `F(0) − F★` up to which a minimum counts as zero.
const ZERO: f64 = 1e-6;
/// The advice for a run that has not converged.
const REMEDY: &str =
    "run more rounds, write standardize = true in [data], or use a smaller step or larger batches";

/// The question: the loss at this model, and the distance of the memory from its limit.
#[derive(Clone, Debug)]
pub struct Ask {
    w: Vec<f64>,
    /// `w_*`, if it is known (in simulations) and there are memories.
    w_star: Option<Vec<f64>>,
}

/// A client's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its mean loss.
    loss: f64,
    /// `∇F_i(w)` if the loss is not convex and has no reference minimum; otherwise empty.
    gradient: Vec<f64>,
}

wire!(Ask { w, w_star });
wire!(Answer { loss, gradient });

impl Judge for Gradient {
    type Ask = Ask;
    type Answer = Answer;

    fn ask(&self, global: &Global, terms: &Terms) -> Result<Ask> {
        let w_star = self.reference.as_ref().filter(|_| terms.has_memory());
        Ok(Ask { w: self.delivered(global), w_star: w_star.map(|r| r.w.clone()) })
    }

    fn answer(
        &self,
        ask: &Ask,
        (): &(),
        data: &Split<Examples>,
        terms: &Terms,
    ) -> Result<Answered<Self>> {
        // The minimum is known where all rows are, in simulations.
        if ask.w_star.is_some() && self.reference.is_none() {
            return Err(Error::peer("a question about a minimum that the job does not know"));
        }
        let group = terms.privacy.min_group;
        let mut gradient = vec![0.0; self.answered_len()];
        let loss = if gradient.is_empty() {
            self.loss(&ask.w, &data.train, group)?
        } else {
            let loss = self.problem.gradient(&ask.w, &data.train, Rows::All, &mut gradient)?;
            let support = self.problem.gradient_support(&ask.w, &data.train, Rows::All)?;
            if support.rows < f64::from(group.unwrap_or(0)) {
                gradient.fill(0.0);
            }
            if group.is_some() { self.loss(&ask.w, &data.train, group)? } else { loss }
        };
        // ∇F_i(w_*)
        let memory_limit = match &ask.w_star {
            Some(w_star) => {
                let mut limit = vec![0.0; self.dimension];
                self.problem.gradient(w_star, &data.train, Rows::All, &mut limit)?;
                Some(limit)
            }
            None => None,
        };
        let parts =
            data.scores(|rows| self.score(&ask.w, rows, terms.privacy.group_of_part(rows.rows())))?;
        Ok(Answered { answer: Answer { loss, gradient }, memory_limit, parts })
    }

    fn scores(&self) -> Scores {
        let loss = Score { key: "loss", name: "loss", better: Better::Down, share: false };
        let right = Score { key: "accuracy", name: "accuracy", better: Better::Up, share: true };
        let each = if self.problem.has_classes() { vec![loss, right] } else { vec![loss] };
        Scores { each, addends: 1 + self.answered_len(), ..Scores::default() }
    }

    fn figures(&self, answer: &Answer, weight: f64) -> Figures {
        let mut figures = Figures::of_loss(answer.loss, weight);
        figures.addends.extend(answer.gradient.iter().map(|x| weight * x));
        figures
    }

    fn conclude(
        &self,
        global: &Global,
        sums: &[f64],
        total: f64,
        _: &Context,
    ) -> Result<Vec<Metric>> {
        let (objective, gradients) = (sums[0] / total, &sums[1..]);
        let reference = self.reference.as_ref();
        let distance2 = reference.map(|reference| {
            let mut gap = self.delivered(global);
            vector::axpy(&mut gap, -1.0, &reference.w);
            vector::norm2_squared(&gap)
        });
        let mut metrics = vec![
            Metric::number("objective", objective),
            optional("excess_loss", reference.map(|r| objective - r.f_star)),
            optional("excess_relative", reference.map(|r| r.relative(objective))),
            optional("distance2", distance2),
        ];
        // ||∇F(w)||², bounded by Theorem S11
        if !gradients.is_empty() {
            let norm2 = vector::norm2_squared(gradients) / (total * total);
            metrics.push(Metric::number("gradient_norm2", norm2));
        }
        Ok(metrics)
    }
}

impl Reference {
    /// The excess of a loss, relative to it; where the minimum is zero, to the excess at the start.
    fn relative(&self, loss: f64) -> f64 {
        let whole = self.f_zero - self.f_star;
        let base = if self.f_star <= ZERO * whole { whole } else { loss };
        (loss - self.f_star) / base.max(f64::MIN_POSITIVE)
    }
}

impl Gradient {
    /// The mean loss; a lower bound where fewer than `group` rows would determine it.
    fn loss(&self, w: &[f64], data: &Examples, group: Option<u32>) -> Result<f64> {
        match group {
            Some(group) => self.problem.loss_of_groups(w, data, group),
            None => self.problem.loss(w, data),
        }
    }

    /// The mean loss without its penalty and, with classes, the accuracy.
    fn score(&self, w: &[f64], data: &Examples, group: Option<u32>) -> Result<Vec<f64>> {
        let mut means = vec![self.loss(w, data, group)? - self.problem.penalty().value(w)];
        if self.problem.has_classes() {
            let mut shown = vec![0.0; data.rows()];
            self.problem.predict(w, data, &mut shown)?;
            let is_right = |(p, class): (&f64, &f64)| (*p >= 0.5) == (*class > 0.0);
            let right = shown.iter().zip(data.targets()).filter(|pair| is_right(*pair)).count();
            // Fewer than a group on one side count for the other.
            let right = match group.unwrap_or(0) as usize {
                group if right < group => 0,
                group if data.rows() - right < group => data.rows(),
                _ => right,
            };
            means.push(right as f64 / data.rows() as f64);
        }
        Ok(means)
    }

    /// The length of the gradient in an answer; zero if the loss is convex.
    pub(super) fn answered_len(&self) -> usize {
        if self.problem.gap_at_zero().is_some() { self.dimension } else { 0 }
    }
}

/// The disclosure of an answer with a gradient of this length.
pub(super) fn disclosure(gradient_len: usize) -> Disclosure {
    let (gradient, bytes) =
        if gradient_len > 0 { (", its gradient", 8 * gradient_len + 32) } else { ("", 0) };
    let meaning = format!(
        "at evaluations: the mean loss{gradient}, and distances of the gradient from the messages so far; \
         with rows kept out, mean loss and accuracy there"
    );
    aggregate("answer", &meaning, bytes + 192)
}

/// The figures of an evaluation.
pub(super) fn measures() -> Vec<Measure> {
    let lower = |measure: Measure| measure.log().better(Better::Down);
    vec![
        lower(Measure::new(
            "excess_loss",
            "Excess loss",
            "excess loss",
            "F(w) − F★: objective minus its minimum",
        ))
        .role(Role::Excess)
        .result(3),
        lower(Measure::new(
            "excess_relative",
            "Relative excess loss",
            "relative excess loss",
            "(F(w) − F★) / F(w), or / (F(0) − F★) if F★ is zero",
        ))
        .without_curve()
        .summary()
        .goal(EXCESS_MAX, REMEDY),
        measures::update_relative(REMEDY),
        Measure::objective("The minimised function, over all clients’ rows"),
        lower(Measure::new("distance2", "Distance to the optimum", "distance²", "‖w − w★‖²"))
            .summary(),
        lower(Measure::new(
            "gradient_norm2",
            "Gradient",
            "gradient²",
            "‖∇F(w)‖², if the loss is not convex",
        ))
        .summary(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::{ClientData, FeatureRows, Labelled};
    use whimbrel_models::convex::Problem;

    /// Rows at -50 to 49 of the class of their sign, and a threshold that puts `wrong` of them on the other side.
    #[test]
    fn an_accuracy_rests_on_a_group() {
        let problem = Problem::logistic(0.0, true).unwrap();
        let oracle = Gradient::new(problem, 2);
        let x: Vec<f64> = (-50..50).map(|i| f64::from(i) + 0.5).collect();
        let y = x.iter().map(|x| x.signum()).collect();
        let rows = Labelled::new(vec!["x".into()], FeatureRows::Dense(x), y).unwrap();
        let data = problem.bind(&ClientData::Labelled(rows)).unwrap();
        let accuracy = |wrong: f64, group| oracle.score(&[1.0, -wrong], &data, group).unwrap()[1];
        for (wrong, own, told) in [(1.0, 0.99, 1.0), (4.0, 0.96, 1.0), (5.0, 0.95, 0.95)] {
            assert_eq!([accuracy(wrong, None), accuracy(wrong, Some(5))], [own, told]);
        }
        let flipped = |group| oracle.score(&[-1.0, 2.0], &data, group).unwrap()[1];
        assert_eq!([flipped(None), flipped(Some(5))], [0.02, 0.0]);
    }
}
