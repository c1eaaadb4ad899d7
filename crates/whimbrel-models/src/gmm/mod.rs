//! Gaussian mixtures.
