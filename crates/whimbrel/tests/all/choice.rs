//! Choosing a mixture: several starts, several numbers of components, several seeds.

use crate::support::{Sandbox, mixture_job, number};

/// Three well separated components of 600 rows in the plane, over six clients.
const DATA: &str = "name = \"small\"\nseed = 3\n\n[data]\nsource = \"mixture\"\nclients = 6\nrows = 100\n\
    means = [[0, 0], [8, 0], [0, 8]]\nheterogeneity = { dirichlet = 0.5 }\nvalidation = 0.1\n";

fn job(model: &str, method: &str) -> String {
    format!("{DATA}\n[model]\nkind = \"gmm\"\n{model}\n\n[method]\n{method}\n")
}

const FIT: &str = "kind = \"fedem\"\nrounds = 20\nstep = 1.0";

#[test]
fn the_number_of_components_is_that_of_the_lowest_bic() {
    let sandbox = Sandbox::with_job(&job("components = [1, 2, 3, 5]\nstarts = 3", FIT));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert!(
        ran.stderr.contains("3 components have the lowest BIC of 1, 2, 3, 5"),
        "{}",
        ran.stderr
    );
    let summary = sandbox.object("out/summary.json");
    assert_eq!(summary["components"], 3);
    let model = sandbox.object("out/model/model.json");
    assert_eq!(model["weights"].as_array().unwrap().len(), 3);
    let exhibits = sandbox.read("out/exhibits.json");
    assert!(exhibits.contains("Choice of the mixture") && exhibits.contains("\"chosen\""));
    assert!(exhibits.contains("validation log-likelihood per row"), "{exhibits}");
    assert!(exhibits.contains("Components of each client"), "{exhibits}");
    let resolved = sandbox.read("out/job.toml");
    assert!(resolved.contains("components = [1, 2, 3, 5]"), "{resolved}");
    assert!(sandbox.read("out/report.html").contains("Choice of the mixture"));
    sandbox.write("rows.csv", "x1,x2\n0,0\n8,0\n");
    let columns = model["columns"].as_array().unwrap();
    let header = columns.iter().map(|c| c.as_str().unwrap()).collect::<Vec<_>>().join(",");
    sandbox.write("rows.csv", &format!("{header}\n0,0\n8,0\n"));
    sandbox.ok(&["predict", "out", "--data", "rows.csv", "--out", "p.csv"]);
    sandbox.ok(&["--threads", "1", "run", "job.toml", "--out", "one"]);
    assert_eq!(sandbox.result_bytes("out"), sandbox.result_bytes("one"));
}

#[test]
fn auto_is_one_to_ten() {
    let sandbox = Sandbox::with_job(&job("components = \"auto\"", FIT));
    sandbox.ok(&["run", "job.toml", "--out", "out"]);
    assert_eq!(sandbox.object("out/summary.json")["components"], 3);
    assert!(sandbox.read("out/job.toml").contains("components = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"));
}

/// The start of a fit from several is at least as good as each of them.
#[test]
fn several_starts_are_compared_by_likelihood() {
    for init in ["federated-kmeans", "moments"] {
        let model = format!("components = 3\nstarts = 8\ninit = \"{init}\"");
        let sandbox = Sandbox::with_job(&job(&model, FIT));
        let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
        assert!(ran.stderr.contains("of 8 has the highest likelihood"), "{}", ran.stderr);
        let exhibits: serde_json::Value =
            serde_json::from_str(&sandbox.read("out/exhibits.json")).unwrap();
        let rows = exhibits["diagnostics"][0]["exhibits"][1]["rows"].as_array().unwrap().clone();
        assert_eq!(rows.len(), 8, "{init}");
        let likelihood = |row: &serde_json::Value| row[4].as_str().unwrap().parse::<f64>().unwrap();
        let chosen = rows.iter().find(|row| row[6] == "chosen" || row[5] == "chosen").unwrap();
        assert!(rows.iter().all(|row| likelihood(row) <= likelihood(chosen)), "{init}");
    }
}

#[test]
fn a_file_or_examples_are_one_start() {
    for init in ["\"examples\"", "\"init.json\""] {
        let sandbox =
            Sandbox::with_job(&job(&format!("components = 3\nstarts = 2\ninit = {init}"), FIT));
        sandbox.fails(&["check", "job.toml"], 2, "federated k-means or from moments");
    }
}

