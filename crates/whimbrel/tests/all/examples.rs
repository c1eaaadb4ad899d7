//! Rows with targets for the tests of the gradient family, and jobs on them.

use crate::support::Sandbox;
use whimbrel::parts::core::Key;

pub const ROWS: usize = 240;
const COLUMNS: usize = 6;

/// The documented job in small, without its `seeds`.
pub const JOB: &str = r#"name = "small-mcm"
seed = 1
[data]
source = "libsvm"
path = "rows.libsvm"
standardize = true
split = { by = "clusters", embedding = "points.f32le", clients = 6 }
[model]
kind = "logistic"
[method]
kind = "mcm"
rounds = 120
batch = 10
step = "1/L"
[uplink]
codec = { kind = "dithering", levels = 1, norm = 2 }
[downlink]
codec = { kind = "dithering", levels = 1, norm = 2 }
"#;

/// Its sandbox: two classes that overlap, and six clusters of points that stand for the rows.
pub fn sandbox(job: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(job);
    let mut stream = Key::root(8).stream();
    let (mut text, mut points) = (String::new(), Vec::new());
    for row in 0..ROWS {
        let x: Vec<f64> = (0..COLUMNS).map(|j| stream.normal() * (1 + j) as f64 + 3.0).collect();
        let score = x[0] - 0.5 * x[1] + 2.0 * stream.normal();
        let label = if score > 1.5 { "+1" } else { "-1" };
        let cells: Vec<String> =
            x.iter().enumerate().map(|(j, value)| format!("{}:{value}", j + 1)).collect();
        text += &format!("{label} {}\n", cells.join(" "));
        for coordinate in [20.0 * (row % 6) as f64 + stream.normal(), stream.normal()] {
            points.extend((coordinate as f32).to_le_bytes());
        }
    }
    sandbox.write("rows.libsvm", &text);
    std::fs::write(sandbox.path("points.f32le"), points).unwrap();
    sandbox
}

/// Labels of the rows, as numbers.
pub fn labels(sandbox: &Sandbox) -> Vec<f64> {
    let text = sandbox.read("rows.libsvm");
    text.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
}

/// A linear regression without compression downwards.
pub const LINEAR: &str = "name = \"doses\"\n[data]\nsource = \"csv\"\npath = \"doses.csv\"\n\
    target = \"dose\"\nclient = \"ward\"\nstandardize = true\n[model]\nkind = \"linear\"\n\
    [method]\nkind = \"diana\"\nrounds = 150\nweights = \"samples\"\n[uplink]\n\
    codec = { kind = \"dithering\", levels = 2 }\n";

/// Doses that follow age and weight, in wards of unequal size.
pub fn doses(job: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(job);
    let mut stream = Key::root(4).stream();
    let mut text = String::from("ward,age,weight,dose\n");
    for row in 0..90 {
        let (age, weight) = (50.0 + 20.0 * stream.normal(), 70.0 + 10.0 * stream.normal());
        let dose = 3.0 + 0.02 * age - 0.05 * weight + 0.1 * stream.normal();
        text += &format!("w{},{age},{weight},{dose}\n", [0, 1, 1, 2, 2, 2][row % 6]);
    }
    sandbox.write("doses.csv", &text);
    sandbox
}
