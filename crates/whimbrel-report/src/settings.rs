//! The settings in which compared jobs differ.

use crate::exhibits;
use crate::format::{MISSING, escape};
use crate::group::Group;
use crate::sections::section;
use std::collections::BTreeMap;

/// A table with one row per setting that differs between the resolved jobs, and one column per job.
pub(crate) fn differing(groups: &[Group]) -> String {
    let jobs: Vec<BTreeMap<String, &str>> =
        groups.iter().map(|group| settings(&group.runs[0].job_toml)).collect();
    // A run from another program may lack its job.
    if groups.len() < 2 || jobs.iter().any(BTreeMap::is_empty) {
        return String::new();
    }
    let mut keys: Vec<&String> = jobs.iter().flat_map(BTreeMap::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    // A key that only some methods have follows from `method.kind`.
    let differs = |key: &&&String| {
        let mut known = jobs.iter().filter_map(|job| job.get(**key));
        let first = known.next();
        known.any(|value| Some(value) != first)
    };
    let row = |key: &String| {
        let cell = |(job, group): (&BTreeMap<String, &str>, &Group)| {
            let value = job.get(key).map_or(MISSING.into(), |value| escape(value));
            exhibits::labelled(&group.label, &value)
        };
        let cells: String = jobs.iter().zip(groups).map(cell).collect();
        format!("<tr><th scope=\"row\"><code>{}</code></th>{cells}</tr>\n", escape(key))
    };
    let rows: String = keys.iter().filter(differs).map(|key| row(key)).collect();
    if rows.is_empty() {
        return section(
            "Settings",
            "<p class=\"quiet\">All jobs have equal settings.</p>\n".into(),
        );
    }
    let names = groups.iter().map(|group| group.label.as_str());
    let heads = exhibits::heads(["setting"].into_iter().chain(names));
    section(
        "Settings that differ",
        format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"settings\"><table \
             class=\"stacked settings\"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>\n"
        ),
    )
}

/// The settings of a resolved job by `table.key`, except its name; resolved jobs have one per line.
fn settings(job: &str) -> BTreeMap<String, &str> {
    let mut table = "";
    let mut found = BTreeMap::new();
    for line in job.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_matches(['[', ']']);
        } else if let Some((key, value)) = line.split_once(" = ") {
            let name = if table.is_empty() { key.into() } else { format!("{table}.{key}") };
            found.insert(name, value);
        }
    }
    found.remove("name");
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunView;
    use crate::group::groups;

    #[test]
    fn only_settings_that_differ_are_listed() {
        let run = |name: &str, job: &str| RunView {
            name: name.into(),
            job_toml: format!("name = \"{name}\"\nseed = 1\n{job}"),
            ..RunView::default()
        };
        let runs = [
            run("a", "[method]\nkind = \"dem\"\nstep = 0.5\n"),
            run("b", "[method]\nkind = \"fedem\"\nstep = 0.5\n[uplink]\nalpha = \"auto\"\n"),
            run("c", "[method]\nstep = 0.5\n"),
        ];
        let html = differing(&groups(&runs));
        let cells = [("a", "&quot;dem&quot;"), ("b", "&quot;fedem&quot;"), ("c", "–")];
        let cells = cells.map(|(job, value)| exhibits::labelled(job, value)).concat();
        assert!(html.contains(&format!("<code>method.kind</code></th>{cells}")), "{html}");
        for equal in ["method.step", "seed", "uplink.alpha"] {
            assert!(!html.contains(equal), "{html}");
        }
        assert_eq!(differing(&groups(&runs[..1])), "");
    }
}
