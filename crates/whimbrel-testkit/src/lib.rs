//! The batteries that every codec, model, method and runner must pass.

pub mod codec;
pub mod method;
