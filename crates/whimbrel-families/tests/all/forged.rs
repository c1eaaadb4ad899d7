//! A coordinator that forges the results of earlier stages: a client checks each against the job
//! before it computes anything from it.

use crate::network::{MIXTURE, Wards, client};
use whimbrel_core::method::{Artifact, Tensor};
use whimbrel_core::{ClientId, Wire};
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
        Ok(sent) => panic!("{} bytes left, and the screen said {}", sent.len(), agreed[1].sizes.summary),
        Err(error) => assert!(error.to_string().contains("prepare-columns"), "{error}"),
    }
}
