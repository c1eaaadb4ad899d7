//! What the user sees when a job is wrong.

use crate::{PLAIN, has, method_words, methods_with, refusal, says};

/// [`PLAIN`] with one line replaced.
fn with(old: &str, new: &str) -> String {
    assert!(PLAIN.contains(old), "nothing to replace: {old}");
    refusal(&PLAIN.replace(old, new))
}

/// [`PLAIN`] with lines at its end, where `[method]` is open.
fn and(lines: &str) -> String {
    refusal(&format!("{PLAIN}{lines}\n"))
}

/// A drawn federation with further keys.
fn mixture(keys: &str) -> String {
    let tables = &PLAIN[PLAIN.find("[model]").unwrap()..];
    refusal(&format!("[data]\nsource = \"mixture\"\n{keys}\n{tables}"))
}

#[test]
fn an_unknown_key() {
    insta::assert_snapshot!(and("stpe = 0.1"), @r#"
    error: unknown key `stpe` in [method]
      --> job.toml:12:1
       |
    12 | stpe = 0.1
       | ^^^^
    hint: did you mean `step`?
    "#);
}

/// The keys of the chosen kind, once each.
#[test]
fn an_unknown_key_of_a_model() {
    let cox = "[data]\nsource = \"csv\"\npath = \"d.csv\"\ntarget = \"t\"\nclient = \"s\"\n[model]\n\
               kind = \"cox\"\nzzzz = 1\n[method]\nkind = \"newton\"\n";
    has(&refusal(cox), "known here: `event`, `reference`, `interactions`, `ridge`");
}

#[test]
fn a_key_of_another_table() {
    says(&and("covariance = 3"), "12:1", "unknown key `covariance` in [method]");
}

#[test]
fn an_unknown_table_and_an_unknown_key_of_an_inline_table() {
    insta::assert_snapshot!(and("evaluate = { evry = 10 }\n[uplinks]\ncodec = \"exact\""), @r#"
    error: unknown key `evry` in `method.evaluate`
      --> job.toml:12:14
       |
    12 | evaluate = { evry = 10 }
       |              ^^^^
    hint: did you mean `every`?

    error: unknown table [uplinks]
      --> job.toml:13:2
       |
    13 | [uplinks]
       |  ^^^^^^^
    hint: did you mean [uplink]?
    "#);
}

#[test]
fn a_wrong_type() {
    insta::assert_snapshot!(with("rounds = 200", "rounds = \"200\""), @r#"
    error: `rounds` takes an integer from 1 to 4294967295, not "200"
      --> job.toml:11:10
       |
    11 | rounds = "200"
       |          ^^^^^
    hint: numbers are written without quotes
    "#);
}

#[test]
fn impossible_values() {
    insta::assert_snapshot!(
        refusal(
            &PLAIN
                .replace("rounds = 200", "rounds = -5\nparticipation = 1.5\nstep = 0")
                .replace("components = 3", "components = 0")
        ),
        @r#"
    error: `components` takes an integer of at least 1, a list of them, or "auto", not 0
      --> job.toml:8:14
      |
    8 | components = 0
      |              ^

    error: `rounds` takes an integer from 1 to 4294967295, not -5
      --> job.toml:11:10
       |
    11 | rounds = -5
       |          ^^

    error: `participation` takes a number above 0 and at most 1, { size } or { default, clients }, not 1.5
      --> job.toml:12:17
       |
    12 | participation = 1.5
       |                 ^^^

    error: `step` takes a positive number, "auto", "theory", "1/L", "1/(2L)", "1/(L sqrt(k))", { over_L }, { initial, power, delay } or { phi, beta }, not 0
      --> job.toml:13:8
       |
    13 | step = 0
       |        ^
    "#
    );
}

#[test]
fn an_unknown_kind() {
    let said = with("\"fedem\"", "\"fedme\"").replace(&method_words(), "METHODS");
    says(&said, "10:8", "unknown `kind` in [method]: \"fedme\"");
}

#[test]
fn an_unknown_codec() {
    insta::assert_snapshot!(and("[uplink]\ncodec = { kind = \"ditering\", levels = 0 }"), @r#"
    error: unknown `kind` in `uplink.codec`: "ditering"
      --> job.toml:13:18
       |
    13 | codec = { kind = "ditering", levels = 0 }
       |                  ^^^^^^^^^^
    hint: did you mean "dithering"? `kind` takes "exact", "exact-f32", "dithering", "block-p", "sparse", "natural", "top-k", "sign" or "grid"
    "#);
}

#[test]
fn a_missing_table_and_a_missing_key() {
    insta::assert_snapshot!(refusal("[model]\nkind = \"gmm\"\n[data]\nsource = \"npy\"\n"), @r#"
    error: the job has no [method] table
      --> job.toml
    hint: [method] describes the algorithm; it needs `kind`

    error: missing key `path` in [data]
      --> job.toml:3:1
      |
    3 | [data]
      | ^^^^^^
    hint: `path` takes a file name: the file, relative to the job file; for parquet, leaf, cifar10, cifar100 and jpeg also a folder
    "#);
}

#[test]
fn conflicting_keys() {
    says(&and("epochs = 3"), "12:1", "`rounds` and `epochs` in [method] cannot both be given");
    says(
        &with("client = \"client\"", "client = \"c\"\n[data.split]\nby = \"iid\"\nclients = 3"),
        "6:7",
        "`client` and `split` in [data] cannot both be given",
    );
}

#[test]
fn nobody_holds_the_rows() {
    says(&with("client = \"client\"\n", ""), "2:1", "[data] does not assign rows to clients");
}

#[test]
fn a_biased_codec_without_feedback() {
    says(
        &and("[uplink]\ncodec = { kind = \"top-k\", k = 10 }"),
        "13:9",
        "top-k is biased: without error feedback (here rule = \"memory\") the fixed point moves",
    );
    insta::assert_snapshot!(and("[uplink]\ncodec = \"top-k\"\nrule = \"feedback\""), @r#"
    error: missing key `k` in `uplink.codec`
      --> job.toml:13:9
       |
    13 | codec = "top-k"
       |         ^^^^^^^
    hint: `k` takes an integer of at least 1: number of coordinates that are sent
    "#);
}

#[test]
fn memories_of_dem_and_compression_of_em() {
    let dem = PLAIN.replace("fedem", "dem") + "[uplink]\nrule = \"memory\"\n";
    says(&refusal(&dem), "13:8", "dem has no memories");
    let em = PLAIN.replace("fedem", "em") + "[uplink]\ncodec = \"natural\"\n";
    says(&refusal(&em), "13:9", "em sends no messages: one client holds all rows");
}

#[test]
fn keys_without_a_meaning() {
    let em = PLAIN.replace("fedem", "em") + "participation = 0.5\n[simulation]\nlost = 0.1\n";
    let said = refusal(&em).replace(&methods_with("participation"), "METHODS");
    insta::assert_snapshot!(said, @r#"
    error: `participation` has no meaning for em: it is for METHODS
      --> job.toml:12:1
       |
    12 | participation = 0.5
       | ^^^^^^^^^^^^^
    hint: take `participation` out

    error: `lost` has no meaning for em: one client holds all rows and sends nothing
      --> job.toml:14:1
       |
    14 | lost = 0.1
       | ^^^^
    hint: take `lost` out
    "#);
    says(
        &and("[uplink]\nrule = \"plain\"\nalpha = 0.5"),
        "14:1",
        "`alpha` has no meaning for plain: there is no memory",
    );
}

#[test]
fn matrices_that_are_no_covariance() {
    insta::assert_snapshot!(mixture("covariance = [[1, 0.3], [0.4, 1]]"), @r#"
    error: the matrix is not symmetric: row 2 column 1 is 0.4, row 1 column 2 is 0.3
      --> job.toml:3:14
      |
    3 | covariance = [[1, 0.3], [0.4, 1]]
      |              ^^^^^^^^^^^^^^^^^^^^
    hint: a covariance equals its transpose
    "#);
    says(&mixture("covariance = [[1, 2], [2, 1]]"), "3:14", "the matrix is not positive definite");
    says(&mixture("means = [[0, 0, 0], [1, 1]]"), "3:21", "row 2 has 2 numbers, the first has 3");
    says(
        &mixture("means = [[0, 0, 0], [1, 1, 1]]"),
        "1:1",
        "a covariance of size 2 for means of 3 numbers",
    );
}

#[test]
fn a_cohort_larger_than_the_federation_and_a_round_that_never_comes() {
    let split = "[data.split]\nby = \"iid\"\nclients = 5";
    let text = PLAIN.replace("client = \"client\"", split);
    says(
        &refusal(&format!("{text}participation = {{ size = 6 }}\n")),
        "14:26",
        "a cohort of 6 out of 5 clients",
    );
    says(
        &and("[simulation]\nlate = [{ client = \"north\", round = 201 }]"),
        "13:37",
        "the run ends with round 200, before round 201",
    );
}

#[test]
fn toml_that_is_none() {
    insta::assert_snapshot!(with("rounds = 200", "rounds = \nstep = 0.1 0.2"), @r#"
    error: not valid TOML: a value is missing
      --> job.toml:11:10
       |
    11 | rounds =
       |          ^

    error: not valid TOML: `0.1 0.2` is not a value
      --> job.toml:12:8
       |
    12 | step = 0.1 0.2
       |        ^^^^^^^
    hint: strings are written in quotes, and a key has one value
    "#);
    insta::assert_snapshot!(with("rounds = 200", "rounds = 200\nrounds = 300"), @r#"
    error: not valid TOML: duplicate key
      --> job.toml:12:1
       |
    12 | rounds = 300
       | ^^^^^^
    "#);
    says(&with("\"gmm\"", "\"gmm"), "7:12", "not valid TOML: invalid basic string, expected `\"`");
}

#[test]
fn a_fault_in_one_table_does_not_hide_those_of_others() {
    let em = PLAIN.replace("fedem", "em").replace("rounds = 200", "rounds = -5");
    let shown = refusal(&format!("{em}[uplink]\ncodec = \"natural\"\n[simulation]\nlost = 0.1\n"));
    assert_eq!(shown.matches("error:").count(), 3, "{shown}");
}

#[test]
fn at_most_ten_errors_are_shown() {
    let keys: String = (0..13).map(|i| format!("zz{i} = 1\n")).collect();
    let shown = and(&keys);
    assert_eq!(shown.matches("error:").count(), 10, "{shown}");
    assert!(shown.ends_with("and 3 more errors"), "{shown}");
}

#[test]
fn every_impossible_value_of_the_method_is_refused() {
    let lines = [
        "batch = 0",
        "batch = \"half\"",
        "step = -0.1",
        "step = inf",
        "step = nan",
        "step = \"atuo\"",
        "step = { power = 1.5 }",
        "participation = 0",
        "participation = {}",
        "participation = { size = 0 }",
        "participation = { size = 3, default = 0.5 }",
        "participation = { clients = { a = 2 } }",
        "local_steps = 2",
        "batch = 5\nlocal_steps = 0",
        "batch = 5\nreplacement = 1",
        "weights = \"rows\"",
        "form = \"leen\"",
        "evaluate = 10",
        "evaluate = { every = 0 }",
        "stop = { field_norm2 = 0 }",
        "stop = { tolerance = 1e-3 }",
        "stop = { patience = 1.5 }",
        "[uplink]\nalpha = 0",
        "[uplink]\nalpha = 1.01",
        "[uplink]\nstart = \"orcale\"",
        "[uplink]\ncodec = { kind = \"dithering\", levels = 0 }",
        "[uplink]\ncodec = { kind = \"dithering\", levels = 40000 }",
        "[uplink]\ncodec = { kind = \"dithering\", norm = 3 }",
        "[uplink]\ncodec = { kind = \"dithering\", q = 0.5 }",
        "[uplink]\ncodec = { kind = \"block-p\", size = 3, sizes = [3] }",
        "[uplink]\ncodec = { kind = \"block-p\", sizes = [] }",
        "[uplink]\ncodec = { kind = \"sparse\", q = 0.5, k = 3 }",
        "[uplink]\ncodec = { kind = \"sparse\", q = 0 }",
        "[uplink]\ncodec = {}",
        "[uplink]\ncodec = \"sign\"\nrule = \"memory\"",
        "[simulation]\nlost = 1",
        "[simulation]\ndrops = [{ round = 0, clients = [\"a\"] }]",
        "[simulation]\ndrops = [{ round = 201, clients = [\"a\"] }]",
        "[simulation]\nlate = [{ client = \"a\", round = 2 }, { client = \"a\", round = 3 }]",
        "[simulation]\ncheckpoint_seconds = -1",
    ];
    for line in lines {
        and(line);
    }
}

#[test]
fn every_impossible_value_of_the_model_and_the_data_is_refused() {
    let models = [
        "covariance = \"known\"",
        "known_covariance = [[1.0]]",
        "covariance = \"known\"\nknown_covariance = [[1.0, 2.0]]",
        "covariance = \"known\"\nknown_covariance = [[1.0]]\nreg_covar = 0.1",
        "init = \"moment\"",
        "init = \"init.toml\"",
        "reg_covar = -1e-9",
        "weight_floor = 0.2",
        "covariance_floor = 0",
        "penalty = { dirichlet = -1 }",
        "penalty = { inverse_wishart = { mu = 1 } }",
    ];
    for line in models {
        with("components = 3", &format!("components = 3\n{line}"));
    }
    let data = [
        "columns = []",
        "columns = [\"x\", \"x\"]",
        "columns = [\"client\"]",
        "label = \"\"",
        "delimiter = \"ab\"",
        "seed = -1",
        "seed = 18446744073709551616",
        "rows = 3",
    ];
    for line in data {
        with("client = \"client\"", &format!("client = \"client\"\n{line}"));
    }
    let drawn = [
        "clients = 0",
        "weights = [0.5, 0.5]",
        "heterogeneity = \"identical\"\nweights = [0.5, 0.6]",
        "heterogeneity = \"identical\"\nweights = [1.0]",
        "heterogeneity = { dirichlet = [0.2] }",
        "heterogeneity = { dirichlet = 0 }",
        "covariance = [[[1, 0], [0, 1]]]",
        "stream = true",
        "path = \"x.csv\"",
    ];
    for line in drawn {
        mixture(line);
    }
    for name in ["", "a b", "../x", ".x", &"x".repeat(101)] {
        with("\"plain\"", &format!("\"{name}\""));
    }
}
