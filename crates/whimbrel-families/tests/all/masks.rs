//! `masks = true` in a job: the model of a run without masks, void rounds, and refusals.

use crate::cells::TABLE;
use crate::plans::{failure, plan, run};
use crate::{has, parse, refusal};
use whimbrel_core::Wire;
use whimbrel_engine::{Consent, Outcome};
use whimbrel_families::Job;
use whimbrel_families::load::load;
use whimbrel_families::plan::{Facts, Plan};

const GRID: &str = "[uplink]\ncodec = \"grid\"\n";
const MASKS: &str = "[privacy]\nmasks = true\n";

fn mixture(clients: usize, method: &str, rest: &str) -> String {
    format!(
        "[data]\nsource = \"mixture\"\nclients = {clients}\nrows = 40\n\
         heterogeneity = {{ dirichlet = 0.2 }}\n[model]\nkind = \"gmm\"\ncomponents = 2\n\
         covariance = \"tied\"\ninit = \"moments\"\n[method]\nkind = \"{method}\"\nrounds = 12\n{rest}"
    )
}

fn toy(method: &str, rest: &str) -> String {
    format!(
        "[data]\nsource = \"toy\"\nclients = 9\nrows = 30\ndims = 5\nnoise = 0.3\n[model]\n\
         kind = \"linear\"\n[method]\nkind = \"{method}\"\nrounds = 20\nstep = \"1/(2L)\"\n{rest}"
    )
}

/// The model and each client's accepted rounds.
fn result(outcome: &Outcome) -> (Vec<u8>, Vec<u32>) {
    assert!(outcome.ending.is_over(), "{:?}", outcome.ending);
    let rounds = outcome.tallies.iter().map(|tally| tally.rounds).collect();
    (outcome.delivered.last().unwrap().to_bytes(), rounds)
}

#[test]
fn masks_do_not_change_the_model() {
    let lost = "[simulation]\nlost = 0.08\n";
    for job in [
        mixture(12, "fedem", ""),
        mixture(40, "fedem", ""),
        mixture(12, "dem", ""),
        mixture(12, "fedem", "participation = { size = 8 }\n"),
        mixture(12, "fedem", "").replace("moments", "federated-kmeans"),
        mixture(12, "fedem", "[data.prepare]\nstandardize = true\n"),
        mixture(12, "fedem", "[data.prepare]\npca = 1\n").replace("moments", "federated-kmeans"),
        toy("diana", ""),
        toy("qsgd", "batch = 5\n"),
    ] {
        let plain = run(&parse(&format!("{job}{GRID}{lost}")));
        let masked = run(&parse(&format!("{job}{GRID}{lost}{MASKS}")));
        let losses = result(&plain).1.iter().any(|rounds| *rounds < plain.rounds);
        assert!(losses, "no upload was lost: {job}");
        assert!(result(&plain) == result(&masked), "{job}");
        let traffic = (plain.traffic, masked.traffic);
        assert!(traffic.0.up < traffic.1.up && traffic.0.down < traffic.1.down, "{traffic:?}");
    }
}

/// An evaluation under masks has the figures of the one without, except for those of single clients.
#[test]
fn masks_do_not_change_the_figures_of_evaluations() {
    let learner = "[data]\nsource = \"synthetic-mixture\"\nclients = 9\n[model]\nkind = \"logistic\"\n\
                   [method]\nrounds = 3\nkind = \"fedavg\"\n";
    let held_out = mixture(12, "fedem", "").replace("rows = 40", "rows = 40\ntest = 0.3");
    for (job, last) in [
        (mixture(12, "fedem", "evaluate = { every = 3 }\n"), "objective"),
        (held_out, "test_log_likelihood"),
        (toy("diana", ""), "excess_loss"),
        (learner.to_owned(), "test_accuracy"),
    ] {
        let plain = run(&parse(&format!("{job}{GRID}")));
        let masked = run(&parse(&format!("{job}{GRID}{MASKS}")));
        let figures = |outcome: &Outcome| {
            let mut row = outcome.last.clone().unwrap();
            row.figures.retain(|figure| !figure.name.ends_with("_p10"));
            assert!(row.number(last).is_some(), "{job}");
            (row.round, row.figures)
        };
        assert_eq!(figures(&plain), figures(&masked), "{job}");
        assert!(plain.own.iter().any(|own| !own.is_empty()), "{job}");
        assert!(masked.own.iter().all(Vec::is_empty), "{job}");
        assert!(masked.traffic.eval > plain.traffic.eval, "{job}");
    }
}

/// No client's message at enrolment holds more than its number of rows and its keys.
#[test]
fn stages_before_the_fit_are_masked_sums() {
    let prepare = "[data.prepare]\nstandardize = true\npca = 1\n";
    let text = mixture(12, "fedem", prepare).replace("moments", "federated-kmeans");
    for text in [text, toy("diana", "")] {
        let plan = plan(&parse(&format!("{text}{GRID}{MASKS}"))).unwrap();
        for stage in plan.disclosures().unwrap() {
            for sent in stage.disclosures.iter().filter(|d| d.message == "summary") {
                let known = sent.meaning.contains("number of") || sent.meaning.contains("keys");
                assert!(
                    known && !sent.meaning.contains("mean"),
                    "{}: {}",
                    stage.stage,
                    sent.meaning
                );
            }
        }
    }
}

