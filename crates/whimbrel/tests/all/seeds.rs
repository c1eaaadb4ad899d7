//! A job with several seeds: a run for each, and one summary and report of all.

use crate::examples::{JOB, LINEAR, doses, sandbox};
use crate::support::{Sandbox, number};
use std::collections::BTreeMap;
use std::process::Command;

const SEEDS: [&str; 3] = ["seed-1", "seed-2", "seed-3"];

fn with_seeds(job: &str) -> String {
    job.replace("seed = 1\n", "seed = 1\nseeds = 3\n")
}

/// `model/` and `checkpoint/` of every seed.
fn all_bytes(sandbox: &Sandbox, run: &str) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for seed in SEEDS {
        let files = sandbox.result_bytes(&format!("{run}/{seed}"));
        all.extend(files.into_iter().map(|(name, bytes)| (format!("{seed}/{name}"), bytes)));
    }
    all
}

#[test]
fn every_seed_has_a_run_and_all_have_a_summary() {
    let sandbox = sandbox(&with_seeds(JOB));
    let printed = sandbox.run_job("out");
    for seed in SEEDS {
        for file in ["job.toml", "summary.json", "metrics.jsonl", "clients.csv", "report.html"] {
            assert!(sandbox.path(&format!("out/{seed}/{file}")).is_file(), "{seed}/{file}");
        }
    }
    for file in ["job.toml", "summary.json", "report.html", "model/model.json"] {
        assert!(sandbox.path(&format!("out/{file}")).is_file(), "{file}");
    }
    assert!(!sandbox.path("out/metrics.jsonl").exists(), "metrics are a seed's");
    assert!(sandbox.read("out/report.html").contains("<pre>whimbrel run out/job.toml</pre>"));
    assert_eq!(
        sandbox.read("out/model/model.json"),
        sandbox.read("out/seed-1/model/model.json"),
        "the model is the first seed's"
    );
    let mut summary = sandbox.object("out/summary.json");
    summary.insert("run".into(), "out".into());
    assert_eq!(printed, summary);
    assert_eq!(summary["seeds"], 3);
}

/// Results are a mean, a standard deviation and the values; counts and `f_star` plain numbers.
#[test]
fn the_summary_is_that_of_the_seeds() {
    let sandbox = sandbox(&with_seeds(JOB));
    let summary = sandbox.run_job("out");
    let each = SEEDS.map(|seed| sandbox.object(&format!("out/{seed}/summary.json")));
    for key in ["objective", "excess_loss", "distance2"] {
        let values = each.each_ref().map(|one| number(one, key));
        let found = summary[key].as_object().unwrap_or_else(|| panic!("{key}: {summary:?}"));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["mean", "sd", "values"], "{key}");
        assert_eq!(found["values"], serde_json::json!(values), "{key}");
        let mean = values.iter().sum::<f64>() / 3.0;
        let sd = (values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 2.0).sqrt();
        assert!((number(found, "mean") - mean).abs() <= 1e-15 * mean.abs(), "{key}");
        assert!((number(found, "sd") - sd).abs() <= 1e-12 * sd, "{key}");
        assert!(sd > 0.0, "{key}: seeds differ");
    }
    for key in ["rounds", "bits_up", "bits_down", "bits_eval"] {
        let mean = each.iter().map(|one| number(one, key)).sum::<f64>() / 3.0;
        assert!((number(&summary, key) - mean).abs() <= 1e-12 * mean, "{key}");
    }
    let f_star = number(&summary, "f_star");
    assert!(each.iter().all(|one| number(one, "f_star") == f_star), "one minimum for all");
    assert!(number(&each[0], "objective") > f_star);
    let hashes = each.each_ref().map(|one| one["data_hash"].clone());
    assert!(hashes.iter().all(|hash| *hash == summary["data_hash"]), "the data are the same");
}

/// The first of several seeds is the run of a job with one.
#[test]
fn a_seed_is_the_run_of_its_own_job() {
    let sandbox = sandbox(&with_seeds(JOB));
    sandbox.run_job("out");
    sandbox.write("job.toml", JOB);
    sandbox.run_job("alone");
    assert_eq!(sandbox.result_bytes("out/seed-1"), sandbox.result_bytes("alone"));
    sandbox.ok(&["run", "out/seed-2/job.toml", "--out", "again"]);
    assert_eq!(sandbox.result_bytes("out/seed-2"), sandbox.result_bytes("again"));
}

#[test]
fn the_report_of_the_folder_is_that_of_all_seeds() {
    let sandbox = sandbox(&with_seeds(JOB));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert!(ran.stdout.contains('±'), "over seeds: {}", ran.stdout);
    let ran = sandbox.ok(&["report", "out", "--out", "page.html", "--json"]);
    assert_eq!(ran.json()["small-mcm"]["seeds"], 3);
    let page = sandbox.read("page.html");
    assert_eq!(page, sandbox.read("out/report.html"));
    assert!(page.contains("over seeds"), "mean and deviation");
    // One seed's folder is a run like any other.
    sandbox.ok(&["report", "out/seed-2", "--out", "two.html"]);
    assert!(!sandbox.read("two.html").contains("over seeds"));
}

