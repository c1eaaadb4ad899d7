//! Privacy beyond consent: the accountant of differential privacy and its noise, and sums that hide
//! their terms.
//!
//! Everything here is arithmetic or a machine without I/O; methods declare what is summed, and the
//! engine carries the messages.

pub mod accountant;
pub mod gaussian;
pub mod masks;
pub mod noise;
pub mod shamir;
