//! Same job, same bits: whatever the threads, the instruction set, or what stopped it on the way.

use crate::support::{Sandbox, mixture_job};
use std::fs::read_to_string;
use std::io::Read;
use std::process::{Child, Command};

const METHOD: &str = "kind = \"fedem\"\nrounds = 60\nbatch = 10\nlocal_steps = 2\nstep = 0.3\n\
    participation = 0.7\nevaluate = { every = 7 }\n[uplink]\n\
    codec = { kind = \"dithering\", levels = 1 }\n[simulation]\nlost = 0.1";

#[test]
fn threads_do_not_matter() {
    for model in ["init = \"federated-kmeans\"", "init = \"moments\"\ncovariance = \"full\""] {
        let sandbox = Sandbox::with_job(&mixture_job(model, METHOD));
        for threads in ["1", "2"] {
            sandbox.ok(&["run", "job.toml", "--out", threads, "--threads", threads]);
        }
        assert_eq!(sandbox.result_bytes("1"), sandbox.result_bytes("2"));
        let summaries = ["1", "2"].map(|run| {
            let mut summary = sandbox.object(&format!("{run}/summary.json"));
            summary.remove("seconds");
            summary
        });
        assert_eq!(summaries[0], summaries[1]);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_instruction_set_does_not_matter() {
    let mut levels = vec!["x86-64"];
    if is_x86_feature_detected!("avx2") {
        levels.push("x86-64-v3");
    }
    let sandbox = Sandbox::with_job(&mixture_job("covariance = \"full\"", METHOD));
    sandbox.run_job("native");
    for level in levels {
        let mut command = sandbox.command(&["run", "job.toml", "--out", level]);
        assert!(command.env("WHIMBREL_ISA", level).output().unwrap().status.success());
        assert_eq!(sandbox.object(&format!("{level}/summary.json"))["isa"], level);
        assert_eq!(sandbox.result_bytes("native"), sandbox.result_bytes(level), "{level}");
    }
}

#[test]
fn an_unknown_instruction_set_is_refused() {
    let sandbox = Sandbox::with_job(&mixture_job("covariance = \"full\"", METHOD));
    let mut command = sandbox.command(&["run", "job.toml", "--out", "out"]);
    let output = command.env("WHIMBREL_ISA", "x86-64-v9").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("WHIMBREL_ISA is \"x86-64-v9\""), "{stderr}");
}

/// Enough work a round that a run can be stopped in the middle, saved after every exchange.
fn slow_job() -> String {
    let method = METHOD.replace("rounds = 60", "rounds = 250").replace("every = 7", "every = 1");
    let job = mixture_job("init = \"federated-kmeans\"", &method);
    job.replace("rows = 40", "rows = 1500") + "\ncheckpoint_seconds = 0"
}

/// Attempts to stop a run in its middle; a machine under load may let it end first.
const ATTEMPTS: usize = 10;

/// Starts the job in an empty folder and stops it once its metrics have `lines` lines; none if it
/// ended first.
fn stopped_at(sandbox: &Sandbox, lines: usize, stop: impl Fn(&mut Child)) -> Option<Stopped> {
    if sandbox.path("out").exists() {
        std::fs::remove_dir_all(sandbox.path("out")).unwrap();
    }
    let mut child = sandbox.spawn(&["run", "job.toml", "--out", "out"]);
    let metrics = sandbox.path("out/metrics.jsonl");
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "it ended by itself: {status}");
            return None;
        }
        if read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= lines) {
            break;
        }
        std::thread::yield_now();
    }
    stop(&mut child);
    let status = child.wait().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let unfinished = !sandbox.path("out/summary.json").exists();
    unfinished.then_some(Stopped { code: status.code(), stderr })
}

/// How a run was stopped.
pub struct Stopped {
    code: Option<i32>,
    stderr: String,
}

#[track_caller]
pub fn stop_in_the_middle(sandbox: &Sandbox, lines: usize, stop: impl Fn(&mut Child)) -> Stopped {
    let mut attempts = (0..ATTEMPTS).map(|_| stopped_at(sandbox, lines, &stop));
    attempts.find_map(|stopped| stopped).expect("a run that is stopped before its end")
}

fn same_lines(sandbox: &Sandbox, name: &str) {
    let without_time = |run: &str| -> Vec<String> {
        let text = sandbox.read(&format!("{run}/{name}"));
        text.lines().map(|l| l.split(",\"seconds\"").next().unwrap().to_string()).collect()
    };
    assert_eq!(without_time("whole"), without_time("out"), "{name}");
}

