//! Learners: models with one flat vector of `f32` parameters, hand-derived gradients, and per-sample losses
//! and weights.
//!
//! Deliberately absent: federation, threads, files, and automatic differentiation.

mod affine;
mod architecture;
mod elementary;
mod lanes;
mod layer;
mod layers;
mod learner;
mod models;
mod network;
mod optimiser;
mod outer;
mod product;
mod representation;
mod rows;
mod training;

pub use affine::{
    Affine, CrossEntropy, Linear, LogOdds, Logistic, Loss, Softmax, SquaredError, exp_all,
};
pub use architecture::{Architecture, KINDS};
pub use learner::{Batch, Learner, Role, Room, Tensor};
pub use network::Network;
pub use optimiser::{Optimiser, OptimiserState, Proximal};
pub use representation::LinearRepresentation;
pub use training::{Length, Minibatches, Solver, Trainee, Training};
