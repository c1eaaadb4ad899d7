//! Estimators over rows in memory.

use crate::support::example;
use std::ops::ControlFlow;
use std::process::Command;
use whimbrel::parts::data::{Dataset, Input};
use whimbrel::parts::families;
use whimbrel::parts::families::family::{AdaptOptions, ModelUse};
use whimbrel::{
    BayesianRegression, Codec, Covariance, Cox, GaussianMixture, Glm, GlmFamily, Job, Key,
    LinearRegression, LogisticRegression, LowRank, LowRankFit, MixtureFit, MixtureOfLearners,
    PersonalFit, Preset, RegressionFit, Rows, Run, Setting, Table,
};

/// Rows of two columns and a number that follows from them, for each client.
pub fn linear(clients: u64, rows: usize) -> Vec<Rows> {
    let of = |client: u64| {
        let mut stream = Key::root(3).child(client).stream();
        let mut next = || stream.normal();
        let all: Vec<[f64; 2]> = (0..rows).map(|_| [next(), next()]).collect();
        let targets: Vec<f64> = all.iter().map(|[x, y]| 2.0 * x - y + 0.5 + 0.1 * next()).collect();
        Rows::from_rows(&all).targets(targets)
    };
    (0..clients).map(of).collect()
}

pub fn classes(clients: u64, rows: usize) -> Vec<Rows> {
    let of = |rows: &Rows| {
        let xs = rows.values().chunks_exact(2);
        let class = |x: &[f64]| if 2.0 * x[0] - x[1] > 0.0 { "high" } else { "low" };
        Rows::new(2, rows.values()).classes(xs.map(class))
    };
    linear(clients, rows).iter().map(of).collect()
}

