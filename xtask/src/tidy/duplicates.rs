//! Duplicate versions: one version of each shipped crate.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Finding;

const RULE: &str = "duplicates";

/// Crates that may appear twice, each with the reason.
const ALLOWED: [(&str, &str); 6] = [
    ("fallible-iterator", "postgres asks for an older version than rusqlite; a trait without code"),
    (
        "hashbrown",
        "safetensors asks for the version before the one that indexmap (toml, serde_json) has",
    ),
    ("foldhash", "comes with each version of hashbrown"),
    ("getrandom", "ring asks for an older version than tempfile, which prost-build uses"),
    ("syn", "derive macros are moving to version 3 one by one; nothing of it is shipped"),
    ("unicode-width", "miette, which formats errors of protox while the protocol is compiled"),
];

/// Checks the normal and build dependencies on this machine's platform; dev-dependencies may differ.
pub fn check(metadata: &Value) -> Vec<Finding> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let reached = reachable(metadata);
    for package in array(&metadata["packages"]).iter().filter(|p| reached.contains(text(&p["id"])))
    {
        versions.entry(text(&package["name"])).or_default().insert(text(&package["version"]));
    }
    versions
        .into_iter()
        .filter(|(name, found)| found.len() > 1 && !ALLOWED.iter().any(|(n, _)| n == name))
        .map(|(name, found)| {
            let list = found.into_iter().collect::<Vec<_>>().join(", ");
            let what =
                format!("is built in {list}; `cargo tree --invert {name}` shows the dependents");
            Finding::new(RULE, name, what)
        })
        .collect()
}

fn reachable(metadata: &Value) -> BTreeSet<&str> {
    let nodes: BTreeMap<&str, &Value> =
        array(&metadata["resolve"]["nodes"]).iter().map(|node| (text(&node["id"]), node)).collect();
    let mut open: Vec<&str> = array(&metadata["workspace_members"]).iter().map(text).collect();
    let mut reached = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !reached.insert(id) {
            continue;
        }
        for edge in nodes.get(id).map(|node| array(&node["deps"])).unwrap_or_default() {
            if array(&edge["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev") {
                open.push(text(&edge["pkg"]));
            }
        }
    }
    reached
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn graph(kind_of_second: Value) -> Value {
        let package = |id: &str, name: &str, version: &str| json!({ "id": id, "name": name, "version": version });
        let edge = |pkg: &str, kind: &Value| json!({ "pkg": pkg, "dep_kinds": [{ "kind": kind }] });
        json!({
            "workspace_members": ["us"],
            "packages": [
                package("us", "us", "0.1.0"),
                package("a1", "a", "1.0.0"),
                package("b", "b", "1.0.0"),
                package("a2", "a", "2.0.0"),
            ],
            "resolve": { "nodes": [
                { "id": "us", "deps": [edge("a1", &json!(null)), edge("b", &kind_of_second)] },
                { "id": "b", "deps": [edge("a2", &json!(null))] },
            ] },
        })
    }

    #[test]
    fn two_versions_are_found_behind_a_normal_dependency() {
        for kind in [json!(null), json!("build")] {
            let metadata = graph(kind);
            let findings = check(&metadata);
            assert_eq!(findings.len(), 1);
            assert_eq!(findings[0].place, "a");
            assert!(findings[0].what.contains("1.0.0, 2.0.0"));
        }
    }

    #[test]
    fn what_only_tests_use_may_differ() {
        assert_eq!(check(&graph(json!("dev"))), []);
    }
}
