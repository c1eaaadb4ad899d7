//! A job file, the estimator with the same settings, a run in a folder, a run that is stopped:
//! `cargo run --release --example job`.

use std::fmt::Write as _;
use std::fs;
use std::ops::ControlFlow;
use whimbrel::{Codec, GaussianMixture, Job, Rows};

const JOB: &str = r#"
[data]
source = "csv"
path = "rows.csv"
client = "client"

[model]
kind = "gmm"
components = 2

[method]
kind = "fedem"

[uplink]
codec = { kind = "dithering", levels = 8 }
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("whimbrel-job-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let row =
        |c: usize, i: usize| [6.0 * (i % 2) as f64 + 0.1 * c as f64, (i * 7 % 11) as f64 / 5.0];
    let (mut csv, mut clients) = (String::from("client,x1,x2\n"), Vec::new());
    for c in 0..5 {
        let rows: Vec<[f64; 2]> = (0..40).map(|i| row(c, i)).collect();
        for [x, y] in &rows {
            writeln!(csv, "{c},{x:?},{y:?}")?;
        }
        clients.push(Rows::from_rows(rows));
    }
    fs::write(folder.join("rows.csv"), csv)?;
    fs::write(folder.join("job.toml"), JOB)?;

    let job = Job::from_path(folder.join("job.toml"))?;
    let run = job.run()?;
    let fit = GaussianMixture::new(2).uplink(Codec::dithering(8)).fit(&clients)?;
    let bits = |xs: &[f64]| xs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(run.tensor("means")), bits(fit.run().tensor("means")));
    assert_eq!(run.bits_up(), fit.run().bits_up());
    println!("equal bits: {} rounds, {} bits up", run.rounds(), run.bits_up());

    let kept = job.run_in(folder.join("run"))?;
    assert_eq!(bits(kept.tensor("means")), bits(run.tensor("means")));
    println!(
        "{:?}, report: {}",
        kept.history("objective").last(),
        folder.join("run/report.html").is_file()
    );

    let stopped = job.run_with(|progress| match progress.round {
        3.. if progress.stage == "fit" => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    })?;
    println!("stopped after {} rounds: {}", stopped.rounds(), stopped.ending());
    fs::remove_dir_all(&folder)?;
    Ok(())
}