#[test]
fn an_estimator_is_the_job_that_says_the_same() {
    let clients = linear(4, 30).iter().map(|rows| Rows::new(2, rows.values())).collect::<Vec<_>>();
    let fit = GaussianMixture::new(2).covariance(Covariance::Diagonal).rounds(5);
    let text = fit.to_toml(&clients).unwrap();
    let job = "[data]\nsource = \"csv\"\npath = \"x\"\nclient = \"client\"\ncolumns = [\"x1\", \"x2\"]\n\
               [model]\nkind = \"gmm\"\ncomponents = 2\ncovariance = \"diagonal\"\n\
               [method]\nkind = \"fedem\"\nrounds = 5\n";
    let job = Job::parse(job).unwrap().to_toml();
    assert!(text.starts_with("# The rows were in memory"), "{text}");
    let error = Job::parse(&text).unwrap().run().err().unwrap().to_string();
    assert!(error.contains("the rows of this job were in memory"), "{error}");
    let same = |text: &str| {
        let own = |line: &&str| !["path", "name", "#"].iter().any(|own| line.starts_with(own));
        text.lines().filter(own).map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(same(&text), same(&job));
}

#[test]
fn regressions_predict() {
    let clients = linear(5, 40);
    let newton = LinearRegression::new();
    let gradients = newton.clone().preset(Preset::Diana).rounds(200).standardize();
    for regression in [newton, gradients.uplink(Codec::dithering(4))] {
        let fit = regression.fit(&clients).unwrap();
        let slopes = fit.coefficients().unwrap();
        assert_eq!(slopes.len(), 2);
        let far = |found: f64, truth: f64| (found - truth).abs() > 0.05;
        assert!(!far(slopes[0], 2.0) && !far(slopes[1], -1.0), "{slopes:?}");
        assert!(!far(fit.intercept().unwrap(), 0.5), "{:?}", fit.intercept());
        let rows = Rows::from_rows([[1.0, 1.0]]);
        let found = fit.predict(&rows).unwrap();
        assert!((found[0] - 1.5).abs() < 0.1, "{found:?}");
        let error = fit.classes(&rows).err().unwrap().to_string();
        assert!(error.contains("does not predict classes"), "{error}");
    }
    let clients = classes(5, 60);
    let by = |preset| LogisticRegression::new().preset(preset).rounds(100).ridge(1e-3);
    let newton = LogisticRegression::new().ridge(1e-3);
    for regression in [newton, by(Preset::Diana), by(Preset::Mcm)] {
        let fit = regression.fit(&clients).unwrap();
        let rows = Rows::from_rows([[2.0, 0.0], [-2.0, 0.0]]);
        assert_eq!(fit.classes(&rows).unwrap(), ["high", "low"]);
    }
}

#[test]
fn newton_has_standard_errors_and_gradients_have_none() {
    let clients = linear(3, 40);
    let fit = LinearRegression::new().errors("robust").fit(&clients).unwrap();
    let summary = fit.summary().unwrap();
    let terms: Vec<&str> = summary.iter().map(|row| row.term.as_str()).collect();
    assert_eq!(terms, ["Intercept", "x1", "x2"]);
    let estimates: Vec<f64> = summary.iter().map(|row| row.estimate).collect();
    assert_eq!(estimates[0], fit.intercept().unwrap());
    assert_eq!(estimates[1..], fit.coefficients().unwrap());
    assert!(summary.iter().all(|row| row.low < row.estimate && row.estimate < row.high));
    assert!(fit.log_likelihood().is_some_and(f64::is_finite));

    let three = |rows: &Rows| {
        let xs = rows.values().chunks_exact(2);
        let class = |x: &[f64]| ["a", "b", "c"][(x[0] > 0.5) as usize + (x[1] > 0.0) as usize];
        Rows::new(2, rows.values()).classes(xs.map(class))
    };
    let classes: Vec<Rows> = linear(3, 80).iter().map(three).collect();
    let fit = Glm::new(GlmFamily::Multinomial).ridge(1e-2).fit(&classes).unwrap();
    assert_eq!(fit.coefficients().unwrap().len(), 4);
    let rows = Rows::from_rows([[-2.0, -2.0], [2.0, 2.0]]);
    assert_eq!(fit.classes(&rows).unwrap(), ["a", "c"]);
    let gap = Rows::from_rows([[1.0, f64::NAN]]);
    let error = fit.classes(&gap).err().unwrap().to_string();
    assert!(error.contains("row 1: a value is missing"), "{error}");

    let fit = LinearRegression::new().preset(Preset::Diana).rounds(5).fit(&clients).unwrap();
    let error = fit.summary().err().unwrap().to_string();
    assert!(error.contains("no standard errors") && fit.log_likelihood().is_none(), "{error}");
}

#[test]
fn tests_and_baselines_are_values() {
    let clients = linear(3, 40);
    let fit = LinearRegression::new().set("method.tests", true).fit(&clients).unwrap();
    let tests = fit.tests().unwrap();
    assert_eq!(tests.iter().map(|test| &test.term[..]).collect::<Vec<_>>(), ["x1", "x2"]);
    assert!(tests.iter().all(|test| test.degrees == 1.0 && test.p < 1e-6), "{tests:?}");
    assert!(LinearRegression::new().fit(&clients).unwrap().tests().unwrap().is_empty());

    // Times are shorter where `x1` is larger; a third of them are censored.
    let timed = |rows: &Rows| {
        let row = |i: usize| [rows.row(i)[0], f64::from(u8::from(!i.is_multiple_of(3)))];
        let time = |i: usize| (1.0 - rows.row(i)[0] + 0.5 * rows.row(i)[1]).exp();
        let all = Rows::from_rows((0..rows.len()).map(row)).columns(["dose", "died"]);
        all.targets((0..rows.len()).map(time))
    };
    let clients: Vec<Rows> = clients.iter().map(timed).collect();
    let fit = Cox::new("died").baseline(true).fit(&clients).unwrap();
    let summary = fit.summary().unwrap();
    assert!(summary.len() == 1 && summary[0].term == "dose" && summary[0].low > 0.0, "{summary:?}");
    for client in ["0", "2"] {
        let steps = fit.baseline(client).unwrap();
        let rises = |pair: &[[f64; 2]]| pair[0][0] < pair[1][0] && pair[0][1] < pair[1][1];
        assert!(steps.len() > 10 && steps.windows(2).all(rises), "{steps:?}");
    }
    let dose = Rows::from_rows([[0.0], [1.0]]).columns(["dose"]);
    let hazards = fit.predict(&dose).unwrap();
    assert!((hazards[1] / hazards[0] - summary[0].estimate.exp()).abs() < 1e-9, "{hazards:?}");
    assert!(fit.classes(&dose).is_err());
    let plain = Cox::new("died").fit(&clients).unwrap().baseline("0").map(<[_]>::len);
    assert!(plain.err().unwrap().to_string().contains("`.baseline(true)`"));
}

/// Factors of text are read from files.
#[test]
fn a_file_is_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let row =
        |i: usize| format!("s{},{},{},{}\n", i / 10, i % 5, ["drug", "none"][i % 2], i * i % 7);
    let file = folder.path().join("d.csv");
    std::fs::write(&file, "site,age,arm,y\n".to_owned() + &(0..20).map(row).collect::<String>())
        .unwrap();
    let job = format!(
        "[data]\nsource = \"csv\"\npath = {file:?}\nclient = \"site\"\ntarget = \"y\"\n[schema]\narm = {{ type = \"category\" }}\n\
         [model]\nkind = \"glm\"\n[method]\nkind = \"newton\"\n"
    );
    let run = Job::parse(&job).unwrap().run().unwrap();
    assert_eq!(run.predict_file(&file).unwrap().numbers("prediction").len(), 20);
}

