//! vr-fedem, and codecs for single clients of the EM methods, from jobs to runs.

use crate::plans::{plan, run};
use crate::{has, parse, refusal, says};
use whimbrel_engine::Outcome;
use whimbrel_families::Job;
use whimbrel_families::em::EmFit;
use whimbrel_families::job::Batch;

/// Eight clients of 50 rows each, a known covariance: statistics of six numbers.
fn text(method: &str) -> String {
    format!(
        "seed = 3\n[data]\nsource = \"mixture\"\nclients = 8\nrows = 50\n[model]\nkind = \"gmm\"\n\
         components = 2\ncovariance = \"known\"\nknown_covariance = [[1.0, 0.3], [0.3, 0.8]]\n\
         [method]\n{method}\n"
    )
}

fn job(method: &str) -> Job {
    parse(&text(method))
}

fn number(outcome: &Outcome, name: &str) -> f64 {
    outcome.last.as_ref().unwrap().number(name).unwrap()
}

const DITHERING: &str = "[uplink]\ncodec = { kind = \"dithering\", levels = 1 }\n";

#[test]
fn loops_and_minibatches_come_from_the_theorem_where_the_job_is_silent() {
    let silent = job("kind = \"vr-fedem\"\nrounds = 10\n");
    assert_eq!(silent.method.kind.algorithm, "vr-fedem");
    let inner = silent.fit_as::<EmFit>().expect("a mixture").keys.inner;
    assert_eq!(
        (inner, silent.method.batch),
        (None, Batch::Sample { size: None, replacement: true, local_steps: 1 })
    );
    // omega = 0: sqrt(50/2) = 5 rounds of as many rows; a statistic of six numbers wants six, and
    // 50/12 = 4.2 rounds.
    has(
        &plan(&silent).unwrap().settings().join("\n"),
        "outer loops of 5 rounds, minibatches of 6 rows",
    );
    // omega = sqrt(6) - 1: 5 sqrt(6) = 12.2, and 13/6 = 2.2 rows.
    let compressed = job(&format!("kind = \"vr-fedem\"\nrounds = 10\n{DITHERING}"));
    has(
        &plan(&compressed).unwrap().settings().join("\n"),
        "outer loops of 5 rounds, minibatches of 6 rows",
    );
    // The coarsest codec decides: 5 sqrt(50/2) = 25 rounds at most.
    let own = format!(
        "batch = 1\n{DITHERING}for = [{{ clients = [\"client-0\"], codec = {{ kind = \"sparse\", q = 0.2 }} }}]\n"
    );
    let notes = plan(&job(&format!("kind = \"vr-fedem\"\nrounds = 10\n{own}")))
        .unwrap()
        .settings()
        .join("\n");
    assert!(notes.contains("outer loops of 25 rounds, minibatches of 1 row"), "{notes}");
    let given =
        job(&format!("kind = \"vr-fedem\"\nrounds = 10\ninner = 20\nbatch = 7\n{DITHERING}"));
    has(
        &plan(&given).unwrap().settings().join("\n"),
        "outer loops of 20 rounds, minibatches of 7 rows",
    );
    for job in [silent, compressed, given] {
        assert_eq!(parse(&job.to_toml()), job);
    }
}

#[test]
fn it_runs_with_every_kind_of_step_and_ends_below_fedem() {
    let fedem =
        run(&job(&format!("kind = \"fedem\"\nepochs = 60\nbatch = 6\nstep = 0.1\n{DITHERING}")));
    let plateau = number(&fedem, "field_norm2");
    for (step, limit) in [
        ("0.1", 1e-8),
        ("\"auto\"", 1e-8),
        ("{ initial = 0.2, power = 0.1, delay = 50 }", 1e-8),
        ("\"theory\"", 1.0),
    ] {
        let vr = run(&job(&format!(
            "kind = \"vr-fedem\"\nepochs = 60\ninner = 15\nbatch = 3\nstep = {step}\n{DITHERING}"
        )));
        assert!(vr.ending.is_over(), "{:?}", vr.ending);
        assert!((60.0..63.0).contains(&number(&vr, "epoch")), "{}", number(&vr, "epoch"));
        let field = number(&vr, "field_norm2");
        assert!(field < limit, "step = {step}: {field:e}");
        if limit < 1.0 {
            assert!(field < 1e-2 * plateau, "step = {step}: {field:e} against {plateau:e}");
        }
    }
}

