//! The reference page of the job file, made of the definitions.

use crate::family::MethodKind;
use crate::job::channel::uplink::{RULE, UP_RULES};
use crate::job::method::length::BATCH;
use crate::job::method::{WEIGHT_WORDS, WEIGHTS};
use crate::job::sections;
use crate::registry::registry;
use whimbrel_job::key::JobKey;
use whimbrel_job::reference::Page;

const HEAD: &str = "# The job file

A job file says what to fit, on what data, and how. It is [TOML](https://toml.io). Unknown keys,
wrong types and impossible values are errors that show the line and what would be right; a key
that has no meaning for the chosen kind is an error too. File names are relative to the job file.

This page is generated from the definitions that the parser uses.

";

/// The smallest job around an example of one table.
const AROUND: [(&str, &str); 3] = [
    ("data", "[data]\nsource = \"mixture\"\n"),
    ("model", "[model]\nkind = \"gmm\"\ncomponents = 2\n"),
    ("method", "[method]\nkind = \"fedem\"\nrounds = 100\n"),
];

/// The page `docs/reference/job-file.md`.
pub fn reference() -> String {
    let sections = sections();
    let head = format!("{HEAD}A whole job:\n\n```toml\n{}```\n", complete(sections[0].example));
    // Keys that not every kind takes say which do.
    let registry = registry();
    Page::new(&sections).text(&head, &|section, key| registry.limits(section, key), &unset)
}

/// What holds where a key is left out whose default is the method's.
fn unset(key: &JobKey) -> Option<String> {
    let is = |known: &JobKey| std::ptr::eq(key, known);
    let takes = |kind: &MethodKind| kind.keys.iter().any(|own| is(own));
    Some(match () {
        () if is(&WEIGHTS) => registry().usual(takes, |kind| WEIGHT_WORDS.name(&kind.weights)),
        () if is(&BATCH) => {
            registry().usual(takes, |kind| if kind.auto_batch { "auto" } else { "full" })
        }
        () if is(&RULE) => {
            let usual = registry().usual(|_| true, |kind| UP_RULES.name(&kind.up_rule));
            format!("that of `channels`; else {usual}")
        }
        () => return None,
    })
}

/// Every example of the page as a whole job.
pub fn examples() -> Vec<String> {
    Page::new(&sections()).examples().into_iter().map(complete).collect()
}

/// An example with the tables that it leaves out.
fn complete(example: &str) -> String {
    let mut out = example.to_owned();
    for (name, table) in AROUND {
        if !example.contains(&format!("[{name}]")) {
            out += &format!("\n{table}");
        }
    }
    out
}
