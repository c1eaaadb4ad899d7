//! A trained learner on new rows, and a client that took no part in training.

use super::PersonalFit;
use crate::failure::Result;
use crate::family::{AdaptOptions, Adapted, ModelUse, Predicted, refuse};
use std::path::Path;

pub(super) fn predict(_: &PersonalFit, _: &ModelUse<'_>, _: &Path) -> Result<Predicted> {
    refuse("not written", "")
}

pub(super) fn adapt(_: &PersonalFit, _: &ModelUse<'_>, _: &AdaptOptions<'_>) -> Result<Adapted> {
    refuse("not written", "")
}
