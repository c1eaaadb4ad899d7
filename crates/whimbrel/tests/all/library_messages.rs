//! Messages of estimators and simulations over rows in memory.

use crate::library::{classes, linear};
use whimbrel::{
    Codec, Covariance, GaussianMixture, Glm, GlmFamily, Job, Key, LinearRegression,
    LogisticRegression, LowRank, MixtureOfLearners, Preset, Rows, Setting, Simple, Simulate, Table,
};

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
    let known = message(GaussianMixture::new(2).covariance(Covariance::Known(vec![1.0, 0.0, 0.0])));
    assert!(known.contains("the matrix is 1 x 3, it must be square"), "{known}");
    let kind = message(GaussianMixture::new(2).method("fedme"));
    assert!(kind.contains("did you mean \"fedem\"?") && !kind.contains("length"), "{kind}");
    let many = message(GaussianMixture::new(usize::MAX));
    assert!(many.contains("not 9223372036854775807"), "{many}");
    let private = message(GaussianMixture::new(2).set("privacy.epsilon", 1.0));
    assert!(private.contains("which `epsilon` rules out"), "{private}");
    let failure = GaussianMixture::new(0).fit(&plain()).err().unwrap();
    assert_eq!(format!("error: {failure:?}"), failure.to_string());
    let table = |fit: LowRank| fit.fit(&plain()).err().unwrap().to_string();
    let scaled = table(LowRank::gaussian(5.0).standardize());
    assert!(scaled.contains("counts cannot be scaled"), "{scaled}");
    let held_out = table(LowRank::gaussian(5.0).held_out(0.2, 0.2));
    assert!(held_out.contains("no factors unless") && held_out.contains("`holdout`"), "{held_out}");
}

#[test]
fn remedies_are_methods() {
    let plain = || linear(2, 10).iter().map(|rows| Rows::new(2, rows.values())).collect::<Vec<_>>();
    let constant = [Rows::new(2, [1.0, 2.0, 1.0, 3.0]), Rows::new(2, [1.0, 5.0, 1.0, 4.0])];
    let steep = |rows: &Rows| {
        let scaled: Vec<f64> = rows.values().iter().map(|x| 100.0 * x).collect();
        Rows::new(2, scaled.clone()).targets(scaled.chunks(2).map(|row| row[0]))
    };
    let steep: Vec<Rows> = linear(2, 30).iter().map(steep).collect();
    let (one, mixed) = (vec!["a"; 10], linear(2, 10));
    let mixture = GaussianMixture::new(2).fit(&plain()).unwrap();
    let learners = MixtureOfLearners::new(2, 3).fit(&classes(2, 20)).unwrap();
    let table = LowRank::gaussian(5).rank(0).fit(&plain()).unwrap();
    let linear = || LinearRegression::new();
    let errors = [
        (
            linear().uplink(Codec::dithering(4)).fit(&mixed).err(),
            "leave out the codecs (`uplink`, `downlink`), or fit by gradients (`preset`)",
        ),
        (
            GaussianMixture::new(1).fit(&constant).err(),
            "(`.set(\"data.prepare.drop_constant\", true)`)",
        ),
        (
            MixtureOfLearners::new(1, 30).fit(&steep).err(),
            "take a smaller step, or standardise the columns (`.standardize()`)",
        ),
        (
            MixtureOfLearners::new(1, 30)
                .standardize()
                .step(1e6)
                .uplink(Codec::dithering(4))
                .fit(&steep)
                .err(),
            "hint: take a smaller step, or take a finer codec",
        ),
        (
            LogisticRegression::new().fit(&[mixed[0].clone().classes(&one)]).err(),
            "column \"target\" holds 1 level: [\"a\"]",
        ),
        (
            mixture.predict(&Rows::new(3, [1.0, 2.0, 3.0])).err(),
            "the new rows have 3 columns, the fit has 2 columns",
        ),
        (learners.adapt(&plain()[0]).err(), "`Rows::targets` or `Rows::classes` gives them"),
        (
            learners.client("0").unwrap().intervals(&plain()[0]).err(),
            "this model does not predict intervals",
        ),
        (table.effect("0").err(), "fit with `.set(\"model.personal\", true)`"),
        (
            GaussianMixture::new(1).fit(&[plain()[0].clone().named("")]).err(),
            "the name of client 1 is empty",
        ),
        (
            MixtureOfLearners::new(1, 3).learner("logit").fit(&mixed).err(),
            "did you mean \"logistic\"?",
        ),
        (
            Simulate::new(Broken(2, 0.5), 3).uplink(Codec::top_k(1)).run(&plain()).err(),
            "add `.feedback()`",
        ),
    ];
    for (failure, said) in errors {
        let text = failure.expect(said).to_string();
        assert!(text.contains(said), "{said}: {text}");
    }
    let fed = Simulate::new(Broken(2, 0.5), 3).uplink(Codec::top_k(1)).feedback().run(&plain());
    assert!(fed.unwrap().bits_up > 0);
}

