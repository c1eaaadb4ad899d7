//! `codec = "grid"` in a job: accepted and refused channels, and runs.

use crate::cells::TABLE;
use crate::plans::{excess, failure, run};
use crate::{PLAIN, has, parse, refusal};
use whimbrel_codec::{Codec, SharedGrid};
use whimbrel_families::Job;
use whimbrel_methods::fedem::FrameKind;

const GRID: &str = "[uplink]\ncodec = \"grid\"\n";

/// Clients of a drawn mixture.
fn mixture(clients: usize, method: &str, uplink: &str) -> Job {
    parse(&format!(
        "[data]\nsource = \"mixture\"\nclients = {clients}\nrows = 40\n\
         heterogeneity = {{ dirichlet = 0.2 }}\n[model]\nkind = \"gmm\"\ncomponents = 2\n\
         covariance = \"tied\"\n[method]\n{method}\n{uplink}"
    ))
}

#[test]
fn a_grid_is_read_and_written() {
    let job = parse(&format!("{PLAIN}[uplink]\ncodec = {{ kind = \"grid\", bits = 20 }}\n"));
    assert_eq!(job.uplink.codec, Codec::Grid(SharedGrid::new(20).unwrap()));
    assert_eq!(parse(&job.to_toml()), job);
    let default = parse(&format!("{PLAIN}{GRID}"));
    assert_eq!(default.uplink.codec, Codec::Grid(SharedGrid::default()));
    let dem = parse(&format!("{PLAIN}{GRID}").replace("fedem", "dem"));
    assert_eq!(dem.uplink.frame, Some(FrameKind::Fisher));
    for bits in [7, 33] {
        let text = format!("{PLAIN}[uplink]\ncodec = {{ kind = \"grid\", bits = {bits} }}\n");
        has(&refusal(&text), "`bits` takes an integer from 8 to 32");
    }
}

/// Shares of noise go onto a grid of 32 bits unless the job names another codec.
#[test]
fn shares_of_noise_have_a_grid_of_32_bits() {
    const SHARES: &str = "[privacy]\nmasks = true\nepsilon = 1\ndelta = 1e-5\n";
    let mixture = PLAIN.replace("components = 3", "components = 3\ncovariance = \"full\"");
    let sgd = "[data]\nsource = \"toy\"\nclients = 5\n[model]\nkind = \"linear\"\n[method]\n\
               kind = \"sgd\"\nrounds = 3\nstep = 0.1\n";
    let regression = format!("{sgd}{SHARES}clip = 1.0\n");
    for text in [format!("{mixture}{SHARES}"), regression.clone()] {
        let job = parse(&text);
        assert_eq!(job.uplink.codec, Codec::Grid(SharedGrid::new(32).unwrap()));
        assert_eq!(parse(&job.to_toml()), job);
    }
    assert_eq!(run(&parse(&regression)).rounds, 3);
    let refused = refusal(&format!("{regression}[uplink]\ncodec = \"exact\"\n"));
    has(&refused, "write codec = { kind = \"grid\", bits = 32 } in [uplink]");
    assert!(!refused.contains("bits = 16"), "{refused}");
}

/// Declared limits whose squares overflow the first upload or the exact sums before the fit, unless the limits scale the
/// columns.
#[test]
fn a_grid_that_could_overflow_is_refused() {
    let job = |limit: &str, more: &str| {
        format!("{PLAIN}{GRID}{more}[schema.x]\nmin = 0\nmax = {limit}\n")
    };
    has(&refusal(&job("1e14", "")), "squares of column \"x\", summed over the rows of a client");
    has(&refusal(&job("1e12", "")), "the first upload on a grid holds 8.6e9");
    parse(&job("9e4", ""));
    parse(&job("1e12", "[data.prepare]\nstandardize = true\n"));
    parse(&job("1e14", "[data.prepare]\nlimits = true\n"));
    parse(&job("1e14", "").replace(GRID, ""));
}

