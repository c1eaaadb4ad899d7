//! From jobs to runs: what is built, what it reduces to, and what is refused with the data at hand.

use crate::gradient::A9A_MCM;
use crate::{has, parse, run_clients};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use whimbrel_codec::channel::Preset;
use whimbrel_codec::channel::preset::NAMES;
use whimbrel_core::Key;
use whimbrel_engine::Outcome;
use whimbrel_families::Job;
use whimbrel_families::failure::{Failure, Result};
use whimbrel_families::job::Batch;
use whimbrel_families::load::load;
use whimbrel_families::plan::Plan;
use whimbrel_methods::sgd::steps::gamma_max;
use whimbrel_testkit::pairs;

/// Runs a job without files; its minima are kept nowhere.
pub fn run(job: &Job) -> Outcome {
    let loaded = load(job).unwrap();
    let plan = Plan::with_cache(job, &loaded, None).unwrap();
    run_clients(&plan, loaded.clients, job.seed, &mut ()).unwrap()
}

pub fn plan(job: &Job) -> Result<Plan> {
    Plan::with_cache(job, &load(job)?, None)
}

/// The message, the hint under it, and the exit code of a job that cannot be planned.
pub fn failure(job: &Job) -> (String, u8) {
    let error: Failure = plan(job).map(|_| ()).expect_err("the job was planned");
    (error.to_string(), error.exit_code())
}

pub fn excess(outcome: &Outcome) -> f64 {
    assert!(outcome.ending.is_over(), "{:?}", outcome.ending);
    outcome.last.as_ref().unwrap().number("excess_loss").unwrap()
}

/// The model's bits, and the bytes up and down.
fn result(job: &Job) -> (Vec<u64>, u64, u64) {
    let outcome = run(job);
    assert!(outcome.ending.is_over(), "{:?}", outcome.ending);
    let weights = outcome.delivered.last().unwrap().tensor("weights").unwrap();
    let bits = weights.values.iter().map(|w| w.to_bits()).collect();
    (bits, outcome.traffic.up, outcome.traffic.down)
}

/// A drawn federation whose clients differ, with minibatches and stragglers.
fn toy(kind: &str, rest: &str) -> Job {
    parse(&format!(
        "seed = 4\n[data]\nsource = \"toy\"\nclients = 6\nrows = 30\ndims = 5\nnoise = 0.3\n\
         spread = 0.5\n[model]\nkind = \"linear\"\n[method]\nkind = \"{kind}\"\nrounds = 40\n\
         batch = 4\nstep = \"1/(2L)\"\n{rest}\n"
    ))
}

const UP: &str = "[uplink]\ncodec = { kind = \"dithering\", levels = 2 }\n";
const DOWN: &str = "[downlink]\ncodec = { kind = \"dithering\", levels = 2 }\n";

#[test]
fn reductions_hold_bit_for_bit() {
    let half = "participation = 0.5\n";
    let both = format!("{UP}{DOWN}");
    let diana = toy("diana", &format!("{half}{UP}"));
    let exact_down = toy("mcm", &format!("{half}{UP}[downlink]\ncodec = \"exact\""));
    assert_eq!(result(&exact_down), result(&diana), "mcm with an exact downlink is diana");

    let qsgd = toy("qsgd", &format!("{half}{UP}"));
    let forgetful = toy("diana", &format!("{half}{UP}memory = \"off\""));
    assert_eq!(result(&forgetful), result(&qsgd), "diana without memories is qsgd");
    assert_ne!(result(&diana).0, result(&qsgd).0);

    let exact = toy("qsgd", &format!("{half}[uplink]\ncodec = \"exact\""));
    assert_eq!(result(&exact), result(&toy("sgd", half)), "qsgd with an exact codec is sgd");

    let mcm = toy("mcm", &format!("{half}{both}"));
    let one_group = toy("rand-mcm-g", &format!("{half}{both}memories = 1"));
    assert_eq!(result(&one_group), result(&mcm), "rand-mcm-g with one group is mcm");

    let per_client = toy("rand-mcm", &both);
    let groups = toy("rand-mcm-g", &format!("{both}memories = 6"));
    assert_eq!(
        result(&groups).0,
        result(&per_client).0,
        "with everyone, groups of one are rand-mcm"
    );
    assert_ne!(result(&per_client).0, result(&toy("mcm", &both)).0);
}

