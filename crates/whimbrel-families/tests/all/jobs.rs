//! Jobs that must be accepted, and what they mean.

use crate::{PLAIN, parse};
use std::path::PathBuf;
use whimbrel_codec::{BlockP, Codec, Norm};
use whimbrel_data::{Heterogeneity, LabelSplit, Sizes};
use whimbrel_engine::Stopping;
use whimbrel_families::Job;
use whimbrel_families::em::EmFit;
use whimbrel_families::em::keys::{GmmKeys, Init};
use whimbrel_families::job::*;
use whimbrel_methods::fedem::Form;
use whimbrel_methods::settings::{Budget, Weights};
use whimbrel_models::gmm::{Covariance, GmmPenalty, GmmSettings};

/// Published as a job that runs as written.
const GMM_CSV: &str = include_str!("../jobs/gmm-csv.toml");

#[test]
fn the_published_job_parses_as_written() {
    let mut job = parse(GMM_CSV);
    assert_eq!((job.name.as_str(), job.seed, job.data.seed), ("gmm-csv", 1, 1));
    assert_eq!(
        job.data.source,
        DataSource::Csv(Csv {
            path: "data.csv".into(),
            partition: Partition::Column("client".into()),
            columns: None,
            label: None,
            target: None,
            classes: None,
            cells: Default::default(),
            standardize: false,
            delimiter: None,
            na: None,
            thousands: None,
        })
    );
    let GmmSettings { components, covariance, .. } =
        &job.fit_as::<EmFit>().expect("a mixture").mixture.settings;
    assert_eq!((*components, covariance), (3, &Covariance::Tied));
    assert_eq!(job.method.length, Budget::Rounds(200));
    assert_eq!(job.method.step, Step::Constant(1.0));
    assert_eq!(job.method.participation, Participation::Probability(1.0));
    assert_eq!(job.uplink.codec, Codec::Exact);
    assert_eq!(job.uplink.rule, UpRule::Memory { alpha: None });
    assert_eq!(job.uplink.start, MemoryStart::Oracle);
    let paths: Vec<PathBuf> = job.paths_mut().into_iter().map(|path| path.clone()).collect();
    assert_eq!(paths, [PathBuf::from("data.csv"), PathBuf::from("init.json")]);
}

#[test]
fn defaults_are_the_documented_ones() {
    let job = parse(PLAIN);
    assert_eq!(job.seed, 1);
    let fit: &EmFit = job.fit_as().expect("a mixture");
    let GmmKeys { settings: gmm, init, .. } = &fit.mixture;
    assert_eq!((&gmm.covariance, init), (&Covariance::Tied, &Init::FederatedKmeans));
    assert_eq!((gmm.reg_covar, gmm.weight_floor, gmm.covariance_floor), (0.0, 1e-10, 1e-10));
    assert_eq!(gmm.penalty, GmmPenalty::default());
    assert_eq!((job.method.batch, job.method.step), (Batch::Full, Step::Auto));
    assert_eq!((job.method.weights, fit.keys.form), (Weights::Samples, Some(Form::Pair)));
    assert_eq!((job.method.evaluate_every, job.method.stop), (None, Stopping::default()));
    assert_eq!(job.downlink.rule, DownRule::Exact);
    assert_eq!((job.seeds, job.method.memory_max), (None, 4_000_000_000));
    assert_eq!((job.simulation.lost, job.simulation.checkpoint_seconds), (0.0, 10.0));

    let generated = parse(
        "[data]\nsource = \"mixture\"\n[model]\nkind = \"gmm\"\ncomponents = 2\n\
         [method]\nkind = \"dem\"\nepochs = 3\n",
    );
    let DataSource::Mixture(mixture) = &generated.data.source else { panic!("not a mixture") };
    let (spec, stream) = (&mixture.spec, mixture.stream);
    assert_eq!((spec.clients, &spec.rows, stream), (100, &Sizes::Equal(100), false));
    assert_eq!(spec.heterogeneity, Heterogeneity::Dirichlet(vec![0.2, 0.2]));
    assert_eq!(spec.weights, [0.5, 0.5]);
    assert_eq!(generated.uplink.rule, UpRule::Plain);
}

#[test]
fn a_job_without_a_name_takes_the_files() {
    let text = PLAIN.replace("name = \"plain\"\n", "");
    let name = |file: &str| Job::parse(&text, file).unwrap().name;
    assert_eq!(name("jobs/ward study.toml"), "ward-study");
    assert_eq!(name(".hidden"), "hidden");
    assert_eq!(name("..."), "job");
    assert_eq!(name(""), "job");
}

