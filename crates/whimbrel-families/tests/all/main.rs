//! Job files: accepted and refused ones, plans and runs.

mod cells;
mod channels;
mod completed;
mod decentralised;
mod documents;
mod errors;
mod forged;
mod gradient;
mod grid;
mod jobs;
mod masks;
mod network;
mod network_cells;
mod offer;
mod personal;
mod plans;
mod prepare;
mod privacy;
mod property;
mod samples;
mod stages;
mod variance;

use whimbrel_core::ClientData;
use whimbrel_engine::{Limits, Observer, Outcome, run};
use whimbrel_families::Job;
use whimbrel_families::plan::Plan;
use whimbrel_families::registry::registry;

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

/// The words of `kind` in `[method]`, as an error lists them.
fn method_words() -> String {
    let families = registry().families().iter().rev();
    let mut words: Vec<&str> = Vec::new();
    for kind in families.flat_map(|family| family.methods) {
        if !words.contains(&kind.word.name) {
            words.push(kind.word.name);
        }
    }
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    let (last, others) = words.split_last().expect("methods");
    format!("{} or {last}", others.join(", "))
}

/// The methods that take a key, as an error lists them.
fn methods_with(key: &str) -> String {
    let families = registry().families().iter().rev();
    let mut names: Vec<&str> = Vec::new();
    for kind in families.flat_map(|family| family.methods) {
        let takes = kind.keys.iter().any(|known| known.name == key);
        if takes && !names.contains(&kind.algorithm) {
            names.push(kind.algorithm);
        }
    }
    names.join(", ")
}

/// Checks the message and the place (`line:column`) of a refusal.
fn says(shown: &str, place: &str, message: &str) {
    let place = if place.is_empty() { String::new() } else { format!(":{place}") };
    let expected = format!("error: {message}\n  --> job.toml{place}\n");
    assert!(shown.starts_with(&expected), "{expected}---\n{shown}");
}

/// Checks that a message has these words.
fn has(message: &str, words: &str) {
    assert!(message.contains(words), "{words}\n---\n{message}");
}

/// Runs a plan without files.
fn run_clients(
    plan: &Plan,
    clients: Vec<(String, ClientData)>,
    seed: u64,
    observer: &mut dyn Observer,
) -> whimbrel_core::Result<Outcome> {
    run(plan, clients, seed, &Limits::default(), observer)
}

/// The errors of a refused job.
fn refusal(text: &str) -> String {
    match Job::parse(text, "job.toml") {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(errors) => errors.to_string(),
    }
}