#[test]
fn killed_runs_resume_to_the_same_bits() {
    let sandbox = Sandbox::with_job(&slow_job());
    sandbox.run_job("whole");
    for lines in [0, 1, 40, 120] {
        stop_in_the_middle(&sandbox, lines, |child| child.kill().unwrap());
        sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
        assert_eq!(sandbox.result_bytes("whole"), sandbox.result_bytes("out"), "at {lines}");
        same_lines(&sandbox, "metrics.jsonl");
        same_lines(&sandbox, "journal");
        assert_eq!(sandbox.read("whole/clients.csv"), sandbox.read("out/clients.csv"));
    }
}

#[test]
fn a_run_may_be_killed_many_times() {
    let sandbox = Sandbox::with_job(&slow_job());
    sandbox.run_job("whole");
    stop_in_the_middle(&sandbox, 10, |child| child.kill().unwrap());
    for lines in [30, 60] {
        let mut child = sandbox.spawn(&["run", "job.toml", "--out", "out", "--resume"]);
        let metrics = sandbox.path("out/metrics.jsonl");
        while child.try_wait().unwrap().is_none() {
            if read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= lines) {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            std::thread::yield_now();
        }
    }
    if !sandbox.path("out/summary.json").exists() {
        sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
    }
    assert_eq!(sandbox.result_bytes("whole"), sandbox.result_bytes("out"));
}

#[cfg(unix)]
#[test]
fn interrupted_runs_save_and_resume_to_the_same_bits() {
    // Seldom saved by itself: what is resumed is what the interruption saved.
    let job = slow_job().replace("checkpoint_seconds = 0", "checkpoint_seconds = 3600");
    let sandbox = Sandbox::with_job(&job);
    sandbox.run_job("whole");
    for lines in [1, 30] {
        let stopped = stop_in_the_middle(&sandbox, lines, |child| {
            let id = child.id().to_string();
            let sent = Command::new("sh").args(["-c", "kill -INT $0", &id]).status().unwrap();
            assert!(sent.success());
        });
        assert_eq!(stopped.code, Some(130), "{}", stopped.stderr);
        assert!(stopped.stderr.contains("the state is saved"), "{}", stopped.stderr);
        let line = "resume with: whimbrel run job.toml --out out --resume";
        assert!(stopped.stderr.contains(line), "{}", stopped.stderr);
        assert!(sandbox.path("out/report.html").exists());
        sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
        assert_eq!(sandbox.result_bytes("whole"), sandbox.result_bytes("out"), "at {lines}");
        same_lines(&sandbox, "metrics.jsonl");
    }
}

/// A process killed between its last checkpoint and its summary has nothing left to compute.
#[test]
fn killed_before_the_summary() {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", METHOD));
    let summary = sandbox.run_job("out");
    let bytes = sandbox.result_bytes("out");
    std::fs::remove_file(sandbox.path("out/summary.json")).unwrap();
    std::fs::remove_dir_all(sandbox.path("out/model")).unwrap();
    sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
    assert_eq!(bytes, sandbox.result_bytes("out"));
    let again = sandbox.object("out/summary.json");
    for key in ["objective", "rounds", "bits_up", "bits_down", "bits_eval"] {
        assert_eq!(summary[key], again[key], "{key}");
    }
}

#[test]
fn killed_before_the_summary_of_an_early_stop() {
    for stop in ["{ field_norm2 = 1e-4 }", "{ patience = 2, tolerance = 1e-3 }"] {
        let method = METHOD.replace("batch = 10\nlocal_steps = 2", &format!("stop = {stop}"));
        let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", &method));
        let summary = sandbox.run_job("out");
        assert_eq!(summary["ending"], "stopped", "{summary:?}");
        let bytes = sandbox.result_bytes("out");
        std::fs::remove_file(sandbox.path("out/summary.json")).unwrap();
        sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
        assert_eq!(bytes, sandbox.result_bytes("out"), "{stop}");
        assert_eq!(summary["ending_detail"], sandbox.object("out/summary.json")["ending_detail"]);
    }
}

/// A process killed at its very first write leaves a folder that can be used.
#[test]
fn killed_at_the_first_write() {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", METHOD));
    sandbox.run_job("whole");
    std::fs::create_dir(sandbox.path("out")).unwrap();
    sandbox.write("out/job.toml.tmp", "name = \"sm");
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
    assert!(ran.stderr.contains("warning: out holds no run yet"), "{}", ran.stderr);
    assert_eq!(sandbox.result_bytes("whole"), sandbox.result_bytes("out"));
}
