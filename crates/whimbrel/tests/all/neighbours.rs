//! A method without a server, from the command line.

use crate::same_bits::stop_in_the_middle;
use crate::support::{Sandbox, number};

const JOB: &str = r#"name = "neighbours"
seed = 2
[data]
source = "synthetic-mixture"
clients = 20
components = 2
dimension = 10
alpha = 0.4
unseen = 0.2
[model]
kind = "logistic"
[method]
kind = "d-fedmix"
components = 2
rounds = 150
batch = 16
step = 1.0
evaluate = { every = 1 }
[simulation]
checkpoint_seconds = 0
"#;

#[test]
fn a_killed_run_resumes_to_the_same_bits() {
    let sandbox = Sandbox::with_job(JOB);
    let summary = sandbox.run_job("whole");
    for key in ["test_accuracy", "unseen_accuracy", "disagreement", "spectral_gap"] {
        assert!(number(&summary, key) > 0.0, "{key}");
    }
    for lines in [1, 60] {
        stop_in_the_middle(&sandbox, lines, |child| child.kill().unwrap());
        sandbox.ok(&["run", "job.toml", "--out", "out", "--resume"]);
        assert_eq!(sandbox.result_bytes("whole"), sandbox.result_bytes("out"), "at {lines}");
        assert_eq!(sandbox.read("whole/clients.csv"), sandbox.read("out/clients.csv"));
    }
    let page = sandbox.read("whole/report.html");
    assert!(page.contains("Disagreement") && page.contains("Spectral gap"));
}

#[test]
fn it_is_checked_and_compared_and_not_served() {
    let short = JOB.replace("rounds = 150", "rounds = 3");
    let sandbox = Sandbox::with_job(&short);
    let checked = sandbox.ok(&["check", "job.toml"]);
    assert!(checked.stderr.contains("pairs of neighbours among 16 clients"), "{}", checked.stderr);
    sandbox.write("star.toml", &short.replace("d-fedmix", "fedmix").replace("neighbours", "star"));
    sandbox.ok(&["compare", "job.toml", "star.toml", "--out", "both"]);
    sandbox.write("rows.csv", "a,b,y,ward\n1,2,0,n\n2,1,1,s\n");
    let served = "[data]\nsource = \"csv\"\npath = \"rows.csv\"\nclient = \"ward\"\ntarget = \"y\"\n\
                  [model]\nkind = \"logistic\"\n[method]\nkind = \"d-fedmix\"\nrounds = 3\n\
                  [federation]\nclients = [\"n\", \"s\"]\n";
    sandbox.write("served.toml", served);
    sandbox.fails(&["serve", "served.toml", "--out", "served"], 2, "d-fedmix has no server");
}
