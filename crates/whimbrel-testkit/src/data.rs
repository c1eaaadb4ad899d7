//! Where tests find published data, and how a test says that it cannot run here.

use std::path::{Path, PathBuf};

/// A published file or folder: `name` below `WHIMBREL_DATA`, or below `shared/data` beside the
/// workspace. Where it is absent the test is [`skipped`], and must end.
pub fn data_file(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("WHIMBREL_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    find(&folder, name, in_ci())
}

/// Says that a test cannot run here; in continuous integration (`CI=true`) it fails.
pub fn skipped(why: &str) {
    skip(why, in_ci());
}

fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false")
}

fn find(folder: &Path, name: &str, in_ci: bool) -> Option<PathBuf> {
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    let path = path.display();
    skip(&format!("no data ({path} does not exist; WHIMBREL_DATA names the folder)"), in_ci);
    None
}

fn skip(why: &str, in_ci: bool) {
    assert!(!in_ci, "not run: {why}");
    // tidy: allow(print): a test that is skipped says so
    eprintln!("skipped: {why}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_is_found_and_what_does_not_is_skipped() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(find(here, "Cargo.toml", true).is_some_and(|path| path.is_file()));
        assert_eq!(find(here, "absent.csv", false), None);
    }

    #[test]
    #[should_panic(expected = "not run: no data ")]
    fn absent_data_fail_in_continuous_integration() {
        find(Path::new(env!("CARGO_MANIFEST_DIR")), "absent.csv", true);
    }
}
