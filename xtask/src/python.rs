//! The tests of the Python package: wheels and virtual environments in the target folder.

use crate::{Outcome, cargo};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A virtual environment: its folder, what is installed there, what is tested.
struct Environment {
    name: &'static str,
    packages: &'static [&'static str],
    tests: &'static [&'static str],
}

/// Flower's simulation pins a Ray of its own, so that the two need an environment each.
const ENVIRONMENTS: [Environment; 2] = [
    Environment {
        name: "python",
        packages: &[
            "pytest",
            "scikit-learn",
            "tqdm",
            "pandas",
            "matplotlib",
            "nbclient",
            "ipykernel",
            "ray",
        ],
        tests: &[],
    },
    Environment {
        name: "python-flower",
        packages: &["pytest", "scikit-learn", "flwr[simulation]"],
        tests: &["python/tests/test_flower.py"],
    },
];

const BUILD: &[&str] = &["maturin>=1.9.4,<2"];

/// Builds the wheel with the profile of the other tests and runs pytest; says so and does nothing
/// where there is no Python, or where packages cannot be installed.
pub fn test() -> Outcome {
    let usable = "import sys, venv; sys.exit(sys.version_info < (3, 11))";
    if !Command::new("python3").args(["-c", usable]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: the Python package (no Python 3.11 or later with venv)");
        return Ok(());
    }
    let target = target();
    let Some(builder) = environment(&target.join("python-build"), BUILD)? else { return Ok(()) };
    let wheels = target.join("wheels");
    // One wheel at a time: its name has no number of the build.
    let _ = std::fs::remove_dir_all(&wheels);
    let out = wheels.display().to_string();
    run(&builder, &["-m", "maturin", "build", "--locked", "--profile", "ci", "--out", &out])?;
    let built = std::fs::read_dir(&wheels).map_err(|e| format!("{out}: {e}"))?.flatten().next();
    let wheel = built.ok_or("maturin built no wheel")?.path().display().to_string();
    for Environment { name, packages, tests } in ENVIRONMENTS {
        let Some(python) = environment(&target.join(name), packages)? else { continue };
        let install = ["-m", "pip", "install", "-q", "--force-reinstall", "--no-deps", &wheel];
        run(&python, &install)?;
        // Not from the source folder, which has no compiled half: the wheel's own modules.
        let pytest = ["-m", "pytest", "-q", "--import-mode=importlib"];
        let tests =
            if tests.is_empty() { &["python/tests", "--pyargs", "whimbrel"] } else { tests };
        run(&python, &[&pytest[..], tests].concat())?;
    }
    Ok(())
}

/// The interpreter of a virtual environment with these packages; none where they cannot be had.
fn environment(folder: &Path, packages: &[&str]) -> Result<Option<PathBuf>, String> {
    let python = folder.join("bin/python");
    if !python.is_file() {
        let folder = folder.display().to_string();
        run(Path::new("python3"), &["-m", "venv", &folder])?;
    }
    let install = [&["-m", "pip", "install", "-q"], packages].concat();
    match run(&python, &install) {
        Ok(()) => Ok(Some(python)),
        Err(_) => {
            eprintln!(
                "skipped: tests that need {}, which cannot be installed",
                packages.join(", ")
            );
            Ok(None)
        }
    }
}

fn run(program: &Path, arguments: &[&str]) -> Outcome {
    let line = format!("{} {}", program.display(), arguments.join(" "));
    eprintln!("$ {line}");
    let status = Command::new(program)
        .args(arguments)
        .current_dir(cargo::root())
        .stdin(Stdio::null())
        .status()
        .map_err(|e| format!("could not start {}: {e}", program.display()))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed ({status})")) }
}

fn target() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    cargo::root().join(set.unwrap_or_else(|| "target".into()))
}