/// Survivors of less than two thirds of a cohort: the round is that of an empty cohort.
#[test]
fn a_void_round_counts_as_one_without_uploads() {
    let job = |lost: usize, rest: &str| -> Job {
        let text = mixture(9, "fedem", &format!("{GRID}{rest}"));
        let names = load(&parse(&text)).unwrap().clients.into_iter().map(|(name, _)| name);
        let names: Vec<String> = names.take(lost).map(|name| format!("{name:?}")).collect();
        let drops = format!("drops = [{{ round = 4, clients = [{}] }}]\n", names.join(", "));
        parse(&format!("{text}[simulation]\n{drops}"))
    };
    // The uploads of a void round were accepted, so that only the models agree.
    let of = |lost, rest| result(&run(&job(lost, rest))).0;
    assert!(of(4, MASKS) == of(9, ""));
    assert!(of(3, MASKS) == of(3, ""));
    assert!(of(3, &format!("{MASKS}min_cohort = 7\n")) == of(9, ""));
}

/// Regressions are served under masks if their job is silent and could ask for them; otherwise their coordinator
/// is told that its sums tell more.
#[test]
fn regressions_are_served_under_masks() {
    let (three, two) = ("clients = [\"a\", \"b\", \"c\"]\n", "clients = 2\n");
    let (cox, glm) = ("kind = \"cox\"\n", "kind = \"glm\"\n");
    let baseline = &format!("{cox}baseline = true\n")[..];
    for (model, rest, federation, is_masked) in [
        (glm, "", three, true),
        (cox, "rounds = 7\n[privacy]\nmin_group = 9\n", "clients = 3\n", true),
        (glm, "[privacy]\nmasks = false\n", three, false),
        (glm, "", two, false),
        (glm, "", &format!("{three}deadline_s = 5\n"), false),
        (baseline, "", three, false),
    ] {
        let job = parse(&format!(
            "[data]\nsource = \"csv\"\ncolumns = [\"x\"]\ntarget = \"y\"\n[model]\n{model}\
             [method]\nkind = \"newton\"\n{rest}[federation]\n{federation}"
        ));
        let served = job.served();
        assert_eq!(served.privacy.is_masked(), is_masked, "{model}{rest}{federation}");
        let group = if rest.contains('9') { 9 } else { 5 };
        assert_eq!(served.privacy.min_group, Some(group));
        let plan = Plan::on_network(&served, &Facts::on_network(&served).unwrap()).unwrap();
        let told = plan.warnings().join("\n").contains("can compute rows of a client");
        assert!(told != is_masked && !job.privacy.is_masked(), "{model}{rest}{federation}");
        let most = if rest.contains('7') { 27 } else { 60 };
        let rounds = plan.agreements(&Consent::default()).unwrap()[0].rounds();
        assert_eq!(rounds, most + 10, "openings, rounds and repetitions");
    }
    assert!(!parse(&mixture(4, "fedem", GRID)).served().privacy.is_masked());
}

#[test]
fn masks_are_refused_where_they_hide_nothing() {
    let gmm = mixture(12, "fedem", "");
    let learner = "[data]\nsource = \"synthetic-mixture\"\nclients = 9\n[model]\n\
                   kind = \"logistic\"\n[method]\nrounds = 2\n";
    let down = "[downlink]\ncodec = \"dithering\"\n";
    let bits = "[uplink]\ncodec = { kind = \"grid\", bits = 20 }\n";
    for (job, what) in [
        (format!("{gmm}{MASKS}"), "hint: write codec = { kind = \"grid\", bits = 16 } in [uplink]"),
        (format!("{gmm}{bits}{MASKS}"), "masks hide words of 16 or 32 bits"),
        (format!("{}{GRID}{down}{MASKS}", toy("artemis", "")), "must not differ between them"),
        (
            format!("{gmm}participation = {{ default = 0.5, clients = {{}} }}\n{GRID}{MASKS}"),
            "take part with one probability",
        ),
        (
            format!("{}{GRID}{MASKS}", gmm.replace("moments", "examples")),
            "needs rows of each client",
        ),
        (format!("{gmm}step = \"theory\"\n{GRID}{MASKS}"), "maxima and variances"),
        (
            format!("{}{GRID}{MASKS}", gmm.replace("components = 2", "components = [2, 3]")),
            "the choice among several fits is not masked",
        ),
        (format!("{gmm}form = \"state\"\n{GRID}{MASKS}"), "one message to all"),
        (format!("{learner}kind = \"mocha\"\n{MASKS}"), "sums of integers on a grid"),
        (format!("{TABLE}{MASKS}"), "sums of integers on a grid"),
        (format!("{gmm}{GRID}[privacy]\nmin_cohort = 5\n"), "has no meaning without masks"),
        (format!("{gmm}{GRID}{MASKS}min_cohort = 2\n"), "`min_cohort` takes an integer from 3"),
    ] {
        has(&refusal(&job), what);
    }
    let few = parse(&mixture(4, "fedem", &format!("{GRID}{MASKS}min_cohort = 5\n")));
    has(&failure(&few).0, "4 clients: a masked sum takes 5");
}
