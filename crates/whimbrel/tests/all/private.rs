//! Differential privacy over `serve` and `join`, and through kills.

use crate::federation::{NAMES, serve_to_end, write_classes};
use crate::federation::{
    Process, all_end, invitations, join_all, join_with, serve, wait, write_two_groups,
};
use crate::support::{Sandbox, mixture_job, number, one_line};
use std::fs;
use std::path::Path;

const PRIVACY: &str = "epsilon = 2.0\ndelta = 1e-4\n";

/// Three wards with a private mixture.
fn private_wards(rounds: u32, privacy: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(&format!(
        "name = \"wards\"\nseed = 7\n\n[data]\nsource = \"csv\"\npath = \"all.csv\"\nclient = \"ward\"\n\
         columns = [\"a\", \"b\"]\n\n[model]\nkind = \"gmm\"\ncomponents = 2\ncovariance = \"diagonal\"\n\n\
         [method]\nkind = \"fedem\"\nrounds = {rounds}\n\n[privacy]\n{privacy}\n\
         [federation]\nclients = [\"west\", \"east\", \"north\"]\nlisten = \"127.0.0.1:0\"\n\
         dashboard = false\nheartbeat_s = 1\n"
    ));
    write_two_groups(&sandbox, &NAMES, |w| 300 + 20 * w);
    sandbox
}

/// Three wards with a private classifier.
fn wards_of_classes(method: &str, privacy: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(&format!(
        "name = \"wards\"\nseed = 5\n\n[data]\nsource = \"csv\"\npath = \"all.csv\"\n\
         client = \"ward\"\ncolumns = [\"a\", \"b\"]\ntarget = \"y\"\n\n[model]\nkind = \"logistic\"\n\n\
         [method]\n{method}\n[privacy]\n{privacy}\n\
         [federation]\nclients = [\"west\", \"east\", \"north\"]\nlisten = \"127.0.0.1:0\"\n\
         dashboard = false\nheartbeat_s = 1\n",
    ));
    write_classes(&sandbox);
    sandbox
}

fn budget_is_spent(summary: &serde_json::Map<String, serde_json::Value>) {
    assert_eq!(summary["ending"], "stopped");
    let detail = summary["ending_detail"].as_str().unwrap();
    assert!(detail.starts_with("(budget) after"), "{detail}");
}

/// All places that show the loss of the whole budget, on both sides.
fn shows_the_loss(sandbox: &Sandbox, uploads: u32) {
    let summary = sandbox.object("served/summary.json");
    budget_is_spent(&summary);
    let spent = number(&summary, "epsilon_spent");
    assert!(spent <= 2.0 && spent > 1.9999, "{spent}");
    assert_eq!(number(&summary, "delta"), 1e-4);
    let status = sandbox.object("served/status.json");
    assert!((number(&status, "epsilon_spent") - 2.0).abs() < 1e-6, "{status:?}");
    assert_eq!(number(&status, "delta"), 1e-4);
    assert!(sandbox.read("served/report.html").contains("epsilon 2.000 at delta 1.00e-4"));
    assert!(sandbox.ok(&["status", "served"]).stdout.contains("epsilon spent: 2.000"));
    let ledger = sandbox.ok(&["ledger", "client-north"]).stdout;
    let line = |key: &str| ledger.lines().find(|line| line.trim_start().starts_with(key)).unwrap();
    let words: Vec<&str> = line("epsilon").split_whitespace().collect();
    assert_eq!(words, ["epsilon", "2.0000", "of", "2.0000"], "{ledger}");
    assert!(
        line("uploads").ends_with(&format!("{uploads:>2} of             {uploads:>2}")),
        "{ledger}"
    );
    assert!(ledger.contains("privacy loss of any one row in `wards`"), "{ledger}");
}

#[test]
fn a_served_private_run_stops_at_its_budget_and_clients_keep_account() {
    let sandbox = private_wards(8, PRIVACY);
    serve_to_end(&sandbox);
    // Four rounds of the start and eight of the fit.
    shows_the_loss(&sandbox, 12);
    // The secret is gone, and was never part of the offer.
    assert!(!sandbox.path("served/noise").exists());
    let told = one_line(&sandbox.read("north.log"));
    let says = |part: &str| assert!(told.contains(part), "{part}: {told}");
    says("says a correct \"yes\" at most 7.39 times as often as a false one (epsilon 2)");
    says("The coordinator adds the noise and is trusted for it");
    // Two runs have other noise.
    fs::rename(sandbox.path("served"), sandbox.path("first")).unwrap();
    for name in NAMES {
        fs::remove_dir_all(sandbox.path(&format!("client-{name}"))).unwrap();
    }
    fs::remove_file(sandbox.path("serve.out")).unwrap();
    serve_to_end(&sandbox);
    let model = |run: &str| fs::read(sandbox.path(run).join("model/model.safetensors")).unwrap();
    assert!(model("served") != model("first"), "the noise was repeated");
}

