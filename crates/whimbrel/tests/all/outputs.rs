//! What a run writes: keys, counts, and how they hang together.

use crate::support::{Ran, Sandbox, mixture_job, number};
use serde_json::{Map, Value};

const SUMMARY_KEYS: [&str; 13] = [
    "name",
    "seed",
    "method",
    "model",
    "rounds",
    "objective",
    "bits_up",
    "bits_down",
    "bits_eval",
    "seconds",
    "version",
    "isa",
    "data_hash",
];
const METRIC_KEYS: [&str; 10] = [
    "round",
    "epoch",
    "objective",
    "field_norm2",
    "update_norm2",
    "bits_up",
    "bits_down",
    "bits_eval",
    "clients",
    "seconds",
];

const METHOD: &str = "kind = \"fedem\"\nrounds = 12\nstep = 0.5\nparticipation = 0.8\n\
    evaluate = { every = 5 }\n[uplink]\ncodec = { kind = \"dithering\", levels = 2 }";

/// `bits_up` and `bits_down`, summed over `clients.csv`.
pub fn client_bits(sandbox: &Sandbox, run: &str) -> [u64; 2] {
    let text = sandbox.read(&format!("{run}/clients.csv"));
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("client,rows,rounds,bits_up,bits_down,loss"));
    lines.fold([0, 0], |[up, down], line| {
        let cells: Vec<&str> = line.split(',').collect();
        [up + cells[3].parse::<u64>().unwrap(), down + cells[4].parse::<u64>().unwrap()]
    })
}

pub fn bits(object: &Map<String, Value>) -> [u64; 2] {
    ["bits_up", "bits_down"].map(|key| object[key].as_u64().expect("a whole number"))
}

#[test]
fn the_summary_is_what_json_prints() {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", METHOD));
    let ran = sandbox.ok(&["run", "job.toml", "--out", "out", "--json"]);
    let mut printed = ran.json();
    assert_eq!(printed.remove("run"), Some("out".into()));
    assert_eq!(printed, sandbox.object("out/summary.json"));
    for key in SUMMARY_KEYS {
        assert!(printed.contains_key(key), "{key}");
    }
    assert_eq!(printed["name"], "small");
    assert_eq!(printed["seed"], 3);
    assert_eq!(printed["method"], "fedem");
    assert_eq!(printed["rounds"], 12);
    assert_eq!(printed["ending"], "stopped");
}

#[test]
fn metrics_have_their_keys_and_end_in_the_summary() {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", METHOD));
    let summary = sandbox.run_job("out");
    let rows = sandbox.metrics("out");
    let rounds: Vec<u64> = rows.iter().map(|row| row["round"].as_u64().unwrap()).collect();
    assert_eq!(rounds, [0, 5, 10, 12]);
    for row in &rows {
        for key in METRIC_KEYS {
            assert!(row.contains_key(key), "{key}");
        }
    }
    assert_eq!(rows[0]["update_norm2"], Value::Null, "nothing has moved before the first round");
    let last = rows.last().unwrap();
    for key in ["objective", "field_norm2", "bits_up", "bits_down", "bits_eval"] {
        assert_eq!(number(last, key), number(&summary, key), "{key}");
    }
    for pair in rows.windows(2) {
        for key in ["epoch", "bits_up", "bits_down", "bits_eval", "seconds"] {
            assert!(number(&pair[0], key) <= number(&pair[1], key), "{key} is cumulative");
        }
    }
}

#[test]
fn bits_add_up_over_clients() {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", METHOD));
    let summary = sandbox.run_job("out");
    assert_eq!(bits(&summary), client_bits(&sandbox, "out"));
    assert!(bits(&summary).iter().all(|bits| bits % 8 == 0 && *bits > 0), "whole bytes");
}

/// The stages before the fit are in the totals and in `clients.csv` alike.
#[test]
fn earlier_stages_are_counted_for_each_client() {
    let sent = |init: &str| {
        let sandbox = Sandbox::with_job(&mixture_job(&format!("init = \"{init}\""), METHOD));
        let summary = sandbox.run_job("out");
        assert_eq!(bits(&summary), client_bits(&sandbox, "out"), "{init}");
        assert_eq!(bits(&summary), bits(sandbox.metrics("out").last().unwrap()), "{init}");
        // What a client says once at enrolment: bits that nobody else's draws can change.
        let first = &sandbox.metrics("out")[0];
        bits(first)[0]
    };
    assert!(sent("federated-kmeans") > sent("moments"), "local centres and counts travelled");
}

#[test]
fn the_resolved_job_runs_again_to_the_same_bits() {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", METHOD));
    sandbox.run_job("out");
    sandbox.ok(&["run", "out/job.toml", "--out", "again"]);
    assert_eq!(sandbox.result_bytes("out"), sandbox.result_bytes("again"));
    assert_eq!(sandbox.read("out/job.toml"), sandbox.read("again/job.toml"));
}

