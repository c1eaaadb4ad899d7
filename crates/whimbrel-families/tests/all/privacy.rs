//! Jobs under differential privacy: forbidden settings, defaults, noise, utility and cost.

use crate::{has, parse, plans, refusal};
use whimbrel_core::method::{Artifact, Exposure};
use whimbrel_data::Sha256;
use whimbrel_engine::Outcome;
use whimbrel_families::job::{Budget, UpRule};
use whimbrel_families::plan::{Facts, Plan};
use whimbrel_families::{Job, Offer};
use whimbrel_methods::lloyd::ROW_BOUND;
use whimbrel_privacy::accountant::Releases;
use whimbrel_privacy::noise::NoiseShare;

/// A job by its tables; `privacy` stands in `[privacy]`.
fn text(model: &str, method: &str, privacy: &str) -> String {
    format!(
        "seed = 2\n[data]\nsource = \"mixture\"\nclients = 5\nrows = 400\n\
         means = [[-1.2, 0.0], [1.2, 0.5]]\n[model]\nkind = \"gmm\"\ncomponents = 2\n{model}\n\
         [method]\n{method}\n[privacy]\n{privacy}\n"
    )
}

fn private(method: &str, privacy: &str) -> Job {
    parse(&text("covariance = \"full\"", &format!("kind = \"fedem\"\n{method}"), privacy))
}

fn run(job: &Job) -> (Plan, Outcome) {
    (plans::plan(job).unwrap(), plans::run(job))
}

fn model(outcome: &Outcome) -> &Artifact {
    outcome.delivered.last().unwrap()
}

/// Every forbidden setting with a part of its reason.
#[test]
fn settings_without_a_guarantee_are_refused() {
    let fedem = "kind = \"fedem\"";
    let full = "covariance = \"full\"";
    let rows = [
        (full, "kind = \"vr-fedem\"", "", "influence"),
        (full, "kind = \"dem\"", "", "influence"),
        (full, "kind = \"em\"", "", "influence"),
        ("covariance = \"tied\"", fedem, "", "tied covariance"),
        ("covariance = \"full\"\nstarts = 3", fedem, "", "spend the budget"),
        ("covariance = \"full\"\ninit = \"examples\"", fedem, "", "exact sums or rows"),
        ("covariance = \"full\"\ninit = \"moments\"", fedem, "", "exact sums or rows"),
        (full, fedem, "unit = \"client\"", "start is not estimated"),
        (full, fedem, "min_group = 5", "does not cover"),
        (full, "kind = \"fedem\"\nparticipation = 0.5", "", "knows the cohort"),
        (full, "kind = \"fedem\"\nbatch = 20", "", "minibatches of a fixed size"),
        (full, fedem, "unit = \"client\"\nsampling = 0.1", "sampled rows have a bound"),
        (full, "kind = \"fedem\"\nepochs = 3", "", "fixed beforehand"),
        (full, "kind = \"fedem\"\nweights = \"equal\"", "", "weigh the same"),
        (full, "kind = \"fedem\"\nform = \"lean\"", "", "pair's frame"),
        (full, "kind = \"fedem\"\nstop = { patience = 3 }", "", "stopping rule"),
        (full, fedem, "\n[uplink]\nrule = \"memory\"", "can subtract noise that enters a memory"),
        (
            full,
            fedem,
            "\n[uplink]\nrule = \"feedback\"\ncodec = { kind = \"top-k\", k = 2 }",
            "plain uploads",
        ),
        (
            full,
            fedem,
            "\n[uplink]\nrule = \"plain\"\ncodec = { kind = \"dithering\" }",
            "codec's error",
        ),
        (full, fedem, "\n[uplink]\nframe = \"raw\"", "Fisher"),
        (full, fedem, "\n[data.prepare]\nstandardize = true", "without noise"),
    ];
    for (model, method, more, reason) in rows {
        let job = text(model, method, &format!("epsilon = 1.0\n{more}"));
        has(&refusal(&job), reason);
        // Without privacy the same settings pass, unless they are wrong for other reasons.
        let plain = text(model, method, more);
        if let Err(errors) = Job::parse(&plain, "job.toml") {
            assert!(!errors.to_string().contains(reason), "{plain}");
        }
    }
    for (kind, unit) in [
        ("scaffold", "client"),
        ("mocha", "client"),
        ("clustered", "client"),
        ("d-fedavg", "client"),
        ("pfedme", "client"),
        ("fedavg", "row"),
    ] {
        let job = format!(
            "[data]\nsource = \"csv\"\npath = \"a.csv\"\ntarget = \"y\"\nclient = \"c\"\n[model]\nkind = \"logistic\"\n\
             [method]\nkind = \"{kind}\"\nrounds = 3\n[privacy]\nepsilon = 1.0\nunit = \"{unit}\"\nclip = 1.0\n"
        );
        let said = refusal(&job);
        let reason = if unit == "row" { "several local steps" } else { "influence" };
        has(&said, reason);
    }
}