/// A mixture under masks starts from noisy sums of its rows, at the cost of one without masks.
#[test]
fn a_served_mixture_under_masks_keeps_account() {
    let sandbox = private_wards(8, &format!("{PRIVACY}masks = true\nmin_cohort = 3\n"));
    serve_to_end(&sandbox);
    shows_the_loss(&sandbox, 12);
}

/// Each client samples its rows in secret, and both sides account for the sampling.
#[test]
fn sampled_rows_on_a_network_spend_the_budget_of_their_rate() {
    let sandbox = wards_of_classes(
        "kind = \"sgd\"\nrounds = 6\nstep = 0.1\n",
        "sampling = 0.2\nclip = 1.0\nepsilon = 2.0\ndelta = 1e-4\n",
    );
    serve_to_end(&sandbox);
    shows_the_loss(&sandbox, 6);
}

/// Under masks each client adds a share of the noise, from a secret of its own.
#[test]
fn clients_under_masks_share_the_noise() {
    let sandbox = wards_of_classes(
        "kind = \"fedavg\"\nrounds = 4\nstep = 0.1\n",
        "masks = true\nmin_cohort = 3\nunit = \"client\"\nclip = 0.5\nepsilon = 8.0\ndelta = 1e-3\n",
    );
    let mut models = Vec::new();
    for run in ["first", "second"] {
        serve_to_end(&sandbox);
        let summary = sandbox.object("served/summary.json");
        budget_is_spent(&summary);
        let spent = number(&summary, "epsilon_spent");
        assert!(spent <= 8.0 && spent > 7.99, "{spent}");
        let ledger = sandbox.ok(&["ledger", "client-north"]).stdout;
        assert!(ledger.contains("uploads                    4 of              4"), "{ledger}");
        models.push(fs::read(sandbox.path("served/model/model.safetensors")).unwrap());
        fs::rename(sandbox.path("served"), sandbox.path(run)).unwrap();
        for name in NAMES {
            fs::remove_dir_all(sandbox.path(&format!("client-{name}"))).unwrap();
        }
        fs::remove_file(sandbox.path("serve.out")).unwrap();
    }
    assert!(models[0] != models[1], "the noise was repeated");
    let told = one_line(&sandbox.read("north.log"));
    let said = "Each client adds its share of the noise before its messages are hidden in a sum";
    assert!(told.contains(said) && !told.contains("made up for this purpose"), "{told}");
}

/// A renewed consent adds to the loss of the answers before it.
#[test]
fn a_renewed_consent_adds_to_the_loss() {
    let sandbox = private_wards(3, PRIVACY);
    let coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let clients = join_all(&sandbox, &invitations);
    all_end(&sandbox, coordinator, &invitations, clients);
    let (name, invitation) = &invitations[0];
    let folder = format!("client-{name}");
    let epsilon = || {
        let ledger = sandbox.ok(&["ledger", &folder]).stdout;
        let line = ledger.lines().find(|line| line.starts_with("  epsilon")).unwrap().to_owned();
        let words: Vec<f64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        (words[0], words[1])
    };
    assert_eq!(epsilon(), (2.0, 2.0));
    let again = join_with(&sandbox, name, invitation, &["--renew"]);
    again.ends(&sandbox, name);
    let (spent, agreed) = epsilon();
    assert!(spent == 2.0 && agreed > 2.9 && agreed < 4.0, "{spent} of {agreed}");
}

#[test]
fn a_killed_private_coordinator_keeps_its_noise() {
    let sandbox = private_wards(1500, PRIVACY);
    let mut coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let clients = join_all(&sandbox, &invitations);
    let round = || {
        let text = fs::read_to_string(sandbox.path("served/status.json")).unwrap_or_default();
        let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        (status["stage_index"].as_u64(), status["round"].as_u64())
    };
    wait("rounds of the fit", || round() >= (Some(1), Some(2)) || coordinator.is_over());
    coordinator.kill();
    let secret = sandbox.path("served/noise");
    let kept = fs::read(&secret).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // Without its secret the run would release rounds twice.
    fs::remove_file(&secret).unwrap();
    let resume = ["serve", "job.toml", "--out", "served", "--resume"];
    sandbox.fails(&resume, 1, "rounds would be repeated with other noise");
    sandbox.fails(&["repair", "served"], 2, "a repair repeats rounds");
    fs::write(&secret, kept).unwrap();
    all_end(&sandbox, serve(&sandbox, true), &invitations, clients);
    budget_is_spent(&sandbox.object("served/summary.json"));
    let ledger = sandbox.ok(&["ledger", "client-west"]).stdout;
    assert!(ledger.contains("2.0000 of         2.0000"), "{ledger}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &place);
        } else {
            fs::copy(path, place).unwrap();
        }
    }
}

