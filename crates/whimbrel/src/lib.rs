//! Whimbrel: federated learning that says as little as possible over the wire.