#[test]
fn newton_refuses_held_out_rows_and_targets_that_are_not_counts() {
    let (rows, linear) = (linear(2, 10), || LinearRegression::new());
    let poisson = |fifth: f64| {
        let y = (0..10).map(|i| if i == 4 { fifth } else { 1.0 });
        let clients = [rows[0].clone().targets([1.0; 10]), rows[1].clone().targets(y)];
        Glm::new(GlmFamily::Poisson).fit(&clients).err()
    };
    let errors = [
        (
            poisson(-1.0),
            "1 row cannot be used\n  client `1`, row 5: -1 in column \"target\" is not a count",
        ),
        (poisson(1.5), "row 5: 1.5 in column \"target\" is not a count"),
        (
            linear().held_out(0.1, 0.0).fit(&rows).err(),
            "so `validation` would only lose rows\n  --> data.validation\nhint: take it out, or fit by \
             gradients (`preset`)",
        ),
        (linear().held_out(0.0, 0.1).fit(&rows).err(), "so `test` would only lose rows"),
        (linear().set("data.unseen", 0.5).fit(&rows).err(), "so `unseen` would only lose rows"),
    ];
    for (failure, said) in errors {
        let text = failure.expect(said).to_string();
        assert!(text.contains(said), "{said}: {text}");
    }
}

/// `allow_degenerate` is a remedy of mixtures; a ridge is one of separation.
#[test]
fn remedies_of_degenerate_fits_work() {
    let two = Rows::from_rows((0..20).map(|i| [f64::from(i % 2), f64::from(i % 2)]));
    let mixture = GaussianMixture::new(2);
    let said = mixture.fit(std::slice::from_ref(&two)).err().unwrap().to_string();
    let hint = "hint: set(\"method.allow_degenerate\", true) returns it nevertheless";
    assert!(said.contains("the fit is degenerate") && said.ends_with(hint), "{said}");
    assert!(mixture.set("method.allow_degenerate", true).fit(&[two]).is_ok());

    let row = |i: u32| [f64::from(i) - 9.5];
    let classes = (0..20).map(|i| row(i)[0] > 0.0);
    let separated = [Rows::from_rows((0..20).map(row)).classes(classes)];
    let said = LogisticRegression::new().fit(&separated).err().unwrap().to_string();
    assert!(said.contains("separation") && said.ends_with("or set a ridge"), "{said}");
    assert!(LogisticRegression::new().ridge(0.1).fit(&separated).is_ok());
}