#[test]
fn compare_prints_summaries_by_name() {
    let sandbox = Sandbox::new();
    let job = mixture_job("init = \"moments\"", METHOD);
    sandbox.write("a.toml", &job.replace("\"small\"", "\"a\""));
    let em = job.split("step").next().unwrap().replace("\"small\"", "\"b\"");
    sandbox.write("b.toml", &em.replace("\"fedem\"", "\"em\""));
    let ran = sandbox.ok(&["compare", "a.toml", "b.toml", "--out", "both", "--json"]);
    let summaries = ran.json();
    assert_eq!(summaries.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(summaries["b"]["run"], "both/b");
    assert!(summaries["b"]["bits_up"].is_u64(), "a summary keeps its keys");
    let warnings = ran.stderr.lines().filter(|line| line.starts_with("warning"));
    assert!(warnings.clone().all(|line| line.contains(" stopped after ")), "{}", ran.stderr);
    let ran = sandbox.ok(&["compare", "a.toml", "b.toml", "--out", "both", "--force"]);
    let line = |name: &str| ran.stdout.lines().find(|l| l.starts_with(name)).unwrap().to_string();
    assert!(line("a").contains("kbit"), "{}", ran.stdout);
    assert!(!line("b").contains("bit"), "em sends nothing: {}", ran.stdout);
    assert!(ran.stdout.contains("gap to reference"), "{}", ran.stdout);
}

#[test]
fn other_data_have_other_objectives() {
    let sandbox = Sandbox::new();
    let job = mixture_job("init = \"moments\"", METHOD);
    sandbox.write("a.toml", &job.replace("\"small\"", "\"a\""));
    let other = job.replace("\"small\"", "\"b\"").replace("rows = 40", "rows = 41");
    sandbox.write("b.toml", &other);
    let warned = "warning: `b`: data differ from those of `a`";
    let ran = sandbox.ok(&["compare", "a.toml", "b.toml", "--out", "both"]);
    assert!(ran.stderr.contains(warned), "{}", ran.stderr);
    let ran = sandbox.ok(&["report", "both/a", "both/b", "--out", "page.html"]);
    assert!(ran.stderr.contains(warned), "{}", ran.stderr);
}

#[test]
fn check_writes_nothing_and_says_what_it_costs() {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"federated-kmeans\"", METHOD));
    let report = sandbox.ok(&["check", "job.toml", "--json"]).json();
    for key in ["clients", "rows", "statistic", "omega", "rounds", "memory_bytes", "seconds"] {
        assert!(report[key].is_number(), "{key}");
    }
    for key in ["bits_up", "bits_down"] {
        assert!(number(&report, &format!("{key}_per_round")) > 0.0, "{key}");
    }
    let left: Vec<_> = std::fs::read_dir(sandbox.path("")).unwrap().collect();
    assert_eq!(left.len(), 1, "only the job");
}

/// The first round of EM is exact: what `check` says is about the rounds after it.
#[test]
fn check_foretells_the_bits_of_a_round() {
    let method = METHOD.replace("participation = 0.8\n", "").replace("every = 5", "every = 1");
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", &method));
    let report = sandbox.ok(&["check", "job.toml", "--json"]).json();
    sandbox.run_job("out");
    let rows = sandbox.metrics("out");
    // One round for the first statistic, ten to settle, up to forty to measure.
    let last = rows.len().min(52) - 1;
    assert_eq!((&rows[11]["round"], &rows[last]["round"]), (&11.into(), &last.into()));
    let ([up, down], [up_before, down_before]) = (bits(&rows[last]), bits(&rows[11]));
    let measured = (last - 11) as f64;
    assert_eq!(number(&report, "bits_up_per_round"), (up - up_before) as f64 / measured);
    assert_eq!(number(&report, "bits_down_per_round"), (down - down_before) as f64 / measured);
}

/// What the stages before the fit send is foretold too: with no rounds left out, everything is.
#[test]
fn check_counts_the_bits_of_the_stages_before_the_fit() {
    let method = METHOD.replace("participation = 0.8\n", "").replace("every = 5", "every = 1");
    let sandbox = Sandbox::with_job(&mixture_job("init = \"federated-kmeans\"", &method));
    let report = sandbox.ok(&["check", "job.toml", "--json"]).json();
    sandbox.run_job("out");
    // Before the first round: the run's own count there.
    let [up, down] = bits(&sandbox.metrics("out")[0]);
    assert!(up > 0, "k-means sends something");
    assert_eq!(report["bits_up_before_rounds"], up);
    assert_eq!(report["bits_down_before_rounds"], down);
    let page = sandbox.ok(&["check", "job.toml"]).stdout;
    assert!(page.contains("up before the rounds") && page.contains("down before the rounds"));
}

#[test]
fn check_estimates_all_seeds() {
    let job = mixture_job("init = \"federated-kmeans\"", METHOD);
    let sandbox = Sandbox::with_job(&job.replace("seed = 3\n", "seed = 3\nseeds = 4\n"));
    let report = sandbox.ok(&["check", "job.toml", "--json"]).json();
    assert_eq!(report["seeds"], 4);
    let of = |key: &str| number(&report, key);
    let one = of("seconds_before_fit") + of("rounds") * of("seconds_per_round");
    // Two roundings each way.
    assert!((of("seconds") - 4.0 * one).abs() <= 4.0 * f64::EPSILON * of("seconds"), "{report:?}");
}

#[test]
fn report_prints_summaries_by_name_or_folder() {
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", METHOD));
    sandbox.run_job("one");
    sandbox.run_job("two");
    let keys = |ran: Ran| ran.json().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(sandbox.ok(&["report", "one", "--json"])), ["small"]);
    let both = sandbox.ok(&["report", "one", "two", "--out", "both.html", "--json"]);
    assert_eq!(keys(both), ["one", "two"]);
    assert!(sandbox.path("both.html").is_file());
}
