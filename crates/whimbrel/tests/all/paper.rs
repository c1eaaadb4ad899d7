//! `whimbrel paper`: figures and tables of the papers, reproduced.

use crate::support::Sandbox;

/// One study per kind of claim, all on generated data.
const STUDIES: [&str; 5] =
    ["fedem-figure-1", "mcm-table-1", "mcm-figure-s1", "mcm-figure-s2", "fedmix-j4"];

#[test]
fn five_studies_hold_at_quick_scale_and_their_jobs_can_be_run_again() {
    let sandbox = Sandbox::new();
    let options = ["--out", "out", "--markdown", "pages", "--json"];
    let checked = sandbox.ok(&[&["paper", "check"], &STUDIES[..], &options].concat()).json();
    for study in STUDIES {
        let claims = checked[study]["claims"].as_array().unwrap();
        let holds = |claim: &serde_json::Value| {
            claim["holds"] != "NO" && (claim["holds"] == "yes" || claim["obtained"].is_number())
        };
        assert!(!claims.is_empty() && claims.iter().all(holds), "{study}: {claims:?}");
    }
    let page = std::fs::read_to_string(sandbox.path("out/papers.html")).unwrap();
    assert!(STUDIES.iter().all(|study| page.contains(&format!("<section id=\"{study}\""))));
    let page = std::fs::read_to_string(sandbox.path("pages/mcm.md")).unwrap();
    assert!(
        page.contains("## Table 1") && page.contains("## Exhibits without a command"),
        "{page}"
    );

    sandbox.ok(&["run", "out/fedem-figure-1/jobs/vr-fedem-paper.toml", "--out", "again"]);
    let study = sandbox.result_bytes("out/fedem-figure-1/vr-fedem-paper");
    assert_eq!(sandbox.result_bytes("again"), study);
}

#[test]
fn every_exhibit_is_listed_with_its_status() {
    let sandbox = Sandbox::new();
    let listed = sandbox.ok(&["paper", "list", "--json"]).json();
    assert_eq!(listed["mcm-table-3"]["data"][0], "a9a");
    assert_eq!(listed["fedem-figure-1"]["jobs"][0], "fedem-paper.toml");
    assert_ne!(listed["mcm-figure-1"]["known_disagreements"], 0);
    let absent = listed["not run"].as_array().unwrap();
    assert!(absent.iter().any(|one| one["exhibit"] == "Figure S8"), "{absent:?}");
    let text = sandbox.ok(&["paper", "list"]).stdout;
    assert!(text.contains("not run: data not at hand (SVHN)"), "{text}");
}

#[test]
fn data_are_also_found_where_the_environment_says() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.path("sets/a9a")).unwrap();
    let args = ["paper", "run", "mcm-figure-1", "--out", "out"];
    let ran = sandbox.command(&args).env("WHIMBREL_DATA", "sets").output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(said.contains("a9a.gz") && !said.contains("reads published data"), "{said}");
}

#[test]
fn published_data_are_asked_for_and_nothing_is_left_behind() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("data")).unwrap();
    for (args, says) in [
        (&["mcm-table-3"][..], "reads published data"),
        (&["mcm-table-3", "--data", "data"], "a9a is not a folder"),
        (&["fedem-figure-1", "--data", "data"], "generates its data"),
        (&["fedem-figure-2"], "fedem-figure-1"),
        (&["fedem-figure-1", "--scale", "large"], "quick, paper"),
    ] {
        sandbox.fails(&[&["paper", "run"], args, &["--out", "out"]].concat(), 2, says);
        assert!(!sandbox.path("out").exists());
    }
}
