//! Estimators over rows in memory.

use crate::support::example;
use std::ops::ControlFlow;
use std::process::Command;
use whimbrel::{
    BayesianRegression, Codec, Covariance, GaussianMixture, Job, Key, LinearRegression,
    LogisticRegression, LowRank, MixtureOfLearners, Preset, Rows, Simple, Simulate, Table,
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
    let regression = LinearRegression::new(200).standardize().uplink(Codec::dithering(4));
    let fit = regression.fit(&clients).unwrap();
    let coefficients = [fit.coefficients(), vec![fit.intercept()]].concat();
    for (found, truth) in coefficients.iter().zip([2.0, -1.0, 0.5]) {
        assert!((found - truth).abs() < 0.05, "{coefficients:?}");
    }
    let found = fit.predict(&Rows::from_rows([[1.0, 1.0]])).unwrap();
    assert!((found[0] - 1.5).abs() < 0.1, "{found:?}");
    let clients = classes(5, 60);
    for preset in [Preset::Diana, Preset::Mcm] {
        let fit = LogisticRegression::new(100).preset(preset).ridge(1e-3).fit(&clients).unwrap();
        let rows = Rows::from_rows([[2.0, 0.0], [-2.0, 0.0]]);
        assert_eq!(fit.classes(&rows).unwrap(), ["high", "low"]);
    }
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
    let fit = LinearRegression::new(500).fit_with(&clients, |progress| {
        rounds = progress.round;
        if progress.round >= 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let fit = fit.unwrap();
    assert_eq!((fit.run().rounds(), rounds, fit.run().ending()), (7, 7, "interrupted"));
    let folder = tempfile::tempdir().unwrap();
    fit.run().save(folder.path().join("run")).unwrap();
    let again = whimbrel::Run::open(folder.path().join("run")).unwrap();
    assert_eq!((again.rounds(), again.ending()), (7, "interrupted"));
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
    let error = whimbrel::Run::open(&out).err().unwrap().to_string();
    assert!(error.contains("is not finished"), "{error}");
    let resumed = job.resume(&out).unwrap();
    let whole = job.run().unwrap();
    assert_eq!(resumed.rounds(), 20);
    for name in ["weights", "means", "covariance"] {
        assert!(!whole.tensor(name).is_empty());
        assert_eq!(resumed.tensor(name), whole.tensor(name));
    }
    assert!(out.join("report.html").is_file());
}

#[test]
fn a_saved_fit_predicts_as_before() {
    let clients = linear(3, 40);
    let fit = LinearRegression::new(50).fit(&clients).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    fit.run().save(&out).unwrap();
    let again = whimbrel::Run::open(&out).unwrap();
    let rows = Rows::from_rows([[1.0, 2.0], [0.5, -0.5]]);
    assert_eq!(again.predict(&rows).unwrap().numbers("prediction"), fit.predict(&rows).unwrap());
    assert_eq!(again.history("objective"), fit.run().history("objective"));
    assert!(out.join("report.html").is_file());
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