/// An offer of a coordinator that changed the job's text.
fn forged(offer: &Offer, from: &str, to: &str) -> String {
    let quoted = |text: &str| serde_json::to_string(text).unwrap().trim_matches('"').to_owned();
    let bare = offer.to_json().replace(offer.hash(), "");
    // Inner quotation marks keep their backslash.
    let (from, to) = (quoted(from), quoted(to));
    assert!(bare.contains(&from), "{bare}");
    let bare = bare.replacen(&from, &to, 1);
    let mut hash = Sha256::new();
    hash.update(bare.as_bytes());
    bare.replace("\"hash\":\"\"", &format!("\"hash\":\"{}\"", hash.hex()))
}

/// Settings that a simulation allows, with the reason for which a network refuses them.
#[test]
fn a_network_refuses_what_its_clients_could_undo() {
    let job = |method: &str, privacy: &str| {
        parse(&format!(
            "[data]\nsource = \"csv\"\npath = \"a.csv\"\nclient = \"c\"\ncolumns = [\"a\", \"b\"]\n[model]\n\
             kind = \"gmm\"\ncomponents = 2\ncovariance = \"diagonal\"\n[method]\nkind = \"fedem\"\n{method}\n\
             [privacy]\nepsilon = 1.0\n{privacy}\n[federation]\nclients = 3\n"
        ))
    };
    let planned = |method: &str, privacy: &str| {
        let job = job(method, privacy);
        Plan::on_network(&job, &Facts::on_network(&job).unwrap())
    };
    for (method, privacy, reason) in [
        ("", "", "unknown before clients join"),
        ("", "delta = 1e-5\nnoise_seed = 3", "could remove noise"),
        ("evaluate = { every = 5 }", "delta = 1e-5", "have no noise"),
    ] {
        let Err(failure) = planned(method, privacy) else { panic!("{privacy} was accepted") };
        has(&failure.to_string(), reason);
    }
    // A client refuses such an offer, too, whatever its coordinator's program checked.
    let honest = job("", "delta = 1e-5");
    let offer = Offer::of(&honest, &Facts::on_network(&honest).unwrap()).unwrap();
    offer.plan().unwrap();
    for (from, to, reason) in [
        ("epsilon = 1", "noise_seed = 3\nepsilon = 1", "could remove noise"),
        ("evaluate = { every = \"auto\" }", "evaluate = { every = 5 }", "have no noise"),
    ] {
        let offer = Offer::from_json(forged(&offer, from, to).as_bytes()).unwrap();
        let Err(failure) = offer.plan() else { panic!("{to} was accepted") };
        has(&failure.to_string(), reason);
    }
    let plan = planned("", "delta = 1e-5").unwrap();
    has(&plan.notes().join("\n"), "nu = ");
    // Four rounds of the start and eighty of the fit spend the whole budget.
    let charges = plan.charges().unwrap();
    assert_eq!(charges.iter().map(|charge| charge.uploads).collect::<Vec<_>>(), [4, 80]);
    let all = charges.iter().map(|charge| charge.all()).sum();
    let epsilon = plan.private().unwrap().epsilon(all);
    assert!((epsilon - 1.0).abs() < 1e-6, "{epsilon}");
}

#[test]
fn defaults_change_and_are_stated() {
    let job = private("", "epsilon = 1.0");
    assert_eq!((job.uplink.rule, job.method.length), (UpRule::Plain, Budget::Rounds(80)));
    assert_eq!(parse(&job.to_toml()), job);
    let (plan, outcome) = run(&job);
    let notes = plan.notes().join("\n");
    has(&notes, "epsilon 1 at delta 2.34e-4 in 80 rounds");
    assert!(outcome.last.is_none(), "clients were evaluated");
    assert_eq!(outcome.rounds, 80);
    // The whole budget is spent, and not more.
    let (epsilon, delta) = plan.privacy_spent(outcome.rounds).unwrap();
    assert!(epsilon <= 1.0 && epsilon > 0.9999, "{epsilon}");
    assert!((delta - 2000f64.powf(-1.1)).abs() < 1e-15);
    assert!(plan.privacy_spent(40).unwrap().0 < 0.75);
    // With 2,000 rows, ten components in six columns would drown.
    let few = text("covariance = \"full\"", "kind = \"fedem\"", "epsilon = 0.02");
    has(&plans::plan(&parse(&few)).unwrap().warnings().join("\n"), "nu = ");
}

