//! Every start, covariance, step, length and stop that a job can ask for.

use crate::support::{Sandbox, fixture, mixture_job, number};

const FEDEM: &str = "kind = \"fedem\"\nrounds = 80\nstep = 0.5\n[uplink]\n\
    codec = { kind = \"dithering\", levels = 2 }";

/// Runs a job; its sandbox and what it said.
fn ran(model: &str, method: &str) -> (Sandbox, String) {
    let sandbox = Sandbox::with_job(&mixture_job(model, method));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    (sandbox, ran.stderr)
}

#[test]
fn every_start_leads_to_a_fit() {
    let mut objectives = Vec::new();
    for init in ["moments", "federated-kmeans", "examples"] {
        let (sandbox, stderr) = ran(&format!("init = \"{init}\""), &FEDEM.replace("80", "400"));
        let warned = stderr.contains("warning: init = \"examples\" sends raw rows of clients");
        assert_eq!(warned, init == "examples", "{stderr}");
        objectives.push(number(&sandbox.object("out/summary.json"), "objective"));
    }
    // Two components far apart: every start finds the same optimum.
    for pair in objectives.windows(2) {
        assert!((pair[0] - pair[1]).abs() < 1e-6, "{objectives:?}");
    }
}

#[test]
fn every_covariance_has_its_form() {
    let known = "known_covariance = [[1.0, 0.3], [0.3, 0.8]]\ncovariance = \"known\"";
    let others = ["tied", "diagonal", "full"].map(|kind| format!("covariance = \"{kind}\""));
    let mut objectives = Vec::new();
    for model in [known.to_string()].into_iter().chain(others) {
        let (sandbox, _) = ran(&model, FEDEM);
        let text = sandbox.read("out/model/model.json");
        assert!(!text.contains("seconds"), "no clock in the model: {text}");
        let model = sandbox.object("out/model/model.json");
        let shape = |key: &str| -> Option<Vec<usize>> {
            let mut value = model.get(key)?;
            let mut shape = Vec::new();
            while let Some(items) = value.as_array() {
                shape.push(items.len());
                value = items.first()?;
            }
            Some(shape)
        };
        assert_eq!(shape("weights"), Some(vec![2]));
        assert_eq!(shape("means"), Some(vec![2, 2]));
        let found = (shape("covariance"), shape("covariances"));
        match model["covariance_kind"].as_str().unwrap() {
            "known" | "tied" => assert_eq!(found, (Some(vec![2, 2]), None)),
            "diagonal" => assert_eq!(found, (None, Some(vec![2, 2]))),
            "full" => assert_eq!(found, (None, Some(vec![2, 2, 2]))),
            other => panic!("{other}"),
        }
        objectives.push(number(&model, "objective"));
    }
    assert!(objectives[3] < objectives[1], "full fits no worse than tied: {objectives:?}");
}

#[test]
fn the_theory_says_its_constants() {
    let (sandbox, stderr) = ran("init = \"moments\"", &FEDEM.replace("0.5", "\"theory\""));
    let summary = sandbox.object("out/summary.json");
    let theory = summary["theory"].as_object().expect("constants");
    for name in ["v_min", "v_max", "lipschitz", "omega", "gamma_max", "gamma"] {
        assert!(number(theory, name) > 0.0, "{name}");
        assert!(stderr.contains(&format!("{name} = ")), "{stderr}");
    }
    assert!(number(theory, "gamma") <= number(theory, "gamma_max"));
    let stages: Vec<_> = sandbox.journal("out").iter().map(|e| e["stage"].clone()).collect();
    assert!(stages.contains(&0.into()) && stages.contains(&1.into()), "estimate, then fit");
}

/// A decreasing step is the constant one at first, and less later.
#[test]
fn decreasing_steps_decrease() {
    let end = |step: &str| {
        let (sandbox, _) = ran("init = \"moments\"", &FEDEM.replace("= 0.5", &format!("= {step}")));
        let rows = sandbox.metrics("out");
        let update = |row: usize| number(&rows[row], "update_norm2");
        // The first round is the E-step at the start: the second takes the first step.
        (update(2), number(&rows[rows.len() - 1], "objective"))
    };
    let constant = end("0.5");
    let flat = end("{ initial = 0.5, power = 0.0, delay = 10 }");
    assert_eq!(constant, flat, "power 0 is a constant step");
    let falling = end("{ initial = 0.5, power = 1.0, delay = 1 }");
    assert_eq!(constant.0, falling.0, "the first step is the same");
    assert_ne!(constant.1, falling.1);
}

#[test]
fn epochs_are_passes_over_the_rows() {
    let method = FEDEM.replace("rounds = 80", "epochs = 3\nbatch = 10");
    let (sandbox, _) = ran("init = \"moments\"", &method);
    let last = sandbox.metrics("out").pop().unwrap();
    let (epoch, round) = (number(&last, "epoch"), number(&last, "round"));
    // The first round and the memories' opening are a pass each; every other round is a quarter of
    // one: ten rows of the forty that each client holds.
    assert!((3.0..3.25).contains(&epoch), "{epoch}");
    assert_eq!(round, 1.0 + ((epoch - 2.0) * 4.0).round());
    let check = sandbox.ok(&["check", "job.toml", "--json"]).json();
    assert_eq!(number(&check, "rounds"), round, "as it was announced");
}

