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
    let addresses = page.matches("http").count();
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
