//! The pages that are made of the definitions.

use crate::{method_words, parse};
use std::path::Path;
use whimbrel_families::{DataFacts, TableFacts, examples, reference, template};

#[test]
fn the_committed_reference_is_the_generated_one() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/job-file.md");
    if std::env::var_os("WHIMBREL_BLESS").is_some() {
        std::fs::create_dir_all(page.parent().unwrap()).unwrap();
        std::fs::write(&page, reference()).unwrap();
    }
    let committed = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(
        committed == reference(),
        "docs/reference/job-file.md is out of date: run this test with WHIMBREL_BLESS=1"
    );
}

#[test]
fn every_example_of_the_reference_parses_and_is_on_the_page() {
    let examples = examples();
    assert!(examples.len() >= 8, "{} examples", examples.len());
    for example in &examples {
        parse(example);
    }
    let page = reference();
    let fences = page.matches("```toml").count();
    assert_eq!(fences, examples.len() + 1, "every example once, and a whole job at the top");
    assert!(page.contains(&examples[0]));
}

#[test]
fn templates_parse() {
    let built_in = parse(&template(None));
    assert_eq!(built_in.data.clients(), Some(100));

    let mut facts = DataFacts {
        path: "ward data.csv".into(),
        columns: vec!["x".into(), "odd \"name\"\n[data]".into()],
        client: Some("ward".into()),
        rows: 120,
        ..DataFacts::default()
    };
    let job = parse(&template(Some(&facts)));
    assert_eq!(job.name, "ward-data");
    assert_eq!(job.data.clients(), None);
    assert!(job.data.standardize(), "columns of a file have scales of their own");

    facts.client = None;
    assert_eq!(parse(&template(Some(&facts))).data.clients(), Some(10));
    facts.rows = 4;
    assert_eq!(parse(&template(Some(&facts))).data.clients(), Some(4));
    facts.path = "array.npy".into();
    assert_eq!(parse(&template(Some(&facts))).data.clients(), Some(4));
}

#[test]
fn a_template_for_a_table_with_gaps_parses() {
    let mut facts = DataFacts {
        path: "birds.csv".into(),
        client: Some("observer".into()),
        rows: 120,
        table: Some(TableFacts {
            row: "site".into(),
            column: vec!["winter".into(), "period".into()],
            value: "birds".into(),
            entries: whimbrel_data::Entries::Counts,
        }),
        ..DataFacts::default()
    };
    let job = parse(&template(Some(&facts)));
    assert_eq!((job.model, job.method.name()), ("low-rank", "fedmiss"));
    facts.client = None;
    assert_eq!(parse(&template(Some(&facts))).data.clients(), Some(10));
}

#[test]
fn a_template_explains_itself() {
    let text = template(None);
    let start = text.find("# (\"em\"").expect("the methods");
    let methods = text[start..].split_inclusive(')').next().expect("the methods");
    assert_eq!(methods.replace("\n#", ""), format!("# ({})", method_words()));
    insta::assert_snapshot!(text.replace(methods, "# (METHODS)"), @r#"
    # A job for whimbrel: `whimbrel check` explains it, `whimbrel run` runs it.
    # the job's name, of which run directories are made
    name = "mixture"
    # the seed of everything drawn: the same job, data and seed give the same bits
    seed = 1

    [data]
    # where the rows come from
    # ("csv", "npy", "libsvm", "idx", "leaf", "cifar10", "cifar100", "jpeg", "speeches", "mixture",
    # "toy", "synthetic-mixture" or "synthetic-representation")
    source = "mixture"
    # how many clients are drawn
    clients = 100
    # how many rows each client holds
    rows = 100
    # how much clients differ
    # ("identical", "one-component" or { dirichlet = 0.2 })
    heterogeneity = { dirichlet = 0.2 }

    [model]
    # the model
    # ("gmm", "mixture", "linear", "logistic", "linear-representation", "softmax", "mlp", "cnn",
    # "lenet", "mobilenet-v2", "resnet-18", "lstm", "own" or "low-rank")
    kind = "gmm"
    # how many components the mixture has; of several numbers, that of the lowest BIC, which a stage
    # before the fit finds by exact EM from sums alone
    components = 2
    # the form of the covariances
    # ("known", "tied", "diagonal" or "full")
    covariance = "tied"
    # where the fit starts; a file holds `weights`, `means` and `covariance` (of all components) or
    # `covariances` (one for each)
    # ("federated-kmeans", "moments", "examples" or a .json file)
    init = "federated-kmeans"

    [method]
    # the algorithm
    # (METHODS)
    kind = "fedem"
    # how many rounds the run takes
    rounds = 200
    # how many rows (of a table with gaps: observed cells) a client uses for one local step
    # (an integer of at least 1, "full" or "auto")
    batch = "full"
    # the step size
    # (a positive number, "auto", "theory", "1/L", "1/(2L)", "1/(L sqrt(k))", { over_L }, { initial,
    # power, delay } or { phi, beta })
    step = "auto"
    # who takes part in a round: the probability that a client does, or how many do
    participation = 1.0

    [uplink]
    # how vectors are compressed and encoded
    # (a codec's name, or a table with its `kind` and settings)
    codec = { kind = "dithering", levels = 1 }
    "#);
}