#[test]
fn a_small_field_stops_the_run() {
    let method =
        FEDEM.replace("step", "stop = { field_norm2 = 1e-6 }\nevaluate = { every = 2 }\nstep");
    let (sandbox, stderr) = ran("init = \"moments\"", &method.replace("80", "1000"));
    let summary = sandbox.object("out/summary.json");
    assert!(stderr.contains("stopped after "), "{stderr}");
    assert!(summary["ending_detail"].as_str().unwrap().contains(": ‖h‖²"));
    assert!(number(&summary, "rounds") < 1000.0);
    let rows = sandbox.metrics("out");
    let (last, earlier) = rows.split_last().unwrap();
    assert!(number(last, "field_norm2") <= 1e-6);
    assert!(earlier[0]["field_norm2"].is_null(), "before the first statistic there is no field");
    let large = |row| number(row, "field_norm2") > 1e-6;
    assert!(earlier[1..].iter().all(large), "it stops at the first");
    assert!(sandbox.read("out/report.html").contains("is at most"));
}

#[test]
fn patience_runs_out() {
    let stop = "stop = { patience = 4, tolerance = 1e-6 }\nevaluate = { every = 1 }\nstep";
    let (sandbox, stderr) =
        ran("init = \"moments\"", &FEDEM.replace("step", stop).replace("80", "5000"));
    let summary = sandbox.object("out/summary.json");
    assert!(stderr.contains("stopped after "), "{stderr}");
    assert!(summary["ending_detail"].as_str().unwrap().contains("the objective has stayed at"));
    assert!(number(&summary, "rounds") < 5000.0);
}

#[test]
fn streams_have_no_end_and_no_rows() {
    let method = FEDEM.replace("step = 0.5", "batch = 20\nstep = { initial = 0.5 }");
    let job = mixture_job("init = \"moments\"", &method).replace("rows = 40", "stream = true");
    let sandbox = Sandbox::with_job(&job);
    let summary = sandbox.run_job("out");
    assert!(summary["rows"].is_null());
    assert_eq!(summary["rounds"], 80);
    let clients = sandbox.read("out/clients.csv");
    assert!(clients.lines().skip(1).all(|line| line.split(',').nth(1) == Some("")), "{clients}");
    sandbox.ok(&["run", "job.toml", "--out", "again", "--threads", "1"]);
    assert_eq!(sandbox.result_bytes("out"), sandbox.result_bytes("again"));
}

#[test]
fn every_method_and_rule_runs() {
    for (kind, uplink) in [
        ("dem", "codec = { kind = \"dithering\", levels = 16 }"),
        ("fedem", "codec = \"natural\"\nstart = \"zero\""),
        ("fedem", "codec = { kind = \"sparse\", q = 0.5 }\nalpha = 0.25"),
        ("fedem", "codec = { kind = \"top-k\", k = 2 }\nrule = \"feedback\""),
        ("fedem", "codec = { kind = \"block-p\", size = 3 }"),
        ("fedem", "codec = \"exact-f32\""),
    ] {
        let method = format!("kind = \"{kind}\"\nrounds = 30\nstep = 0.3\n[uplink]\n{uplink}");
        let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", &method));
        let ran = sandbox.run(&["run", "job.toml", "--out", "out"]);
        assert_eq!(ran.code, 0, "{uplink}: {}", ran.stderr);
        let rows = sandbox.metrics("out");
        let (first, last) =
            (number(&rows[0], "objective"), number(rows.last().unwrap(), "objective"));
        assert!(last < first, "{kind}, {uplink}: {last} after {first}");
    }
}

/// A start so far away that nothing is ever near it.
#[test]
fn a_component_that_lost_its_weight_is_named() {
    let job = "name = \"wards\"\n[data]\nsource = \"csv\"\npath = \"data.csv\"\nclient = \"client\"\n\
        [model]\nkind = \"gmm\"\ncomponents = 3\ninit = \"init.json\"\n\
        [method]\nkind = \"fedem\"\nstep = 1.0\nrounds = 20\n";
    let sandbox = Sandbox::with_job(job);
    sandbox.write("data.csv", &fixture("data.csv"));
    let init = "{\"weights\": [0.4, 0.3, 0.3], \"means\": [[0, 0, 0], [900, 900, 900], [3, -1, 2]], \
        \"covariance\": [[2, 0, 0], [0, 2, 0], [0, 0, 2]]}";
    sandbox.write("init.json", init);
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    let warned = "warning: wards: component 2 lost its weight on the way";
    assert_eq!(ran.stderr.matches(warned).count(), 1, "{}", ran.stderr);
    let rows = sandbox.metrics("out");
    assert!(!rows[0].contains_key("dead"), "before the first M-step nothing is lost");
    assert!(rows[1..].iter().all(|row| row["dead"] == serde_json::json!([2.0])), "{rows:?}");
    // With every component alive there is nothing to say.
    sandbox.write("init.json", &init.replace("900, 900, 900", "-2, 3, 1"));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "alive"]);
    assert!(!ran.stderr.contains("lost its weight"), "{}", ran.stderr);
    assert!(sandbox.metrics("alive").iter().all(|row| !row.contains_key("dead")));
}
