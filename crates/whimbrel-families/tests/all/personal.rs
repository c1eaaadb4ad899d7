//! Jobs of learners: every method parses, is written out in full and reads back; what is refused.

use crate::{has, parse, plans, refusal, run_clients};
use whimbrel_codec::channel::Preset;
use whimbrel_codec::channel::preset::NAMES;
use whimbrel_core::ClientData;
use whimbrel_core::method::Artifact;
use whimbrel_engine::{Chain, Observer, StageMethod};
use whimbrel_families::Job;
use whimbrel_families::load::load;
use whimbrel_families::personal::FAMILY;
use whimbrel_families::plan::Plan;
use whimbrel_testkit::method::{MethodUnderTest, laws};
use whimbrel_testkit::pairs;

fn job(model: &str, method: &str) -> String {
    format!(
        "name = \"m\"\n[data]\nsource = \"synthetic-mixture\"\nclients = 20\n[model]\n{model}\n\
         [method]\n{method}\nrounds = 4\n"
    )
}

/// A job of every method that the family has, on few samples and a model that the method can train. No rows are
/// kept out: an answer without their scores is one too, so the laws could not tell it from a part of one with them.
fn every_method() -> impl Iterator<Item = (&'static str, Job)> {
    FAMILY.methods.iter().map(|kind| {
        let name = kind.word.name;
        let model = match name {
            "mocha" => "kind = \"logistic\"",
            _ => "kind = \"mlp\"\nhidden = [3]",
        };
        let by_group = kind.preset == Some(Preset::RandMcmG);
        let downlink = if by_group { "[downlink]\nmemories = 2\n" } else { "" };
        let text = job(model, &format!("kind = \"{name}\""))
            .replace("= 20", "= 4\ndimension = 3\ntest = 0.0\nvalidation = 0.0");
        (name, parse(&(text + downlink)))
    })
}

#[test]
fn every_method_is_written_out_and_reads_back() {
    for (method, read) in every_method() {
        let written = read.to_toml();
        let again = Job::parse(&written, "job.toml").unwrap_or_else(|e| panic!("{e}\n{written}"));
        assert_eq!(again, read, "{method}\n{written}");
    }
}

#[test]
fn every_method_passes_the_battery() {
    for (name, job) in every_method() {
        let loaded = load(&job).unwrap();
        let plan = Plan::with_cache(&job, &loaded, None).unwrap();
        let data: Vec<ClientData> = loaded.clients.iter().map(|(_, data)| data.clone()).collect();
        match plan.build(0, &[]).unwrap().method {
            StageMethod::Server(method) => {
                laws(&MethodUnderTest { name, method: &*method, data: &data, exchanges: 3 });
            }
            StageMethod::Neighbours(..) => {
                assert!(plans::run(&job).last.is_some(), "{name}");
            }
        }
    }
}

#[test]
fn the_gradient_methods_are_for_networks_too() {
    for (name, preset, _) in NAMES {
        let by_group = *preset == Preset::RandMcmG;
        let downlink = if by_group { "[downlink]\nmemories = 2\n" } else { "" };
        let method = format!("kind = \"{name}\"\nmomentum = 0.9\nbatch = 32\nstep = 0.1");
        let read = parse(&(job("kind = \"mlp\"", &method) + downlink));
        let written = read.to_toml();
        let again = Job::parse(&written, "job.toml").unwrap_or_else(|e| panic!("{e}\n{written}"));
        assert_eq!(again, read, "{written}");
        // A regression is the gradient family's, with its own keys.
        has(
            &refusal(
                &(job("kind = \"logistic\"", &format!("{method}\ndecay = {{ at = [0.5] }}"))
                    + downlink),
            ),
            "`decay` has no meaning for sgd",
        );
    }
    has(&refusal(&job("kind = \"mlp\"", "kind = \"mcm\"\nstep = \"theory\"")), "is a number");
    has(
        &refusal(&job("kind = \"mlp\"", "kind = \"sgd\"\nlocal_epochs = 2")),
        "`local_epochs` has no meaning for sgd",
    );
}

#[test]
fn clients_with_solvers_of_their_own_are_read_and_checked() {
    let own = "kind = \"fedmix\"\nfor = [{ clients = [\"client-03\"], local_epochs = 5, step = 0.2 }, \
               { clients = [\"client-04\"], minibatches = 2, batch = 8 }]";
    let read = parse(&job("kind = \"logistic\"", own));
    assert_eq!(parse(&read.to_toml()), read, "{}", read.to_toml());
    let loaded = load(&read).unwrap();
    Plan::new(&read, &loaded).unwrap();
    let unknown = parse(&job("kind = \"logistic\"", &own.replace("client-03", "nobody")));
    has(
        &Plan::new(&unknown, &loaded).err().unwrap().to_string(),
        "`method.for` names client `nobody`",
    );
    has(
        &refusal(&job("kind = \"logistic\"", &own.replace("client-04", "client-03"))),
        "has two solvers",
    );
}

