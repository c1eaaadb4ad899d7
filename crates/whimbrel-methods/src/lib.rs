//! Federated methods, one file per family.