#[test]
fn force_replaces_all_seeds() {
    let sandbox = sandbox(&with_seeds(JOB));
    sandbox.run_job("out");
    let bytes = all_bytes(&sandbox, "out");
    sandbox.write("out/seed-3/mine.txt", "kept");
    sandbox.fails(&["run", "job.toml", "--out", "out"], 2, "replace the run (--force)");
    sandbox.ok(&["run", "job.toml", "--out", "out", "--force"]);
    assert_eq!(bytes, all_bytes(&sandbox, "out"));
    // A job without seeds leaves nothing of theirs, and nothing but theirs goes.
    sandbox.write("job.toml", JOB);
    sandbox.ok(&["run", "job.toml", "--out", "out", "--force"]);
    assert!(!sandbox.path("out/seed-1").exists() && !sandbox.path("out/seed-2").exists());
    assert_eq!(sandbox.read("out/seed-3/mine.txt"), "kept");
    assert!(sandbox.path("out/metrics.jsonl").is_file());
    assert!(sandbox.object("out/summary.json").get("seeds").is_none());
}

#[test]
fn a_job_that_is_over_is_not_resumed() {
    let sandbox = sandbox(&with_seeds(JOB));
    sandbox.run_job("out");
    sandbox.fails(&["run", "job.toml", "--out", "out", "--resume"], 2, "the run in out has ended");
}

/// A process that was killed in a later seed goes on there, and ends in the same bits.
#[test]
fn killed_jobs_resume_to_the_same_bits() {
    let sandbox = sandbox(&with_seeds(JOB));
    sandbox.run_job("whole");
    let bytes = all_bytes(&sandbox, "whole");
    let summary = sandbox.object("whole/summary.json");
    // As a process leaves it that ended between a seed's last checkpoint and its summary ...
    sandbox.run_job("out");
    for gone in ["summary.json", "seed-2/summary.json"] {
        std::fs::remove_file(sandbox.path("out").join(gone)).unwrap();
    }
    std::fs::remove_dir_all(sandbox.path("out/seed-3")).unwrap();
    sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
    assert_eq!(bytes, all_bytes(&sandbox, "out"));
    // ... and one that ended at the first write of the last seed.
    std::fs::remove_file(sandbox.path("out/summary.json")).unwrap();
    std::fs::remove_dir_all(sandbox.path("out/seed-3")).unwrap();
    std::fs::create_dir(sandbox.path("out/seed-3")).unwrap();
    sandbox.write("out/seed-3/job.toml.tmp", "name = ");
    sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
    assert_eq!(bytes, all_bytes(&sandbox, "out"));
    let again = sandbox.object("out/summary.json");
    for key in ["objective", "excess_loss", "rounds", "bits_up", "bits_down", "bits_eval"] {
        assert_eq!(summary[key], again[key], "{key}");
    }
}

/// Attempts to stop a run in its middle; a machine under load may let it end first.
const ATTEMPTS: usize = 10;

#[cfg(unix)]
#[test]
fn interrupted_jobs_save_and_resume_to_the_same_bits() {
    let slow = JOB.replace("rounds = 120", "rounds = 4000\nevaluate = { every = 20 }")
        + "[simulation]\ncheckpoint_seconds = 3600\n";
    let sandbox = sandbox(&with_seeds(&slow));
    sandbox.run_job("whole");
    let interrupted = (0..ATTEMPTS).any(|_| {
        if sandbox.path("out").exists() {
            std::fs::remove_dir_all(sandbox.path("out")).unwrap();
        }
        let mut child = sandbox.spawn(&["run", "job.toml", "--out", "out"]);
        let metrics = sandbox.path("out/seed-2/metrics.jsonl");
        let begun = || std::fs::read_to_string(&metrics).is_ok_and(|t| t.lines().count() >= 10);
        while !begun() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let id = child.id().to_string();
        Command::new("sh").args(["-c", "kill -INT $0", &id]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let middle = !sandbox.path("out/seed-2/summary.json").exists();
        if middle {
            assert_eq!(output.status.code(), Some(130), "{stderr}");
            let rounds = stderr.split("interrupted after round ").nth(1).expect("it says where");
            let round: u32 = rounds.split(';').next().unwrap().parse().unwrap();
            assert!((1..4000).contains(&round), "the round of the seed at work: {round}");
            assert!(sandbox.path("out/seed-1/summary.json").exists());
            assert!(!sandbox.path("out/summary.json").exists());
        }
        middle
    });
    assert!(interrupted, "a run that is stopped before its end");
    sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
    assert_eq!(all_bytes(&sandbox, "whole"), all_bytes(&sandbox, "out"));
}

/// One seed that fails fails the job; what the others found is kept.
#[test]
fn a_seed_that_failed_stays_failed() {
    let wild = LINEAR.replace("rounds", "step = 100\nrounds");
    let sandbox = doses(&format!("seeds = 3\n{wild}"));
    let ran = sandbox.run(&["run", "job.toml", "--out", "out"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let summary = sandbox.object("out/summary.json");
    assert_eq!(summary["ending"], "diverged");
    assert!(summary["ending_detail"].as_str().unwrap().starts_with("round "), "{summary:?}");
    sandbox.ok(&["report", "out"]);
    std::fs::remove_file(sandbox.path("out/summary.json")).unwrap();
    std::fs::remove_dir_all(sandbox.path("out/seed-3")).unwrap();
    let resumed = sandbox.run(&["run", "job.toml", "--out", "out", "--resume"]);
    assert_eq!(resumed.code, 1, "{}", resumed.stderr);
}
