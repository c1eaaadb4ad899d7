//! Tables with gaps: what a job may say, and what is refused in which words.

use crate::{methods_with, parse, refusal, says};
use whimbrel_families::job::{Batch, DataSource, MemoryStart, Partition, UpRule};
use whimbrel_families::table::TableFit;
use whimbrel_families::table::keys::{EffectsKey, LowRankKeys};
use whimbrel_methods::fedmiss::Copies;
use whimbrel_models::lowrank::{Family, Variance};

pub const TABLE: &str = include_str!("../jobs/birds.toml");

/// [`TABLE`] with one line replaced.
fn with(old: &str, new: &str) -> String {
    assert!(TABLE.contains(old), "nothing to replace: {old}");
    refusal(&TABLE.replace(old, new))
}

#[test]
fn a_table_with_gaps_parses_with_its_defaults() {
    let job = parse(TABLE);
    let DataSource::Csv(csv) = &job.data.source else { panic!("not a csv file") };
    assert_eq!(csv.cells.row, ["site"]);
    assert_eq!(csv.cells.value.as_deref(), Some("count"));
    assert_eq!(csv.partition, Partition::Column("observer".into()));
    assert_eq!(csv.cells.holdout, 0.1);
    let fit: &TableFit = job.fit_as().expect("a table");
    let wanted = LowRankKeys {
        family: Family::Poisson,
        variance: Variance::Estimated,
        rank: Some(2),
        lambda: Some(0.1),
        effects: EffectsKey::None,
        covariates: Vec::new(),
        lambda_effects: None,
        personal: false,
        ceiling: true,
    };
    assert_eq!(fit.table, wanted);
    assert_eq!(
        job.method.batch,
        Batch::Sample { size: Some(100), replacement: false, local_steps: 1 }
    );
    assert_eq!(fit.copies, Copies::Auto);
    assert_eq!(job.uplink.rule, UpRule::Memory { alpha: None });
    assert_eq!(job.uplink.start, MemoryStart::Oracle);
}

/// The ridge on effects stands in a resolved job unless it is chosen or there is nothing to penalise.
#[test]
fn the_resolved_job_names_the_ridge_on_effects() {
    let line = |model: &str| {
        let job = parse(&TABLE.replace("rank = 2\nlambda = 0.1", model));
        let resolved = job.to_toml();
        assert_eq!(parse(&resolved), job, "the resolved job is the job");
        let found = resolved.lines().find(|line| line.starts_with("lambda_effects"));
        found.map(str::to_owned)
    };
    let usual = Some("lambda_effects = 0.001".to_owned());
    assert_eq!(line("rank = 2\nlambda = 0.1\neffects = \"row\""), usual);
    assert_eq!(line("rank = 0\nlambda = 0.1\neffects = \"row+column\""), usual);
    assert_eq!(line("rank = 2\nlambda = 0.1\npersonal = true"), usual);
    let given = "rank = 2\nlambda = 0.1\npersonal = true\nlambda_effects = 0.5";
    assert_eq!(line(given).as_deref(), Some("lambda_effects = 0.5"));
    assert_eq!(line("rank = 2\nlambda = 0.1"), None);
    assert_eq!(line("rank = \"auto\"\nlambda = 0.1"), None);
}

#[test]
fn models_and_methods_that_do_not_go_together() {
    says(
        &with("kind = \"fedmiss\"", "kind = \"fedem\""),
        "17:8",
        "fedem fits \"gmm\", \"mixture\", not kind = \"low-rank\" in [model]",
    );
    let mixture = TABLE.replace(
        "kind = \"low-rank\"\nfamily = \"poisson\"      # gaussian, poisson, bernoulli\nrank = 2\nlambda = 0.1",
        "kind = \"gmm\"\ncomponents = 2",
    );
    says(&refusal(&mixture), "15:8", "fedmiss fits \"low-rank\", not kind = \"gmm\" in [model]");
}

#[test]
fn keys_of_other_models_and_methods() {
    insta::assert_snapshot!(with("rank = 2", "rank = 2\ncomponents = 3\nvariance = \"unit\""), @r#"
    error: `components` has no meaning for low-rank: it is for gmm, mixture
      --> job.toml:15:1
       |
    15 | components = 3
       | ^^^^^^^^^^
    hint: take `components` out

    error: `variance` applies to Gaussian entries only
      --> job.toml:16:1
       |
    16 | variance = "unit"
       | ^^^^^^^^
    hint: take `variance` out
    "#);
    let said = with("batch = 100", "batch = 100\nreplacement = true\nweights = \"equal\"");
    insta::assert_snapshot!(said.replace(&methods_with("weights"), "METHODS"), @r#"
    error: `replacement` has no meaning for fedmiss: it is for em, dem, fedem, vr-fedem, sgd
      --> job.toml:20:1
       |
    20 | replacement = true
       | ^^^^^^^^^^^
    hint: take `replacement` out

    error: `weights` has no meaning for fedmiss: it is for METHODS
      --> job.toml:21:1
       |
    21 | weights = "equal"
       | ^^^^^^^
    hint: take `weights` out
    "#);
    says(
        &with("step = \"auto\"", "step = \"theory\""),
        "20:8",
        "fedmiss has one step, without a smoothness constant or a theorem",
    );
}

#[test]
fn impossible_models() {
    says(
        &with("rank = 2", "rank = 0"),
        "14:8",
        "a table of rank 0 without effects has no parameters",
    );
    insta::assert_snapshot!(with("family = \"poisson\"", "famly = \"poisson\""), @r#"
    error: unknown key `famly` in [model]
      --> job.toml:13:1
       |
    13 | famly = "poisson"      # gaussian, poisson, bernoulli
       | ^^^^^
    hint: did you mean `family`?
    "#);
    says(&with("rank = 2", "rank = \"two\""), "14:8", "unknown `rank` in [model]: \"two\"");
}

#[test]
fn impossible_data() {
    says(&with("value = \"count\"\n", ""), "3:1", "`column` requires `value`");
    says(
        &with("holdout = 0.1", "holdout = 10"),
        "10:11",
        "`holdout` takes a number from 0 to below 1, not 10",
    );
    says(
        &with("client = \"observer\"", "split = { by = \"clusters\", clients = 3 }"),
        "6:9",
        "cells of a table have no classes and no clusters to split by",
    );
    says(
        &with("holdout = 0.1", "target = \"count\""),
        "10:10",
        "`target` has no meaning for a table with gaps: cells are predicted, not a column",
    );
}

#[test]
fn keys_of_tables_elsewhere() {
    let mixture = "[data]\nsource = \"csv\"\npath = \"a.csv\"\nholdout = 0.2\n\
                   split = { by = \"rows\", clients = 3 }\n[model]\nkind = \"gmm\"\ncomponents = 2\n\
                   [method]\nkind = \"fedem\"\nrounds = 3\n";
    insta::assert_snapshot!(refusal(mixture), @r#"
    error: `holdout` is for tables with gaps, and gmm has none
      --> job.toml:4:11
      |
    4 | holdout = 0.2
      |           ^^^
    hint: take it out, or write kind = "low-rank" in [model]

    error: by = "rows" is for tables with gaps
      --> job.toml:5:9
      |
    5 | split = { by = "rows", clients = 3 }
      |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    hint: write by = "iid"
    "#);
}
