//! The page of a run opens anywhere: it needs nothing but itself.

use crate::support::{Sandbox, mixture_job};

/// What makes a browser fetch something: attributes and rules with an address.
const FETCHERS: [&str; 7] =
    [" src=", " href=\"http", " href='http", "url(", "@import", "fetch(", "XMLHttpRequest"];

fn assert_self_contained(page: &str) {
    assert!(page.starts_with("<!doctype html>"));
    assert!(page.trim_end().ends_with("</html>"));
    for fetcher in FETCHERS {
        for (at, _) in page.match_indices(fetcher) {
            let rest: String = page[at + fetcher.len()..].chars().take(40).collect();
            let inside =
                rest.starts_with("\"data:") || rest.starts_with("\"#") || rest.starts_with('#');
            assert!(inside, "{fetcher}{rest}");
        }
    }
    assert!(!page.contains("<link"), "no style sheet from elsewhere");
    let addresses = page.matches("http:").count() + page.matches("https:").count();
    let names = page.matches("http://www.w3.org/2000/svg").count();
    assert_eq!(addresses, names, "the only address is the name of SVG");
}

#[test]
fn reports_load_nothing_from_elsewhere() {
    let method = "kind = \"fedem\"\nrounds = 20\n[uplink]\ncodec = \"natural\"";
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", method));
    sandbox.run_job("out");
    let page = sandbox.read("out/report.html");
    assert_self_contained(&page);
    assert!(page.contains("whimbrel run out/job.toml"), "how to run it again");
    assert!(page.contains("Bytes per client"), "who sent how much");
}

#[test]
fn the_demonstration_has_a_title_and_no_bits_for_em() {
    let sandbox = Sandbox::new();
    let ran = sandbox.ok(&["--out", "demo"]);
    let page = sandbox.read("demo/report.html");
    assert_self_contained(&page);
    let title = "Demonstration: pooled EM, naive distributed EM and FedEM";
    assert!(page.contains(&format!("<title>{title}</title>")));
    let em = ran.stdout.lines().find(|line| line.starts_with("em ")).expect("a line for em");
    assert!(!em.contains("bit"), "{em}");
    assert!(ran.stderr.contains("report: demo/report.html"), "{}", ran.stderr);
    assert!(!sandbox.read("demo/em/report.html").contains("per client"));
    assert!(sandbox.object("demo/em/summary.json")["bits_up"].is_u64(), "the file keeps its keys");
    for name in ["em", "dem", "fedem"] {
        assert!(sandbox.path(&format!("demo/{name}/report.html")).is_file());
    }
}

#[test]
fn figures_are_exported_for_trackers() {
    let method = "kind = \"fedem\"\nrounds = 4\nevaluate = { every = 2 }";
    let sandbox = Sandbox::with_job(&mixture_job("init = \"moments\"", method));
    sandbox.run_job("out");
    // A second export replaces the first.
    for _ in 0..2 {
        sandbox.ok(&["export", "out", "--tensorboard", "board", "--mlflow", "runs"]);
    }
    let only = |folder: &str| {
        let found = std::fs::read_dir(sandbox.path(folder)).unwrap().flatten();
        let mut found: Vec<_> = found.map(|entry| entry.path()).collect();
        found.retain(|path| !path.ends_with("meta.yaml"));
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    };
    let events = std::fs::read(only("board")).unwrap();
    // A record: its length, a checksum, its content, a checksum.
    let mut records = 0;
    let mut rest = &events[..];
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        rest = &rest[length + 16..];
        records += 1;
    }
    let rows = sandbox.metrics("out");
    assert_eq!(records, 1 + rows.len(), "the version, and one per evaluation");
    let lines = std::fs::read_to_string(only("runs/0").join("metrics/objective")).unwrap();
    let found: Vec<(f64, u64)> = lines
        .lines()
        .map(|line| {
            let parts: Vec<_> = line.split(' ').collect();
            (parts[1].parse().unwrap(), parts[2].parse().unwrap())
        })
        .collect();
    let wanted = rows.iter().map(|row| (row["objective"].as_f64(), row["round"].as_u64()));
    let wanted: Vec<_> = wanted.map(|(x, round)| (x.unwrap(), round.unwrap())).collect();
    assert_eq!(found, wanted);
    let refused = sandbox.run(&["export", "out"]);
    assert!(refused.code == 2 && refused.stderr.contains("--tensorboard"), "{}", refused.stderr);
}
