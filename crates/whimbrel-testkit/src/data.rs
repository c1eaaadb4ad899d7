//! Published data for tests, and tests that cannot run on this machine.
//!
//! Such a test fails, unless `WHIMBREL_SKIPPED` names a file: then it adds a line there and passes.
//! `cargo xtask test` sets the variable and prints the lines; continuous integration does not.

use std::io::Write;
use std::path::{Path, PathBuf};

/// A published file or folder: `name` below `WHIMBREL_DATA`, or below `shared/data` beside the
/// workspace. `None` where it is absent: the test is [`skipped`] and must return.
pub fn data_file(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("WHIMBREL_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    let path = path.display();
    skipped(&format!("{path} does not exist (WHIMBREL_DATA names the folder of the data)"));
    None
}

/// Lists a test that cannot run here, or fails it.
#[track_caller]
pub fn skipped(why: &str) {
    skip(why, std::env::var_os("WHIMBREL_SKIPPED").as_deref().map(Path::new));
}

#[track_caller]
fn skip(why: &str, list: Option<&Path>) {
    let hint = "hint: `WHIMBREL_SKIPPED=FILE` lists such tests in FILE instead of failing them";
    let list = list.unwrap_or_else(|| panic!("the test cannot run here: {why}\n{hint}"));
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(list);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("a list that can be written");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_is_listed() {
        let list = std::env::temp_dir().join(format!("whimbrel-skipped-{}", std::process::id()));
        skip("no data", Some(&list));
        let text = std::fs::read_to_string(&list).unwrap();
        std::fs::remove_file(list).unwrap();
        assert_eq!(text, "data::tests::a_skipped_test_is_listed: no data\n");
    }

    #[test]
    #[should_panic(expected = "the test cannot run here: no data")]
    fn without_a_list_it_fails() {
        skip("no data", None);
    }
}