#[test]
fn personal_models_have_clients_and_adapt() {
    let clients = classes(4, 60);
    let fit = MixtureOfLearners::new(2, 20).learner("logistic").fit(&clients).unwrap();
    let rows = Rows::from_rows([[2.0, 0.0], [-2.0, 0.0]]);
    assert_eq!(fit.client("0").unwrap().classes(&rows).unwrap(), ["high", "low"]);
    assert_eq!(fit.adapt(&clients[1]).unwrap().classes(&rows).unwrap(), ["high", "low"]);
    assert!(fit.client("0").unwrap().predict(&rows).is_err(), "classes are not numbers");
    let error = fit.client("7").err().unwrap().to_string();
    assert!(error.contains("took no part"), "{error}");
    let fit = BayesianRegression::new(20).fit(&linear(4, 40)).unwrap();
    let own = fit.client("2").unwrap();
    let rows = Rows::from_rows([[1.0, 1.0]]);
    let ([low, high], mean) = (own.intervals(&rows).unwrap()[0], own.predict(&rows).unwrap()[0]);
    assert!(low < mean && mean < high);
    assert!(own.samples().len() > 1 && own.samples().iter().all(|sample| sample.len() == 3));
}

#[test]
fn gaps_are_filled() {
    let truth = |i: usize, j: usize| (1.0 + 0.1 * i as f64) * (1.0 + j as f64);
    let gap = |i: usize, j: usize| (i * 5 + j * 3).is_multiple_of(7);
    let cell = |i, j| if gap(i, j) { f64::NAN } else { truth(i, j) };
    let of = |client: usize| {
        let rows = (20 * client..20 * (client + 1)).map(|i| [0, 1, 2, 3, 4].map(|j| cell(i, j)));
        Rows::from_rows(rows)
    };
    let clients = [of(0), of(1), of(2)];
    let fit = LowRank::gaussian(100).rank(1).fit(&clients).unwrap();
    let error = fit.run().predict(&clients[0]).err().unwrap().to_string();
    assert!(error.contains("complete the table (`LowRankFit::impute`)"), "{error}");
    let mut filled = fit.impute(&clients).unwrap();
    let [first, second, third] = clients.clone();
    let renamed = clients.clone().map(|rows| rows.columns(["a", "b", "c", "d", "e"]));
    let joined = Rows::new(5, clients.iter().map(Rows::values).collect::<Vec<_>>().concat());
    let other = Rows::new(5, vec![-1.5; 100]);
    for others in [
        vec![second.clone(), first.clone(), third.clone()],
        vec![first.clone().named("1"), second.clone().named("0"), third.clone()],
        renamed.to_vec(),
        vec![joined],
        vec![other, second, third],
    ] {
        let said = fit.impute(&others).unwrap_err().to_string();
        assert!(said.starts_with("these are not the rows of the fit\nhint: "), "{said}");
    }
    filled.push(fit.adapt(&of(3)).unwrap());
    for (client, rows) in filled.iter().enumerate() {
        for (i, row) in rows.values().chunks_exact(5).enumerate() {
            for (j, x) in row.iter().enumerate() {
                let t = truth(20 * client + i, j);
                assert!((x - t).abs() < 0.2 * t, "{client} {i} {j}: {x} for {t}");
            }
        }
    }

    // A program that adapts the folder of the run to rows in memory.
    let (out, job) = (tempfile::tempdir().unwrap(), fit.run().job_toml());
    let (folder, job) = (out.path().join("run"), families::Job::parse(&job, "job").unwrap());
    fit.run().save(&folder).unwrap();
    let model = &families::files::read_object(&folder.join("model/model.json")).unwrap();
    let tensors = Some(fit.run().model());
    let run = ModelUse { folder: &folder, job: &job, model, tensors, own: None, libsvm: false };
    let columns = (1..=5).map(|j| format!("x{j}")).collect::<Vec<_>>();
    let rows = Table::new(columns, of(3).values().to_vec()).unwrap();
    let data = &Input::rows(Dataset::from_table("rows", rows));
    let options = AdaptOptions { data, labels: None, draws: 0, out: out.path() };
    let adapted = job.fit.adapt(&run, &options).unwrap();
    assert_eq!(adapted.figures["new_rows"], 20, "no row of the run has the number of another");
}