#[test]
fn a_grid_is_refused_where_uploads_are_not_terms_of_one_sum() {
    let toy = "[data]\nsource = \"toy\"\n[model]\nkind = \"linear\"\n[method]\nrounds = 9\n";
    let learner = "[data]\nsource = \"synthetic-mixture\"\nclients = 9\n[model]\n\
                   kind = \"logistic\"\n[method]\nrounds = 2\n";
    let down = "[downlink]\ncodec = \"dithering\"\n";
    for (job, what) in [
        (format!("{PLAIN}{GRID}rule = \"feedback\"\n"), "a grid has no error feedback"),
        (format!("{PLAIN}{GRID}frame = \"raw\"\n"), "so it needs frame = \"fisher\""),
        (format!("{PLAIN}step = \"theory\"\n{GRID}"), "so it needs frame = \"fisher\""),
        (
            format!("{PLAIN}{GRID}[[uplink.for]]\nclients = [\"a\"]\ncodec = \"natural\"\n"),
            "all clients share the codec",
        ),
        (
            format!("{PLAIN}[[uplink.for]]\nclients = [\"a\"]\ncodec = \"grid\"\n"),
            "all clients share the codec",
        ),
        (
            format!("{toy}kind = \"mcm\"\n[downlink]\ncodec = \"grid\"\n"),
            "a downlink cannot have one",
        ),
        (format!("{toy}kind = \"rand-mcm\"\n{GRID}{down}"), "all clients compute at one state"),
        (
            format!("{toy}kind = \"mcm\"\n{GRID}{down}memories = \"single\"\n"),
            "all clients compute at one state",
        ),
        (
            TABLE.replace("{ kind = \"dithering\", levels = 4, norm = 2 }", "\"grid\""),
            "most cells of a table have one observer",
        ),
        (format!("{learner}kind = \"mocha\"\n{GRID}"), "mocha does not compress its messages"),
        (format!("{learner}kind = \"clustered\"\n{GRID}"), "does not compress its messages"),
        (format!("{learner}kind = \"fedsoul\"\n{GRID}"), "outside of a grid"),
    ] {
        has(&refusal(&job), what);
    }
}

#[test]
fn more_clients_than_fit_the_grid_are_refused() {
    let bits = |bits: u32| format!("[uplink]\ncodec = {{ kind = \"grid\", bits = {bits} }}\n");
    let fedem = "kind = \"fedem\"\nrounds = 3";
    let (message, code) = failure(&mixture(19, fedem, &bits(8)));
    has(&message, "leaves 6 levels on each side of zero to each of 19 clients");
    has(&message, "hint: write bits = 9 or more");
    assert_eq!(code, 2);
    run(&mixture(18, fedem, &bits(8)));
    let half = format!("{fedem}\nparticipation = 0.5");
    has(&failure(&mixture(18, &half, &bits(9))).0, "at least 31 are needed with partial");
    // A cohort of all clients is not partial.
    run(&mixture(18, &format!("{fedem}\nparticipation = {{ size = 18 }}"), &bits(8)));
}

#[test]
fn jobs_on_a_grid_end_like_jobs_with_exact_uploads() {
    let number = |job: &Job, name| run(job).last.unwrap().number(name).unwrap();
    for method in [
        "kind = \"fedem\"\nrounds = 150\nstep = 0.5",
        "kind = \"fedem\"\nrounds = 300\nstep = 0.3\nparticipation = { size = 6 }",
    ] {
        let [grid, exact] = [GRID, ""].map(|up| number(&mixture(12, method, up), "objective"));
        assert!((grid - exact).abs() < 1e-9, "{method}: {grid} and {exact}");
        let field = number(&mixture(12, method, GRID), "field_norm2");
        assert!(field < 1e-18, "{method}: {field:e}");
    }
    let toy = |up: &str| {
        parse(&format!(
            "[data]\nsource = \"toy\"\nclients = 6\nrows = 30\ndims = 5\nnoise = 0.0\n[model]\n\
             kind = \"linear\"\n[method]\nkind = \"diana\"\nrounds = 200\nstep = \"1/(2L)\"\n{up}"
        ))
    };
    let [grid, exact] = [GRID, ""].map(|up| excess(&run(&toy(up))));
    assert!(grid < 2.0 * exact + 1e-14, "{grid:e} and {exact:e}");
}
