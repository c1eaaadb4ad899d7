//! Layering: a crate depends only on crates earlier in one list.

use serde_json::Value;

use super::Finding;

const RULE: &str = "layers";

/// The crates from the bottom up. The test kit uses only core and engine, and is used only in tests.
const ORDER: [&str; 16] = [
    "whimbrel-core",
    "whimbrel-privacy",
    "whimbrel-codec",
    "whimbrel-nn",
    "whimbrel-models",
    "whimbrel-methods",
    "whimbrel-data",
    "whimbrel-engine",
    "whimbrel-testkit",
    "whimbrel-job",
    "whimbrel-families",
    "whimbrel-runs",
    "whimbrel-report",
    "whimbrel-net",
    "whimbrel",
    "whimbrel-py",
];

/// Dependencies that the order allows but that are forbidden.
const APART: [(&str, &str, &str); 5] = [
    ("whimbrel-report", "whimbrel-methods", "a report reads a run's files, not a method's insides"),
    ("whimbrel-net", "whimbrel-methods", "a transport carries bytes and knows no method"),
    ("whimbrel-engine", "whimbrel-methods", "the engine knows only the erased twin"),
    ("whimbrel-nn", "whimbrel-codec", "a learner knows no federation"),
    ("whimbrel-models", "whimbrel-codec", "a model knows no federation"),
];

/// Third-party crates that belong to the command line.
const TERMINAL: [&str; 2] = ["clap", "indicatif"];

/// Checks all manifests of the workspace, for all platforms. Dev-dependencies are free.
pub fn check(metadata: &Value) -> Vec<Finding> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let members = list(&metadata["workspace_members"]);
    let mut findings = Vec::new();
    for package in list(&metadata["packages"]).iter().filter(|p| members.contains(&p["id"])) {
        let name = package["name"].as_str().unwrap_or_default();
        if name.starts_with("whimbrel") && level(name).is_none() {
            findings.push(Finding::new(
                RULE,
                name,
                "is missing in the order of xtask/src/tidy/layers.rs",
            ));
        }
        for dependency in list(&package["dependencies"]) {
            if dependency["kind"] == "dev" {
                continue;
            }
            let target = dependency["name"].as_str().unwrap_or_default();
            findings.extend(fault(name, target).map(|what| Finding::new(RULE, name, what)));
        }
    }
    findings
}

/// The problem with a normal dependency of `from` on `to`, if any.
fn fault(from: &str, to: &str) -> Option<String> {
    if TERMINAL.contains(&to) && from != "whimbrel" {
        return Some(format!("depends on `{to}`, which only the binary may"));
    }
    if to == "whimbrel-testkit" {
        return Some(
            "depends on `whimbrel-testkit`, which may only be a dev-dependency".to_owned(),
        );
    }
    if let Some((_, _, why)) = APART.iter().find(|(a, b, _)| (*a, *b) == (from, to)) {
        return Some(format!("depends on `{to}`, but {why}"));
    }
    let for_tests = ["whimbrel-core", "whimbrel-engine"];
    if from == "whimbrel-testkit" && to.starts_with("whimbrel") && !for_tests.contains(&to) {
        return Some(format!("depends on `{to}`, but the test kit uses only core and engine"));
    }
    match (level(from), level(to)) {
        (Some(here), Some(there)) if there >= here => {
            Some(format!("depends on `{to}`, which is above it"))
        }
        _ => None,
    }
}

fn level(name: &str) -> Option<usize> {
    ORDER.iter().position(|known| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dependencies_point_down() {
        assert_eq!(fault("whimbrel-methods", "whimbrel-codec"), None);
        assert_eq!(fault("whimbrel-engine", "whimbrel-core"), None);
        assert!(fault("whimbrel-core", "whimbrel-codec").is_some());
        for above in ["whimbrel-engine", "whimbrel-data", "whimbrel-job"] {
            assert!(fault("whimbrel-methods", above).is_some());
        }
        assert!(fault("whimbrel-report", "whimbrel-methods").is_some());
        assert!(fault("whimbrel-codec", "whimbrel-codec").is_some());
    }

    #[test]
    fn the_terminal_belongs_to_the_binary() {
        assert_eq!(fault("whimbrel", "clap"), None);
        assert!(fault("whimbrel-report", "indicatif").is_some());
    }

    #[test]
    fn the_test_kit_is_for_tests_and_stands_on_the_core() {
        assert!(fault("whimbrel-methods", "whimbrel-testkit").is_some());
        assert_eq!(fault("whimbrel-testkit", "whimbrel-core"), None);
        assert!(fault("whimbrel-testkit", "whimbrel-codec").is_some());
    }

    #[test]
    fn tests_may_look_anywhere_and_new_crates_must_be_placed() {
        let dependency = |name: &str, kind| json!({ "name": name, "kind": kind });
        let metadata = json!({
            "workspace_members": ["1", "2"],
            "packages": [
                { "id": "1", "name": "whimbrel-codec", "dependencies": [
                    dependency("whimbrel-testkit", json!("dev")),
                    dependency("whimbrel-engine", json!(null)),
                ] },
                { "id": "2", "name": "whimbrel-new", "dependencies": [] },
                { "id": "3", "name": "elsewhere", "dependencies": [dependency("clap", json!(null))] },
            ],
        });
        let places: Vec<String> = check(&metadata).into_iter().map(|f| f.place).collect();
        assert_eq!(places, ["whimbrel-codec", "whimbrel-new"]);
    }
}
