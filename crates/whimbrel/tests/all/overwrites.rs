//! `--out FILE`: what is there stays there, whatever it is.

use crate::support::{Ran, Sandbox, mixture_job};
use std::fs;

const ROWS: &str = "a,b\n0.5,1\n-0.25,2\n1.5,-1\n";

/// A finished run in `out`, and rows to predict in `rows.csv`.
fn fitted() -> Sandbox {
    let method = "kind = \"fedem\"\nrounds = 3\nstep = 0.5";
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", method));
    sandbox.run_job("out");
    let columns = sandbox.object("out/model/model.json")["columns"].clone();
    let names: Vec<&str> =
        columns.as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
    sandbox.write("rows.csv", &ROWS.replace("a,b", &names.join(",")));
    sandbox
}

fn predict(sandbox: &Sandbox, more: &[&str]) -> Ran {
    sandbox.run(&[&["predict", "out", "--data", "rows.csv"], more].concat())
}

fn refused(ran: &Ran, why: &str) {
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains(why), "{}", ran.stderr);
}

#[test]
fn an_existing_file_needs_force() {
    let sandbox = fitted();
    sandbox.write("kept.txt", "mine");
    for command in [
        &["predict", "out", "--data", "rows.csv", "--out", "kept.txt"][..],
        &["report", "out", "--out", "kept.txt"],
        &["new", "rows.csv", "--out", "kept.txt"],
    ] {
        refused(&sandbox.run(command), "the file exists\nhint: --force replaces it");
        assert_eq!(sandbox.read("kept.txt"), "mine");
        sandbox.ok(&[command, &["--force"]].concat());
        assert_ne!(sandbox.read("kept.txt"), "mine");
        sandbox.write("kept.txt", "mine");
    }
    let left: Vec<String> = fs::read_dir(sandbox.path("."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().display().to_string())
        .filter(|name| name.contains("tmp"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_report_of_several_runs_is_a_users_file_and_that_of_one_the_runs_own() {
    let sandbox = fitted();
    sandbox.run_job("two");
    sandbox.ok(&["report", "out"]);
    sandbox.ok(&["report", "out", "--out", "./out/report.html"]);
    sandbox.ok(&["report", "out", "two"]);
    refused(&sandbox.run(&["report", "out", "two"]), "the file exists");
    refused(&sandbox.run(&["report", "out", "two", "--out", "out/report.html"]), "part of the run");
}

#[test]
fn an_input_is_never_replaced() {
    let sandbox = fitted();
    let rows = sandbox.read("rows.csv");
    fs::hard_link(sandbox.path("rows.csv"), sandbox.path("other-name.csv")).unwrap();
    for out in ["rows.csv", "./out/../rows.csv", "other-name.csv"] {
        refused(&predict(&sandbox, &["--out", out, "--force"]), "this command reads that file");
    }
    let ran = sandbox.run(&["new", "rows.csv", "--out", "rows.csv", "--force"]);
    refused(&ran, "this command reads that file");
    assert_eq!(sandbox.read("rows.csv"), rows);
}

#[test]
fn files_of_a_run_are_never_replaced() {
    let sandbox = fitted();
    let before = sandbox.result_bytes("out");
    for name in ["job.toml", "summary.json", "journal", "model/model.json", "model/new", "lock"] {
        let ran = predict(&sandbox, &["--out", &format!("out/{name}"), "--force"]);
        refused(&ran, "part of the run in");
    }
    assert_eq!(sandbox.result_bytes("out"), before);
    assert_eq!(predict(&sandbox, &["--out", "out/predictions.csv"]).code, 0);
}

#[test]
fn a_missing_folder_and_a_folder_are_said_before_the_work() {
    let sandbox = fitted();
    refused(&predict(&sandbox, &["--out", "nowhere/x.csv"]), "there is no folder nowhere");
    refused(&predict(&sandbox, &["--out", "out"]), "it is a folder");
}

#[test]
fn a_dash_is_standard_output() {
    let sandbox = fitted();
    let printed = predict(&sandbox, &["--out", "-"]);
    assert_eq!(printed.code, 0, "{}", printed.stderr);
    predict(&sandbox, &["--out", "x.csv"]);
    assert_eq!(printed.stdout, sandbox.read("x.csv"));
    assert!(!sandbox.path("-").exists());
    refused(&predict(&sandbox, &["--out", "-", "--json"]), "both ask for standard output");
    let page = sandbox.ok(&["report", "out", "--out", "-"]).stdout;
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"));
    assert!(sandbox.ok(&["new", "--out", "-"]).stdout.contains("[data]"));
    sandbox.ok(&["predict", "out", "--data", "rows.csv", "--out", "./-"]);
    assert_eq!(sandbox.read("-"), printed.stdout);
}

#[cfg(unix)]
mod links {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
    use std::process::Stdio;

    #[test]
    fn links_are_written_through() {
        let sandbox = fitted();
        fs::create_dir(sandbox.path("deep")).unwrap();
        symlink("deep/target.csv", sandbox.path("link.csv")).unwrap();
        assert_eq!(predict(&sandbox, &["--out", "link.csv"]).code, 0);
        assert!(fs::symlink_metadata(sandbox.path("link.csv")).unwrap().is_symlink());
        let text = sandbox.read("deep/target.csv");
        assert!(text.starts_with("row,label"));
        refused(&predict(&sandbox, &["--out", "link.csv"]), "the file exists");
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(sandbox.path("deep/target.csv"), mode).unwrap();
        assert_eq!(predict(&sandbox, &["--out", "link.csv", "--force"]).code, 0);
        assert!(fs::symlink_metadata(sandbox.path("link.csv")).unwrap().is_symlink());
        assert_eq!(fs::metadata(sandbox.path("deep/target.csv")).unwrap().mode() & 0o777, 0o640);
        symlink("rows.csv", sandbox.path("in.csv")).unwrap();
        let ran = predict(&sandbox, &["--out", "in.csv", "--force"]);
        refused(&ran, "this command reads that file");
        symlink("loop", sandbox.path("loop")).unwrap();
        refused(&predict(&sandbox, &["--out", "loop"]), "too many symbolic links");
    }

    #[test]
    fn devices_are_written_to() {
        let sandbox = fitted();
        assert_eq!(predict(&sandbox, &["--out", "/dev/null"]).code, 0);
        let full = predict(&sandbox, &["--out", "/dev/full"]);
        assert_eq!(full.code, 1, "{}", full.stderr);
        for device in ["/dev/null", "/dev/full"] {
            assert!(fs::metadata(device).unwrap().file_type().is_char_device(), "{device}");
        }
        assert_eq!(predict(&sandbox, &["--out", "/dev/stdout"]).stdout.lines().count(), 4);
        let redirected = fs::File::create(sandbox.path("shell.csv")).unwrap();
        let mut command =
            sandbox.command(&["predict", "out", "--data", "rows.csv", "--out", "/dev/stdout"]);
        assert!(command.stdout(redirected).status().unwrap().success());
        assert_eq!(sandbox.read("shell.csv").lines().count(), 4);
        // What a shell makes of `--out >(cat)`: here standard error by its number.
        let ran = predict(&sandbox, &["--out", "/dev/fd/2", "--quiet"]);
        let table = ran.stderr.lines().filter(|line| !line.starts_with("warning: ")).count();
        assert_eq!((ran.code, table), (0, 4), "{}", ran.stderr);
    }

    #[test]
    fn a_named_pipe_gets_the_text_and_stays_a_pipe() {
        let sandbox = fitted();
        let made = std::process::Command::new("mkfifo").arg(sandbox.path("pipe")).status();
        assert!(made.unwrap().success());
        let mut reader = std::process::Command::new("cat");
        let reader = reader.arg(sandbox.path("pipe")).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(predict(&sandbox, &["--out", "pipe"]).code, 0);
        let read = reader.wait_with_output().unwrap().stdout;
        assert_eq!(String::from_utf8(read).unwrap().lines().count(), 4);
        assert!(fs::metadata(sandbox.path("pipe")).unwrap().file_type().is_fifo());
    }
}

/// A run that is to be replaced may be what the job starts from.
#[test]
fn force_does_not_remove_what_the_job_reads() {
    let sandbox = fitted();
    let start = "init = \"out/model/model.json\"";
    sandbox.write("again.toml", &mixture_job(start, "kind = \"fedem\"\nrounds = 1\nstep = 0.5"));
    let ran = sandbox.run(&["run", "again.toml", "--out", "out", "--force"]);
    refused(&ran, "which it reads\nhint: choose another folder (--out)");
    assert!(sandbox.path("out/model/model.json").exists());
}