#[test]
fn noise_repeats_with_its_seed_only() {
    let seeded = private("rounds = 10", "epsilon = 2.0\nnoise_seed = 4");
    let secret = private("rounds = 10", "epsilon = 2.0");
    assert_eq!(model(&run(&seeded).1), model(&run(&seeded).1));
    assert_ne!(model(&run(&secret).1), model(&run(&secret).1));
    assert_ne!(model(&run(&seeded).1), model(&run(&secret).1));
}

/// Columns in natural units: limits that the job states scale them, and cost no budget.
#[test]
fn stated_limits_scale_the_columns_of_a_private_fit() {
    let job = |data: &str| {
        format!(
            "seed = 2\n[data]\nsource = \"mixture\"\nclients = 5\nrows = 400\n\
             means = [[400, 0.00], [1600, 0.02]]\ncovariance = [[40000, 0], [0, 0.0001]]\n{data}\n\
             [model]\nkind = \"gmm\"\ncomponents = 2\ncovariance = \"full\"\n[method]\n\
             kind = \"fedem\"\nevaluate = {{ every = 80 }}\n[privacy]\nepsilon = 3.0\nnoise_seed = 1\n"
        )
    };
    let limits = "[data.prepare]\nlimits = true\n[schema]\nx1 = { min = -500, max = 2500 }\n\
                  x2 = { min = -0.05, max = 0.07 }";
    let objective = |text: &str| run(&parse(text)).1.objective().unwrap();
    let exact = objective(&job("").replace("epsilon = 3.0\nnoise_seed = 1\n", ""));
    let (raw, scaled) = (objective(&job("")), objective(&job(limits)));
    assert!((scaled - exact).abs() < 0.1 && raw > exact + 1.0, "{scaled}, {raw} and {exact}");
    has(&refusal(&job("[data.prepare]\nstandardize = true")), "limits = true in [data.prepare]");
}

/// Shares of 60 clients under masks: models of one round with other seeds of the noise differ by the
/// noise alone, whose variance is that of 60 shares, where 40 would suffice. With 5 seeds and `d`
/// coordinates the estimate has a relative standard error of `sqrt(2/(4 d))`.
#[test]
fn shares_of_the_noise_survive_masks() {
    let job = |more: &str| {
        parse(&format!(
            "seed = 3\n[data]\nsource = \"synthetic-mixture\"\nclients = 60\n[model]\nkind = \"logistic\"\n\
             [method]\nkind = \"fedavg\"\nrounds = 1\nstep = 0.1\n[uplink]\nrule = \"plain\"\n\
             codec = {{ kind = \"grid\", bits = 32 }}\n[privacy]\nmasks = true\nunit = \"client\"\n\
             clip = 0.5\nepsilon = 2.0\n{more}\n"
        ))
    };
    let values = |seed: u32| -> Vec<f64> {
        let outcome = plans::run(&job(&format!("noise_seed = {seed}")));
        let narrow = model(&outcome).narrow.iter().flat_map(|tensor| &tensor.values);
        narrow.map(|x| f64::from(*x)).collect()
    };
    let models: Vec<Vec<f64>> = (1..=5).map(values).collect();
    let d = models[0].len();
    let spread = |at: usize| {
        let mean = models.iter().map(|model| model[at]).sum::<f64>() / 5.0;
        models.iter().map(|model| (model[at] - mean).powi(2)).sum::<f64>() / 4.0
    };
    let variance = (0..d).map(spread).sum::<f64>() / d as f64;
    let plan = plans::plan(&job("")).unwrap();
    has(&plan.notes().join("\n"), "shares of the noise, 40 of which suffice");
    let private = plan.private().unwrap();
    let share = NoiseShare::new(0.5, d, private.multiplier(), 40).unwrap();
    let step = f64::from(share.exponent).exp2();
    let expected = 60.0 * share.variance as f64 * (step / 60.0).powi(2);
    let error = 5.0 * (2.0 / (4.0 * d as f64)).sqrt();
    assert!((variance / expected - 1.0).abs() < error, "{variance} and {expected}, {d}");
    // zCDP costs a little more noise than the exact formula, and the budget is spent in one round.
    let exact = Releases::within(private.guarantee, 1, 1.0).unwrap().multiplier;
    assert!((1.0..1.2).contains(&(private.multiplier() / exact)));
    assert!((plan.privacy_spent(1).unwrap().0 - 2.0).abs() < 1e-6);
    // Colluders' shares do not count.
    let colluding = plans::plan(&job("colluders = 20")).unwrap();
    has(&colluding.notes().join("\n"), "20 of which suffice");
    has(&plans::failure(&job("colluders = 40")).0, "colluders alone");
    for (wrong, reason) in [("bits = 16", "words of 32 bits"), ("bits = 20", "words of 32 bits")] {
        has(&refusal(&job("").to_toml().replace("bits = 32", wrong)), reason);
    }
    let central = job("").to_toml().replace("masks = true", "colluders = 2");
    has(&refusal(&central), "without shares");
}