#[test]
fn the_seed_of_the_data_is_the_jobs_unless_given() {
    assert_eq!(parse(&format!("seed = 9\n{PLAIN}")).data.seed, 9);
    let own = PLAIN.replace("[data]", "[data]\nseed = 4");
    assert_eq!(parse(&format!("seed = 18446744073709551615\n{own}")).data.seed, 4);
    let seeds = |data: &str| -> Vec<[u64; 2]> {
        let text = PLAIN.replace("[data]", &format!("[data]\n{data}"));
        let job = parse(&format!("seed = 5\nseeds = 2\n{text}"));
        assert_eq!(parse(&job.to_toml()), job);
        job.each_seed().iter().map(|one| [one.seed, one.data.seed]).collect()
    };
    assert_eq!(seeds(""), [[5, 5], [6, 5]]);
    assert_eq!(seeds("seed = \"run\""), [[5, 5], [6, 6]]);
}

#[test]
fn client_and_a_split_by_column_are_the_same() {
    let split =
        PLAIN.replace("client = \"client\"", "[data.split]\nby = \"column\"\ncolumn = \"client\"");
    assert_eq!(parse(&split), parse(PLAIN));
}

#[test]
fn a_dirichlet_split_takes_its_column_from_the_label() {
    let text = PLAIN.replace(
        "client = \"client\"",
        "label = \"y\"\nsplit = { by = \"dirichlet\", clients = 5, alpha = 0.4 }",
    );
    let DataSource::Csv(csv) = parse(&text).data.source else { panic!("not a csv") };
    let column = Some("y".to_owned());
    let split = LabelSplit::Dirichlet { alpha: 0.4, clusters: None };
    assert_eq!(csv.partition, Partition::Labels { clients: 5, split, column, coarse: None });
}

#[test]
fn em_needs_no_clients() {
    let text = PLAIN.replace("client = \"client\"\n", "").replace("fedem", "em");
    let job = parse(&text);
    assert_eq!(job.data.clients(), Some(1));
    assert_eq!(parse(&job.to_toml()), job);
}

#[test]
fn every_codec_parses_by_name_and_by_table() {
    let codec = |codec: &str, rule: &str| {
        parse(&format!("{PLAIN}[uplink]\ncodec = {codec}\nrule = \"{rule}\"\n")).uplink.codec
    };
    assert_eq!(codec("\"exact\"", "plain"), Codec::Exact);
    assert_eq!(codec("{ kind = \"exact-f32\" }", "plain"), Codec::ExactF32);
    let automatic = codec("\"dithering\"", "memory");
    assert!(automatic.is_automatic());
    assert_eq!(automatic.settled(3), Codec::dithering(3, Norm::P(2), None).unwrap());
    assert_eq!(
        codec("{ kind = \"dithering\", levels = 4, norm = \"inf\", bucket = 256 }", "plain"),
        Codec::dithering(4, Norm::Infinity, Some(256)).unwrap()
    );
    assert_eq!(codec("\"block-p\"", "plain"), Codec::block_p(64, Norm::P(2)).unwrap());
    assert_eq!(
        codec("{ kind = \"block-p\", p = \"inf\", sizes = [3, 4] }", "plain"),
        Codec::BlockP(BlockP::listed(vec![3, 4], Norm::Infinity).unwrap())
    );
    assert_eq!(codec("\"sparse\"", "plain"), Codec::sparse(0.5).unwrap());
    assert_eq!(
        codec("{ kind = \"sparse\", k = 10 }", "memory"),
        Codec::sparse_exactly(10).unwrap()
    );
    assert_eq!(codec("\"natural\"", "memory"), Codec::Natural);
    assert_eq!(codec("{ kind = \"top-k\", k = 10 }", "feedback"), Codec::top_k(10).unwrap());
    assert_eq!(codec("\"sign\"", "feedback"), Codec::Sign);
}

#[test]
fn a_resolved_job_has_every_default_and_nothing_more() {
    insta::assert_snapshot!(parse(GMM_CSV).to_toml(), @r#"
    name = "gmm-csv"
    seed = 1

    [data]
    source = "csv"
    path = "data.csv"
    standardize = false
    delimiter = "auto"
    client = "client"
    keep_rows = 1.0
    unseen = 0.0
    seed = 1

    [model]
    kind = "gmm"
    components = 3
    starts = 1
    init = "init.json"
    reg_covar = 0.0
    weight_floor = 1e-10
    covariance_floor = 1e-10
    penalty = { dirichlet = 0.0, inverse_wishart = { nu = 0.0, psi = 0.0 } }
    covariance = "tied"

    [method]
    kind = "fedem"
    rounds = 200
    batch = "full"
    step = 1.0
    form = "pair"
    allow_degenerate = false
    participation = 1.0
    weights = "samples"
    evaluate = { every = "auto" }
    stop = {}
    allow_divergence = false
    memory_max = 4000000000

    [uplink]
    codec = "exact"
    rule = "memory"
    memory = "on"
    alpha = "auto"
    start = "oracle"
    frame = "fisher"

    [downlink]
    codec = "exact"
    rule = "exact"

    [simulation]
    lost = 0.0
    drops = []
    late = []
    checkpoint_seconds = 10.0
    "#);
}
