//! Jobs of learners: every method parses, is written out in full and reads back; what is refused.

use crate::{parse, refusal};
use whimbrel_families::Job;

const METHODS: [&str; 13] = [
    "fedmix",
    "fedavg",
    "fedavg+",
    "fedprox",
    "local",
    "pfedme",
    "apfl",
    "fedrep",
    "ditto",
    "scaffold",
    "fedopt",
    "clustered",
    "mocha",
];

fn job(model: &str, method: &str) -> String {
    format!(
        "name = \"m\"\n[data]\nsource = \"synthetic-mixture\"\nclients = 20\n[model]\n{model}\n\
         [method]\n{method}\nrounds = 4\n"
    )
}

#[test]
fn every_method_is_written_out_and_reads_back() {
    for method in METHODS {
        let model = if method == "fedrep" { "kind = \"mlp\"" } else { "kind = \"logistic\"" };
        let read = parse(&job(model, &format!("kind = \"{method}\"")));
        let written = read.to_toml();
        let again = Job::parse(&written, "job.toml").unwrap_or_else(|e| panic!("{e}\n{written}"));
        assert_eq!(again, read, "{method}\n{written}");
    }
}

#[test]
fn settings_survive_the_way_through_a_file() {
    let method = "kind = \"fedmix\"\ncomponents = 4\nminibatches = 3\nbatch = 16\nstep = 0.5\n\
        decay = { factor = 0.1, at = [0.5, 0.75] }\nsampling = \"unbiased\"\n\
        optimiser = { kind = \"sgd\", momentum = 0.9, weight_decay = 5e-4 }\n\
        unseen_weights = \"one-step\"\nparticipation = 0.2";
    let read = parse(&job("kind = \"mlp\"\nhidden = [30, 20]", method));
    let written = read.to_toml();
    assert!(written.contains("hidden = [30, 20]"), "{written}");
    assert!(written.contains("momentum = 0.9, weight_decay = 0.0005"), "{written}");
    assert_eq!(parse(&written), read);
}

#[test]
fn what_has_no_meaning_is_refused_by_name() {
    let logistic = "kind = \"logistic\"";
    for (method, words) in [
        ("kind = \"fedavg\"\ncomponents = 3", "`components` has no meaning for fedavg"),
        ("kind = \"mocha\"\nstep = 0.1", "`step` has no meaning for mocha"),
        ("kind = \"fedmix\"\nstep = \"theory\"", "the local step of fedmix is a number"),
        ("kind = \"fedmix\"\nlocal_epochs = 1\nminibatches = 2", "minibatches"),
        (
            "kind = \"fedmix\"\nsampling = \"renormalise\"\nchannels = \"diana\"",
            "for plain uplinks",
        ),
        ("kind = \"fedmix\"\nstop = { field_norm2 = 1e-3 }", "neither a field nor"),
    ] {
        let said = refusal(&job(logistic, method));
        assert!(said.contains(words), "{said}");
    }
    let said = refusal(&format!(
        "{}[uplink]\ncodec = {{ kind = \"dithering\" }}\n",
        job(logistic, "kind = \"local\"")
    ));
    assert!(said.contains("local sends what it sends exactly"), "{said}");
    let said = refusal(&job("kind = \"gmm\"\ncomponents = 2", "kind = \"fedmix\""));
    assert!(said.contains("gmm"), "{said}");
}
