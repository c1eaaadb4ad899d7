//! Commands, always in the root of the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Outcome;

/// Features that tests, lints, documentation and the checks of dependencies include: all of them.
pub const FULL: [&str; 2] = ["--features", "whimbrel/full"];

/// The root of the workspace.
pub fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let here = manifest.as_deref().unwrap_or(Path::new(env!("CARGO_MANIFEST_DIR")));
    here.parent().expect("the manifest of xtask lies one folder below the root").to_path_buf()
}

/// A cargo command in the root; `CARGO` is the cargo that started xtask.
pub fn command(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root()).args(arguments);
    command
}

/// Prints the command and runs it; its output goes to the terminal.
pub fn run(arguments: &[&str]) -> Outcome {
    run_with(arguments, &[])
}

/// [`run`] with environment variables set.
pub fn run_with(arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
    let shown: String =
        variables.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
    let line = format!("{shown}cargo {}", arguments.join(" "));
    run_command(command(arguments).envs(variables.iter().copied()), &line)
}

/// Prints `line` and runs the command in the root.
pub fn run_command(command: &mut Command, line: &str) -> Outcome {
    eprintln!("$ {line}");
    let status = command
        .current_dir(root())
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("could not start `{line}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed ({status})")) }
}

/// Whether `cargo NAME` is an installed subcommand.
pub fn has_subcommand(name: &str) -> bool {
    command(&[name, "--version"])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

/// The dependency graph for this machine's platform. `--locked`: an outdated lock file is an error.
pub fn metadata() -> Result<Value, String> {
    let platform = host_platform()?;
    let output = command(&["metadata", "--format-version=1", "--locked"])
        .args(FULL)
        .args(["--filter-platform", &platform])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("could not start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

fn host_platform() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .arg("-vV")
        .output()
        .map_err(|error| format!("could not start rustc: {error}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .ok_or_else(|| "`rustc -vV` names no host".to_owned())
}
