//! Estimators over rows in memory.

use crate::support::example;
use std::ops::ControlFlow;
use std::process::Command;
use whimbrel::{
    BayesianRegression, Codec, Covariance, GaussianMixture, Glm, GlmFamily, Job, Key,
    LinearRegression, LogisticRegression, LowRank, LowRankFit, MixtureFit, MixtureOfLearners,
    PersonalFit, Preset, RegressionFit, Rows, Run, Setting, Simple, Simulate, Table,
};

/// Rows of two columns and a number that follows from them, for each client.
fn linear(clients: u64, rows: usize) -> Vec<Rows> {
    let of = |client: u64| {
        let mut stream = Key::root(3).child(client).stream();
        let mut next = || stream.normal();
        let all: Vec<[f64; 2]> = (0..rows).map(|_| [next(), next()]).collect();
        let targets: Vec<f64> = all.iter().map(|[x, y]| 2.0 * x - y + 0.5 + 0.1 * next()).collect();
        Rows::from_rows(&all).targets(targets)
    };
    (0..clients).map(of).collect()
}

fn classes(clients: u64, rows: usize) -> Vec<Rows> {
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
    let same = |text: &str| {
        let own = |line: &&str| !line.starts_with("path") && !line.starts_with("name");
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
    assert!(own.samples().count() > 1 && own.samples().all(|sample| sample.len() == 3));
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
    let fit = LowRank::gaussian(100.0).rank(1).fit(&clients).unwrap();
    let mut filled = fit.impute(&clients).unwrap();
    filled.push(fit.adapt(&of(3)).unwrap());
    for (client, rows) in filled.iter().enumerate() {
        for (i, row) in rows.values().chunks_exact(5).enumerate() {
            for (j, x) in row.iter().enumerate() {
                let t = truth(20 * client + i, j);
                assert!((x - t).abs() < 0.2 * t, "{client} {i} {j}: {x} for {t}");
            }
        }
    }
}

#[test]
fn errors_name_the_key_or_the_client() {
    let clients = linear(2, 10).iter().map(|rows| Rows::new(2, rows.values())).collect::<Vec<_>>();
    let error = |fit: GaussianMixture| fit.fit(&clients).err().unwrap().to_string();
    let refused = error(GaussianMixture::new(2).participation(1.5));
    assert!(refused.contains("method.participation"), "{refused}");
    let ignored = error(GaussianMixture::new(2).set("data.columns", vec!["x1"]));
    assert!(ignored.contains("`data.columns` cannot be set"), "{ignored}");
    let unknown = error(GaussianMixture::new(2).set("method.round", 3));
    assert!(unknown.contains("did you mean `rounds`?"), "{unknown}");
    let ragged = [Rows::from_rows([vec![1.0, 2.0], vec![1.0]])];
    let error = GaussianMixture::new(1).fit(&ragged).err().unwrap().to_string();
    assert!(error.contains("client `0`: row 1 has 2 numbers, row 2 has 1"), "{error}");
    let twice = [Rows::new(1, [1.0, 2.0]).named("a"), Rows::new(1, [1.0, 2.0]).named("a")];
    let error = GaussianMixture::new(1).fit(&twice).err().unwrap().to_string();
    assert!(error.contains("two clients are called `a`"), "{error}");
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
        assert!(fit.run().figures().any(|key| key == "bic"));
    }
}

/// The message of a regression that cannot be fitted to these clients.
fn refused(clients: &[Rows]) -> String {
    let fit = LinearRegression::new().preset(Preset::Diana).rounds(5).fit(clients);
    fit.err().unwrap().to_string()
}

#[test]
fn unusable_rows_are_named_by_client_and_row() {
    let mut clients = linear(3, 4);
    clients[1] =
        Rows::new(2, [0.0, 1.0, 2.0, f64::NAN, 4.0, 5.0]).targets([1.0, 2.0, f64::INFINITY]);
    let error = refused(&clients);
    assert!(
        error.starts_with("2 rows cannot be used\n  client `1`, row 2, column \"x2\""),
        "{error}"
    );
    assert!(error.contains("\n  client `1`, row 3, column \"target\""), "{error}");
    let rows = |last: f64| Rows::new(1, [1.0, 2.0, last]);
    for estimator in [GaussianMixture::new(1), GaussianMixture::new(1).pooled()] {
        let error = estimator.fit(&[rows(3.0), rows(f64::INFINITY)]).err().unwrap().to_string();
        assert!(error.contains("client `1`, row 3, column \"x1\": \"inf\""), "{error}");
    }
    let infinite = [rows(3.0), rows(f64::INFINITY)];
    let error = LowRank::gaussian(5.0).rank(0).fit(&infinite).err().unwrap().to_string();
    assert!(error.contains("client `1`, row 3"), "{error}");
    let clients = [Rows::new(2, [1.0, 2.0]), Rows::new(2, [1.0, f64::NAN])];
    let error = Simulate::new(Broken(2, 0.5), 3).run(&clients).err().unwrap().to_string();
    assert!(error.contains("client `1`, row 1, column \"x2\": the value is missing"), "{error}");
}

