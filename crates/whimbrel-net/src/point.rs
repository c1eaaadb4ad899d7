//! Where a client stands: the step that both ends commit together.

use crate::proto;
use whimbrel_core::wire;

/// A stage and a step of it: step 0 is the stage's enrolment, step `n + 1` its exchange `n`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Point {
    /// The stage, from zero.
    pub stage: u32,
    /// The step, from zero.
    pub step: u32,
}

wire!(Point { stage, step });

impl Point {
    /// A stage's enrolment.
    pub fn enrolment(stage: u32) -> Self {
        Self { stage, step: 0 }
    }

    /// An exchange of a stage.
    pub fn exchange(stage: u32, number: u32) -> Self {
        Self { stage, step: number.saturating_add(1) }
    }

    /// The exchange, unless it is the enrolment.
    pub fn number(self) -> Option<u32> {
        self.step.checked_sub(1)
    }
}

impl From<proto::Point> for Point {
    fn from(p: proto::Point) -> Self {
        Self { stage: p.stage, step: p.step }
    }
}

impl From<Point> for proto::Point {
    fn from(p: Point) -> Self {
        Self { stage: p.stage, step: p.step }
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.number() {
            None => write!(f, "enrolment of stage {}", self.stage),
            Some(n) => write!(f, "exchange {n} of stage {}", self.stage),
        }
    }
}
