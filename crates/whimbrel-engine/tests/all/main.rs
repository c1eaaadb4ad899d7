//! The engine at work on a method small enough to check exactly: the round protocol, seeded faults,
//! runs that stop and resume, and files that are damaged or cannot be written.

mod agreement;
mod clients;
mod duties;
mod evaluations;
mod faults;
mod keeper;
mod machine;
mod stages;
mod storage;
mod toy;
