//! The job of the example runs through the ordinary command line, resumes, reports and predicts.

use std::path::Path;
use std::process::{Command, Output};

fn own_family(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_own-family")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_family_from_outside_runs_as_a_job_and_reports() {
    let folder = tempfile::tempdir().unwrap();
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/job.toml");
    let run = folder.path().join("run");
    let out = run.to_str().unwrap();
    let checked = own_family(&["check", job]);
    assert!(String::from_utf8_lossy(&checked.stdout).contains("degrees = 3.0"));
    own_family(&["run", job, "--out", out]);
    let summary: serde_json::Value =
        serde_json::from_str(&text(&run.join("summary.json"))).unwrap();
    assert_eq!((&summary["method"], &summary["model"]), (&"heavy-em".into(), &"t-location".into()));
    // Memories on both channels: compression noise vanishes, and so does the mean field.
    assert!(summary["field_norm2"].as_f64().unwrap() < 1e-12, "{summary}");
    let report = text(&run.join("report.html"));
    assert!(report.contains("Location") && report.contains("centre"));
    let rows = folder.path().join("rows.csv");
    std::fs::write(&rows, "x1,x2\n0,0\n5,5\n").unwrap();
    let predicted = folder.path().join("predicted.csv");
    let (data, out) = (rows.to_str().unwrap(), predicted.to_str().unwrap());
    own_family(&["predict", run.to_str().unwrap(), "--data", data, "--out", out]);
    assert_eq!(text(&predicted).lines().count(), 3);
    // The built-in families are still there, and refuse its keys by name.
    let wrong = folder.path().join("wrong.toml");
    std::fs::write(&wrong, text(Path::new(job)).replace("t-location", "gmm")).unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_own-family"))
        .args(["check", wrong.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("heavy-em fits \"t-location\", not kind = \"gmm\""), "{said}");
}

/// `start` of `[uplink]` is the family's too: memories at zero give other bits than those at the first field.
#[test]
fn the_start_of_memories_is_the_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let job = text(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/job.toml")));
    let model = |start: &str| {
        let (file, run) = (folder.path().join(format!("{start}.toml")), folder.path().join(start));
        std::fs::write(&file, job.replace("[uplink]\n", &format!("[uplink]\nstart = {start:?}\n")))
            .unwrap();
        own_family(&["run", file.to_str().unwrap(), "--out", run.to_str().unwrap()]);
        text(&run.join("model/model.json"))
    };
    assert_ne!(model("oracle"), model("zero"));
}
