//! The reference page of the job file, generated from the definitions of keys.

use crate::family::{Family, MethodKind};
use crate::job::channel::uplink::{RULE, UP_RULES};
use crate::job::method::length::BATCH;
use crate::job::method::{WEIGHT_WORDS, WEIGHTS};
use crate::job::{data, sections};
use crate::registry::registry;
use whimbrel_job::key::{JobKey, Section, Word};
use whimbrel_job::reference::{self, Page, Part, Row, rows};

const HEAD: &str = "A job file describes data, model and method. It is [TOML](https://toml.io). Unknown keys,
wrong types, impossible values and keys that do not apply to the chosen kind are errors with a line and a
hint. File names are relative to the job file. The Rust builders have the same defaults, and so have the
Python estimators, except for parameters that follow scikit-learn (`covariance_type`, `reg_covar`,
`random_state`).

These pages are generated from the definitions that the parser uses.
";

/// The minimal tables around an example.
const AROUND: [(&str, &str); 3] = [
    ("data", "[data]\nsource = \"mixture\"\n"),
    ("model", "[model]\nkind = \"gmm\"\ncomponents = 2\n"),
    ("method", "[method]\nkind = \"fedem\"\nrounds = 100\n"),
];

/// The page `docs/reference/job-file.md`.
pub fn reference() -> String {
    let sections = sections();
    let head = format!("{HEAD}A whole job:\n\n```toml\n{}```\n", complete(sections[0].example));
    let registry = registry();
    Page::new(&sections).text(&head, &|section, key| registry.limits(section, key), &unset)
}

/// The default of a key whose default depends on the method.
fn unset(key: &JobKey) -> Option<String> {
    let is = |known: &JobKey| std::ptr::eq(key, known);
    let takes = |kind: &MethodKind| kind.keys.iter().any(|own| is(own));
    let registry = registry();
    if is(&WEIGHTS) {
        Some(registry.usual(takes, |kind| WEIGHT_WORDS.name(&kind.weights)))
    } else if is(&BATCH) {
        Some(registry.usual(takes, |kind| if kind.auto_batch { "auto" } else { "full" }))
    } else if is(&RULE) {
        let usual = registry.usual(|_| true, |kind| UP_RULES.name(&kind.up_rule));
        Some(format!("that of `channels`; else {usual}"))
    } else {
        None
    }
}

/// The examples of the page as complete jobs.
pub fn examples() -> Vec<String> {
    reference::examples(&sections()).into_iter().map(complete).collect()
}

/// An example with its missing tables.
fn complete(example: &str) -> String {
    let mut out = example.to_owned();
    for (name, table) in AROUND {
        if !example.contains(&format!("[{name}]")) {
            out += &format!("\n{table}");
        }
    }
    out
}
