//! The project's tasks: `cargo xtask test | test-python | ci | fmt | tidy | bench | figures | book | help`.
//!
//! Everything is built with the `ci` profile into one target folder, so that tests and lints share
//! compiled crates.

mod bench;
mod book;
mod cargo;
mod ci;
mod figures;
mod python;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
The project's tasks

usage: cargo xtask COMMAND

  test [FILTER...]          all tests of the workspace and the Python package, or those of the workspace
                            whose name contains FILTER; about 25 minutes from scratch on two busy cores
  test --quick [FILTER...]  unit tests and laws only: without the command line, the network, Python,
                            examples and documentation
  test-python               the tests of the Python package
  ci                        format, tidy, clippy, documentation and test; stops at the first failure
  fmt                       format all sources; `cargo fmt` misses the families
  tidy                      layers, licences, duplicate versions, banned words, links, voice, file rules
  bench [NAME] [FILTER...]  all benchmarks, or the one called NAME; FILTER goes to the benchmark
  figures [--write]         compare the figures of docs/ with the results of their jobs; or correct them
  book                      docs/ as a book in target/book; installs mdBook into target/mdbook if needed
  help                      this text
";

/// The result of a task; an error is a message for the terminal.
type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    match dispatch(command, rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            eprintln!("xtask: {message}\n\n{HELP}");
            ExitCode::from(2)
        }
        Err(Failure::Task(message)) => {
            eprintln!("xtask {command}: {message}");
            ExitCode::FAILURE
        }
    }
}

enum Failure {
    Usage(String),
    Task(String),
}

fn dispatch(command: &str, rest: &[String]) -> Result<(), Failure> {
    if let ("ci" | "fmt" | "tidy" | "test-python" | "book" | "help", Some(extra)) =
        (command, rest.first())
    {
        return Err(Failure::Usage(format!("`{command}` takes no argument, found `{extra}`")));
    }
    let outcome = match command {
        "test" => test::run(rest),
        "test-python" => python::test(),
        "ci" => ci::run(),
        "fmt" => ci::format(&[]),
        "tidy" => tidy::run(),
        "bench" => bench::run(rest),
        "figures" => figures::run(rest),
        "book" => book::build(),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => return Err(Failure::Usage(format!("no command `{other}`"))),
    };
    outcome.map_err(Failure::Task)
}
