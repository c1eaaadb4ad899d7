//! Job files as a user writes them: what parses, what is refused and in which words.

mod cells;
mod channels;
mod completed;
mod decentralised;
mod documents;
mod errors;
mod gradient;
mod jobs;
mod network;
mod network_cells;
mod offer;
mod personal;
mod plans;
mod prepare;
mod property;
mod samples;
mod stages;
mod variance;

use whimbrel_families::Job;

/// A job that parses, as a start for others.
const PLAIN: &str = r#"name = "plain"
[data]
source = "csv"
path = "data.csv"
client = "client"
[model]
kind = "gmm"
components = 3
[method]
kind = "fedem"
rounds = 200
"#;

fn parse(text: &str) -> Job {
    Job::parse(text, "job.toml").unwrap_or_else(|errors| panic!("{errors}\n---\n{text}"))
}

/// What the user sees; panics if the job is accepted.
fn refusal(text: &str) -> String {
    match Job::parse(text, "job.toml") {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(errors) => errors.to_string(),
    }
}
