//! The example `drive`: a job through the byte interface, with clients as processes over pipes.

use crate::examples;
use crate::support::{Sandbox, example};
use std::fs;
use std::process::Command;

fn ends_in_the_same_bits(sandbox: &Sandbox) {
    sandbox.ok(&["run", "job.toml", "--out", "simulated"]);
    let mut command = Command::new(example("drive"));
    command.args(["job.toml", "driven"]).current_dir(sandbox.path("."));
    let driven = command.env("WHIMBREL_CACHE", sandbox.path(".cache")).output().unwrap();
    assert!(driven.status.success(), "{}", String::from_utf8_lossy(&driven.stderr));
    let read = |run: &str, name: &str| fs::read(sandbox.path(run).join(name)).unwrap();
    for name in ["model/model.safetensors", "model/model.json", "journal"] {
        assert!(read("simulated", name) == read("driven", name), "{name} differs");
    }
    assert_eq!(sandbox.timeless_metrics("simulated"), sandbox.timeless_metrics("driven"));
}

#[test]
fn gradients_over_compressed_channels_end_in_the_simulations_bits() {
    ends_in_the_same_bits(&examples::sandbox(&examples::JOB.replace("120", "40")));
}

#[test]
fn a_mixture_with_all_its_stages_ends_in_the_simulations_bits() {
    let job = r#"name = "stages"
seed = 4
[data]
source = "mixture"
clients = 4
[model]
kind = "gmm"
components = 2
init = "federated-kmeans"
[method]
kind = "fedem"
rounds = 12
batch = 10
step = "theory"
participation = 0.75
[uplink]
codec = { kind = "dithering", levels = 4, norm = 2 }
"#;
    ends_in_the_same_bits(&Sandbox::with_job(job));
}
