//! Differences between the job of a run and the job that resumes it.

/// The mark before the hash of a file in a resolved job.
pub const HASH_MARK: &str = "# sha256 ";

/// The most changes listed; further ones are counted.
const SHOWN_MAX: usize = 4;

/// The differences between two resolved jobs, in words.
pub fn changes(old: &str, new: &str) -> String {
    let (old_files, new_files) = (file_hashes(old), file_hashes(new));
    let mut found: Vec<String> = new_files
        .iter()
        .filter(|(path, hash)| old_files.iter().any(|(p, h)| p == path && h != hash))
        .map(|(path, _)| format!("{path} has changed"))
        .collect();
    let (old_keys, new_keys) = (keys(old), keys(new));
    for (key, before) in &old_keys {
        match new_keys.iter().find(|(k, _)| k == key) {
            Some((_, now)) if now == before => {}
            Some((_, now)) => found.push(format!("`{key}` was {before}, now {now}")),
            None => found.push(format!("`{key}` was {before}, now absent")),
        }
    }
    let fresh = new_keys.iter().filter(|(key, _)| old_keys.iter().all(|(k, _)| k != key));
    found.extend(fresh.map(|(key, now)| format!("`{key}` was absent, now {now}")));
    let more = found.len().saturating_sub(SHOWN_MAX);
    found.truncate(SHOWN_MAX);
    match (found.is_empty(), more) {
        (true, _) => "its job.toml was edited".into(),
        (false, 0) => found.join("; "),
        (false, more) => format!("{}; and {more} more", found.join("; ")),
    }
}

/// Path and hash of each file that a resolved job names.
fn file_hashes(resolved: &str) -> Vec<(&str, &str)> {
    let lines = resolved.lines().filter_map(|line| line.strip_prefix(HASH_MARK));
    lines.filter_map(|line| line.split_once("  ")).map(|(hash, path)| (path, hash)).collect()
}

/// The keys of a resolved job with their tables' names, and their values as text.
fn keys(resolved: &str) -> Vec<(String, String)> {
    let table: toml::Table = resolved.parse().unwrap_or_default();
    let mut keys = Vec::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(inner) => {
                keys.extend(inner.into_iter().map(|(k, v)| (format!("{name}.{k}"), v.to_string())))
            }
            plain => keys.push((name, plain.to_string())),
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "# sha256 aa  /d/x.csv\nname = \"n\"\n\n[method]\nstep = 0.5\nstop = {}\n";

    #[test]
    fn files_and_keys_are_named() {
        let new = OLD.replace("aa", "bb").replace("0.5", "0.25");
        let text = changes(OLD, &new);
        assert_eq!(text, "/d/x.csv has changed; `method.step` was 0.5, now 0.25");
        let new = OLD.replace("step = 0.5\n", "rounds = 3\n");
        let text = changes(OLD, &new);
        assert_eq!(text, "`method.step` was 0.5, now absent; `method.rounds` was absent, now 3");
        assert_eq!(changes(OLD, &format!("{OLD}# by hand\n")), "its job.toml was edited");
    }

    #[test]
    fn many_changes_are_counted() {
        let job = |value: u32| -> String { (0..6).map(|i| format!("k{i} = {value}\n")).collect() };
        assert!(changes(&job(1), &job(2)).ends_with("`k3` was 1, now 2; and 2 more"));
    }
}