#[test]
fn every_preset_runs_and_gets_near_the_minimum() {
    let started = excess(&run(&parse(
        &toy("sgd", "")
            .to_toml()
            .replace("rounds = 40", "rounds = 1")
            .replace("\"1/(2L)\"", "{ over_L = 1e-9 }"),
    )));
    for (kind, preset, _) in NAMES {
        let (up, down) = preset.compresses();
        let groups = if *preset == Preset::RandMcmG { "memories = 2\n" } else { "" };
        let channels =
            format!("{}{}{groups}", if up { UP } else { "" }, if down { DOWN } else { "" });
        let job = parse(&toy(kind, &channels).to_toml().replace("\"1/(2L)\"", "{ over_L = 0.1 }"));
        let reached = excess(&run(&job));
        assert!(reached < 0.5 * started, "{kind}: from {started} to {reached}");
    }
}

#[test]
fn own_codecs_are_used() {
    let alone = format!("{UP}for = [{{ clients = [\"client-2\"], codec = \"exact\" }}]\n");
    let outcome = run(&toy("diana", &alone));
    let bytes: Vec<u64> = outcome.tallies.iter().map(|tally| tally.bytes_up).collect();
    let others = bytes.iter().enumerate().filter(|(id, _)| *id != 2).map(|(_, b)| *b).max();
    assert!(bytes[2] > 2 * others.unwrap(), "{bytes:?}");
    let down = format!("{UP}{DOWN}for = [{{ clients = [\"client-2\"], codec = \"natural\" }}]\n");
    let outcome = run(&toy("rand-mcm", &down));
    let bytes: Vec<u64> = outcome.tallies.iter().map(|tally| tally.bytes_down).collect();
    assert!(bytes[2] > bytes[1] && bytes[2] > bytes[3], "{bytes:?}");
    let unknown = toy("diana", &alone.replace("client-2", "client-9"));
    assert!(failure(&unknown).0.contains("`uplink.for` names client `client-9`"));
}

#[test]
fn notes_say_what_the_channels_are() {
    let plan = plan(&toy("rand-mcm", &format!("{UP}{DOWN}"))).unwrap();
    let notes = plan.settings().join("\n");
    let row = "rand-mcm: compression two-way; e_i no; h_i yes; E no; H yes; randomised yes; \
               update point non-degraded";
    assert!(notes.contains(row), "{notes}");
    assert!(notes.contains("downlink memories of 6 clients: 0.3 kB on the server"), "{notes}");
    assert!(notes.contains("minimum of the loss"), "{notes}");
    assert_eq!(plan.vector_len(), 6, "five columns and an intercept");
}

#[test]
fn alphas_are_those_of_the_papers() {
    use whimbrel_codec::channel::{DownRule, UpRule};
    let alphas = |rest: &str| {
        let plan = plan(&toy("mcm", rest)).unwrap();
        let omega = plan.uplink().omega().unwrap();
        let (UpRule::Memory { alpha: up }, DownRule::Preserved { alpha: down, .. }) =
            (plan.uplink().rule(), plan.downlink().rule())
        else {
            panic!("not mcm")
        };
        (omega, *up, *down)
    };
    let channels = format!("{UP}{DOWN}");
    let (omega, up, down) = alphas(&channels);
    assert_eq!((up, down), (0.5 / (1.0 + omega), 0.5 / (1.0 + omega)));
    let theory = toy("mcm", &channels).to_toml().replace("\"1/(2L)\"", "\"theory\"");
    let plan = plan(&parse(&theory)).unwrap();
    assert_eq!(plan.uplink().rule(), &UpRule::Memory { alpha: 1.0 / (1.0 + omega) });
    let DownRule::Preserved { alpha, .. } = plan.downlink().rule() else { panic!("not mcm") };
    assert_eq!(*alpha, (1.0 / (8.0 * omega)).min(0.5));
}

