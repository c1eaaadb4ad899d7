//! The program as a user meets it: files in, files and messages out.

mod chaos;
mod diverge;
mod examples;
mod faults;
mod federation;
mod gradient;
mod impute;
mod inputs;
mod messages;
mod outputs;
mod peers;
mod predict;
mod report;
mod same_bits;
mod seeds;
mod settings;
mod support;