/// Noisy k-means in shares under masks. The state of one cluster is the mean of all rows and the noise: starts with other
/// seeds of the noise differ by the shares of 6 clients, where 4 would suffice. With 9 seeds and 31 numbers
/// the variance has a relative standard error of `sqrt(2/(8 * 31))`; the rows' own mean adds less than a hundredth.
#[test]
fn a_start_under_masks_has_shares_of_the_noise() {
    let row = |i: u32| -> Vec<u32> { (0..30).map(|j| u32::from(i == j)).collect() };
    let (means, covariance) = (vec![0; 30], (0..30).map(row).collect::<Vec<_>>());
    let job = |more: &str| {
        parse(&format!(
            "seed = 2\n[data]\nsource = \"mixture\"\nclients = 6\nrows = 400\nmeans = [{means:?}]\n\
             covariance = {covariance:?}\n[model]\nkind = \"gmm\"\ncomponents = 1\ncovariance = \"diagonal\"\n[method]\nkind = \"fedem\"\nrounds = 1\n\
             [privacy]\nmasks = true\nepsilon = 2.0\n{more}\n"
        ))
    };
    let plan = plans::plan(&job("")).unwrap();
    for stage in plan.disclosures().unwrap() {
        let up = stage.disclosures.iter().find(|d| d.message == "up").unwrap();
        assert_eq!(up.exposure, Exposure::Sum(4), "{}", stage.stage);
    }
    let charges = plan.charges().unwrap();
    assert_eq!(charges.iter().map(|charge| charge.uploads).collect::<Vec<_>>(), [4, 1]);
    let spent = plan.private().unwrap().epsilon(charges.iter().map(|charge| charge.all()).sum());
    assert!(spent <= 2.0 && spent > 1.9999, "{spent}");
    let share = NoiseShare::new(ROW_BOUND, 31, 1.0 / charges[0].each.sqrt(), 4).unwrap();
    let step = f64::from(share.exponent).exp2();
    let expected = 6.0 * share.variance as f64 * (step / 2400.0).powi(2);
    let state = |seed: u32| {
        let outcome = plans::run(&job(&format!("noise_seed = {seed}")));
        outcome.delivered[0].values("parameters", 31).unwrap()
    };
    let states: Vec<Vec<f64>> = (1..=9).map(state).collect();
    let spread = |at: usize| {
        let mean = states.iter().map(|state| state[at]).sum::<f64>() / 9.0;
        states.iter().map(|state| (state[at] - mean).powi(2)).sum::<f64>() / 8.0
    };
    let ratio = (0..31).map(spread).sum::<f64>() / 31.0 / expected;
    assert!((ratio - 1.0).abs() < 5.0 * (2.0f64 / (8.0 * 31.0)).sqrt() + 0.01, "{ratio}");
}

/// Noise in shares costs the fit as little as central noise: `nu` is below 1, so that at most 3 % are lost.
#[test]
fn a_mixture_under_masks_is_fitted_like_one_without() {
    let objective = |privacy: &str| {
        let job = private("rounds = 80\nevaluate = { every = 80 }", privacy);
        run(&job).1.objective().unwrap()
    };
    let exact = objective("");
    let [central, shared] = ["", "masks = true"]
        .map(|masks| objective(&format!("epsilon = 2.0\nnoise_seed = 1\n{masks}")));
    let most = 1.03 * exact;
    assert!(shared < most && central < most, "{exact}, {central}, {shared}");
}