#[test]
fn compat_is_the_published_code() {
    use whimbrel_codec::channel::{DownRule, Feedback};
    let share = |method: &str| {
        let text = toy("dore", &format!("{method}\n{UP}{DOWN}")).to_toml();
        let plan = plan(&parse(&text)).unwrap();
        let DownRule::Degraded { feedback: Feedback::Share(share) } = *plan.downlink().rule()
        else {
            panic!("not dore")
        };
        (share, plan.settings().join("\n"))
    };
    let (published, notes) = share("");
    let omega = plan(&toy("dore", &format!("{UP}{DOWN}"))).unwrap().downlink().omega().unwrap();
    assert_eq!(published, 1.0 / (1.0 + omega));
    assert!(notes.contains("spectral"), "{notes}");
    let (step, notes) = share("compat = \"mcm-2021\"");
    assert!(notes.contains(&format!("Frobenius constants), step {step:.4}")), "{step}: {notes}");
}

#[test]
fn seeds_share_their_data() {
    let mut job = toy("sgd", "");
    job.seeds = Some(3);
    let jobs = job.each_seed();
    let seeds: Vec<u64> = jobs.iter().map(|job| job.seed).collect();
    assert_eq!(seeds, [4, 5, 6]);
    assert!(jobs.iter().all(|job| job.seeds.is_none()));
    let hashes: Vec<String> = jobs.iter().map(|job| load(job).unwrap().hash).collect();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]));
    assert_ne!(result(&jobs[0]).0, result(&jobs[1]).0);
    assert_eq!(toy("sgd", "").each_seed(), [toy("sgd", "")]);
}

#[test]
fn the_step_of_the_theory_runs() {
    let channels = format!("{UP}{DOWN}");
    for kind in ["sgd", "diana", "mcm"] {
        let rest = match kind {
            "sgd" => "",
            "diana" => UP,
            _ => &channels,
        };
        let text = toy(kind, rest).to_toml();
        let job = parse(&text.replace("\"1/(2L)\"", "\"theory\""));
        let reached = excess(&run(&job));
        assert!(reached.is_finite() && reached > 0.0, "{kind}: {reached}");
    }
}

/// With full gradients the theory's step is a number, and that number gives the same model.
#[test]
fn the_theory_says_the_constants_it_uses() {
    let channels = format!("{UP}{DOWN}");
    for (kind, rest) in [("sgd", ""), ("diana", UP), ("mcm", &channels)] {
        let mut job = toy(kind, rest);
        job.method.batch = Batch::Full;
        let text = job.to_toml();
        let theory = parse(&text.replace("\"1/(2L)\"", "\"theory\""));
        let planned = plan(&theory).unwrap();
        let (key, constants) = planned.constants(&[]).unwrap();
        assert_eq!(key, "theory");
        let constant = |name: &str| constants.get(name).and_then(|value| value.as_f64());
        let down = constant("omega_down").zip(constant("alpha_down"));
        let (l, omega_up) = (constant("L").unwrap(), constant("omega_up").unwrap());
        let bound = gamma_max(l, omega_up, down, load(&theory).unwrap().clients.len() as f64);
        assert_eq!(constant("gamma_max"), Some(bound), "{kind}");
        let gamma = constant("gamma").unwrap();
        let mut given = text.replace("\"1/(2L)\"", &format!("{gamma:?}"));
        for alpha in [constant("alpha_up"), constant("alpha_down")].into_iter().flatten() {
            given = given.replacen("alpha = \"auto\"", &format!("alpha = {alpha:?}"), 1);
        }
        assert_eq!(result(&theory), result(&parse(&given)), "{kind}");
        assert!(plan(&parse(&given)).unwrap().constants(&[]).is_none());
    }
}

#[test]
fn per_client_memories_need_room() {
    let job = toy("rand-mcm", &format!("memory_max = 200\n{UP}{DOWN}"));
    let (message, code) = failure(&job);
    assert!(message.contains("take 0.3 kB on the server; memory_max is 0.2 kB"), "{message}");
    assert!(message.contains("\"single\" or a number of groups"), "{message}");
    assert_eq!(code, 2);
    let single = format!("memory_max = 200\n{UP}{DOWN}memories = \"single\"\n");
    plan(&toy("rand-mcm", &single)).unwrap();
}