#[test]
fn a_callback_ends_a_fit() {
    let clients = linear(4, 30);
    let mut rounds = 0;
    let fit =
        LinearRegression::new().preset(Preset::Diana).rounds(500).fit_with(&clients, |progress| {
            rounds = progress.round;
            if progress.round >= 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    let fit = fit.unwrap();
    assert_eq!((fit.run().rounds(), rounds, fit.run().ending()), (7, 7, "stopped"));
    let folder = tempfile::tempdir().unwrap();
    fit.run().save(folder.path().join("run")).unwrap();
    let again = Run::open(folder.path().join("run")).unwrap();
    assert_eq!((again.rounds(), again.ending()), (7, "stopped"));
    assert_eq!(again.bits_up(), fit.run().bits_up());
}

#[test]
fn a_stopped_run_in_a_folder_resumes_to_the_same_bits() {
    let job = "[data]\nsource = \"mixture\"\n[model]\nkind = \"gmm\"\ncomponents = 3\n\
               [method]\nkind = \"fedem\"\nrounds = 20\n";
    let job = Job::parse(job).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let stopped = job.run_in_with(&out, |progress| match (progress.stage, progress.round) {
        ("fit", 9..) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    let error = stopped.err().unwrap().to_string();
    assert!(error.contains("was stopped"), "{error}");
    let error = job.run_in(&out).err().unwrap().to_string();
    let hint = "choose another folder, or resume the run (`Job::resume`), \
                or replace the run (remove its folder first)";
    assert!(error.ends_with(hint), "{error}");
    let error = Run::open(&out).err().unwrap().to_string();
    assert!(error.contains("is not finished"), "{error}");
    let resumed = job.resume(&out).unwrap();
    let whole = job.run().unwrap();
    assert_eq!(resumed.rounds(), 20);
    let error = job.resume(&out).err().unwrap().to_string();
    assert!(error.contains("hint: open the run (`Run::open`)") && !error.contains("--"), "{error}");
    let error = job.resume(folder.path().join("none")).err().unwrap().to_string();
    assert!(error.ends_with("hint: start a new run there (`Job::run_in`)"), "{error}");
    for name in ["weights", "means", "covariance"] {
        assert!(!whole.tensor(name).is_empty());
        assert_eq!(resumed.tensor(name), whole.tensor(name));
    }
    assert!(out.join("report.html").is_file());
}

/// Hints that name a table of the job file also name the setter.
#[test]
fn hints_name_setters() {
    let rows = linear(3, 20);
    let unlabelled: Vec<Rows> = rows.iter().map(|rows| Rows::new(2, rows.values())).collect();
    let mixture = || GaussianMixture::new(2).rounds(3);
    let gradients = || LinearRegression::new().preset(Preset::Mcm).rounds(3);
    let said = [
        mixture().downlink(Codec::dithering(2)).fit(&unlabelled).err(),
        mixture()
            .set("method.search", Setting::toml("{ step = [0.1, 1.0] }"))
            .fit(&unlabelled)
            .err(),
        mixture().set("method.kind", "em").uplink(Codec::dithering(2)).fit(&unlabelled).err(),
        gradients().set("downlink.alpha", 1.0).fit(&rows).err(),
        gradients().standardize().set("data.prepare.standardize", true).fit(&rows).err(),
        LinearRegression::new().set("data.prepare.standardize", true).fit(&rows).err(),
    ]
    .map(|error| error.expect("a refusal").to_string());
    for said in said {
        let Some((_, hint)) = said.split_once("hint: ") else { panic!("{said}") };
        assert!(!hint.contains(" in [") || hint.contains("`.set("), "{said}");
    }
    let said = LinearRegression::new().preset(Preset::Diana).fit(&rows).err().unwrap().to_string();
    let hint = said.ends_with("hint: give `rounds` or `epochs`");
    assert!(said.contains("the run has no length") && hint, "{said}");
}

#[test]
fn a_saved_fit_predicts_as_before() {
    let clients = linear(3, 40);
    let fit = LinearRegression::new().preset(Preset::Diana).rounds(50).fit(&clients).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    fit.run().save(&out).unwrap();
    let again = Run::open(&out).unwrap();
    let rows = Rows::from_rows([[1.0, 2.0], [0.5, -0.5]]);
    assert_eq!(again.predict(&rows).unwrap().numbers("prediction"), fit.predict(&rows).unwrap());
    assert_eq!(again.history("objective"), fit.run().history("objective"));
    assert!(out.join("report.html").is_file());
}

#[test]
fn typed_fits_are_opened_from_their_folders() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name);
    let rows = Rows::from_rows([[2.0, 0.0], [-2.0, 0.5]]);
    let named = |(at, rows): (usize, Rows)| rows.named(format!(" ward {at}, north "));
    let clients: Vec<Rows> = classes(5, 40).into_iter().enumerate().map(named).collect();
    let learner = MixtureOfLearners::new(2, 10).learner("logistic").set("data.unseen", 0.2);
    let fit = learner.fit(&clients).unwrap();
    fit.run().save(out("personal")).unwrap();
    let again = PersonalFit::open(out("personal")).unwrap();
    for run in [fit.run(), again.run()] {
        assert_eq!((run.clients().len(), run.unseen().len()), (4, 1));
        assert!(!run.clients().contains(&run.unseen()[0]), "{:?}", run.clients());
    }
    assert_eq!(again.run().clients(), fit.run().clients(), "names keep their spaces");
    let name = &fit.run().clients()[1];
    let classes_of = |fit: &PersonalFit| fit.client(name).unwrap().classes(&rows).unwrap();
    assert_eq!(classes_of(&again), classes_of(&fit));
    let adapted = |fit: &PersonalFit| fit.adapt(&clients[0]).unwrap().weights().to_vec();
    assert_eq!(adapted(&again), adapted(&fit));
    let error = again.run().predict(&rows).err().unwrap().to_string();
    let hint = "name one of its clients (`PersonalFit::client`), or fit a new client (`PersonalFit::adapt`)";
    assert!(error.ends_with(hint), "{error}");

    let fit = LinearRegression::new()
        .preset(Preset::Diana)
        .rounds(30)
        .standardize()
        .fit(&linear(3, 30))
        .unwrap();
    fit.run().save(out("linear")).unwrap();
    let again = RegressionFit::open(out("linear")).unwrap();
    assert_eq!(
        (again.coefficients().unwrap(), again.intercept().unwrap()),
        (fit.coefficients().unwrap(), fit.intercept().unwrap())
    );
    let error = MixtureFit::open(out("linear")).err().unwrap().to_string();
    assert!(error.contains("is of another kind: diana with model linear"), "{error}");

    let clients = [0.0, 8.0].map(|c| Rows::from_rows((0..20).map(|i| [c + f64::from(i % 7), 1.0])));
    let clients = clients.map(|rows| rows.columns(["a", "b"]));
    let low_rank = LowRank::gaussian(20.0).rank(0).fit(&clients).unwrap();
    low_rank.run().save(out("table")).unwrap();
    let again = LowRankFit::open(out("table")).unwrap();
    assert_eq!(again.impute(&clients).unwrap(), low_rank.impute(&clients).unwrap());
    assert_eq!(low_rank.run().figure("rank"), Some(0.0));
}

#[test]
fn a_mixture_has_a_matrix_per_component_and_the_bic_of_its_choice() {
    let around = |c: f64| {
        let row = |i: u32| [c + f64::from(i % 7), c + f64::from(i % 7 + i % 5)];
        Rows::from_rows((0..35).map(row))
    };
    let clients = [around(0.0), around(30.0), around(0.5)];
    for covariance in [Covariance::Full, Covariance::Diagonal, Covariance::Tied] {
        let shared = covariance == Covariance::Tied;
        let diagonal = covariance == Covariance::Diagonal;
        let fit = GaussianMixture::choose([1, 2]).covariance(covariance).fit(&clients).unwrap();
        let all = fit.covariances();
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|matrix| matrix.len() == 2 && matrix[0].len() == 2));
        for matrix in &all {
            assert_eq!(matrix[0][1].to_bits(), matrix[1][0].to_bits());
            assert!(matrix[0][0] > 0.0 && matrix[1][1] > matrix[0][0], "{matrix:?}");
            assert_eq!(matrix[0][1] == 0.0, diagonal, "{matrix:?}");
        }
        assert_eq!(all[0] == all[1], shared);
        assert_eq!(fit.run().figure("components"), Some(2.0));
        assert!(fit.run().figure("bic").is_some_and(f64::is_finite));
        assert!(fit.run().figures().contains(&"bic"));
    }
}

