//! The program as a user meets it: files in, files and messages out.

mod diverge;
mod faults;
mod inputs;
mod messages;
mod outputs;
mod peers;
mod predict;
mod report;
mod same_bits;
mod settings;
mod support;
