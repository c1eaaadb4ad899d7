//! The program as a user meets it: files in, files and messages out.

mod bayes;
mod chaos;
mod choice;
mod degenerate;
mod diverge;
mod drive;
mod ends;
mod examples;
mod faults;
mod federation;
mod gradient;
mod held_out;
mod impute;
mod inputs;
mod manners;
mod messages;
mod mixed;
mod neighbours;
mod operations;
mod outputs;
mod overwrites;
mod parts;
mod peers;
mod personal;
#[path = "../../../whimbrel-net/tests/all/pki.rs"]
mod pki;
mod places;
mod predict;
mod read;
mod report;
mod same_bits;
mod seeds;
mod settings;
mod support;