#[test]
fn messages_are_those_of_a_program() {
    let plain = || linear(2, 10).iter().map(|rows| Rows::new(2, rows.values())).collect::<Vec<_>>();
    let message = |fit: GaussianMixture| fit.fit(&plain()).err().unwrap().to_string();
    let empty = message(GaussianMixture::choose([]));
    assert!(empty.contains("`components` is an empty list\n  --> model.components"), "{empty}");
    let nan = message(GaussianMixture::new(2).participation(f64::NAN));
    assert!(nan.contains("--> method.participation") && !nan.contains("TOML"), "{nan}");
    for key in ["method.two words", "method.", "", "a b.c", "model.\"", "method.\n"] {
        let error = message(GaussianMixture::new(2).set(key, 1));
        assert!(error.contains("unknown") && !error.contains("TOML"), "{key:?}: {error}");
    }
    let broken = message(GaussianMixture::new(2).set("method.evaluate", Setting::toml("{ every")));
    assert_eq!(broken, "`method.evaluate` is set to `{ every`, which is not a TOML value");
    let twice = message(GaussianMixture::new(2).set("method", Setting::toml("{ rounds = 3 }")));
    assert_eq!(twice, "`method` is set as a whole, and keys of it as well");
    let seeds = message(GaussianMixture::new(2).set("seeds", 3));
    assert!(seeds.contains("fitted once for each `seed`"), "{seeds}");
    let targets = GaussianMixture::new(2).fit(&linear(2, 10)).err().unwrap().to_string();
    assert!(targets.contains("leave out `Rows::targets`"), "{targets}");
    let none = LogisticRegression::new()
        .preset(Preset::Diana)
        .rounds(5)
        .fit(&plain())
        .err()
        .unwrap()
        .to_string();
    assert!(none.contains("`Rows::targets` or `Rows::classes`"), "{none}");
    let text = refused(&classes(2, 20));
    assert!(text.contains("the targets are text") && !text.contains("-->"), "{text}");
    let mut mixed = linear(2, 10);
    mixed[1] = Rows::new(2, mixed[1].values());
    let error = refused(&mixed);
    assert_eq!(error, "client `1` has no targets, `0` has");
    mixed[1] = mixed[1].clone().classes(["a"; 10]);
    let error = refused(&mixed);
    assert!(error.contains("numbers as targets, the other classes"), "{error}");
    let table = |fit: LowRank| fit.fit(&plain()).err().unwrap().to_string();
    let scaled = table(LowRank::gaussian(5.0).standardize());
    assert!(scaled.contains("counts cannot be scaled"), "{scaled}");
    let held_out = table(LowRank::gaussian(5.0).held_out(0.2, 0.2));
    assert!(held_out.contains("no factors unless") && held_out.contains("`holdout`"), "{held_out}");
}

/// A method whose values have this length and this content.
struct Broken(usize, f64);

impl Simple for Broken {
    fn start(&self, columns: usize) -> Vec<f64> {
        vec![1.0; columns]
    }

    fn value(&self, _: &[f64], _: &Table, _: Key) -> Vec<f64> {
        vec![self.1; self.0]
    }

    fn step(&self, at: &mut [f64], mean: &[f64], _: u32) {
        at.copy_from_slice(mean);
    }

    fn loss(&self, at: &[f64], _: &Table) -> f64 {
        at[0]
    }
}

#[test]
fn values_that_are_not_finite_or_too_long_end_a_simulation() {
    let clients = linear(2, 5).iter().map(|rows| Rows::new(2, rows.values())).collect::<Vec<_>>();
    let run = |method, codec| Simulate::new(method, 3).uplink(codec).run(&clients);
    assert_eq!(run(Broken(2, 0.5), Codec::exact()).unwrap().parameters, [0.5, 0.5]);
    for codec in [Codec::exact(), Codec::dithering(4)] {
        assert!(run(Broken(2, f64::NAN), codec.clone()).is_err());
        assert!(run(Broken(2, f64::INFINITY), codec.clone()).is_err());
        let error = run(Broken(3, 0.5), codec).unwrap_err().to_string();
        assert!(error.contains("3 numbers for a vector of 2"), "{error}");
    }
    assert!(Simulate::new(Broken(2, 0.5), 0).run(&clients).is_err());
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
