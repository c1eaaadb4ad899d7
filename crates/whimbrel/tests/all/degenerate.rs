//! A fit that ends outside the domain of its M-step is no success.

use crate::federation::{NAMES, invitations, join, serve, wait, wards};
use crate::support::{Ran, Sandbox, mixture_job};

/// Every covariance is below this floor, so the delivered ones were clipped.
fn degenerate(method: &str, json: bool) -> (Sandbox, Ran) {
    let model = "covariance = \"full\"\ncovariance_floor = 0.9";
    let method = format!("kind = \"fedem\"\nrounds = 20\n{method}");
    let sandbox = Sandbox::with_job(&mixture_job(model, &method));
    let mut args = vec!["run", "job.toml", "--out", "out"];
    args.extend(json.then_some("--json"));
    let ran = sandbox.run(&args);
    (sandbox, ran)
}

#[test]
fn it_ends_as_degenerate_with_code_one_and_a_complete_folder() {
    let (sandbox, ran) = degenerate("", false);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("small  degenerate "), "{}", ran.stdout);
    let error = ran.stderr.lines().find(|line| line.starts_with("error: ")).expect("an error");
    assert!(error.contains("the fit is degenerate: "), "{error}");
    assert!(error.contains("had to be clipped"), "{error}");
    assert!(error.contains("reg_covar"), "the remedy: {error}");
    let summary = sandbox.object("out/summary.json");
    assert_eq!(summary["ending"], "degenerate");
    assert_eq!(summary["degenerate"], summary["ending_detail"]);
    let page = sandbox.read("out/report.html");
    assert!(page.contains("<strong>Degenerate</strong>"), "the banner");
    assert!(sandbox.path("out/model/model.json").exists(), "the model is there to look at");
    assert!(sandbox.path("out/clients.csv").exists());
}

/// Nothing is clipped where the covariance is known: one coordinate a message and a bold step just
/// leave the means where no rows are.
#[test]
fn so_does_a_fit_that_is_worse_than_one_gaussian() {
    let model = "init = \"moments\"\ncovariance = \"known\"\nknown_covariance = [[1, 0], [0, 1]]";
    let method = "kind = \"fedem\"\nrounds = 5\nstep = 3.0\n[uplink]\nframe = \"raw\"\n\
                  codec = { kind = \"sparse\", k = 1 }";
    let sandbox = Sandbox::with_job(&mixture_job(model, method));
    let ran = sandbox.run(&["run", "job.toml", "--out", "out"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let said = "the fit is degenerate: one component is better by ";
    assert!(ran.stderr.contains(said) && ran.stderr.contains("run more rounds"), "{}", ran.stderr);
}

/// A component on one value of a column has the width that `reg_covar` gives it.
#[test]
fn a_component_on_one_value_is_named() {
    let row = |i: usize| format!("s{},{},{}\n", i % 2, [5, 10, 20, 20][i * 7 % 4], i * 37 % 101);
    let model = "name = \"d\"\nseed = 1\n[data]\nsource = \"csv\"\npath = \"d.csv\"\nclient = \"site\"\n\
                 standardize = true\n[model]\nkind = \"gmm\"\ncomponents = 2\ncovariance = \"diagonal\"\n";
    let sandbox = Sandbox::with_job(&format!("{model}reg_covar = 1e-6\n[method]\nkind = \"em\"\n"));
    sandbox.write("d.csv", &("site,dose,x\n".to_owned() + &(0..120).map(row).collect::<String>()));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out"]);
    let said = "covariances with the width of reg_covar alone: 1, ";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
}

#[test]
fn a_job_may_allow_it() {
    let (_, ran) = degenerate("allow_degenerate = true", true);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.json()["ending"], "degenerate");
    assert!(ran.stderr.contains("warning: the fit is degenerate: "), "{}", ran.stderr);
}

#[test]
fn a_comparison_marks_it() {
    let (sandbox, _) = degenerate("", false);
    let job = sandbox.read("job.toml");
    sandbox.write("bad.toml", &job.replace("\"small\"", "\"bad\""));
    let good = job.replace("\"small\"", "\"good\"").replace("covariance_floor = 0.9", "");
    sandbox.write("good.toml", &good);
    let ran = sandbox.run(&["compare", "bad.toml", "good.toml", "--out", "both"]);
    assert!(ran.stdout.contains("bad   degenerate "), "{}", ran.stdout);
    assert!(ran.stdout.contains("good  converged "), "{}", ran.stdout);
    assert!(ran.stderr.contains("warning: bad is degenerate: "), "{}", ran.stderr);
    assert_eq!(ran.code, 1, "as a run of its own");
}

/// Coordinator and clients say so, each with its exit code, and so does whoever uses the model.
#[test]
fn everyone_of_a_served_job_is_told() {
    let sandbox = wards(20, "");
    let job = sandbox.read("job.toml").replace(
        "components = 2\n",
        "components = 2\ncovariance = \"full\"\ncovariance_floor = 0.9\n",
    );
    sandbox.write("job.toml", &job);
    let mut coordinator = serve(&sandbox, false);
    let mut clients: Vec<_> = invitations(&sandbox)
        .iter()
        .map(|(name, invitation)| join(&sandbox, name, invitation))
        .collect();
    wait("the end", || coordinator.is_over() && clients.iter_mut().all(|c| c.is_over()));
    assert_eq!(coordinator.code(), Some(1), "{}", sandbox.read("serve.log"));
    for (name, client) in NAMES.iter().zip(&mut clients) {
        let said = sandbox.read(&format!("{name}.log"));
        assert_eq!(client.code(), Some(1), "{said}");
        assert!(said.contains("error: the fit is degenerate: "), "{said}");
        assert!(said.contains("the model is in client-"), "{said}");
    }
    // The verdict is logged once; the command ends with the error.
    let log = sandbox.read("serve.log");
    let logged = log.lines().filter(|line| !line.starts_with("error: "));
    assert_eq!(logged.filter(|line| line.contains(" degenerate: ")).count(), 1, "{log}");
    let status = sandbox.ok(&["status", "served"]).stdout;
    assert!(status.starts_with("the fit is degenerate: "), "{status}");
    let args = ["predict", "client-east", "--data", "east.csv", "--out", "labels.csv"];
    let said = sandbox.ok(&args).stderr;
    assert!(said.contains("warning: the fit of this run is degenerate: "), "{said}");
}