/// The targets of these rows as numbers, those of one row missing.
fn with_gap(mut clients: Vec<Rows>) -> Vec<Rows> {
    let rows = clients.pop().unwrap();
    let last = rows.len() - 1;
    let y = |i: usize| if i == last { f64::NAN } else { rows.values()[2 * i] };
    clients.push(rows.clone().targets((0..rows.len()).map(y)));
    clients
}

#[test]
fn figures_and_accessors_have_the_types_of_the_guide() {
    let fit = LinearRegression::new().fit(&with_gap(linear(2, 20))).unwrap();
    for (key, value) in [("rows", 40.0), ("rows_used", 39.0), ("rows_missing", 1.0)] {
        assert_eq!(fit.run().figure(key), Some(value), "{key}");
    }
    for key in ["aic", "deviance", "df_residual", "log_likelihood"] {
        assert!(fit.run().figure(key).is_some() && fit.run().figures().contains(&key), "{key}");
    }
    let notes: Vec<&str> = fit.run().notes();
    assert_eq!(notes[0], "1 cell is missing (0.8 %), 1 row left out of the fit");
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("fit.html");
    fit.run().report(&page).unwrap();
    fit.run().save(folder.path().join("run")).unwrap();
    let saved = std::fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    let own = std::fs::read_to_string(&page).unwrap();
    assert!(own.replace("fit.html.run/job.toml", "run/job.toml") == saved, "another report");
    assert!(!folder.path().join("fit.html.run").exists());
    let again = Run::open(folder.path().join("run")).unwrap();
    again.report(&page).unwrap();
    assert!(std::fs::read_to_string(&page).unwrap() == saved, "another report");
    // A file has its own order.
    let by_name = |run: &Run| {
        let mut tensors = run.model().tensors.clone();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    };
    assert_eq!(by_name(&again), by_name(fit.run()));
    assert_eq!(again.figure("aic"), fit.run().figure("aic"));
    let tensors: Vec<&str> = fit.run().model().tensors.iter().map(|t| t.name.as_str()).collect();
    assert!(tensors.contains(&"coefficients"), "{tensors:?}");

    let plain: Vec<Rows> = linear(3, 20).iter().map(|rows| Rows::new(2, rows.values())).collect();
    let mixture = GaussianMixture::new(2).fit(&plain).unwrap();
    let means: Vec<&[f64]> = mixture.means();
    assert_eq!((means.len(), means[0].len()), (2, 2));
    let table = LowRank::gaussian(5).rank(0).fit(&plain).unwrap();
    assert_eq!(table.impute(&plain).unwrap(), plain);
    let bayes = BayesianRegression::new(5).fit(&linear(3, 20)).unwrap();
    let client = bayes.client("0").unwrap();
    let samples: Vec<&[f32]> = client.samples();
    assert!(!samples.is_empty() && !bayes.run().model().narrow.is_empty());
}

