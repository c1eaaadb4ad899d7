//! How the program behaves towards people and scripts.

use crate::support::{Sandbox, mixture_job};
use std::fs;

const METHOD: &str = "kind = \"fedem\"\nrounds = 3\nstep = 0.5";

fn small() -> Sandbox {
    Sandbox::with_job(&mixture_job("init = \"moments\"", METHOD))
}

#[test]
fn shells_complete_commands() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.ok(&["completions", shell]).stdout;
        assert!(script.contains("impute") && script.contains("open-enrolment"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let sandbox = Sandbox::new();
    let page = sandbox.ok(&["man"]).stdout;
    assert!(page.contains(".TH") && page.contains("whimbrel"), "{page}");
    fs::create_dir(sandbox.path("man")).unwrap();
    sandbox.ok(&["man", "--out", "man"]);
    for name in ["whimbrel", "whimbrel-run", "whimbrel-data-inspect", "whimbrel-serve"] {
        assert!(sandbox.read(&format!("man/{name}.1")).contains(".SH"), "{name}");
    }
    assert_eq!(sandbox.run(&["man", "--out", "man"]).code, 2, "pages are there");
    sandbox.ok(&["man", "--out", "man", "--force"]);
}

#[test]
fn quiet_leaves_results_warnings_and_errors() {
    let sandbox = small();
    let ran = sandbox.ok(&["--quiet", "run", "job.toml", "--out", "out"]);
    let said: Vec<&str> = ran.stderr.lines().collect();
    let [warning] = said[..] else { panic!("more than the verdict: {said:?}") };
    assert!(warning.starts_with("warning: stopped after 3 rounds, not converged"), "{warning}");
    assert!(ran.stdout.contains("objective"), "{}", ran.stdout);
    let ran = sandbox.run(&["run", "job.toml", "--out", "out", "--quiet"]);
    assert!(ran.stderr.starts_with("error: out is not empty"), "{}", ran.stderr);
}

#[test]
fn colours_are_for_those_who_ask() {
    let sandbox = small();
    let plain = sandbox.run(&["run", "nowhere.toml"]).stderr;
    assert!(plain.starts_with("error: "), "{plain}");
    let coloured = sandbox.run(&["run", "nowhere.toml", "--color", "always"]).stderr;
    assert!(coloured.starts_with("\u{1b}[1;31merror:\u{1b}[0m "), "{coloured}");
    assert!(coloured.contains("\u{1b}[1;36mhint:\u{1b}[0m "), "{coloured}");
}

#[test]
fn a_folder_that_is_not_there_cannot_be_resumed() {
    let sandbox = small();
    sandbox.fails(
        &["run", "job.toml", "--out", "out", "--resume"],
        2,
        "out does not exist\nhint: start a new run there (without --resume)",
    );
    assert!(!sandbox.path("out").exists());
}

/// One run of two fails: the other is reported, and the exit code says so.
#[test]
fn a_comparison_with_a_failed_run_fails() {
    let sandbox = small();
    let diverges = mixture_job("init = \"moments\"", "kind = \"dem\"\nrounds = 400\nstep = 1e6");
    sandbox.write("bad.toml", &diverges.replace("\"small\"", "\"bad\""));
    let ran = sandbox.fails(&["compare", "job.toml", "bad.toml", "--out", "both"], 1, "bad failed");
    assert!(ran.stdout.contains("small") && ran.stdout.contains("diverged"), "{}", ran.stdout);
}

#[test]
fn models_of_other_kinds_have_panels_of_their_own() {
    let sandbox = small();
    let table = (0..40).map(|i| format!("w{},{},{}\n", i % 2, i % 7, i * i % 11));
    sandbox.write("data.csv", &format!("ward,a,b\n{}", table.collect::<String>()));
    let data = "[data]\nsource = \"csv\"\npath = \"data.csv\"\nclient = \"ward\"\n";
    let mixture = format!(
        "name = \"m\"\n{data}[model]\nkind = \"gmm\"\ncomponents = 1\n[method]\n{METHOD}\n"
    );
    let linear = format!(
        "name = \"l\"\n{data}target = \"b\"\n[model]\nkind = \"linear\"\n[method]\nkind = \"sgd\"\n\
         rounds = 3\nstep = 0.01\n"
    );
    sandbox.write("m.toml", &mixture);
    sandbox.write("l.toml", &linear);
    let ran = sandbox.ok(&["compare", "m.toml", "l.toml", "--out", "both"]);
    let said =
        "`l` (linear): model differs from that of `m` (gmm), so objectives are not comparable";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    let page = sandbox.read("both/report.html");
    assert!(page.contains("Objective: gmm") && page.contains("Objective: linear"));
}

#[test]
fn a_check_writes_nothing_and_counts_the_stages_before_the_fit() {
    let sandbox = Sandbox::new();
    let table = (0..40).map(|i| format!("w{},{},{}\n", i % 2, i % 7, i * i % 11));
    sandbox.write("data.csv", &format!("ward,a,b\n{}", table.collect::<String>()));
    sandbox.write(
        "job.toml",
        "[data]\nsource = \"csv\"\npath = \"data.csv\"\nclient = \"ward\"\ntarget = \"b\"\n[model]\n\
         kind = \"linear\"\nridge = 0.1\n[method]\nkind = \"sgd\"\nrounds = 3\nstep = 0.01\n",
    );
    let report = sandbox.ok(&["check", "job.toml", "--json"]).json();
    assert!(report["seconds_before_fit"].as_f64().unwrap() >= 0.0);
    assert_eq!(report["stages_cut_short"], false);
    assert!(!sandbox.path(".cache").exists(), "the minimum was kept");
    sandbox.run_job("out");
    assert!(sandbox.path(".cache").exists(), "a run keeps it");
    assert!(sandbox.ok(&["check", "job.toml"]).stdout.contains("stages before the fit"));
}

#[test]
fn a_report_without_its_figures_says_so() {
    let sandbox = small();
    sandbox.run_job("out");
    fs::remove_file(sandbox.path("out/measures.json")).unwrap();
    let ran = sandbox.ok(&["report", "out"]);
    assert!(
        ran.stderr.contains("warning: ") && ran.stderr.contains("measures.json"),
        "{}",
        ran.stderr
    );
}

#[test]
fn what_was_clipped_is_in_the_summary() {
    let sandbox = Sandbox::new();
    // Almost constant: constant columns are refused before the fit.
    let b = |i| if i == 0 { "3.000000000001" } else { "3" };
    let table = (0..40).map(|i| format!("w{},{},{}\n", i % 2, i % 7, b(i)));
    sandbox.write("data.csv", &format!("ward,a,b\n{}", table.collect::<String>()));
    sandbox.write(
        "job.toml",
        "[data]\nsource = \"csv\"\npath = \"data.csv\"\nclient = \"ward\"\n[model]\nkind = \"gmm\"\n\
         components = 1\ncovariance = \"diagonal\"\ninit = \"moments\"\n[method]\nkind = \"fedem\"\n\
         rounds = 3\nstep = 1.0\n",
    );
    let ran = sandbox.run(&["run", "job.toml", "--out", "out"]);
    assert!(ran.stderr.contains("had to be clipped"), "{}", ran.stderr);
    let notes = sandbox.object("out/summary.json")["notes"].to_string();
    assert!(notes.contains("had to be clipped"), "{notes}");
}
