//! The tests of the Python package: wheels and virtual environments in the target folder.

use crate::{Outcome, cargo};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A virtual environment: its folder, packages and tests (all if empty).
struct Environment {
    name: &'static str,
    packages: &'static [&'static str],
    tests: &'static [&'static str],
}

/// Flower's simulation pins its own version of Ray, so the two need separate environments. PyTorch for
/// Linux comes with CUDA.
const ENVIRONMENTS: [Environment; 3] = [
    Environment {
        name: "python",
        packages: &[
            "pytest",
            "scikit-learn",
            "tqdm",
            "pandas",
            "polars",
            "pyarrow",
            "matplotlib",
            "nbclient",
            "ipykernel",
            "ray",
            "mypy",
            "tensorboard",
            "mlflow",
        ],
        tests: &[],
    },
    Environment {
        name: "python-flower",
        packages: &["pytest", "scikit-learn", "flwr[simulation]"],
        tests: &["python/tests/test_flower.py"],
    },
    Environment {
        name: TORCH,
        packages: &["pytest", "scikit-learn", "tensorboard", "torch"],
        tests: &[
            "python/tests/test_torch.py",
            "python/tests/test_networks.py",
            "python/tests/test_tracking.py",
            "python/tests/test_guides.py",
        ],
    },
];

/// The environment of PyTorch, which takes 6 GB.
const TORCH: &str = "python-torch";

const BUILD: &[&str] = &["maturin>=1.9.4,<2"];

/// Builds the wheel with the profile of the other tests and runs pytest. Without Python, or if
/// packages cannot be installed, the tests are skipped with a message.
pub fn test() -> Outcome {
    let usable = "import sys, venv; sys.exit(sys.version_info < (3, 11))";
    if !Command::new("python3").args(["-c", usable]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: the Python package (no Python 3.11 or later with venv)");
        return Ok(());
    }
    let target = target();
    let Some(builder) = environment(&target.join("python-build"), BUILD)? else { return Ok(()) };
    let wheels = target.join("wheels");
    // A single wheel: names of wheels have no build number.
    let _ = std::fs::remove_dir_all(&wheels);
    let out = wheels.display().to_string();
    run(&builder, &["-m", "maturin", "build", "--locked", "--profile", "ci", "--out", &out])?;
    let built = std::fs::read_dir(&wheels).map_err(|e| format!("{out}: {e}"))?.flatten().next();
    let wheel = built.ok_or("maturin built no wheel")?.path().display().to_string();
    for Environment { name, packages, tests } in ENVIRONMENTS {
        if name == TORCH && std::env::var_os("WHIMBREL_TORCH").is_none() {
            eprintln!("skipped: tests of PyTorch (WHIMBREL_TORCH=1 installs it, 6 GB)");
            continue;
        }
        let Some(python) = environment(&target.join(name), packages)? else { continue };
        let install = ["-m", "pip", "install", "-q", "--force-reinstall", "--no-deps", &wheel];
        run(&python, &install)?;
        // The wheel's modules: the source folder lacks the compiled half.
        let pytest = ["-m", "pytest", "-q", "--import-mode=importlib"];
        let tests =
            if tests.is_empty() { &["python/tests", "--pyargs", "whimbrel"] } else { tests };
        run(&python, &[&pytest[..], tests].concat())?;
    }
    Ok(())
}

/// The interpreter of a virtual environment with these packages; `None` if they cannot be installed.
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
    cargo::run_command(Command::new(program).args(arguments), &line)
}

fn target() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    cargo::root().join(set.unwrap_or_else(|| "target".into()))
}
