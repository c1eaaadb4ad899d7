//! A run that leaves the numbers it can work with.

use crate::support::{Ran, Sandbox, mixture_job};

fn diverged(json: bool) -> (Sandbox, Ran) {
    let method = "kind = \"fedem\"\nrounds = 200\nstep = 50\nevaluate = { every = 1 }\n[uplink]\n\
        codec = { kind = \"dithering\", levels = 1 }";
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", method));
    let mut args = vec!["run", "job.toml", "--out", "out"];
    args.extend(json.then_some("--json"));
    let ran = sandbox.run(&args);
    (sandbox, ran)
}

#[test]
fn the_message_names_the_round_and_what_was_computed_is_kept() {
    let (sandbox, ran) = diverged(false);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
    let error = ran.stderr.lines().find(|line| line.starts_with("error: ")).expect("an error");
    let round = error.strip_prefix("error: round ").and_then(|rest| rest.split(':').next());
    let round: u64 = round.and_then(|r| r.parse().ok()).unwrap_or_else(|| panic!("{error}"));
    let rows = sandbox.metrics("out");
    let last = rows.last().expect("metrics up to there")["round"].as_u64().unwrap();
    assert!(last < round && round <= last + 1, "round {round} after {last}");
    let page = sandbox.read("out/report.html");
    assert!(page.contains("<strong>Diverged</strong>"), "the banner");
    assert!(page.contains(&format!("round {round}: ")), "and why");
    assert!(!sandbox.path("out/model").exists(), "a model that failed is not a model");
    let summary = sandbox.object("out/summary.json");
    assert_eq!(summary["ending"], "diverged");
    let detail = summary["ending_detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("round {round}: ")), "{detail}");
}

#[test]
fn it_can_be_reported_again_and_not_resumed_or_used() {
    let (sandbox, ran) = diverged(true);
    assert_eq!(ran.code, 1);
    assert_eq!(ran.json()["ending"], "diverged");
    sandbox.ok(&["report", "out", "--out", "page.html"]);
    assert_eq!(sandbox.read("page.html"), sandbox.read("out/report.html"));
    sandbox.fails(
        &["run", "job.toml", "--out", "out", "--resume"],
        2,
        "the run in out has ended: diverged",
    );
    sandbox.write("rows.csv", "x1,x2\n0,0\n");
    sandbox.fails(
        &["predict", "out", "--data", "rows.csv", "--out", "p.csv"],
        2,
        "it is unfinished, or it failed",
    );
}

#[test]
fn a_comparison_goes_on_without_it() {
    let (sandbox, _) = diverged(false);
    let job = sandbox.read("job.toml").replace("\"small\"", "\"wild\"");
    sandbox.write("wild.toml", &job);
    sandbox.write("tame.toml", &job.replace("wild", "tame").replace("step = 50", "step = 0.5"));
    let ran = sandbox.fails(
        &["compare", "wild.toml", "tame.toml", "--out", "both"],
        1,
        "warning: wild failed: round ",
    );
    assert!(ran.stdout.contains("wild  diverged "), "{}", ran.stdout);
    let ran = sandbox.run(&["compare", "wild.toml", "--out", "alone"]);
    assert_eq!(ran.code, 1, "nothing is left to compare");
}
