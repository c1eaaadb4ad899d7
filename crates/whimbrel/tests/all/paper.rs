//! `whimbrel paper`: figures and tables of the papers, reproduced.

use crate::support::Sandbox;

#[test]
fn a_figure_is_reproduced_and_its_jobs_can_be_run_again() {
    let sandbox = Sandbox::new();
    let listed = sandbox.ok(&["paper", "list", "--json"]).json();
    assert_eq!(listed["fedem-figure-1"]["jobs"][0], "fedem-sampled.toml");

    let ran = sandbox.ok(&["paper", "run", "fedem-figure-1", "--out", "figure", "--json"]).json();
    let claims = ran["claims"].as_array().unwrap();
    assert_eq!(claims.len(), 2);
    assert!(claims.iter().all(|claim| claim["holds"] == true), "{claims:?}");
    assert!(sandbox.path("figure/report.html").is_file());

    sandbox.ok(&["run", "figure/jobs/vr-fedem-sampled.toml", "--out", "again"]);
    assert_eq!(sandbox.result_bytes("again"), sandbox.result_bytes("figure/vr-fedem-sampled"));
}

#[test]
fn published_data_are_asked_for_and_nothing_is_left_behind() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("data")).unwrap();
    for (args, says) in [
        (&["mcm-table-3-a9a"][..], "reads published data"),
        (&["mcm-table-3-a9a", "--data", "data"], "a9a is not a folder"),
        (&["fedem-figure-1", "--data", "data"], "generates its data"),
        (&["fedem-figure-2"], "fedem-figure-1"),
    ] {
        let ran = sandbox.run(&[&["paper", "run"], args, &["--out", "out"]].concat());
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
        assert!(!sandbox.path("out").exists());
    }
}