/// Central noise on the shared part of personal models: models of one round with other seeds of the
/// noise differ by the noise alone, whose standard deviation is `z C` in the sum of 20 clients.
/// With 5 seeds and `d` coordinates the variance has a relative standard error of `sqrt(2/(4 d))`.
#[test]
fn shared_parts_of_personal_models_get_noise() {
    let job = |method: &str, seed: u32| {
        parse(&format!(
            "seed = 3\n[data]\nsource = \"synthetic-mixture\"\nclients = 20\n[model]\nkind = \"mlp\"\n\
             hidden = [8]\n[method]\nkind = {method}\nrounds = 1\n[privacy]\nunit = \"client\"\n\
             clip = 0.5\nepsilon = 2.0\nnoise_seed = {seed}\n"
        ))
    };
    let values = |job: &Job| -> Vec<f64> {
        let outcome = plans::run(job);
        let narrow = model(&outcome).narrow.iter().flat_map(|tensor| &tensor.values);
        narrow.map(|x| f64::from(*x)).collect()
    };
    for (method, over) in [
        ("\"fedavg+\"\nstep = 0.1", 20.0),
        ("\"ditto\"\nstep = 0.1", 20.0),
        ("\"fedrep\"\nstep = 0.1", 20.0),
        // The server moves by the sum over clients.
        ("\"fedsoul\"\nstep = 1.0", 1.0),
    ] {
        let models: Vec<Vec<f64>> = (1..=5).map(|seed| values(&job(method, seed))).collect();
        let means: Vec<f64> = (0..models[0].len())
            .map(|at| models.iter().map(|model| model[at]).sum::<f64>() / 5.0)
            .collect();
        let spreads: Vec<f64> = (0..means.len())
            .map(|at| models.iter().map(|m| (m[at] - means[at]).powi(2)).sum::<f64>() / 4.0)
            .filter(|spread| *spread > 0.0)
            .collect();
        let d = spreads.len() as f64;
        let plan = plans::plan(&job(method, 1)).unwrap();
        let expected = (plan.private().unwrap().multiplier() * 0.5 / over).powi(2);
        let ratio = spreads.iter().sum::<f64>() / d / expected;
        assert!((ratio - 1.0).abs() < 5.0 * (2.0 / (4.0 * d)).sqrt(), "{method}: {ratio}, {d}");
    }
}

/// Poisson sampling: the noise is the accountant's for the rate, the budget is spent to the end, and
/// it is refused where draws would be known or no bound applies.
#[test]
fn sampled_rows_spend_the_budget_of_their_rate() {
    let text = |more: &str| {
        format!(
            "seed = 3\n[data]\nsource = \"toy\"\nclients = 4\nrows = 500\ndims = 5\n[model]\n\
             kind = \"linear\"\n[method]\nkind = \"sgd\"\nrounds = 40\nstep = 0.5\n[privacy]\n\
             clip = 1.0\n{more}\n"
        )
    };
    let sampled = parse(&text("epsilon = 2.0\ndelta = 1e-5\nnoise_seed = 1\nsampling = 0.1"));
    let (plan, outcome) = run(&sampled);
    let private = plan.private().unwrap();
    let releases = Releases { multiplier: private.multiplier(), rate: 0.1 };
    assert_eq!(private.spent(40), releases.epsilon(40, 1e-5));
    assert!(private.spent(40) <= 2.0 && private.spent(40) > 1.9999, "{}", private.spent(40));
    assert!(private.spent(20) < private.spent(40));
    let all = parse(&text("epsilon = 2.0\ndelta = 1e-5\nnoise_seed = 1"));
    let without = plans::plan(&all).unwrap().private().unwrap().multiplier();
    assert!(private.multiplier() < 0.5 * without, "{} and {without}", private.multiplier());
    // The draws follow the secret of the noise, not the seed of the job.
    let again = run(&sampled).1;
    assert_eq!(model(&outcome), model(&again));
    let other = parse(&text("epsilon = 2.0\ndelta = 1e-5\nnoise_seed = 2\nsampling = 0.1"));
    assert!(model(&outcome) != model(&run(&other).1));
    has(&refusal(&text("sampling = 0.1")), "no meaning without noise");
    has(&refusal(&text("epsilon = 1.0\nsampling = 1.5")), "above 0 and below 1");
    let mixture = private_mixture();
    has(&plans::failure(&mixture).0, "statistics of all rows");
}

fn private_mixture() -> Job {
    private("", "epsilon = 1.0\nsampling = 0.5")
}

/// The objective under a large epsilon approaches that without privacy: clipping costs a little.
#[test]
fn a_large_epsilon_approaches_the_fit_without_noise() {
    let objective = |job: &Job| run(job).1.objective().unwrap();
    let exact = objective(&parse(&text(
        "covariance = \"full\"",
        "kind = \"fedem\"\nrounds = 80\nevaluate = { every = 80 }",
        "",
    )));
    let with = |epsilon: f64| {
        objective(&private(
            "evaluate = { every = 80 }",
            &format!("epsilon = {epsilon:.1}\nnoise_seed = 1"),
        ))
    };
    let (large, small) = (with(1e4), with(0.1));
    assert!((large - exact).abs() < 0.01 * exact, "{large} and {exact}");
    assert!(small > large, "{small} and {large}");
}
