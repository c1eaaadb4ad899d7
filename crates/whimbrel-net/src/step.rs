//! The engine's step as the protocol writes it.

use crate::proto;
use whimbrel_engine::client::StepId;

impl From<proto::StepId> for StepId {
    fn from(step: proto::StepId) -> Self {
        Self { stage: step.stage, step: step.step }
    }
}

impl From<StepId> for proto::StepId {
    fn from(step: StepId) -> Self {
        Self { stage: step.stage, step: step.step }
    }
}