#[test]
fn planned_rounds_of_epochs_are_those_of_the_run() {
    let planned = job(&format!(
        "kind = \"vr-fedem\"\nepochs = 40\ninner = 10\nbatch = 4\nstep = 0.1\nparticipation = 0.5\n{DITHERING}"
    ));
    let planned_rounds = plan(&planned).unwrap().rounds().unwrap();
    let said = format!(
        "epochs = 40 gives {planned_rounds} rounds: the first one passes over all rows 2 times"
    );
    assert!(plan(&planned).unwrap().notes().iter().any(|note| note.starts_with(&said)), "{said}");
    let rounds = f64::from(planned_rounds);
    let ran = f64::from(run(&planned).rounds);
    // A client's cost of a loop has a standard deviation near a fifth of its mean, over 8 clients and
    // some 20 loops: 1.6 %; five of those, and one loop cut short.
    assert!((ran / rounds - 1.0).abs() < 0.13, "{ran} rounds where {rounds} were planned");
}

#[test]
fn what_has_no_meaning_is_refused() {
    says(
        &refusal(&text("kind = \"fedem\"\nrounds = 10\ninner = 5")),
        "14:1",
        "`inner` has no meaning for fedem: it is for vr-fedem",
    );
    says(
        &refusal(&text("kind = \"fedem\"\nrounds = 10\nbatch = \"auto\"")),
        "14:9",
        "batch = \"auto\" has no meaning here: it is for vr-fedem",
    );
    let stream = text("kind = \"vr-fedem\"\nrounds = 10")
        .replace("clients = 8", "clients = 8\nstream = true");
    says(
        &refusal(&stream),
        "5:10",
        "vr-fedem starts each outer loop with a pass over all rows, but a stream is infinite",
    );
    let sampled = "kind = \"vr-fedem\"\nrounds = 10\nstep = \"theory\"\nparticipation = 0.5";
    says(&refusal(&text(sampled)), "14:8", "the theorems about vr-fedem assume full participation");
    let em = text(
        "kind = \"em\"\nrounds = 10\n[[uplink.for]]\nclients = [\"client-0\"]\ncodec = \"natural\"",
    );
    says(&refusal(&em), "14:1", "em sends no messages: one client holds all rows");
    for lines in [
        "kind = \"vr-fedem\"\nrounds = 10\ninner = 0",
        "kind = \"vr-fedem\"\nrounds = 10\ninner = \"some\"",
        "kind = \"vr-fedem\"\nrounds = 10\nstep = \"1/L\"",
        "kind = \"vr-fedem\"\nrounds = 10\nchannels = \"mcm\"\nstep = \"theory\"\n[uplink]\ncodec = \"dithering\"\n[downlink]\ncodec = \"dithering\"",
        "kind = \"vr-fedem\"\nrounds = 10\nbatch = \"full\"\nreplacement = false",
    ] {
        refusal(&text(lines));
    }
}

#[test]
fn full_batches_are_allowed_with_a_warning() {
    let full = job("kind = \"vr-fedem\"\nrounds = 10\nbatch = \"full\"");
    let warnings = plan(&full).unwrap().warnings().join("\n");
    assert!(warnings.contains("full batches have no variance to reduce"), "{warnings}");
}

#[test]
fn clients_of_the_em_methods_may_have_codecs_of_their_own() {
    for method in ["fedem", "dem", "vr-fedem"] {
        let own = format!(
            "kind = \"{method}\"\nrounds = 60\nstep = 0.1\n{DITHERING}\
             for = [{{ clients = [\"client-2\"], codec = \"exact\" }}]\n"
        );
        let outcome = run(&job(&own));
        assert!(outcome.ending.is_over(), "{:?}", outcome.ending);
        let bytes: Vec<u64> = outcome.tallies.iter().map(|tally| tally.bytes_up).collect();
        let others = bytes.iter().enumerate().filter(|(id, _)| *id != 2).map(|(_, b)| *b).max();
        assert!(bytes[2] > 2 * others.unwrap(), "{method}: {bytes:?}");
    }
    let unknown = job(&format!(
        "kind = \"fedem\"\nrounds = 9\n{DITHERING}for = [{{ clients = [\"x\"], codec = \"exact\" }}]\n"
    ));
    has(&plan(&unknown).map(|_| ()).unwrap_err().to_string(), "`uplink.for` names client `x`");
}
