//! A coordinator that forges the results of earlier stages: a client checks each against the job
//! before it computes anything from it.

use crate::network::{MIXTURE, Wards, client};
use whimbrel_core::method::{Artifact, Tensor};
use whimbrel_core::{ClientId, Key, Wire};
use whimbrel_engine::{Chain, Consent, Purpose, Question, StepId};
use whimbrel_families::plan::Facts;
use whimbrel_families::{Job, Offer};

/// The offer of a job, and the artifacts of its simulation.
fn offered(wards: &Wards, job: &Job) -> (Offer, Vec<Artifact>) {
    let offer = Offer::of(job, &Facts::on_network(job).unwrap()).unwrap();
    (offer, wards.simulated(job, None).delivered)
}

fn tensor<'a>(artifact: &'a mut Artifact, name: &str) -> &'a mut Tensor {
    artifact.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of this name")
}

/// Replaces a tensor by a list.
fn set(artifact: &mut Artifact, name: &str, values: Vec<f64>) {
    let old = tensor(artifact, name);
    old.shape = vec![values.len() as u64];
    old.values = values;
}

const FIT: &str = "[model]\nkind = \"gmm\"\ncomponents = 2\ninit = \"moments\"\n\
                   [method]\nkind = \"fedem\"\nrounds = 8\nstep = 0.5\n";

/// An invented list of columns made a client send a megabyte at an enrolment for which its screen
/// had announced some hundred bytes.
#[test]
fn an_invented_preparation_lengthens_no_message() {
    let wards = Wards::new();
    let job = wards.job(&format!("{MIXTURE}standardize = true\n"), FIT);
    let (offer, honest) = offered(&wards, &job);
    let agreed = offer.plan().unwrap().agreements(&Consent::default()).unwrap();
    let enrol = |delivered: &[Artifact]| {
        let (name, file) = &wards.files[0];
        let at = StepId::enrolment(1);
        let (purpose, message) = (Purpose::Enrol, delivered.to_vec().to_bytes().into());
        let question = Question { purpose, at, client: ClientId(0), message };
        client(&offer.to_json(), name, file, job.seed).answer(&question)
    };
    let told = enrol(&honest[..1]).unwrap().len() as u64;
    assert!(told <= agreed[1].sizes.summary, "{told} of {}", agreed[1].sizes.summary);
    let columns = 500;
    let mut forged = honest[0].clone();
    set(&mut forged, "kept", vec![0.0; columns]);
    set(&mut forged, "means", vec![0.0; columns]);
    set(&mut forged, "scales", vec![1.0; columns]);
    match enrol(&[forged]) {
        Ok(sent) => {
            panic!("{} bytes left, and the screen said {}", sent.len(), agreed[1].sizes.summary)
        }
        Err(error) => assert!(error.to_string().contains("prepare-columns"), "{error}"),
    }
}

/// A change of the artifacts of a job's earlier stages.
type Forgery = Box<dyn Fn(&mut Vec<Artifact>)>;

/// Replaces a tensor of an artifact.
fn with(at: usize, name: &'static str, values: &[f64]) -> Forgery {
    let values = values.to_vec();
    Box::new(move |all| set(&mut all[at], name, values.clone()))
}

/// Changes one number of a tensor.
fn one(at: usize, name: &'static str, place: usize, value: f64) -> Forgery {
    Box::new(move |all| tensor(&mut all[at], name).values[place] = value)
}

/// Changes a tensor's list.
fn list(at: usize, name: &'static str, change: impl Fn(&mut Vec<f64>) + 'static) -> Forgery {
    Box::new(move |all| change(&mut tensor(&mut all[at], name).values))
}

/// Builds the last stage from honest artifacts, and from each forgery of them.
fn refuses(wards: &Wards, data: &str, rest: &str, forgeries: Vec<Forgery>) {
    let (offer, honest) = offered(wards, &wards.job(data, rest));
    let plan = offer.plan().unwrap();
    let last = plan.len() - 1;
    plan.build(last, &honest[..last]).unwrap();
    let of_lists: Vec<Forgery> = vec![
        Box::new(|all| all.push(Artifact::new("prepare-columns"))),
        Box::new(|all| all.insert(0, Artifact::new("choice"))),
        Box::new(|all| drop(all.pop())),
        Box::new(|all| all.last_mut().unwrap().kind = "gmm".into()),
    ];
    for (at, forge) in forgeries.iter().chain(&of_lists).enumerate() {
        let mut forged = honest[..last].to_vec();
        forge(&mut forged);
        assert!(plan.build(last, &forged).is_err(), "forgery {at} of\n{data}{rest}");
    }
    never_panics(wards, &offer, &honest[..last]);
}

