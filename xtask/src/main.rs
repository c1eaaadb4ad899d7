//! The project's chores: `cargo xtask test | test-python | ci | fmt | tidy | bench | figures | help`.
//!
//! Everything is built with the `ci` profile into the one target folder, so that a test, a lint
//! and a command-line test share what they compile.

mod bench;
mod cargo;
mod ci;
mod figures;
mod python;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
The project's chores

usage: cargo xtask COMMAND

  test [FILTER...]          every test of the workspace and of the Python package, or those of the workspace
                            whose name contains FILTER
  test-python               the tests of the Python package alone
  ci                        format, tidy, clippy, documentation, then test; stops at the first failure
  fmt                       formats all sources; `cargo fmt` does not find the families
  tidy                      layering, licences, duplicate versions, banned words, links, file rules
  bench [NAME] [FILTER...]  every benchmark, or the one called NAME; FILTER goes to the benchmark
  figures [--write]         the figures of docs/ that name their jobs against the results of these; or writes them
  help                      this text
";

/// What a chore ends in: an error is one message for the person at the terminal.
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
        Err(Failure::Chore(message)) => {
            eprintln!("xtask {command}: {message}");
            ExitCode::FAILURE
        }
    }
}

enum Failure {
    Usage(String),
    Chore(String),
}

fn dispatch(command: &str, rest: &[String]) -> Result<(), Failure> {
    if let ("ci" | "fmt" | "tidy" | "test-python" | "help", Some(extra)) = (command, rest.first()) {
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
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => return Err(Failure::Usage(format!("no command `{other}`"))),
    };
    outcome.map_err(Failure::Chore)
}