/// Messages name setters in place of keys of a job file.
#[test]
fn remedies_are_setters() {
    let plain = || linear(2, 10).iter().map(|rows| Rows::new(2, rows.values())).collect::<Vec<_>>();
    let mixture = || GaussianMixture::new(2);
    let logistic = |name: fn(usize) -> &'static str| {
        let rows = plain()[0].clone().classes((0..10).map(name));
        LogisticRegression::new().fit(&[rows]).err()
    };
    let two = |i: usize| if i < 4 { 0.0 } else { 2.0 };
    let numbers = [plain()[0].clone().targets((0..10).map(two))];
    let ordered = |names: [&str; 2]| plain()[0].clone().columns(names);
    let named = [ordered(["a", "b"]).named("x"), ordered(["b", "a"])];
    let table = LowRank::gaussian(5).rank(0).fit(&plain()).unwrap();
    let line = LinearRegression::new().fit(&linear(2, 10)).unwrap();
    let arm = |i: usize| [i as f64 / 3.0, (i % 2) as f64];
    let arms = Rows::from_rows((0..20).map(arm)).columns(["x", "arm"]);
    let arms = [arms.targets((0..20).map(|i| (i * i % 7) as f64))];
    let factor = LinearRegression::new().set("schema.arm.type", "category").fit(&arms).unwrap();
    let other = Rows::from_rows([[1.0, 7.0]]).columns(["x", "arm"]);
    let alone = mixture().covariance(Covariance::Full).set("model.covariance_floor", 0.99);
    let simulate = || Simulate::new(Broken(2, 0.5), 3);
    let errors = [
        (mixture().cohort(9).fit(&plain()).err(), "hint: a cohort has at most all clients"),
        (
            mixture().uplink(Codec::top_k(1)).fit(&plain()).err(),
            "hint: add `.set(\"uplink.rule\", \"feedback\")`, or use an unbiased codec",
        ),
        (
            mixture().set("privacy.masks", true).fit(&plain()).err(),
            "hint: use `.uplink(Codec::grid(16))`; sgd takes it as `.method(\"qsgd\")`",
        ),
        (
            logistic(|i| ["a", "b", "c"][i % 3]),
            "hint: use `.set(\"model.family\", \"binomial\")` for two classes, \"multinomial\" for more",
        ),
        (
            LogisticRegression::new().fit(&numbers).err(),
            "two classes, use `Rows::classes`; for more classes `.set(\"model.family\", \"multinomial\")`",
        ),
        (
            MixtureOfLearners::new(2, 5).learner("mpl").fit(&linear(2, 10)).err(),
            "hint: did you mean \"mlp\"? `kind` takes \"linear\", ",
        ),
        (alone.fit(&plain()).err(), "or use `.standardize()` where columns differ"),
        (alone.rounds(20).fit(&plain()).err(), "or use `.standardize()` where columns differ"),
        (
            table.adapt(&Rows::new(2, [f64::NAN; 4])).err(),
            "no cell of the table is observed\nhint: give at least one value",
        ),
        (line.predict(&Rows::new(2, [1.0, f64::INFINITY])).err(), "hint: numbers are finite"),
        (Job::from_path("absent.toml").err(), "or draft a job (`Job::parse` reads text)"),
        (mixture().fit(&named).err(), "hint: give the rows of all clients the same columns"),
        (factor.predict(&other).err(), "a file by `Run::predict_file`)"),
        (simulate().run(&classes(2, 9)).err(), "client `0`: the targets are classes"),
        (simulate().participation(0.0).run(&plain()).err(), "participation: 0 is not"),
    ];
    for (failure, said) in errors {
        let text = failure.expect(said).to_string();
        assert!(text.contains(said) && !text.contains(" in ["), "{said}: {text}");
    }
    let fit = mixture().rounds(1).fit(&plain()).unwrap();
    let detail = fit.run().ending_detail();
    assert!(detail.contains("after 1 round") && !detail.contains("1 rounds"), "{detail}");
    let notes = [fit.run(), line.run(), table.run()].map(|run| run.notes().concat()).concat();
    assert!(!notes.contains("\"client\"") && !notes.contains("\"target\""), "{notes}");
    assert_eq!(factor.coefficients().unwrap().len(), 2);
    let masked = mixture().set("privacy.masks", true).uplink(Codec::grid(16));
    assert!(masked.to_toml(&plain()).unwrap().contains("kind = \"grid\""));
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
