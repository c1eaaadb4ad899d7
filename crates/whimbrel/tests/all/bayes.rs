//! Posteriors as a user meets them: a run, a client's predictions, a client that was not there.

use crate::support::{Sandbox, number};

fn job(method: &str) -> String {
    format!(
        "name = \"soul\"\nseed = 1\n[data]\nsource = \"synthetic-representation\"\nclients = 40\nraw = 6\n\
         latent = 2\nsmall = {{ share = 0.5, samples = 6 }}\nlarge = 10\nnoise = 0.1\n[model]\n\
         kind = \"linear-representation\"\nlatent = 2\n[method]\nrounds = 200\n{method}\n"
    )
}

const SOUL: &str = "kind = \"fedsoul\"\nsteps = 10\nburn_in = 5";

/// A single predictor is off by the variance of the heads, about one. Intervals of 20,000 new targets whose
/// nominal level is 0.9: a point estimate of the representation costs some of it.
#[test]
fn posteriors_beat_one_model_and_their_intervals_cover() {
    let sandbox = Sandbox::with_job(&job(SOUL));
    let soul = sandbox.run_job("out");
    assert!(number(&soul, "prediction_error") < 0.2, "{soul:?}");
    assert!((0.75..0.98).contains(&number(&soul, "coverage_90")), "{soul:?}");
    sandbox.write("fedavg.toml", &job("kind = \"fedavg\"\nstep = 0.1\nbatch = 5"));
    let fedavg = sandbox.ok(&["run", "fedavg.toml", "--out", "avg", "--json"]).json();
    let error = number(&fedavg, "prediction_error");
    assert!(error > 2.0 * number(&soul, "prediction_error"), "{error}");
    let report = sandbox.read("out/report.html");
    for figure in ["Learned prior and clients", "R-hat", "Chain of client"] {
        assert!(report.contains(figure), "{figure}");
    }
}

#[test]
fn clients_predict_from_their_posteriors_and_new_ones_adapt() {
    let sandbox = Sandbox::with_job(&job(SOUL));
    sandbox.run_job("out");
    let mut rows = String::from("x1,x2,x3,x4,x5,x6,target\n");
    for i in 0..8 {
        let x: Vec<String> = (0..6).map(|j| format!("{}", (i * 7 + j * 5) % 11)).collect();
        rows.push_str(&format!("{},{}\n", x.join(","), i % 3));
    }
    sandbox.write("new.csv", &rows);
    let predict = |client: &str, out: &str| {
        let args = ["predict", "out", "--client", client, "--data", "new.csv", "--out", out];
        sandbox.ok(&args);
        sandbox.read(out)
    };
    let refused = sandbox.run(&["predict", "out", "--data", "new.csv", "--out", "p.csv"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("from its posterior"), "{}", refused.stderr);
    sandbox.ok(&["adapt", "out", "--data", "new.csv", "--out", "mine"]);
    let names: Vec<String> = std::fs::read_dir(sandbox.path("out/clients"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    for (client, out) in [("mine", "a.csv"), (names[0].as_str(), "b.csv")] {
        let text = predict(client, out);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("row,prediction,low_90,high_90,deviation_mean"));
        for line in lines {
            let cells: Vec<f64> = line.split(',').map(|cell| cell.parse().unwrap()).collect();
            assert!(cells[2] < cells[1] && cells[1] < cells[3] && cells[4] > 0.0, "{line}");
        }
    }
}

#[test]
fn wrong_settings_are_refused_by_name() {
    for (method, said) in [
        ("kind = \"fedsoul\"\nsteps = 5\nburn_in = 5", "leaves nothing"),
        ("kind = \"fedsoul\"\nkernel = \"gibbs\"", "gibbs"),
        ("kind = \"fedsoul\"\nradius = { phi = 0.01 }", "projection"),
        ("kind = \"fedsoul\"\nparticipation = 0.0", "participation"),
        ("kind = \"fedsoul\"\nkernel = \"mala\"\nbatch = 2", "minibatch"),
        ("kind = \"fedsoul\"\ngamma = 10.0", "would do"),
    ] {
        let sandbox = Sandbox::with_job(&job(method));
        let ran = sandbox.run(&["run", "job.toml", "--out", "out"]);
        assert_ne!(ran.code, 0, "{method}");
        assert!(ran.stderr.contains(said), "{method}: {}", ran.stderr);
    }
}
