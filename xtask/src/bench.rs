//! `cargo xtask bench`: the benchmarks of all manifests.

use serde_json::Value;

use crate::{Outcome, cargo};

/// Runs all benchmarks, or the one named by the first argument. The other arguments are filters for
/// the benchmark programs.
pub fn run(arguments: &[String]) -> Outcome {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let all = targets(&cargo::metadata()?);
    if all.is_empty() {
        return Err("no crate of the workspace has a benchmark".to_owned());
    }
    let (chosen, filters) = choose(&all, &arguments);
    for (package, bench) in &chosen {
        let bench = ["bench", "--locked", "--package", package, "--bench", bench];
        cargo::run(&[&bench[..], &["--"], filters].concat())?;
    }
    eprintln!("xtask bench: {} benchmark program(s) done", chosen.len());
    Ok(())
}

/// All benchmark targets as (package, benchmark), sorted.
fn targets(metadata: &Value) -> Vec<(String, String)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let members = list(&metadata["workspace_members"]);
    let mut found = Vec::new();
    for package in list(&metadata["packages"]) {
        if !members.contains(&package["id"]) {
            continue;
        }
        for target in list(&package["targets"]) {
            if list(&target["kind"]).contains(&Value::from("bench")) {
                found.push((text(&package["name"]), text(&target["name"])));
            }
        }
    }
    found.sort();
    found
}

fn choose<'a, 'b>(
    all: &'a [(String, String)],
    arguments: &'b [&'b str],
) -> (Vec<&'a (String, String)>, &'b [&'b str]) {
    if let Some((name, rest)) = arguments.split_first() {
        let named: Vec<_> = all.iter().filter(|(_, bench)| bench == name).collect();
        if !named.is_empty() {
            return (named, rest);
        }
    }
    (all.iter().collect(), arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn benchmarks_come_from_the_workspace_alone() {
        let metadata = json!({
            "workspace_members": ["a"],
            "packages": [
                { "id": "a", "name": "a", "targets": [
                    { "name": "a", "kind": ["lib"] },
                    { "name": "speed", "kind": ["bench"] },
                ] },
                { "id": "b", "name": "b", "targets": [{ "name": "other", "kind": ["bench"] }] },
            ],
        });
        assert_eq!(targets(&metadata), [("a".to_owned(), "speed".to_owned())]);
    }

    #[test]
    fn a_first_argument_is_a_benchmark_or_else_a_filter() {
        let all = [("a".to_owned(), "speed".to_owned()), ("b".to_owned(), "rounds".to_owned())];
        let (chosen, filters) = choose(&all, &["rounds", "noop"]);
        assert_eq!((chosen, filters), (vec![&all[1]], &["noop"][..]));
        let (chosen, filters) = choose(&all, &["noop"]);
        assert_eq!((chosen.len(), filters), (2, &["noop"][..]));
    }
}