#[test]
fn the_model_of_several_seeds_is_the_best_ones() {
    let text =
        job("components = 3\ninit = \"moments\"", FIT).replace("seed = 3", "seed = 3\nseeds = 4");
    let sandbox = Sandbox::with_job(&text);
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    let summary = sandbox.object("out/summary.json");
    let best = summary["delivered_seed"].as_u64().unwrap();
    assert!(ran.stderr.contains(&format!("the model is that of seed {best}")), "{}", ran.stderr);
    let page = sandbox.read("out/report.html");
    assert!(page.contains(&format!("<h3>seed {best}, whose model is delivered</h3>")));
    let objective =
        |seed: u64| number(&sandbox.object(&format!("out/seed-{seed}/summary.json")), "objective");
    assert!((3..7).all(|seed| objective(best) <= objective(seed)));
    assert_eq!(
        sandbox.read("out/model/model.json"),
        sandbox.read(&format!("out/seed-{best}/model/model.json"))
    );
}

/// A step at which nothing settles: the run ends at its cap.
/// The floor is above what three of four seeds arrive at; the model of the fourth is sound.
#[test]
fn degenerate_seeds_are_named_beside_a_sound_one() {
    let model = "init = \"moments\"\ncovariance = \"full\"\ncovariance_floor = 0.2";
    let job = mixture_job(model, "kind = \"fedem\"\nrounds = 20");
    let sandbox = Sandbox::with_job(&job.replace("seed = 3\n", "seed = 3\nseeds = 4\n"));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    let said = "the fits of these seeds are degenerate: 4, 5, 6";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    let summary = sandbox.object("out/summary.json");
    assert_eq!(summary["ending"], "stopped");
    assert_eq!(summary["delivered_seed"], 3);
    assert_eq!(summary["degenerate_seeds"], serde_json::json!(["4", "5", "6"]));
    let ending =
        |seed: u32| sandbox.object(&format!("out/seed-{seed}/summary.json"))["ending"].clone();
    assert_eq!(ending(3), "stopped");
    assert_eq!(ending(4), "degenerate");
    let model = |run: &str| sandbox.read(&format!("{run}/model/model.json"));
    assert_eq!(model("out"), model("out/seed-3"));
}

#[test]
fn a_run_that_ends_at_its_cap_says_so() {
    let slow = "kind = \"fedem\"\nstep = 0.00001";
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", slow));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    let said = "stopped after 1000 rounds, not converged: relative field";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    assert_eq!(sandbox.object("out/summary.json")["ending"], "stopped");
}

/// Six rows are too few for three clusters of five: moments give the start.
#[test]
fn a_small_client_alone_has_a_start_too() {
    let text = job(
        "components = 3\ncovariance = \"tied\"",
        "kind = \"fedem\"\nrounds = 2\nallow_degenerate = true",
    );
    let text = text
        .replace("clients = 6\nrows = 100", "clients = 1\nrows = 6")
        .replace("validation = 0.1\n", "");
    let sandbox = Sandbox::with_job(&text);
    assert_eq!(number(&sandbox.run_job("out"), "rounds"), 2.0);
}

/// Without `rounds` the server's own update ends the run; with them it takes them all.
#[test]
fn a_mixture_without_rounds_ends_when_it_has_converged() {
    let free = FIT.replace("rounds = 20\n", "");
    let sandbox = Sandbox::with_job(&job("components = 3", &free));
    let summary = sandbox.run_job("out");
    let rounds = number(&summary, "rounds");
    assert!((4.0..1000.0).contains(&rounds), "{rounds}");
    assert!(!sandbox.read("out/job.toml").contains("rounds ="));
    sandbox.ok(&["run", "out/job.toml", "--out", "again"]);
    assert_eq!(sandbox.result_bytes("out"), sandbox.result_bytes("again"));
    let longer = job("components = 3", &FIT.replace("rounds = 20", "rounds = 400"));
    sandbox.write("job.toml", &longer);
    let long = sandbox.run_job("long");
    assert_eq!(number(&long, "rounds"), 400.0);
    let gap = number(&summary, "objective") - number(&long, "objective");
    assert!(gap.abs() < 1e-6, "{gap}");
    sandbox.write(
        "job.toml",
        &longer
            .replace("kind = \"gmm\"\ncomponents = 3", "kind = \"linear\"")
            .replace("rounds = 400\n", ""),
    );
    assert_eq!(sandbox.run(&["check", "job.toml"]).code, 2);
}
