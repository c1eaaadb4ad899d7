//! What only shows with the data at hand is said with the line of the job that asked for it.

use crate::support::Sandbox;

const JOB: &str = "[data]\nsource = \"csv\"\npath = \"rows.csv\"\nclient = \"ward\"\n\n[model]\n\
    kind = \"gmm\"\ncomponents = 2\n\n[method]\nkind = \"fedem\"\nrounds = 2\n";

fn sandbox(job: &str) -> Sandbox {
    let sandbox = Sandbox::with_job(job);
    let rows = (0..12).map(|i| format!("w{},{}.5,{}\n", i % 2, i, i * i % 7));
    sandbox.write("rows.csv", &format!("ward,a,b\n{}", rows.collect::<String>()));
    sandbox
}

/// The message of a run that fails with this code.
fn refused(job: &str, code: i32) -> String {
    let ran = sandbox(job).run(&["run", "job.toml", "--out", "out"]);
    assert_eq!(ran.code, code, "{}", ran.stderr);
    ran.stderr
}

#[test]
fn the_key_that_asks_too_much_is_shown() {
    let cases = [
        (("\"ward\"", "\"hospital\""), "job.toml:4:10", "\"hospital\"", 2),
        (("\"ward\"", "\"ward\"\ncolumns = [\"a\", \"z\"]"), "job.toml:5:17", "\"z\"", 2),
        (("rows.csv", "gone.csv"), "job.toml:3:8", "gone.csv", 3),
        (("components = 2", "components = 20"), "job.toml:8:14", "there are 12 rows", 2),
        (("\"ward\"", "\"ward\"\nprepare = { pca = 9 }"), "job.toml:5:19", "pca = 9", 2),
        (("client = \"ward\"", "split = { by = \"iid\", clients = 50 }"), "job.toml:4:9", "50", 2),
        (("rounds = 2", "participation = { size = 5 }"), "job.toml:12:17", "cohort of 5", 2),
    ];
    for ((from, to), place, what, code) in cases {
        let said = refused(&JOB.replace(from, to), code);
        assert!(said.contains(&format!("  --> {place}\n")), "{to}: {said}");
        assert!(said.contains(what), "{to}: {said}");
    }
}

#[test]
fn the_place_stands_before_the_hint() {
    let said = refused(&JOB.replace("\"ward\"", "\"hospital\""), 2);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("error: ") && lines[0].ends_with("no column \"hospital\""));
    assert_eq!(lines[1], "  --> job.toml:4:10");
    assert!(lines.last().unwrap().starts_with("hint: its columns are "), "{said}");
}
