//! The pages that are made of the definitions.

use crate::{method_words, parse};
use std::path::Path;
use whimbrel_families::registry::registry;
use whimbrel_families::{DataFacts, TableFacts, examples, reference, template};

#[test]
fn the_committed_reference_is_the_generated_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let pages = reference();
    if std::env::var_os("WHIMBREL_BLESS").is_some() {
        std::fs::create_dir_all(folder.join("job")).unwrap();
        pages.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
    }
    for (name, text) in &pages {
        let committed = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(&committed == text, "{name} is out of date: run this test with WHIMBREL_BLESS=1");
    }
    let files = std::fs::read_dir(folder.join("job")).unwrap().count();
    assert_eq!(files, pages.len() - 1, "docs/reference/job has a page that is not generated");
}

#[test]
fn every_example_of_the_reference_parses_and_is_on_a_page() {
    let examples = examples();
    assert!(examples.len() >= 8, "{} examples", examples.len());
    for example in &examples {
        parse(example);
    }
    let pages = reference();
    let fences: usize = pages.iter().map(|(_, text)| text.matches("```toml").count()).sum();
    assert_eq!(fences, examples.len() + 1, "every example once, and a whole job on the first page");
    assert!(pages[0].1.contains(&examples[0]));
}

#[test]
fn every_key_is_on_a_page() {
    let pages = reference();
    let has = |key: &str| pages.iter().any(|(_, text)| text.contains(&format!("\n| `{key}` | ")));
    for key in registry().families().iter().flat_map(|family| {
        let models = family.models.iter().flat_map(|kind| kind.keys);
        models.chain(family.methods.iter().flat_map(|kind| kind.keys))
    }) {
        assert!(has(key.name), "{}", key.name);
    }
}

#[test]
fn templates_parse() {
    let built_in = parse(&template(None, None).unwrap());
    assert_eq!(built_in.data.clients(), Some(100));

    let mut facts = DataFacts {
        path: "ward data.csv".into(),
        columns: vec!["x".into(), "odd \"name\"\n[data]".into()],
        client: Some("ward".into()),
        rows: 120,
        ..DataFacts::default()
    };
    let job = parse(&template(Some(&facts), None).unwrap());
    assert_eq!(job.name, "ward-data");
    assert_eq!(job.data.clients(), None);
    assert!(job.data.standardize(), "columns of a file have scales of their own");

    facts.client = None;
    assert_eq!(parse(&template(Some(&facts), None).unwrap()).data.clients(), Some(10));
    facts.rows = 4;
    assert_eq!(parse(&template(Some(&facts), None).unwrap()).data.clients(), Some(4));
    facts.path = "array.npy".into();
    assert_eq!(parse(&template(Some(&facts), None).unwrap()).data.clients(), Some(4));
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
    let job = parse(&template(Some(&facts), None).unwrap());
    assert_eq!((job.model, job.method.name()), ("low-rank", "fedmiss"));
    facts.client = None;
    assert_eq!(parse(&template(Some(&facts), None).unwrap()).data.clients(), Some(10));
}

#[test]
fn a_template_explains_itself() {
    let text = template(None, None).unwrap();
    let start = text.find("# (\"em\"").expect("the methods");
    let methods = text[start..].split_inclusive(')').next().expect("the methods");
    assert_eq!(methods.replace("\n#", ""), format!("# ({})", method_words()));
    insta::assert_snapshot!(text.replace(methods, "# (METHODS)"), @r#"
    # A job for `whimbrel run`; `whimbrel check` explains it.
    # name of the job, the prefix of its run directories
    name = "mixture"
    # seed of all random draws; equal jobs, data and seeds give equal bits
    seed = 1

    [data]
    # the source of the rows
    # ("csv", "parquet", "sql", "npy", "libsvm", "idx", "leaf", "cifar10", "cifar100", "jpeg",
    # "speeches", "mixture", "toy", "synthetic-mixture" or "synthetic-representation")
    source = "mixture"
    # number of clients
    clients = 100
    # rows of each client
    rows = 100
    # differences between clients
    # ("identical", "one-component" or { dirichlet = 0.2 })
    heterogeneity = { dirichlet = 0.2 }

    [model]
    # the model
    # ("gmm", "mixture", "linear", "logistic", "glm", "cox", "summary", "linear-representation",
    # "softmax", "mlp", "cnn", "lenet", "mobilenet-v2", "resnet-18", "lstm", "own" or "low-rank")
    kind = "gmm"
    # number of components; given a list, the value with the lowest BIC, chosen before the fit by exact
    # EM on sums of the clients
    components = 2
    # structure of the covariances
    # ("known", "tied", "diagonal", "spherical" or "full")
    covariance = "tied"
    # initial value of the fit; a file has `weights`, `means` and `covariance` (of all components) or
    # `covariances` (one per component)
    # ("federated-kmeans", "moments", "examples" or a .json file)
    init = "federated-kmeans"

    [method]
    # the algorithm
    # (METHODS)
    kind = "fedem"
    # rows (of a table with gaps: observed cells) per local step of a client
    # (an integer of at least 1, "full" or "auto")
    batch = "full"
    # the step size
    # (a positive number, "auto", "theory", "1/L", "1/(2L)", "1/(L sqrt(k))", { over_L }, { initial,
    # power, delay } or { phi, beta })
    step = "auto"
    # the cohort of a round: the probability of each client, or the number of clients
    participation = 1.0

    [uplink]
    # compression and encoding of vectors
    # (a codec's name, or a table with its `kind` and settings)
    codec = { kind = "dithering", levels = "auto", bucket = 64 }
    "#);
}
