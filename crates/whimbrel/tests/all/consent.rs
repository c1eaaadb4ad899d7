//! The consent screen: the computation first, then what leaves in words, then a table, without jargon and
//! with limits near what is sent.

use crate::federation::{NAMES, counts, masked_wards, serve_to_end, served, wards, write_classes};
use crate::support::{Sandbox, one_line};

/// Words of methods and codecs that users need not know.
const JARGON: [&str; 14] = [
    "statistic ",
    "memory",
    "memories",
    "codec",
    "minibatch",
    "dithering",
    "fedem",
    "fedavg",
    "fedmix",
    "newton",
    "Lipschitz",
    "uplink",
    " GB",
    "its rows",
];

/// Wards with two classes under a method.
fn classes(model: &str, method: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(&format!(
        "name = \"wards\"\nseed = 5\n\n[data]\nsource = \"csv\"\npath = \"all.csv\"\nclient = \"ward\"\n\
         columns = [\"a\", \"b\"]\ntarget = \"y\"\n\n[model]\n{model}\n\n[method]\n{method}\n\n\
         [federation]\nclients = [\"west\", \"east\", \"north\"]\nlisten = \"127.0.0.1:0\"\n\
         dashboard = false\nheartbeat_s = 1\n"
    ));
    write_classes(&sandbox);
    sandbox
}

/// The screen of the first client, which does not answer.
fn screen(sandbox: &Sandbox) -> String {
    let (_coordinator, name, invitation) = served(sandbox);
    let data = format!("{name}.csv");
    let ran = sandbox.run(&["join", &invitation, "--data", &data, "--out", "asked"]);
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    ran.stderr.split_once("take part? [y/N]").unwrap().0.to_owned()
}

#[test]
fn the_screen_begins_with_the_computation_and_has_no_jargon() {
    let cases = [
        (wards(12, ""), "a Gaussian mixture (2 components", "about"),
        (
            masked_wards(12, true),
            "a Gaussian mixture (2 components",
            "the sum over all clients of the first sum, at least 3 clients",
        ),
        (
            classes("kind = \"glm\"\nfamily = \"binomial\"", "kind = \"newton\""),
            "(binomial)",
            "could still compute single rows from the sums over all clients",
        ),
        (
            classes(
                "kind = \"glm\"\nfamily = \"binomial\"",
                "kind = \"newton\"\n\n[privacy]\nmasks = false",
            ),
            "(binomial)",
            "A coordinator that chooses its questions can still compute single rows from such sums",
        ),
        (
            classes("kind = \"mlp\"\nhidden = [4]", "kind = \"fedavg\"\nrounds = 5\nstep = 0.1"),
            "a network of fully connected layers",
            "You have to trust the coordinator",
        ),
        (
            classes(
                "kind = \"logistic\"",
                "kind = \"fedmix\"\ncomponents = 2\nrounds = 5\nstep = 0.1",
            ),
            "logistic regression",
            "each shared model",
        ),
    ];
    for (sandbox, computed, leaves) in cases {
        let shown = screen(&sandbox);
        let text = one_line(&shown);
        let parts =
            ["asks you to take part", computed, "What leaves", "Messages that would", leaves];
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {shown}"));
        assert!(parts[..4].windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{shown}");
        assert!(text.contains(leaves), "{leaves}: {shown}");
        for word in JARGON {
            assert!(!text.contains(word), "{word}: {shown}");
        }
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    }
}

/// The job as a mixture over a mixed table, whose clients leave components of few rows out.
fn of_a_mixed_table(sandbox: &Sandbox) -> String {
    sandbox.read("job.toml").replace("kind = \"gmm\"", "kind = \"mixture\"")
}

/// A job without a smallest group is checked with that of `serve`.
#[test]
fn a_check_shows_the_messages_that_are_served() {
    let sandbox = masked_wards(3, false);
    let job = of_a_mixed_table(&sandbox).replace("\"moments\"", "\"federated-kmeans\"");
    let own = ["path = \"all.csv\"\nclient = \"ward\"\n", "min_group = 5\n"];
    sandbox.write("job.toml", &own.iter().fold(job, |job, own| job.replace(own, "")));
    let told = one_line(&sandbox.ok(&["check", "job.toml"]).stderr);
    assert!(told.contains("whole groups of at least 5 neighbouring rows"), "{told}");
}

/// Components that a client leaves out are counted without evaluations, under masks by their sum; each
/// client knows its own number.
#[test]
fn withheld_parts_are_counted_without_evaluations() {
    assert_eq!(withheld(true), withheld(false));
}

fn withheld(masks: bool) -> u64 {
    let sandbox = masked_wards(8, masks);
    let job = of_a_mixed_table(&sandbox).replace("evaluate = { every = 5 }\n", "");
    // `east` has 30 rows of each group.
    sandbox.write("job.toml", &job.replace("min_group = 5", "min_group = 35"));
    serve_to_end(&sandbox);
    let withheld = sandbox.object("served/summary.json")["withheld"].as_u64();
    assert!(withheld > Some(0), "{withheld:?}");
    let status = sandbox.ok(&["status", "served"]).stdout;
    let line = format!("{} parts of messages withheld", withheld.unwrap());
    assert!(status.contains(&line), "{status}");
    let own = |name: &&str| -> u64 {
        let ledger = sandbox.ok(&["ledger", &format!("client-{name}")]).stdout;
        let count = ledger.lines().find_map(|line| line.split_once(" parts of messages withheld"));
        count.map_or(0, |(count, _)| count.trim().parse().unwrap())
    };
    assert_eq!(NAMES.iter().map(own).sum::<u64>(), withheld.unwrap());
    withheld.unwrap()
}

/// The limit of the bytes is near what a run sends: exact messages, a fixed number of rounds.
#[test]
fn limits_are_near_the_bytes_sent() {
    let sandbox =
        classes("kind = \"mlp\"\nhidden = [16]", "kind = \"fedavg\"\nrounds = 10\nstep = 0.1");
    serve_to_end(&sandbox);
    let ledger = sandbox.ok(&["ledger", "client-north"]).stdout;
    let line = ledger.lines().rfind(|line| line.trim_start().starts_with("bytes")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| words[at].replace(',', "").parse::<f64>().unwrap();
    assert!(number(1) <= number(3) && number(3) < 1.3 * number(1), "{ledger}");
}

/// The limits of a table with gaps follow from the client's own number of observations.
#[test]
fn limits_of_a_table_follow_from_the_observations() {
    let sandbox = counts();
    let (_coordinator, name, invitation) = served(&sandbox);
    let data = format!("{name}.csv");
    let args = ["join", &invitation, "--data", &data, "--out", "asked", "--min-group", "1"];
    let shown = sandbox.run(&args).stderr;
    // The places of the cells at ten bytes each, and their sum.
    let observed = sandbox.read(&data).lines().count() - 1;
    let row =
        shown.lines().find(|line| line.starts_with("  fit ") && line.contains("at the start"));
    let words: Vec<&str> = row.unwrap_or_else(|| panic!("{shown}")).split_whitespace().collect();
    let at = words.iter().position(|word| *word == "bytes").unwrap_or_else(|| panic!("{shown}"));
    let limit: usize = words[at - 1].parse().unwrap();
    assert!(limit > 5 * observed && limit <= 10 * observed + 18, "{limit}, {observed}: {shown}");
}