#[test]
fn settings_survive_the_way_through_a_file() {
    let method = "kind = \"fedmix\"\ncomponents = 4\nminibatches = 3\nbatch = 16\nstep = 0.5\n\
        decay = { factor = 0.1, at = [0.5, 0.75] }\nsampling = \"unbiased\"\n\
        optimiser = { kind = \"sgd\", momentum = 0.9, weight_decay = 5e-4 }\n\
        unseen_weights = \"one-step\"\nsend_above = 0.05\nparticipation = 0.2";
    let read = parse(&job("kind = \"mlp\"\nhidden = [30, 20]", method));
    let written = read.to_toml();
    assert!(written.contains("hidden = [30, 20]"), "{written}");
    assert!(written.contains("momentum = 0.9, weight_decay = 0.0005"), "{written}");
    assert_eq!(parse(&written), read);
}

#[test]
fn what_has_no_meaning_is_refused_by_name() {
    let logistic = "kind = \"logistic\"";
    for (method, words) in [
        ("kind = \"fedavg\"\ncomponents = 3", "`components` has no meaning for fedavg"),
        ("kind = \"mocha\"\nstep = 0.1", "`step` has no meaning for mocha"),
        ("kind = \"fedmix\"\nstep = \"theory\"", "the local step of fedmix is a number"),
        ("kind = \"fedmix\"\nlocal_epochs = 1\nminibatches = 2", "minibatches"),
        (
            "kind = \"fedmix\"\nsampling = \"renormalise\"\nchannels = \"diana\"",
            "needs a plain uplink",
        ),
        ("kind = \"fedmix\"\nsend_above = 0.1\nchannels = \"diana\"", "needs a plain uplink"),
        ("kind = \"fedmix\"\nstop = { field_norm2 = 1e-3 }", "neither a mean field nor"),
    ] {
        has(&refusal(&job(logistic, method)), words);
    }
    has(
        &refusal(&format!(
            "{}[uplink]\ncodec = {{ kind = \"dithering\" }}\n",
            job(logistic, "kind = \"local\"")
        )),
        "local does not compress its messages",
    );
    has(&refusal(&job("kind = \"gmm\"\ncomponents = 2", "kind = \"fedmix\"")), "gmm");
}

/// Keeps the mixture weights that clients end with.
#[derive(Default)]
struct Weights(std::collections::BTreeMap<String, Vec<f64>>);

impl Observer for Weights {
    fn client_artifact(&mut self, name: &str, own: Artifact) -> whimbrel_core::Result<()> {
        let weights = own.tensor("weights").map(|tensor| tensor.values.clone());
        self.0.insert(name.into(), weights.unwrap_or_default());
        Ok(())
    }
}

/// App. J.4 of Marfoq et al.: one component per client. Every client lands in its cluster, and the
/// components are found up to their order.
#[test]
fn clients_of_one_component_land_in_its_cluster() {
    for m in [2, 3] {
        let text = format!(
            "seed = 1\n[data]\nsource = \"synthetic-mixture\"\nclients = 100\ncomponents = {m}\n\
             dimension = 150\nalpha = 0\n[model]\nkind = \"logistic\"\nintercept = false\n[method]\n\
             kind = \"fedmix\"\ncomponents = {m}\nrounds = 200\nbatch = 128\nstep = 5.0\n\
             decay = {{ factor = 0.1, at = [0.5, 0.75] }}\nevaluate = {{ every = 200 }}\n"
        );
        let job = parse(&text);
        let loaded = load(&job).unwrap();
        let truth = loaded.truth.clone().unwrap().law;
        let plan = Plan::with_cache(&job, &loaded, None).unwrap();
        let names: Vec<String> = loaded.clients.iter().map(|(name, _)| name.clone()).collect();
        let mut found = Weights::default();
        let outcome = run_clients(&plan, loaded.clients, 1, &mut found).unwrap();
        let w = &outcome.delivered.last().unwrap().narrow[0].values;
        let fitted: Vec<Vec<f64>> =
            w.chunks(150).take(m).map(|c| c.iter().map(|x| f64::from(*x)).collect()).collect();
        let distance = |a: &[f64], b: &[f64]| {
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
        };
        let nearest = |theta: &Vec<f64>| {
            (0..m).min_by(|a, b| {
                distance(&fitted[*a], theta).total_cmp(&distance(&fitted[*b], theta))
            })
        };
        let place: Vec<usize> = truth.components.iter().filter_map(nearest).collect();
        for (theta, place) in pairs(&truth.components, &place) {
            assert!(
                distance(&fitted[*place], theta) < 2e-2,
                "{}",
                distance(&fitted[*place], theta)
            );
        }
        let mut apart = 0.0;
        for (name, weights) in pairs(&names, &truth.weights) {
            let own = &found.0[name];
            let largest = (0..m).max_by(|a, b| own[*a].total_cmp(&own[*b])).unwrap();
            let component = (0..m).max_by(|a, b| weights[*a].total_cmp(&weights[*b])).unwrap();
            assert_eq!(largest, place[component], "{name}: {own:?} {weights:?}");
            let ordered: Vec<f64> = (0..m).map(|k| own[place[k]]).collect();
            apart += distance(&ordered, weights) / names.len() as f64;
        }
        assert!(apart < 1e-2, "{apart}");
    }
}
