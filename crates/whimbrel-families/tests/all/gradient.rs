//! Jobs of the gradient family: regressions, their data, steps and averages.

use crate::{PLAIN, parse, refusal, says};
use std::path::PathBuf;
use whimbrel_codec::channel::Preset;
use whimbrel_data::ClusterRule;
use whimbrel_families::gradient::GradientFit;
use whimbrel_families::gradient::keys::{Compat, Regression};
use whimbrel_families::job::*;
use whimbrel_methods::settings::Weights;
use whimbrel_methods::sgd::Average;

/// Published as a job that runs as written.
pub const A9A_MCM: &str = r#"name = "a9a-mcm"
seed = 1
seeds = 5
[data]
source = "libsvm"
path = "a9a.gz"
standardize = true
split = { by = "clusters", embedding = "a9a_tsne.f32le.gz", clients = 20 }
[model]
kind = "logistic"
[method]
kind = "mcm"
rounds = 4500
batch = 50
step = "1/L"
[uplink]
codec = { kind = "dithering", levels = 1, norm = 2 }
[downlink]
codec = { kind = "dithering", levels = 1, norm = 2 }
"#;

#[test]
fn the_published_job_parses_as_written() {
    let mut job = parse(A9A_MCM);
    assert_eq!((job.seed, job.seeds, job.data.seed), (1, Some(5), 1));
    assert_eq!(
        job.data.source,
        DataSource::Libsvm(Libsvm {
            path: "a9a.gz".into(),
            partition: Partition::Clusters {
                clients: 20,
                embedding: Some("a9a_tsne.f32le.gz".into()),
                using: ClusterRule::Mixture,
            },
            columns: None,
            standardize: true,
        })
    );
    let wanted =
        Regression { ridge: 0.0, nonconvex: 0.0, intercept: true, penalize_intercept: false };
    assert_eq!((job.model, gradient(&job).regression), ("logistic", wanted));
    assert_eq!((job.method.kind.algorithm, job.method.channels), ("sgd", Some(Preset::Mcm)));
    assert_eq!((job.method.step, job.method.weights), (Step::OverL(1.0), Weights::Samples));
    assert_eq!(
        job.method.batch,
        Batch::Sample { size: Some(50), replacement: true, local_steps: 1 }
    );
    let memories = Memories::Groups(1);
    assert_eq!(job.downlink.rule, DownRule::Preserved { alpha: None, memories });
    let paths: Vec<PathBuf> = job.paths_mut().into_iter().map(|path| path.clone()).collect();
    assert_eq!(paths, [PathBuf::from("a9a.gz"), PathBuf::from("a9a_tsne.f32le.gz")]);
    assert_eq!(parse(&job.to_toml()), job);
}