#[test]
fn learners_follow_the_targets() {
    let rows = Rows::from_rows([[1.0, 0.0], [0.0, 1.0]]);
    let numbers = MixtureOfLearners::new(1, 30).step(0.1).fit(&linear(3, 40)).unwrap();
    let found = numbers.client("1").unwrap().predict(&rows).unwrap();
    assert!((found[0] - 2.5).abs() < 0.3 && (found[1] + 0.5).abs() < 0.3, "{found:?}");
    let found = MixtureOfLearners::new(1, 5).fit(&classes(3, 40)).unwrap();
    assert_eq!(found.client("0").unwrap().classes(&rows).unwrap(), ["high", "low"]);
    for method in ["ditto", "apfl"] {
        let fit = MixtureOfLearners::personal(method, 30).step(0.1).fit(&linear(3, 40)).unwrap();
        let found = fit.client("1").unwrap().predict(&rows).unwrap();
        assert!((found[0] - found[1] - 3.0).abs() < 1.0, "{method}: {found:?}");
        let fit = MixtureOfLearners::personal(method, 5).fit(&classes(3, 40)).unwrap();
        assert_eq!(fit.client("0").unwrap().classes(&rows).unwrap(), ["high", "low"], "{method}");
    }
    for learner in ["logistic", "softmax", "mlp"] {
        let refused = MixtureOfLearners::new(1, 5).learner(learner).fit(&linear(3, 40));
        let error = refused.err().unwrap().to_string();
        assert!(error.starts_with(&format!("`{learner}` predicts classes")), "{error}");
        assert!(error.contains("`Rows::classes`") && error.contains("`linear`"), "{error}");
    }
}