#[test]
fn minima_are_kept_and_broken_ones_replaced() {
    let folder = TempDir::new().unwrap();
    let job = toy("sgd", "");
    let loaded = load(&job).unwrap();
    let f_star = |job: &Job| {
        let plan = Plan::with_cache(job, &loaded, Some(folder.path())).unwrap();
        (plan.f_star().unwrap().to_bits(), plan.settings().join("\n").contains("from the cache"))
    };
    let files = || -> Vec<PathBuf> {
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let (solved, cached) = f_star(&job);
    assert!(!cached);
    assert_eq!(f_star(&job), (solved, true));
    assert_eq!(files().len(), 1);
    let kept = std::fs::read_to_string(&files()[0]).unwrap();
    let broken = kept.replacen("\"f_star\":0.", "\"f_star\":1.", 1);
    assert_ne!(kept, broken);
    for text in ["", "{}", "null", &kept[..kept.len() / 2], &broken] {
        std::fs::write(&files()[0], text).unwrap();
        assert_eq!(f_star(&job), (solved, false), "{text}");
        assert_eq!(std::fs::read_to_string(&files()[0]).unwrap(), kept);
    }
    let mut ridged = job.clone();
    ridged.fit = parse(&job.to_toml().replace("ridge = 0.0", "ridge = 0.5")).fit;
    assert!(f_star(&ridged).0 != solved && files().len() == 2);
    // Where nothing can be written the run goes on.
    let nowhere = folder.path().join("file");
    std::fs::write(&nowhere, "").unwrap();
    let plan = Plan::with_cache(&job, &loaded, Some(&nowhere.join("cache"))).unwrap();
    assert_eq!(plan.f_star().unwrap().to_bits(), solved);
}

/// LIBSVM text of two classes around two centres, its embedding, and a job on them.
fn two_classes(folder: &Path, gap: f64) -> PathBuf {
    let mut stream = Key::root(8).stream();
    let (mut text, mut points) = (String::new(), Vec::new());
    for row in 0..200 {
        let (class, cluster) = (row % 2, row % 5);
        let sign = if class == 0 { -1.0 } else { 1.0 };
        let [x, y] = [gap * sign + stream.normal(), stream.normal()];
        let label = if class == 0 { "-1" } else { "+1" };
        text += &format!("{label} 1:{x} 2:{y} {}:1\n", 3 + cluster);
        for coordinate in [10.0 * f64::from(cluster), stream.normal()] {
            points.extend((coordinate as f32).to_le_bytes());
        }
    }
    std::fs::write(folder.join("rows.libsvm"), text).unwrap();
    std::fs::write(folder.join("points.f32le"), points).unwrap();
    let job = A9A_MCM
        .replace("a9a.gz", "rows.libsvm")
        .replace("a9a_tsne.f32le.gz", "points.f32le")
        .replace("clients = 20", "clients = 5")
        .replace("rounds = 4500", "rounds = 400")
        .replace("batch = 50", "batch = 10");
    let path = folder.join("job.toml");
    std::fs::write(&path, job).unwrap();
    path
}

/// A job with its paths resolved against its folder.
pub fn read(path: &Path) -> Job {
    let mut job = parse(&std::fs::read_to_string(path).unwrap());
    for named in job.paths_mut() {
        *named = path.parent().unwrap().join(&*named);
    }
    job
}

#[test]
fn the_published_job_runs_on_rows_of_its_form() {
    let folder = TempDir::new().unwrap();
    let job = read(&two_classes(folder.path(), 0.7));
    let loaded = load(&job).unwrap();
    let sizes: Vec<u64> = loaded.rows.iter().flatten().copied().collect();
    assert_eq!(sizes, [40; 5], "the embedding's clusters are the clients");
    assert_eq!(loaded.classes, ["-1", "1"]);
    assert_eq!(loaded.standardization.as_ref().unwrap().columns.len(), 7);
    let plan = Plan::with_cache(&job, &loaded, None).unwrap();
    assert_eq!((plan.vector_len(), plan.rounds()), (8, Some(400)));
    assert!(plan.warnings().is_empty(), "{:?}", plan.warnings());
    let f_star = plan.f_star().unwrap();
    let outcome = run_clients(&plan, loaded.clients, job.seed, &mut ()).unwrap();
    assert!((0.0..0.1).contains(&excess(&outcome)), "{}", excess(&outcome));
    let objective = outcome.last.as_ref().unwrap().number("objective").unwrap();
    assert!((objective - f_star - excess(&outcome)).abs() < 1e-15);
}

#[test]
fn separated_classes_run_without_an_excess() {
    let folder = TempDir::new().unwrap();
    let job = read(&two_classes(folder.path(), 30.0));
    let plan = plan(&job).unwrap();
    assert_eq!(plan.f_star(), None);
    let warnings = plan.warnings().join("\n");
    assert!(warnings.contains("excess losses are not reported"), "{warnings}");
    let outcome = run(&job);
    assert!(outcome.ending.is_over(), "{:?}", outcome.ending);
    assert_eq!(outcome.last.unwrap().number("excess_loss"), None);
}

#[test]
fn an_embedding_of_another_length_is_refused() {
    let folder = TempDir::new().unwrap();
    let job = read(&two_classes(folder.path(), 1.0));
    std::fs::write(folder.path().join("points.f32le"), [0; 8 * 199]).unwrap();
    let error = load(&job).map(|_| ()).expect_err("199 points for 200 rows");
    assert!(error.to_string().contains("the embedding has 199 rows, the data have 200"), "{error}");
    assert_eq!(error.exit_code(), 3);
}

#[test]
fn a_csv_with_a_target() {
    let folder = TempDir::new().unwrap();
    let mut stream = Key::root(3).stream();
    let mut text = String::from("ward,age,dose,outcome,kind\n");
    for row in 0..90 {
        let (age, dose) = (50.0 + 10.0 * stream.normal(), stream.normal());
        let sick = dose + 0.05 * (age - 50.0) + stream.normal() > 0.0;
        let outcome = if sick { "sick" } else { "well" };
        text += &format!("w{},{age},{dose},{outcome},{}\n", row % 3, row % 2);
    }
    std::fs::write(folder.path().join("wards.csv"), text).unwrap();
    let job = |data: &str, model: &str| {
        let path = folder.path().join("job.toml");
        let text = format!(
            "[data]\nsource = \"csv\"\npath = \"wards.csv\"\n{data}\n[model]\nkind = \"{model}\"\n\
             [method]\nkind = \"sgd\"\nrounds = 50\n"
        );
        std::fs::write(&path, text).unwrap();
        read(&path)
    };
    let by_ward = job("target = \"outcome\"\nclient = \"ward\"\nstandardize = true", "logistic");
    let loaded = load(&by_ward).unwrap();
    assert_eq!(loaded.columns, ["age", "dose", "kind"]);
    assert_eq!(loaded.classes, ["sick", "well"]);
    assert_eq!(loaded.clients.len(), 3);
    assert!(excess(&run(&by_ward)) < 0.05);
    for split in [
        "label = \"kind\"\nsplit = { by = \"dirichlet\", clients = 4, alpha = 1 }",
        "columns = [\"age\", \"dose\"]\nsplit = { by = \"clusters\", clients = 4 }",
        "columns = [\"age\", \"dose\"]\nsplit = { by = \"iid\", clients = 4 }",
        "columns = [\"age\", \"dose\"]\nsplit = { by = \"dirichlet\", clients = 4, alpha = 1 }",
    ] {
        let loaded = load(&job(&format!("target = \"outcome\"\n{split}"), "logistic")).unwrap();
        assert_eq!((loaded.clients.len(), loaded.total_rows()), (4, Some(90)), "{split}");
        assert_eq!(loaded.columns, ["age", "dose"]);
    }
    let text = job("target = \"outcome\"\nclient = \"ward\"", "linear");
    let error = load(&text).map(|_| ()).expect_err("text is no number");
    assert!(error.to_string().contains("only a classifier can predict"), "{error}");
    plan(&job("target = \"dose\"\nclient = \"ward\"", "linear")).unwrap();
}

/// FedEM on a drawn mixture.
fn fedem(method: &str, rest: &str) -> Job {
    parse(&format!(
        "[data]\nsource = \"mixture\"\nclients = 8\nrows = 60\nheterogeneity = \"one-component\"\n\
         [model]\nkind = \"gmm\"\ncomponents = 2\n[method]\nkind = \"fedem\"\nrounds = 60\n{method}\n\
         {rest}\n"
    ))
}

#[test]
fn fedem_runs_over_every_downlink_that_its_form_allows() {
    let exact = run(&fedem("", ""));
    let objective = |outcome: &Outcome| outcome.last.as_ref().unwrap().number("objective").unwrap();
    for channels in ["mcm", "rand-mcm", "rand-mcm-g", "artemis", "artemis-nd", "dore", "ghost"] {
        for form in ["pair", "state", "lean"] {
            let degraded = ["artemis", "dore"].contains(&channels);
            if degraded && form != "state" {
                continue;
            }
            let groups = if channels == "rand-mcm-g" { "memories = 2\n" } else { "" };
            let method = format!("channels = \"{channels}\"\nform = \"{form}\"\nstep = 0.1");
            let outcome = run(&fedem(&method, &format!("{UP}{DOWN}{groups}")));
            assert!(outcome.ending.is_over(), "{channels} {form}");
            let gap = (objective(&outcome) - objective(&exact)).abs();
            assert!(gap < 0.1, "{channels} {form}: off by {gap}");
        }
    }
}

#[test]
fn a_standardised_fit_is_reported_in_the_units_of_the_data() {
    let folder = TempDir::new().unwrap();
    let mut stream = Key::root(5).stream();
    let mut text = String::from("ward,years,grams\n");
    for row in 0..120 {
        let far = f64::from(row % 3 / 2);
        let (years, grams) = (50.0 + 30.0 * far + 4.0 * stream.normal(), stream.normal() - far);
        text += &format!("w{},{years},{}\n", row % 4, 1e-3 * grams);
    }
    std::fs::write(folder.path().join("wards.csv"), text).unwrap();
    let init = "{\"weights\": [0.5, 0.5], \"means\": [[45, 0], [85, -0.001]], \
                \"covariance\": [[30, 0], [0, 1e-6]]}";
    std::fs::write(folder.path().join("init.json"), init).unwrap();
    let fit = |standardize: bool, covariance: &str| {
        let path = folder.path().join("job.toml");
        let text = format!(
            "[data]\nsource = \"csv\"\npath = \"wards.csv\"\nclient = \"ward\"\n\
             standardize = {standardize}\n[model]\nkind = \"gmm\"\ncomponents = 2\n\
             init = \"init.json\"\ncovariance = \"{covariance}\"\n\
             [method]\nkind = \"fedem\"\nrounds = 60\nstep = 1.0\n"
        );
        std::fs::write(&path, text).unwrap();
        let outcome = run(&read(&path));
        let objective = outcome.last.as_ref().unwrap().number("objective").unwrap();
        (outcome.delivered.last().unwrap().tensor("means").unwrap().values.clone(), objective)
    };
    for covariance in ["tied", "known"] {
        let (plain, plain_objective) = fit(false, covariance);
        let (scaled, scaled_objective) = fit(true, covariance);
        for (a, b) in pairs(&plain, &scaled) {
            assert!(
                (a - b).abs() <= 1e-7 * a.abs().max(1e-3),
                "{covariance}: {plain:?} {scaled:?}"
            );
        }
        assert!((plain_objective - scaled_objective).abs() < 1e-8, "{covariance}");
    }
}

#[test]
fn the_published_job_is_planned_on_the_published_data() {
    let Some(folder) = whimbrel_testkit::data_file("a9a") else { return };
    let mut job = parse(A9A_MCM);
    for named in job.paths_mut() {
        *named = folder.join(&*named);
    }
    let loaded = load(&job).unwrap();
    assert_eq!((loaded.clients.len(), loaded.total_rows()), (20, Some(32_561)));
    let plan = Plan::with_cache(&job, &loaded, None).unwrap();
    assert_eq!(plan.vector_len(), 124);
    let f_star = plan.f_star().unwrap();
    assert!((0.2..0.4).contains(&f_star), "{f_star}");
}

/// From no more rows than inputs, the products of an enrolment give every row away.
#[test]
fn linear_representations_of_few_rows_need_an_explicit_word() {
    let text = |samples: u32, rest: &str| {
        format!(
            "[data]\nsource = \"synthetic-representation\"\nclients = 4\nraw = 6\nlatent = 2\n\
             small = {{ share = 0.5, samples = {samples} }}\nlarge = 20\n[model]\n\
             kind = \"linear-representation\"\nlatent = 2\n[method]\nkind = \"fedsoul\"\n\
             rounds = 4\n{rest}"
        )
    };
    let planned = |text: &str| plan(&parse(text)).map(|_| ()).map_err(|e| e.to_string());
    let said = planned(&text(6, "")).unwrap_err();
    has(&said, "a client has 6 training rows of 6 inputs");
    has(&said, "min_group = 1 in [privacy]");
    assert_eq!(planned(&text(7, "")), Ok(()));
    assert_eq!(planned(&text(6, "[privacy]\nmin_group = 1\n")), Ok(()));
}