#[test]
fn the_resolved_job_names_every_default() {
    insta::assert_snapshot!(parse(A9A_MCM).to_toml(), @r#"
    name = "a9a-mcm"
    seed = 1
    seeds = 5

    [data]
    source = "libsvm"
    path = "a9a.gz"
    standardize = true
    keep_rows = 1.0
    unseen = 0.0
    seed = 1

    [data.split]
    by = "clusters"
    clients = 20
    embedding = "a9a_tsne.f32le.gz"
    using = "gmm"

    [model]
    kind = "logistic"
    ridge = 0.0
    nonconvex = 0.0
    intercept = true
    penalize_intercept = false

    [method]
    kind = "sgd"
    channels = "mcm"
    rounds = 4500
    batch = 50
    replacement = true
    local_steps = 1
    step = "1/L"
    momentum = 0.0
    average = "auto"
    participation = 1.0
    weights = "samples"
    evaluate = { every = "auto" }
    stop = {}
    allow_divergence = false
    memory_max = 4000000000

    [uplink]
    codec = { kind = "dithering", levels = 1, norm = 2 }
    rule = "memory"
    memory = "on"
    alpha = "auto"
    start = "oracle"

    [downlink]
    codec = { kind = "dithering", levels = 1, norm = 2 }
    rule = "preserved"
    memories = "shared"
    alpha = "auto"

    [simulation]
    lost = 0.0
    drops = []
    late = []
    checkpoint_seconds = 10.0
    "#);
}

const TOY: &str = "[data]\nsource = \"toy\"\n[model]\nkind = \"linear\"\n[method]\nkind = \"sgd\"\n\
                   rounds = 100\n";

fn toy(lines: &str) -> String {
    format!("{TOY}{lines}\n")
}

#[test]
fn steps_of_the_gradient_family() {
    let step = |written: &str| {
        let job = parse(&toy(&format!("step = {written}")));
        assert_eq!(parse(&job.to_toml()), job, "{written}");
        job.method.step
    };
    assert_eq!(parse(TOY).method.step, Step::Auto);
    assert_eq!(step("\"1/L\""), Step::OverL(1.0));
    assert_eq!(step("\"1/(2L)\""), Step::OverL(0.5));
    assert_eq!(step("{ over_L = 0.5 }"), Step::OverL(0.5));
    assert_eq!(step("\"1/(L sqrt(k))\""), Step::OverLRoot);
    assert_eq!(step("\"theory\""), Step::Theory);
    assert_eq!(step("0.25"), Step::Constant(0.25));
    refusal(&toy("step = { over_L = 0.5, power = 0.6 }"));
    refusal(&toy("step = { over_L = 0 }"));
    refusal(&toy("step = \"1/M\""));
    says(
        &refusal(&format!("{PLAIN}step = \"1/L\"\n")),
        "12:8",
        "the EM methods have no smoothness constant L",
    );
}

fn gradient(job: &Job) -> &GradientFit {
    job.fit_as().expect("a regression")
}

#[test]
fn settings_of_the_gradient_family() {
    let job = parse(&toy(
        "momentum = 0.9\naverage = \"uniform\"\nweights = \"samples\"\nparticipation = 0.5\n\
         compat = \"mcm-2021\"\nmemory_max = \"1.5MB\"\nstop = { excess_loss = 1e-3 }",
    ));
    let method = &job.method;
    let fit = gradient(&job);
    assert_eq!((fit.descent.momentum, fit.descent.average), (0.9, Some(Average::Uniform)));
    assert_eq!((fit.descent.compat, method.memory_max), (Some(Compat::Mcm2021), 1_500_000));
    assert_eq!(
        (method.weights, &method.stop.limits[..]),
        (Weights::Samples, &[("excess_loss", 1e-3)][..])
    );
    assert_eq!(gradient(&parse(TOY)).descent.average, None);
    assert_eq!(parse(&job.to_toml()), job);
    let refused = [
        "momentum = 1",
        "momentum = -0.1",
        "average = \"mean\"",
        "compat = \"mcm-2020\"",
        "compat = \"mcm-2021\"\nstep = \"1/(L sqrt(k))\"",
        "form = \"pair\"",
        "memory_max = 0",
        "memory_max = \"4\"",
        "memory_max = \"GB\"",
        "memory_max = \"-1GB\"",
        "memory_max = \"4 XB\"",
        "stop = { field_norm2 = 1e-3 }",
        "stop = { excess_loss = 0 }",
        "allow_divergence = 1",
    ];
    for lines in refused {
        refusal(&toy(lines));
    }
    for lines in ["momentum = 0.1", "average = \"last\"", "stop = { excess_loss = 1 }"] {
        refusal(&format!("{PLAIN}{lines}\n"));
    }
    for seeds in ["0", "-1", "1.5", "4294967296"] {
        refusal(&format!("seeds = {seeds}\n{TOY}"));
    }
    refusal(&format!("seed = 18446744073709551615\nseeds = 2\n{TOY}"));
}

#[test]
fn models_and_methods_that_do_not_fit_each_other() {
    let em = TOY.replace("\"sgd\"", "\"fedem\"");
    says(&refusal(&em), "6:8", "fedem fits \"gmm\", \"mixture\", not kind = \"linear\" in [model]");
    says(
        &refusal(&PLAIN.replace("\"fedem\"", "\"mcm\"")),
        "10:8",
        "mcm fits \"linear\", \"logistic\", not kind = \"gmm\" in [model]",
    );
    let untargeted = TOY.replace("source = \"toy\"", "source = \"mixture\"");
    says(&refusal(&untargeted), "2:10", "linear predicts a target, and the data have none");
    refusal(&PLAIN.replace("path", "target = \"y\"\npath"));
    for key in ["components = 3", "known_covariance = [[1.0]]", "init = \"moments\"", "ridge = -1"]
    {
        refusal(&TOY.replace("\"linear\"", &format!("\"linear\"\n{key}")));
    }
    refusal(&PLAIN.replace("components = 3", "components = 3\nridge = 0.1"));
    // Of the regressions only logistic has a penalty that is not convex, and then no ridge.
    refusal(&TOY.replace("\"linear\"", "\"linear\"\nnonconvex = 0.1"));
    refusal(&A9A_MCM.replace("\"logistic\"", "\"logistic\"\nridge = 0.1\nnonconvex = 0.1"));
    let job = parse(&A9A_MCM.replace("\"logistic\"", "\"logistic\"\nnonconvex = 0.1"));
    assert_eq!(parse(&job.to_toml()), job);
}

#[test]
fn targets_and_splits_of_files() {
    let csv = |lines: &str| {
        format!(
            "[data]\nsource = \"csv\"\npath = \"x.csv\"\n{lines}\n[model]\nkind = \"logistic\"\n\
             ridge = 0.01\nintercept = false\n[method]\nkind = \"diana\"\nepochs = 3\n"
        )
    };
    let accepted = [
        "target = \"y\"\nclient = \"ward\"\nstandardize = true",
        "target = \"y\"\nsplit = { by = \"dirichlet\", clients = 3, alpha = 0.5 }",
        "target = \"y\"\nlabel = \"z\"\nsplit = { by = \"dirichlet\", clients = 3, alpha = 1 }",
        "target = \"y\"\nsplit = { by = \"clusters\", clients = 3, using = \"kmeans\" }",
        "target = \"y\"\nsplit = { by = \"iid\", clients = 3 }",
    ];
    for lines in accepted {
        let job = parse(&csv(lines));
        assert_eq!(parse(&job.to_toml()), job, "{lines}");
    }
    let refused = [
        "client = \"ward\"",
        "target = \"y\"",
        "target = \"y\"\ncolumns = [\"y\"]\nclient = \"ward\"",
        "target = \"y\"\nsplit = { by = \"clusters\", clients = 3, using = \"dbscan\" }",
        "target = \"y\"\nsplit = { by = \"iid\", clients = 3, embedding = \"x.npy\" }",
        "target = \"y\"\nsplit = { kind = \"iid\", clients = 3 }",
        "target = \"y\"\nclient = \"ward\"\ncolumns_count = 3",
    ];
    for lines in refused {
        refusal(&csv(lines));
    }
    let libsvm = |lines: &str| csv(lines).replace("\"csv\"", "\"libsvm\"");
    for lines in [
        "columns_count = 123\nsplit = { by = \"iid\", clients = 3 }",
        "split = { by = \"dirichlet\", clients = 3, alpha = 0.1 }",
        "split = { by = \"column\", column = \"f3\" }",
    ] {
        let job = parse(&libsvm(lines));
        assert_eq!(parse(&job.to_toml()), job, "{lines}");
    }
    for lines in [
        "",
        "target = \"y\"\nsplit = { by = \"iid\", clients = 3 }",
        "split = { by = \"dirichlet\", clients = 3, alpha = 0.1, column = \"y\" }",
        "client = \"ward\"",
        "columns_count = 0\nsplit = { by = \"iid\", clients = 3 }",
    ] {
        refusal(&libsvm(lines));
    }
    let drawn = TOY.replace(
        "\"toy\"",
        "\"toy\"\nclients = 5\nrows = 7\ndims = 3\nnoise = 0.4\ncorrelation = -0.5\nspread = 1",
    );
    let job = parse(&drawn);
    assert_eq!(job.data.clients(), Some(5));
    assert_eq!(parse(&job.to_toml()), job);
    for lines in ["dims = 0", "noise = -1", "correlation = 1", "spread = -0.1", "stream = true"] {
        refusal(&TOY.replace("\"toy\"", &format!("\"toy\"\n{lines}")));
    }
}