#[test]
fn a_callback_ends_every_kind_of_fit() {
    let at = |round: u32| {
        move |progress: &whimbrel::Progress<'_>| match (progress.stage, progress.round) {
            ("fit", now) if now >= round => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    let (numbers, classes) = (linear(3, 30), classes(3, 30));
    let before = "the fit was interrupted before its first step";
    let error = LinearRegression::new().fit_with(&numbers, at(0)).err().unwrap().to_string();
    assert!(error.starts_with(before), "{error}");
    let error = MixtureOfLearners::new(2, 9).fit_with(&classes, at(0)).err().unwrap().to_string();
    assert!(error.starts_with(before), "{error}");
    let newton = LogisticRegression::new().fit_with(&classes, at(1)).unwrap();
    let error = newton.summary().err().unwrap().to_string();
    assert_eq!(error, "the fit was interrupted before its standard errors");
    let learners = MixtureOfLearners::new(2, 50).fit_with(&classes, at(2)).unwrap();
    assert_eq!(learners.client("0").unwrap().weights().len(), 2);
    let chains = BayesianRegression::new(50).fit_with(&numbers, at(4)).unwrap();
    let none = chains.client("0").err().unwrap().to_string();
    assert!(none.contains("has samples after its burn-in"), "{none}");
    for (run, rounds) in [(learners.run(), 2), (chains.run(), 4)] {
        assert_eq!((run.ending(), run.rounds()), ("stopped", rounds));
        assert!(run.ending_detail().contains("by the callback"), "{}", run.ending_detail());
    }
}

#[test]
fn every_example_runs() {
    for (name, expected) in [
        ("mixture", "weights ["),
        ("job", "equal bits"),
        ("personal", "adapted: weights"),
        ("survey", "observed"),
        ("own_method", "median ["),
    ] {
        let done = Command::new(example(name)).output().unwrap();
        let shown = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
        assert!(shown.contains(expected), "{name}: {shown}");
    }
}