/// Two continuations of one interrupted run draw the same noise.
#[test]
fn a_resumed_private_simulation_draws_the_same_noise() {
    let method = "kind = \"fedem\"\nrounds = 400\nevaluate = { every = 1 }\n[privacy]\nepsilon = 1.0\n\
                  [simulation]\ncheckpoint_seconds = 0";
    let job = mixture_job("covariance = \"full\"", method).replace("rows = 40", "rows = 1500");
    let sandbox = Sandbox::with_job(&job);
    let args = ["run", "job.toml", "--out", "out"];
    let mut run = Process::start(&sandbox, "run", &args);
    let lines = || fs::read_to_string(sandbox.path("out/metrics.jsonl")).unwrap_or_default();
    wait("evaluations", || lines().lines().count() > 3 || run.is_over());
    assert!(!run.is_over(), "the run ended before it could be killed");
    run.kill();
    copy(&sandbox.path("out"), &sandbox.path("twin"));
    for out in ["out", "twin"] {
        sandbox.ok(&["run", "job.toml", "--out", out, "--resume"]);
        assert!(!sandbox.path(out).join("noise").exists());
    }
    assert_eq!(sandbox.result_bytes("out"), sandbox.result_bytes("twin"));
}

/// A client withdraws: it answers nothing more, the others finish, and both sides say what stays.
#[test]
fn a_client_that_leaves_is_not_waited_for() {
    let sandbox = private_wards(4000, PRIVACY);
    let coordinator = serve(&sandbox, false);
    let invitations = invitations(&sandbox);
    let mut clients = join_all(&sandbox, &invitations);
    let text = || fs::read_to_string(sandbox.path("served/status.json")).unwrap_or_default();
    wait("rounds", || {
        text().contains("\"stage_index\":1") || text().contains("\"stage_index\": 1")
    });
    // Rounds wait for a client that is away.
    let [_, _, last] = &mut clients[..] else { panic!("three clients") };
    last.kill();
    assert!(!text().contains("\"state\":\"stopped"), "{}", text());
    // A folder in use is refused.
    let name = invitations[0].0.clone();
    let folder = format!("client-{name}");
    assert_ne!(sandbox.run(&["leave", &folder]).code, 0);
    clients[0].kill();
    let left = sandbox.ok(&["leave", &folder]);
    let says = |part: &str| assert!(left.stderr.contains(part), "{part}: {}", left.stderr);
    says("this folder answers nothing more");
    says("the model keeps the effect of");
    says(&format!("whimbrel serve JOB --without {name}"));
    assert!(!left.stderr.contains("was not reached"), "{}", left.stderr);
    assert!(left.stdout.contains("epsilon"), "{}", left.stdout);
    let again = ["join", &invitations[0].1, "--data", "x.csv", "--out", &folder];
    sandbox.write("x.csv", "a,b\n1,2\n");
    sandbox.fails(&again, 2, "this client has left the federation");
    let (away, invitation) = &invitations[2];
    clients[2] = join_with(&sandbox, away, invitation, &[]);
    all_end(&sandbox, coordinator, &invitations[1..], clients.split_off(1));
    let log = sandbox.read("serve.log");
    assert!(log.contains(&format!("`{name}` left: its uploads so far stay in the model")), "{log}");
    assert!(sandbox.read("served/audit.jsonl").contains("\"left\""));
    let status = sandbox.object("served/status.json");
    assert_eq!(status["clients"][&name]["missed"], 0, "rounds after it left are not missed");
    let spent = number(&sandbox.object("served/summary.json"), "epsilon_spent");
    assert!(spent <= 2.0, "{spent}");
    // A refit without it.
    let refit = ["serve", "job.toml", "--out", "refit", "--without", &name, "--invitations", "two"];
    let refit = Process::start(&sandbox, "refit", &refit);
    wait("invitations", || sandbox.path("two").exists());
    assert_eq!(sandbox.read("two").lines().count(), 2);
    drop(refit);
    let unknown = ["serve", "job.toml", "--out", "no", "--without", "south"];
    sandbox.fails(&unknown, 2, "the job has no client `south`");
}