/// A client answers mutated results of earlier stages, as numbers and as bytes, or refuses them.
fn never_panics(wards: &Wards, offer: &Offer, honest: &[Artifact]) {
    let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, 0.5, 3.0, 1e18, 1e308, f64::MIN_POSITIVE];
    let mut random = Key::root(33).stream();
    let mut below = |n: usize| random.below(n.max(1) as u64) as usize;
    let (name, file) = &wards.files[0];
    for _ in 0..200 {
        let mut forged = honest.to_vec();
        let tensors = &mut forged[below(honest.len())].tensors;
        let count = tensors.len();
        if let Some(tensor) = tensors.get_mut(below(count)) {
            match (below(4), tensor.values.len()) {
                (0, _) => tensor.shape.push(odd[below(4) + 3] as u64),
                (1, length) => tensor.values.truncate(below(length)),
                (_, 0) => tensor.values.push(odd[below(odd.len())]),
                (_, length) => tensor.values[below(length)] = odd[below(odd.len())],
            }
        }
        let mut message = forged.to_bytes();
        if below(2) == 0 {
            let at = below(message.len());
            message[at] = below(256) as u8;
        }
        let at = StepId::enrolment(honest.len() as u32);
        let (purpose, message) = (Purpose::Enrol, message.into());
        let question = Question { purpose, at, client: ClientId(0), message };
        let _ = client(&offer.to_json(), name, file, 7).answer(&question);
    }
}

#[test]
fn forged_results_of_earlier_stages_are_refused() {
    let (nan, infinite) = (f64::NAN, f64::INFINITY);
    let gmm = |model: &str, step: &str| {
        format!("[model]\nkind = \"gmm\"\n{model}\n[method]\nkind = \"fedem\"\nrounds = 8\n{step}")
    };
    let standard = format!("{MIXTURE}standardize = true\n");
    let lists = [&[0.0, 0.0, 1.0][..], &[0.0, 2.0, 1.0], &[0.0, 1.0], &[0.0, 1.0, 3.0]];
    let lists = lists.into_iter().chain([&[0.0, 1.0, 1.5][..], &[0.0, 1.0, 2.0, 2.0], &[]]);
    let mut forgeries: Vec<Forgery> = lists.map(|kept| with(0, "kept", kept)).collect();
    forgeries.extend([0.0, -1.0, infinite, nan].map(|scale| one(0, "scales", 2, scale)));
    forgeries.extend([nan, -1.0].map(|gamma| with(2, "gamma", &[gamma])));
    forgeries.extend([
        with(0, "scales", &[1.0; 2]),
        with(0, "means", &[0.0; 4]),
        one(0, "means", 0, nan),
        list(2, "theta", |theta| theta.truncate(3)),
        one(2, "theta", 0, nan),
        with(2, "gamma", &[]),
        with(2, "gamma", &[0.5; 2]),
    ]);
    let fit = gmm("components = 2", "step = \"theory\"");
    refuses(&Wards::new(), &standard, &fit, forgeries);

    // Four columns, one of them constant; without standardisation scales are one.
    let wards = Wards::with(",beds", ",12");
    let prepare = format!("{MIXTURE}[data.prepare]\ndrop_constant = true\npca = 2\n");
    let fit = gmm("components = 2\ninit = \"moments\"", "step = 0.5");
    let forgeries = vec![
        one(0, "scales", 0, 2.0),
        list(1, "axes", |axes| axes.extend([0.0; 3])),
        list(1, "axes", |axes| axes.truncate(3)),
        list(1, "axes", |axes| axes.iter_mut().for_each(|x| *x *= 2.0)),
        list(1, "axes", |axes| axes.copy_within(..3, 3)),
        one(1, "axes", 0, nan),
    ];
    refuses(&wards, &prepare, &fit, forgeries);

    let fit = gmm("components = [1, 2]\ninit = \"moments\"", "step = 0.5");
    let choose = |components: f64| {
        list(0, "candidates", move |all| {
            all.chunks_exact_mut(11).for_each(|candidate| candidate[0] = components);
        })
    };
    let nothing = list(0, "candidates", |all| all.clear());
    let longer = list(0, "theta", |theta| theta.push(0.0));
    refuses(&Wards::new(), MIXTURE, &fit, vec![choose(50.0), nothing, longer]);
}

/// A job without preparation takes no prepared rows.
#[test]
fn a_stage_that_the_job_does_not_have_delivers_nothing() {
    let wards = Wards::new();
    let (offer, _) = offered(&wards, &wards.job(MIXTURE, FIT));
    let plan = offer.plan().unwrap();
    assert!(plan.len() == 1 && plan.build(0, &[]).is_ok());
    let kept = |k: usize| (0..k).map(|j| j as f64).collect::<Vec<f64>>();
    let forged = Artifact::new("prepare-columns").with("kept", &[3], kept(3));
    let forged = forged.with("means", &[3], vec![0.0; 3]).with("scales", &[3], vec![1.0; 3]);
    assert!(plan.build(0, &[forged]).is_err());
}
